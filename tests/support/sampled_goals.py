"""Models whose goals can only be sampled, as another project writes them."""

import random
from typing import NamedTuple

import numpy as np

from motet.worlds import Bushes
from motet.worlds.rooms import Reach


class CellGoals:
    """One cell of the grid, all equally likely. It draws from the global generator of ``random``."""

    def __init__(self, world):
        self.cells = world.height * world.width

    def sample(self, state, human_agent_index):
        cell = random.randrange(self.cells)
        return Reach(human_agent_index, cell, f"cell {cell}"), 1.0


class SampledBushes(Bushes):
    """Bushes without a list of goals."""

    goals = possible_goal_generator = None  # type: ignore[assignment]

    @property
    def possible_goal_sampler(self):
        return CellGoals(self)


def listed(model):
    """The goals of a ``SampledBushes`` in a list, with their probabilities times their weights."""
    cells = range(model.height * model.width)
    return {h: [(Reach(h, cell, f"cell {cell}"), 1 / len(cells)) for cell in cells] for h in model.human_agent_indices}


class Box(NamedTuple):
    """A human stands within a box of cells."""

    left: int
    top: int
    right: int
    bottom: int
    human: int

    def is_achieved(self, state):
        row, column = divmod(state[1][self.human], WIDTH)
        return self.top <= row <= self.bottom and self.left <= column <= self.right


WIDTH = 7


class BoxGoals:
    """Boxes of a grid, weighted by their area, from the global generator of numpy."""

    def __init__(self, width, height):
        self.width, self.height = width, height

    def sample(self, state, human_agent_index):
        left, right = sorted(np.random.randint(self.width, size=2).tolist())
        top, bottom = sorted(np.random.randint(self.height, size=2).tolist())
        area = (right - left + 1) * (bottom - top + 1)
        return Box(left, top, right, bottom, human_agent_index), area / (self.width * self.height)


class BoxedBushes(Bushes):
    """A grid of 7 x 3 cells, with boxes of cells as goals. Humans walk towards the middle of the box."""

    goals = possible_goal_generator = None  # type: ignore[assignment]

    def __init__(self, horizon=12):
        super().__init__("H.R...H\n.......\n.......", horizon=horizon)
        self.possible_goal_sampler = BoxGoals(self.width, self.height)

    def encode_goal(self, goal):
        return np.array(goal[:4], np.uint8)

    def towards(self, state, human, goal):
        middle = (goal.top + goal.bottom) // 2 * self.width + (goal.left + goal.right) // 2
        return super().towards(state, human, Reach(human, middle, ""))
