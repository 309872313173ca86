"""If processes are killed, stopped or raise, the run continues or ends cleanly, and nothing is left behind."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support import TESTS, without_torch
from support.killer import BRISK, Killer
from support.stand_in import StandIn

from motet.errors import ChildError, MotetError
from motet.runs.directory import RunDirectory
from motet.system.supervisor import RestartLimits
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import TreasureHunt

HUNT = functools.partial(TreasureHunt, agents=2)


OFTEN = {"metrics_every_s": 0.1}
"""Whoever watches looks ten times a second, and need not be given time to."""


def paced(steps=8_000, **settings):
    """Slow enough that every learner does many updates."""
    return Settings(
        steps=steps, updates_per_step=0.2, slack=100, learner_processes=2, limits=BRISK, **OFTEN, **settings
    )


def run(killer, settings, world=HUNT, **more):
    result = train(world, StandIn(), settings, on_update=killer.watch, on_message=killer.said.append, **more)
    for earlier, later in zip(killer.versions, killer.versions[1:], strict=False):
        assert all(a <= b for a, b in zip(earlier, later, strict=True)), "a version went back"
    return result


def test_only_the_killed_learner_is_restarted_and_it_continues(no_leaks):
    killer = Killer(lambda row: row.name == "learner-1", most=2)
    result = run(killer, paced())
    assert result.state == "done"
    assert result.restarts == len(killer.sent) >= 1
    assert killer.restarts == {"agent_0": 0, "agent_1": result.restarts}, "of the learner of each agent"
    assert len({pid for name, pid in killer.pids if name == "learner-1"}) > 1
    assert len({pid for name, pid in killer.pids if name in ("actor-0", "learner-0")}) == 2
    # Updates since the last version are lost, never more: publish_every is 10.
    for earlier, later in zip(killer.updates, killer.updates[1:], strict=False):
        assert all(b >= a - 10 for a, b in zip(earlier, later, strict=True))
    assert min(result.updates.values()) > 1000


def test_only_the_killed_actor_is_restarted_and_it_continues_in_its_lanes(no_leaks):
    killer = Killer(lambda row: row.name == "actor-0", most=2)
    broken = []
    result = train(
        HUNT,
        StandIn(),
        paced(),
        on_update=lambda s: (killer.watch(s), broken.append([row.broken for row in s.agents])),
        on_message=killer.said.append,
    )
    assert result.state == "done"
    assert result.steps >= 8_000
    assert result.restarts == len(killer.sent) >= 1
    assert max(broken[-1]) >= 1


def test_a_stopped_process_counts_as_hung_and_is_replaced(no_leaks):
    killer = Killer(lambda row: True, signals=(signal.SIGSTOP,), most=1)
    result = run(killer, paced())
    assert result.state == "done"
    assert result.restarts == 1
    assert any("had no heartbeat" in line for line in killer.said)


def test_a_restarted_learner_continues_with_its_optimiser(no_leaks, tmp_path):
    """A learner killed in lockstep right after a version: its successor ends where an undisturbed one ends."""
    killer = Killer(lambda row: row.name == "learner-0", most=1)
    settings = Settings(
        steps=3000, updates_per_step=0.2, slack=0, publish_every=1, limits=BRISK, learner_processes=1, **OFTEN
    )
    disturbed = run(killer, settings)
    calm = train(HUNT, StandIn(), settings)
    assert killer.sent
    for name in calm.agents:
        # One update may have been begun and not kept: its draws are repeated from the saved stream, so nothing differs.
        np.testing.assert_array_equal(disturbed.agents[name]["state"], calm.agents[name]["state"])
        assert disturbed.agents[name]["counters"] == calm.agents[name]["counters"]


def test_too_many_restarts_end_the_run(no_leaks):
    killer = Killer(lambda row: row.name == "learner-0", most=100, pause_s=0.0)
    settings = Settings(steps=10**9, limits=RestartLimits(restarts=2, window_s=600), learner_processes=1, **OFTEN)
    with pytest.raises(ChildError, match=r"learner-0 was killed by SIGKILL; the limit of 2 restarts"):
        run(killer, settings)


class Faulty(TreasureHunt):
    """Raises in the 300th step of each instance."""

    moves = 0

    def step(self, action):
        self.moves += 1
        if self.moves == 300:
            raise RuntimeError("the roof fell in")
        super().step(action)


def test_a_world_that_raises_is_shown_and_the_run_ends_with_a_checkpoint(no_leaks, tmp_path):
    with pytest.raises(ChildError) as caught:
        train(Faulty, StandIn(), Settings(steps=10_000, **OFTEN), run=tmp_path / "run")
    text = str(caught.value)
    for part in ("actor-0", "the roof fell in", "step", "seed", "action", "Faulty"):
        assert part in text
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.load().agents.keys() == {"agent_0", "agent_1"}
    assert "the roof fell in" in (directory.logs / "actor-0.log").read_text()


def test_a_world_that_raises_is_created_again_if_allowed(no_leaks):
    broken = []
    result = train(
        Faulty,
        StandIn(),
        Settings(steps=2000, remake_worlds=True, **OFTEN),
        on_update=lambda s: broken.append(max(row.broken for row in s.agents)),
    )
    assert result.state == "done"
    assert broken[-1] >= 5


def test_a_time_limit_ends_the_run_in_order(no_leaks, tmp_path):
    result = train(HUNT, StandIn(), Settings(steps=10**9, seconds=1.5, **OFTEN), run=tmp_path / "run")
    assert result.state == "stopped"
    assert RunDirectory.open(tmp_path / "run").steps() == [result.steps]


SCRIPT = """
    import functools, sys
    sys.path.insert(0, {tests!r})
    from support.stand_in import StandIn
    from motet import Settings, train
    from motet.worlds import TreasureHunt

    if __name__ == "__main__":
        def watch(snapshot):
            if all(row.steps for row in snapshot.agents):
                print("pids", *[row.pid for row in snapshot.processes], flush=True)
        result = train(
            functools.partial(TreasureHunt, agents=2), StandIn(),
            Settings(steps=10**9, learner_processes=2, metrics_every_s=0.1),
            run={run!r}, on_update=watch, on_message=functools.partial(print, flush=True),
        )
        print("state", result.state, flush=True)
