import runpy
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from support import EXAMPLES

from motet.errors import SettingError, WorldError
from motet.testing import check_world
from motet.world import End, VectorWorld, World


class Corridor(World):
    """Two agents walk by turns; the first to get to the end ends the episode. It keeps the contract."""

    agents = ("left", "right")
    observation_spaces = (Box(0, 9, (2,), np.float32),) * 2
    action_spaces = (Discrete(3),) * 2
    can_save = True

    def reset(self, seed=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.at, self.owed, self.turn = np.zeros(2, np.float32), [0.0, 0.0], 0
        self.ends, self.over = [], False

    def group(self):
        return () if self.over else (self.turn % 2,)

    def observe(self, agent):
        return self.at.copy()

    def mask(self, agent):
        return np.array([True, True, self.turn % 3 > 0])

    def act(self, actions):
        mover = self.turn % 2
        self.at[mover] = min(9.0, self.at[mover] + actions[0] + self.rng.integers(2))
        self.owed[mover] += 1.0
        self.owed[1 - mover] -= 0.5
        self.turn += 1
        if self.at[mover] == 9 or self.turn == 60:
            self.over = True
            self.ends = [End(i, self.at[mover] == 9, self.turn == 60) for i in range(2)]

    def reward(self, agent):
        owed, self.owed[agent] = self.owed[agent], 0.0
        return owed

    def ended(self):
        ends, self.ends = self.ends, []
        return ends

    def get_state(self):
        return (
            self.rng.bit_generator.state,
            self.at.tolist(),
            tuple(self.owed),
            self.turn,
            tuple(self.ends),
            self.over,
        )

    def set_state(self, state):
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state, at, owed, self.turn, ends, self.over = state
        self.at, self.owed, self.ends = np.array(at, np.float32), list(owed), list(ends)


def test_a_good_world_passes():
    check_world(Corridor, episodes=5)


# One world for each clause, which breaks nothing else.


class NoAgents(Corridor):
    agents = ()


class SpaceMissing(Corridor):
    action_spaces = (Discrete(3),)


class NobodyBegins(Corridor):
    def group(self):
        return ()


class Twice(Corridor):
    def group(self):
        return () if self.over else (0, 0)


class Aliased(Corridor):
    def observe(self, agent):
        return self.at


class LooksBack(Corridor):
    """Looking takes a random number."""

    def observe(self, agent):
        return (self.at + self.rng.random(2) * 1e-3).clip(0, 9).astype(np.float32)


class Double(Corridor):
    def observe(self, agent):
        return self.at.astype(np.float64)


class Shape(Corridor):
    def observe(self, agent):
        return np.zeros(3, np.float32)


class Listed(Corridor):
    def observe(self, agent):
        return self.at.tolist()


class ReadOnly(Corridor):
    def observe(self, agent):
        seen = self.at.copy()
        seen.flags.writeable = False
        return seen


class Outside(Corridor):
    def observe(self, agent):
        return self.at - 1


class NotANumber(Corridor):
    def observe(self, agent):
        return self.at * np.float32("nan") if self.turn > 3 else self.at.copy()


class BadLastLook(Corridor):
    def observe(self, agent):
        return self.at + (100 if self.over else 0)


class KeyMissing(Corridor):
    observation_spaces = (Dict(a=Box(0, 9, (2,), np.float32), b=Box(0, 9, (2,), np.float32)),) * 2

    def observe(self, agent):
        return {"b": self.at.copy()}


class IntMask(Corridor):
    def mask(self, agent):
        return np.ones(3, np.int8)


class ShortMask(Corridor):
    def mask(self, agent):
        return np.ones(2, bool)


class NothingAllowed(Corridor):
    def mask(self, agent):
        return np.zeros(3, bool)


class Pedals(Corridor):
    """Its actions are a pair, and so are its masks."""

    action_spaces = (MultiDiscrete([3, 2]),) * 2

    def mask(self, agent):
        return super().mask(agent), np.array([True, False])

    def act(self, actions):
        assert actions[0][1] == 0
        super().act([actions[0][0]])


class OneArray(Pedals):
    def mask(self, agent):
        return np.concatenate(super().mask(agent))


class ShortPart(Pedals):
    def mask(self, agent):
        return super().mask(agent)[0], np.ones(3, bool)


class IntPart(Pedals):
    def mask(self, agent):
        return super().mask(agent)[0], np.ones(2, np.int8)


class EmptyPart(Pedals):
    def mask(self, agent):
        return super().mask(agent)[0], np.zeros(2, bool)


class InfiniteReward(Corridor):
    def reward(self, agent):
        return super().reward(agent) + (np.inf if self.turn == 4 else 0)


class NoReward(Corridor):
    def reward(self, agent):
        return None


class StickyReward(Corridor):
    def reward(self, agent):
        return self.owed[agent]


class StickyEnds(Corridor):
    def ended(self):
        return list(self.ends)


class EndsTwice(Corridor):
    def ended(self):
        return super().ended() * 2


class NoReason(Corridor):
    def ended(self):
        return [End(end.agent, False, False) for end in super().ended()]


class OneForgotten(Corridor):
    def ended(self):
        return super().ended()[:1]


class ActsOn(Corridor):
    def act(self, actions):
        super().act(actions)
        if self.turn == 4:
            self.ends = [End(0, True, False)]


class LateReward(Corridor):
    def reward(self, agent):
        if self.over and not self.ends:
            self.late = getattr(self, "late", 0) + 1
            if self.late > 4:  # two agents have been asked twice
                return 5.0
        return super().reward(agent)

    def reset(self, seed=None):
        super().reset(seed)
        self.late = 0


class Endless(Corridor):
    def act(self, actions):
        super().act(actions)
        self.at[:] = 0
        self.turn %= 6
        self.over, self.ends = False, []


class Unseeded(Corridor):
    def reset(self, seed=None):
        super().reset(np.random.default_rng().integers(2**31))


class Remembers(Corridor):
    """An episode begins where the one before it ended."""

    def reset(self, seed=None):
        before = getattr(self, "at", np.zeros(2, np.float32))
        super().reset(seed)
        self.at[0] = before[0] % 4


class ForgetsTheStream(Corridor):
    def set_state(self, state):
        super().set_state(state)
        self.rng = np.random.default_rng(0)


class ForgetsWhatIsOwed(Corridor):
    def set_state(self, state):
        super().set_state(state)
        self.owed = [0.0, 0.0]


class SharesItsState(Corridor):
    """The snapshot is the world's own memory, which goes on changing."""

    def get_state(self):
        return (*super().get_state()[:1], self.at, *super().get_state()[2:])

    def set_state(self, state):
        super().set_state(state)


class KeepsEnds(Corridor):
    def reset(self, seed=None):
        super().reset(seed)
        if seed is None:
            self.ends = [End(0, True, False)]


class KeepsRewards(Corridor):
    def reset(self, seed=None):
        super().reset(seed)
        if seed is None:
            self.owed = [0.0, 3.0]


@pytest.mark.parametrize(
    ("factory", "clause"),
    [
        (NoAgents, "agents"),
        (SpaceMissing, "action_spaces"),
        (NobodyBegins, "reset"),
        (Twice, "group"),
        (Aliased, "fresh observations"),
        (LooksBack, "fresh observations"),
        (Double, "observation"),
        (Shape, "observation"),
        (Listed, "observation"),
        (ReadOnly, "observation"),
        (Outside, "observation"),
        (NotANumber, "observation"),
        (BadLastLook, "observation"),
        (KeyMissing, "observation"),
        (IntMask, "mask"),
        (ShortMask, "mask"),
        (NothingAllowed, "mask"),
        (OneArray, "mask"),
        (ShortPart, "mask"),
        (IntPart, "mask"),
        (EmptyPart, "mask"),
        (InfiniteReward, "reward"),
        (NoReward, "reward"),
        (StickyReward, "reward"),
        (StickyEnds, "ended"),
        (EndsTwice, "ended"),
        (NoReason, "ended"),
        (OneForgotten, "ended"),
        (ActsOn, "no agent acts after its end"),
        (LateReward, "rewards until the end"),
        (Endless, "an end"),
        (Unseeded, "same seed, same episode"),
        (Remembers, "same seed, same episode"),
        (ForgetsTheStream, "get_state and set_state"),
        (ForgetsWhatIsOwed, "get_state and set_state"),
        (SharesItsState, "get_state and set_state"),
        (KeepsEnds, "reset"),
        (KeepsRewards, "reset"),
    ],
)
def test_every_broken_clause_is_named(factory, clause):
    with pytest.raises(WorldError, match=rf"^broken clause '{clause}': .*; fix: .") as told:
        check_world(factory, limit=200)
    assert "\n" not in str(told.value)


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="episodes and limit must be ints >= 1, got 0 and 100000"):
        check_world(Corridor, episodes=0)
    world = Corridor()
    with pytest.raises(SettingError, match="the factory must make a new world at each call, got the same one twice"):
        check_world(lambda: world)
    with pytest.raises(SettingError, match="got 3 of type int"):
        check_world(lambda: 3)


