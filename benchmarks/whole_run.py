"""Whole runs in a separate interpreter: ``python -m benchmarks.whole_run hunt|soak RUN SEED``.

The run uses only the public :func:`motet.train`; the bench watches its directory and its processes from outside. It
ends when the bench ends: by SIGINT, like Ctrl-C, or because the pipe from which it reads is closed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from motet.algorithms.dqn import DQNConfig
from motet.errors import MotetError
from motet.schedule import Linear
from motet.training.evaluator import play_greedily
from motet.training.run import train
from motet.training.settings import Settings as RunSettings
from motet.world import as_world
from motet.world.batch import make_world_batch
from motet.worlds import TreasureHunt

__all__ = ["Crossing", "begun", "confirm", "hunt_settings", "private_bytes", "wait_for_crossing"]

WORLD = functools.partial(TreasureHunt, agents=2)
MOST_S = 180.0
"""Seconds after which a run that has not reached the return has failed."""


def hunt_settings(seed: int = 0) -> tuple[DQNConfig, RunSettings]:
    """Return the settings of the treasure hunt for ``seconds_to_350``."""
    config = DQNConfig(
        hidden=(128, 128),
        gamma=0.8,  # an agent sees two tiles far
        n_frames=4,  # without memory, greedy agents walk back and forth
        target_every=100,
        learning_rate=Linear(1e-3, 1e-4, 25_000),
        epsilon=Linear(1.0, 0.05, 5_000),
    )
    settings = RunSettings(
        steps=10**7, seed=seed, seconds=MOST_S, worlds_per_actor=4, updates_per_step=0.25,
        evaluate_every=1000, evaluate_episodes=20,
    )  # fmt: skip
    return config, settings


def soak_settings(seed: int = 0) -> tuple[DQNConfig, RunSettings]:
    """Return the settings of a complete run with a replay buffer that is full soon, so that memory then stops
    growing."""
    settings = RunSettings(steps=10**9, seed=seed, learner_processes=2, evaluate_every=2_000, checkpoint_every=100_000)
    return DQNConfig(capacity=5_000), settings


PLANS = {"hunt": hunt_settings, "soak": soak_settings}


def main(plan: str, run: str, seed: str) -> None:
    """Run the training."""
    threading.Thread(target=_end_with_pipe, daemon=True).start()
    config, settings = PLANS[plan](int(seed))
    train(WORLD, config, settings, run=run)


def _end_with_pipe() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


@contextlib.contextmanager
def begun(plan: str, run: Path, seed: int) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Start a run in a separate interpreter; yields its process and start time. The run ends with the context."""
    log = run.with_suffix(".log")
    with log.open("wb") as output:
        at = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, plan, str(run), str(seed)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        yield process, at
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.wait(10)
        if process.stdin is not None:
            process.stdin.close()


def check_alive(process: subprocess.Popen[bytes], run: Path) -> None:
    """Raise an error with the end of its output if the run has ended by itself."""
    if process.poll() is not None:
        text = run.with_suffix(".log").read_text(errors="replace")[-2000:]
        raise MotetError(f"a run of the bench ended by itself, with exit code {process.returncode}:\n{text}")


# ---- evaluation of its policies


class Crossing:
    """Finds policies whose evaluation reached the target return."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        from motet.runs.plain import decode

        kept = json.loads((folder / "checkpoint.json").read_text())
        self.step, notes = int(kept["step"]), decode(kept["notes"])
        self.team, self.agents = float(notes["team"]), list(kept["agents"])
        self.weights = [load_file(folder / f"{name}.safetensors")["weights"] for name in self.agents]


def wait_for_crossing(
    process: subprocess.Popen[bytes], run: Path, wanted: float, after: int, deadline: float
) -> Crossing | None:
    """Return the next best policies with at least that return, later than step ``after``; None after the deadline."""
    while time.monotonic() < deadline:
        check_alive(process, run)
        # The folder or its files may be missing for a moment, while a better policy replaces them.
        with contextlib.suppress(FileNotFoundError):
            found = Crossing(run / "best")
            if found.step > after and found.team >= wanted:
                return found
        time.sleep(0.02)
    return None


def confirm(crossing: Crossing, config: DQNConfig, episodes: int, seed: int) -> float:
    """Return the team's mean return over new episodes."""
    world, behaviours = as_world(WORLD()), []
    for weights, observation, action in zip(
        crossing.weights, world.observation_spaces, world.action_spaces, strict=True
    ):
        behaviour = config.behaviour(observation, action)
        behaviour.begin(seed)
        behaviour.load(weights, {"epsilon": 0.0})
        behaviours.append(behaviour)
    fresh = np.random.SeedSequence([seed, 350]).generate_state(episodes).tolist()
    frames = [config.n_frames] * len(behaviours)
    crowd = make_world_batch(WORLD, episodes, [False] * len(behaviours))
    return float(play_greedily(crowd, behaviours, fresh, frames).sum(1).mean())


# ---- memory


def private_bytes(pid: int) -> dict[int, int]:
    """Return the private memory (RssAnon) of a process and all its descendants, by pid. Only on Linux."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    found = {}
    for member in family:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    found[member] = int(line.split()[1]) * 1024
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
