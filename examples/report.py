"""Compare two learning rates with three seeds each on one self-contained page.

python examples/report.py [STEPS]
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from motet import Settings, report, train
from motet.algorithms import DQNConfig
from motet.schedule import Linear
from motet.worlds import TreasureHunt


def main(steps: int) -> None:
    folder = Path(mkdtemp(prefix="motet-"))
    runs = []
    for rate in (1e-3, 1e-4):
        for seed in range(3):
            run = folder / f"rate{rate:g}-seed{seed}"
            train(
                partial(TreasureHunt, agents=2, size=9),
                DQNConfig(learning_rate=rate, hidden=(32,), epsilon=Linear(1.0, 0.05, steps=max(1, steps // 2))),
                Settings(steps=steps, seed=seed, engine="serial", updates_per_step=0.1),
                run=run,
            )
            runs.append(run)
            print(f"{run.name} is done", flush=True)
    made = report(runs, folder / "report.html")
    print(f"{len(made.groups)} groups: {', '.join(made.groups)}")
    print(f"open {made.path}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
