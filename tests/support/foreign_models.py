"""Models as another project writes them: agents without names, goals from a generator, some of which hold already."""

from itertools import product

from gymnasium import spaces


class Body:
    __slots__ = ("color", "index")

    def __init__(self, index, color):
        self.index, self.color = index, color


class ReachCell:
    """The human stands on a cell. Equal by value, since goals are keys; no name but its text."""

    def __init__(self, env, human_agent_index, target):
        self.env, self.human_agent_index, self.target = env, human_agent_index, target

    def is_achieved(self, state):
        return int(state[1][self.human_agent_index] == self.target)

    def __eq__(self, other):
        return isinstance(other, ReachCell) and self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def __str__(self):
        return f"ReachCell({self.target})"

    @property
    def _key(self):
        return self.human_agent_index, self.target


class StepParity(ReachCell):
    """The number of steps is odd, or even: attained next whenever it does not hold."""

    def is_achieved(self, state):
        return int(state[0] % 2 == self.target)

    def __eq__(self, other):
        return isinstance(other, StepParity) and self._key == other._key

    def __hash__(self):
        return hash(("parity", self._key))

    def __str__(self):
        return f"StepParity({self.target})"


class CellGoalGenerator:
    """All cells, with equal weight; then, if it is asked to, two goals one of which is always within reach."""

    def __init__(self, env, parity=False):
        self.env, self.parity = env, parity

    def generate(self, state, human_agent_index):
        for cell in range(self.env.width):
            yield ReachCell(self.env, human_agent_index, cell), 1 / self.env.width
        if self.parity:
            yield StepParity(self.env, human_agent_index, 0), 0.5
            yield StepParity(self.env, human_agent_index, 1), 0.25


class GatedPath:
    """A row of cells with a gate behind the first one. Robots work the gate; humans stay, or walk left or right.

    While the gate is closed a human on the first cell can go nowhere: the only goal that it can still be in is the one
    that holds already.
    """

    num_actions = 3

    def __init__(self, width=3, num_robots=1, num_humans=1, max_steps=3, slip=0.0, parity=False):
        self.width, self.max_steps, self.slip = width, max_steps, slip
        self.num_robots, self.num_humans = num_robots, num_humans
        self.agents = [
            Body(i, "grey" if i < num_robots else "yellow") for i in range(num_robots + num_humans)
        ]  # robots first
        self.action_space = spaces.Discrete(self.num_actions)
        self._goals, self._parity = None, parity
        self.reset()

    def reset(self, *, seed=None, options=None):
        humans = [i % self.width for i in range(self.num_humans)]
        self._state = (0, tuple([-1] * self.num_robots + humans), False)
        return self._state, {}

    def get_state(self):
        return self._state

    def set_state(self, state):
        self._state = state

    @property
    def human_agent_indices(self):
        return list(range(self.num_robots, len(self.agents)))

    @property
    def robot_agent_indices(self):
        return list(range(self.num_robots))

    @property
    def possible_goal_generator(self):
        if self._goals is None:
            self._goals = CellGoalGenerator(self, self._parity)
        return self._goals

    def is_terminal(self, state):
        return state[0] >= self.max_steps

    def transition_probabilities(self, state, actions):
        step, positions, is_open = state
        if self.is_terminal(state):
            return None
        gate = is_open
        for action in actions[: self.num_robots]:  # 1 opens, 2 shuts; the last one has its way
            gate = {0: gate, 1: True, 2: False}[action]
        outcomes = []
        for slips in product((False, True), repeat=self.num_humans):
            p, moved = 1.0, list(positions)
            for human, slipped in zip(self.human_agent_indices, slips, strict=True):
                p *= self.slip if slipped else 1 - self.slip
                here = positions[human]
                there = min(max(here + {0: 0, 1: -1, 2: 1}[actions[human]], 0), self.width - 1)
                if not slipped and (is_open or {here, there} != {0, 1}):
                    moved[human] = there
            if p > 0:
                outcomes.append((p, (step + 1, tuple(moved), gate)))
        return outcomes


class SlowGatedPath(GatedPath):
    """Transitions take longer while the gate is open."""

    def transition_durations(self, state, actions, transitions):
        return [0.5 + successor[2] + 0.25 * (successor[1][-1] % 2) for _, successor in transitions]
