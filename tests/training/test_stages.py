"""Stages: the learner derives them from the steps and publishes them with or without an update; they may clear the
replay."""

import functools
import os
import signal
import time
from dataclasses import dataclass, field, replace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from motet.algorithm import Field, ReaderSettings, Sizes, Update
from motet.algorithms.dqn import DQNConfig
from motet.cli.flags import parse
from motet.errors import SettingError, SupersededError
from motet.runs.config import describe, rebuild
from motet.schedule import Exponential, Linear, Staged, Stages, value_at
from motet.system.supervisor import RestartLimits
from motet.training.drivers import make_learner
from motet.training.roster import make_roster
from motet.training.run import resume, train
from motet.training.serial import Serial
from motet.training.settings import Settings
from motet.training.shared import SharedMemory

STAGES = Stages({"warm_up": 200, "ramp": 300, "full": None})
CLEARED = replace(STAGES, clear_replay_on_stage=("full",))


class Count(gymnasium.Env):
    """Sees how often it was stepped, in all episodes together."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(3)

    def __init__(self):
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 20))
        return np.array([self._count], np.float32), {}

    def step(self, action):
        self._count += 1
        self._left -= 1
        return np.array([self._count], np.float32), 1.0, False, self._left == 0, {}

    def get_state(self):
        return self._count, self._left

    def set_state(self, state):
        self._count, self._left = state


@dataclass(frozen=True)
class Witness:
    """Notes with which stage each action was chosen, and the oldest row of all updates in each stage."""

    stages: Stages = field(default_factory=Stages)
    rate: object = 1.0
    min_rows: int = 32
    batch_size: int = 8
    prioritised: bool = False
    late: int = 0
    """Steps after a stage's beginning from which on its rows are noted: a free actor may be ahead by some."""

    @property
    def header(self):
        return {"stage": ((), "int64"), "rate": ((), "float64")}

    def replay(self, observation_space, action_space, *, masked=False):
        extra = {"stage": Field((), "int64"), "rate": Field((), "float32")}
        return ReaderSettings(
            batch_size=self.batch_size, min_rows=self.min_rows, extra=extra, stages=self.stages,
            prioritised=self.prioritised, capacity=4000,
        )  # fmt: skip

    def sizes(self, observation_space, action_space):
        return Sizes(weights=1, state=8, counters=1, random=0)

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _Learner(self, agents)

    def behaviour(self, observation_space, action_space):
        return _Actor()


class _Learner:
    n_weights = 1

    def __init__(self, config, agents):
        self._config = config
        self.state = np.zeros((agents, 8), np.float32)
        self.state[:, 1:] = 1e9
        self.counters = np.zeros((agents, 1), np.int64)
        self.random = np.zeros((agents, 0), np.uint8)

    def update(self, batch, steps):
        for a, step in enumerate(steps):
            stage = self._config.stages.index(max(0, step - self._config.late))
            self.state[a, 1 + stage] = min(self.state[a, 1 + stage], batch.observation[a].min())
            self.state[a, 0] += float(batch.observation[a].sum()) * 1e-6
        self.counters += 1
        return Update({}, np.abs(batch.reward) if self._config.prioritised else None)

    def header(self, step, agent):
        stages = self._config.stages
        return {"stage": stages.index(step), "rate": value_at(self._config.rate, step, stages)}

    def weights(self):
        return self.state[:, :1]

    def save(self):
        pass

    def load(self):
        pass


class _Actor:
    def begin(self, seed):
        self._rng = np.random.default_rng(seed)

    def load(self, weights, header):
        self._stage, self._rate = header["stage"], header["rate"]

    def act(self, observations, masks=None, explore=True):
        n = len(observations)
        extra = {"stage": np.full(n, self._stage), "rate": np.full(n, self._rate, np.float32)}
        return self._rng.integers(0, 3, n), extra


def played(config, worlds=1, steps=800, **settings):
    """A serial run; its shared."""
    shared = SharedMemory(
        make_roster(Count, config, Settings(engine="serial", steps=steps, worlds_per_actor=worlds, **settings))
    )
    Serial(shared).play(lambda: False)
    return shared


def rows(shared, fields, lane=0):
    """The fields of all rows of a lane, by what was seen in it."""
    reader = shared.replays[0].reader()
    found = {}
    for _ in range(200):
        batch = reader.sample(64)
        for i in np.flatnonzero(batch.lane == lane):
            found[int(batch.observation[i, 0])] = tuple(batch.extra[name][i].item() for name in fields)
    return found


# ---- the stage travels


