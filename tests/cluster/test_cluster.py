"""The same loop on Ray: two nodes on this machine, which the tests start, kill and stop."""

import json
import os
import signal
import sys
import threading
from functools import partial

import numpy as np
import pytest
from support.eager_workers import make_eager
from support.family import descendants
from support.gated import Gated, Standstill
from support.poisoned_device import PoisonedDQN, PoisonedIQN, PoisonedPPO, PoisonedTD3
from support.ray_nodes import ray_nodes
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.cluster.connect import Shipment, connected
from motet.cluster.hosts import LearnerHost
from motet.cluster.shared import LocalMemory, packed, unpack, words_of
from motet.errors import SettingError, SupersededError
from motet.placement import Cluster
from motet.policies.partner import Partner
from motet.runs.directory import RunDirectory
from motet.runs.episodes import read_episodes
from motet.runs.status import read_history
from motet.system.portable import Portable
from motet.training.engines import _check_for_cluster
from motet.training.roster import make_roster
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import TreasureHunt

WORLD = partial(TreasureHunt, agents=2)
# Ray leaves sockets to the garbage collector, and its own modules warn of its own changes to come.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two nodes; gone with the module."""
    size = {"num_cpus": 4, "object_store_memory": 100 * 2**20}
    with ray_nodes(size, nodes=2) as cluster:
        yield cluster, size


def settings(**changes):
    return Settings(**{"engine": "ray", "steps": 600, "seed": 3, "metrics_every_s": 0.1, **changes})


def same_agents(one, two):
    for name, arrays in one.agents.items():
        for what, values in arrays.items():
            assert np.array_equal(values, two.agents[name][what]), (name, what)


# ---- without Ray: a learner's host as such


def learner(**changes):
    # What has no lanes of its own takes none of the time that starting processes takes.
    changed = {"steps": 1000, "worlds_per_actor": 2, "learner_processes": 1, "engine": "processes", **changes}
    roster = make_roster(WORLD, StandIn(), Settings(**changed))
    assert isinstance(roster.world, Portable)
    return roster, LearnerHost(Shipment((roster, None)), 0)


def block(roster, rows, agent=0, lane=0, first=0):
    """Rows that an actor made, as they lie in its outbox."""
    here = LocalMemory(roster, actor=0)
    writers = here.replays[agent].writers(roster.lanes_of(agent, 0))
    space = roster.policies[agent].observation_space
    for i in range(rows):
        seen = np.full((1, *space.shape), i % 2, space.dtype)
        writers.append(np.array([lane]), seen, np.zeros(1, np.int64), np.array([i], np.float32), version=7)
    data = here.replays[agent].outbox.rows(lane, first, 10_000)
    return [(agent, lane, first, len(data))], np.frombuffer(data, np.uint8)


def nothing(roster):
    return {(agent, lane): 0 for agent in range(2) for lane in roster.lanes_of(agent, 0)}


def test_rows_arrive_as_they_were_written_and_a_second_time_they_do_not():
    roster, host = learner()
    host.join(0, 0, nothing(roster), [0, 0])
    pieces, data = block(roster, 10)
    arrived = host.receive(0, 0, 5, pieces, data, [10, 0], False, [0])
    assert arrived.rows == [10]
    again = host.receive(0, 0, 5, pieces, data, [10, 0], False, [0])
    assert again.rows == [10]
    words = np.stack(host.report(False, [], False).words)
    assert words[0, 0, 1] == 10 and words[:, :, 1].sum() == 10
    reader = host._memory.replays[0].reader()
    batch = reader.sample(9)
    assert set(batch.version.tolist()) == {7} and set(batch.reward.tolist()) <= set(range(9))


def test_rows_of_replaced_actors_are_refused_and_counted_and_lost_rows_are_counted():
    roster, host = learner()
    host.join(0, 0, nothing(roster), [0, 0])
    pieces, data = block(roster, 10)
    host.receive(0, 0, 5, pieces, data, [14, 0], False, [0])  # four more were made, and never came
    host.join(0, 1, nothing(roster), [16, 3])  # the driver knew of more
    with pytest.raises(SupersededError, match="start 0"):
        host.receive(0, 0, 6, *block(roster, 15, first=10), [15, 0], False, [0])
    with pytest.raises(SupersededError):
        host.join(0, 0, nothing(roster), [0, 0])
    host.receive(0, 1, 0, pieces, data, [10, 0], False, [0])
    report = host.report(False, [], False)
    assert report.rows[:, 0].tolist() == [6, 3]
    assert report.rows[:, 1].tolist() == [5, 0]
    words = host._memory.replays[0].words(0)
    assert (words.head, words.broken, words.incarnation) == (20, 1, 2)


