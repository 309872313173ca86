"""Working through a list with processes: the same result, the same error, and no waits for dead processes."""

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support import without_torch
from support.eager_workers import becomes, make_eager
from support.small_models import Layered, Line

from motet.cli import main
from motet.errors import ModelError, StartError, WorkerLostError
from motet.plan import enumerate_states, solve
from motet.plan import parallel as _workers
from motet.plan.parallel import WorkerTraceback, work_through
from motet.worlds.rooms import Rooms


@pytest.fixture
def eager(monkeypatch):
    """Workers at once, for tiny parts, and proof that they were there."""
    return make_eager(monkeypatch, part_s=0.003)


class Slow(Layered):
    """Takes its time, so that workers come up while there is work left."""

    def transition_probabilities(self, state, actions):
        time.sleep(0.0005)
        return super().transition_probabilities(state, actions)


def assert_equal_graphs(one, other):
    assert list(one.states) == list(other.states)
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, other.arrays()[name])
        assert array.dtype == other.arrays()[name].dtype


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_find_what_the_caller_alone_finds(eager, workers):
    model = Slow(3, depth=40, width=6)
    alone = enumerate_states(model, workers=1)
    assert not eager
    assert_equal_graphs(alone, enumerate_states(model, workers=workers))
    assert len(eager) > workers


def test_parts_of_any_size_give_the_same(eager, monkeypatch):
    rooms = Rooms("passage", horizon=4)
    graphs = []
    for seconds in (0.0, 0.0005, 10.0):
        monkeypatch.setattr(_workers, "PART_S", seconds)
        graphs.append(enumerate_states(rooms, workers=1))
    for graph in graphs[1:]:
        assert_equal_graphs(graphs[0], graph)


class Wrong(Slow):
    """Breaks its contract in several states; the first of them is the one to be told."""

    def transition_probabilities(self, state, actions):
        if state[0] >= 20 and tuple(actions) == (0, 1, 0):
            raise ZeroDivisionError("oh")
        return super().transition_probabilities(state, actions)


def test_a_workers_exception_is_raised_with_its_traceback_and_equals_that_of_the_serial_search(eager):
    model = Wrong(3, depth=40, width=6)
    with pytest.raises(ModelError) as alone:
        enumerate_states(model, workers=1)
    assert not eager
    with pytest.raises(ModelError) as together:
        enumerate_states(model, workers=2)
    assert str(together.value) == str(alone.value)
    if eager and isinstance(together.value.__cause__, WorkerTraceback):
        assert "ZeroDivisionError" in str(together.value.__cause__)
        assert 'raise ZeroDivisionError("oh")' in str(together.value.__cause__)
    else:
        pytest.fail("no worker was asked")


def _work(part):
    time.sleep(0.01)
    if "die" in part:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(part)


def test_a_killed_worker_ends_the_job_with_its_name(eager):
    items = [0] * 300
    items[200] = "die"
    with pytest.raises(WorkerLostError, match=r"plan-worker-\d was killed by SIGKILL while it was working on states"):
        work_through(items, _work, lambda answer: None, workers=2)


def test_a_worker_killed_from_outside_ends_the_job(eager):
    crews = []
    make = _workers._WorkerPool.__post_init__

    def remembered(self):
        crews.append(self)
        make(self)

    def kill_one():
        while not (crews and crews[0].workers and crews[0].workers[0].up):
            time.sleep(0.01)
        os.kill(crews[0].workers[0].child.pid, signal.SIGKILL)

    _workers._WorkerPool.__post_init__ = remembered
    try:
        killer = threading.Thread(target=kill_one, daemon=True)
        killer.start()
        with pytest.raises(WorkerLostError, match="was killed by SIGKILL"):
            work_through([0] * 100_000, _work, lambda answer: None, workers=2)
        killer.join(60)
    finally:
        _workers._WorkerPool.__post_init__ = make


def test_no_worker_is_left_behind(eager):
    model = Slow(3, depth=30, width=6)
    enumerate_states(model, workers=2)
    assert eager
    deadline = time.monotonic() + 60
    while _plan_workers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _plan_workers()


def _plan_workers():
    import multiprocessing

    return [child for child in multiprocessing.active_children() if child.name.startswith("plan-worker")]


