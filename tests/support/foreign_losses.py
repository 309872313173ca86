"""Algorithms as their users write them: a loss over one agent's batch, in forty lines at most."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from motet.algorithms.loss import Categorical, EpsilonGreedy, GaussianNoise, Learned, Loss, LossConfig, Net, advantages
from motet.schedule import Linear, Schedule


@dataclass(frozen=True)
class MyDQN(LossConfig):
    """Double DQN."""

    network: Any = "mlp"
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)  # noqa: RUF009

    def networks(self, observations, actions):
        return {"q": Net(self.network, observations, outputs=actions.n)}

    def loss(self, nets, targets, batch):
        chosen = nets.q(batch.observation).gather(1, batch.action[:, None])[:, 0]
        with torch.no_grad():
            best = nets.q(batch.next_observation).argmax(1, keepdim=True)
            goal = batch.reward + batch.discount * targets.q(batch.next_observation).gather(1, best)[:, 0]
        errors = F.huber_loss(chosen, goal, reduction="none")
        return Loss((batch.weight * errors).mean(), (goal - chosen).abs(), {"mean_q": chosen.mean()})

    def acting(self, actions):
        return EpsilonGreedy(actions, self.epsilon)


@dataclass(frozen=True)
class DiscreteSAC(LossConfig):
    """Soft actor-critic for discrete actions: a policy, two critics and a temperature that is learned."""

    target_every: int = 1
    target_rate: float = 0.005
    wanted_entropy: float = 0.6
    """As a share of the highest one."""

    def networks(self, observations, actions):
        critic = Net("mlp(hidden=(32,))", observations, outputs=actions.n, learning_rate=1e-3)
        return {
            "policy": Net("mlp(hidden=(32,))", observations, actions.n, learning_rate=3e-4, target=False),
            "q1": critic,
            "q2": critic,
            "log_alpha": Learned(0.0, learning_rate=Linear(1e-2, 1e-3, steps=2_000), max_grad_norm=math.inf),
        }

    def loss(self, nets, targets, batch):
        here, there, alpha = batch.observation, batch.next_observation, nets.log_alpha.exp().detach()
        with torch.no_grad():
            logs = F.log_softmax(nets.policy(there), 1)
            least = torch.minimum(targets.q1(there), targets.q2(there))
            goal = batch.reward + batch.discount * (logs.exp() * (least - alpha * logs)).sum(1)
        q1, q2 = nets.q1(here), nets.q2(here)
        chosen = [q.gather(1, batch.action[:, None])[:, 0] for q in (q1, q2)]
        critics = F.mse_loss(chosen[0], goal) + F.mse_loss(chosen[1], goal)
        logs = F.log_softmax(nets.policy(here), 1)
        policy = (logs.exp() * (alpha * logs - torch.minimum(q1, q2).detach())).sum(1).mean()
        entropy = -(logs.exp() * logs).sum(1).mean().detach()
        temperature = nets.log_alpha * (entropy - self.wanted_entropy * math.log(logs.shape[1]))
        return Loss(critics + policy + temperature, metrics={"entropy": entropy, "alpha": alpha})

    def acting(self, actions):
        return Categorical(actions)


@dataclass(frozen=True)
class A2C(LossConfig):
    """Advantage actor-critic on rows that are read once."""

    once: bool = True
    batch_size: int = 4
    length: int = 16
    learning_rate: Schedule = 3e-3
    entropy: Schedule = Linear(0.02, 0.0, steps=20_000)  # noqa: RUF009

    def networks(self, observations, actions):
        shape = "mlp(hidden=(32,), activation='tanh')"
        return {"policy": Net(shape, observations, outputs=actions.n), "value": Net(shape, observations, outputs=1)}

    def loss(self, nets, targets, batch):  # fragments [B, length]; observations have one more row
        values = nets.value(batch.observation)[..., 0]
        gain = advantages(batch, values.detach(), 0.95)
        logs = F.log_softmax(nets.policy(batch.observation[:, :-1]), -1)
        chosen = logs.gather(-1, batch.action[..., None])[..., 0]
        entropy = -(logs.exp() * logs).sum(-1)
        errors = (values[:, :-1].detach() + gain - values[:, :-1]) ** 2
        terms = 0.5 * errors - chosen * gain - batch.settings["entropy"] * entropy
        share = batch.valid / batch.valid.sum().clamp(min=1)
        return Loss((share * terms).sum(), metrics={"entropy": (share * entropy).sum()})

    def acting(self, actions):
        return Categorical(actions)


@dataclass(frozen=True)
class DDPG(LossConfig):
    """Deterministic policy gradients for continuous actions, with smoothed targets from drawn numbers."""

    target_every: int = 1
    target_rate: float = 0.01
    normal_draws = {"noise": 2}  # noqa: RUF012

    def networks(self, observations, actions):
        n = math.prod(actions.shape)
        return {
            "policy": Net("mlp(hidden=(32,))", observations, outputs=n, learning_rate=1e-4),
            "critic": Net("mlp(hidden=(32,))", observations, outputs=1, actions=n),
        }

    def loss(self, nets, targets, batch):
        here, there = batch.observation, batch.next_observation
        with torch.no_grad():
            action = (targets.policy(there).tanh() + 0.1 * batch.draws["noise"]).clamp(-1, 1)
            goal = batch.reward + batch.discount * targets.critic(there, action)[:, 0]
        error = goal - nets.critic(here, batch.action)[:, 0]
        gain = nets.critic.frozen(here, nets.policy(here).tanh())
        return Loss((batch.weight * error**2).mean() - gain.mean(), error.abs())

    def acting(self, actions):
        return GaussianNoise(actions, 0.2)
