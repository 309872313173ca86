"""Environments with composed action spaces and masks, as their users write them, without motet in mind."""

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Warehouse(ParallelEnv):
    """Two robots choose an aisle and a shelf. A shelf whose lamp is on is closed, which the mask says.

    A robot earns 1 for the right aisle, and 1 for the highest shelf that is open.
    """

    metadata = {"name": "warehouse_v0", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, turns=8, in_observation=False, render_mode=None):
        self.possible_agents = ["loader", "picker"]
        self.turns = turns
        self.in_observation = in_observation
        self.render_mode = render_mode

    def observation_space(self, agent):
        seen = spaces.Box(0, 1, (6,), np.float32)
        if not self.in_observation:
            return seen
        return spaces.Dict(observation=seen, action_mask=spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(4)]))

    def action_space(self, agent):
        return spaces.MultiDiscrete([2, 4])

    def mask(self, agent):
        return np.ones(2, np.int8), 1 - self.closed[agent].astype(np.int8)

    def observations(self):
        seen = {}
        for agent in self.agents:
            aisle = np.eye(2)[self.wanted[agent]]
            lamps = np.concatenate([aisle, self.closed[agent]]).astype(np.float32)
            masked = {"observation": lamps, "action_mask": self.mask(agent)}
            seen[agent] = masked if self.in_observation else lamps
        return seen

    def infos(self):
        return {agent: {} if self.in_observation else {"action_mask": self.mask(agent)} for agent in self.agents}

    def draw(self):
        self.wanted = {agent: int(self.rng.integers(2)) for agent in self.possible_agents}
        self.closed = {agent: self.rng.random(4) < 0.5 for agent in self.possible_agents}
        for agent in self.possible_agents:
            self.closed[agent][self.rng.integers(4)] = False

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.t = 0
        self.draw()
        return self.observations(), self.infos()

    def step(self, actions):
        rewards = {}
        for agent, (aisle, shelf) in actions.items():
            if self.closed[agent][shelf]:
                raise ValueError(f"{agent}: shelf {shelf} is closed")
            highest = int(np.flatnonzero(~self.closed[agent]).max())
            rewards[agent] = float(aisle == self.wanted[agent]) + float(shelf == highest)
        self.t += 1
        self.draw()
        over = dict.fromkeys(self.agents, self.t >= self.turns)
        result = self.observations(), rewards, dict.fromkeys(self.agents, False), over, self.infos()
        if self.t >= self.turns:
            self.agents = []
        return result

    def render(self):
        return np.full((16, 16, 3), 30 * self.t, np.uint8)


MOVES = {0: "stay", 1: "left", 2: "right"}