def test_goals_and_beliefs_are_asked_by_workers_too(eager):
    class SlowGoal:
        name = "even"

        def is_achieved(self, state):
            time.sleep(0.002)
            return state[0] % 2 == 0

    model = Layered(4, (2, 2), (2,), depth=30, width=4)
    odd = model.goals[1][0]
    share = 0.6

    def believed(state, agent, action):
        time.sleep(0.0005)
        return [(share, [action] * 3), (1 - share, [0] * 3)]

    from motet.plan import Humans

    graph = enumerate_states(model, workers=1)
    eager.clear()
    found = [
        solve(graph, [SlowGoal(), odd], Humans(believed_others_policy=believed), workers=workers) for workers in (1, 2)
    ]
    assert len(eager) > 2
    for name, array in found[0].arrays.items():
        np.testing.assert_array_equal(array, found[1].arrays[name])


SCRIPT = """
import time
from types import SimpleNamespace
from typing import NamedTuple

from motet.plan import Humans, enumerate_states, parallel as _workers, solve

_workers.START_S = _workers.COLD_START_S = _workers.ALONE_S = _workers.GAIN = 0.0
make = _workers._WorkerPool.__post_init__


def patient(crew):
    make(crew)
    while not crew.idle():
        time.sleep(0.01)


_workers._WorkerPool.__post_init__ = patient


class At(NamedTuple):
    step: int
    spot: int


class Parity:
    def __init__(self, odd):
        self.odd = odd

    def is_achieved(self, state):
        return state.step % 2 == self.odd


class Walk:
    agents = ["a", "b"]
    action_space = SimpleNamespace(n=2)
    human_agent_indices = [0, 1]

    def reset(self):
        pass

    def get_state(self):
        return At(0, 0)

    def set_state(self, state):
        pass

    def transition_probabilities(self, state, actions):
        time.sleep(0.0005)
        if state.step == 60:
            return None
        return [(1.0, At(state.step + 1, (state.spot + sum(actions)) % 7))]


def main():
    sent = []
    send = _workers._WorkerPool.send
    _workers._WorkerPool.send = lambda self, first, part: (sent.append(first), send(self, first, part))
    alone, together = (enumerate_states(Walk(), workers=workers) for workers in (1, 2))
    assert sent and alone.states == together.states and type(together.states[-1]) is At
    share = 0.5
    believed = lambda state, agent, action: [(share, [0, 0]), (1 - share, [1, 1])]
    goals = lambda state, human: [(Parity_odd if state.step % 2 == 0 else Parity_even, 1.0)]
    solve(together, goals, Humans(believed_others_policy=believed), workers=2)
    print("parts sent:", len(sent) > 4)


Parity_odd, Parity_even = Parity(1), Parity(0)
if __name__ == "__main__":
    main()
"""


def run_script(folder):
    command = [sys.executable, "script.py"]
    return subprocess.run(
        command, cwd=folder, env=without_torch(), capture_output=True, text=True, timeout=120, check=False
    )


def test_definitions_in_a_script_work_in_workers(tmp_path):
    """States, models, goals and beliefs of ``__main__``, and back again as what they were."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "parts sent: True\n"


def test_a_script_without_a_main_guard_gets_an_explanation(tmp_path):
    script = SCRIPT.replace('if __name__ == "__main__":\n    main()', "main()").replace("(1, 2)", "(2, 2)")
    (tmp_path / "script.py").write_text(script)
    done = run_script(tmp_path)
    assert done.returncode == 1
    assert "ChildError: processes cannot be started: the script calls motet without a main guard" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]


def test_a_program_that_ends_before_its_workers_are_up_ends_quietly(tmp_path):
    script = (
        "from motet.plan import enumerate_states, parallel as _workers",
        "from motet.worlds import Rooms",
        "_workers.COLD_START_S = 0.0",
        "if __name__ == '__main__':",
        "    enumerate_states(Rooms('freeing', 5), workers=2)",
    )
    (tmp_path / "script.py").write_text("\n".join(script))
    done = run_script(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_model_that_cannot_be_sent_is_named(eager):
    class Locked(Slow):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            self.lock = threading.Lock()

    with pytest.raises(ModelError, match=r"cannot be sent to worker processes: .*lock.* or give workers=1"):
        enumerate_states(Locked(3, depth=30), workers=2)


# What cannot be sent, and workers that cannot be started


class Locked(Slow):
    """As models are that draw pictures, or talk to a simulator."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.viewer = {"window": threading.Lock()}


