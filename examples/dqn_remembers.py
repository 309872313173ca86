"""Train DQN with a memory to remember a cue that is shown once and asked for ten steps later.

python examples/dqn_remembers.py [STEPS]
"""

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gymnasium
import numpy as np

from motet import Settings, load_policies, train
from motet.algorithms import DQNConfig
from motet.schedule import Linear


class Cue(gymnasium.Env[Any, Any]):
    """The first observation shows one of two cues; the last one asks for it."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.turn = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        asked, self.turn = self.turn == 10, self.turn + 1
        return np.array([0, self.turn == 10], np.float32), float(asked and action == self.cue), asked, False, {}


def main(steps: int) -> None:
    config = DQNConfig(
        memory="gru", memory_size=16, hidden=(32,), sequence_length=12, burn_in=4, batch_size=16, learning_rate=2e-3,
        target_every=100, min_rows=500, epsilon=Linear(1.0, 0.05, max(1, steps // 2)),
    )  # fmt: skip
    run = Path(mkdtemp(prefix="motet-")) / "run"
    result = train(Cue, config, Settings(steps=steps, updates_per_step=0.1), run=run, on_message=print)
    print(f"{result.state} after {result.steps:,} steps in {result.seconds:.0f} s")

    world, (policy,) = Cue(), load_policies(run, world=Cue).values()
    right = 0.0
    for episode in range(100):
        policy.reset(episode)  # the memory is empty
        (seen, _), over = world.reset(seed=episode), False
        while not over:
            seen, reward, over, _, _ = world.step(policy.act(seen))
            right += reward
    print(f"{right:.0f} of 100 cues remembered (50 without a memory)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
