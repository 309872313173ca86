"""The common design of an asynchronous trainer, with which motet is compared: locks, and torch in all processes.

One actor process plays the world; each agent has a learner process. Between them, for each agent: numpy arrays in
shared memory under one ``mp.Lock``, written by the actor and sampled by the learner, and a model in ``share_memory()``,
written by the learner and read by the actor with ``load_state_dict``. The actor makes a torch forward pass for one
observation at a time, the learner is the usual DQN with autograd.

The design has the usual optimisations: one torch thread per process, no forward pass for random actions, the fused
optimiser, batches gathered into reused arrays, and an actor that checks for new weights about as often as they change.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.party import rate
from motet.arrays import ArraySpec
from motet.system.memory import Segment
from motet.worlds import TreasureHunt

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["LockedActor", "LockedLearner", "LockedRing", "locked_network"]

INPUTS, ACTIONS = 125, 4
SYNC_EVERY = 100
"""Number of turns after which the actor copies the shared models again."""
PUBLISH_EVERY = 10
TARGET_EVERY = 500
EPSILON, GAMMA, RATE, MAX_NORM = 0.05, 0.99, 5e-4, 10.0


def locked_network(hidden: Sequence[int]) -> nn.Sequential:
    """Return a network with the same layers as motet's."""
    from torch import nn

    sizes = [INPUTS, *hidden]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], ACTIONS))


class LockedRing:
    """The replay buffer of one agent: both observations of a transition, and one lock for everything."""

    def __init__(self, context: Any, capacity: int, filled: int) -> None:
        self.lock, self.capacity = context.Lock(), capacity
        self.segment = Segment(
            {
                "observation": ArraySpec((capacity, INPUTS), "float32"),
                "next": ArraySpec((capacity, INPUTS), "float32"),
                "action": ArraySpec((capacity,), "int64"),
                "reward": ArraySpec((capacity,), "float32"),
                "done": ArraySpec((capacity,), "float32"),
                "head": ArraySpec((2,), "int64"),  # index of the next row, and number of rows
            }
        )
        rng = np.random.default_rng(0)
        for name in ("action", "reward", "done"):
            self.segment[name][:] = 0
        for name in ("observation", "next"):
            self.segment[name][:filled] = rng.random((filled, INPUTS)) < 0.1
        self.segment["head"][:] = filled % capacity, filled


class LockedActor:
    """Plays treasure_hunt with two agents, epsilon-greedy with torch."""

    def __init__(self, rings: Sequence[LockedRing], shared: Sequence[nn.Module], hidden: Sequence[int]) -> None:
        self._rings, self._shared = rings, shared
        self._arrays = [
            [ring.segment[name] for name in ("observation", "next", "action", "reward", "done", "head")]
            for ring in rings
        ]
        self._networks = [locked_network(hidden) for _ in rings]
        self._world, self._rng = TreasureHunt(agents=len(rings)), np.random.default_rng(1)
        self._world.reset(seed=1)
        self._index = {name: i for i, name in enumerate(self._world.possible_agents)}
        self._pending: list[tuple[npt.NDArray[np.float32], int] | None] = [None] * len(rings)
        self._turns = 0
        self._sync()

    def run(self, begin_at: float, seconds: float) -> float:
        """Return turns per second; in a turn every agent moves once."""
        return rate(self._play, 10, begin_at, seconds)

    def _play(self, turns: int) -> None:
        for _ in range(turns):
            for _ in self._rings:
                self._move()
            self._turns += 1
            if self._turns % SYNC_EVERY == 0:
                self._sync()

    def _sync(self) -> None:
        for network, shared in zip(self._networks, self._shared, strict=True):
            network.load_state_dict(shared.state_dict())

    def _move(self) -> None:
        """Make the next agent's move, and store its previous transition."""
        import torch

        world = self._world
        while True:
            if not world.agents:
                world.reset()
            agent = self._index[world.agent_selection]
            seen, reward, terminated, truncated, _ = world.last()
            seen = seen.reshape(-1).astype(np.float32)
            if (row := self._pending[agent]) is not None:
                self._add(agent, *row, reward, seen, float(terminated))
            if not (terminated or truncated):
                break
            self._pending[agent] = None
            world.step(None)
        if self._rng.random() < EPSILON:
            action = int(self._rng.integers(ACTIONS))
        else:
            with torch.inference_mode():
                action = int(self._networks[agent](torch.from_numpy(seen).unsqueeze(0)).argmax(1))
        self._pending[agent] = (seen, action)
        world.step(action)

    def _add(
        self,
        agent: int,
        seen: npt.NDArray[np.float32],
        action: int,
        reward: float,
        after: npt.NDArray[np.float32],
        done: float,
    ) -> None:
        observation, following, actions, rewards, dones, head = self._arrays[agent]
        with self._rings[agent].lock:
            i, capacity = int(head[0]), self._rings[agent].capacity
            observation[i], following[i], actions[i], rewards[i], dones[i] = seen, after, action, reward, done
            head[0] = (i + 1) % capacity
            head[1] = min(int(head[1]) + 1, capacity)


class LockedLearner:
    """DQN as it is usually written: double Q-learning, Huber loss, gradient clipping, Adam, a target network."""

    def __init__(self, ring: LockedRing, shared: nn.Module, hidden: Sequence[int], batch_size: int, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self._ring, self._shared, self._rng = ring, shared, np.random.default_rng(seed)
        self._online = locked_network(hidden)
        self._target = copy.deepcopy(self._online).requires_grad_(False)
        self._optimiser = torch.optim.Adam(self._online.parameters(), lr=RATE, fused=True)
        names = ("observation", "next", "action", "reward", "done")
        self._fields = [
            (ring.segment[name], np.empty((batch_size, *ring.segment[name].shape[1:]), ring.segment[name].dtype))
            for name in names
        ]
        self._batch: list[Tensor] = [torch.from_numpy(out) for _, out in self._fields]
        self._head, self._batch_size, self._updates = ring.segment["head"], batch_size, 0

    def run(self, begin_at: float, seconds: float) -> float:
        """Updates per second."""
        return rate(self._learn, 2, begin_at, seconds)

    def _learn(self, updates: int) -> None:
        for _ in range(updates):
            index = self._rng.integers(0, int(self._head[1]), self._batch_size)
            with self._ring.lock:
                for source, out in self._fields:
                    np.take(source, index, axis=0, out=out, mode="clip")
            self._update()

    def _update(self) -> None:
        import torch
        from torch import nn

        observation, following, action, reward, done = self._batch
        with torch.no_grad():
            best = self._online(following).argmax(1, keepdim=True)
            value = self._target(following).gather(1, best).squeeze(1)
            goal = reward + GAMMA * (1.0 - done) * value
        chosen = self._online(observation).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, goal)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._online.parameters(), MAX_NORM)
        self._optimiser.step()
        self._updates += 1
        if self._updates % PUBLISH_EVERY == 0:
            self._shared.load_state_dict(self._online.state_dict())
        if self._updates % TARGET_EVERY == 0:
            self._target.load_state_dict(self._online.state_dict())