@pytest.mark.parametrize("min_rows", [32, 4000])
def test_actors_act_by_the_stage_of_the_step_update_or_not(min_rows):
    rate = Staged({"warm_up": 1.0, "ramp": Linear(1.0, 0.5, 300), "full": 0.25})
    shared = played(Witness(STAGES, rate, min_rows), publish_every=10)
    assert int(shared.board.learned.updates[0]) == (0 if min_rows == 4000 else 800 - 34)
    seen = rows(shared, ("stage", "rate"))
    assert len(seen) > 700
    for step, (stage, rate) in seen.items():
        # A step is complete when the next one begins: the learner knows of it one round later.
        assert stage == STAGES.index(step - 1), f"step {step}"
        assert rate in (1.0, 0.25) if stage != 1 else 0.5 <= rate <= 1.0
    if min_rows == 4000:
        assert {rate for stage, rate in seen.values() if stage == 1} == {1.0}  # published at its beginning only


def test_stages_are_published_and_shown_without_updates():
    seen = []
    train(
        Count, Witness(STAGES, min_rows=4000), Settings(steps=3000, worlds_per_actor=4),
        on_update=lambda snapshot: seen.append(snapshot.agents[0]),
    )  # fmt: skip
    assert seen[-1].updates == 0
    assert seen[-1].stage == "full"
    assert seen[-1].version == 4  # the first one, two stages, the end


def test_one_stage_costs_no_version():
    seen = []
    train(
        Count, Witness(min_rows=4000), Settings(steps=500), on_update=lambda snapshot: seen.append(snapshot.agents[0])
    )
    assert seen[-1].stage == ""
    assert seen[-1].version == 2  # the first one and the end


# ---- the replay is cleared


@pytest.mark.parametrize("worlds", [1, 16])
def test_a_cleared_replay_gives_no_row_from_before(worlds):
    state = played(Witness(CLEARED), worlds, steps=4000, updates_per_step=0.5).vaults[0].subscriber()
    state.refresh()
    oldest = state.weights[1:4]
    assert oldest[0] < 200 / worlds
    assert oldest[1] < 200 / worlds  # it was not cleared when the ramp began
    assert oldest[2] >= 500 // worlds - 1


def test_updates_that_became_due_during_a_rest_are_skipped():
    plain, cleared = (played(Witness(stages)) for stages in (STAGES, CLEARED))
    assert int(plain.board.learned.updates[0]) == 800 - 34
    waived = int(cleared.board.learned.waived[0])
    assert int(cleared.board.learned.updates[0]) == 800 - 34 - waived
    assert 30 <= waived <= 36
    assert not cleared.board.learned.resting[0]


def test_a_restarted_learner_neither_rests_again_nor_skips_more_updates():
    """However seldom versions are published: what was waived is in the vault before anybody goes on."""
    settings = Settings(engine="serial", steps=800, updates_per_step=1.0, publish_every=10**6)
    shared, seen = SharedMemory(make_roster(Count, Witness(CLEARED), settings)), []

    def each_round():
        if not shared.board.learned.waived[0]:
            return False
        seen.append(shared.board.learned.words[0, 3:5].tolist())
        make_learner(shared, 0)
        seen.append(shared.board.learned.words[0, 3:5].tolist())
        return True

    serial = Serial(shared)
    serial.play(each_round)
    with pytest.raises(SupersededError):  # at its end the predecessor finds that it has one
        serial.end()
    assert seen[0][0] >= 30
    assert seen[0] == seen[1]


def test_a_tight_pace_continues_after_the_replay_is_cleared():
    settings = Settings(steps=3000, worlds_per_actor=64, updates_per_step=1.0, slack=1)
    result = train(Count, Witness(CLEARED, min_rows=10), settings)
    assert result.state == "done"
    assert min(result.updates.values()) > 2000


@pytest.mark.parametrize("prioritised", [False, True])
def test_lockstep_is_serial_through_all_stages(prioritised):
    config = Witness(CLEARED, Staged({"warm_up": 1.0, "ramp": Linear(1, 0, 300), "full": 0.0}), prioritised=prioritised)
    settings = {"steps": 1500, "updates_per_step": 0.5, "actors": 2, "worlds_per_actor": 3}
    serial = train(Count, config, Settings(engine="serial", **settings))
    lockstep = train(Count, config, Settings(slack=0, **settings))
    for name, arrays in serial.agents.items():
        for part, value in arrays.items():
            np.testing.assert_array_equal(value, lockstep.agents[name][part], err_msg=part)
    assert serial.updates == lockstep.updates
    assert min(serial.updates.values()) > 500


