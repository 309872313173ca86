"""The corridor of bushes, as another project writes it: robots clear bushes, so that humans can pass.

The rules and the check values of ``tests/oracles/test_given_humans.py`` belong together. Robots come first among the
agents. The model does not say which agents are humans: its role properties are left to subclasses.
"""

from itertools import product

from gymnasium import spaces

NORTH, WEST, SOUTH, EAST, PASS = range(5)
MOVES = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))
ACTION_NAMES = ("north", "west", "south", "east", "pass")


class StandOn:
    """A human stands on a cell. Equal by value, since goals are keys."""

    def __init__(self, human, cell):
        self.human, self.cell = human, cell

    def is_achieved(self, state):
        return state[1][self.human] == self.cell

    def __eq__(self, other):
        return isinstance(other, StandOn) and (self.human, self.cell) == (other.human, other.cell)

    def __hash__(self):
        return hash((self.human, self.cell))

    def __repr__(self):
        return f"StandOn({self.human}, {self.cell})"


class BushCorridor:
    """Cells with bushes of density 0 to ``most``; the state is (step, positions, densities)."""

    def __init__(self, horizon=4, width=7, height=1, positions=((2, 0), (0, 0), (6, 0)), robots=1, density=1, most=10):
        self.horizon, self.width, self.height, self.most, self.robots = horizon, width, height, most, robots
        self.start = (0, tuple(positions), (density,) * (width * height))
        self.agents = list(range(len(positions)))
        self.action_space = spaces.Discrete(5)
        self.reset()

    @property
    def human_agent_indices(self):
        raise NotImplementedError

    @property
    def robot_agent_indices(self):
        raise NotImplementedError

    def reset(self, *, seed=None):
        self._state = self.start
        return self._state, {}

    def get_state(self):
        return self._state

    def set_state(self, state):
        self._state = state

    def target(self, position, action):
        """The cell that a move leads to; the own cell if it leads off the grid."""
        x, y = position[0] + MOVES[action][0], position[1] + MOVES[action][1]
        return (x, y) if 0 <= x < self.width and 0 <= y < self.height else position

    def transition_probabilities(self, state, actions):
        step, positions, bushes = state
        if step == self.horizon:
            return None
        taken, cleared, tries = set(positions), list(bushes), []
        moved = list(positions)
        for agent, action in enumerate(actions):
            cell = self.target(positions[agent], action)
            if agent < self.robots and action == PASS:
                self._clear(cleared, positions[agent])
            if cell == positions[agent] or cell in taken:
                continue
            taken.add(cell)  # only the first who wants it tries
            if agent < self.robots:
                moved[agent] = cell
                self._clear(cleared, cell)
            else:
                tries.append((agent, cell, 1 - bushes[self._number(cell)] / self.most))
        outcomes = []
        for success in product((True, False), repeat=len(tries)):
            p, there = 1.0, list(moved)
            for (agent, cell, chance), succeeds in zip(tries, success, strict=True):
                p *= chance if succeeds else 1 - chance
                if succeeds:
                    there[agent] = cell
            if p > 0:
                outcomes.append((p, (step + 1, tuple(there), tuple(cleared))))
        return outcomes

    def _number(self, cell):
        return cell[1] * self.width + cell[0]

    def _clear(self, bushes, cell):
        number = self._number(cell)
        bushes[number] = max(bushes[number] - 1, 0)

    def cell_goals(self, human):
        cells = [(x, y) for y in range(self.height) for x in range(self.width)]
        return [(StandOn(human, cell), 1 / len(cells)) for cell in cells]

    def nearest(self, state, human, goal):
        """Uniform over the actions whose target is nearest to the goal; bushes and others are ignored."""
        far = []
        for action in range(5):
            x, y = self.target(state[1][human], action)
            far.append(abs(x - goal.cell[0]) + abs(y - goal.cell[1]))
        best = [distance == min(far) for distance in far]
        return [is_best / sum(best) for is_best in best]


class CellGoalGenerator:
    """All cells, as new objects each time."""

    def __init__(self, model):
        self.model = model

    def generate(self, state, human):
        yield from self.model.cell_goals(human)


class GeneratedBushes(BushCorridor):
    """The corridor with a generator of goals, and still without roles."""

    @property
    def possible_goal_generator(self):
        return CellGoalGenerator(self)
