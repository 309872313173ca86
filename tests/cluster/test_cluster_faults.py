"""Runs on a cluster in which a learner, a node or the driver dies; and Ray that motet starts itself."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import TESTS
from support.family import descendants
from support.gated import Gated
from support.poisoned_device import PoisonedDQN, PoisonedIQN, PoisonedPPO, PoisonedTD3
from support.ray_nodes import ray_nodes
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.cluster.connect import Shipment
from motet.cluster.driver import RemoteRun
from motet.cluster.hosts import LearnerHost
from motet.cluster.link import Link
from motet.cluster.shared import LocalMemory, VersionBundle
from motet.errors import NotReadyError, SupersededError, WaitTimeoutError
from motet.isolation.usage import descendants as children
from motet.pace import Pace
from motet.placement import Cluster
from motet.publication import Publication
from motet.runs.directory import RunDirectory
from motet.system.supervisor import RestartLimits
from motet.training.callbacks import Callbacks
from motet.training.drivers import make_learner
from motet.training.recorder import Recorder
from motet.training.roster import make_roster
from motet.training.run import Run, resume, train
from motet.training.settings import Settings
from motet.worlds import Hockey, TreasureHunt

WORLD = partial(TreasureHunt, agents=2)
SMALL = Cluster(actor_cpus=0.25, learner_cpus=0.25, keep_every_s=0.2)
HAVE = 2**40  # bundles that somebody has: there is no store to put one into
# Ray leaves sockets to the garbage collector, and its own modules warn of its own changes to come.
pytestmark = pytest.mark.filterwarnings("ignore")


# ---- without Ray: what a driver gives to a learner's successor


class NoRay:
    """As much of Ray as a driver needs that starts nobody."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def remote(self, **options):
        return lambda kind: kind

    def method(self, **options):
        return lambda function: function


class Scene:
    """A driver, and a learner process that it looks at, all in this process."""

    def __init__(self, tmp_path, keep_replay=False, algorithm=None, world=WORLD, **settings):
        chosen = {"steps": 1000, "actors": 2, "learner_processes": 1, "updates_per_step": 0.5, **settings}
        self.settings = Settings(**chosen, keep_replay=keep_replay)
        self.roster = make_roster(world, algorithm or StandIn(), self.settings)
        self.directory = RunDirectory.prepare(tmp_path / "run").begin({})
        self.remote = RemoteRun(
            NoRay(), self.roster, Cluster(), RestartLimits(), self.directory, None, keep_replay, policies=False
        )
        self.actors = [LocalMemory(self.roster, actor=i) for i in range(2)]
        self.writers = [
            [r.writers(a.roster.lanes_of(p, i)) for p, r in enumerate(a.replays)] for i, a in enumerate(self.actors)
        ]
        self.begin(LearnerHost(Shipment((self.roster, None)), 0))

    def begin(self, host):
        self.host = host
        self.learners = [make_learner(host._memory, k) for k in self.roster.processes[0]]
        for learner in self.learners:
            learner.begin()
        self.learning = self.learners[0]

    def write(self, actor, rows):
        """Rows of both agents, into an actor's outbox."""
        for agent, writers in enumerate(self.writers[actor]):
            policy = self.roster.policies[agent]
            space, acts, extra = policy.observation_space, policy.action_space, policy.settings.extra
            more = {name: np.full((1, *field.shape), -0.7, field.dtype) for name, field in extra.items()}
            for _ in range(rows):
                made = self.actors[actor].replays[agent].made
                seen, action = np.full((1, *space.shape), made % 2, space.dtype), np.zeros((1, *acts.shape), acts.dtype)
                writers.append(np.array([0]), seen, action, np.array([made], np.float32), version=1, **more)

    def join(self, actor, incarnation=0, made=(0, 0), came=(), done=None):
        carried = {(a, actor): self.actors[actor].replays[a].carried[0] for a in range(2)}
        return self.host.join(actor, incarnation, carried, made, came, done)

    def send(self, actor, incarnation=0, hears=True):
        """Carry what waits; ``hears``: the reply comes back."""
        pieces, data = [], b""
        for agent, replay in enumerate(self.actors[actor].replays):
            first = replay.carried[0]
            piece = replay.outbox.rows(0, first, 10_000)
            pieces.append((agent, actor, first, len(piece)))
            data += piece
        made = [replay.made for replay in self.actors[actor].replays]
        arrived = self.host.receive(actor, incarnation, 7, pieces, np.frombuffer(data, np.uint8), made, False, [HAVE])
        if hears:
            for replay, rows, words in zip(self.actors[actor].replays, arrived.rows, arrived.words, strict=True):
                replay.carried[0] += rows
                replay.table[[actor]] = words

    def poll(self):
        self.remote._hear_learner(0, self.host.report(False, [None], True, True))

    def die(self, begins=True):
        """The learner dies; its successor begins with what the driver knows."""
        number = self.remote._learner_numbers[0] + 1
        start = self.remote._salvaged(0, number)
        self.host = LearnerHost(Shipment((self.roster, start)), 0, False, number)
        if begins:
            self.begin(self.host)
        return start

    def done(self, actor):
        """By agent, steps that an actor knows to have arrived."""
        memory = self.actors[actor]
        return np.array([[memory.gone[a][actor] + r.words(actor).steps] for a, r in enumerate(memory.replays)])

    def close(self):
        self.remote.close()