def test_a_full_lane_takes_what_there_is_room_for():
    config = PPOConfig(rollout=8, capacity=16) if "capacity" in PPOConfig.__dataclass_fields__ else PPOConfig()
    roster = make_roster(WORLD, config, Settings(steps=1000, learner_processes=1))
    host = LearnerHost(Shipment((roster, None)), 0)
    host.join(0, 0, nothing(roster), [0, 0])
    capacity = host._memory.replays[0].spec.lane_capacity
    row_bytes = host._memory.replays[0].spec.row_bytes
    rows = np.zeros((capacity + 5) * row_bytes, np.uint8)
    arrived = host.receive(0, 0, 1, [(0, 0, 0, len(rows))], rows, [len(rows), 0], False, [0])
    assert arrived.rows == [capacity]


def test_versions_travel_as_one_flat_object():
    roster, _ = learner()
    here, there = LocalMemory(roster), LocalMemory(roster)
    for agent in range(2):
        publisher = here.publications[agent].publisher()
        publisher.publish(np.full(16, agent + 0.5, np.float32), version=9 + agent, epsilon=0.25, step=agent)
    ends = [(p, p.subscriber()) for p in here.publications]
    for _, subscriber in ends:
        subscriber.refresh()
    unpack(packed(ends), [(p, p.publisher()) for p in there.publications])
    for agent in range(2):
        subscriber = there.publications[agent].subscriber()
        assert subscriber.refresh() and subscriber.version == 9 + agent
        assert (subscriber.weights == agent + 0.5).all()
        assert (subscriber["epsilon"], subscriber["step"]) == (0.25, agent)


def test_the_words_of_a_copied_lane_are_those_of_the_lane():
    roster, host = learner()
    host.join(0, 0, nothing(roster), [0, 0])
    host.receive(0, 0, 5, *block(roster, 10), [10, 0], False, [0])
    assert words_of(host.dump(0, 0)) == host._memory.replays[0].words(0)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install 'motet\[ray\]'"), connected(Cluster()):
        pass


def test_isolated_partners_are_refused_on_a_cluster():
    agents = {"agent_0": StandIn(), "agent_1": Partner("random", isolate=True)}
    with pytest.raises(SettingError, match="isolated partners are not valid with engine='ray'"):
        _check_for_cluster(make_roster(WORLD, agents, settings(), room=1))


def test_a_cluster_is_for_the_engine_that_has_one():
    with pytest.raises(SettingError, match="engine='ray'"):
        Settings(cluster=Cluster(address="auto"))
    with pytest.raises(SettingError, match="block_age_s"):
        Cluster(block_age_s=-1)


# ---- with Ray


def test_partners_act_on_a_cluster_as_in_a_serial_run(two_nodes):
    agents = {"agent_0": StandIn(), "agent_1": "forager"}
    common = {"updates_per_step": 0.5, "actors": 2, "steps": 200}
    there = train(WORLD, agents, settings(slack=0, cluster=Cluster(address=two_nodes[0].address), **common))
    here = train(WORLD, agents, settings(engine="serial", **common))
    same_agents(here, there)
    assert there.returns == here.returns


def test_lockstep_on_a_cluster_is_serial_bit_for_bit(two_nodes):
    chosen = {"steps": 200, "actors": 2, "worlds_per_actor": 2, "learner_processes": 2, "updates_per_step": 0.5}
    algorithm = StandIn(prioritised=True)
    serial = train(WORLD, algorithm, settings(**{**chosen, "engine": "serial"}))
    spread = train(WORLD, algorithm, settings(**chosen, slack=0))
    assert spread.state == "done"
    same_agents(serial, spread)


