"""Teams as another project writes them: made from one description of the environment, an object for each agent.

Nothing here knows motet, but for the class at the end that translates between the two.
"""

from __future__ import annotations

import enum
import os
import random
from dataclasses import dataclass

import numpy as np


class AgentPolicy:
    """What acts for one agent."""

    def __init__(self, info):
        self._info = info

    def reset(self):
        pass

    def step(self, observation):
        raise NotImplementedError


class MultiAgentPolicy:
    """What gives an AgentPolicy for each agent."""

    def __init__(self, info, device: str = "cpu", **kwargs):
        if kwargs:
            raise TypeError(f"unexpected arguments {sorted(kwargs)}")
        self._info, self._device = info, device

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        raise NotImplementedError


def mixed(observation) -> int:
    return int(np.abs(np.asarray(observation, np.float64)).sum() * 64) % 1009


# ---- without chance


class Walker(AgentPolicy):
    """Recurrent: what it does depends on all that it saw since the reset, and on who it is."""

    def __init__(self, info, agent_id, stride):
        super().__init__(info)
        self._agent_id, self._stride = agent_id, stride
        self._names = info.action_names[info.agents[agent_id]]
        self._state = 0

    def reset(self):
        self._state = self._agent_id

    def step(self, observation):
        self._state = (3 * self._state + mixed(observation) + self._stride) % 9973
        return self._state % len(self._names)


class Walkers(MultiAgentPolicy):
    def __init__(self, info, stride: int = 1, **kwargs):
        super().__init__(info, **kwargs)
        self._stride, self._policies = stride, {}

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        if agent_id not in self._policies:
            self._policies[agent_id] = Walker(self._info, agent_id, self._stride)
        return self._policies[agent_id]


# ---- with chance, drawn from wherever such code draws from


class Rover(AgentPolicy):
    def __init__(self, info, team, agent_id, space):
        super().__init__(info)
        self._team, self._agent_id, self._space = team, agent_id, space

    def reset(self):
        self._mood = random.randrange(50)

    def step(self, observation):
        state = self._team.agent_states[self._agent_id]
        state["steps"] += 1
        self._mood += int(np.random.randint(7)) + state["role"] + state["steps"] + mixed(observation) % 3
        if self._mood % 3 == 0:
            return int(self._space.sample())
        return self._mood % int(self._space.n)


class Rovers(MultiAgentPolicy):
    """Roles are drawn once; ``reset`` drops what agents know, and their policies with it."""

    def __init__(self, policy_env_info, device: str = "cpu"):
        super().__init__(policy_env_info, device)
        count = len(policy_env_info.agents)
        self._roles = random.sample(range(count), count)
        self._noise = np.random.normal(size=4)
        self.agent_states = self._agent_policies = None

    def reset(self):
        self.agent_states, self._agent_policies = {}, {}

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        if self._agent_policies is None:
            raise RuntimeError("Policy not initialized - call reset() first")
        if agent_id not in self._agent_policies:
            space = list(self._info.action_spaces.values())[agent_id]
            role = self._roles[agent_id] + int(abs(self._noise).sum() * 100) % 5
            self.agent_states[agent_id] = {"role": role, "steps": 0}
            self._agent_policies[agent_id] = Rover(self._info, self, agent_id, space)
        return self._agent_policies[agent_id]


class Torn(MultiAgentPolicy):
    """Weights and draws by torch."""

    def __init__(self, info):
        import torch

        super().__init__(info)
        self._torch, self._weights = torch, torch.randn(6)

    def agent_policy(self, agent_id: int):
        return TornAgent(self._torch, self._weights, agent_id)


class TornAgent:
    def __init__(self, torch, weights, agent_id):
        self._torch, self._weights, self._agent_id = torch, weights, agent_id

    def reset(self):
        self._shift = self._torch.rand(())

    def step(self, observation):
        score = self._weights * (mixed(observation) % 3 + self._agent_id) / 4 + self._shift + self._torch.randn(6)
        return int(score[:3].argmax())


# ---- its own classes


class Move(enum.Enum):
    STAY = "0"
    UP = "1"
    DOWN = "2"


@dataclass(frozen=True)
class Action:
    name: str


@dataclass(frozen=True)
class Tokens:
    """What an agent sees."""

    agent_id: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class EnvInterface:
    num_agents: int
    action_names: list[str]
    observation_shape: tuple[int, ...]