@pytest.fixture
def scene(tmp_path):
    made = []

    def make(**settings):
        made.append(Scene(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_restarted_learner_continues_from_the_saved_state_and_counts_lost_rows(scene):
    s = scene()
    for actor, rows in ((0, 300), (1, 100)):
        s.join(actor)
        s.write(actor, rows)
        s.send(actor)
    for _ in range(20):
        s.learning.update()
    s.poll()
    version = s.learning.members[0].publisher.newest
    kept = s.learning.algorithm.state.copy(), s.learning.algorithm.counters.copy(), s.learning.algorithm.random.copy()
    words = np.zeros(s.roster.replay_spec(0).reader_words, np.uint64)
    s.learning.members[0].reader.save_state(words)
    for _ in range(3):
        s.learning.update()  # nobody heard of these
    s.die()
    algorithm = s.learning.algorithm
    for before, now in zip(kept, (algorithm.state, algorithm.counters, algorithm.random), strict=True):
        assert np.array_equal(before, now)
    again = np.zeros_like(words)
    s.learning.members[0].reader.save_state(again)
    assert np.array_equal(again[:4], words[:4])  # the stream that batches are drawn by
    assert s.learning.members[0].publisher.newest > version
    report = s.host.report(False, [None], False)
    assert report.rows[:, 0].tolist() == [400, 400]  # what its replays held is lost
    assert s.host._memory.steps(0) == 400
    # Each actor has its own part left, whoever did more before.
    joined = s.join(0, incarnation=1)
    s.join(1, incarnation=1)
    assert joined.number == 1
    assert [s.host._memory.left(0, actor) for actor in range(2)] == [200, 400]
    s.poll()
    assert [s.remote.shared.left(0, actor) for actor in range(2)] == [200, 400]
    assert s.remote.shared.steps(0) == 400


DRAWN = {"hidden": (16, 16), "min_rows": 16, "batch_size": 8, "capacity": 400}
ONCE = {"batch_size": 2, "length": 16, "minibatches": 2, "epochs": 2, "hidden": (16, 16)}


@pytest.mark.parametrize(
    ("poisoned", "kind", "given"),
    [
        (PoisonedDQN, DQNConfig, DRAWN),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                (PoisonedIQN, IQNConfig, {**DRAWN, "prioritised": True}),
                (PoisonedTD3, TD3Config, {**DRAWN, "normalise": True}),
                (PoisonedPPO, PPOConfig, ONCE),
            )
        ),
    ],
    ids=["dqn", "iqn", "td3", "ppo"],
)
def test_learners_that_restart_on_a_device_learn_what_the_cpu_does(poisoned, kind, given, tmp_path):
    states, world = [], partial(Hockey, turns=40) if kind is TD3Config else WORLD
    ratio = None if kind is PPOConfig else 0.5
    for algorithm in (poisoned(**given), kind(**given)):
        where = tmp_path / type(algorithm).__name__
        s = Scene(where, algorithm=algorithm, world=world, publish_every=2, updates_per_step=ratio)
        s.join(0)
        for incarnation in range(1, 4):
            for _ in range(5):
                s.write(0, 33)  # an update of rows that are read once takes 32 of them, and the next one
                s.send(0, incarnation - 1)
                for learner in s.learners:
                    learner.update()
            s.poll()  # the driver fetches the vault
            s.die()
            s.actors[0].gone[:] = s.join(0, incarnation, made=[r.made for r in s.actors[0].replays]).gone
        state, header = s.learning.state()
        assert header["counters"][:, 0].min() > 10 and np.isfinite(state).all()
        states.append([state.tobytes(), *(header[name].tobytes() for name in ("counters", "random", "reader"))])
        s.close()
    assert states[0] == states[1]


