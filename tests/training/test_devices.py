"""Devices of learners, settings of single agents, and replays on a disk."""

import functools
import json
import os
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from support.poisoned_device import (
    PoisonedAttain,
    PoisonedDQN,
    PoisonedEmpower,
    PoisonedIQN,
    PoisonedLoss,
    PoisonedLosses,
    PoisonedLossOnce,
    PoisonedPPO,
    PoisonedTD3,
)
from support.stand_in import StandIn

from motet import AgentSettings, Cluster, Partner, Settings, resume, train
from motet.algorithms import _recurrent_network
from motet.algorithms._flat import METRICS_EVERY
from motet.cli.doctor import device_problem
from motet.cli.experiment import experiment_schema
from motet.cli.flags import parse
from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.system import memory
from motet.system.devices import TorchFound, idle_device
from motet.system.supervisor import RestartLimits
from motet.training.drivers import make_learner
from motet.training.roster import make_roster
from motet.training.shared import SharedMemory
from motet.world import as_world
from motet.worlds import Bushes, OneMind, TreasureHunt, UniformHumans

HUNT = functools.partial(TreasureHunt, agents=3, turns=20)
SMALL = {"hidden": (16, 16), "min_rows": 16, "batch_size": 8, "capacity": 400}
ONCE = {"batch_size": 2, "length": 16, "minibatches": 2, "epochs": 2, "hidden": (16, 16)}


def devices(roster):
    return [policy.device for policy in roster.policies]


@pytest.fixture
def gpus(monkeypatch):
    """A machine with two GPUs."""
    found = TorchFound("2.0", {"cuda:0": "a GPU", "cuda:1": "a GPU"}, 0.0)
    monkeypatch.setattr("motet.training.roster.torch_found", lambda: found)


# ---- settings of single agents


def test_agents_are_stacked_only_where_their_own_settings_are_equal():
    alike = make_roster(HUNT, "dqn", Settings(learner_processes=1))
    assert alike.stacks == ((0, 1, 2),)
    agents = {"agent_0": "dqn", "agent_1": AgentSettings("dqn", publish="snapshot", publish_every=3), "agent_2": "dqn"}
    roster = make_roster(HUNT, agents, Settings(learner_processes=1))
    assert roster.stacks == ((0, 2), (1,))
    assert [(policy.slots, policy.publish_every) for policy in roster.policies] == [(2, 10), (1, 3), (2, 10)]
    own = AgentSettings("dqn", publish="double_buffer", publish_every=10, device="cpu")
    as_the_run = make_roster(HUNT, {**agents, "agent_1": own}, Settings(learner_processes=1))
    assert as_the_run.stacks == ((0, 1, 2),), "the same settings, given twice"


def test_settings_of_an_agent_are_kept_with_the_run_and_publish_as_they_say(tmp_path):
    agents = {"agent_0": StandIn(), "agent_1": AgentSettings(StandIn(), publish_every=1), "agent_2": "random"}
    settings = Settings(steps=200, engine="serial", publish_every=50)
    result = train(HUNT, agents, settings, run=tmp_path / "run")
    assert result.state == "done"
    versions = {row["name"]: row["version"] for row in json.loads((tmp_path / "run/status.json").read_text())["agents"]}
    assert versions["agent_1"] > 10 * versions["agent_0"]
    config = RunDirectory.open(tmp_path / "run").config()
    assert config["own_settings"] == {"agent_1": {"publish_every": 1}}
    resume(tmp_path / "run", steps=100, trust=True)
    again = {row["name"]: row["version"] for row in json.loads((tmp_path / "run/status.json").read_text())["agents"]}
    assert again["agent_1"] > 10 * again["agent_0"], "and again after it is resumed"
    assert RunDirectory.open(tmp_path / "run").config()["own_settings"] == config["own_settings"]


