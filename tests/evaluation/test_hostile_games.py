"""Many hostile policies in one world: each of them fails with its cause, and honest agents are not affected."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import motet
from motet.isolation.groups import has_groups
from motet.isolation.policy import PolicyLimits, sandbox_gaps

FINE = {None}
IN_PROCESS = {  # what can be done to others in one process is not their business: these do nothing of the kind
    "RaisesAGroup": {"exception"},
    "AnswersAGenerator": {"answer"},
    "AnswersALongSequence": {"answer"},
    "RecursesForEver": {"exception"},
    "RaisesWhereItIsFreed": FINE,
    "RaisesInAThread": FINE,
    "AnswersTrue": {"answer"},
    "RaisesForEver": {"exception"},
    "RaisesTheUnprintable": {"exception"},
    "Interrupts": {"exception"},
}
ISOLATED = {
    **IN_PROCESS,
    "LeavesItsFolder": FINE,
    "BreaksTheInterpreter": {None, "exception", "died", "timeout"},
    "TracesEverything": {None, "exception", "died", "timeout"},
    "SetsAnAlarm": {"died"},
    "KillsItsGroup": {"died"},
    "OpensEverything": {"exception"},
    "AnswersTwice": {None, "answer", "timeout"},
    "StopsItsGuard": {"timeout"},
    "WaitsAtExit": {"exception"},
    "PrintsForEver": FINE,
    "RestsWithTheLock": {"timeout"},
    "WritesThroughItsObservation": FINE,
    "StartsThreads": {"refused"},
    "Multiplies": {"refused"},
    "LowersItsParentsLimits": {"refused", "exception"},
}
SANDBOXED = {
    **ISOLATED,
    "AnswersTwice": {"refused"},
    "StopsItsGuard": {"refused"},
    "LowersItsParentsLimits": {"refused"},
    "KillsItsGroup": {"refused", "died"},
    "FillsItsFolder": {"exception", "refused"},
    "WritesALargeFile": {"exception"},
}
GUESTS_IN_PROCESS = {
    "LiftsItsMask": {"answer"},
    "WidensItsSpace": {"answer"},
    "SharesItsSpace": FINE,
    "SpoilsItsObservation": FINE,
    "AnswersACoroutine": {"answer"},
    "AnswersABroadcast": {"answer"},
    "BlamesItself": {"exception"},
    "RaisesALongText": {"exception"},
    "RaisesOddNotes": {"exception"},
    "ChangesItsMethods": FINE,
    "LeavesAThread": FINE,
}
GUESTS_ISOLATED = {
    **GUESTS_IN_PROCESS,
    "ChangesItsInterpreter": {None, "exception"},
    "MovesAway": FINE,
    "PressesCtrlC": FINE,
    "ClosesItsOutput": {"exception"},
    "NamesItsThreads": {"refused"},
    "EatsSharedMemory": {"memory"},
    "EatsUnseen": {"memory"},
    **({"EatsMemoryInAFile": {"memory"}} if has_groups("memory") else {}),
}
GUESTS_SANDBOXED = {
    **GUESTS_ISOLATED,
    "EatsMemoryInAFile": {"refused"},
    "MakesManyFiles": {"exception", "refused"},
    "LinksOutside": {"exception"},
}


class Alone(ParallelEnv):
    """Each agent plays for itself: its return is the sum of its actions, weighted by the turn.

    All agents have the same spaces, as objects. With masks, the last action is forbidden.
    """

    turns = 6

    def __init__(self, agents, masked=False):
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self._seeing, self._acting, self._masked = Box(0, 1, (4,)), Discrete(3), masked

    def observation_space(self, agent):
        return self._seeing

    def action_space(self, agent):
        return self._acting

    def reset(self, seed=None, options=None):
        self.agents, self.turn = self.possible_agents[:], 0
        return self._seen(), self._infos()

    def _seen(self):
        return {agent: np.zeros(4, np.float32) for agent in self.agents}

    def _infos(self):
        infos = {"action_mask": np.array([1, 1, 0], np.int8)} if self._masked else {}
        return dict.fromkeys(self.agents, infos)

    def step(self, actions):
        self.turn += 1
        assert all(0 <= action < (2 if self._masked else 3) for action in actions.values())
        rewards = {agent: float(actions[agent]) * 10.0**-self.turn for agent in self.agents}
        over = dict.fromkeys(self.agents, self.turn == self.turns)
        result = self._seen(), rewards, over, dict.fromkeys(self.agents, False), self._infos()
        self.agents = [] if self.turn == self.turns else self.agents
        return result


def make(agents, masked):
    return lambda: Alone(agents, masked)


ZOO = {"in process": IN_PROCESS, "isolated": ISOLATED, "sandboxed": SANDBOXED}
GUESTS = {"in process": GUESTS_IN_PROCESS, "isolated": GUESTS_ISOLATED, "sandboxed": GUESTS_SANDBOXED}


@pytest.mark.parametrize("level", ["in process", "isolated", "sandboxed"])
@pytest.mark.parametrize(
    ("levels", "module", "honest"), [(ZOO, "hostile_zoo", "Honest"), (GUESTS, "hostile_guests", "Guest")],
    ids=["zoo", "guests"],
)  # fmt: skip
def test_only_hostile_policies_fail(level, levels, module, honest, tmp_path, monkeypatch):
    if level != "in process" and not Path("/proc").is_dir():
        pytest.skip("the guard needs Linux")
    if level == "sandboxed" and sandbox_gaps():
        pytest.skip("; ".join(sandbox_gaps()))
    monkeypatch.chdir(tmp_path)
    cases = levels[level]
    more = {} if level == "in process" else {"isolate": True, "sandbox": "strict" if level == "sandboxed" else "no"}
    if more:
        hangs = module == "hostile_zoo"
        own = {"decision_s": 2.0, "memory_bytes": 1 << 30} if hangs else {"decision_s": 30.0, "memory_bytes": 300 << 20}
        more["limits"] = PolicyLimits(tasks=40, folder_bytes=2 << 20, **own)
    names = [honest, *cases, honest]
    policies = {f"agent_{number}": f"support.{module}:{name},kw.at=2,name={name}" for number, name in enumerate(names)}
    world = make(len(names), module == "hostile_guests")
    result = motet.evaluate(world, policies, episodes=1, **more)
    (episode,) = result.episodes
    assert not episode.failed, episode.detail
    alone = motet.evaluate(
        world, dict.fromkeys(policies, f"support.{module}:{honest},kw.at=2"), episodes=1, engine="serial"
    )
    for seat in (0, len(names) - 1):
        assert episode.returns[seat] == alone.episodes[0].returns[seat]
    found = {one.policy: one.cause for one in episode.failures}
    assert {name: found.get(name) for name in cases if found.get(name) not in cases[name]} == {}
    assert set(found) <= set(cases)
    assert list(tmp_path.iterdir()) == []