def test_the_displayed_version_does_not_decrease_while_a_learner_restarts(scene):
    s = scene()
    s.join(0)
    s.write(0, 300)
    s.send(0)
    for _ in range(20):
        s.learning.update()
    s.poll()
    shown = s.remote.shared.board.rows.newest_version.copy()
    s.die(begins=False)
    s.poll()
    assert shown.min() > 1 and np.array_equal(s.remote.shared.board.rows.newest_version, shown)
    s.begin(s.host)
    s.poll()
    assert (s.remote.shared.board.rows.newest_version > shown).all()


def test_steps_are_right_however_often_learners_die(scene):
    s = scene()
    for actor in range(2):
        s.join(actor)
    for number in range(4):
        for actor in range(2):
            s.write(actor, 10 + 5 * number)
            s.send(actor)
        s.poll()
        if number == 2:
            s.die()  # and once more before anybody has looked at its successor
        s.die()
        assert s.remote.shared.steps(0) == s.host._memory.steps(0) == 2 * sum(10 + 5 * n for n in range(number + 1))
        for actor in range(2):
            joined = s.join(actor, done=s.done(actor))
            s.actors[actor].gone[:] = joined.gone
            for replay, words in zip(s.actors[actor].replays, joined.words, strict=True):
                replay.table[[actor]] = words
        s.poll()
        assert s.remote.shared.steps(0) == s.host._memory.steps(0) == 2 * sum(10 + 5 * n for n in range(number + 1))
    assert s.host.report(False, [None], False).rows[0, 0] == s.host._memory.steps(0)


def test_rows_whose_reply_was_lost_come_again_and_are_counted_once(scene):
    s = scene()
    s.join(0)
    s.write(0, 50)
    s.send(0)
    s.write(0, 30)
    s.send(0, hears=False)  # the driver learns of them, the actor does not
    s.poll()
    assert s.remote.shared.steps(0) == 80
    s.die()
    s.join(0, done=s.done(0))
    s.send(0)
    assert s.host._memory.steps(0) == 80 and s.host._memory.replays[0].steps == 30
    assert s.host._memory.left(0, 0) == 500 - 80


def test_a_restarted_learner_refuses_the_same_rows_and_continues_their_count(scene):
    s = scene()
    s.join(0)
    s.write(0, 20)
    s.send(0)
    s.join(0, incarnation=1, made=(25, 20), came=(20, 20))  # five are known to be lost
    s.poll()
    s.die()
    with pytest.raises(SupersededError, match="start 0"):
        s.join(0)
    s.write(0, 4)
    with pytest.raises(SupersededError, match="start 0 of actor-0 was replaced by start 1"):
        s.send(0)
    rows = s.host.report(False, [None], False).rows
    assert rows[:, 0].tolist() == [25, 20] and rows[:, 1].tolist() == [4, 4]
    # An actor that died with the learner: what its own successor was told counts, once.
    s.join(0, incarnation=2, made=(9, 9), came=(4, 9))
    assert s.host.report(False, [None], False).rows[:, 0].tolist() == [30, 20]


