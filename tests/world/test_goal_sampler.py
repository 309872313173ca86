"""Goals that are sampled, in worlds of models."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from motet.errors import ModelError
from motet.system.portable import Portable
from motet.world import ModelWorld
from motet.world.coded import CodedModel
from motet.world.goal_sampler import ListSampler
from motet.worlds import Bushes, OneMind


class Box(NamedTuple):
    """A human stands within the tiles from left to right."""

    human: int
    left: int
    right: int

    def is_achieved(self, state):
        return self.left <= state[1][self.human] <= self.right


class RandomBoxes:
    """Written for another program: it draws from the global generators, of ``random`` and of numpy."""

    def sample(self, state, human_agent_index):
        left = random.randint(0, 6)
        right = left + int(np.random.randint(7 - left))
        return Box(human_agent_index, left, right), 1.0


class Boxed(Bushes):
    """The corridor with boxes as goals, which can only be sampled."""

    goals = possible_goal_generator = encode_goal = None
    possible_goal_sampler = RandomBoxes()

    def __init__(self):
        super().__init__(horizon=3)

    def towards(self, state, human, goal):
        return [0.2] * 5


def test_humans_of_a_world_get_goals_that_are_sampled():
    world, drawn = ModelWorld(Boxed()), set()
    for seed in range(20):
        world.reset(seed)
        seen = world.observe(1)
        assert seen["goal"].tolist() == list(world.drawn_goals[1])
        assert world.goal_of(seen, "human_0") == world.drawn_goals[1]
        assert world.goal_of(world.observe(0), "robot_0") is None
        drawn.add(world.drawn_goals[1])
    assert len(drawn) > 8


def test_what_is_sampled_is_a_function_of_the_seed():
    """Neither other draws in the program nor other worlds change it, and it changes no draws of theirs."""
    world = OneMind(Boxed())

    def drawn(seed):
        world.reset(seed)
        return world._world.drawn_goals

    first = drawn(3)
    random.seed(1)
    expected = random.random()
    random.seed(1)
    assert drawn(3) == first != drawn(4)
    assert random.random() == expected


def test_a_saved_world_goes_on_for_the_same_goals():
    world = OneMind(Boxed())
    world.reset(5)
    state, goals = world.get_state(), world._world.drawn_goals
    world.reset(6)
    assert world._world.drawn_goals != goals
    world.set_state(state)
    assert world._world.drawn_goals == goals


def test_a_list_is_sampled_by_weight():
    sampler, rng = ListSampler({1: [("a", 1.0), ("b", 0.0), ("c", 3.0)]}), np.random.default_rng(0)
    found = [sampler.sample(None, 1, rng) for _ in range(2000)]
    assert {weight for _, weight in found} == {4.0}
    assert {goal for goal, _ in found} == {"a", "c"}
    assert np.mean([goal == "c" for goal, _ in found]) == pytest.approx(0.75, abs=0.03)


def test_a_coded_model_of_sampled_goals_travels():
    coded = CodedModel(Boxed())
    again = Portable(coded, "model").value
    state = coded.first
    assert again.sampler.draw(state, 4, seed=1) == coded.sampler.draw(state, 4, seed=1)
    assert (coded.goal_size, coded.goal_dtype) == (3, "uint8")


class Faulty(Boxed):
    """A model with one fault."""

    def __init__(self, give):
        super().__init__()
        self.possible_goal_sampler = self
        self._give = give

    def sample(self, state, human):
        return self._give(human)


class Nameless:
    """A goal without numbers."""

    def is_achieved(self, state):
        raise KeyError("no such tile")


@pytest.mark.parametrize(
    ("give", "word"),
    [
        (lambda h: (Box(h, 0, 1), 0.0), r"weight of a drawn goal must be a finite number > 0, got 0.0"),
        (lambda h: (Box(h, 0, 1), -1.0), r"weight of a drawn goal must be .*, got -1.0 for the goal Box"),
        (lambda h: (Box(h, 0, 1), float("nan")), r"weight of a drawn goal must be .*, got nan"),
        (lambda h: (Box(h, 0, 1), "much"), r"weight of a drawn goal must be .*, got 'much'"),
        (lambda h: "north", r"the goal sampler must return \(goal, weight\), got str 'north'"),
        (lambda h: 1 / 0, r"the goal sampler raised ZeroDivisionError"),
    ],
)
def test_faulty_samplers_are_named_with_state_and_human(give, word):
    with pytest.raises(ModelError, match=word + r".*\(state \(0, \(2, 0, 6\), .*, human_0\)"):
        ModelWorld(Faulty(give))


def test_goals_without_numbers_are_named_with_state_and_human():
    coded = CodedModel(Boxed())
    at = r".*\(state \(0, .*, human_0\)"
    with pytest.raises(ModelError, match=r"has no numbers: .* give the model encode_goal\(goal\) -> array" + at):
        coded.goal_code(Nameless(), 1, coded.first)
    with pytest.raises(ModelError, match=r"every goal must have 3 numbers, as the first one, got 2" + at):
        coded.goal_code((1, 2), 1, coded.first)
    assert coded.goal_code((1, 30, 2), 1, coded.first).tolist() == [1, 30, 2]
    with pytest.raises(ModelError, match=r"numbers must fit into uint8, got \[1, 300, 2\]" + at):
        coded.goal_code((1, 300, 2), 1, coded.first)
    with pytest.raises(ModelError, match=r"is_achieved of the goal .* raised KeyError: 'no such tile' \(state \(0, "):
        coded.held([Nameless()], coded.first)
