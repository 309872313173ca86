"""Networks as their users write them, without motet in mind."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class EntityAttention(nn.Module):
    """Self-attention over a set of entities, pooled; [batch, entities, features] -> [batch, outputs]."""

    def __init__(self, n_features, n_out, dim=32, heads=4):
        super().__init__()
        self.embed = nn.Linear(n_features, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.norm = nn.LayerNorm(dim)
        self.heads = heads
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, n_out))

    def forward(self, x):
        x = self.embed(x)
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)  # noqa: E731
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        x = self.norm(x + (weights @ v).transpose(-2, -3).flatten(-2))
        return self.out(x.max(dim=-2).values)


def attention(observation_space, n_actions):
    return EntityAttention(observation_space.shape[-1], n_actions)


def mlp(observation_space, n_out, width=64):
    n_in = math.prod(observation_space.shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_out)
    )


def mlp_features(observation_space):
    return mlp(observation_space, 7)


class PictureAndVector(nn.Module):
    """A dict observation: a picture (height, width, 3), a vector and the index of a room."""

    def __init__(self, space, n_out=32):
        super().__init__()
        height, width, channels = space["picture"].shape
        self.conv = nn.Sequential(
            nn.Conv2d(channels, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten()
        )
        with torch.no_grad():
            n = self.conv(torch.zeros(1, channels, height, width)).shape[1]
        self.room = nn.Embedding(int(space["room"].n), 4)
        self.join = nn.Linear(n + space["vector"].shape[0] + 4, n_out)

    def forward(self, obs):
        seen = self.conv(obs["picture"].permute(0, 3, 1, 2))
        return self.join(torch.cat([seen, obs["vector"], self.room(obs["room"])], dim=1))


class Quantiles(nn.Module):
    """The whole of an implicit quantile network."""

    def __init__(self, space, n_actions, n_cos=16, width=32):
        super().__init__()
        self.body = nn.Linear(math.prod(space.shape), width)
        self.tau = nn.Linear(n_cos, width)
        self.head = nn.Linear(width, n_actions)
        self.register_buffer("i_pi", math.pi * torch.arange(n_cos))

    def forward(self, obs, taus):
        cos = torch.cos(taus.unsqueeze(-1) * self.i_pi)
        x = F.relu(self.body(obs.flatten(1))).unsqueeze(1) * F.relu(self.tau(cos))
        return self.head(x)


class ActionValue(nn.Module):
    """A critic of an observation and an action."""

    def __init__(self, space, n_out=1, n_actions=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(math.prod(space.shape) + n_actions, 32), nn.ELU(), nn.Linear(32, n_out))

    def forward(self, obs, action):
        return self.net(torch.cat([obs.flatten(1), action], -1)).squeeze(-1)


class Dropped(nn.Module):
    """An MLP with dropout."""

    def __init__(self, space, n_out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(space.shape), 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, n_out)
        )

    def forward(self, obs):
        return self.net(obs)


class Recalling(nn.Module):
    """A module with a memory of its own: features and a new state from an observation and a state."""

    state_size = 6

    def __init__(self, observation_space, features=7):
        super().__init__()
        self.cell = nn.GRUCell(math.prod(observation_space.shape), 6)
        self.out = nn.Linear(6, features)

    def forward(self, seen, state):
        new = self.cell(seen.flatten(1), state)
        return torch.tanh(self.out(new)), new


class RecallingSequences(Recalling):
    """It also computes sequences by itself."""

    def unroll(self, seen, memory, begin):
        state, outs = memory[:, 0], []
        for t in range(begin.shape[1]):
            out, state = self(seen[:, t], torch.where(begin[:, t, None], memory[:, t], state))
            outs.append(out)
        return torch.stack(outs, 1)


class TorchGRU(nn.Module):
    """torch's GRU of eight outputs, and nothing else."""

    state_size = 8

    def __init__(self, observation_space):
        super().__init__()
        self.cell = nn.GRUCell(math.prod(observation_space.shape), 8)

    def forward(self, seen, state):
        new = self.cell(seen.flatten(1), state)
        return new, new


class Forgetful(Recalling):
    """It has a state and does not look at it."""

    def __init__(self, observation_space):
        super().__init__(observation_space)
        self.see = nn.Linear(math.prod(observation_space.shape), 7)

    def forward(self, seen, state):
        return torch.tanh(self.see(seen.flatten(1))), state + 1


class WithoutState(nn.Module):
    """The same function without a state."""

    def __init__(self, observation_space):
        super().__init__()
        inner = Forgetful(observation_space)
        self.cell, self.out, self.see = inner.cell, inner.out, inner.see

    def forward(self, seen):
        return torch.tanh(self.see(seen.flatten(1)))
