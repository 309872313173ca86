"""IQN: implicit quantile networks. The network maps a state and a share tau to that quantile of each action's return.

Trunk (hidden layers) of the state times embedding (one layer on cosines) of tau, then the head. In: stacked batches.
Out: weights, and absolute errors of the means for a prioritised replay. Taus of an update come from each agent's own
random stream. Acting, and choosing the next action of a target, use the mean over fixed taus, the middles of equal
slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Sizes, Space, Update
from motet.algorithms._flat import STREAM_BYTES, check_seeds, padded
from motet.algorithms._networks import Block, Encoder, Network
from motet.algorithms._value import EpsilonGreedy, ValueConfig, ValueLearner, n_actions
from motet.errors import SettingError

__all__ = ["IQN", "IQNBehaviour", "IQNConfig"]


@dataclass(frozen=True)
class IQNConfig(ValueConfig):
    """Settings of IQN.

    >>> from gymnasium.spaces import Box, Discrete
    >>> config = IQNConfig(hidden=(32,), batch_size=8, min_rows=8)
    >>> iqn = config.build(Box(0, 1, (5,)), Discrete(3), agents=2, seeds=[1, 2])
    >>> batch = stacked_batch(Box(0, 1, (5,)), Discrete(3), config.replay(Box(0, 1, (5,)), Discrete(3)), agents=2)
    >>> sorted(iqn.update(batch, steps=[100, 100]).metrics)
    ['grad_norm', 'loss', 'mean_q']
    """

    head: tuple[int, ...] = ()
    """Widths of the layers behind the product of state and tau. Without any, acting costs as little as in DQN."""
    taus: int = 8
    """Quantiles of the present state in an update."""
    target_taus: int = 8
    """Quantiles of the next state in an update."""
    mean_taus: int = 32
    """Fixed quantiles whose mean ranks the actions."""
    cosines: int = 64
    """Cosines that embed tau."""
    kappa: float = 1.0
    """Where the quantile Huber loss bends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "head", tuple(int(n) for n in self.head))
        if any(n < 1 for n in self.head):
            raise SettingError(f"head: given {self.head}, expected widths from 1 on")
        for name in ("taus", "target_taus", "mean_taus", "cosines"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}: given {getattr(self, name)}, expected 1 or more")
        if not self.kappa > 0:
            raise SettingError(f"kappa: given {self.kappa}, expected more than 0")

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        n = padded(self._blocks(observation_space, action_space)[-1].end)
        return Sizes(weights=n, state=4 * n, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> IQN:
        """The learning half for ``agents`` agents, each made from its own seed."""
        check_seeds(agents, seeds)
        return IQN(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> IQNBehaviour:
        """The acting half."""
        return IQNBehaviour(self, observation_space, action_space)

    def _blocks(self, observation_space: Space, action_space: Space) -> tuple[Block, Block, Block]:
        """Trunk, embedding, head."""
        inputs, width = Encoder(observation_space, self.n_frames).size, self.hidden[-1]
        trunk = Block((inputs, *self.hidden), activate_last=True)
        embedding = Block((self.cosines, width), trunk.end, activate_last=True)
        return trunk, embedding, Block((width, *self.head, n_actions(action_space)), embedding.end)

    def _mean_cosines(self) -> npt.NDArray[np.float32]:
        """``[mean_taus, cosines]`` of the fixed taus."""
        taus = (np.arange(self.mean_taus) + 0.5) / self.mean_taus
        cosines: npt.NDArray[np.float32] = np.cos(taus[:, None] * self._multiples()).astype(np.float32)
        return cosines

    def _multiples(self) -> npt.NDArray[Any]:
        return np.pi * np.arange(self.cosines)


class _Quantiles:
    """The network of A agents: state, tau and action to quantile."""

    def __init__(
        self, blocks: tuple[Block, Block, Block], mean_cosines: Tensor, flat: Tensor, grad: Tensor | None = None
    ) -> None:
        self.trunk, self.embedding, self.head = (Network(block, flat, grad) for block in blocks)
        self._linear = len(blocks[2].sizes) == 2
        self._mean_cosines = mean_cosines.expand(flat.shape[0], -1, -1)

    def means(self, states: Tensor) -> Tensor:
        """``[A, B, n]``: the mean over the fixed taus."""
        embedded = self.embedding.forward(self._mean_cosines)[-1]  # [A, K, H]
        if self._linear:  # the mean of linear functions is the function of the mean
            return self.head.forward(states * embedded.mean(1, keepdim=True))[-1]
        product = states.unsqueeze(2) * embedded.unsqueeze(1)  # [A, B, K, H]
        out = self.head.forward(product.flatten(1, 2))[-1]
        return out.view(*product.shape[:3], -1).mean(2)

    def forward(self, states: Tensor, cosines: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Embedded taus and product, ``[A, B N, H]`` each, and the head's layers, from cosines ``[A, B N, C]``."""
        agents, batch, width = states.shape
        embedded = self.embedding.forward(cosines)[-1]
        product = states.unsqueeze(2) * embedded.view(agents, batch, -1, width)
        flat = product.flatten(1, 2)
        return embedded, flat, self.head.forward(flat)


class IQN(ValueLearner):
    """The learning half of IQN for A agents."""

    def __init__(
        self, config: IQNConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: str
    ) -> None:
        self.config = config
        blocks = config._blocks(observation_space, action_space)
        super().__init__(config, observation_space, action_space, blocks, seeds, device, streams=True)
        mean_cosines = torch.from_numpy(config._mean_cosines()).to(self._device)
        self._online = _Quantiles(blocks, mean_cosines, self._weights, self._grad)
        self._target = _Quantiles(blocks, mean_cosines, self._targets)
        self._multiples = torch.from_numpy(config._multiples().astype(np.float32)).to(self._device)

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, rows = self.config, batch.reward.shape[1]
        data = self._fetched(batch)
        taus, cosines, next_cosines = self._draw(rows)

        # The order matters: buffers of passes with as many rows are shared, and the backward pass needs the last ones.
        layers = self._online.trunk.forward(data.inputs if config.double else data.x)
        here = self._online.trunk.cut(layers, 0, rows)
        next_states = self._target.trunk.forward(data.next_x)[-1]
        best = data.best(self._online.means(layers[-1][:, rows:]) if config.double else self._target.means(next_states))
        next_quantiles = self._target.forward(next_states, next_cosines)[2][-1]
        goal = self._of(next_quantiles, best.squeeze(2)).mul_(data.discount.unsqueeze(2)).add_(data.reward.unsqueeze(2))
        embedded, product, head = self._online.forward(here[-1], cosines)
        chosen = self._of(head[-1], data.action)  # [A, B, N]

        scale = 1.0 / rows if data.weight is None else (data.weight / rows).unsqueeze(2)
        slope, losses = quantile_loss(chosen, goal, taus, config.kappa)
        self._backward(data.x, cosines, here, embedded, product, head, slope.mul_(scale), data.action)
        norms = self._clip(config.max_grad_norm)
        if self._measures():
            loss = (losses() * scale).sum((1, 2)) if isinstance(scale, Tensor) else losses().sum((1, 2)) * scale
            self._measure(loss, chosen.mean((1, 2)), norms)
        self._adam(config._rates(steps), config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        if not config.prioritised:
            return Update(self._metrics)
        return Update(self._metrics, (goal.mean(2) - chosen.mean(2)).abs_().cpu().numpy())

    def _draw(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """New taus ``[A, B, N]``, their cosines ``[A, B N, C]``, and cosines for the next states ``[A, B N', C]``."""
        config = self.config
        drawn = np.empty((len(self._streams), rows * (config.taus + config.target_taus)), np.float32)
        for row, stream in zip(drawn, self._streams, strict=True):
            stream.random(out=row, dtype=np.float32)
        taus = torch.from_numpy(drawn).to(self._device)
        cosines = (taus.unsqueeze(2) * self._multiples).cos_()
        split = rows * config.taus
        return taus[:, :split].view(-1, rows, config.taus), cosines[:, :split], cosines[:, split:]

    @staticmethod
    def _of(quantiles: Tensor, action: Tensor) -> Tensor:
        """``[A, B, N]``: the quantiles ``[A, B N, n]`` of one action for each row."""
        agents, batch = action.shape
        each = quantiles.view(agents, batch, -1, quantiles.shape[2])
        return each.gather(3, action.view(agents, batch, 1, 1).expand(-1, -1, each.shape[2], 1)).squeeze(3)

    def _backward(
        self,
        x: Tensor,
        cosines: Tensor,
        layers: list[Tensor],
        embedded: Tensor,
        product: Tensor,
        head: list[Tensor],
        slope: Tensor,
        action: Tensor,
    ) -> None:
        """Set the gradients from those of the chosen quantiles ``[A, B, N]``."""
        agents, rows, taus = slope.shape
        states, width = layers[-1], layers[-1].shape[2]
        grad = slope.new_zeros((agents, rows, taus, head[-1].shape[2]))
        grad.scatter_(3, action.view(agents, rows, 1, 1).expand(-1, -1, taus, 1), slope.unsqueeze(3))
        back = self._online.head.backward(product, head, grad.flatten(1, 2), inputs=True).view(
            agents, rows, taus, width
        )
        grad_states = (back * embedded.view(agents, rows, taus, width)).sum(2)
        grad_embedded = back.mul_(states.unsqueeze(2)).flatten(1, 2)
        self._online.embedding.backward(cosines, [embedded], grad_embedded)
        self._online.trunk.backward(x, layers, grad_states)


def quantile_loss(chosen: Tensor, goal: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Any]:
    """Quantile Huber loss of ``chosen`` ``[A, B, N]`` against ``goal`` ``[A, B, N']``, summed over N, averaged over N'.

    Returns its gradient ``[A, B, N]`` by ``chosen``, and a function that gives its terms ``[A, B, N]``.
    """
    error = goal.unsqueeze(2) - chosen.unsqueeze(3)  # [A, B, N, N']
    share = (taus.unsqueeze(3) - (error < 0).float()).abs_()
    slope = (error.clamp(-kappa, kappa).mul_(share)).mean(3).mul_(-1.0 / kappa)

    def losses() -> Tensor:
        size = error.abs()
        huber = torch.where(size < kappa, 0.5 * size * size, kappa * (size - 0.5 * kappa))
        return (share * huber).mean(3) / kappa

    return slope, losses


class IQNBehaviour(EpsilonGreedy):
    """The acting half of IQN. What depends on the weights alone is computed once per version, when first needed."""

    def __init__(self, config: IQNConfig, observation_space: Space, action_space: Space) -> None:
        super().__init__(Encoder(observation_space, config.n_frames), action_space)
        trunk, embedding, head = config._blocks(observation_space, action_space)
        self._trunk, self._head, self._head_block = trunk.native(self._encoder.scale), head.native(), head
        self._embedding, self._cosines = embedding.native(), config._mean_cosines()
        self._embedded = np.zeros((config.mean_taus, config.hidden[-1]), np.float32)
        self._linear, self._stale = not config.head, True
        # Without layers behind the product the mean over taus is a network of its own: trunk, then one linear layer.
        folded = Block((*trunk.sizes, self._n))
        self._trunk_end, self._folded = trunk.end, np.zeros(folded.end, np.float32)
        self._net = folded.native(self._encoder.scale)

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Take a new version."""
        super().load(weights, header)
        self._stale = True

    def _values(self, weights: npt.NDArray[np.float32], rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        if self._stale:
            self._prepare(weights)
        if self._linear:
            values = np.empty((len(rows), self._n), np.float32)
            self._net.forward(self._folded, rows, values)
            return values
        states = np.empty((len(rows), self._embedded.shape[1]), np.float32)
        self._trunk.forward(weights, rows, states)
        product = states[:, None] * self._embedded
        values = np.empty((*product.shape[:2], self._n), np.float32)
        self._head.forward(weights, product, values)
        mean: npt.NDArray[np.float32] = values.mean(1)
        return mean

    def _prepare(self, weights: npt.NDArray[np.float32]) -> None:
        self._embedding.forward(weights, self._cosines, self._embedded)
        self._stale = False
        if self._linear:
            (_, _, at, bias), end = next(self._head_block.layers), self._trunk_end
            size = bias - at
            self._folded[:end] = weights[:end]
            head = weights[at:bias].reshape(self._n, -1) * self._embedded.mean(0)
            self._folded[end : end + size] = head.ravel()
            self._folded[end + size :] = weights[bias : bias + self._n]