def test_files_flags_and_python_mean_the_same(tmp_path):
    table = '[world]\nname = "treasure_hunt"\n[agents.agent_1]\npublish_every = 2\ndevice = "cuda:1"\ngamma = 0.5\n'
    (tmp_path / "a.toml").write_text(table)
    from_file = parse([str(tmp_path / "a.toml")]).configs
    own = ["--agents.agent_1.publish-every", "2", "--agents.agent_1.device", "cuda:1", "--agents.agent_1.gamma", "0.5"]
    assert from_file == parse(["treasure_hunt", *own]).configs
    config = from_file["agent_1"]
    assert config == AgentSettings(replace(from_file["agent_0"], gamma=0.5), publish_every=2, device="cuda:1")
    properties = experiment_schema()["properties"]["agents"]["additionalProperties"]["properties"]
    assert properties["publish_every"]["minimum"] == 1 and "device" in properties


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: AgentSettings("dqn", device="gpu"), "device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got"),
        (lambda: Settings(device="cuda:x"), "device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got 'cuda:x'"),
        (lambda: AgentSettings("dqn", publish_every=0), "publish_every must be an int >= 1"),
        (lambda: parse(["treasure_hunt", "--agents.agent_1.publish-evry", "2"]), "publish_every"),
        (lambda: parse(["treasure_hunt", "--agents.agent_1.device", "tpu"]), "agents.agent_1: device must be 'auto'"),
        (lambda: Settings(engine="ray", replay_directory="/tmp"), "replay_directory must be None with engine='ray'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, error):
    with pytest.raises(SettingError, match=error):
        make()


# ---- which device


def test_learner_processes_take_turns_on_gpus_and_stay_stacked(gpus):
    four = functools.partial(TreasureHunt, agents=4)
    roster = make_roster(four, "dqn", Settings(device="auto", learner_processes=2))
    assert devices(roster) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert roster.stacks == ((0, 1), (2, 3))
    own = {name: AgentSettings("dqn", device=device) for name, device in zip(
        ("agent_0", "agent_1", "agent_2", "agent_3"), ("cpu", "cuda", "cuda:1", None), strict=True)}  # fmt: skip
    assert devices(make_roster(four, own, Settings(device="auto", learner_processes=1))) == [
        *("cpu", "cuda", "cuda:1", "cuda:0"),
    ]
    with pytest.raises(SettingError, match=r"one that torch finds here \(cpu, cuda:0, cuda:1\), got 'cuda:2'"):
        make_roster(four, "dqn", Settings(device="cuda:2"))


def test_the_default_asks_torch_for_nothing(monkeypatch):
    monkeypatch.setattr("motet.training.roster.torch_found", lambda: pytest.fail("torch was asked"))
    assert devices(make_roster(HUNT, "dqn", Settings())) == ["cpu"] * 3


def test_on_a_cluster_ray_says_which_gpus_there_are(monkeypatch):
    monkeypatch.setattr("motet.training.roster.torch_found", lambda: pytest.fail("this machine was asked"))

    def chosen(device, gpus):
        return make_roster(HUNT, "dqn", Settings(engine="ray", device=device, cluster=Cluster(learner_gpus=gpus)), 1)

    assert devices(chosen(None, 0.5)) == ["cuda"] * 3, "reserved GPUs are used"
    assert devices(chosen("auto", 0.5)) == ["cuda"] * 3 and devices(chosen("auto", 0)) == ["cpu"] * 3
    assert devices(chosen("cpu", 1)) == ["cpu"] * 3
    with pytest.raises(SettingError, match=r"set cluster\.learner_gpus"):
        chosen("cuda", 0)
    with pytest.raises(SettingError, match="got 'cuda:1'"):
        chosen("cuda:1", 1)


def test_the_first_line_says_that_a_device_is_there(monkeypatch):
    lines = []
    settings = Settings(steps=20, engine="serial")
    train(HUNT, StandIn(), settings, on_message=lines.append)
    assert not any("device" in line for line in lines)
    monkeypatch.setattr("motet.training.run.idle_device", lambda: "cuda")
    train(HUNT, StandIn(), settings, on_message=lines.append)
    assert "a device for torch (cuda)" in lines[0] and "--device auto" in lines[0]


def test_a_device_is_seen_by_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.0+cu128")
    assert idle_device(tmp_path, {}) == ""
    (tmp_path / "nvidia0").touch()
    assert idle_device(tmp_path, {}) == "cuda"
    assert idle_device(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) == "", "hidden"
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.0+cpu")
    assert idle_device(tmp_path, {}) == "", "this torch cannot use it"


def test_the_doctor_learns_on_a_device():
    assert device_problem("cpu") == ""
    assert "nonsense" in device_problem("nonsense")


# ---- runs on a device with a memory of its own


class Point(gymnasium.Env):
    """A world of one agent that moves along a line."""

    def __init__(self):
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self._t, self._x = 0, 0.1 * ((seed or 0) % 7)
        return np.array([self._x, 0], np.float32), {}

    def step(self, action):
        self._t, self._x = self._t + 1, float(np.clip(self._x + 0.1 * float(action[0]), -1, 1))
        return np.array([self._x, self._t / 20], np.float32), -abs(self._x), False, self._t == 20, {}


SEQUENCES = {"memory": "gru", "memory_size": 8, "sequence_length": 5, "burn_in": 3}
OWN = {"min_rows": 16, "batch_size": 8, "capacity": 400}
MODEL = functools.partial(Bushes, horizon=4)

# World, config, and what an update takes to the device and back, without metrics
PAIRS = {
    "dqn": (HUNT, PoisonedDQN(**SMALL), (5, 0)),
    "dqn, memory": (HUNT, PoisonedDQN(**SMALL, **SEQUENCES), (8, 0)),
    "iqn, prioritised": (HUNT, PoisonedIQN(**SMALL, prioritised=True), (7, 1)),
    "iqn, memory": (HUNT, PoisonedIQN(**SMALL, **SEQUENCES), (9, 0)),
    "td3, normalised": (Point, PoisonedTD3(**SMALL, normalise=True), (8, 3)),
    "td3, memory": (Point, PoisonedTD3(**SMALL, **SEQUENCES), (9, 0)),
    "ppo": (HUNT, PoisonedPPO(**ONCE), (6, 3)),
    "ppo, memory": (HUNT, PoisonedPPO(**ONCE, memory="gru", memory_size=8, sequence_length=4), (8, 3)),
    "own loss": (HUNT, PoisonedLoss(**OWN), (6, 0)),
    "own loss, several networks": (Point, PoisonedLosses(**OWN), (7, 0)),
    "own loss, rows read once": (HUNT, PoisonedLossOnce(batch_size=2, length=16), (7, 0)),
    "empower": (functools.partial(OneMind, MODEL()), PoisonedEmpower(**SMALL), (12, 0)),
    "attain": (functools.partial(UniformHumans, MODEL()), PoisonedAttain(**SMALL), (7, 0)),
}


def on_cpu(poisoned):
    kind = type(poisoned).__mro__[2]
    return kind(**{item.name: getattr(poisoned, item.name) for item in fields(kind)})


def spaces(world):
    made = as_world(world())
    return made.observation_spaces[0], made.action_spaces[0]


def same(one, other):
    assert one.updates == other.updates and min(one.updates.values()) > 3
    for name, arrays in one.agents.items():
        for what in ("state", "counters", "random", "reader"):
            assert arrays[what].tobytes() == other.agents[name][what].tobytes(), (name, what)


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch):
    """The CPU's own native networks with a memory round otherwise than torch, which devices have."""
    monkeypatch.setattr(_recurrent_network, "NativeRecurrent", _recurrent_network.TorchRecurrent)