def test_a_restarted_learner_gets_the_replay_with_keep_replay(scene):
    s = scene(keep_replay=True)
    for actor, rows in ((0, 60), (1, 40)):
        s.join(actor)
        s.write(actor, rows)
        s.send(actor)
    s.learning.update()
    s.poll()
    s.remote._brought = {a: [s.host.dump(a, lane) for lane in range(2)] for a in range(2)}
    recorder = Recorder(Run(s.roster, s.settings, Callbacks(), s.directory), s.remote.shared, [])
    s.directory.save(recorder.checkpoint(100))
    s.write(0, 15)
    s.send(0)
    s.learning.members[0].reader.forget()  # a stage began that cleared the replay of what was there
    for member in s.learning.members:
        member.waived = 5
    s.learning.publish()
    s.poll()
    s.die()
    replay = s.host._memory.replays[0]
    assert [replay.words(lane).head for lane in range(2)] == [60, 40]
    assert s.learning.members[0].reader.ready() == 0  # and it stays cleared
    assert s.host.report(False, [None], False).rows[:, 0].tolist() == [15, 15]
    assert s.host._memory.steps(0) == 115
    assert s.host._memory.progress(0).owed(0) == 0  # updates for the lost rows are not made up for
    for actor in range(2):
        s.join(actor, done=s.done(actor))
    assert [replay.words(lane).broken for lane in range(2)] == [1, 1]
    assert [s.host._memory.left(0, actor) for actor in range(2)] == [500 - 75, 500 - 40]
    reader = replay.reader(seed=1)
    drawn = np.concatenate([reader.sample(98).reward.copy() for _ in range(50)])
    assert set(drawn.tolist()) == set(range(59))  # every row but the last of each lane is a start


def test_no_version_leaves_a_learner_before_the_driver_has_a_state(scene, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=lambda flat: flat))
    s = scene()
    s.join(0)
    nothing = [], np.zeros(0, np.uint8), [0, 0], False, [0]
    assert s.host.receive(0, 0, 0, *nothing).bundles == [[]]
    report = s.host.report(False, [None], True, kept=False)
    assert report.vaults is not None
    assert s.host.receive(0, 0, 0, *nothing).bundles == [[]]
    s.remote._hear_learner(0, report)
    assert s.remote._is_kept(0)
    s.host.report(False, [None], True, kept=True)
    (((number, policies),),) = s.host.receive(0, 0, 0, *nothing).bundles
    assert number == 1 and policies is not None


def test_a_checkpoint_is_written_later_if_a_learner_dies_just_now(scene):
    s = scene(keep_replay=True, checkpoint_every=100)
    s.join(0)
    s.write(0, 150)
    s.send(0)
    s.poll()
    shared = s.remote.shared

    def dead(lane):
        raise NotReadyError("it died")

    whole = s.host._memory.replays
    for replay in shared.replays:
        replay.fetch = dead
    said = []
    recorder = Recorder(Run(s.roster, s.settings, Callbacks(None, said.append), s.directory), shared, [])
    recorder._next = 100
    recorder.tick()
    assert s.directory.steps() == []
    for agent, replay in enumerate(shared.replays):
        replay.fetch = whole[agent].dump
    recorder.tick()
    assert s.directory.steps() == [150]
    for replay in shared.replays:
        replay.fetch = dead
    recorder.close("done", [])
    assert s.directory.steps() == [150] and "does not contain the replays" in said[0]
    assert not s.directory.load().replay


def test_a_restarted_learner_does_not_wait_for_finished_actors(scene):
    from motet.training.board import FINISHED

    s = scene(slack=0)
    s.join(0)
    s.join(1)
    s.write(0, 3)
    s.send(0)
    s.poll()
    s.remote.shared.board.rounds[0] = FINISHED
    s.die()
    rounds = s.host._memory.board.rounds
    assert rounds.tolist() == [FINISHED, 0]
    s.host.report(False, [None], False, over={1: 0})
    assert rounds.tolist() == [FINISHED, FINISHED]