DRAWN = {"hidden": (16, 16), "min_rows": 16, "batch_size": 8, "capacity": 400}
ONCE = {"batch_size": 2, "length": 16, "minibatches": 2, "epochs": 2, "hidden": (16, 16)}
ON_DEVICE = {
    "dqn": (WORLD, PoisonedDQN(**DRAWN), DQNConfig(**DRAWN)),
    "iqn, prioritised": (
        WORLD, PoisonedIQN(**DRAWN, prioritised=True), IQNConfig(**DRAWN, prioritised=True)
    ),
    "td3, normalised": (
        "gym:Pendulum-v1", PoisonedTD3(**DRAWN, normalise=True), TD3Config(**DRAWN, normalise=True)
    ),
    "ppo": (WORLD, PoisonedPPO(**ONCE), PPOConfig(**ONCE)),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name == "dqn" else pytest.param(name, marks=pytest.mark.slow) for name in ON_DEVICE]
)
def test_a_device_on_a_cluster_learns_what_the_cpu_does_also_when_resumed(name, two_nodes, tmp_path):
    world, on_device, on_cpu = ON_DEVICE[name]
    chosen = {"steps": 200, "learner_processes": 1, "updates_per_step": None if name == "ppo" else 0.5}
    runs = {"here": (on_cpu, {"engine": "serial"}), "there": (on_device, {"slack": 0})}
    first, second = {}, {}
    for where, (algorithm, own) in runs.items():
        first[where] = train(world, algorithm, settings(**{**chosen, **own}), run=tmp_path / where)
        second[where] = resume(tmp_path / where, steps=150, world=world, algorithm=algorithm, trust=True)
    same_agents(first["here"], first["there"])
    same_agents(second["here"], second["there"])
    (agent, *_) = first["there"].updates
    assert second["there"].updates[agent] > first["there"].updates[agent] > 3


def kill_when(name, at_least, kill):
    """A watch that ends a process once, when so many steps are done."""
    done = threading.Event()

    def watch(snapshot):
        if snapshot.steps >= at_least and not done.is_set():
            process = next(p for p in snapshot.processes if p.name == name)
            if process.pid:
                done.set()
                kill(process.pid)

    watch.done = done
    return watch


def end(pid):
    os.kill(pid, signal.SIGKILL)


def all_done(result, steps):
    """Whether a run ended with the rounds that reached its steps: an episode's last round closes two rows."""
    return steps <= result.steps <= steps + 4


@pytest.mark.parametrize("name", ["actor-1", "learner-0"])
def test_dead_processes_are_replaced_and_steps_are_counted_correctly(two_nodes, tmp_path, name):
    gate = tmp_path / "gate"
    # Both actors stop after 75 turns of an episode with 100; of those of both, 140 have come to the learners.
    watch = kill_when(name, 140, lambda pid: (end(pid), gate.touch()))
    lines, seen = [], []
    chosen = settings(steps=8000, actors=2, updates_per_step=0.2, slack=8, cluster=Cluster(keep_every_s=0.2))
    result = train(
        partial(Gated, gate, 150, agents=2), StandIn(), chosen, run=tmp_path / "run", on_message=lines.append,
        on_update=lambda s: (seen.append(s), watch(s)),
    )  # fmt: skip
    assert watch.done.is_set() and result.restarts == 1, lines
    assert result.state == "done" and all_done(result, 8000)
    assert all(updates > 1000 for updates in result.updates.values())
    last = seen[-1].agents[0]
    assert last.broken >= 1 if name == "actor-1" else last.lost > 0
    versions = [snapshot.agents[0].version for snapshot in seen]
    assert versions == sorted(versions)
    assert RunDirectory(tmp_path / "run").steps()[-1] == result.steps


def test_a_run_is_resumed_from_its_checkpoint(two_nodes, tmp_path):
    train(WORLD, StandIn(), settings(steps=400, updates_per_step=1.0, keep_replay=True), run=tmp_path / "run")
    result = resume(tmp_path / "run", steps=300, world=WORLD, algorithm=StandIn(), trust=True)
    assert result.state == "done" and result.steps == 700
    assert abs(result.updates["agent_0"] - 700) < 60
    assert result.agents["agent_0"]["steps"] == 700
    last = [now for now in read_history(RunDirectory.open(tmp_path / "run")) if now.state == "done"]
    assert len(read_episodes(tmp_path / "run")) == sum(now.agents[0].episodes for now in last) > 0
    for now in last:
        assert all(row.spent_s and min(row.spent_s.values()) > 0 for row in now.processes)
        assert now.bottleneck and now.main is not None and now.main.spent_s


