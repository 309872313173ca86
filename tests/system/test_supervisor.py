"""The supervisor and the children it starts, with roles that do nothing but live and die."""

import functools
import os
import signal
import time
from pathlib import Path

import pytest

from motet.errors import ChildError, SettingError
from motet.system import fork_server as _fork_server
from motet.system.child import Child
from motet.system.portable import Portable
from motet.system.supervisor import RestartLimits, Role, Supervisor


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
    supervisor = Supervisor([role(end), role(live, "other", essential=False)], RestartLimits(), said.append)
    supervisor.start()
    watch(supervisor, supervisor.finished)
    assert supervisor.finished("role")
    assert not supervisor.finished("other")
    supervisor.kill()
    assert said == []


def test_only_the_killed_child_is_restarted(no_leaks, said):
    first, second = role(live, "first"), role(live, "second")
    supervisor = Supervisor([first, second], RestartLimits(), said.append)
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
    supervisor = Supervisor([hung], RestartLimits(start_s=0.3, hang_s=0.3), said.append)
    supervisor.start()
    pid = hung.child.pid
    os.kill(pid, signal.SIGSTOP)
    watch(supervisor, lambda: hung.starts == 2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "had no heartbeat" in said[0]
    supervisor.kill()


def test_a_child_that_raises_ends_it_with_its_traceback(no_leaks, said):
    supervisor = Supervisor([role(fail)], RestartLimits(), said.append)
    supervisor.start()
    with pytest.raises(ChildError, match=r"(?s)role raised.*of my own accord"):
        watch(supervisor, supervisor.finished)


def test_too_many_restarts_are_too_many(no_leaks, said):
    mortal = Role("mortal", lambda n: Child("mortal", os.kill, (0, 0)), time.monotonic)
    mortal.start = lambda n: _killed("mortal")
    supervisor = Supervisor([mortal], RestartLimits(restarts=3, back_off_s=0.001), said.append)
    supervisor.start()
    with pytest.raises(ChildError, match="3 restarts within 60 s"):
        watch(supervisor, supervisor.finished)
    assert mortal.starts == 4


def _killed(name):
    child = Child(name, live)
    os.kill(child.pid, signal.SIGKILL)
    return child


def test_a_child_that_always_hangs_ends_the_run_however_long_it_takes_each_time(no_leaks, said):
    limits = RestartLimits(hang_s=0.2, start_s=0.2, restarts=2, window_s=0.1)  # no two hangs fall into the window
    supervisor = Supervisor([role(live, "stuck", beat=lambda: 0.0)], limits, said.append)
    supervisor.start()
    with pytest.raises(ChildError, match=r"stuck had no heartbeat for 0.2 s; the limit of 2 restarts within 3.6 s"):
        watch(supervisor, lambda: False)
    supervisor.kill()


def test_stop_waits_and_names_processes_that_had_to_be_killed(no_leaks, said):
    quick = role(end, "quick")
    supervisor = Supervisor([quick, role(live, "slow")], RestartLimits(stop_s=0.1), said.append)
    supervisor.start()
    assert quick.child.join(120)
    assert supervisor.stop() == ["slow did not exit within 0.1 s of the stop request; killed it"]


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)


def fail_late(path):
    wait_for(path)
    raise ValueError("at the very end")


def die_late(path):
    wait_for(path)
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_exception_while_a_child_ends_is_reported_and_all_children_end(no_leaks, said, tmp_path):
    kinds = {"failing": fail_late, "dying": die_late, "fine": wait_for}
    makers = {name: functools.partial(Child, name, target, (str(tmp_path / "go"),)) for name, target in kinds.items()}
    roles = [Role(name, lambda n, make=make: make(), time.monotonic) for name, make in makers.items()]
    supervisor = Supervisor(roles, RestartLimits(stop_s=60), said.append)
    supervisor.start()
    (tmp_path / "go").touch()
    with pytest.raises(ChildError, match=r"failing raised\n\n(?s:.*)ValueError: at the very end"):
        supervisor.stop()
    assert all(one.child is None for one in roles)
    assert supervisor.stop() == []


def test_a_process_killed_while_it_ends_is_named(no_leaks, said, tmp_path):
    make = lambda n: Child("dying", die_late, (str(tmp_path / "go"),))  # noqa: E731
    supervisor = Supervisor([Role("dying", make, time.monotonic)], RestartLimits(stop_s=60), said.append)
    supervisor.start()
    (tmp_path / "go").touch()
    (line,) = supervisor.stop()
    assert line.startswith("dying was killed by SIGKILL while it was stopping")


def shout():
    raise ValueError("x" * 200_000 + " and the end")


def test_a_long_traceback_blocks_no_process_and_its_end_is_reported():
    child = Child("loud", shout)
    assert child.join(120)
    assert child.exit == 1 and child.traceback().endswith(" and the end\n")
    child.close()


def end_oddly():
    os.kill(os.getpid(), signal.SIGRTMIN + 1)


def test_a_signal_without_a_name_has_a_number():
    child = Child("odd", end_oddly)
    assert child.join(120)
    assert child.describe_end() == f"odd was killed by signal {signal.SIGRTMIN + 1}"
    child.close()


def test_if_the_fork_server_dies_its_children_are_restarted(said):
    """Whom the fork server takes with it was killed, not at fault."""
    roles = [role(live, name) for name in ("first", "second")]
    supervisor = Supervisor(roles, RestartLimits(), said.append)
    supervisor.start()
    pids = [one.child.pid for one in roles]
    os.kill(_fork_server.number(), signal.SIGKILL)
    watch(supervisor, lambda: all(one.child is not None and one.total_restarts for one in roles))
    assert not {one.child.pid for one in roles} & set(pids)
    assert sum("was killed by SIGKILL" in line for line in said) == 2
    supervisor.kill()


def test_a_child_whose_server_died_can_be_killed_for_certain():
    child = Child("left", live)
    os.kill(_fork_server.number(), signal.SIGKILL)
    child.kill(60)
    assert child.exit == -signal.SIGKILL
    try:
        state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    assert state in ("Z", "X", "gone")
    child.close()


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
        RestartLimits(hang_s=-1)