class Drone(gymnasium.Env):
    """Chooses a move, how much thrust it gives, and its lamps; all parts of one dict. Each part earns up to 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, turns=8, masked=False, render_mode=None):
        self.observation_space = spaces.Dict(
            wanted=spaces.Discrete(3), thrust=spaces.Box(-1, 1, (2,), np.float32), dark=spaces.MultiBinary(2)
        )
        self.action_space = spaces.Dict(
            move=spaces.Discrete(3), thrust=spaces.Box(-1, 1, (2,), np.float32), lamps=spaces.MultiBinary(2)
        )
        self.turns = turns
        self.masked = masked
        self.render_mode = render_mode

    def observation(self):
        return {"wanted": self.wanted, "thrust": self.thrust, "dark": self.dark}

    def info(self):
        if not self.masked:
            return {}
        allowed = np.ones(3, np.int8)
        allowed[self.closed] = 0
        # The first lamp has to be on where it is dark; the second one is free.
        return {"action_mask": {"move": allowed, "thrust": None, "lamps": np.array([self.dark[0] or 2, 2], np.int8)}}

    def draw(self):
        self.wanted = int(self.np_random.integers(3))
        self.closed = (self.wanted + 1) % 3
        self.thrust = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.dark = self.np_random.integers(0, 2, 2, dtype=np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.draw()
        return self.observation(), self.info()

    def step(self, action):
        if self.masked and (action["move"] == self.closed or (self.dark[0] and not action["lamps"][0])):
            raise ValueError(f"{MOVES[action['move']]} with lamps {action['lamps']} is not allowed")
        assert MOVES[action["move"]]  # a key of a dict, as users look it up
        reward = float(action["move"] == self.wanted)
        reward += max(0.0, 1 - float(np.abs(action["thrust"] - self.thrust).mean()))
        reward += float((action["lamps"] == self.dark).mean())
        self.t += 1
        self.draw()
        return self.observation(), reward, False, self.t >= self.turns, self.info()

    def render(self):
        return np.full((16, 16, 3), 30 * self.t, np.uint8)


class Switches(gymnasium.Env):
    """Sets switches (MultiBinary) to what it sees. Some are stuck, which the mask says if ``masked``."""

    def __init__(self, n=4, turns=8, masked=False):
        self.observation_space = spaces.MultiBinary(n)
        self.action_space = spaces.MultiBinary(n)
        self.n = n
        self.turns = turns
        self.masked = masked

    def info(self):
        return {"action_mask": self.stuck} if self.masked else {}

    def draw(self):
        self.wanted = self.np_random.integers(0, 2, self.n, dtype=np.int8)
        self.stuck = np.full(self.n, 2, np.int8)
        self.stuck[self.np_random.integers(self.n)] = self.np_random.integers(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.draw()
        return self.wanted, self.info()

    def step(self, action):
        if self.masked and not ((self.stuck == 2) | (self.stuck == action)).all():
            raise ValueError(f"{action} moves a switch that is stuck at {self.stuck}")
        reward = float((action == self.wanted).mean())
        self.t += 1
        self.draw()
        return self.wanted, reward, False, self.t >= self.turns, self.info()


class Console(gymnasium.Env):
    """Chooses a channel and the numbers on two dials, in a tuple. The observation says which."""

    def __init__(self, turns=8):
        self.observation_space = spaces.MultiDiscrete([3, 2, 2])
        self.action_space = spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 2], start=[1, 10])])
        self.turns = turns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.wanted = self.np_random.integers([3, 2, 2])
        return self.wanted, {}

    def step(self, action):
        channel, dials = action
        given = np.array([channel - 5, *(dials - [1, 10])])
        reward = float((given == self.wanted).mean())
        self.t += 1
        self.wanted = self.np_random.integers([3, 2, 2])
        return self.wanted, reward, False, self.t >= self.turns, {}


class FirstOpen:
    """Takes the first of whatever the mask allows, as policies use masks; ``asked`` counts its questions."""

    def __init__(self):
        self.asked = 0

    def reset(self, seed):
        pass

    def act(self, observation, mask):
        self.asked += 1
        return np.array([int(np.flatnonzero(part)[0]) for part in mask])


class FirstOpenOfMany(FirstOpen):
    """The same for the observations of many worlds at once."""

    def act_many(self, observations, masks):
        return np.stack([part.argmax(1) for part in masks], 1)


class Foreman:
    """Decides for both robots in one call."""

    def __init__(self, agents):
        self.agents = agents

    def reset(self, seed):
        pass

    def act_jointly(self, observations, masks):
        return {agent: FirstOpen().act(observations[agent], masks[agent]) for agent in observations}


class Sampler:
    """Samples actions as Gymnasium does, with the mask if there is one."""

    def __init__(self, action_space):
        self.space = action_space

    def reset(self, seed):
        self.space.seed(seed)

    def act(self, observation, mask=None):
        return self.space.sample(mask=in_bytes(mask))


def in_bytes(mask):
    if isinstance(mask, dict):
        return {key: in_bytes(part) for key, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(in_bytes(part) for part in mask)
    return None if mask is None else mask.astype(np.int8)