@pytest.fixture
def keen(monkeypatch):
    """Workers are wanted at once, by default two. Returns what is called when they are being started."""
    for name in ("START_S", "COLD_START_S", "GAIN", "ALONE_S"):
        monkeypatch.setattr(_workers, name, 0.0)
    monkeypatch.setattr(_workers, "usable_cores", lambda: 2)
    make, then = _workers._WorkerPool.__post_init__, []

    def started(crew):
        make(crew)
        for wait in then:
            becomes(functools.partial(wait, crew))

    monkeypatch.setattr(_workers._WorkerPool, "__post_init__", started)
    return then


def test_model_that_cannot_be_sent_is_enumerated_in_the_caller(keen):
    said = []
    found = enumerate_states(Locked(3, depth=8), on_message=said.append)
    assert_equal_graphs(enumerate_states(Slow(3, depth=8), workers=1), found)
    (line,) = said
    assert "model.viewer['window']" in line and "cannot pickle '_thread.lock' object" in line
    assert line.endswith("no workers are used, and the calling process does all the work")


def test_without_say_it_is_a_warning(keen):
    with pytest.warns(RuntimeWarning, match=r"model\.viewer\['window'\].* the calling process does all the work"):
        enumerate_states(Locked(3, depth=8))


def test_with_workers_given_it_is_an_error_that_names_the_part(keen):
    with pytest.raises(ModelError, match=r"model\.viewer\['window'\].*lock.* or give workers=1"):
        enumerate_states(Locked(3, depth=8), workers=2)


def test_goals_generators_and_beliefs_that_cannot_be_sent_are_asked_in_the_caller(keen):
    from motet.plan import Humans

    model, lock, said = Layered(4, (2, 2), (2,), depth=12, width=4), threading.Lock(), []
    graph = enumerate_states(model, workers=1)

    def believed(state, agent, action):
        with lock:
            return [(1.0, [action] * 3)]

    def generate(state, human):
        with lock:
            return model.goals

    found = solve(graph, generate, Humans(believed_others_policy=believed), on_message=said.append)
    plain = solve(graph, model.goals, Humans(believed_others_policy=lambda s, h, a: [(1.0, [a] * 3)]), workers=1)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(array, found.arrays[name])
    assert [re.search(r"(generate|believed)\.__closure__\['lock'\]", line)[1] for line in said] == [
        "generate",
        "believed",
    ]


class Token:
    """A state that can be hashed, but not pickled."""

    def __init__(self, step):
        self.step, self.lock = step, threading.Lock()

    def __eq__(self, other):
        return self.step == other.step

    def __hash__(self):
        return hash(self.step)


class Tokens(Line):
    def __init__(self):
        super().__init__(start=Token(0))

    def transition_probabilities(self, state, actions):
        time.sleep(0.001)
        return None if state.step == 30 else [(1.0, Token(state.step + 1))]


def test_states_that_cannot_be_sent_are_named(keen):
    said = []
    assert len(enumerate_states(Tokens(), on_message=said.append)) == 31
    assert len(said) == 1 and re.search(r"states\[0\]\.lock", said[0])
    with pytest.raises(ModelError, match=r"states\[0\]\.lock"):
        enumerate_states(Tokens(), workers=2)


def test_workers_that_cannot_be_started_are_done_without(keen, monkeypatch, no_leaks):
    def refused(name, target, args):
        raise StartError(f"{name} could not be started: no room")

    monkeypatch.setattr(_workers, "_start_here", refused)
    keen.append(lambda crew: crew.failure is not None)
    said = []
    found = enumerate_states(Slow(3, depth=8), on_message=said.append)
    assert_equal_graphs(enumerate_states(Slow(3, depth=8), workers=1), found)
    assert said == [
        "plan-worker-0 could not be started: no room; no workers are used, and the calling process does all the work"
    ]
    with pytest.raises(StartError, match="plan-worker-0 could not be started: no room"):
        enumerate_states(Slow(3, depth=8), workers=2)


