"""An algorithm as a loss: soft actor-critic for discrete actions, with two critics and a learned temperature.

python examples/own_loss.py [STEPS]
"""

import math
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from gymnasium.spaces import Box, Discrete

import motet
from motet.algorithms.loss import Categorical, Learned, Loss, LossConfig, Net
from motet.testing import check_algorithm


@dataclass(frozen=True)
class DiscreteSAC(LossConfig):
    learning_rate: float = 1e-3
    target_every: int = 1
    target_rate: float = 0.005
    wanted_entropy: float = 0.3  # as a share of the highest one

    def networks(self, observations, actions):
        critic = Net("mlp", observations, outputs=actions.n)
        return {
            "policy": Net("mlp", observations, outputs=actions.n, learning_rate=3e-4, target=False),
            "q1": critic,
            "q2": critic,
            "log_alpha": Learned(0.0, max_grad_norm=math.inf),
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


if __name__ == "__main__":
    check_algorithm(DiscreteSAC(batch_size=8, min_rows=8), Box(-1, 1, (4,)), Discrete(2))
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    result = motet.train("gym:CartPole-v1", DiscreteSAC(), motet.Settings(steps=steps))
    print(f"{result.state} after {result.steps:,} steps and {sum(result.updates.values()):,} updates")
