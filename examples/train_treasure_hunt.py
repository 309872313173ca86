"""Train two agents in the treasure hunt, one with DQN and one with IQN, each with a separate learner; then play.

python examples/train_treasure_hunt.py [STEPS]
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from motet import Settings, load_policies, train
from motet.algorithms import DQNConfig, IQNConfig
from motet.runs import Snapshot
from motet.schedule import Linear
from motet.worlds import TreasureHunt


def show(now: Snapshot) -> None:
    returns = ", ".join(f"{row.name} {row.mean_return:.1f}" for row in now.agents if row.mean_return is not None)
    print(f"{now.steps:>8,} steps   {returns}", flush=True)


def main(steps: int) -> None:
    run = Path(mkdtemp(prefix="motet-")) / "run"
    epsilon = Linear(1.0, 0.05, steps=max(1, steps // 2))
    result = train(
        partial(TreasureHunt, agents=2),
        {"agent_0": DQNConfig(epsilon=epsilon), "agent_1": IQNConfig(epsilon=epsilon)},
        Settings(steps=steps),
        run=run,
        on_update=show,
        on_message=print,
    )
    print(f"{result.state} after {result.steps:,} steps in {result.seconds:.0f} s: {result.returns}")

    world = TreasureHunt(agents=2)
    policies = load_policies(run)
    totals = dict.fromkeys(policies, 0.0)
    world.reset(seed=1)
    for policy in policies.values():
        policy.reset(seed=1)
    for agent in world.agent_iter():
        observation, reward, terminated, truncated, _ = world.last()
        totals[agent] += reward
        world.step(None if terminated or truncated else policies[agent].act(observation))
    print(f"without exploration: {totals}")
    print(f"resume: motet resume {run} --steps {steps}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30_000)