FEW = ("dqn", "iqn, prioritised", "td3, normalised", "ppo")


def cases(*more):
    """Every pair; all but a few are slow."""
    return [pytest.param(name, *more, marks=[] if name in FEW else pytest.mark.slow) for name in PAIRS]


@pytest.mark.parametrize(
    ("name", "stacked"),
    [*cases(True), *(pytest.param(name, False, marks=pytest.mark.slow) for name in PAIRS if PAIRS[name][0] is HUNT)],
)
def test_runs_and_resumed_runs_on_a_device_are_those_on_the_cpu(name, stacked, tmp_path):
    world, there, _ = PAIRS[name]
    processes = 1 if stacked else 3
    chosen = Settings(steps=120, engine="serial", publish_every=3, learner_processes=processes, seed=5)
    results = []
    for i, algorithm in enumerate((there, on_cpu(there))):
        train(world, algorithm, chosen, run=tmp_path / str(i))
        results.append(resume(tmp_path / str(i), steps=80, world=world, algorithm=algorithm, trust=True))
    same(*results)


@pytest.mark.parametrize("name", PAIRS)
def test_what_crosses_in_the_updates_of_a_run_is_counted(name):
    world, there, (to, back) = PAIRS[name]
    once = there.replay(*spaces(world)).once
    train(world, there, Settings(steps=160 if once else 60, engine="serial", learner_processes=1, seed=5))
    also = (0, 0) if name.startswith("ppo") else (name.startswith(("empower", "attain")), 1)  # PPO always measures
    measures = to + also[0], back + also[1]
    expected = [(to, back) if i % METRICS_EVERY else measures for i in range(len(there.crossed))]
    assert there.crossed[1:] == expected[1:], "the first one may also take what stays on the device"
    assert len(expected) > (3 if once else METRICS_EVERY)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "dqn" else pytest.mark.slow) for name in PAIRS]
)
def test_processes_on_a_device_learn_what_the_cpu_does(name):
    settings = Settings(steps=120, publish_every=3, learner_processes=1, updates_per_step=1.0, slack=0, seed=5)
    world, there, _ = PAIRS[name]
    if there.replay(*spaces(world)).once:
        settings = replace(settings, steps=200, updates_per_step=None)
    serial = train(world, on_cpu(there), replace(settings, engine="serial", slack=None))
    same(train(world, there, settings), serial)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_learners_killed_on_a_device_go_on_as_on_the_cpu(name, tmp_path):
    world, there, _ = PAIRS[name]
    once = there.replay(*spaces(world)).once
    settings = Settings(steps=200, period=20, updates_per_step=None if once else 0.5, learner_processes=1, seed=5)
    serial = train(world, on_cpu(there), replace(settings, engine="serial"))
    at_once = RestartLimits(restarts=100, back_off_s=0.001)
    killed = train(world, there.dying(tmp_path, 2, 4), replace(settings, limits=at_once))
    assert len(list(tmp_path.iterdir())) == 2 == killed.restarts
    same(killed, serial)


