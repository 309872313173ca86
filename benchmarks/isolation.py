"""``motet bench isolation``: costs and benefits of a separate process for every policy.

A decision is a 1 kB observation out and an action back; the policy itself computes nothing. The comparison uses
``mp.Queue``, one queue in each direction for each policy. *Short episodes* have two agents and ten turns. *Thinking* is
5 ms of CPU time in each of two policies. The fork server has loaded everything before the measurement.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import Amount, Comparison, Measure, Result, Settings, interleave, interleave_pairs
from benchmarks.bell import FLOATS, QUEUE, _Player, _QueueChannel
from benchmarks.party import Stage
from motet.isolation.policy import IsolatedPolicy
from motet.isolation.usage import descendants
from motet.policy import PolicySpec
from motet.system.child import one_thread
from motet.system.fork_server import context

__all__ = ["run"]

POLICIES = 8
COUNTS = (1, 8, 32)
"""Numbers of policies for the rows about decisions and memory."""
TURNS = 10
THINK_S = 0.005
EPISODES = 200
FRESH_EPISODES = 10
"""Number of episodes with new processes: these take long, so a few are enough."""

MEASURES = {
    "decision": Measure("An isolated decision, 1 kB out, an action back, median", "us"),
    "decision_p99": Measure("An isolated decision, 99th percentile", "us"),
    "joint8": Measure("Eight isolated policies, one turn, median", "us"),
    "joint8_p99": Measure("Eight isolated policies, one turn, 99th percentile", "us"),
    "thinking": Measure("Two policies that each compute for 5 ms, one turn", "ms"),
    "episodes": Measure("Short isolated episodes", "episodes/s"),
    "start": Measure("A policy with torch, from request to first answer", "s"),
    "jobs": Measure("Episodes of policies that compute", "episodes/s"),
    **{
        f"{name}_{count}": Measure(f"{count} isolated {'policy' if count == 1 else 'policies'}: {title}", unit)
        for count in COUNTS
        for name, title, unit in (
            ("rate", "decisions", "decisions/s"),
            ("turn", "one turn", "us"),
            ("private", "private memory of each, with its guard", "MB"),
            ("shared", "memory that each shares with other processes", "MB"),
        )
    },
}

IN_TURN, NEW, PLAIN_NEW = "one after the other", "motet, new processes each time", "a new forkserver process each time"
ONE_JOB = "one job"

COMPARISONS = {
    "decision_vs_queue": Comparison("decision", "motet", QUEUE, 12),
    "joint8_vs_queue": Comparison("joint8", "motet", QUEUE, 8),
    "parallel_thinking": Comparison("thinking", "motet", IN_TURN, 1.7),
    "pooled_vs_fresh": Comparison("episodes", "motet", PLAIN_NEW, 20),
    "jobs2_vs_1": Comparison("jobs", "motet", ONE_JOB, 1.7),
}
AMOUNTS = {"start_s": Amount("start", "motet", 0.1)}


def run(settings: Settings) -> Result:
    """Measure everything."""
    from gymnasium.spaces import Box, Discrete

    from benchmarks.evaluation_jobs import Jobs

    result = Result("isolation", MEASURES, COMPARISONS, amounts=AMOUNTS)
    isolated = partial(IsolatedPolicy, observation_space=Box(0, 1, (FLOATS,)), action_space=Discrete(1000))
    with isolated(PolicySpec(Trivial)) as first:
        first.reset(0)  # now the fork server runs and has loaded its modules
    with Stage() as stage:
        for measure, count in (("decision", 1), ("joint8", POLICIES)):
            _decisions(result, measure, stage, [isolated(PolicySpec(Trivial)) for _ in range(count)], settings)
            stage.clear()
    for count in COUNTS[:2] if settings.quick else COUNTS:
        _population(result, count, isolated, settings)
    _thinking(result, [isolated(PolicySpec(Thinks)) for _ in range(2)], settings)
    _episodes(result, isolated, settings)
    interleave(result, "start", {"motet": partial(_start_s, isolated)}, settings.repeats)
    with Jobs() as jobs:
        episodes = 2 if settings.quick else 40
        interleave(
            result,
            "jobs",
            {"motet": partial(jobs.episodes_per_s, 2, episodes), ONE_JOB: partial(jobs.episodes_per_s, 1, episodes)},
            settings.repeats,
        )
    return result


class Trivial:
    """A policy that returns one number of its observation."""

    def reset(self, seed: int) -> None:
        """Begin an episode."""

    def act(self, observation: npt.NDArray[np.float32]) -> int:
        """Return the second number of the observation."""
        return int(observation[1])


class Thinks(Trivial):
    """Uses 5 ms of CPU time for each decision."""

    def act(self, observation: npt.NDArray[np.float32]) -> int:
        """Return the second number of the observation after some computation."""
        until = time.thread_time() + THINK_S
        while time.thread_time() < until:
            pass
        return int(observation[1])


class UsesTorch(Trivial):
    """Acts with a small network."""

    def __init__(self) -> None:
        import torch

        self._network = torch.nn.Sequential(torch.nn.Linear(FLOATS, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    def act(self, observation: npt.NDArray[np.float32]) -> int:
        """Return the index of the highest output."""
        import torch

        with torch.inference_mode():
            return int(self._network(torch.from_numpy(observation)).argmax())


# ---- one turn


def _decisions(
    result: Result, measure: str, stage: Stage, policies: Sequence[IsolatedPolicy], settings: Settings
) -> None:
    channel = _QueueChannel(stage.context, len(policies))
    for i in range(len(policies)):
        stage.party(_Player, channel).begin("play", i)
    channel.open()
    with ExitStack() as stack:
        for policy in policies:
            stack.enter_context(policy).reset(0)
        turns: dict[str, Callable[..., Any]] = {"motet": partial(_turn, policies), QUEUE: channel.ask}
        asks = {title: partial(_ask, turn, len(policies), settings.seconds) for title, turn in turns.items()}
        interleave_pairs(result, (measure, f"{measure}_p99"), asks, settings.repeats)


def _turn(policies: Sequence[IsolatedPolicy], observations: npt.NDArray[np.float32]) -> list[int]:
    """Ask all policies, then wait for all answers."""
    for policy, observation in zip(policies, observations, strict=True):
        policy.ask(observation)
    return [policy.answer() for policy in policies]


def _ask(turn: Callable[..., Any], count: int, seconds: float) -> tuple[float, float]:
    """Return median and 99th percentile of the time of a turn, in us."""
    observations, clock, times = np.zeros((count, FLOATS), np.float32), time.perf_counter_ns, list[int]()
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until or len(times) < 20:
        number = number % 900 + 1
        observations[:, 1] = number
        begun = clock()
        actions = turn(observations)
        times.append(clock() - begun)
        if not all(action == number for action in actions):
            raise AssertionError(f"asked for {number}, the answers are {actions}")
    times.sort()
    return statistics.median(times) / 1e3, times[int(0.99 * len(times))] / 1e3


def _population(result: Result, count: int, isolated: Callable[..., IsolatedPolicy], settings: Settings) -> None:
    """Measure decisions and memory of several policies that are asked together."""
    before = set(descendants(os.getpid()))
    with ExitStack() as stack:
        policies = [stack.enter_context(isolated(PolicySpec(Trivial))) for _ in range(count)]
        for policy in policies:
            policy.reset(0)
        own = set(descendants(os.getpid())) - before  # guards and policy processes
        for _ in range(settings.repeats):
            turn_s = _mean_ms(partial(_turn, policies, np.zeros((count, FLOATS), np.float32)), settings) / 1e3
            private, shared = np.sum([_memory_mb(pid) for pid in own], axis=0) / count
            rows = {"rate": count / turn_s, "turn": 1e6 * turn_s, "private": private, "shared": shared}
            for name, value in rows.items():
                result.samples.setdefault(f"{name}_{count}", {}).setdefault("motet", []).append(float(value))


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return the private and the shared resident memory of a process, in MB."""
    private = shared = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            name, *rest = line.split()
            private += int(rest[0]) if name in ("Private_Clean:", "Private_Dirty:") else 0
            shared += int(rest[0]) if name in ("Shared_Clean:", "Shared_Dirty:") else 0
    return private * 1024 / 1e6, shared * 1024 / 1e6


