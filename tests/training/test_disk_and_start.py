"""Resources that a machine may refuse: disk space, write permission, processes. Errors are clear and no file is
incomplete."""

import contextlib
import errno
import functools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from support import TESTS, without_torch
from support.stand_in import StandIn

from motet.algorithms import DQNConfig
from motet.cli import main
from motet.errors import ChildError, MemoryShortError, SettingError, StartError, StorageError
from motet.runs import status as _runs
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.status import hold, is_alive, read_history
from motet.system import fork_server as _fork_server
from motet.system.child import Child
from motet.system.supervisor import RestartLimits, Role, Supervisor
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import TreasureHunt

HUNT = functools.partial(TreasureHunt, agents=2, size=7, turns=10)
SERIAL = Settings(steps=100, engine="serial")
TINY = ["--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ---- the disk


def test_a_full_disk_is_an_error_of_motets_own_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    run = tmp_path / "run"
    fsync = os.fsync

    def full(fd):
        if "checkpoints" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"run' could not be written: .*No space left.*; it has no checkpoint yet"):
        train(HUNT, StandIn(), SERIAL, run=run)
    assert not is_alive(run) and list((run / "checkpoints").iterdir()) == []
    monkeypatch.undo()
    train(HUNT, StandIn(), SERIAL, run=tmp_path / "other")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="its last complete checkpoint is at step 100"):
        resume(tmp_path / "other", steps=50, algorithm=StandIn())