def test_results_of_games_are_counted_once_whichever_process_dies(tmp_path):
    from support.coins import Coins, quick

    from motet.training.league import LeagueTable, Results

    roster = make_roster(Coins, StandIn(), quick(engine="processes", actors=2))
    remote = RemoteRun(NoRay(), roster, Cluster(), RestartLimits(), None, None, False, policies=False)
    try:
        host, actor = LearnerHost(Shipment((roster, None)), 0), LocalMemory(roster, actor=0)
        learning = make_learner(host._memory, 0)
        learning.begin()
        ring, table = actor.league.results[0], LeagueTable(host._memory.league)
        results, rows = Results(ring), {(0, lane): 0 for lane in roster.lanes_of(0, 0)}
        host.join(0, 0, rows, [0], results=ring.copy())

        def play(games):
            for _ in range(games):
                results.tell(-1, 1.0, 0.0)

        def send(host, words):
            return host.receive(0, 0, 1, [], np.zeros(0, np.uint8), [0], False, [HAVE, HAVE], words)

        play(7)
        send(host, Results.since(ring, 0))
        table.review(50, learning.algorithm.weights()[0])
        remote._hear_learner(0, host.report(False, [None, 0], True, True))
        play(5)
        send(host, Results.since(ring, 7))
        table.review(100, learning.algorithm.weights()[0])  # nobody heard of this one
        version = host._memory.league.publication.subscriber().newest
        remote._newest[0] = version  # but an actor has seen it
        start = remote._salvaged(0, 1)
        host = LearnerHost(Shipment((roster, start)), 0, False, 1)
        assert host._memory.league.publication.subscriber().newest > version
        table = LeagueTable(host._memory.league)
        assert table._rows["played"][0] == 7 and table._rows["heard"][0] == 7
        joined = host.join(0, 0, rows, [0], results=ring.copy())
        send(host, Results.since(ring, 7))  # once more: the reply was lost
        table.review(150, learning.algorithm.weights()[0])
        assert table._rows["played"][0] == 12 and table._rows["counts"][2] == 0
        # A successor of the actor goes on with the numbers of its predecessor.
        fresh = np.zeros_like(ring)
        Results.take_in(fresh, host.join(0, 1, rows, [0], results=fresh.copy()).results)
        Results(fresh).tell(-1, 1.0, 0.0)
        assert np.array_equal(joined.results, ring) and len(Results.since(fresh, 12)) == 1
        old = ring.copy()
        play(1024)  # once round
        new = ring.copy()
        assert Results.take_in(ring, old) == 12 + 1024 and np.array_equal(ring, new)
    finally:
        remote.close()


def test_a_learner_that_cannot_be_reached_for_a_while_is_asked_again(scene, monkeypatch):
    ray = pytest.importorskip("ray", reason="motet[ray] is not installed: nothing of the cluster is tested")
    s = scene()
    link = Link(s.actors[0], 0, 0, [], 0, "learner", RestartLimits(start_s=0.5, hang_s=0.5), 0.02)
    calls = []

    def answer(learner, timeout):
        calls.append(learner)
        if len(calls) < 3:
            raise ray.exceptions.ActorUnavailableError("the line is dead", b"0" * 16)
        return 5

    monkeypatch.setattr(ray, "get", answer)
    assert link._asked(lambda learner: learner) == 5
    monkeypatch.setattr(ray, "get", lambda *_, **__: (_ for _ in ()).throw(ray.exceptions.ActorDiedError()))
    link.turn_to("successor")
    assert link._asked(lambda learner: learner) is None and link._learner == "successor"
    with pytest.raises(WaitTimeoutError, match="waited 1 s for a restart of learner-0"):
        link._asked(lambda learner: learner)


# ---- with Ray


@pytest.fixture(scope="module")
def head():
    """A node with one core; gone with the module."""
    with ray_nodes({"num_cpus": 1, "object_store_memory": 100 * 2**20}) as cluster:
        yield cluster


