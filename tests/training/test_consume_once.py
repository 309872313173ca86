"""Rows that are read once: the surviving learner state has used each of them once, whichever process is killed."""

import functools
import math
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from support.stand_in import StandIn

from motet.algorithm import ReaderSettings, Sizes, Update
from motet.errors import ChildError, SettingError
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Wait
from motet.system.supervisor import RestartLimits
from motet.training.recorder import Recorder
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.worlds import MatrixGame

IDS, MOMENTS = 64, 6000


class Diary(gymnasium.Env):
    """Every observation is one of a kind: the number of the world, and a moment of its life."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, folder: str) -> None:
        for n in range(IDS):
            try:
                os.close(os.open(Path(folder) / str(n), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            self._number, self._moment = n, -1
            return
        raise RuntimeError("more worlds than the test has room for")

    def _look(self):
        self._moment += 1
        return np.array([self._number, self._moment], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 30))
        return self._look(), {}

    def step(self, action):
        self._left -= 1
        return self._look(), 1.0, self._left == 0 and self._moment % 2 == 0, self._left == 0, {}


@dataclass(frozen=True)
class Ledger:
    """Learns how often it has seen each moment of each world."""

    batch_size: int = 3
    length: int = 7
    slow_s: float = 0.0
    capacity: int = 1

    header = {"step": ((), "int64")}  # noqa: RUF012

    def replay(self, observation_space, action_space, *, masked=False):
        return ReaderSettings(batch_size=self.batch_size, once=True, length=self.length, capacity=self.capacity)

    def sizes(self, observation_space, action_space):
        return Sizes(weights=16, state=16 + IDS * MOMENTS, counters=4, random=0)

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _Writing(self, agents)

    def behaviour(self, observation_space, action_space):
        return _Guessing(int(action_space.n))


class _Writing:
    n_weights = 16

    def __init__(self, config, agents):
        self._config = config
        self.state = np.zeros((agents, 16 + IDS * MOMENTS), np.float32)
        self.counters = np.zeros((agents, 4), np.int64)  # updates, rows, rows without a start, rows out of order
        self.random = np.zeros((agents, 0), np.uint8)

    def update(self, batch, steps):
        time.sleep(self._config.slow_s)
        for a in range(len(self.state)):
            seen = self.state[a, 16:].reshape(IDS, MOMENTS)
            here, there = batch.observation[a][:, :-1].astype(int), batch.observation[a][:, 1:].astype(int)
            valid = batch.valid[a]
            np.add.at(seen, (here[valid][:, 0], here[valid][:, 1]), 1)
            same = (there[valid] == here[valid] + [0, 1]).all(1)
            self.counters[a] += [1, valid.sum(), (~valid).sum(), (~same).sum()]
            self.state[a, :16] += 1
        return Update({"rows": self.counters[:, 1].astype(np.float32)})

    def header(self, step, agent):
        return {"step": step}

    def weights(self):
        return self.state[:, :16]

    def save(self):
        pass

    def load(self):
        pass


class _Guessing:
    def __init__(self, actions):
        self._actions = actions

    def begin(self, seed):
        self._rng = np.random.default_rng(seed)

    def load(self, weights, header):
        pass

    def act(self, observations, masks=None, explore=True):
        return self._rng.integers(self._actions, size=len(observations)), {}


class Lanes:
    """Keeps hold of what the processes of a run share, to count at the writers' end."""

    def __init__(self, monkeypatch):
        original = SharedMemory.__init__

        def remember(shared, roster):
            original(shared, roster)
            self.shared = shared

        monkeypatch.setattr(SharedMemory, "__init__", remember)

    def count(self, agent=0):
        replay = self.shared.replays[agent]
        words = [replay.words(lane) for lane in range(replay.spec.n_lanes)]
        return {name: sum(getattr(w, name) for w in words) for name in ("head", "broken", "waits", "finals")}


class Killer:
    """Kills a process of a run again and again."""

    def __init__(self, lanes, names, most, pause_s):
        self._lanes, self._names, self._most, self._pause_s = lanes, names, most, pause_s
        self._random, self._last = random.Random(0), time.monotonic()
        self.sent, self.waits = [], set()

    def __call__(self):
        board = self._lanes.shared.board
        for i, name in enumerate(self._names):
            self.waits.add((name, int(board.processes.waits_for[i])))
        if len(self.sent) >= self._most or time.monotonic() - self._last < self._pause_s:
            return
        i = self._random.randrange(len(self._names))
        pid = int(board.processes.pid[i])
        if pid > 1 and int(board.learned.updates[0]) > 3:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.sent.append(self._names[i])
            self._last = time.monotonic()


