"""Evaluate a custom policy against built-in ones, each in a separate process. The result is the same for any --jobs.

python examples/evaluate.py [EPISODES]
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import motet
from motet.worlds import TreasureHunt

GEM = 2  # index of the gem plane in an observation


class GemLover:
    """Walks towards the first gem in its view, and at random if there is none."""

    def __init__(self, action_space):
        self.actions = int(action_space.n)

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)

    def act(self, observation, mask=None):
        middle = observation.shape[1] // 2
        for down, right in np.argwhere(observation[GEM]) - middle:
            if down:
                return 0 if down < 0 else 1
            if right:
                return 2 if right < 0 else 3
        return int(self.rng.integers(self.actions))


def main(episodes: int) -> None:
    world = partial(TreasureHunt, agents=3, size=11, turns=50)
    policies = [GemLover, "forager", "random"]
    result = motet.evaluate(world, policies, episodes=episodes, seed=1, isolate=True, jobs=2, film=(0,))
    for name, score in result.scores().items():
        print(f"{name:10} {score.mean:7.1f}  95 % between {score.low:.1f} and {score.high:.1f}")
    again = motet.evaluate(world, policies, episodes=episodes, seed=1)
    page = Path(mkdtemp(prefix="motet-")) / "report.html"
    page.write_text(result.html())
    print(f"written to {page}")
    print(f"same bytes in one job without isolation: {again.deterministic() == result.deterministic()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