def test_the_node_of_a_learner_and_an_actor_dies(head, tmp_path):
    """The learner has room there alone; its successor waits until another node comes."""
    node = {"num_cpus": 4, "object_store_memory": 100 * 2**20}
    victim = head.add_node(**node)
    head.wait_for_nodes()
    seen, lines, fell, gate = [], [], [], tmp_path / "gate"

    def watch(snapshot):
        seen.append(snapshot)
        kept = RunDirectory(tmp_path / "run").steps()
        if kept and snapshot.steps >= kept[-1] + 20 and not fell:
            head.remove_node(victim, allow_graceful=False)
            fell.append(head.add_node(**node))
            gate.touch()

    chosen = Settings(
        engine="ray", steps=8000, seed=3, actors=2, updates_per_step=0.25, slack=8, checkpoint_every=500,
        keep_replay=True, cluster=Cluster(actor_cpus=1, learner_cpus=2, keep_every_s=0.2), metrics_every_s=0.1,
    )  # fmt: skip
    world = partial(Gated, gate, 500, pause_s=0.05, agents=2)  # both get slow when 500 steps are done together
    result = train(world, StandIn(), chosen, run=tmp_path / "run", on_update=watch, on_message=lines.append)
    head.remove_node(fell[0])
    assert result.restarts >= 2, lines
    assert any(line.startswith("learner-0 died") for line in lines)
    assert result.state == "done" and 8000 <= result.steps <= 8004  # whole rounds
    last = seen[-1].agents[0]
    assert last.lost > 0 and last.broken >= 1
    versions = [snapshot.agents[0].version for snapshot in seen]
    assert versions == sorted(versions)
    # It went on from its own state: an update for every fourth step, but for those of rows that were lost.
    assert 1000 < result.updates["agent_0"] <= 2000 + 3 * chosen.slack
    assert result.agents["agent_0"]["counters"][0] == result.updates["agent_0"]
    kept = RunDirectory(tmp_path / "run").load()
    assert kept.step == 8000 and sum(len(lanes) for lanes in kept.replay.values()) == 4


DRIVER = """
import sys
from functools import partial
from support.stand_in import StandIn
from motet.placement import Cluster
from motet import Settings, train
from motet.worlds import TreasureHunt

if __name__ == "__main__":
    run, address, steps = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
    cluster = Cluster(address=address, actor_cpus=0.25, learner_cpus=0.25, keep_every_s=0.2)
    settings = Settings(
        engine="ray", steps=steps, updates_per_step=0.1, slack=8, checkpoint_every=500, keep_replay=True,
        cluster=cluster,
    )
    result = train(partial(TreasureHunt, agents=2), StandIn(), settings, run=run)
    print(result.state, result.steps, flush=True)
    sys.stdin.read()
"""