def check_ledger(lanes, result, config, agent=0, kept=True):
    """Both ends agree: what the writers wrote is what the surviving state used, once, and what waits."""
    (arrays,) = result.agents.values() if len(result.agents) == 1 else (result.agents[f"player_{agent}"],)
    updates, rows, others, strange = arrays["counters"].tolist()
    written = lanes.count(agent)
    cursors = arrays["reader"][-2 * lanes.shared.roster.lanes(0) :].reshape(-1, 2)[:, 1]
    seen = arrays["state"][16:].reshape(IDS, MOMENTS)
    assert rows + others == updates * config.batch_size * config.length
    assert cursors.sum() == rows + others or not kept, "the rows of before are gone"
    waiting = written["head"] - int(cursors.sum())
    assert waiting >= 0
    assert strange == 0, "a row was followed by what did not follow it"
    assert set(np.unique(seen)) <= {0.0, 1.0}, "a row was used twice"
    assert seen.sum() == rows
    consumed = int(arrays["reader"][9])
    assert consumed == rows
    return waiting, others, written, seen


def storm(tmp_path, monkeypatch, *, steps, kills, pause_s, names=("actor-0", "actor-1", "learner-0"), **settings):
    lanes, config = Lanes(monkeypatch), Ledger(slow_s=0.002)
    killer = Killer(lanes, names, kills, pause_s)
    monkeypatch.setattr(Recorder, "tick", lambda book: killer())
    result = train(
        functools.partial(Diary, str(tmp_path)),
        config,
        Settings(
            steps=steps, actors=2, worlds_per_actor=2, limits=RestartLimits(restarts=10**6, back_off_s=0.01), **settings
        ),
    )
    assert result.state == "done"
    assert len(killer.sent) >= kills - 2
    assert result.restarts == len(killer.sent)
    waiting, others, written, seen = check_ledger(lanes, result, config)
    assert waiting < (config.batch_size + 4) * config.length, "whole batches were left over"
    assert others <= written["finals"] + written["broken"] + len(killer.sent)
    assert written["waits"] == 0, "an actor waited for room, where it shows no beat"
    # Each world's rows were used from its first to its last, without a gap but for final rows.
    for row in seen[seen.sum(1) > 0]:
        last = np.flatnonzero(row).max()
        gaps = np.flatnonzero(row[:last] == 0)
        assert (np.diff(gaps) > 1).all(), "more than a final row is missing between two rows"
    return killer, result


def test_every_row_is_used_once_while_actors_and_learners_are_killed(no_leaks, tmp_path, monkeypatch):
    killer, _ = storm(tmp_path, monkeypatch, steps=12_000, kills=6, pause_s=0.25)
    assert {"learner-0"} < set(killer.sent)


@pytest.mark.slow
@pytest.mark.parametrize("slack", [0, 1, 3])
def test_every_row_is_used_once_in_a_long_storm(no_leaks, slack, tmp_path, monkeypatch):
    killer, _ = storm(tmp_path, monkeypatch, steps=15_000, kills=20, pause_s=0.1, slack=slack)
    assert len(set(killer.sent)) == 3


def test_the_last_whole_batches_are_used_when_all_is_played(no_leaks, tmp_path, monkeypatch):
    """A learner that is slow to begin with does not leave behind what waits for it."""
    lanes, config = Lanes(monkeypatch), Ledger(slow_s=0.02)
    result = train(functools.partial(Diary, str(tmp_path)), config, Settings(steps=1000, slack=3))
    waiting, *_ = check_ledger(lanes, result, config)
    assert waiting <= config.batch_size * config.length


def test_actors_wait_for_the_pace_with_a_beat_and_a_name_and_never_for_room(no_leaks, tmp_path, monkeypatch):
    lanes, config, beats = Lanes(monkeypatch), Ledger(slow_s=0.4), {}
    seen = Killer(lanes, ["actor-0"], 0, 0.0)

    def look(book):
        seen()
        board = lanes.shared.board
        beats.setdefault(int(board.rounds[0]), set()).add(float(board.processes.heartbeat[0]))

    monkeypatch.setattr(Recorder, "tick", look)
    settings = Settings(steps=120, slack=1, limits=RestartLimits(hang_s=0.8))
    result = train(functools.partial(Diary, str(tmp_path)), config, settings)
    assert result.restarts == 0
    assert ("actor-0", Wait.LEARNERS) in seen.waits
    assert max(map(len, beats.values())) >= 3, "one after a round, the others while it waits"
    assert lanes.count()["waits"] == 0
    check_ledger(lanes, result, config)