def _thinking(result: Result, policies: Sequence[IsolatedPolicy], settings: Settings) -> None:
    observations = np.zeros((len(policies), FLOATS), np.float32)

    def together() -> None:
        _turn(policies, observations)

    def in_turn() -> None:
        for policy, observation in zip(policies, observations, strict=True):
            policy.act(observation)

    with ExitStack() as stack:
        for policy in policies:
            stack.enter_context(policy).reset(0)
        ways = {"motet": partial(_mean_ms, together, settings), IN_TURN: partial(_mean_ms, in_turn, settings)}
        interleave(result, "thinking", ways, settings.repeats)


def _mean_ms(turn: Callable[[], object], settings: Settings) -> float:
    times, until = list[float](), time.monotonic() + settings.seconds
    while time.monotonic() < until or len(times) < 3:
        begun = time.perf_counter()
        turn()
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


# ---- whole episodes


def _episodes(result: Result, isolated: Callable[..., IsolatedPolicy], settings: Settings) -> None:
    many, few = (4, 1) if settings.quick else (EPISODES, FRESH_EPISODES)
    with ExitStack() as stack:
        pool = [stack.enter_context(isolated(PolicySpec(Trivial))) for _ in range(2)]
        ways = {
            "motet": partial(_rate, many, partial(_play, pool)),
            PLAIN_NEW: partial(_rate, few, _play_plain),
            NEW: partial(_rate, few, partial(_play_new, isolated)),
        }
        interleave(result, "episodes", ways, settings.repeats)