def test_a_killed_learner_does_not_bring_back_what_was_cleared():
    killed = []

    def watch(snapshot):
        row = snapshot.agents[0]
        pid = next(process.pid for process in snapshot.processes if process.name == "learner-0")
        if row.stage == "full" and pid and len(killed) < 2 and pid not in killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    stages = Stages({"ramp": 2000, "full": None}, clear_replay_on_stage=("full",))
    settings = Settings(steps=12_000, updates_per_step=0.2, slack=50, limits=RestartLimits(hang_s=5))
    world = functools.partial(Slow, 2e-4)
    result = train(world, Witness(stages, late=300), settings, on_update=watch)
    assert result.restarts == len(killed) >= 1
    (arrays,) = result.agents.values()
    assert arrays["stage"][0] == 1
    assert arrays["state"][2] >= 2000


class Slow(Count):
    def __init__(self, seconds):
        super().__init__()
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return super().step(action)


@pytest.mark.parametrize("first", [300, 510, 700])
def test_a_resumed_run_continues_in_its_stage(tmp_path, first):
    """With the replay kept, in the serial engine: exactly as if it had never stopped. 510: while it rests."""
    config = Witness(CLEARED, Staged({"warm_up": 1.0, "ramp": 0.5, "full": 0.0}))
    settings = Settings(engine="serial", steps=1000, keep_replay=True, checkpoint_every=first)
    whole = train(Count, config, settings, run=tmp_path / "whole")
    train(Count, config, replace(settings, steps=first), run=tmp_path / "half")
    half = resume(tmp_path / "half", steps=1000 - first, world=Count, algorithm=config, trust=True)
    assert whole.updates == half.updates
    for name, arrays in whole.agents.items():
        np.testing.assert_array_equal(arrays["stage"], half.agents[name]["stage"])


# ---- the words for it


def test_stages_say_where_a_step_lies():
    assert [STAGES.at(step) for step in (0, 199, 200, 499, 500, 10**9)] == [
        ("warm_up", 0), ("warm_up", 199), ("ramp", 0), ("ramp", 299), ("full", 0), ("full", 10**9 - 500)
    ]  # fmt: skip
    assert Stages([["a", 5], ["b"]]) == Stages((("a", 5), ("b", None))) == Stages({"a": 5, "b": None})
    assert len({repr(Stages({"a": 5, "b": None})), repr(Stages([["a", 5], ["b"]]))}) == 1


@pytest.mark.parametrize(
    ("lengths", "cleared", "word"),
    [
        ({}, (), "one or more"),
        ({"a": 5}, (), "None for the last"),
        ({"a": None, "b": None}, (), "stages must have a number of steps each"),
        ({"a": 0, "b": None}, (), "an int >= 1 or None"),
        ((("a", 5), ("a", None)), (), r"stages must have different names, got \['a', 'a'\]"),
        ({"a": 5, "b": None}, ("c",), "stage must be one of a, b, got 'c'"),
        ({"a": 5, "b": None}, ("a",), "the replay is still empty"),
    ],
)
def test_bad_stages_are_named(lengths, cleared, word):
    with pytest.raises(SettingError, match=word):
        Stages(lengths, cleared)


def test_a_staged_value_needs_all_stages_and_only_them():
    with pytest.raises(
        SettingError,
        match=r"epsilon must have one value for each stage of .*, got values for \['warm_up'\]",
    ):
        DQNConfig(stages=STAGES, epsilon=Staged({"warm_up": 0.5}))
    with pytest.raises(SettingError, match="epsilon in ramp"):
        DQNConfig(stages=STAGES, epsilon=Staged({"warm_up": 0.5, "ramp": 2.0, "full": 0.1}))
    with pytest.raises(
        SettingError, match=r"epsilon must have one value for each stage of \['full'\], got values for \['warm_up'\]"
    ):
        DQNConfig(epsilon=Staged({"warm_up": 0.5}))


def test_rows_that_are_read_once_are_never_cleared():
    with pytest.raises(SettingError, match="clear_replay_on_stage"):
        ReaderSettings(batch_size=1, once=True, length=4, stages=CLEARED)


EPSILON = Staged({"warm_up": 1.0, "ramp": Linear(1.0, 0.1, 300), "full": Exponential(0.1, 0.01, 50.0)})
CONFIG = DQNConfig(stages=CLEARED, epsilon=EPSILON)


def test_stages_survive_being_written_down():
    assert rebuild(describe(CONFIG)) == CONFIG


def test_stages_from_a_file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        """
        [world]
        name = "matrix"

        [dqn.stages]
        lengths = [["warm_up", 200], ["ramp", 300], ["full"]]
        clear_replay_on_stage = ["full"]

        [dqn.epsilon]
        warm_up = 1.0
        ramp = { start = 1.0, end = 0.1, steps = 300 }
        full = { start = 0.1, end = 0.01, half_life = 50.0 }
        """
    )
    assert parse([str(path)]).configs == CONFIG