def test_with_a_slack_of_one_an_actor_is_at_most_one_batch_ahead(tmp_path, monkeypatch):
    lanes, config, ahead = Lanes(monkeypatch), Ledger(slow_s=0.003), []
    settings = Settings(steps=3000, worlds_per_actor=3)

    def look(book):
        done = int(lanes.shared.board.learned.updates[0])
        ahead.append(lanes.count()["head"] // (config.batch_size * config.length) - done)

    monkeypatch.setattr(Recorder, "tick", look)
    train(functools.partial(Diary, str(tmp_path)), config, settings)
    assert max(ahead) <= 3  # one at work, one complete, and what is begun in the lanes


def test_agents_that_draw_and_agents_that_read_once_share_a_world(no_leaks):
    mixed = {"player_0": StandIn(), "player_1": Pupil()}
    result = train(MatrixGame, mixed, Settings(steps=4000, updates_per_step=0.2, slack=50))
    assert result.state == "done"
    assert result.updates["player_0"] == pytest.approx(0.2 * 4000, abs=60)
    assert result.agents["player_1"]["counters"][1] > 3900


@dataclass(frozen=True)
class Pupil(Ledger):
    """Counts rows alone: its observations are anybody's."""

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _Counting(self, agents)


class _Counting(_Writing):
    def update(self, batch, steps):
        self.counters[:, 0] += 1
        self.counters[:, 1] += batch.valid.sum((1, 2))
        return Update({"rows": self.counters[:, 1].astype(np.float32)})


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (
            Pupil(),
            {"slack": math.inf},
            r"slack must be a finite number, got inf: where rows are read once \(player_0, player_1\) a full",
        ),
        (Pupil(), {"updates_per_step": 0.5}, "updates_per_step must be None, got 0.5: where rows are read once"),
        (Pupil(), {"slack": 0.5}, "slack"),
        (
            {"player_0": StandIn(), "player_1": Pupil()},
            {},
            "updates_per_step must be a number, got None: learners would run fr",
        ),
        ({"player_0": StandIn(), "player_1": Pupil()}, {"slack": 2}, "updates_per_step must be a number, got None"),
        (
            {"player_0": StandIn(), "player_1": Pupil()},
            {"updates_per_step": 1, "slack": math.inf},
            r"slack must be a finite number, got inf: where rows are read once \(player_1\) a full lane",
        ),
        (StandIn(), {"slack": 2}, r"slack is only valid with updates_per_step \(got None\)"),
    ],
)
def test_paces_that_would_stall_others_or_mean_nothing_are_refused(algorithm, settings, message):
    with pytest.raises(SettingError, match=message):
        train(MatrixGame, algorithm, Settings(steps=100, **settings))


@pytest.mark.parametrize("engine", ["processes", "serial"])
def test_a_resumed_run_uses_the_waiting_rows_or_counts_them_as_lost(engine, tmp_path, monkeypatch):
    lanes, config, world = Lanes(monkeypatch), Ledger(), functools.partial(Diary, str(tmp_path))
    for keep in (True, False):
        run, told, seen = tmp_path / str(keep), [], {}
        settings = Settings(steps=610, engine=engine, keep_replay=keep, worlds_per_actor=2)
        first = train(world, config, settings, run=run)
        waiting = first.steps - int(first.agents["agent_0"]["counters"][1])
        assert waiting > 0
        look = lambda now, seen=seen: seen.update(lost=now.agents[0].lost)  # noqa: E731
        result = resume(run, steps=600, world=world, algorithm=config, on_message=told.append, on_update=look)
        assert result.steps >= 1210
        left, *_ = check_ledger(lanes, result, config, kept=keep)
        assert left < (config.batch_size + 2) * config.length
        assert seen["lost"] == (0 if keep else waiting)
        assert any(f"agent_0: {waiting} steps had not been learned from" in line for line in told) is not keep


