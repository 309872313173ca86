"""Reproducible runs on Ray give the bits of the serial engine, however slow each process is."""

import functools
import json
import os
import random
import signal
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.coins import Coins
from support.ray_nodes import ray_nodes
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.cluster.connect import Shipment
from motet.cluster.hosts import LearnerHost
from motet.cluster.link import Link
from motet.cluster.shared import LocalMemory, VersionBundle, unpack
from motet.errors import NotReadyError, SettingError
from motet.placement import Cluster
from motet.publication import GivenVersion, Publication
from motet.runs.directory import RunDirectory
from motet.system.supervisor import RestartLimits
from motet.training.board import FINISHED
from motet.training.league import League
from motet.training.roster import make_roster
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import MatrixGame, TreasureHunt

MATRIX = functools.partial(MatrixGame, turns=23)
MIXED = {"player_0": StandIn(prioritised=True), "player_1": StandIn(n_step=2)}  # equal agents would share a process
SMALL = {"min_rows": 16, "batch_size": 8, "hidden": (16, 16), "capacity": 2000}
ONCE = {"batch_size": 2, "length": 16, "minibatches": 2, "epochs": 2}
SHARED = Cluster(actor_cpus=0.25, learner_cpus=0.25, keep_every_s=0.2)
PERIODS = {"steps": 400, "updates_per_step": 0.5, "period": 20}
AT_ONCE = RestartLimits(restarts=100, back_off_s=0.001)
CLOCK = random.SystemRandom()  # no seed of a run has an effect on it
# Ray leaves sockets to the garbage collector, and its own modules warn of its own changes to come.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def node():
    """A cluster of one node; gone with the module."""
    with ray_nodes({"num_cpus": 4, "object_store_memory": 100 * 2**20}) as cluster:
        yield cluster


def settings(engine, **more):
    return Settings(engine=engine, **({"cluster": SHARED} if engine == "ray" else {}), **{**PERIODS, **more})


def print_of(result):
    """What must be equal."""
    arrays = {(name, what): values.tobytes() for name, held in result.agents.items() for what, values in held.items()}
    return result.steps, result.updates, arrays


def lines_of(run):
    """The evaluations of a run, without their times."""
    file = run / "evaluation.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def check(tmp_path, world, algorithm, least=20, **more):
    """A run on the cluster has the bits of the serial run, evaluations and episodes included."""
    there = train(world, algorithm, settings("ray", **more), run=tmp_path / "ray")
    status = json.loads((tmp_path / "ray" / "status.json").read_text())
    processes = [row["name"].partition("-")[0] for row in status["processes"]]
    assert [processes.count(kind) for kind in ("actor", "learner")] == [
        more.get(setting, 1) for setting in ("actors", "learner_processes")
    ]
    here = train(world, algorithm, settings("serial", **more), run=tmp_path / "serial")
    assert there.restarts == 0 and there.state == here.state and min(there.updates.values()) > least
    assert print_of(there) == print_of(here)
    evaluations = lines_of(tmp_path / "ray")
    assert evaluations == lines_of(tmp_path / "serial") and bool(evaluations) == ("evaluate_every" in more)
    return there, evaluations


# ---- without Ray


