"""Attention over entities in a few lines of torch: the network of DQN in a world whose entities come in any order."""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

import motet
from motet.algorithms import DQNConfig
from motet.testing import check_network


class FindYourColour(gymnasium.Env):
    """Eight entities in random order: one has your colour, and its number is the right action."""

    observation_space, action_space = Box(0, 4, (9, 5), np.float32), Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self.look(), {}

    def look(self):
        colours, numbers = self.np_random.permutation(8), self.np_random.integers(4, size=8)
        mine = self.np_random.integers(8)
        self.right = numbers[mine]
        bits = (np.append(colours, colours[mine])[:, None] >> np.arange(3)) & 1
        rest = np.stack([np.append(numbers, 0), np.append(np.zeros(8), 1)], 1)  # the last entity is you
        return np.concatenate([bits, rest], 1).astype(np.float32)

    def step(self, action):
        reward, self.turn = float(action == self.right), self.turn + 1
        return self.look(), reward, False, self.turn == 20, {}


class Attention(nn.Module):
    def __init__(self, space, outputs, width=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(space.shape[1], width), nn.ReLU(), nn.Linear(width, width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, entities):  # [batch, entities, features]
        x = self.embed(entities)
        me = x[:, -1:]
        weights = torch.softmax(self.query(me) @ self.key(x).transpose(1, 2) / 4, dim=2)
        return self.out(torch.cat([weights @ self.value(x), me], 2)[:, 0])


if __name__ == "__main__":
    check_network(Attention, FindYourColour.observation_space, outputs=4)
    config = DQNConfig(network=Attention, gamma=0.0, learning_rate=1e-3, min_rows=200)
    result = motet.train(FindYourColour, config, motet.Settings(steps=3_000))
    print(f"{result.steps} steps, {sum(result.updates.values())} updates")
