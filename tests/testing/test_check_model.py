"""``check_model`` finds each fault that it says it looks for."""

import random

import numpy as np
import pytest
from support.foreign_models import GatedPath, SlowGatedPath
from support.sampled_goals import BoxedBushes, SampledBushes
from support.small_models import Layered

from motet.errors import ModelError, SettingError
from motet.testing import check_model
from motet.worlds import Bushes, Rooms
from motet.worlds.rooms import Reach


@pytest.mark.parametrize("make", [Bushes, Rooms, GatedPath, SlowGatedPath])
def test_models_that_fulfil_the_contract_pass(make):
    check_model(make, states=10, episodes=1)


class Remembers(Bushes):
    def transition_probabilities(self, state, actions):
        return super().transition_probabilities(self.get_state(), actions)


class Draws(Bushes):
    def transition_probabilities(self, state, actions):
        found = super().transition_probabilities(state, actions)
        return found and [random.choice(found)]


class ChangesActions(Bushes):
    def transition_probabilities(self, state, actions):
        actions[0] = 4
        return super().transition_probabilities(state, actions)


class WrongSum(Bushes):
    def transition_probabilities(self, state, actions):
        found = super().transition_probabilities(state, actions)
        return found and [(p / 2, successor) for p, successor in found]


class SometimesEnds(Bushes):
    def transition_probabilities(self, state, actions):
        return None if actions[0] == 0 else super().transition_probabilities(state, actions)


class OtherType(Bushes):
    def transition_probabilities(self, state, actions):
        found = super().transition_probabilities(state, actions)
        return found and [(p, successor[0]) for p, successor in found]


class Unhashable(Bushes):
    def get_state(self):
        return list(super().get_state())


class Forgets(Bushes):
    def set_state(self, state):
        pass

    def get_state(self):
        step, *rest = super().get_state()
        self._state = (step + 1, *rest)
        return self._state


class RandomStart(Bushes):
    def reset(self):
        super().reset()
        step, tiles, densities = self._state
        self._state = (step, tiles, (random.randrange(1 << 30), *densities[1:]))


class FewRewards(Bushes):
    def transition_rewards(self, state, actions, transitions):
        return [[1.0]] * len(transitions)


class RewardsForOne(Bushes):
    def transition_rewards(self, state, actions, transitions):
        return [[1.0] * 3]


class NegativeDurations(Bushes):
    def transition_durations(self, state, actions, transitions):
        return [-1.0] * len(transitions)


class LossyCode(Bushes):
    def decode(self, observation):
        step, *rest = super().decode(observation)
        return (step // 2, *rest)


class GrowingCode(Bushes):
    def encode(self, state):
        return np.zeros(3 + state[0], np.float32)


class LossyBytes(Bushes):
    def encode_state(self, state):
        return b""

    def decode_state(self, data):
        return (0, (), ())


class WrongView(Rooms):
    def state_of(self, observation, agent):
        return self._first


class GreyPicture(Bushes):
    def picture(self, state):
        return super().picture(state)[..., 0]


class OutsideThePicture(Bushes):
    def where(self, state, agent):
        return (7, 0)


@pytest.mark.parametrize(
    ("make", "clause"),
    [
        (Remembers, "transitions depend on the state alone"),
        (Draws, "transitions depend on the state alone"),
        (ChangesActions, "arguments stay as they are"),
        (WrongSum, "probabilities"),
        (SometimesEnds, "terminal states"),
        (OtherType, "one type of state"),
        (Unhashable, "hashable states"),
        (Forgets, "get_state and set_state"),
        (RandomStart, "one initial state"),
        (FewRewards, "transition_rewards"),
        (RewardsForOne, "transition_rewards"),
        (NegativeDurations, "transition_durations"),
        (LossyCode, "encode and decode"),
        (GrowingCode, "encode"),
        (LossyBytes, "encode_state and decode_state"),
        (WrongView, "observe and state_of"),
        (GreyPicture, "picture"),
        (OutsideThePicture, "where"),
    ],
)
def test_each_fault_is_found_and_named(make, clause):
    random.seed(0)
    with pytest.raises(ModelError, match=rf"^broken clause '{clause}': .*; fix: "):
        check_model(lambda: make(horizon=3), states=30, episodes=1)


class KeepsAGenerator(SampledBushes):
    """Its sampler draws from a generator that it keeps."""

    def __init__(self, horizon):
        super().__init__(horizon=horizon)
        self.possible_goal_sampler, self._rng = self, random.Random(3)

    possible_goal_sampler = None

    def sample(self, state, human):
        tile = self._rng.randrange(7)
        return Reach(human, tile, ""), 1.0


class UnevenGoals(SampledBushes):
    def encode_goal(self, goal):
        return np.zeros(1 + goal.tile)


@pytest.mark.parametrize(
    ("make", "clause"), [(KeepsAGenerator, "a sampler draws by the seed alone"), (UnevenGoals, "encode_goal")]
)
def test_faulty_samplers_of_goals_are_found(make, clause):
    with pytest.raises(ModelError, match=rf"^broken clause '{clause}': .*; fix: "):
        check_model(lambda: make(horizon=3), states=5, episodes=1)


def test_samplers_that_draw_from_global_generators_are_sound():
    check_model(lambda: SampledBushes(horizon=2), states=10, episodes=1)
    check_model(lambda: BoxedBushes(horizon=1), states=5, episodes=1)


def test_many_joint_actions_are_sampled():
    check_model(lambda: Layered2(), states=3, episodes=1)


class Layered2(Layered):
    """Seven agents with three actions each: 2,187 joint actions."""

    def __init__(self):
        super().__init__(0, (3,) * 5, (3,) * 2, depth=1, width=2)
        goals = self.goals
        self.possible_goal_generator = lambda state, human: goals
        del self.goals


def test_factory_must_make_new_models():
    bushes = Bushes()
    with pytest.raises(SettingError, match="the factory must make a new model"):
        check_model(lambda: bushes)
    with pytest.raises(SettingError, match="the factory must make a new model"):
        check_model(object)
    with pytest.raises(SettingError, match="states must be an int >= 1, got 0"):
        check_model(Bushes, states=0)
