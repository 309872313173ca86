"""Play a policy that `motet export RUN --torch FILE` wrote, without motet: play_exported.py FILE [WORLD]."""

import sys
from functools import reduce
from operator import getitem

import gymnasium
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, file, own=None):  # own: the network, if the policy has one that is not made of torch's layers
        super().__init__()
        saved = torch.load(file, weights_only=True)
        self.about = saved["about"]
        self.layers = nn.ModuleList(own if n == "own" else getattr(nn, n)(*given) for n, *given in self.about["layers"])
        self.mean, self.scale = (nn.Buffer(saved["state_dict"][name]) for name in ("mean", "scale"))
        self.load_state_dict(saved["state_dict"])

    @torch.no_grad()
    def forward(self, observation, state, mask=None):
        x = torch.cat([self.numbers(observation, **leaf) for leaf in self.about["observation"]], 1)
        x = ((x - self.mean) * self.scale).clamp(-self.about["clip"], self.about["clip"])
        for layer in self.layers:
            if isinstance(layer, nn.LSTMCell):
                state = torch.cat(layer(x, state.chunk(2, 1)), 1)
            elif isinstance(layer, nn.GRUCell):
                state = layer(x, state)
            x = state[:, : layer.hidden_size] if isinstance(layer, nn.RNNCellBase) else layer(x)
        return self.decide(x, mask, **self.about["action"]), state

    def numbers(self, observation, path, classes, start, **_):
        array = reduce(getitem, path, observation)  # a part of a dict or tuple
        array = array[..., None] == torch.arange(start, start + classes) if classes else array
        return array.reshape(len(array), -1).float()

    def decide(self, x, mask, shape, outputs, counts=(), start=(), squash=False, half=1, middle=0, low=None, high=None):
        x = x[:, slice(*outputs)]
        if counts:  # scores of one or several choices
            x = x if mask is None else x.masked_fill(~mask, -torch.inf)
            best = [scores.argmax(1) for scores in x.split(counts, 1)]
            return (torch.stack(best, 1) + torch.tensor(start)).reshape(-1, *shape)
        x = (x.tanh() if squash else x) * torch.tensor(half) + torch.tensor(middle)
        return x.clamp(torch.tensor(low), torch.tensor(high)).reshape(-1, *shape)


def main(file, name="CartPole-v1"):
    policy, world = Policy(file), gymnasium.make(name)
    for episode in range(5):
        seen, state, total, over = world.reset(seed=episode)[0], torch.zeros(1, policy.about["state_size"]), 0, False
        while not over:
            action, state = policy(torch.as_tensor(seen)[None], state)
            seen, reward, terminated, truncated, _ = world.step(action[0].numpy())
            total, over = total + reward, terminated or truncated
        print(f"episode {episode}: return {total:.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