def test_stages_from_flags():
    asked = parse(
        [
            "matrix",
            "--dqn.stages.lengths", "warm_up", "200", "ramp", "300", "full", "None",
            "--dqn.stages.clear-replay-on-stage", "full",
            "--dqn.epsilon", "warm_up=1.0,ramp=linear:1.0:0.1:300,full=exponential:0.1:0.01:50",
        ]
    )  # fmt: skip
    assert asked.configs == CONFIG


# ---- by updates


@dataclass(frozen=True)
class Counting(Witness):
    """Its rows note the stage and the number of updates that the acting version had."""

    @property
    def header(self):
        return {"stage": ((), "int64"), "rate": ((), "float64")}

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _CountingLearner(self, agents)


class _CountingLearner(_Learner):
    def update(self, batch, steps):
        for a, step in enumerate(steps):
            stage = self._config.stages.index(step, int(self.counters[a, 0]))
            self.state[a, 1 + stage] = min(self.state[a, 1 + stage], batch.observation[a].min())
        self.counters += 1
        return Update({})

    def header(self, step, agent):
        stages, updates = self._config.stages, int(self.counters[agent, 0])
        return {"stage": stages.index(step, updates), "rate": value_at(self._config.rate, step, stages, updates)}


BY_UPDATES = Stages({"warm_up": 50, "ramp": 80, "full": None}, clear_replay_on_stage=("full",), by="updates")


@pytest.mark.parametrize("ratio", [0.25, 3.0])
def test_stages_by_updates_last_for_their_updates_at_any_pace(ratio):
    rate = Staged({"warm_up": 1.0, "ramp": Linear(1.0, 0.0, 80), "full": Linear(7.0, 8.0, 10**6)})
    shared = played(Counting(BY_UPDATES, rate), updates_per_step=ratio, publish_every=1)
    seen = rows(shared, ("stage", "rate"))
    for stage, rate in seen.values():
        assert stage == (0 if rate == 1.0 else 2 if rate >= 7 else 1) or (stage, rate) == (1, 1.0)
    assert {stage for stage, _ in seen.values()} == {0, 1, 2}
    state = shared.vaults[0].subscriber()
    state.refresh()
    begun = 32 + 130 / ratio  # when the replay was cleared: after the warm-up of the replay and 130 updates
    assert state.weights[2] < 100
    assert begun - 3 <= state.weights[3] <= begun + 9


def test_lockstep_is_serial_through_stages_by_updates():
    config = Counting(BY_UPDATES, Staged({"warm_up": 1.0, "ramp": Linear(1, 0, 80), "full": 0.0}))
    settings = {"steps": 900, "updates_per_step": 1.5, "actors": 2, "worlds_per_actor": 2}
    serial = train(Count, config, Settings(engine="serial", **settings))
    lockstep = train(Count, config, Settings(slack=0, **settings))
    for name, arrays in serial.agents.items():
        for part, value in arrays.items():
            np.testing.assert_array_equal(value, lockstep.agents[name][part], err_msg=part)
    assert serial.updates == lockstep.updates


def test_schedules_count_what_they_say():
    stages = Stages({"a": 10, "b": None}, by="updates")
    fade = Staged({"a": 1.0, "b": Linear(1.0, 0.0, 100)})
    assert value_at(fade, 10**6, stages, updates=60) == 0.5
    assert value_at(Linear(0, 1, 10), 5, stages, updates=0) == 0.5
    assert value_at(Exponential(1, 0, 10, by="updates"), 0, updates=10) == 0.5
    with pytest.raises(SettingError, match="updates must be the number of updates"):
        value_at(fade, 10, stages)
    with pytest.raises(SettingError, match="epsilon in stage b must count updates, as the stages do, got by='steps'"):
        DQNConfig(stages=stages, epsilon=Staged({"a": 1.0, "b": Linear(1.0, 0.0, 100, by="steps")}))


def test_schedules_by_updates_on_the_command_line():
    given = "--algorithm dqn --dqn.epsilon linear:1:0.1:500:updates --dqn.stages.lengths a 5 b None"
    config = parse(["treasure_hunt", *given.split(), "--dqn.stages.by", "updates"]).configs
    assert config.epsilon == Linear(1.0, 0.1, 500, by="updates")
    assert config.stages.by == "updates"
    with pytest.raises(SystemExit):
        parse(["treasure_hunt", "--dqn.epsilon", "linear:1:0.1:500:updates:3"])
