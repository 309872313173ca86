"""``motet bench train`` runs, with tiny sizes: what it prints and how it ends. Never how fast anything is."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import Amount, Measure, Result
from benchmarks.whole_run import private_bytes

VALUES = {
    "actor_vs_plan_design", "learner_updates_vs_plan_design", "learner_vs_bare", "processes_vs_serial",
    "actor_one_world_vs_plan_design", "learner_updates_one_world_vs_plan_design", "packed_vs_separate",
    "many_agents_vs_few",
    "seconds_to_350", "restart_s", "actor_through_kill", "rss_growth",
}  # fmt: skip
COMMAND = [sys.executable, "-m", "motet.cli", "bench", "train", "--quick", "--repeats", "1"]

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")


@pytest.mark.slow
def test_json_has_the_promised_names() -> None:
    done = subprocess.run(
        [*COMMAND, "--seconds", "0.01", "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert set(report) == {"bench", "values", "raw", "machine"}
    assert report["bench"] == "train"
    assert set(report["values"]) == VALUES - set(report["raw"]["skipped"])
    assert all(isinstance(value, float) for value in report["values"].values())
    for measure, contestants in report["raw"]["samples"].items():
        assert measure in report["raw"]["units"]
        assert all(len(repeats) == 1 for repeats in contestants.values())
    for rate in ("turns", "updates", "learner", "packed", "kill"):
        assert all(repeats[0] > 0 for repeats in report["raw"]["samples"][rate].values())
    (crossing,) = report["raw"]["facts"]["hunt_seed_1"]["crossings"]
    assert crossing["step"] >= 1000
    if "rss_growth" not in report["raw"]["skipped"]:
        assert report["raw"]["facts"]["soak_processes"] >= 6  # supervisor, fork server, actor, two learners, evaluator


@needs_proc
@pytest.mark.slow
def test_an_interrupted_bench_leaves_no_process() -> None:
    bench = subprocess.Popen([*COMMAND, "--seconds", "10"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while len(family := set(private_bytes(bench.pid)) - {bench.pid}) < 7:  # a fork server, two times three at work
            assert time.monotonic() < deadline, f"{len(family)} processes came into being"
            time.sleep(0.05)
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate(timeout=120)
        assert bench.returncode == 130
        assert "Traceback" not in errors
    finally:
        bench.kill()
        bench.wait(60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/status").exists() for pid in family):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)


def test_an_amount_is_the_median_as_it_is() -> None:
    result = Result("x", {"m": Measure("m", "s")}, {}, amounts={"v": Amount("m", "a", 3), "w": Amount("m", "absent")})
    result.samples["m"] = {"a": [2.0, 100.0, 1.0]}
    assert result.values == {"v": 2.0}