class Scout(AgentPolicy):
    def __init__(self, info: EnvInterface, agent_id: int):
        super().__init__(info)
        self._agent_id, self._seen = agent_id, 0

    def reset(self):
        self._seen = 0

    def step(self, observation: Tokens) -> Action:
        assert isinstance(observation, Tokens)
        assert observation.agent_id == self._agent_id
        self._seen += mixed(observation.values) + np.random.randint(5)
        return Action(Move[self._info.action_names[self._seen % len(self._info.action_names)]].name)


class Scouts(MultiAgentPolicy):
    def __init__(self, policy_env_info: EnvInterface, device: str = "cpu"):
        if not isinstance(policy_env_info, EnvInterface):
            raise TypeError(f"needs an EnvInterface, given {type(policy_env_info).__name__}")
        super().__init__(policy_env_info, device)

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        assert agent_id in range(self._info.num_agents)
        return Scout(self._info, agent_id)


# ---- memory that agents share


class Gossip(AgentPolicy):
    def __init__(self, board, agent_id):
        super().__init__(None)
        self._board, self._agent_id = board, agent_id

    def reset(self):
        self._board.clear()

    def step(self, observation):
        self._board[self._agent_id] = mixed(observation)
        return sum(self._board.values()) % 3


class Gossips(MultiAgentPolicy):
    """What one agent saw, the others know."""

    def __init__(self, info):
        super().__init__(info)
        self._board = {}

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        return Gossip(self._board, agent_id)


class Openly(Gossips):
    """They share what belongs to the class."""

    board = {}  # noqa: RUF012

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        return Gossip(self.board, agent_id)


class Registered(AgentPolicy):
    def __init__(self, team, agent_id):
        super().__init__(None)
        self._team, self._agent_id = team, agent_id
        type(team).registry[agent_id] = self

    def step(self, observation):
        return mixed(observation) % 3 if self._known() else 0

    def _known(self):
        return type(self._team).registry.get(self._agent_id) is self


class Wiped(MultiAgentPolicy):
    """Every new team clears what belongs to the class."""

    registry = {}  # noqa: RUF012

    def __init__(self, info):
        super().__init__(info)
        type(self).registry = {}

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        return Registered(self, agent_id)


class InTurn(MultiAgentPolicy):
    """Roles are given out in the order in which they are asked for."""

    def __init__(self, info):
        super().__init__(info)
        self._given = 0

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        self._given += 1
        return Walker(self._info, agent_id, 5 * self._given)


# ---- what tells where it lives


class Pid(AgentPolicy):
    def step(self, observation):
        return 0


class Pids(MultiAgentPolicy):
    """Writes down in which process it was made, and for whom it acts."""

    def __init__(self, info, path):
        super().__init__(info)
        self._path = path

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {agent_id}\n")
        return Pid(self._info)


class ByName(MultiAgentPolicy):
    """Wants to know agents by their names; the annotation is text here."""

    def agent_policy(self, agent_name: str) -> AgentPolicy:
        return Walker(self._info, self._info.agents.index(agent_name), 1)


class OneCall(MultiAgentPolicy):
    """Two levels, and one call for all agents."""

    def reset(self, seed=0):
        self._total = seed % 5

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        return Walker(self._info, agent_id, 1)

    def act_jointly(self, observations, masks):
        self._total += sum(map(mixed, observations.values()))
        return {agent: (self._total + i) % 3 for i, agent in enumerate(observations)}


class Nobody(MultiAgentPolicy):
    """Forgot what an agent's policy must have."""

    def agent_policy(self, agent_id: int):
        return object()


def make_walkers(environment):
    """A function that makes a team."""
    return Walkers(environment, stride=2)


# ---- between this project and motet


class Translation:
    def __init__(self, world):
        self.world = world

    def description(self):
        first = self.world.agents[0]
        shape = self.world.observation_spaces[first].shape
        return EnvInterface(len(self.world.agents), [move.name for move in Move], shape)

    def observation(self, observation, agent, mask):
        return Tokens(agent, tuple(np.asarray(observation, np.float64).ravel().tolist()))

    def action(self, action, agent):
        return self.world.action_names[self.world.agents[agent]].index(Move[action.name].value)
