"""Episodes and plans on a cluster whose nodes die: results have the same bytes and bits, and no process is left."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support import playing_policies as playing
from support.eager_workers import becomes, make_eager
from support.failing_code import Market
from support.family import descendants
from support.gated import Standstill
from support.ray_nodes import ray_nodes
from support.small_models import Layered, Parity, Round, Wide, believed, wanted

from motet.errors import SettingError, WaitTimeoutError
from motet.evaluation.evaluate import evaluate
from motet.evaluation.jobs import JobPool
from motet.evaluation.tournament import tournament
from motet.isolation.policy import PolicyLimits
from motet.placement import Cluster
from motet.plan import Humans, Robot, best_response, enumerate_states, induction, solve
from motet.plan import parallel as _workers
from motet.plan import sweeps as _sweeps
from motet.system.child import Child
from motet.system.fork_server import context
from motet.worlds import TreasureHunt

# Ray leaves sockets to the garbage collector, and its own modules warn of its own changes to come.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster():
    """A cluster with one node, which the driver is on; tests add others."""
    with ray_nodes(SIZE, MOTET_TEST_CLUSTER=MARK) as one:  # whatever starts there has the mark, wherever it goes
        yield one


MARK = f"of-{os.getpid()}"
SIZE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@pytest.fixture
def second(cluster):
    """Another node; a new one if the last test has ended it, and Ray knows of its end."""
    cluster.wait_for_nodes()
    others = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    return others[0] if others else cluster.add_node(**SIZE)


def title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it ended meanwhile
        return ""


class Slow(TreasureHunt):
    """So slow that nobody is done before the others have begun."""

    def reset(self, *args, **kwargs):
        time.sleep(0.1)
        super().reset(*args, **kwargs)


class Once:
    """Does something once, as soon as so many episodes are done; in a thread, since a node takes its time to die."""

    def __init__(self, at_least, do):
        self.at_least, self.do, self.thread = at_least, do, None

    def __call__(self, done, total):
        if done >= self.at_least and self.thread is None:
            self.thread = threading.Thread(target=self.do)
            self.thread.start()


class Stalling(JobPool):
    """Some of them never begin, as if there were no room for them."""

    def __init__(self, stalled, **more):
        self.stalled = stalled
        super().__init__(2, **more)

    def _start(self, number):
        if number not in self.stalled:
            return super()._start(number)
        here, there = context().Pipe()
        with there:
            return Child(f"player-{number}", _say_nothing, (there,)), here


def _say_nothing(pipe):
    time.sleep(1e6)


def test_an_evaluation_does_not_wait_for_a_player_that_does_not_begin():
    chosen = {"episodes": 6, "seed": 1, "jobs": 2}
    with Stalling([1]) as workers:
        result = evaluate("matrix", "random", **chosen, workers=workers)
    assert result.deterministic() == evaluate("matrix", "random", **chosen).deterministic()
    lines = []
    with Stalling([0, 1]) as workers:
        workers._on_message = lines.append
        up, stalled = workers._workers
        up.ready, stalled.heard = 0, time.monotonic() - 1000
        for _ in range(2):
            workers._find_hung([up, stalled])
        assert lines == ["player-1 has not started within 300 s; the other jobs continue"]
        up.ready = 1
        with pytest.raises(WaitTimeoutError, match="player-1 sent no heartbeat for 300 s while it started"):
            workers._find_hung([up, stalled])


@pytest.fixture
def falls(cluster, second):
    """Ends the second node as if its power had failed."""
    return lambda: cluster.remove_node(second, allow_graceful=False)


def test_a_node_dies_in_the_middle_of_an_evaluation_and_there_is_no_room_for_a_restart(falls, tmp_path):
    chosen = {"episodes": 20, "seed": 5}
    still, lines = Standstill(tmp_path), []
    here = evaluate(still.world, ["random", "noop"], **chosen)
    with still.until(falls):
        there = evaluate(still.world, ["random", "noop"], **chosen, engine="ray", jobs=2, on_message=lines.append)
    assert any("; restarting" in line for line in lines), lines
    assert not there.partial and len(there.episodes) == 20
    assert there.deterministic() == here.deterministic()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("fault", ["bug", pytest.param("vanishes", marks=pytest.mark.slow)])
def test_episodes_that_fail_on_a_cluster_are_those_that_fail_here(fault):
    chosen = {"episodes": 5, "seed": 3}
    world = partial(Market, fault=fault, below=0.15)
    here, there = (evaluate(world, ["random", "noop"], **chosen, engine=engine) for engine in ("processes", "ray"))
    assert [one.failed for one in here.episodes] == ["", "", ""] + ["world" if fault == "bug" else "job"] * 2
    assert there == here and not there.partial


@pytest.mark.slow
def test_a_node_dies_in_the_middle_of_a_tournament(falls, tmp_path):
    chosen = {"rounds": 4, "seed": 2}
    world = partial(Slow, agents=2)
    here = tournament(world, ["random", "noop", "forager"], **chosen)
    lines, watch = [], Once(3, falls)
    there = tournament(
        world, ["random", "noop", "forager"], **chosen, dir=tmp_path, engine="ray", jobs=2, on_progress=watch,
        on_message=lines.append,
    )  # fmt: skip
    watch.thread.join(150)
    assert any("; restarting" in line for line in lines), lines
    assert there.deterministic() == here.deterministic()
    again = tournament(world, ["random", "noop", "forager"], **chosen, dir=tmp_path)  # what was written is whole
    assert again.deterministic() == here.deterministic()


@pytest.fixture
def eager(monkeypatch):
    """JobPool at once, whether it pays or not; the caller waits for the first one. Gives the parts that are sent."""
    return make_eager(monkeypatch, part_s=0.01)


@pytest.fixture
def asked(monkeypatch):
    """Nodes at once, whether it pays or not; the caller waits for them. Gives the states that they are to sweep."""
    from motet.cluster.workers import NodeSweeper

    for name in ("START_S", "GAIN"):
        monkeypatch.setattr(_sweeps, name, 0.0)
    start, ask, spans = _sweeps._Spread._start, NodeSweeper.ask, []

    def patient(spread, place):
        start(spread, place)
        becomes(lambda: spread._is_up(place) or place.sweeper is None)  # the latter: no node is left for it

    def asking(sweeper, first, last, news):
        spans.append((first, last))
        ask(sweeper, first, last, news)

    monkeypatch.setattr(_sweeps._Spread, "_start", patient)
    monkeypatch.setattr(NodeSweeper, "ask", asking)
    return spans


class Pondering(Layered):
    def transition_probabilities(self, state, actions):
        time.sleep(0.0005)
        return super().transition_probabilities(state, actions)


def same_graphs(one, two):
    assert one.states == two.states
    for name, array in one.arrays().items():
        assert array.tobytes() == two.arrays()[name].tobytes(), name


@pytest.mark.parametrize("who", [pytest.param("hosts", marks=pytest.mark.slow), "node"])
def test_work_of_a_lost_plan_worker_is_done_again(cluster, falls, monkeypatch, who):
    sent = make_eager(monkeypatch, part_s=0.01, workers=2)  # else the node may fall before its worker is there
    model = Pondering(seed=4, humans=(2, 2), robots=(2,), depth=20, width=12)
    here = enumerate_states(model, workers=1)
    lost, lose = [], _workers._WorkerPool._lose

    def losing(crew, worker, error):
        lost.append(worker.busy_with)
        lose(crew, worker, error)

    monkeypatch.setattr(_workers._WorkerPool, "_lose", losing)

    def watch(progress):
        if progress.done > 40 and not watch.thread:
            watch.thread = threading.Thread(target=falls if who == "node" else kill_hosts)
            watch.thread.start()
            watch.thread.join(150)  # what was under way is lost: there is more to be asked

    watch.thread = None
    monkeypatch.setattr(_workers, "TICK_S", 0.02)
    there = enumerate_states(model, workers=2, engine="ray", progress=watch)
    assert sent and lost
    same_graphs(here, there)


def hosts():
    return [int(pid) for pid in descendants() if title(pid).startswith("ray::ChildHost")]


def kill_hosts():
    for pid in hosts():
        kill(pid)


@pytest.fixture(scope="module")
def wide():
    graph = enumerate_states(Wide(), workers=1, rewards=True)
    assert np.diff(graph.levels).max() > _sweeps.FEW
    return graph


def same_arrays(one, two):
    assert one.keys() == two.keys()
    for name, array in one.items():
        assert array.dtype == two[name].dtype and array.tobytes() == two[name].tobytes(), name


@pytest.mark.parametrize("how", ["plain", "all at once"])
def test_a_plan_solved_on_two_nodes_has_the_same_bits(second, asked, wide, how):
    chosen = {"goals": [Parity("even", 0), Parity("odd", 1)]}
    if how != "plain":
        humans = Humans(rho=0.1, believed_others_policy=believed, robot="mean")
        chosen = {"goals": wanted, "humans": humans, "robot": Robot(rho=0.2), "dtype": "float32"}
    here = solve(wide, **chosen, workers=1)
    there = solve(wide, **chosen, workers=2, engine="ray")
    assert len(asked) >= 3  # one sweep computes the values of the humans and of the robot
    same_arrays(here.arrays, there.arrays)


def test_responses_on_two_nodes_have_the_same_bits(second, asked, wide, monkeypatch):
    monkeypatch.setattr(induction, "_FEW_ENTRIES", 1)
    with_cycles = enumerate_states(Round(), workers=1, cycles=True, rewards=True)
    for graph, horizon in ((wide, None), (with_cycles, 5)):
        asked.clear()
        here = best_response(graph, "a", gamma=0.9, horizon=horizon, workers=1)
        there = best_response(graph, "a", gamma=0.9, horizon=horizon, workers=2, engine="ray")
        assert len(asked) >= 5
        assert here.value.tobytes() == there.value.tobytes()
        assert here.choice.tobytes() == there.choice.tobytes()


@pytest.mark.parametrize("who", [pytest.param("process", marks=pytest.mark.slow), "node"])
def test_states_of_a_lost_node_are_swept_elsewhere(falls, asked, wide, monkeypatch, who):
    goals = [Parity("even", 0), Parity("odd", 1)]
    here = solve(wide, goals, workers=1)
    ask, lose, lost = _sweeps._Spread._ask, _sweeps._Spread._lose, []

    def kill_and_ask(spread, places, *more):
        if places and len(asked) == 1:
            falls() if who == "node" else kill(next(pid for pid in descendants() if "SweepHost" in title(pid)))
        ask(spread, places, *more)

    def losing(spread, place, error):
        lost.append(error)
        lose(spread, place, error)

    monkeypatch.setattr(_sweeps._Spread, "_ask", kill_and_ask)
    monkeypatch.setattr(_sweeps._Spread, "_lose", losing)
    there = solve(wide, goals, workers=2, engine="ray")
    # A successor is lost with its node too if Ray has not yet noticed that the node is gone.
    assert 1 <= len(lost) <= (1 if who == "process" else 2), lost
    assert len(asked) > 2 if who == "process" else len(asked) == 2
    same_arrays(here.arrays, there.arrays)


def kill(pid):
    os.kill(int(pid), signal.SIGKILL)
    becomes(lambda: not title(pid))


def there():
    """Processes of ours that were started on the cluster, or were left anywhere by those; not Ray's own."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and "multiprocessing" in title(entry.name):
            try:
                if f"MOTET_TEST_CLUSTER={MARK}" in (entry / "environ").read_text(errors="replace"):
                    found.add(entry.name)
            except OSError:  # it ended meanwhile
                continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the guard needs Linux")
