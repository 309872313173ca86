"""Train one agent beside a scripted partner, then train the other agent beside the first one, which acts but no longer
learns.

python examples/partners.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

from motet import Partner, Settings, train
from motet.algorithms import DQNConfig
from motet.schedule import Linear


class Copycat:
    """Plays what the other player played last, and cooperates first. Any object with reset and act is a policy."""

    def reset(self, seed: int) -> None:
        pass

    def act(self, observation) -> int:
        return int(observation[3])  # whether the other player defected in the last turn


def main(steps: int) -> None:
    config = DQNConfig(hidden=(32,), min_rows=200, epsilon=Linear(1.0, 0.02, steps // 2))
    settings = Settings(steps=steps, engine="serial", updates_per_step=0.25)
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        result = train("matrix", {"player_0": config, "player_1": Partner(Copycat())}, settings, run=first)
        print(f"{result.state} after {result.steps:,} steps beside {Copycat.__name__}: {returns(result.returns)}")

        result = train("matrix", {"player_0": str(first), "player_1": config}, settings, run=Path(folder) / "second")
        print(f"{result.state} after {result.steps:,} steps beside the first run: {returns(result.returns)}")


def returns(by_agent: dict[str, float | None]) -> str:
    return ", ".join(f"{agent} {value:.0f}" for agent, value in sorted(by_agent.items()) if value is not None)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