class Scene:
    """An actor's link and the learner's host, in this process. Each period has five rounds of one world."""

    def __init__(self, algorithm=StandIn(), **changes):  # noqa: B008 - frozen
        chosen = Settings(**{"steps": 1000, "updates_per_step": 0.5, "period": 5, "learner_processes": 1, **changes})
        self.roster = make_roster(MATRIX, algorithm, chosen)
        self.host = LearnerHost(Shipment((self.roster, None)), 0)
        self.begin(0)

    def begin(self, incarnation):
        """An actor joins."""
        self.memory = LocalMemory(self.roster, actor=0)
        self.link = Link(self.memory, 0, incarnation, [], 0, None, RestartLimits(), 3600.0)
        self.meet(self.host)
        joined = self.link.join()
        if self.memory.records is not None:
            self.memory.records.continue_from(0, joined.periods, joined.totals)
        self.writers = [replay.writers([0]) for replay in self.memory.replays]

    def meet(self, host):
        self.host = host
        names = "join", "receive"
        learner = SimpleNamespace(**{name: SimpleNamespace(remote=getattr(host, name)) for name in names})
        self.link._asked = lambda call: call(learner)

    def write(self, rows):
        for policy, writers in zip(self.roster.policies, self.writers, strict=True):
            space, more = policy.observation_space, policy.settings.extra
            row = {name: np.zeros((1, *field.shape), field.dtype) for name, field in more.items()}
            row |= {"observation": np.zeros((1, *space.shape), space.dtype), "action": np.zeros(1, np.int64)}
            for _ in range(rows):
                writers.append(np.arange(1), **row, reward=np.ones(1, np.float32), version=1)

    def end_period(self):
        self.memory.records.write(0)

    def send(self):
        assert self.link._send(False)

    @property
    def there(self):
        """Periods and rows that the learner has."""
        memory = self.host._memory
        return int(memory.board.periods[0]), [replay.words(0).head for replay in memory.replays]

    @property
    def recorded(self):
        """By policy, the rows and the totals in the record of the newest period that the learner has."""
        records, period = self.host._memory.records, int(self.host._memory.board.periods[0]) - 1
        return [int(records.read(p, period)[0, 0]) for p in range(2)], records.total(0, period)[:2].tolist()


def test_no_block_contains_rows_of_two_periods():
    s = Scene()
    s.write(3)
    s.send()
    assert s.there == (0, [3, 3])
    s.write(2)
    s.end_period()
    s.write(4)
    s.send()
    assert s.there == (1, [5, 5]) and s.recorded == ([5, 5], [5, 5])
    s.send()
    assert s.there == (1, [9, 9]) and s.recorded == ([5, 5], [5, 5])
    s.write(1)
    s.end_period()
    s.send()
    assert s.there == (2, [10, 10]) and s.recorded == ([10, 10], [10, 10])


def test_a_period_ends_between_two_looks_at_the_outbox(monkeypatch):
    """The actor ends a period and writes a row of the next one while the link looks where the rows end."""
    s, acted = Scene(), []
    s.write(5)
    outbox = s.memory.replays[1].outbox
    words = type(outbox).words

    def slow_words(replay, lane):
        if replay is outbox and not acted:
            acted.append(True)
            s.end_period()
            s.write(1)
        return words(replay, lane)

    monkeypatch.setattr(type(outbox), "words", slow_words)
    s.send()
    assert s.there == (1, [5, 5])


def test_a_period_that_ends_while_a_block_is_made_does_not_end_with_this_block(monkeypatch):
    s, block = Scene(), Link._block
    s.write(3)

    def slow_block(link, ends):
        if not int(s.memory.board.periods[0]):
            s.write(2)
            s.end_period()
        return block(link, ends)

    monkeypatch.setattr(Link, "_block", slow_block)
    s.send()
    assert s.there == (0, [3, 3])
    s.send()
    assert s.there == (1, [5, 5]) and s.recorded == ([5, 5], [5, 5])


def test_a_period_counts_when_all_of_its_rows_have_arrived(monkeypatch):
    s = Scene()
    monkeypatch.setattr("motet.cluster.link._BLOCK_BYTES", 4 * s.host._memory.replays[0].spec.row_bytes)
    s.write(5)
    s.end_period()
    s.memory.board.rounds[0] = FINISHED
    for rows in (2, 4):
        s.send()
        assert s.there == (0, [rows, rows]) and int(s.host._memory.board.rounds[0]) != FINISHED
    s.send()
    assert s.there == (1, [5, 5]) and int(s.host._memory.board.rounds[0]) == FINISHED


def test_a_round_of_lockstep_counts_when_all_of_its_rows_have_arrived(monkeypatch):
    s = Scene(period=None, slack=0)
    monkeypatch.setattr("motet.cluster.link._BLOCK_BYTES", 2 * s.host._memory.replays[0].spec.row_bytes)
    s.write(2)  # an action, and the final row of an episode
    s.memory.board.rounds[0] = 1
    for number in range(2):
        s.send()
        assert int(s.host._memory.board.rounds[0]) == number