def test_the_worlds_are_closed():
    closed = []

    class Closing(Corridor):
        def close(self):
            closed.append(self)

    check_world(Closing)
    assert len(closed) == 2


def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "own_world.py"), run_name="__main__")
    assert "'wolf': " in capsys.readouterr().out


class Counting(VectorWorld):
    """One agent that counts to three; ``broken`` says what differs from the single world."""

    agents = ("a",)
    observation_spaces = (Discrete(100),)
    action_spaces = (Discrete(2),)
    can_save = True

    def __init__(self, worlds, broken):
        self.worlds, self.broken, self.t = worlds, broken, np.zeros(worlds, np.int64)

    def reset(self, worlds, seeds):
        self.t[worlds] = np.array(seeds) % 3 if self.broken == "reset" else 0

    def observe(self, agent):
        return self.t * (1 + (self.broken == "observe" and self.t > 1))

    def act(self, actions):
        self.t += 1
        self.paid = actions[0] + (0.25 if self.broken == "reward" else 0.0)

    def earners(self):
        return () if self.broken == "earners" else (0,)

    def reward(self, agent):
        return self.paid

    def ended(self):
        over = self.t == (4 if self.broken == "length" else 3)
        return (over, ~over & over) if self.broken == "end" else (~over & over, over)

    def get_state(self):
        return self.t.copy()

    def set_state(self, state):
        self.t = state * 0 if self.broken == "state" else state.copy()