FULL = """
import functools, os, resource, signal, sys
sys.path.insert(0, {tests!r})
from support.stand_in import StandIn
from motet.errors import StorageError
from motet import Settings, train
from motet.worlds import TreasureHunt

def fill_up(look):
    room = os.stat({run!r} + "/metrics.jsonl").st_size + 4000  # the next line, and half of the one after it
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # no file of this process grows beyond it

if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        world = functools.partial(TreasureHunt, agents=2)
        settings = Settings(steps=10**8, engine={engine!r}, metrics_every_s=0.1)
        train(world, StandIn(), settings, run={run!r}, on_update=fill_up)
    except StorageError as error:
        print(error)
        sys.exit(3)
"""


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_disk_that_fills_up_ends_the_run_and_every_line_is_whole(engine, tmp_path):
    run = tmp_path / "run"
    code = FULL.format(tests=str(TESTS), run=str(run), engine=engine)
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, env=without_torch(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "could not be written" in done.stdout and "File too large" in done.stdout and "Traceback" not in done.stderr
    text = (run / "metrics.jsonl").read_text()
    assert text.endswith("\n") and len(read_history(RunDirectory.open(run))) == text.count("\n") >= 2
    assert not [name for name in everything(run) if re.search(r"(^|/)\.(?!lock)", name)], "nothing is left beside"


def test_half_a_line_is_removed_before_the_next_one(tmp_path):
    directory = RunDirectory.prepare(tmp_path / "run").begin({})
    directory.append_line("metrics.jsonl", {"a": 1})
    path = tmp_path / "run" / "metrics.jsonl"
    for torn in ('{"a": 2, "b', "x" * 5000):
        path.write_text('{"a": 1}\n' + torn)
        directory.append_line("metrics.jsonl", {"a": 3})
        assert path.read_text() == '{"a": 1}\n{"a": 3}\n'
    path.write_text("torn from the start")
    directory.append_line("metrics.jsonl", {"a": 4})
    assert path.read_text() == '{"a": 4}\n'


def test_unwritable_directory_is_reported_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be written: Not a directory"):
        train(HUNT, StandIn(), SERIAL, run=tmp_path / "file" / "run")
    train(HUNT, StandIn(), SERIAL, run=tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").mkdir()
    with pytest.raises(SettingError, match="cannot be written: Is a directory"), hold(tmp_path / "run"):
        pass
    os.rmdir(tmp_path / "run" / ".lock")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"could not be written: .*Is a directory"):
        resume(tmp_path / "run", steps=10, algorithm=StandIn())
    assert everything(tmp_path / "file") == []


def test_the_command_says_it_in_one_line(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("motet.runs.checkpoint.sync", full)
    flags = [*TINY, "--engine", "serial", "--world.size", "7", "--world.turns", "10", "--steps", "50"]
    assert main(["train", "treasure_hunt", *flags, "--run", str(tmp_path / "run")]) == 1
    err = capsys.readouterr().err
    assert "could not be written: [Errno 28] No space left on device; it has no checkpoint yet" in err
    assert err.count("\n") == 1


# ---- resume


def test_a_resume_that_fails_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(HUNT, StandIn(), SERIAL, run=run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SettingError, match="settings have changed"):
        resume(run, steps=1000, algorithm=StandIn(width=99))

    def short(*_):
        raise MemoryShortError("no room")

    monkeypatch.setattr("motet.training.shared.Segment", short)
    with pytest.raises(MemoryShortError):
        resume(run, steps=1000, algorithm=StandIn())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    monkeypatch.undo()
    assert resume(run, steps=50, algorithm=StandIn()).steps == 150
    assert RunDirectory.open(run).config()["settings"]["steps"] == 150


def test_a_run_that_never_began_leaves_nothing_and_takes_nothing(tmp_path, monkeypatch):
    def short(*_):
        raise MemoryShortError("no room")

    monkeypatch.setattr("motet.training.shared.Segment", short)
    (tmp_path / "mine" / "logs").mkdir(parents=True)
    (tmp_path / "mine" / "logs" / "my.log").write_text("mine")
    for name in ("mine", "new"):
        with pytest.raises(MemoryShortError):
            train(HUNT, StandIn(), SERIAL, run=tmp_path / name)
    assert everything(tmp_path) == ["mine", "mine/logs", "mine/logs/my.log"]
    monkeypatch.undo()
    assert train(HUNT, StandIn(), SERIAL, run=tmp_path / "new").state == "done"


def test_second_process_cannot_take_over_a_run(tmp_path, monkeypatch):
    """Both see an empty place; one holds it first. The other one's end takes nothing away."""
    prepare = RunDirectory.prepare

    with contextlib.ExitStack() as stack:

        def overtaken(path):
            mine = prepare(path)
            first = prepare(path)
            stack.enter_context(hold(first.path))
            first.begin({"winner": True})
            return mine

        monkeypatch.setattr(RunDirectory, "prepare", overtaken)
        with pytest.raises(SettingError, match="being written by another process"):
            train(HUNT, StandIn(), SERIAL, run=tmp_path / "run")
        assert RunDirectory.open(tmp_path / "run").config()["winner"] and is_alive(tmp_path / "run")
        assert everything(tmp_path) == ["run", "run/.lock", "run/checkpoints", "run/config.json", "run/logs"]
    monkeypatch.undo()
    with pytest.raises(SettingError, match="already holds a run"):
        train(HUNT, StandIn(), SERIAL, run=tmp_path / "run")


def test_a_removed_lock_file_excludes_no_process(tmp_path, monkeypatch):
    lock = _runs._lock

    def late(fd):  # a run that never began is taken back between the opening of its lock and the locking
        (tmp_path / ".lock").unlink()
        return lock(fd)

    monkeypatch.setattr(_runs, "_lock", late)
    with pytest.raises(SettingError, match="being written by another process"), hold(tmp_path):
        pytest.fail("it holds what nobody sees")
    monkeypatch.undo()
    with hold(tmp_path):
        assert is_alive(tmp_path)


def test_incomplete_files_are_removed_when_a_run_is_resumed(tmp_path):
    train(HUNT, StandIn(), SERIAL, run=tmp_path / "run")
    for left in ("checkpoints/.000000000100.new.1234abcd", ".best.new.1234abcd"):
        (tmp_path / "run" / left).mkdir()
        (tmp_path / "run" / left / "agent_0.safetensors").write_text("half")
    resume(tmp_path / "run", steps=20, algorithm=StandIn())
    assert not [path for path in everything(tmp_path) if ".new." in path]


def test_a_result_knows_where_it_began_and_steps_on_top_are_some(tmp_path):
    assert train(HUNT, StandIn(), SERIAL, run=tmp_path / "run").began == 0
    with pytest.raises(SettingError, match="steps must be an int >= 1, in addition to those already done, got -4"):
        resume(tmp_path / "run", steps=-4, algorithm=StandIn())
    again = resume(tmp_path / "run", steps=20, algorithm=StandIn())
    assert (again.began, again.steps) == (100, 120)


class Blind(gymnasium.Env):
    """Shows what nobody can learn from."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.full(3, np.nan, np.float32), 1.0, bool(self.np_random.random() < 0.1), False, {}


def test_divergence_is_reported_once():
    said = []
    config = DQNConfig(hidden=(8,), batch_size=8, min_rows=16)
    train(Blind, config, Settings(steps=200, engine="serial"), on_message=said.append)
    (line,) = said
    assert re.match(r"\w+ diverged at update \d+ \(.*loss is nan.*check_world", line)


# ---- processes that cannot be started


@pytest.fixture
def no_processes(monkeypatch):
    """Every start fails, as it does where the limit of processes is reached; counts the attempts."""
    attempts = []
    real = _fork_server.context()

    class Refusing:
        def __getattr__(self, name):
            return getattr(real, name)

        def Process(self, **more):
            made = real.Process(**more)
            made.start = lambda: attempts.append(more["name"]) or _refuse()
            return made

    def _refuse():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(_fork_server, "context", Refusing)
    return attempts


def test_without_fall_back_the_error_names_the_setting(no_processes, tmp_path, no_leaks):
    words = r"actor-0 could not be started: .*temporarily unavailable; .*engine='serial', or set fall_back=True"
    with pytest.raises(StartError, match=words):
        train(HUNT, StandIn(), Settings(steps=100), run=tmp_path / "run")
    assert no_processes == ["actor-0"] and everything(tmp_path) == []


def test_with_fall_back_the_serial_engine_is_used_reported_and_recorded(no_processes, tmp_path, no_leaks):
    said, seen = [], []
    asked = Settings(steps=200, updates_per_step=0.5, evaluate_every=50, fall_back=True)
    result = train(HUNT, StandIn(), asked, run=tmp_path / "run", on_message=said.append, on_update=seen.append)
    assert result.state == "done" and result.steps == 200 and min(result.updates.values()) > 50
    assert "actor-0 could not be started" in result.fell_back
    assert any(
        line.startswith("NO PROCESSES: actor-0 could not") and "with 0.5 updates per step" in line for line in said
    )
    assert seen[-1].fell_back == result.fell_back and seen[-1].processes[0].name == "serial"
    config = RunDirectory.open(tmp_path / "run").config()
    assert config["fell_back"] == result.fell_back
    assert config["settings"]["engine"] == "processes" and config["settings"]["evaluate_every"] == 50
    assert json.loads((tmp_path / "run" / "status.json").read_text())["fell_back"] == result.fell_back
    # What was asked for in the serial engine comes to the same.
    serial = train(HUNT, StandIn(), Settings(steps=200, updates_per_step=0.5, engine="serial"), run=tmp_path / "s")
    for name, agent in serial.agents.items():
        assert agent["state"].tobytes() == result.agents[name]["state"].tobytes()


def test_a_run_that_fell_back_is_resumed_in_processes_if_possible(no_processes, tmp_path, monkeypatch, no_leaks):
    train(HUNT, StandIn(), Settings(steps=100, fall_back=True), run=tmp_path / "run")
    monkeypatch.undo()
    result = resume(tmp_path / "run", steps=300, algorithm=StandIn())
    assert result.fell_back == "" and "fell_back" not in RunDirectory.open(tmp_path / "run").config()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["fell_back"] == ""


def test_nothing_falls_back_where_processes_start(tmp_path, no_leaks):
    result = train(HUNT, StandIn(), Settings(steps=100, fall_back=True, updates_per_step=0.1))
    assert result.fell_back == ""


def test_the_command_falls_back_and_shows_it(no_processes, tmp_path, capsys):
    run = tmp_path / "run"
    flags = [*TINY, "--world.size", "7", "--world.turns", "10", "--steps", "50", "--run", str(run)]
    assert main(["train", "treasure_hunt", *flags]) == 1
    assert "fall_back=True" in capsys.readouterr().err and not run.exists()
    assert main(["train", "treasure_hunt", *flags, "--fall-back"]) == 0
    out = capsys.readouterr().out
    assert "NO PROCESSES: actor-0 could not be started" in out
    assert "serial instead of processes" in out and "played by the serial engine instead: actor-0" in out
    assert main(["status", str(run)]) == 0
    assert "played by the serial engine instead: actor-0" in capsys.readouterr().out


def test_a_server_that_cannot_be_executed_is_a_start_that_failed(tmp_path):
    """No stand-in: the interpreter that is to fork children is not there."""
    code = f"""
    import functools, multiprocessing, sys
    sys.path.insert(0, {str(TESTS)!r})
    from support.stand_in import StandIn
    from motet import Settings, train
    from motet.worlds import TreasureHunt
    if __name__ == "__main__":
        multiprocessing.get_context("spawn").set_executable("/nowhere/python")
        world = functools.partial(TreasureHunt, agents=2, turns=10)
        result = train(world, StandIn(), Settings(steps=60, fall_back=True))
        print(result.state, "|", result.fell_back)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done | actor-0 could not be started"), done.stdout + done.stderr


def _wait():
    time.sleep(60)


def test_a_failed_restart_is_tried_again_up_to_the_limit(no_leaks):
    refused = []

    def start(n):
        if n == 1 and len(refused) < 3:
            refused.append(n)
            raise StartError("role could not be started: no room")
        return Child("role", _wait)

    said = []
    role = Role("role", start, time.monotonic)
    supervisor = Supervisor([role], RestartLimits(restarts=10), said.append)
    try:
        supervisor.start()
        os.kill(role.child.pid, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while role.starts < 2:
            supervisor.watch(0.05)
            assert time.monotonic() < deadline
        assert len(refused) == 3 and role.total_restarts == 4
        assert sum("could not be started: no room; restarting in" in line for line in said) == 3
        refused[:] = []
        role.starts = 1
        supervisor._limits = RestartLimits(restarts=2, window_s=600)
        role.restarts.clear()
        os.kill(role.child.pid, signal.SIGKILL)
        with pytest.raises(ChildError, match="could not be started: no room; the limit of 2 restarts"):
            while time.monotonic() < deadline:
                supervisor.watch(0.05)
    finally:
        supervisor.kill()


def test_a_first_start_that_fails_halfway_leaves_no_process(no_leaks, monkeypatch):
    started = []
    init = Child.__init__

    def some(self, name, *rest):
        if name == "learner-0":
            raise StartError("learner-0 could not be started: no room")
        init(self, name, *rest)
        started.append(self.pid)

    monkeypatch.setattr(Child, "__init__", some)
    result = train(HUNT, StandIn(), Settings(steps=60, fall_back=True))
    assert len(started) == 1 and result.state == "done" and "learner-0" in result.fell_back
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_checkpoints_of_another_kind_of_damage(tmp_path):
    directory = RunDirectory.prepare(tmp_path / "run").begin({})
    (tmp_path / "run" / "best").write_text("a file where a folder should be")
    directory.save_best(Checkpoint(1, {}))
    assert (tmp_path / "run" / "best" / "checkpoint.json").exists()


# ---- Ctrl-C in a terminal


def test_two_interrupts_of_the_whole_process_group_end_the_command_at_once(tmp_path):
    """As a terminal does it: every process of the group gets the signal, children and fork server included."""
    flags = [*TINY, "--world.size", "7", "--world.turns", "10", "--steps", "100000000", "--run", "mine"]
    child = subprocess.Popen(
        [sys.executable, "-m", "motet.cli", "train", "treasure_hunt", *flags, "--limits.stop-s", "60"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    status = tmp_path / "mine" / "status.json"
    deadline = time.monotonic() + 60
    while not (status.exists() and json.loads(status.read_text())["steps"] > 100):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    pids = [row["pid"] for row in json.loads(status.read_text())["processes"]]
    os.kill(pids[1], signal.SIGSTOP)  # a learner that cannot end in order: only the second one ends it
    os.killpg(child.pid, signal.SIGINT)
    out = ""
    while "Saving a checkpoint and stopping. Press Ctrl-C again" not in out:
        line = child.stdout.readline()
        assert line, out
        out += line
    os.killpg(child.pid, signal.SIGINT)
    rest, err = child.communicate(timeout=50)  # less than it would wait for the learner
    out += rest
    assert child.returncode == 130, out + err
    assert "Traceback" not in out + err and err.strip() == "interrupted", err
    for pid in pids:
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
            assert time.monotonic() < deadline + 30, f"{pid} is left"
            time.sleep(0.02)
    assert not is_alive(tmp_path / "mine")


def test_an_interrupt_while_the_server_is_loading_ends_the_command_in_order(tmp_path):
    """Sent to the whole group as soon as the run directory is there: the fork server has just begun to load."""
    flags = [*TINY, "--world.size", "7", "--world.turns", "10", "--steps", "100000000", "--run", "mine"]
    child = subprocess.Popen(
        [sys.executable, "-m", "motet.cli", "train", "treasure_hunt", *flags],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not _served(child.pid):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.002)
    time.sleep(0.1)  # within the second that it takes to load
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130 and err == "", out + err
    assert "Saving a checkpoint and stopping" in out and not is_alive(tmp_path / "mine")


def _served(pid):
    """Whether a process has started a fork server."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            mine = path.read_text().rpartition(")")[2].split()[1] == str(pid)
            if mine and b"multiprocessing.forkserver" in (path.parent / "cmdline").read_bytes():
                return True
        except OSError:  # it ended meanwhile
            continue
    return False
