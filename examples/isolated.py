"""Two policies run in separate processes and are asked in parallel. One of them fails, and a new process replaces it.

Run: python examples/isolated.py
"""

import time

import numpy as np
from gymnasium.spaces import Box, Discrete

from motet.errors import PolicyFailure
from motet.isolation import IsolatedPolicy, PolicyLimits
from motet.policy import PolicySpec

SEEN, ACTIONS = Box(0, 1, (4,)), Discrete(3)


class Steady:
    def reset(self, seed):
        self.total = seed

    def act(self, observation):
        self.total += int(observation.sum())
        return self.total % 3


class Dozes(Steady):  # hangs at its fifth decision
    def reset(self, seed):
        super().reset(seed)
        self.left = 4

    def act(self, observation):
        self.left -= 1
        if self.left < 0:
            print("just a moment ...")
            time.sleep(3600)
        return super().act(observation)


def main() -> None:
    limits = PolicyLimits(decision_s=0.5)
    policies = [IsolatedPolicy(PolicySpec(kind), SEEN, ACTIONS, limits=limits) for kind in (Steady, Dozes)]
    for policy in policies:
        policy.reset(seed=1)
    played = 0
    for turn in range(10):
        for policy in policies:  # ask all policies first, so that they compute in parallel
            policy.ask(np.full(4, turn % 2, np.float32))
        for policy in policies:
            try:
                policy.answer()
                played += 1
            except PolicyFailure as failure:
                print(f"turn {turn}: {failure}; output: {policy.output.strip()!r}")
                policy.replace()
                policy.reset(seed=turn)
    for policy in policies:
        policy.close()
    print(f"{played} of 20 decisions were made")


if __name__ == "__main__":
    main()