class Counter(gymnasium.Env):
    observation_space, action_space = Counting.observation_spaces[0], Counting.action_spaces[0]

    def __init__(self, broken=None):
        self.broken = broken

    def vector(self, worlds):
        return Counting(worlds, self.broken)

    def reset(self, seed=None, options=None):
        self.t = 0
        return self.t, {}

    def step(self, action):
        self.t += 1
        return self.t, float(action), False, self.t == 3, {}


def test_worlds_as_arrays_are_compared_with_the_single_world():
    check_world(Counter)


@pytest.mark.parametrize("broken", ["reset", "observe", "reward", "earners", "length", "end", "state"])
def test_worlds_as_arrays_that_differ_are_found(broken):
    with pytest.raises(WorldError, match="broken clause 'vector': the arrays differ from"):
        check_world(partial(Counter, broken))


def test_the_example_of_worlds_as_arrays_runs(capsys):
    path = EXAMPLES / "world_as_arrays.py"
    assert len(path.read_text().splitlines()) <= 60
    runpy.run_path(str(path), run_name="__main__")
    assert "equals the single environment" in capsys.readouterr().out


@pytest.mark.parametrize("factory", [Unseeded, Remembers, ForgetsTheStream, SharesItsState, LooksBack])
def test_clauses_that_are_harmless_for_training_say_so(factory):
    with pytest.raises(WorldError, match=r"; harmless for training: .") as told:
        check_world(factory)
    assert "not harmless" not in str(told.value)


@pytest.mark.parametrize("factory", [Aliased, StickyReward, LateReward, KeepsEnds, Endless])
def test_clauses_that_are_not_harmless_say_so(factory):
    with pytest.raises(WorldError, match="; not harmless: training would fail, or learn from wrong data"):
        check_world(factory, limit=500)


def test_a_harmless_clause_does_not_hide_another_one():
    class Both(Unseeded):
        def reward(self, agent):
            return 1.0 if self.turn > 3 else super().reward(agent)

    with pytest.raises(WorldError, match=r"^broken clause .reward..*not harmless"):
        check_world(Both)

    class Two(Unseeded):
        observe = LooksBack.observe

    with pytest.raises(WorldError) as told:
        check_world(Two)
    assert str(told.value).count("; harmless for training: ") == str(told.value).count("broken clause") == 2


def test_recorded_actions_that_no_longer_fit_are_not_played():
    """The order of the agents, whose actions differ, is drawn without the seed."""

    class Order(Corridor):
        action_spaces = (Discrete(3), Discrete(2))
        first = 0

        def reset(self, seed=None):
            super().reset(seed)
            Order.first += 1

        def group(self):
            return () if self.over else ((self.turn + Order.first) % 2,)

        def mask(self, agent):
            return None

        def act(self, actions):
            assert self.action_spaces[self.group()[0]].contains(actions[0])
            super().act(actions)

    with pytest.raises(WorldError, match=r"same seed, same episode.*group was .*; harmless for training"):
        check_world(Order)
