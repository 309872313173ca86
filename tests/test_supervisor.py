"""The supervisor and the children it starts, with roles that do nothing but live and die."""

import os
import signal
import time

import pytest

from motet._process import Child, Portable
from motet.errors import ChildError, SettingError
from motet.supervisor import Limits, Role, Supervisor


def live():
    time.sleep(60)


def end():
    pass


def fail():
    raise ValueError("of my own accord")


def call(portable):
    portable.value()


def role(target, name="role", beat=time.monotonic, **more):
    return Role(name, lambda n: Child(name, target), beat, **more)


def watch(supervisor, until, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < deadline
        supervisor.watch(0.05)


@pytest.fixture
def said():
    return []


def test_a_role_that_ends_by_itself_is_done(no_leaks, said):
    supervisor = Supervisor([role(end), role(live, "other", essential=False)], Limits(), said.append)
    supervisor.start()
    watch(supervisor, supervisor.finished)
    assert supervisor.finished("role")
    assert not supervisor.finished("other")
    supervisor.kill()
    assert said == []


def test_a_killed_child_gets_a_successor_and_only_it(no_leaks, said):
    first, second = role(live, "first"), role(live, "second")
    supervisor = Supervisor([first, second], Limits(), said.append)
    supervisor.start()
    pids = first.child.pid, second.child.pid
    os.kill(pids[0], signal.SIGKILL)
    watch(supervisor, lambda: first.starts == 2 and first.child is not None)
    assert first.child.pid != pids[0]
    assert second.child.pid == pids[1]
    assert "first was killed by SIGKILL" in said[0]
    supervisor.kill()


def test_a_child_without_a_beat_is_killed_first_and_replaced_then(no_leaks, said):
    hung = role(live, beat=lambda: 0.0)
    supervisor = Supervisor([hung], Limits(start_s=0.3, hang_s=0.3), said.append)
    supervisor.start()
    pid = hung.child.pid
    os.kill(pid, signal.SIGSTOP)
    watch(supervisor, lambda: hung.starts == 2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "showed no beat" in said[0]
    supervisor.kill()


def test_a_child_that_raises_ends_it_with_its_traceback(no_leaks, said):
    supervisor = Supervisor([role(fail)], Limits(), said.append)
    supervisor.start()
    with pytest.raises(ChildError, match=r"(?s)role raised.*of my own accord"):
        watch(supervisor, supervisor.finished)


def test_too_many_restarts_are_too_many(no_leaks, said):
    mortal = Role("mortal", lambda n: Child("mortal", os.kill, (0, 0)), time.monotonic)
    mortal.start = lambda n: _killed("mortal")
    supervisor = Supervisor([mortal], Limits(restarts=3, back_off_s=0.001), said.append)
    supervisor.start()
    with pytest.raises(ChildError, match="3 restarts within 60 s"):
        watch(supervisor, supervisor.finished)
    assert mortal.starts == 4


def _killed(name):
    child = Child(name, live)
    os.kill(child.pid, signal.SIGKILL)
    return child


def test_stop_waits_and_names_who_had_to_be_ended(no_leaks, said):
    quick = role(end, "quick")
    supervisor = Supervisor([quick, role(live, "slow")], Limits(stop_s=0.1), said.append)
    supervisor.start()
    assert quick.child.join(120)
    assert supervisor.stop() == ["slow"]


def test_lambdas_travel(no_leaks, tmp_path):
    target = tmp_path / "proof"
    child = Child("lambda", call, (Portable(lambda: target.write_text("here")),))
    assert child.join(120)
    assert (child.exit, target.read_text()) == (0, "here")
    child.close()


def test_the_output_of_a_child_goes_to_its_log(no_leaks, tmp_path):
    child = Child("talker", fail, log=tmp_path / "talker.log")
    assert child.join(120)
    assert "of my own accord" in (tmp_path / "talker.log").read_text()
    assert "of my own accord" in child.traceback()
    assert child.describe_end() == "talker raised"
    child.close()


def test_impossible_limits_are_refused():
    with pytest.raises(SettingError, match="hang_s"):
        Limits(hang_s=-1)
