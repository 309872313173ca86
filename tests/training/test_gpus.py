"""GPUs of this machine in what a run tells. A program on the PATH stands in for the driver's ``nvidia-smi``."""

import io
import json
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from motet import Settings, train
from motet.cli import main
from motet.runs.directory import RunDirectory
from motet.runs.display import time_lines
from motet.runs.sinks import scalars
from motet.runs.status import read_history
from motet.system import gpus
from motet.system.gpus import GpuMeter, GpuUse

TWO = """\
[ "$1" = "--query-gpu=index,utilization.gpu,memory.used,memory.total" ] && [ "$2" = "--format=csv,noheader,nounits" ] ||
    exit 2
echo "0, 37, 1024, 40960"
echo "1, 5, 0, 40960"
"""
ROWS = [GpuUse(0, 0.37, 1024 * 2**20, 40960 * 2**20), GpuUse(1, 0.05, 0, 40960 * 2**20)]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a shell script as ``nvidia-smi`` on the PATH; returns its log, a line for each call."""

    def install(script):
        program, log = tmp_path / "bin" / "nvidia-smi", tmp_path / "calls"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$$ $*" >> "{log}"\n{script}')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return log

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def calls(log):
    return log.read_text().splitlines() if log.exists() else []


def until(condition, seconds=300.0):
    """A callback that ends a run when a condition holds, and asserts that it does before the deadline."""
    deadline = time.monotonic() + seconds

    def each(snapshot):
        assert time.monotonic() < deadline
        return False if condition(snapshot) else None

    return each


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_use_of_gpus_is_shown_wherever_metrics_go(engine, driver, tmp_path, capsys):
    driver(TWO)
    settings, run = Settings(engine=engine, steps=10**9, metrics_every_s=0.05), tmp_path / "run"
    train("matrix", "dqn", settings, run=run, on_update=until(lambda snapshot: snapshot.gpus))
    last = next(found for found in reversed(read_history(RunDirectory.open(run))) if found.gpus)
    assert last.gpus == ROWS
    tags = dict(scalars(last))
    assert tags["system/gpu_utilisation.0"] == 0.37 and tags["system/gpu_utilisation.1"] == 0.05
    assert tags["system/gpu_memory_mb.0"] == 1024 * 2**20 / 1e6
    console = Console(width=80, file=io.StringIO())
    for part in time_lines(last):
        console.print(part, soft_wrap=True)
    words = "GPU 0 busy 37%, 1.0 GiB of 40.0 GiB; GPU 1 busy 5%, 0 bytes of 40.0 GiB"
    assert words in console.file.getvalue()
    (run / "status.json").write_text(json.dumps(last.as_dict()))
    assert main(["status", str(run)]) == 0
    assert words in capsys.readouterr().out, "in one line where it is not shown in a terminal"


def test_nothing_appears_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = []
    train("matrix", "dqn", Settings(engine="serial", steps=200), on_update=seen.append)
    assert seen[-1].gpus == [] and not any("gpu" in tag for tag, _ in scalars(seen[-1]))
    console = Console(width=80, file=io.StringIO())
    for part in time_lines(seen[-1]):
        console.print(part)
    assert "GPU" not in console.file.getvalue()


@pytest.mark.parametrize(
    "script",
    [
        "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9",
        "echo 'No devices were found'",
        "echo '0, 37'; echo; echo 'a, b, c, d'; printf '\\377\\n'",
        "kill -9 $$",
    ],
)
def test_a_query_that_fails_is_no_failure_of_the_run(script, driver):
    log, said = driver(script), []
    settings = Settings(engine="serial", steps=10**9, metrics_every_s=0.01)
    result = train(
        "matrix", "dqn", settings, on_update=until(lambda snapshot: len(calls(log)) > 1), on_message=said.append
    )
    assert result.state == "stopped" and said == ["on_update stopped the run"]


def test_what_a_gpu_does_not_tell_is_left_out(driver):
    driver("echo '0, [N/A], [Not Supported], 40960'; echo '1, 12, 100, 200'")
    seen = []
    settings = Settings(engine="serial", steps=10**9, metrics_every_s=0.05)
    train("matrix", "dqn", settings, on_update=until(lambda snapshot: seen.append(snapshot) or snapshot.gpus))
    assert seen[-1].gpus == [GpuUse(0, None, None, 40960 * 2**20), GpuUse(1, 0.12, 100 * 2**20, 200 * 2**20)]
    tags = dict(scalars(seen[-1]))
    assert "system/gpu_utilisation.0" not in tags and tags["system/gpu_utilisation.1"] == 0.12


def test_a_query_that_hangs_neither_delays_a_run_nor_survives_it(driver):
    log, snapshots = driver("exec sleep 1000"), []
    settings = Settings(engine="serial", steps=10**9, metrics_every_s=0.01)
    train("matrix", "dqn", settings, on_update=until(lambda snapshot: snapshots.append(snapshot) or calls(log)))
    assert not snapshots[-1].gpus
    (call,) = calls(log)
    with pytest.raises(ProcessLookupError):
        os.kill(int(call.split()[0]), 0)


def test_a_query_that_hangs_is_ended_and_its_old_values_are_forgotten(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_TIMEOUT_S", 0.3)
    log = driver(f'[ -e "{tmp_path}/hang" ] && exec sleep 1000\n{TWO}')
    monkeypatch.setattr(gpus, "_REST", 1)
    meter = GpuMeter()
    with meter.reading(0.01):
        wait(meter.newest)
        (tmp_path / "hang").touch()
        wait(lambda: not meter.newest())
        (tmp_path / "hang").unlink()
        wait(meter.newest)
    assert meter.newest() == [] and len(calls(log)) >= 3


def test_queries_take_at_most_a_fiftieth_of_the_time(driver, monkeypatch):
    log, pauses = driver("sleep 0.1"), []
    meter = GpuMeter()
    monkeypatch.setattr(meter._ending, "wait", lambda seconds: pauses.append(seconds) or len(pauses) == 3)
    with meter.reading(0.001):
        wait(lambda: len(pauses) == 3)
    assert min(pauses) >= 50 * 0.1 and len(calls(log)) <= 4


def test_only_gpus_that_the_run_may_use_are_asked_for(driver, monkeypatch):
    log = driver(TWO)
    for visible, asked in (("1", "--id=1"), ("GPU-8932f937,1", "--id=GPU-8932f937,1")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        meter = GpuMeter()
        with meter.reading(0.01):
            wait(meter.newest)
        assert asked in calls(log)[-1].split()
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with GpuMeter().reading(0.01):
            assert not any(thread.name == "motet-gpus" for thread in threading.enumerate())


def test_an_answer_is_forgotten_if_no_other_one_follows(driver, monkeypatch):
    driver(TWO)
    meter, now = GpuMeter(), time.monotonic()
    monkeypatch.setattr(gpus, "time", SimpleNamespace(monotonic=lambda: now))
    with meter.reading(100.0):
        wait(meter.newest)
        now += 109.0
        assert meter.newest()
        now += 2.0  # a hundred seconds, and ten for the answer
        assert not meter.newest()


def wait(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