def driver(tmp_path, run, address, steps):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    path = os.pathsep.join([str(TESTS), *sys.path])  # the same motet as in the processes of the cluster
    environ = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [sys.executable, str(script), str(run), address, str(steps)],
        env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def until(condition, timeout_s=150.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it ended meanwhile
        return ""


def places():
    """The processes of the head in which actors and learners live."""
    return [pid for pid in descendants() if title(pid).startswith(("ray::LearnerHost", "ray::ActorHost"))]


def test_the_driver_dies_and_the_run_is_resumed(head, tmp_path):
    run = tmp_path / "run"
    process = driver(tmp_path, run, head.address, 10**7)
    try:
        until(lambda: len(RunDirectory(run).steps()) >= 2 or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        assert len(places()) == 3  # a learner process for each agent, since the cluster has room for them
    finally:
        process.kill()
        process.communicate()
    until(lambda: not places())
    before = RunDirectory(run).load()
    more = 2 * before.step
    result = resume(run, steps=more, world=WORLD, algorithm=StandIn())
    assert result.state == "done" and 0 <= result.steps - (before.step + more) <= 4  # whole rounds
    after, began = result.agents["agent_0"], before.agents["agent_0"]
    gained = after["counters"][0] - began["counters"][0]
    assert 0.05 * more < gained
    # The state in a checkpoint is the one that came home last, older than its rows. What it owes for them is made up
    # for, so that the pace holds for the whole run, whose first 20 steps at most are its warm-up.
    pace = Pace(updates_per_step=0.1, slack=8)
    assert pace.due(result.steps, 20) - 8 <= after["counters"][0] <= pace.due(result.steps) + 8
    assert result.updates["agent_0"] == after["counters"][0]
    assert not np.array_equal(after["random"], began["random"]) or gained % 64 == 0
    assert after["reader"][5] == after["counters"][0] * StandIn().batch_size  # rows drawn, also before


def test_self_play_on_a_cluster_is_the_serial_one_league_included(head, tmp_path):
    from support.coins import Coins, quick

    pages = []
    for engine in ("serial", "ray"):
        cluster = {"cluster": SMALL} if engine == "ray" else {}
        chosen = quick(
            engine=engine,
            slack=0,
            actors=2,
            worlds_per_actor=2,
            publish_every=3,
            steps=200,
            checkpoint_every=10**6,
            **cluster,
        )
        result = train(Coins, StandIn(), chosen, run=tmp_path / engine)
        kept = RunDirectory(tmp_path / engine).load()
        assert kept.league["counts"][:2].tolist() == [1, 4] and kept.league["heard"].min() > 5
        parts = {**result.agents["player"], **kept.league}
        pages.append({name: np.asarray(part).tobytes() for name, part in parts.items()})
    assert pages[0].keys() == pages[1].keys()
    assert [name for name in pages[0] if pages[0][name] != pages[1][name]] == []
    assert (tmp_path / "ray" / "league.jsonl").exists()


def test_ray_starts_by_itself_and_is_gone_at_the_end(tmp_path):
    pytest.importorskip("ray", reason="motet[ray] is not installed: nothing of the cluster is tested")
    process = driver(tmp_path, tmp_path / "run", "", 300)
    try:
        said = process.stdout.readline()
        assert said == "done 300\n", process.communicate()[1]
        until(lambda: not [pid for pid in children(process.pid) if "ray" in title(pid)])
    finally:
        process.kill()
        process.communicate()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert [row["name"] for row in status["processes"]] == ["actor-0", "learner-0", "learner-1"]
    assert all(row["node"] for row in status["processes"])


@pytest.mark.parametrize("weights", [1000, 100_000])
def test_a_small_edition_travels_itself_and_a_large_one_is_stored_once(weights):
    publication = Publication(weights)
    publication.publisher().publish(np.ones(weights, np.float32))
    bundle, stored = VersionBundle([publication]), []
    bundle.renew()
    for _ in range(3):
        ((_, found),) = bundle.stored_since(0, lambda flat: stored.append(flat) or "the store")
    assert (
        (isinstance(found, np.ndarray) and not stored)
        if weights == 1000
        else (found == "the store" and len(stored) == 1)
    )
    bundle.renew()
    assert bundle.number == 1  # nothing is new


@pytest.mark.parametrize(("slack", "sent"), [(32.0, True), (400.0, False)])
def test_rows_for_half_of_the_slack_do_not_wait_for_their_age(slack, sent, monkeypatch):
    """Or both sides would wait in turns: the actor for the learner, then the learner for rows."""

    class SleptError(Exception):
        pass

    def sleep(seconds):
        raise SleptError

    roster = make_roster(WORLD, StandIn(), Settings(updates_per_step=1.0, slack=slack, learner_processes=1))
    memory = LocalMemory(roster, actor=0)
    link = Link(memory, 0, 0, [], 0, None, RestartLimits(), 3600.0)
    for policy, replay in zip(roster.policies, memory.replays, strict=True):
        writers, space = replay.writers(roster.lanes_of(0, 0)), policy.observation_space
        for _ in range(20):
            seen = np.zeros((1, *space.shape), space.dtype)
            writers.append(np.arange(1), seen, np.zeros(1, np.int64), np.ones(1, np.float32), version=1)
    monkeypatch.setattr(time, "sleep", sleep)
    if sent:
        link._wait_until_due()
    else:
        with pytest.raises(SleptError):
            link._wait_until_due()
