"""act() against a world whose every number is known."""

import gymnasium
import numpy as np
import pytest

from motet.actor import Memory, Seat, act
from motet.errors import WorldError
from motet.world import End, World


class Script(World):
    """Two agents in turn. Observation: [turn, agent]; reward of a move: 10 * turn + agent, half of it a turn later."""

    agents = ("a", "b")
    observation_spaces = (gymnasium.spaces.Box(-1e9, 1e9, (2,)),) * 2
    action_spaces = (gymnasium.spaces.Discrete(5),) * 2

    def __init__(self, turns=3, raises_at=None):
        self.turns, self.raises_at, self.seeds = turns, raises_at, []

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.turn, self.mover, self.earned, self.over, self.done = 0, 0, [0.0, 0.0], [], False

    def group(self):
        return [] if self.done else [self.mover]

    def observe(self, agent):
        return np.array([self.turn, agent], np.float32)

    def act(self, actions):
        assert len(actions) == 1
        if self.raises_at == (self.turn, self.mover):
            raise WorldError("boom")
        self.earned[self.mover] += 10 * self.turn + self.mover
        self.earned[1 - self.mover] += 0.5  # on the other's turn
        self.mover = 1 - self.mover
        self.turn += self.mover == 0
        if self.turn == self.turns:
            self.over, self.done = [End(0, True, False), End(1, False, True)], True

    def reward(self, agent):
        earned, self.earned[agent] = self.earned[agent], 0.0
        return earned

    def ended(self):
        over, self.over = self.over, []
        return over


class Rows(list):
    def append(self, observation, action, reward, **named):
        super().append({"observation": observation.tolist(), "action": int(action), "reward": reward, **named})

    def interrupt(self):
        super().append("interrupted")


class Fixed:
    def begin(self, seed):
        pass

    def load(self, weights, header):
        self.loaded = weights, header

    def act(self, observations, masks=None, explore=True):
        self.batch = observations.shape
        return observations[:, 0].astype(np.int64) % 5, {"p": observations[:, 1] + 0.5}


class Source:
    version, weights = 0, np.zeros(1, np.float32)

    def refresh(self):
        self.version += 1
        return True

    def __getitem__(self, name):
        return 0.25


def seats(worlds):
    return [Seat(Fixed(), Source(), [Rows() for _ in range(worlds)], header=("epsilon",)) for _ in range(2)]


def test_rewards_belong_to_the_action_before_them_and_ends_carry_what_was_seen_last():
    worlds, places = [Script()], seats(1)
    memory = Memory.fresh(1, places)
    rounds = act(worlds, places, memory, lambda w, n: 100 * w + n)
    for _ in range(6):
        next(rounds)
    a, b = places[0].writers[0], places[1].writers[0]
    assert [row["reward"] for row in a] == [0.5, 10.5, 20.5]
    assert [row["reward"] for row in b] == [1.5, 11.5, 21.0]
    assert [row["observation"] for row in a] == [[0, 0], [1, 0], [2, 0]]
    assert [row["action"] for row in a] == [0, 1, 2]
    assert [row["p"] for row in b] == [1.5] * 3
    assert [row["version"] for row in a] == [1, 3, 5]
    assert (a[-1]["terminated"], a[-1]["truncated"]) == (True, False)
    assert (b[-1]["terminated"], b[-1]["truncated"]) == (False, True)
    assert a[-1]["final_observation"].tolist() == [3, 0]
    assert "final_observation" not in a[0]
    # The first turn of b came after it had earned 0.5 on a's turn: that belongs to no action, only to the return.
    assert [(e.agent, e.total, e.steps) for e in memory.finished] == [(0, 31.5, 3), (1, 34.5, 3)]
    assert memory.closed == [3, 3]


def test_episodes_follow_each_other_with_seeds_of_their_own():
    worlds, places = [Script(), Script()], seats(2)
    rounds = act(worlds, places, Memory.fresh(2, places), lambda w, n: 100 * w + n)
    for _ in range(13):
        next(rounds)
    assert worlds[0].seeds == [0, 1, 2]
    assert worlds[1].seeds == [100, 101, 102]
    assert places[0].behaviour.batch == (2, 2), "one question for both worlds"
    assert places[0].behaviour.loaded[1] == {"epsilon": 0.25}


def test_a_world_that_raises_ends_it_or_is_made_anew():
    worlds, places = [Script(raises_at=(1, 0)), Script()], seats(2)
    with pytest.raises(WorldError, match="boom"):
        for _ in act(worlds, places, Memory.fresh(2, places), lambda w, n: n):
            pass
    worlds, places = [Script(raises_at=(1, 0)), Script()], seats(2)
    memory = Memory.fresh(2, places)
    rounds = act(worlds, places, memory, lambda w, n: n, remake=lambda w: Script())
    for _ in range(10):
        next(rounds)
    assert memory.remade == 1
    assert "interrupted" in places[0].writers[0]
    assert "interrupted" not in places[0].writers[1]
    assert len(places[0].writers[1]) >= 4


def test_a_sync_interval_looks_less_often():
    places = seats(1)
    rounds = act([Script()], places, Memory.fresh(1, places), lambda w, n: n, sync_interval=4)
    for _ in range(8):
        next(rounds)
    assert places[0].subscriber.version == 2
