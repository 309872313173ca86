"""Train PPO on CartPole: eight worlds collect the next batch while the learner uses the last one; then play the policy.

python examples/ppo_cartpole.py [STEPS]
"""

import sys
from pathlib import Path
from tempfile import mkdtemp

import gymnasium
import numpy as np

from motet import Settings, load_policies, train
from motet.algorithms import PPOConfig
from motet.runs import Snapshot
from motet.schedule import Linear


def show(now: Snapshot) -> None:
    agent = now.agents[0]
    returns = "" if agent.mean_return is None else f"return {agent.mean_return:.0f}"
    print(f"{now.steps:>7,} steps   {agent.updates:>5,} updates   {returns}", flush=True)


def main(steps: int) -> None:
    config = PPOConfig(
        batch_size=8,
        length=32,
        epochs=20,
        minibatches=1,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=Linear(1e-3, 0.0, steps),
        clip=Linear(0.2, 0.0, steps),
    )
    run = Path(mkdtemp(prefix="motet-")) / "run"
    settings = Settings(steps=steps, worlds_per_actor=8)
    result = train("gym:CartPole-v1", config, settings, run=run, on_update=show, on_message=print)
    print(f"{result.state} after {result.steps:,} steps in {result.seconds:.0f} s")

    world, (policy,) = gymnasium.make("CartPole-v1"), load_policies(run).values()
    totals = []
    for episode in range(10):
        policy.reset(episode)
        (seen, _), over, total = world.reset(seed=episode), False, 0.0
        while not over:
            seen, reward, terminated, truncated, _ = world.step(policy.act(seen))
            over, total = terminated or truncated, total + float(reward)
        totals.append(total)
    print(f"the likeliest actions: {np.mean(totals):.0f} over {len(totals)} episodes (500 is the most, 20 is random)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000)