"""


@pytest.fixture
def started(tmp_path):
    """A run in a process group of its own, whose processes are all at work."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(tests=str(TESTS), run=str(tmp_path / "run"))))
    process = subprocess.Popen(
        [sys.executable, str(script)], env=without_torch(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = []
    assert process.stdout is not None
    watchdog = threading.Timer(240, process.kill)  # whoever reads lines then reads the end
    watchdog.start()
    while len(pids) < 3 or not all(pids):
        line = process.stdout.readline()
        assert line, "the run ended early"
        if line.startswith("pids"):
            pids = [int(pid) for pid in line.split()[1:]]
    yield process, pids, tmp_path / "run"
    watchdog.cancel()
    process.kill()
    process.wait()
    process.stdout.close()


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def assert_gone(pids, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if not gone(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def test_killing_the_parent_ends_every_child_also_stopped_ones(started):
    process, pids, _ = started
    os.kill(pids[0], signal.SIGSTOP)
    process.kill()
    process.wait()
    assert_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_ends_in_order_with_a_checkpoint(started, number):
    process, pids, run = started
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    rest = process.stdout.read()
    assert process.wait() == 0
    assert "state stopped" in rest
    assert RunDirectory.open(run).load().step > 0
    assert_gone(pids)


def test_a_sigterm_for_all_processes_of_the_run_ends_it_in_order(started):
    """As timeout, a batch system or a container's end sends it: to the whole group, fork server included."""
    process, pids, run = started
    os.killpg(process.pid, signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait() == 0 and "state stopped" in rest, rest
    assert RunDirectory.open(run).load().step > 0
    assert_gone(pids)


def test_two_interrupts_end_at_once(started):
    process, pids, _ = started
    os.kill(pids[1], signal.SIGSTOP)  # a learner that cannot end in order
    process.send_signal(signal.SIGINT)
    while "Press Ctrl-C again to stop immediately" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    assert_gone(pids)


def test_a_script_may_come_from_standard_input(tmp_path):
    text = textwrap.dedent(SCRIPT.format(tests=str(TESTS), run=str(tmp_path / "run")))
    text = text.replace("steps=10**9", "steps=300")
    done = subprocess.run(
        [sys.executable, "-"], input=text, env=without_torch(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0 and "state done" in done.stdout, done.stdout + done.stderr


def test_a_missing_main_guard_is_explained(tmp_path):
    script = tmp_path / "script.py"
    text = textwrap.dedent(SCRIPT.format(tests=str(TESTS), run=str(tmp_path / "run")))
    script.write_text(text.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run(
        [sys.executable, str(script)], env=without_torch(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]


def test_errors_of_children_are_motets_own():
    assert issubclass(ChildError, MotetError)


@pytest.mark.slow
def test_storm(no_leaks):
    """A random process is killed or stopped about every second for three minutes; the run ends by itself."""
    killer = Killer(lambda row: True, signals=(signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP), most=10**6, pause_s=0.8)
    until = time.monotonic() + 180
    threading.Timer(180, lambda: setattr(killer, "_most", 0)).start()
    settings = Settings(
        steps=100_000,
        updates_per_step=0.2,
        slack=100,
        learner_processes=2,
        actors=2,
        limits=RestartLimits(2.0, 60, 10**6),
        **OFTEN,
    )
    total = 0
    while time.monotonic() < until:
        killer.versions.clear()
        result = run(killer, settings)
        assert result.state == "done"
        assert result.steps >= 100_000
        assert min(result.updates.values()) >= 0.2 * 100_000 - 200
        total += result.restarts
    assert total >= 60
    assert len(killer.pids) >= 60