@pytest.mark.parametrize("once", [False, True])
def test_a_restarted_learner_on_a_device_continues_as_on_the_cpu(once):
    there = PoisonedPPO(**ONCE) if once else PoisonedDQN(**SMALL)
    states = []
    for algorithm in (there, on_cpu(there)):
        roster = make_roster(HUNT, algorithm, Settings(engine="serial", learner_processes=1, publish_every=2))
        shared, rng = SharedMemory(roster), np.random.default_rng(1)
        writers = {policy: shared.replays[policy].writer(0) for policy in roster.stacks[0]}
        for _ in range(3):  # each one is the successor of the one before
            learner = make_learner(shared, 0)
            learner.begin()
            for _ in range(3):
                write(shared, writers, rng)
                learner.update()
        if algorithm is there:
            device = learner.algorithm._device
            device.crossed.clear()
        for _ in range(2):
            write(shared, writers, rng)
            learner.update()
        if algorithm is there:
            # two updates and one publication, whose vault takes all; rows that are read once: two of these
            expected = Counter(there=12, back=10) if once else Counter(there=10, back=2)
            assert device.crossed == expected
        if not once:  # only some of the stack are due, then all
            learner.update([True, False, True])
            learner.update([False, True, False])
            learner.update()
        state, header = learner.state()
        states.append([state.tobytes(), *(header[name].tobytes() for name in ("counters", "random", "reader"))])
    assert states[0] == states[1]


def write(shared, writers, rng):
    """Write a few rows into a lane of each policy."""
    for policy, writer in writers.items():
        spec = shared.roster.policies[policy]
        for _ in range(33):  # an update takes 32 of them, and the next one
            extra = {name: np.full(field.shape, -0.7, field.dtype) for name, field in spec.settings.extra.items()}
            observation = rng.random(spec.observation_space.shape).astype(spec.observation_space.dtype)
            writer.append(observation=observation, action=int(rng.integers(0, 3)), reward=float(rng.normal()), **extra)


# ---- replays on a disk


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_replays_on_a_disk_hold_the_same_rows(engine, tmp_path, monkeypatch):
    made = []

    real = memory._nameless_file

    def nameless(directory):
        made.append(real(directory))
        assert os.stat(made[-1]).st_dev == os.stat(tmp_path).st_dev
        assert os.stat(made[-1]).st_nlink == 0
        return made[-1]

    monkeypatch.setattr("motet.system.memory._nameless_file", nameless)
    more = {"slack": 0, "updates_per_step": 1.0} if engine == "processes" else {}
    settings = Settings(steps=100, engine=engine, learner_processes=1, **more)
    here = train(HUNT, StandIn(), settings)
    there = train(HUNT, StandIn(), replace(settings, replay_directory=str(tmp_path)))
    same(here, there)
    assert len(made) == 1, "one file for all agents"
    assert list(Path(tmp_path).iterdir()) == []


def test_missing_folder_is_reported(tmp_path):
    settings = Settings(steps=100, engine="serial", replay_directory=str(tmp_path / "none"))
    with pytest.raises(SettingError, match="directory must be an existing folder"):
        train(HUNT, StandIn(), settings)


def test_partners_are_not_given_devices():
    agents = {"agent_0": "dqn", "agent_1": AgentSettings(Partner("random"), publish_every=1), "agent_2": "dqn"}
    with pytest.raises(SettingError, match="publish_every of agent_1: only valid for agents that learn"):
        make_roster(HUNT, agents, Settings())
