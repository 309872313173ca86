"""How far a transition walks: Python calls of a round, counted, not timed."""

import sys
from functools import partial
from pathlib import Path

import pytest

import motet
from motet.algorithms.dqn import DQNConfig
from motet.training.roster import make_roster
from motet.training.serial import Serial
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.worlds import TreasureHunt


class LoopedHunt(TreasureHunt):
    """The same world as a plain PettingZoo environment, which is stepped without arrays."""


ROOT = str(Path(motet.__file__).parent)


def calls_by_round(world, agents, rounds):
    """For each of some rounds late in a serial run, the calls of functions of motet: file and name."""
    config = DQNConfig(hidden=(16,), batch_size=32, min_rows=32)
    settings = Settings(engine="serial", steps=10_000, updates_per_step=0.1, publish_every=1)
    shared = SharedMemory(make_roster(partial(world, agents=agents), config, settings))
    serial, found, begun = Serial(shared), [], 60 * agents

    def count(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            found[-1].append((code.co_filename, code.co_qualname))

    def each_round():
        found.append([])
        if len(found) == begun:
            sys.setprofile(count)
        return len(found) == begun + rounds

    try:
        serial.play(each_round)
    finally:
        sys.setprofile(None)
    return found[begun - 1 : -1]


def kind(calls):
    names = {name for _, name in calls}
    return "DQN.update" in names, "PublishedPolicy.load" in names, "TreasureHunts._begin_turn" in names


def test_a_transition_takes_few_calls_through_few_files():
    rounds = calls_by_round(TreasureHunt, agents=1, rounds=25)
    plain = [calls for calls in rounds if kind(calls)[:2] == (False, False)]
    loads = [calls for calls in rounds if kind(calls)[:2] == (False, True)]
    assert len(plain) > 10 and loads
    assert max(len(calls) for calls in plain) <= 26
    assert max(len(calls) for calls in loads) <= 35
    assert max(len({file for file, _ in calls}) for calls in plain) <= 10


@pytest.mark.parametrize("world", [TreasureHunt, LoopedHunt])
def test_a_move_does_not_cost_more_because_other_agents_exist(world):
    """In an in-turn world, with a version that is loaded or not, at the beginning of a turn or later."""

    def costs(agents):
        by_kind = {}
        for calls in calls_by_round(world, agents, rounds=11 * agents):
            if not kind(calls)[0] and not any("reset" in name for _, name in calls):
                by_kind.setdefault(kind(calls), set()).add(len(calls))
        return {which: max(found) for which, found in by_kind.items()}

    few, many = costs(2), costs(40)
    assert few.keys() == many.keys() and len(few) > 1
    for which, most in many.items():
        assert most <= few[which] + 3, which