def test_episodes_are_exact_on_a_cluster(two_nodes, tmp_path):
    result = train(
        WORLD, StandIn(), settings(steps=None, actors=2, worlds_per_actor=2, episodes=7), run=tmp_path / "run"
    )
    assert result.state == "done"
    assert RunDirectory(tmp_path / "run").load().notes["ended"] == [[2, 2], [2, 1]]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert [row["episodes"] for row in status["agents"]] == [7] * len(status["agents"])


def test_rows_that_are_read_once_and_evaluations(two_nodes, tmp_path):
    # It ends with its first evaluation, however long that takes.
    chosen = settings(steps=10**6, actors=2, evaluate_every=3000, evaluate_episodes=2, until_return=-1e9)
    result = train(WORLD, PPOConfig(), chosen, run=tmp_path / "run")
    assert result.state == "stopped" and result.steps >= 3000
    assert (tmp_path / "run" / "evaluation.jsonl").exists()
    assert all(updates >= 1 for updates in result.updates.values())


def test_an_evaluation_and_a_tournament_on_a_cluster_are_the_local_ones_byte_for_byte(two_nodes, tmp_path):
    from motet.evaluation.evaluate import evaluate
    from motet.evaluation.tournament import tournament

    chosen = {"episodes": 12, "seed": 5}
    still, lines, killed = Standstill(tmp_path), [], threading.Event()
    here = evaluate(still.world, ["random", "noop"], **chosen)

    def kill_one():
        hosts = [pid for pid in descendants() if _title(pid).startswith("ray::ChildHost")]
        os.kill(int(hosts[0]), signal.SIGKILL)
        killed.set()

    with still.until(kill_one):
        there = evaluate(still.world, ["random", "noop"], **chosen, engine="ray", jobs=2, on_message=lines.append)
    assert killed.is_set() and any("restarting" in line for line in lines)
    assert there.deterministic() == here.deterministic()
    one, two = (tournament(WORLD, ["random", "noop"], rounds=1, engine=e, seed=2) for e in ("processes", "ray"))
    assert one.deterministic() == two.deterministic()


def _title(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:  # it ended meanwhile
        return ""


def test_a_plan_on_a_cluster_has_the_same_bits(two_nodes, monkeypatch):
    from support.small_models import Layered

    from motet.cluster.workers import HostProcess
    from motet.plan import enumerate_states
    from motet.plan import parallel as _workers

    sent, kinds = make_eager(monkeypatch), set()
    init = _workers._WorkerPool.__post_init__

    def watch(pool):
        init(pool)
        kinds.update(type(one.child) for one in pool.workers)

    monkeypatch.setattr(_workers._WorkerPool, "__post_init__", watch)
    model = Layered(seed=4, humans=(3, 3), robots=(3,), depth=8, width=20)
    here = enumerate_states(model, workers=1)
    there = enumerate_states(model, workers=2, engine="ray")
    assert sent and kinds == {HostProcess}
    assert here.states == there.states
    for name, value in vars(here).items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(there, name)), name


class Broken(TreasureHunt):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 20:  # not where the driver looks for masks
            raise ValueError("the cellar is flooded")
        super().step(action)


def test_an_exception_of_a_world_on_a_cluster_is_reported(two_nodes):
    from motet.errors import ChildError

    with pytest.raises(ChildError, match="the cellar is flooded"):
        train(partial(Broken, agents=2), StandIn(), settings())


@pytest.mark.slow
def test_a_node_dies_in_the_middle_of_training(two_nodes):
    cluster, size = two_nodes
    extra = cluster.add_node(**size)
    lines = []
    fell = threading.Event()

    def watch(snapshot):
        if snapshot.steps > 2000 and not fell.is_set():
            fell.set()
            threading.Thread(target=cluster.remove_node, args=(extra, False)).start()

    chosen = settings(steps=60_000, actors=3, updates_per_step=0.1, slack=8, cluster=Cluster(keep_every_s=0.2))
    result = train(WORLD, StandIn(), chosen, on_update=watch, on_message=lines.append)
    assert fell.is_set() and result.restarts >= 1, lines
    assert result.state == "done" and all_done(result, 60_000)
