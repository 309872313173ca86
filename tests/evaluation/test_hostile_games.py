"""Many hostile policies in one world: they pay, each with its cause, and honest agents beside them do not."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import motet
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


class Alone(ParallelEnv):
    """Each agent plays for itself: its return is the sum of its actions, weighted by the turn."""

    turns = 6

    def __init__(self, agents):
        self.possible_agents = [f"agent_{number}" for number in range(agents)]

    def observation_space(self, agent):
        return Box(0, 1, (4,))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.turn = self.possible_agents[:], 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self):
        return {agent: np.zeros(4, np.float32) for agent in self.agents}

    def step(self, actions):
        self.turn += 1
        assert all(0 <= action < 3 for action in actions.values())
        rewards = {agent: float(actions[agent]) * 10.0**-self.turn for agent in self.agents}
        over = dict.fromkeys(self.agents, self.turn == self.turns)
        result = self._seen(), rewards, over, dict.fromkeys(self.agents, False), {agent: {} for agent in self.agents}
        self.agents = [] if self.turn == self.turns else self.agents
        return result


def make(agents):
    return lambda: Alone(agents)


@pytest.mark.parametrize("level", ["in process", "isolated", "sandboxed"])
def test_only_hostile_policies_pay(level, tmp_path, monkeypatch):
    if level != "in process" and not Path("/proc").is_dir():
        pytest.skip("the guard needs Linux")
    if level == "sandboxed" and sandbox_gaps():
        pytest.skip("; ".join(sandbox_gaps()))
    monkeypatch.chdir(tmp_path)
    cases = {"in process": IN_PROCESS, "isolated": ISOLATED, "sandboxed": SANDBOXED}[level]
    more = {} if level == "in process" else {"isolate": True, "sandbox": "strict" if level == "sandboxed" else "no"}
    if more:
        more["limits"] = PolicyLimits(decision_s=2.0, tasks=40, memory_bytes=1 << 30, folder_bytes=2 << 20)
    names = ["Honest", *cases, "Honest"]
    policies = {
        f"agent_{number}": f"support.hostile_zoo:{name},kw.at=2,name={name}" for number, name in enumerate(names)
    }
    result = motet.evaluate(make(len(names)), policies, episodes=1, **more)
    (episode,) = result.episodes
    assert not episode.failed
    seats = (0, len(names) - 1)
    honest = motet.evaluate(
        make(len(names)), dict.fromkeys(policies, "support.hostile_zoo:Honest,kw.at=2"), episodes=1, engine="serial"
    )
    for seat in seats:
        assert episode.returns[seat] == honest.episodes[0].returns[seat]
    found = {one.policy: one.cause for one in episode.failures}
    assert {name: found.get(name) for name in cases if found.get(name) not in cases[name]} == {}
    assert set(found) <= set(cases)
    assert list(tmp_path.iterdir()) == []
