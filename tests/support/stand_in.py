"""A stand-in for an algorithm: fast, without torch, and with a result that depends on every number of every batch."""

from dataclasses import dataclass

import numpy as np

from motet.algorithm import ReaderSettings, Sizes, Update


@dataclass(frozen=True)
class StandIn:
    batch_size: int = 8
    prioritised: bool = False
    width: int = 16
    capacity: int = 5000
    n_step: int = 1
    length: int = 0
    burn_in: int = 0

    @property
    def header(self):
        return {"epsilon": ((), "float64"), "step": ((), "int64")}

    def replay(self, observation_space, action_space, *, masked=False):
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, prioritised=self.prioritised, n_step=self.n_step,
            length=self.length, burn_in=self.burn_in,
        )  # fmt: skip

    def sizes(self, observation_space, action_space):
        return Sizes(weights=self.width, state=3 * self.width, counters=1, random=8)

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _Learning(self, agents, seeds)

    def behaviour(self, observation_space, action_space):
        return _Acting(action_space.n)


class _Learning:
    def __init__(self, config, agents, seeds):
        self.n_weights = config.width
        self.state = np.stack([np.random.default_rng(s).random(3 * config.width, np.float32) for s in seeds])
        self.counters = np.zeros((agents, 1), np.int64)
        self.random = np.array([[s % 251] * 8 for s in seeds], np.uint8)

    def update(self, batch, steps):
        agents, width = len(self.state), self.n_weights
        for a in range(agents):
            key = self._key(batch.agent(a))
            self.random[a] = (self.random[a] * np.uint8(5) + np.uint8(3)).astype(np.uint8)
            step = np.resize(key, width) * 1e-3 + self.random[a, 0] * 1e-6 + steps[a] * 1e-7
            state = self.state[a].reshape(3, width)
            state[2] = 0.9 * state[2] + step
            state[0] += state[2]
            state[1] = 0.99 * state[1] + 0.01 * state[0]
        self.counters += 1
        priorities = np.abs(batch.reward).astype(np.float32) + 0.1
        if batch.ahead is not None:
            priorities = np.ascontiguousarray(priorities.max(2))
        return Update({"loss": self.state[:, 0].copy()}, priorities)

    def _key(self, batch):
        seen = batch.observation.astype(np.float64).reshape(len(batch.reward), -1)
        if batch.ahead is None:
            after = batch.next_observation.astype(np.float64).reshape(seen.shape)
            return (seen.sum(1) + 2 * after.sum(1) + batch.action + 0.5 * batch.reward) * batch.discount
        rows = (batch.action + 0.5 * batch.reward + batch.ahead) * batch.discount + batch.valid
        place = 1 + np.arange(seen.shape[1])
        return (seen * np.sqrt(place)).sum(1) + (rows * np.arange(1, 1 + rows.shape[1])).sum(1)

    def header(self, step, agent):
        return {"epsilon": max(0.1, 1 - step / 1000), "step": step}

    def weights(self):
        return self.state[:, : self.n_weights]

    def save(self):
        pass

    def load(self):
        pass


class _Acting:
    def __init__(self, actions):
        self._actions = actions

    def begin(self, seed):
        self._rng = np.random.default_rng(seed)

    def get_stream(self):
        return self._rng.bit_generator.state

    def set_stream(self, stream):
        self._rng.bit_generator.state = stream

    def load(self, weights, header):
        self._weights, self._epsilon = weights, header["epsilon"]

    def act(self, observations, masks=None, explore=True):
        n = len(observations)
        draws = self._rng.random((n, 2))
        flat = observations.reshape(n, -1)[:, :16].astype(np.float64)
        greedy = (np.abs(flat @ self._weights[: flat.shape[1]] * 1000).astype(np.int64)) % self._actions
        random = (draws[:, 1] * self._actions).astype(np.int64)
        return np.where(draws[:, 0] < self._epsilon, random, greedy), {}