def test_a_checkpoint_of_a_run_at_full_speed_holds_the_rows_that_its_state_has_not_used(tmp_path, monkeypatch):
    lanes, config, world = Lanes(monkeypatch), Ledger(slow_s=0.001), functools.partial(Diary, str(tmp_path))
    settings = Settings(steps=4000, keep_replay=True, checkpoint_every=500, worlds_per_actor=2, slack=3)
    train(world, config, settings, run=tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    earlier = directory.load(directory.steps()[-2])
    assert earlier.step < 4000
    used = int(earlier.agents["agent_0"]["counters"][0]) * config.batch_size * config.length
    held = sum(int(lane[:136].view(np.uint64)[9]) for lane in earlier.replay["agent_0"].values())
    assert held > used, "nothing waited: the test has nothing to see"
    result = train(world, config, settings, resume_from=earlier)
    assert result.state == "done"
    _, _, _, seen = check_ledger(lanes, result, config)
    for row in seen[seen.sum(1) > 0]:
        gaps = np.flatnonzero(row[: np.flatnonzero(row).max()] == 0)
        assert (np.diff(gaps) > 1).all(), "more than a final row is missing between two rows"


@pytest.mark.parametrize("engine", ["processes", "serial"])
@pytest.mark.parametrize("config", [Ledger(), StandIn()])
def test_a_run_is_resumed_several_times_with_and_without_its_rows(engine, config, tmp_path):
    world = functools.partial(Diary, str(tmp_path))
    pace = {} if isinstance(config, Ledger) else {"updates_per_step": 0.5}
    settings = Settings(steps=600, engine=engine, **pace)
    first = train(world, config, settings, run=tmp_path / "first")
    kept = RunDirectory.open(tmp_path / "first").load()
    settings = Settings(steps=1200, engine=engine, keep_replay=True, **pace)
    second = train(world, config, settings, run=tmp_path / "second", resume_from=kept)
    third = resume(tmp_path / "second", steps=600, world=world, algorithm=config)
    done = [int(result.agents["agent_0"]["counters"][0]) for result in (first, second, third)]
    assert third.steps >= 1800
    if isinstance(config, Ledger):
        assert np.diff([0, *done]).tolist() == pytest.approx([done[0]] * 3, abs=40)
    else:  # half of the steps since the replay began but for a warm-up of 10, and the slack of 32 on either side
        assert [done[0], done[1] - done[0]] == pytest.approx([295, 295], abs=34)
        assert done[2] - done[0] == pytest.approx(595, abs=34), "the third run has the rows of the second"


def test_rows_are_not_mixed_with_a_state_of_other_batches(tmp_path):
    world, run = functools.partial(Diary, str(tmp_path)), tmp_path / "run"
    train(world, Ledger(batch_size=4, length=6, capacity=100), Settings(steps=300, keep_replay=True), run=run)
    with pytest.raises(SettingError, match="with batches of 5 fragments of 4 rows: its settings have changed"):
        resume(run, steps=300, world=world, algorithm=Ledger(batch_size=5, length=4, capacity=100))


def test_an_update_that_raises_leaves_the_vault_as_it_was(tmp_path, monkeypatch):
    """What was taken for it is not counted as used."""
    lanes, config, world = Lanes(monkeypatch), Failing(), functools.partial(Diary, str(tmp_path))
    with pytest.raises(ChildError, match="the pen is dry"):
        train(world, config, Settings(steps=600), run=tmp_path / "run")
    kept = RunDirectory.open(tmp_path / "run").load().agents["agent_0"]
    assert kept["counters"][0] == 5
    assert kept["reader"][-1] == 5 * config.batch_size * config.length
    assert lanes.shared.replays[0].words(0).released == kept["reader"][-1]


@dataclass(frozen=True)
class Failing(Ledger):
    """Raises in its sixth update."""

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _Failing(self, agents)


class _Failing(_Writing):
    def update(self, batch, steps):
        if self.counters[0, 0] == 5:
            raise RuntimeError("the pen is dry")
        return super().update(batch, steps)


def test_counts_of_used_and_unread_rows_are_shown(tmp_path):
    """Those that were used, and with a small replay those that nobody ever drew."""
    seen = {}
    world = functools.partial(Diary, str(tmp_path))
    look = lambda snapshot: seen.update(snapshot.agents[0].metrics)  # noqa: E731
    result = train(world, Ledger(), Settings(steps=2000), on_update=look)
    assert seen["rows_used"] == result.agents["agent_0"]["counters"][1] > 1800
    train(world, StandIn(capacity=50), Settings(steps=3000, updates_per_step=0.02), on_update=look)
    assert seen["rows_overwritten_unread"] > 1000


@dataclass(frozen=True)
class FailingLast(Ledger):
    """Its last update raises: by then the actor is done, and the learner has been asked to end."""

    fails_at: int = 3

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        made = _Writing(self, agents)
        update = made.update

        def failing(batch, steps):
            if made.counters[0, 0] + 1 == self.fails_at:
                raise ValueError("the last one")
            return update(batch, steps)

        made.update = failing
        return made


@pytest.mark.parametrize("slow_s", [0.0, 0.5])
def test_an_update_that_raises_when_the_acting_is_over_is_not_passed_over(tmp_path, slow_s, no_leaks):
    made = functools.partial(Diary, str(tmp_path))
    with pytest.raises(ChildError, match=r"learner-0 raised; .*\n\n(?s:.*)ValueError: the last one"):
        train(made, FailingLast(slow_s=slow_s), Settings(steps=70), run=tmp_path / "run")
    status = RunDirectory.open(tmp_path / "run")
    assert '"state": "failed"' in (status.path / "status.json").read_text()
