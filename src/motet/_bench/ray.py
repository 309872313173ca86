"""``motet bench ray``: rows through a remote writer, a run on Ray beside one in processes, and RLlib on the same job.

Ray starts on this machine with two nodes, and is gone afterwards. RLlib runs in an interpreter of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from motet._bench import Amount, Comparison, Measure, Result, Settings, interleave
from motet._bench._spread import BATCH, EPOCHS, HIDDEN, MINIBATCH, ROLLOUT, spread
from motet._cluster_handles import Place
from motet._cluster_places import LearnerPlace, Link
from motet._cluster_run import grouped
from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.cluster import Cluster, Luggage
from motet.supervisor import Limits
from motet.train import Settings as RunSettings
from motet.train import _roster, train

__all__ = ["run"]

LANES = 8
DQN = DQNConfig(hidden=HIDDEN, batch_size=BATCH, capacity=50_000)

MEASURES = {
    "rows": Measure("Rows of 18 floats from a remote writer into a learner's replay on another node", "rows/s"),
    "dqn": Measure("Env steps, DQN, simple_spread, three agents, an update for each agent and step", "steps/s"),
    "ppo": Measure("Env steps, PPO, the same world, equal batch, epochs and minibatch", "steps/s"),
}
COMPARISONS = {
    "ray_vs_processes": Comparison("dqn", "motet, ray", "motet, processes", 0.6),
    "vs_rllib_ppo": Comparison("ppo", "motet, processes", "RLlib", 3),
    "vs_rllib_dqn": Comparison("dqn", "motet, processes", "RLlib", 5),
}
AMOUNTS = {"rows_per_s": Amount("rows", "motet")}


def run(settings: Settings) -> Result:
    """Measure everything."""
    result = Result("ray", MEASURES, COMPARISONS, amounts=AMOUNTS)
    missing = [name for name in ("ray", "mpe2") if importlib.util.find_spec(name) is None]
    if missing:
        result.skipped["motet, ray"] = f"not installed: {', '.join(missing)} (pip install 'motet[ray,bench]')"
        return result
    seconds = 1.0 if settings.quick else 20 * settings.seconds
    repeats = 1 if settings.quick else min(settings.repeats, 3)
    with _TwoNodes() as ray:
        interleave(result, "rows", {"motet": lambda: _rows_per_s(ray, seconds / 4)}, repeats, warm=False)
        jobs = {f"motet, {engine}": partial(_motet, DQN, engine, seconds) for engine in ("ray", "processes")}
        interleave(result, "dqn", jobs, repeats, warm=False)
    ppo = PPOConfig(
        hidden=HIDDEN, batch_size=ROLLOUT // 128, length=128, epochs=EPOCHS, minibatches=ROLLOUT // MINIBATCH
    )
    interleave(result, "ppo", {"motet, processes": lambda: _motet(ppo, "processes", seconds)}, repeats, warm=False)
    if importlib.util.find_spec("tree") is None:  # dm-tree comes with the extra alone, the module ray.rllib always
        result.skipped["RLlib"] = (
            "not installed: pip install 'ray[rllib]' (it may need an older gymnasium: use an environment of its own)"
        )
        return result
    for kind in ("ppo", "dqn"):
        interleave(result, kind, {"RLlib": partial(_rllib, kind, seconds)}, repeats, warm=False)
    return result


class _TwoNodes:
    """Ray with two nodes on this machine."""

    def __enter__(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray, tools = (importlib.import_module(name) for name in ("ray", "ray.cluster_utils"))
        size = {"num_cpus": 2, "object_store_memory": 200 * 2**20}
        self._cluster = tools.Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        self._cluster.add_node(**size)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self._ray = ray
        return ray

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


def _motet(algorithm: Any, engine: Any, seconds: float) -> float:
    """Env steps per second, from when steps come to the end."""
    seen: list[tuple[float, int]] = []
    paced = {} if isinstance(algorithm, PPOConfig) else {"updates_per_step": 1.0}
    chosen = RunSettings(steps=10**9, seconds=seconds + 4, engine=engine, **paced)  # type: ignore[arg-type]
    train(spread, algorithm, chosen, watch=lambda now: seen.append((now.seconds, now.steps)))
    at_work = [(at, steps) for at, steps in seen if steps > 2 * BATCH]
    (began, first), (ended, last) = at_work[0], at_work[-1]
    return (last - first) / (ended - began)


class Sender:
    """An actor without a world: writes rows as fast as its outbox takes them."""

    def __init__(self, luggage: Luggage, learner: Any) -> None:
        roster = luggage.value
        self._lanes = roster.lanes_of(0)
        self._place = Place(roster, lanes=self._lanes)
        self._link = Link(self._place, 0, 0, [], 0, learner, Limits(), Cluster().block_age_s)

    def play(self, seconds: float) -> float:
        """Rows per second that have arrived."""
        replays: Any = self._place.replays
        lanes = np.arange(LANES)
        row = np.ones((LANES, 18), np.float32), np.zeros(LANES, np.int64), np.ones(LANES, np.float32)
        self._link.join()
        writers = [replay.writers(self._lanes) for replay in replays]
        self._link.start()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(50):
                for one in writers:
                    one.append(lanes, *row, version=1)
        self._link.drain(time.monotonic() + 60)
        return float(sum(sum(replay.carried) for replay in replays) / (time.perf_counter() - began))


def _rows_per_s(ray: Any, seconds: float) -> float:
    roster = _roster(spread, DQN, RunSettings(worlds_per_actor=LANES, learner_processes=1))
    groups = {"play": 1, "rows": 2, "look": 1}
    learner = ray.remote(concurrency_groups=groups)(grouped(ray, LearnerPlace))
    place = learner.options(scheduling_strategy="SPREAD").remote(Luggage((roster, None)), 0)
    sender = ray.remote(Sender).options(scheduling_strategy="SPREAD").remote(Luggage(roster), place)
    rate = float(ray.get(sender.play.remote(seconds)))
    for one in (sender, place):
        ray.kill(one)
    return rate


def _rllib(kind: str, seconds: float) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "motet._bench._rllib", kind, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["steps_per_s"])
