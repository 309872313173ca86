"""Use a replay buffer on its own: an actor fills it in one process, a learner samples in another.

If you kill the actor while it runs (its process id is printed), the learner continues with the rows written so far.
"""

import multiprocessing
import os
import sys

import numpy as np

from motet.replay import Field, Replay, ReplaySpec


def act(replay: Replay, steps: int) -> None:
    """Write random walks on a line from -5 to 5; an episode ends at either end of the line."""
    writer, rng = replay.writer(), np.random.default_rng(0)
    position, there = 0, np.array([0, 0], np.float32)
    for t in range(steps):
        here = np.array([position, t % 100], np.float32)
        action = int(rng.integers(2))
        position += 2 * action - 1
        there[:] = position, (t + 1) % 100
        if abs(position) == 5:
            writer.append(here, action, float(position == 5), terminated=True, final_observation=there)
            position = 0
        else:
            writer.append(here, action, 0.0)


def main() -> None:
    """Run the learner, which estimates the share of walks that end on the right by TD learning."""
    spec = ReplaySpec(observation=Field((2,)), action=Field((), "int64"), capacity=10_000)
    replay = Replay(spec)
    context = multiprocessing.get_context("spawn")
    actor = context.Process(target=act, args=(replay, 200_000))
    actor.start()
    print(f"learner {os.getpid()}, actor {actor.pid}")

    reader = replay.reader(n_step=3, gamma=1.0, seed=0)
    reader.wait(1000, timeout_s=60)
    value = np.zeros(11)
    for update in range(4001):
        batch = reader.sample(64)
        start = batch.observation[:, 0].astype(int) + 5
        end = batch.next_observation[:, 0].astype(int) + 5
        target = batch.reward + batch.discount * value[end]
        np.add.at(value, start, 0.01 * (target - value[start]))
        if update % 1000 == 0:
            print(f"update {update:4d}  rows written {replay.appended:6d}  {np.round(value[1:-1], 2)}")
    actor.join()
    counters = reader.counters()
    print(f"exactly:                             {np.arange(1, 10) / 10}")
    print(f"{counters.appended} rows, {counters.sampled} transitions sampled, {counters.redrawn} drawn again")


if __name__ == "__main__":
    sys.exit(main())