def test_the_last_period_ends_also_for_a_learner_without_rows_in_it():
    """Agents act in turn, and the learner of one of them has all its rows before the last two periods are told."""
    s = Scene(MIXED, learner_processes=2)
    s.write(5)
    for _ in range(2):
        s.end_period()
    s.memory.board.rounds[0] = FINISHED
    s.link._over = True
    s.link._carry()
    assert s.there[0] == 2 and int(s.host._memory.board.rounds[0]) == FINISHED


def test_a_full_lane_delays_the_end_of_a_period():
    """More rows than a period can have: the learner has not released any."""
    s = Scene(PPOConfig(**ONCE, hidden=(16,)), updates_per_step=None)
    room = s.host._memory.replays[0].spec.lane_capacity
    s.write(room + 1)
    s.end_period()
    for _ in range(2):
        s.send()
        assert s.there == (0, [room, room])


def test_a_restarted_actor_continues_the_periods_of_the_one_before():
    s = Scene()
    s.write(5)
    s.end_period()
    s.send()
    s.write(2)
    s.send()
    s.begin(1)
    assert s.memory.board.periods[0] == 1
    s.write(3)
    s.end_period()
    s.send()
    assert s.there == (2, [10, 10]) and s.recorded == ([10, 10], [10, 10])


def test_a_restarted_learner_continues_the_periods_of_the_one_before():
    """Its replay is empty. What the actor has done in total stays, for evaluations."""
    s = Scene()
    s.write(5)
    s.end_period()
    s.send()
    s.write(2)
    s.send()
    s.meet(LearnerHost(Shipment((s.roster, None)), 0, False, 1))
    s.link.join()
    assert s.there == (1, [0, 0]) and s.recorded == ([0, 0], [5, 5])
    s.write(3)
    s.end_period()
    s.send()
    assert s.there == (2, [3, 3]) and s.recorded == ([3, 3], [10, 10])


def test_a_learner_process_knows_the_steps_of_agents_that_others_learn():
    """An evaluation is due by the agent with the most steps."""
    s = Scene(MIXED, learner_processes=2, evaluate_every=7)
    for _ in range(2):
        s.write(5)
        s.end_period()
        s.send()
    records = s.host._memory.records
    assert records.total(0, 1)[:2].tolist() == [10, 10]
    assert [records.evaluation_after(phase) for phase in range(2)] == [0, 1]


def test_a_bundle_keeps_the_last_two_versions():
    here, there = Publication(4), Publication(4)
    publisher, bundle = here.publisher(), VersionBundle([here], 2)
    given, publishers = GivenVersion(), [(there, there.publisher())]
    subscriber = there.subscriber(given)
    for number in range(1, 6):
        publisher.publish(np.full(4, number, np.float32))
        if number not in (2, 4):  # two at once
            bundle.renew()
        if number == 3:
            assert [known for known, _ in bundle.since(0)] == [2, 3]
            assert [known for known, _ in bundle.since(2)] == [3]
    for _, flat in bundle.since(0):
        unpack(flat, publishers)
    for number in (4, 5):
        given.number = number
        assert subscriber.refresh() and subscriber.weights[0] == number
    given.number = 3
    with pytest.raises(NotReadyError, match="version 3 must be in a slot"):
        subscriber.refresh()


def test_an_actor_gets_the_version_of_its_period_also_if_a_newer_one_exists():
    s = Scene()
    s.host._kept = True
    for publication in s.host._memory.publications:
        publisher = publication.publisher()
        for number in range(1, 4):
            publisher.publish(np.full(publication.weights, number, np.float32))
    s.send()
    given = GivenVersion(2)
    for publication in s.memory.publications:
        subscriber = publication.subscriber(given)
        assert subscriber.refresh() and subscriber.weights[0] == 2


def test_a_version_that_is_lost_with_its_learner_is_replaced_by_the_next_one():
    here, there = Publication(4), Publication(4)
    here.publisher().publish(np.full(4, 7, np.float32), version=7)
    bundle, given = VersionBundle([here], 2), GivenVersion(6)
    bundle.renew()
    ((_, flat),) = bundle.since(0)
    unpack(flat, [(there, there.publisher())], without_gaps=True)
    subscriber = there.subscriber(given)
    assert subscriber.refresh() and subscriber.weights[0] == 7
    given.number = 7
    assert subscriber.refresh() and subscriber.weights[0] == 7


