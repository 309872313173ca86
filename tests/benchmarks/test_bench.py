"""The benches run, with tiny sizes: what they print and how they end. Never how fast anything is."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import without_torch

from benchmarks import Comparison, Measure, Result, Settings, interleave
from benchmarks import weight_designs as weights
from benchmarks.limits import copy_rows
from benchmarks.party import Missing, Stage
from benchmarks.table import _number
from motet.errors import MotetError, SettingError, SpecError

NAMES = {
    "replay": {"add_vs_lock", "add_vs_lock_both", "sample18_vs_lock", "gather_vs_memcpy", "per_vs_cpprb"},
    "publication": {
        "publish_vs_memcpy", "refresh_vs_memcpy", "publish_vs_load_state_dict", "torn", "torn_slots1", "torn_slots2",
        "torn_load_state_dict", "torn_slot_flip",
    },
    "bell": {"roundtrip_vs_queue", "roundtrip_busy_vs_queue", "joint8_vs_queue"},
    "learner": {
        "own_vs_shipped", "own_vs_sb3", "own_stacked_vs_loop", "own_acting", "gru_native_vs_torch",
        "gru_native_vs_torch_16", "gru_passes_vs_torch", "memory_cost", "vs_sb3_recurrent",
    },
    "empower": {"two_actors_vs_one", "update_ms"},
    "isolation": {
        "decision_vs_queue", "joint8_vs_queue", "parallel_thinking", "pooled_vs_fresh", "jobs2_vs_1", "start_s",
    },
}  # fmt: skip


def command(name: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "motet.cli", "bench", name, "--quick", "--repeats", "1", "--seconds", "0.01", *more]


def quick(name: str) -> dict[str, Any]:
    environment = without_torch() if name in ("bell", "replay") else None
    done = subprocess.run(
        command(name, "--json"), env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("name", NAMES)
def test_json_has_the_promised_names(name: str) -> None:
    report = quick(name)
    assert set(report) == {"bench", "values", "raw", "machine"}
    assert report["bench"] == name
    skipped = report["raw"]["skipped"]
    expected = NAMES[name] - ({"per_vs_cpprb"} if "cpprb" in skipped else set())
    expected -= {"own_vs_sb3"} if "stable-baselines3" in skipped else set()
    expected -= {"vs_sb3_recurrent"} if "sb3-contrib, RecurrentPPO" in skipped else set()
    assert expected <= set(report["values"])
    assert all(isinstance(value, (int, float)) and value >= 0 for value in report["values"].values())
    assert {"cpu", "cores", "python", "numpy", "kernel"} <= set(report["machine"])
    for measure, contestants in report["raw"]["samples"].items():
        assert measure in report["raw"]["units"]
        assert all(len(repeats) == 1 and min(repeats) > 0 for repeats in contestants.values())
    if name == "publication":
        assert report["values"]["torn"] == 0


def test_the_detector_of_torn_reads_detects() -> None:
    model, publication = weights.shared_model(), weights.publication_of(1)
    theirs = weights.ModelPublisher(model), weights.ModelSubscriber(model)
    ours = weights.MotetPublisher(publication), weights.MotetSubscriber(publication)
    for publisher, subscriber in (theirs, ours):
        publisher.flat.fill(1)
        publisher.publish()
        assert subscriber.refresh()
        assert not subscriber.mixed()
    last = list(model.parameters())[-1]
    last.data[-1] = 2  # a writer that has got no further than this, or as far as this
    theirs[1].refresh()
    assert theirs[1].mixed()
    ours[1]._subscriber.weights[-1] = 2
    assert ours[1].mixed()


def test_an_interrupted_bench_leaves_no_process() -> None:
    bench = subprocess.Popen(
        command("bell", "--seconds", "20"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        children = eventually(lambda: descendants(bench.pid), at_least=9)
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate(timeout=120)
        assert bench.returncode == 130
        assert "Traceback" not in errors
    finally:
        bench.kill()
        bench.wait(60)
    eventually_gone(children)


def test_a_killed_bench_leaves_no_process() -> None:
    bench = subprocess.Popen(command("bell", "--seconds", "20"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        children = eventually(lambda: descendants(bench.pid), at_least=9)
    finally:
        bench.kill()
        bench.wait(60)
    eventually_gone(children)


def descendants(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0] != "Z":
            parents[int(stat.parent.name)] = int(words[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def eventually(look: Any, at_least: int) -> set[int]:
    deadline = time.monotonic() + 60
    while len(found := look()) < at_least:
        assert time.monotonic() < deadline, f"{len(found)} of {at_least} processes came into being"
        time.sleep(0.05)
    return set(found)


def eventually_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + 60
    while left := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- the harness


def test_contestants_take_turns() -> None:
    asked: list[str] = []
    result = Result("x", {"m": Measure("m", "us")}, {})
    interleave(
        result, "m", {"a": lambda: len(asked.append("a") or asked), "b": lambda: len(asked.append("b") or asked)}, 2
    )
    assert asked == ["a", "b"] * 3  # the first round warms up
    assert result.samples == {"m": {"a": [3, 5], "b": [4, 6]}}


@pytest.mark.parametrize(("unit", "expected"), [("rows/s", 0.5), ("us", 2.0)])
def test_a_ratio_above_one_is_better(unit: str, expected: float) -> None:
    result = Result(
        "x", {"m": Measure("m", unit)}, {"v": Comparison("m", "a", "b"), "w": Comparison("m", "a", "absent")}
    )
    result.samples["m"] = {"a": [1.0, 10.0, 100.0], "b": [20.0, 20.0, 1.0]}
    assert result.values == {"v": expected}


@pytest.mark.parametrize("given", [{"repeats": 0}, {"seconds": 0.0}, {"seconds": 1e9}])
def test_settings_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="must be a"):
        Settings(**given)


class Pupil:
    def __init__(self, fine: bool = True) -> None:
        if not fine:
            raise Missing("is ill")

    def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise KeyError("the reason")


def test_a_party_lives_elsewhere_and_ends_with_its_stage() -> None:
    with Stage() as stage:
        party = stage.party(Pupil)
        pid = party.call("pid")
        assert pid != os.getpid() and alive(pid)
    eventually_gone({pid})


def test_errors_in_a_party_are_raised_in_the_bench() -> None:
    with Stage() as stage:
        with pytest.raises(Missing, match="is ill"):
            stage.party(Pupil, False)
        with pytest.raises(MotetError, match="the reason"):
            stage.party(Pupil).call("fail")


def test_copy_rows_copies_and_checks() -> None:
    source, out = np.arange(40, dtype=np.uint8), np.zeros(9, np.uint8)
    copy_rows(source, 4, out, 3, np.array([9, 0, 2], np.uint64))
    assert out.tolist() == [36, 37, 38, 0, 1, 2, 8, 9, 10]
    with pytest.raises(SpecError, match="outside"):
        copy_rows(source, 4, out, 3, np.array([10], np.uint64))
    with pytest.raises(SpecError, match="out"):
        copy_rows(source, 4, out, 4, np.array([0, 1, 2], np.uint64))
    with pytest.raises(SpecError, match="uint64"):
        copy_rows(source, 4, out, 3, np.array([0, 1], np.int64))


@pytest.mark.parametrize(
    ("value", "text"), [(2971234.0, "2.97 M"), (999.7, "1000"), (8412.3, "8.41 k"), (7.912, "7.91"), (0.0313, "0.0313")]
)
def test_numbers_are_formatted(value: float, text: str) -> None:
    assert _number(value) == text