def test_hostile_policies_on_two_nodes_affect_only_themselves_and_leave_nothing(second):
    policies = [
        "support.hostile_zoo:Forks,kw.at=2",
        "support.hostile_zoo:LeavesQuietly,kw.at=3",
        "support.hostile_zoo:Honest,name=honest",
    ]
    chosen = {"episodes": 8, "isolate": True, "limits": PolicyLimits(decision_s=1.0), "max_failures": 2, "seed": 3}
    here = evaluate(playing.Duet, policies, **chosen, jobs=2)
    before, seen, lines = there(), [], []

    def watch(done, total):
        seen.append(there() - before)
        if done == 3:
            kill(hosts()[0])

    away = evaluate(playing.Duet, policies, **chosen, jobs=2, engine="ray", on_progress=watch, on_message=lines.append)
    assert any("; restarting" in line for line in lines)
    assert here.failures() == {"Forks": {"timeout": 2}, "LeavesQuietly": {"died": 2}}
    assert away.deterministic() == here.deterministic()
    assert max(map(len, seen)) >= 6  # players, servers, guards, policies
    becomes(lambda: not there() - before)


@pytest.mark.slow
def test_ctrl_c_on_a_cluster_leaves_what_was_played_so_far(second, tmp_path):
    def watch(done, total):
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = evaluate(partial(Slow, agents=2), "random", episodes=200, jobs=2, engine="ray", on_progress=watch)
    assert result.partial and 3 <= len(result.episodes) < 200
    local = evaluate(partial(Slow, agents=2), "random", episodes=len(result.episodes))
    assert [one.returns for one in result.episodes] == [one.returns for one in local.episodes]
    result.save(tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["result"]["partial"] is True


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_the_command_and_the_ray_it_started(tmp_path):
    """The whole group of processes gets it, Ray's own ones too."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "motet.cli", "eval", "treasure_hunt", "-p", "random", "-n", "100000"]
    environment = {**os.environ, "MOTET_TEST_CLUSTER": MARK}
    begun = subprocess.Popen(
        [*command, "--jobs", "2", "--engine", "ray", "--out", "result.json"], cwd=tmp_path, env=environment,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with begun:
        becomes(lambda: len(hosts()) >= 2)
        becomes(lambda: len(there()) >= 4)
        time.sleep(3)
        os.killpg(begun.pid, signal.SIGINT)
        out, err = begun.communicate(timeout=60)
    assert begun.returncode == 130
    told = json.loads((tmp_path / "result.json").read_text())["result"]
    assert told["partial"] is True
    assert f"interrupted: {len(told['episodes'])} of 100000 episodes were played" in err
    assert "partial: " in out and "ray" not in (out + err).lower()
    becomes(lambda: not session(begun.pid))


def session(number):
    """Processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[3] == str(number):
                found.append(title(entry.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def test_an_address_without_a_cluster_is_reported_at_once(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # as if this were the first
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SettingError, match=f"could not be reached at '127.0.0.1:{port}'"):
        enumerate_states(Wide(), engine="ray", cluster=Cluster(address=f"127.0.0.1:{port}"))


def test_more_jobs_than_the_cluster_has_cores_are_refused(cluster):
    with pytest.raises(SettingError, match=r"jobs must fit the .* cores of the cluster, got 100, which need 100"):
        evaluate("treasure_hunt", "random", episodes=100, jobs=100, engine="ray")