# ---- with Ray


def test_keep_replay_is_refused(node):
    with pytest.raises(SettingError, match="keep_replay is not yet supported with reproducible runs"):
        train(MATRIX, StandIn(), settings("ray", keep_replay=True))


def test_two_actors_and_two_learner_processes_are_the_serial_run_evaluations_included(node, tmp_path):
    more = {"actors": 2, "learner_processes": 2, "evaluate_every": 100, "evaluate_episodes": 2}
    _, lines = check(tmp_path, MATRIX, MIXED, **more)
    assert [line["step"] // 100 for line in lines] == [1, 2, 3, 4]


def both(algorithm):
    """Two agents whose networks differ, so that two processes can learn them."""
    return {"player_0": algorithm, "player_1": replace(algorithm, hidden=(8,))}


ALGORITHMS = {
    "dqn": (MATRIX, both(DQNConfig(**SMALL)), {}),
    "dqn, prioritised": (MATRIX, both(DQNConfig(**SMALL, prioritised=True)), {}),
    "ppo": (MATRIX, both(PPOConfig(**ONCE, hidden=(16,))), {"updates_per_step": None, "steps": 800}),
    "td3": ("gym:Pendulum-v1", TD3Config(**SMALL), {}),
    "in turns": (
        functools.partial(TreasureHunt, agents=2),
        {"agent_0": StandIn(prioritised=True), "agent_1": StandIn(n_step=2)},
        {"worlds_per_actor": 2},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("actors", "learners"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_is_the_serial_run(name, actors, learners, ahead, node, tmp_path):
    world, algorithm, more = ALGORITHMS[name]
    learners = 1 if name == "td3" else learners
    more = {"evaluate_every": 90, "evaluate_episodes": 1, **more}
    check(tmp_path, world, algorithm, actors=actors, learner_processes=learners, ahead=ahead, **more)


class SlowGame(MatrixGame):
    """Its steps sleep for a random time, now and then for a long one."""

    def __init__(self, turns, most_s):
        super().__init__(turns=turns)
        self._most_s = most_s

    def step(self, action):
        time.sleep(CLOCK.choice([0, 0, 0, self._most_s / 10, self._most_s]))
        return super().step(action)


@dataclass(frozen=True)
class SlowStandIn(StandIn):
    """Its updates sleep likewise."""

    most_s: float = 0.0

    def build(self, *given, **named):
        algorithm = super().build(*given, **named)
        update = algorithm.update

        def slow(*batch):
            time.sleep(CLOCK.choice([0, 0, 0, self.most_s / 10, self.most_s]))
            return update(*batch)

        algorithm.update = slow
        return algorithm


def slow(outcome):
    time.sleep(0.05)
    return outcome.team


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("acting_s", "learning_s"), [(0.01, 0.0), (0.0, 0.04), (0.01, 0.04)])
def test_slow_actors_and_learners_give_the_bits_of_the_serial_run(acting_s, learning_s, ahead, node, tmp_path):
    more = {"actors": 2, "learner_processes": 2, "ahead": ahead, "evaluate_every": 25, "evaluate_episodes": 1}
    runs = {}
    for engine, is_slow in (("ray", 1), ("serial", 0)):
        world = functools.partial(SlowGame, 23, acting_s * is_slow)
        algorithm = SlowStandIn(prioritised=True, capacity=800, most_s=learning_s * is_slow)
        algorithms = {"player_0": algorithm, "player_1": replace(algorithm, n_step=2)}
        result = train(world, algorithms, settings(engine, score=slow, **more), run=tmp_path / engine)
        runs[engine] = (*print_of(result), lines_of(tmp_path / engine))
    assert runs["ray"] == runs["serial"] and len(runs["ray"][-1]) > 5


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_self_play_is_the_serial_run_league_included(ahead, node, tmp_path):
    league = League(snapshot_every=100, review_every=50, block=2)
    more = {"self_play": True, "league": league, "actors": 2, "worlds_per_actor": 2, "steps": 1000, "period": 10}
    check(tmp_path, Coins, StandIn(), ahead=ahead, evaluate_every=300, evaluate_episodes=2, **more)
    kept = [RunDirectory(tmp_path / name).load().league for name in ("ray", "serial")]
    assert kept[0]["counts"][0] >= 9 and kept[0]["heard"].min() > 5
    assert {name: part.tobytes() for name, part in kept[0].items()} == {
        name: part.tobytes() for name, part in kept[1].items()
    }


def test_a_result_ends_the_run_where_it_ends_the_serial_run(node, tmp_path):
    """The first result counts when the second evaluation is due."""
    more = {"actors": 2, "steps": 10**6, "evaluate_every": 100, "evaluate_episodes": 1, "until_return": -1e9}
    there, lines = check(tmp_path, MATRIX, StandIn(), least=1, score=slow, **more)
    assert there.state == "stopped" and [line["step"] // 100 for line in lines] == [1, 2]


def by_callback(snapshot):
    return snapshot.steps == 0


def by_interrupt(snapshot):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    "stop",
    [by_interrupt, *(pytest.param(one, marks=pytest.mark.slow) for one in (None, by_callback))],
    ids=["interrupt", "seconds", "callback"],
)
def test_a_stopped_run_is_the_serial_run_of_as_many_periods(stop, node, monkeypatch):
    said, told = [], []

    def once(snapshot):
        if stop is not None and snapshot.steps and not told:
            told.append(snapshot)
            return stop(snapshot)
        return None

    more = {"steps": 10**7, "actors": 2, "worlds_per_actor": 2, "period": 15, "metrics_every_s": 0.1}
    result = train(
        MATRIX,
        StandIn(),
        settings("ray", seconds=None if stop else 3.0, **more),
        on_message=said.append,
        on_update=once,
    )
    (line,) = [line for line in said if "stopping after period" in line]
    periods = int(line.split()[3].strip(","))
    assert result.state == "stopped" and result.restarts == 0 and result.steps > 0
    ends = iter([False] * (periods - 1))
    monkeypatch.setattr("motet.training.recorder.Recorder.over", lambda recorder: next(ends, True))
    assert print_of(train(MATRIX, StandIn(), settings("serial", **more))) == print_of(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn, prioritised", "ppo"])
def test_a_resumed_run_is_the_serial_run_from_the_same_checkpoint(name, node, tmp_path):
    world, algorithm, more = ALGORITHMS[name]
    more = {"actors": 2, "learner_processes": 2, "evaluate_every": 90, "evaluate_episodes": 1, **more}
    check(tmp_path, world, algorithm, **more)
    prints = []
    for name in ("ray", "serial"):
        result = resume(tmp_path / name, steps=370, world=world, algorithm=algorithm, trust=True)
        assert result.state == "done" and result.steps >= more.get("steps", 400) + 370
        prints.append((print_of(result), lines_of(tmp_path / name)))
    assert prints[0] == prints[1]


# ---- processes that die


def kill_once(name, at_least):
    killed = []

    def watch(snapshot):
        if snapshot.steps >= at_least and not killed:
            killed.extend(row.pid for row in snapshot.processes if row.name == name and row.pid)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    watch.killed = killed
    return watch


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [MIXED, PPOConfig(**ONCE, hidden=(16,))], ids=["drawn", "once"])
@pytest.mark.parametrize("name", ["actor-1", "learner-0"])
def test_a_run_whose_process_dies_goes_on_and_says_so(name, algorithm, node, tmp_path):
    said, watch = [], kill_once(name, 400)
    ratio = 0.5 if algorithm is MIXED else None
    more = {"actors": 2, "learner_processes": 2, "steps": 4000, "period": 32, "metrics_every_s": 0.05}
    result = train(
        functools.partial(SlowGame, 23, 0.002),
        algorithm,
        settings("ray", limits=AT_ONCE, updates_per_step=ratio, evaluate_every=300, evaluate_episodes=1, **more),
        run=tmp_path / "run",
        on_message=said.append,
        on_update=watch,
    )
    assert watch.killed and result.restarts == 1 and result.state == "done"
    assert 4000 <= result.steps <= 4004 and min(result.updates.values()) > 50
    (line,) = [line for line in said if "no longer a function of its seed" in line]
    assert line.startswith(name)
    assert [line["step"] // 300 for line in lines_of(tmp_path / "run")][-1] >= 10