def _rate(episodes: int, play: Callable[[], None]) -> float:
    begun = time.perf_counter()
    for _ in range(episodes):
        play()
    return episodes / (time.perf_counter() - begun)


def _play(policies: Sequence[IsolatedPolicy]) -> None:
    observations = np.zeros((len(policies), FLOATS), np.float32)
    for policy in policies:
        policy.ask_reset(0)
    for policy in policies:
        policy.answer()
    for _ in range(TURNS):
        _turn(policies, observations)


def _play_new(isolated: Callable[..., IsolatedPolicy]) -> None:
    with ExitStack() as stack:
        _play([stack.enter_context(isolated(PolicySpec(Trivial))) for _ in range(2)])


def _play_plain() -> None:
    """Play an episode in the usual way: a process with a pipe, which ends when the episode is over."""
    made = [_plain() for _ in range(2)]
    observation = np.zeros(FLOATS, np.float32)
    for _ in range(TURNS):
        for pipe, _process in made:
            pipe.send_bytes(observation.data)
        for pipe, _process in made:
            pipe.recv_bytes(8)
    for pipe, process in made:
        pipe.close()
        process.join(30)
        process.close()


def _plain() -> tuple[Connection, Any]:
    chosen = context()
    ours, theirs = chosen.Pipe()
    process = chosen.Process(target=_be_plain, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _be_plain(pipe: Connection) -> None:
    one_thread()
    policy, observation = Trivial(), np.zeros(FLOATS, np.float32)
    policy.reset(0)
    while True:
        try:
            pipe.recv_bytes_into(observation.data.cast("B"))
        except EOFError:
            return
        pipe.send_bytes(policy.act(observation).to_bytes(8, "little"))


def _start_s(isolated: Callable[..., IsolatedPolicy]) -> float:
    begun = time.perf_counter()
    with isolated(PolicySpec(UsesTorch)) as policy:
        policy.reset(0)
        policy.act(np.zeros(FLOATS, np.float32))
        return time.perf_counter() - begun