def test_one_worker_that_cannot_be_started_leaves_the_others(keen, monkeypatch, no_leaks):
    start, parts, send = _workers._start_here, [], _workers._WorkerPool.send

    def refused(name, target, args):
        if name == "plan-worker-1":
            raise StartError(f"{name} could not be started: no room")
        return start(name, target, args)

    def sent(crew, first, part):
        parts.append(first)
        send(crew, first, part)

    monkeypatch.setattr(_workers, "_start_here", refused)
    monkeypatch.setattr(_workers._WorkerPool, "send", sent)
    keen.extend([lambda crew: crew.failure is not None, lambda crew: crew.idle()])
    said = []
    found = enumerate_states(Slow(3, depth=12), on_message=said.append)
    assert_equal_graphs(enumerate_states(Slow(3, depth=12), workers=1), found)
    assert parts
    assert said == ["plan-worker-1 could not be started: no room; the job continues without it"]


class Homebound(Slow):
    """Can be pickled, but lives in one process only."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.home = os.getpid()

    def __setstate__(self, state):
        if state["home"] != os.getpid():
            raise RuntimeError("the display is gone")
        self.__dict__.update(state)


def test_workers_that_die_before_they_begin_are_done_without(keen, no_leaks):
    keen.append(lambda crew: len(crew.workers) == 2 and all(w.child.exit is not None for w in crew.workers))
    said = []
    found = enumerate_states(Homebound(3, depth=8), on_message=said.append)
    assert_equal_graphs(enumerate_states(Slow(3, depth=8), workers=1), found)
    (line,) = said
    assert re.fullmatch(
        r"plan-worker-\d raised .*RuntimeError: the display is gone; the job continues without it", line
    )
    with pytest.raises(WorkerLostError, match=r"plan-worker-\d raised before it had begun.*"):
        enumerate_states(Homebound(3, depth=8), workers=2)


def test_command_prints_one_line_if_planning_stays_in_the_caller(keen, tmp_path, monkeypatch, capfd):
    (tmp_path / "viewer_model.py").write_text(
        "import threading, time\n"
        "from support.foreign_models import GatedPath\n"
        "class Viewed(GatedPath):\n"
        "    def __init__(self):\n"
        "        super().__init__(width=4, max_steps=5)\n"
        "        self.window = threading.Lock()\n"
        "    def transition_probabilities(self, state, actions):\n"
        "        time.sleep(0.0005)\n"
        "        return super().transition_probabilities(state, actions)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "viewer_model:Viewed"]) == 0
    shown = capfd.readouterr()
    lines = [line for line in shown.err.splitlines() if "window" in line]
    assert lines and lines[0].startswith("model.window cannot be sent to worker processes: ")
    assert "Warning" not in shown.err and "power of agent_1" in shown.out
    assert main(["plan", "viewer_model:Viewed", "--workers", "2"]) == 2
    assert "or give workers=1" in capfd.readouterr().err


def test_small_models_start_no_process(monkeypatch):
    monkeypatch.setattr(_workers, "_WorkerPool", None)  # would be called
    enumerate_states(Rooms("closet", horizon=5), workers=8)
    enumerate_states(Line(100), workers=8)


@pytest.mark.parametrize(("idle_s", "starts"), [(10.0, True), (0.0, False)])
def test_workers_are_started_only_if_there_is_a_core_for_them(monkeypatch, idle_s, starts):
    looks = iter([0.0, idle_s])
    monkeypatch.setattr(_workers, "idle_s", lambda: next(looks))
    made = []
    monkeypatch.setattr(_workers, "_WorkerPool", lambda work, team: made.append(team.count))
    team = _workers.WorkerTeam(4, _workers._start_here)
    job = _workers._PlanJob([0] * 10**6, None, None, team, grows=True)
    job.cost.work = 1.0
    job.think([0], 0)
    assert made == ([4] if starts else [])


def test_the_gain_is_reckoned_from_what_was_measured():
    assert _workers._Cost(work=1.0, merge=0.01, transport=0.01).gain(2) == pytest.approx(1.01 / 0.5025)
    assert _workers._Cost(work=1.0, merge=1.0, transport=1.0).gain(8) == 1.0
