"""``motet bench ray``: rows through a remote writer, Ray compared with processes, and motet compared with RLlib.

Ray starts on this machine with two nodes, and is stopped before the comparison with RLlib. RLlib runs in a separate
interpreter (``rllib.py``), in the configuration that is its fastest here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import Amount, Comparison, Measure, Result, Settings, interleave, interleave_pairs
from benchmarks.spread import DQN, OPTIMISER_STEPS, Kind, job, ppo, spread
from motet.cluster.connect import Shipment
from motet.cluster.driver import grouped
from motet.cluster.hosts import LearnerHost
from motet.cluster.link import Link
from motet.cluster.shared import LocalMemory
from motet.errors import MotetError, SettingError, WaitTimeoutError
from motet.placement import Cluster
from motet.runs.snapshot import Snapshot
from motet.system.supervisor import RestartLimits
from motet.training.roster import make_roster
from motet.training.run import train
from motet.training.settings import Settings as RunSettings

__all__ = ["run"]

LANES = 8
START_S = 60.0
"""Seconds that a run may take until its first update."""
RLLIB = "RLlib"
LEARNED = "Optimiser steps of an agent in 1,000 env steps of these runs"

MEASURES = {
    "rows": Measure("Rows of 18 floats from a remote writer to a learner's replay buffer on another node", "rows/s"),
    "engines": Measure("Env steps, DQN, simple_spread, three agents: engine ray and processes", "steps/s"),
    "ppo": Measure("Env steps, PPO, simple_spread, three agents, equal batch, epochs and minibatch", "steps/s"),
    "ppo_updates": Measure(LEARNED, "updates", compared=False),
    "dqn": Measure("Env steps, DQN, simple_spread, an update of 64 rows for each agent and step", "steps/s"),
    "dqn_updates": Measure(LEARNED, "updates", compared=False),
}
COMPARISONS = {
    "ray_vs_processes": Comparison("engines", "motet, ray", "motet, processes", 0.6),
    "vs_rllib_ppo": Comparison("ppo", "motet", RLLIB, 3),
    "vs_rllib_dqn": Comparison("dqn", "motet", RLLIB, 5),
}
AMOUNTS = {"rows_per_s": Amount("rows", "motet")}


def run(settings: Settings) -> Result:
    """Measure everything."""
    result = Result("ray", MEASURES, COMPARISONS, amounts=AMOUNTS)
    missing = [name for name in ("ray", "mpe2") if importlib.util.find_spec(name) is None]
    if missing:
        result.skipped["motet, ray"] = f"not installed: {', '.join(missing)} (pip install 'motet[ray,bench]')"
        return result
    peer = _Peer(settings.rllib_python or sys.executable)
    seconds = 1.0 if settings.quick else 20 * settings.seconds
    repeats = 1 if settings.quick else min(settings.repeats, 3)
    with _TwoNodes() as ray:
        interleave(result, "rows", {"motet": lambda: _rows_per_s(ray, seconds / 4)}, repeats, warm=False)
        # Both engines use one learner process: the two Ray nodes declare more processors than the machine may have.
        job_on = partial(RunSettings, updates_per_step=1.0, learner_processes=1)
        engines = {
            f"motet, {engine}": partial(_steps_per_s, job_on(engine=engine), seconds) for engine in ("ray", "processes")
        }
        interleave(result, "engines", engines, repeats, warm=False)
    setups = {side: ways[-1:] for side, ways in SETUPS.items()} if settings.quick else SETUPS
    _against_rllib(result, peer, setups, seconds, repeats)
    return result


# ---- Ray


class _TwoNodes:
    """Ray with two nodes on this machine."""

    def __enter__(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray, tools = (importlib.import_module(name) for name in ("ray", "ray.cluster_utils"))
        size = {"num_cpus": 2, "object_store_memory": 200 * 2**20}
        self._cluster = tools.Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        self._cluster.add_node(**size)
        # Workers search the folder in which the driver connects first, even before PYTHONPATH.
        with contextlib.chdir(Path(__file__).parents[1]):
            ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self._ray = ray
        return ray

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


# ---- runs


def _seen(algorithm: Any, settings: RunSettings, seconds: float) -> dict[str, float]:
    """Train, interrupt the run after this many seconds of learning, and return its rates during these seconds."""
    looks: list[Snapshot] = []

    def watch(look: Snapshot) -> None:
        if look.state != "running" or not all(agent.updates for agent in look.agents):
            return
        looks.append(look)
        if look.seconds - looks[0].seconds >= seconds:
            signal.raise_signal(signal.SIGINT)

    limit_s = seconds + START_S
    ended = train(spread, algorithm, replace(settings, steps=10**9, seconds=limit_s), on_update=watch)
    if not looks or looks[-1].seconds - looks[0].seconds < seconds:
        if ended.interrupted:
            raise KeyboardInterrupt
        raise WaitTimeoutError(f"the bench waited {limit_s:g} s for a run to learn for {seconds:g} s")
    first, last = looks[0], looks[-1]
    steps = last.steps - first.steps
    updates = sum(b.updates - a.updates for a, b in zip(first.agents, last.agents, strict=True)) / len(first.agents)
    return {"steps_per_s": steps / (last.seconds - first.seconds), "updates_per_agent_and_step": updates / steps}


def _steps_per_s(settings: RunSettings, seconds: float) -> float:
    return _seen(DQN, settings, seconds)["steps_per_s"]


# ---- rows


class Sender:
    """An actor without a world that writes rows as fast as its outbox accepts them."""

    def __init__(self, shipment: Shipment, learner: Any) -> None:
        roster = shipment.value
        self._lanes = roster.lanes_of(0, 0)
        self._place = LocalMemory(roster, actor=0)
        self._link = Link(self._place, 0, 0, [], 0, learner, RestartLimits(), Cluster().age_s(1))

    def play(self, seconds: float) -> float:
        """Return the number of rows per second that arrived."""
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
    roster = make_roster(spread, DQN, RunSettings(worlds_per_actor=LANES, learner_processes=1))
    groups = {"play": 1, "rows": 2, "report": 1}
    learner = ray.remote(concurrency_groups=groups)(grouped(ray, LearnerHost))
    place = learner.options(scheduling_strategy="SPREAD").remote(Shipment((roster, None)), 0)
    sender = ray.remote(Sender).options(scheduling_strategy="SPREAD").remote(Shipment(roster), place)
    rate = float(ray.get(sender.play.remote(seconds), timeout=seconds + 120))
    for one in (sender, place):
        ray.kill(one)
    return rate


# ---- against RLlib


class Setup(NamedTuple):
    """Number of processes that step worlds, and number of worlds in each of them."""

    processes: int
    worlds: int

    def __str__(self) -> str:
        if self.processes == 0:
            return f"worlds in the learner's process: {self.worlds}"
        return f"processes with worlds: {self.processes}, worlds in each: {self.worlds}"


Ask = Callable[[Kind, Setup, float], dict[str, float]]
"""Train an algorithm with a setup for a number of seconds, and return its rates."""
SETUPS: Mapping[str, Sequence[Setup]] = {
    "motet": (Setup(1, 1), Setup(1, 8), Setup(2, 16)),
    RLLIB: (Setup(0, 1), Setup(0, 8), Setup(0, 32), Setup(1, 32), Setup(2, 16)),
}
"""Setups of each side. All of them are tried first, then the fastest one is measured."""


def _against_rllib(
    result: Result, peer: _Peer, setups: Mapping[str, Sequence[Setup]], seconds: float, repeats: int
) -> None:
    sides: dict[str, Ask] = {"motet": _motet}
    if absent := peer.absent():
        result.skipped[RLLIB] = absent
    else:
        result.facts["rllib_versions"] = peer.versions
        result.notes.append(f"RLlib of {', '.join(f'{name} {version}' for name, version in peer.versions.items())}")
        sides[RLLIB] = peer.train
    kinds: tuple[Kind, ...] = ("ppo", "dqn")
    for kind in kinds:
        asks = {}
        for side, ask in sides.items():
            tried = {setup: ask(kind, setup, seconds / 2) for setup in setups[side]}
            rates = {setup: found["steps_per_s"] for setup, found in tried.items()}
            best = max(rates, key=rates.__getitem__)
            result.facts[f"{kind}_{side}"] = {
                "chosen": str(best),
                "tried": {str(setup): found for setup, found in tried.items()},
            }
            result.notes.append(f"{kind.upper()}, {side}, the fastest of {len(rates)}: {best}")
            asks[side] = partial(_rates, ask, kind, best, seconds)
        interleave_pairs(result, (kind, f"{kind}_updates"), asks, repeats, warm=False)


def _rates(ask: Ask, kind: Kind, setup: Setup, seconds: float) -> tuple[float, float]:
    """Return env steps per second, and optimiser steps of an agent in 1,000 env steps."""
    found = ask(kind, setup, seconds)
    return found["steps_per_s"], 1000 * found["updates_per_agent_and_step"]


def _motet(kind: Kind, setup: Setup, seconds: float) -> dict[str, float]:
    """Return the rates of motet; an update of PPO consists of many optimiser steps."""
    chosen = RunSettings(actors=setup.processes, worlds_per_actor=setup.worlds)
    if kind == "ppo":
        found = _seen(ppo(setup.processes * setup.worlds), chosen, seconds)
        return {**found, "updates_per_agent_and_step": found["updates_per_agent_and_step"] * OPTIMISER_STEPS}
    return _seen(DQN, replace(chosen, updates_per_step=1.0), seconds)


class _Peer:
    """RLlib in another interpreter.

    Args:
        python: the interpreter.
    """

    def __init__(self, python: str | os.PathLike[str]) -> None:
        # -P: the folder of the program contains a module called ray, which must not be imported.
        self._command = [str(python), "-W", "ignore", "-P", str(Path(__file__).with_name("rllib.py"))]
        try:
            self.versions = self._ask([], timeout_s=60)
        except OSError as error:
            raise SettingError(f"rllib_python must be a Python interpreter, got {str(python)!r}: {error}") from error

    def absent(self) -> str:
        """Return why RLlib cannot run; empty if it can."""
        missing = [name for name, version in self.versions.items() if version is None]
        if not missing:
            return ""
        return (
            f"not installed for {self._command[0]}: {', '.join(missing)}. RLlib pins another version of gymnasium, "
            "so install it in a separate environment (python -m venv PATH; PATH/bin/pip install 'ray[rllib]' torch "
            "mpe2) and pass --rllib-python PATH/bin/python"
        )

    def train(self, kind: Kind, setup: Setup, seconds: float) -> dict[str, float]:
        """Return the rates of RLlib, as ``rllib.py`` counts them."""
        given = {**job(kind), "runners": setup.processes, "envs": setup.worlds, "seconds": seconds}
        return self._ask([json.dumps(given)], timeout_s=seconds + 300)

    def _ask(self, arguments: list[str], timeout_s: float) -> dict[str, Any]:
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise WaitTimeoutError(f"the bench waited {timeout_s:g} s for RLlib ({' '.join(command)})") from error
        if done.returncode:
            raise MotetError(f"RLlib ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found
