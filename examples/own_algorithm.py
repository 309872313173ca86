"""A custom algorithm in numpy: linear Q-learning for A agents at once. Running this file checks the algorithm."""

from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete

from motet.algorithm import ReaderSettings, Sizes, Update
from motet.testing import check_algorithm


@dataclass(frozen=True)
class LinearQ:
    rate: float = 0.1
    header = {"epsilon": ((), "float64")}  # noqa: RUF012

    def replay(self, observations, actions, *, masked=False):
        return ReaderSettings(batch_size=32, min_rows=32, gamma=0.9)

    def sizes(self, observations, actions):
        return Sizes(weights=(n := actions.n * observations.shape[0]), state=n, counters=1, random=0)

    def build(self, observations, actions, agents, seeds, device="cpu"):
        return Learner(self.rate, seeds, (int(actions.n), *observations.shape))

    def behaviour(self, observations, actions):
        return Actor()


class Learner:
    def __init__(self, rate, seeds, shape):
        self.rate, self.w = rate, np.float32([np.random.default_rng(s).normal(size=shape) for s in seeds])
        self.state, self.n_weights = self.w.reshape(len(seeds), -1), self.w[0].size  # a view
        self.counters, self.random = np.zeros((len(seeds), 1), "int64"), np.zeros((len(seeds), 0), "uint8")
        self.weights, self.save, self.load = lambda: self.state, lambda: None, lambda: None
        self.header = lambda step, agent: {"epsilon": 1 / (1 + step / 1000)}

    def update(self, batch, steps):
        q, next_q = (np.einsum("and,abd->abn", self.w, x) for x in (batch.observation, batch.next_observation))
        chosen = np.eye(q.shape[2], dtype=np.float32)[batch.action]  # [A, batch, actions]
        error = batch.reward + batch.discount * next_q.max(2) - (q * chosen).sum(2)
        self.w += self.rate * np.einsum("abn,ab,abd->and", chosen, error, batch.observation) / error.shape[1]
        self.counters += 1
        return Update({"loss": (error**2).mean(1)})


class Actor:
    def begin(self, seed):
        self.rng = np.random.default_rng(seed)

    def load(self, weights, header):
        self.w, self.epsilon = weights, header["epsilon"]

    def act(self, x, masks=None, explore=True):
        q = (x[:, None] * self.w.reshape(-1, x.shape[1])).sum(2)
        draws = self.rng.random((2, len(x)))  # always draw the same number of values
        return np.where(explore & (draws[0] < self.epsilon), (draws[1] * q.shape[1]).astype(int), q.argmax(1)), {}


check_algorithm(LinearQ(), Box(0, 1, (4,)), Discrete(3))  # raises an error if a rule is broken
