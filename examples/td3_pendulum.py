"""Train TD3 on Pendulum with a warm-up, decreasing noise and normalised observations; then play the policy.

python examples/td3_pendulum.py [STEPS]
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import gymnasium
import numpy as np

from motet import Settings, load_policies, train
from motet.algorithms import TD3Config
from motet.runs import Snapshot
from motet.schedule import Linear, Staged, Stages

WORLD = partial(gymnasium.make, "Pendulum-v1")


def show(now: Snapshot) -> None:
    agent = now.agents[0]
    returns = "" if agent.mean_return is None else f"return {agent.mean_return:.0f}"
    print(f"{now.steps:>7,} steps   {agent.stage:<8} {agent.updates:>7,} updates   {returns}", flush=True)


def main(steps: int) -> None:
    ramp = max(1, steps // 2)
    config = TD3Config(
        learning_rate=1e-3,
        gamma=0.98,
        normalise=True,
        stages=Stages({"warm_up": 1000, "ramp": ramp, "full": None}),
        noise=Staged({"warm_up": 0.5, "ramp": Linear(0.5, 0.1, steps=ramp), "full": 0.1}),
    )
    run = Path(mkdtemp(prefix="motet-")) / "run"
    settings = Settings(steps=steps, updates_per_step=1.0, max_lag_versions=10)
    result = train(WORLD, config, settings, run=run, on_update=show, on_message=print)
    print(f"{result.state} after {result.steps:,} steps in {result.seconds:.0f} s")

    world, (policy,) = WORLD(), load_policies(run, world=WORLD).values()
    totals = []
    for episode in range(10):
        policy.reset(episode)
        (seen, _), over, total = world.reset(seed=episode), False, 0.0
        while not over:
            seen, reward, terminated, truncated, _ = world.step(policy.act(seen))
            over, total = terminated or truncated, total + float(reward)
        totals.append(total)
    print(f"without exploration: {np.mean(totals):.0f} over {len(totals)} episodes (-150 is good, -1200 is random)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
