"""Reproducible runs with ``keep_replay``: resumed = uninterrupted, bit for bit, in both engines and from one to the
other. Without it, a resumed run is a function of its checkpoint."""

import functools
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from support.office import Office
from support.stand_in import StandIn
from support.whole_run import differing, lines_of, whole
from test_lockstep import ALGORITHMS, MEMORY, ONCE, SMALL, fingerprint
from test_lockstep_with_run import Pennies

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.runs.directory import RunDirectory
from motet.schedule import Stages
from motet.training.league import League
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import MatrixGame, TreasureHunt

MATRIX = functools.partial(MatrixGame, turns=23)
HUNT = functools.partial(TreasureHunt, agents=2, turns=20)
CLEARED = Stages({"early": 350, "late": None}, clear_replay_on_stage=("late",))
PPO = PPOConfig(**ONCE, hidden=(16,))
RUNS = {
    "stand-in": StandIn(),
    "prioritised": ALGORITHMS["dqn, prioritised"],
    "stages": DQNConfig(hidden=(16,), min_rows=16, batch_size=16, stages=CLEARED),
    "once": PPO,
}
EXACT = {
    **RUNS,
    "prioritised, overwritten": StandIn(prioritised=True, n_step=3, capacity=300),
    "memory": DQNConfig(**SMALL, **MEMORY, memory="gru", prioritised=True),
    "once, memory": PPOConfig(**{**ONCE, "length": 8}, hidden=(16,), memory="gru", memory_size=8, sequence_length=4),
    "once, normalised": PPOConfig(**ONCE, hidden=(16,), normalise=True, n_frames=2),
    "stages, prioritised": DQNConfig(
        hidden=(16,), min_rows=16, batch_size=16, prioritised=True,
        stages=Stages({"early": 100, "late": None}, clear_replay_on_stage=("late",), by="updates"),
    ),
}  # fmt: skip
SERIAL, PROCESSES = "serial", "processes"


def settings(engine, algorithm, **more):
    ratio = None if isinstance(algorithm, PPOConfig) else 0.5
    chosen = {"steps": 600, "updates_per_step": ratio, "period": 20, "actors": 2, "keep_replay": True, **more}
    return Settings(engine=engine, **chosen)


def go_on(folder, world, algorithm, engine, steps, **more):
    said = []
    result = resume(
        folder, steps=steps, world=world, algorithm=algorithm, trust=True, engine=engine, on_message=said.append, **more
    )
    expected = "later checkpoints removed", "stopping after period"  # the second one if an evaluation ends the run
    assert [line for line in said if not any(text in line for text in expected)] == [] and result.restarts == 0
    return result


def in_parts(folder, world, algorithm, stops, engines, **more):
    """A run that is stopped after these steps, and resumed each time, with these engines in turn."""
    train(world, algorithm, settings(engines[0], algorithm, **more, steps=stops[0]), run=folder)
    for engine, steps in zip(engines[1:], stops[1:], strict=True):
        done = without_last_evaluation(folder)
        go_on(folder, world, algorithm, engine, steps - done)
    return whole(folder)


def without_last_evaluation(folder):
    """Remove the evaluation with which a run ended before it is resumed; return its steps."""
    done, path = RunDirectory(folder).load().step, folder / "evaluation.jsonl"
    if path.exists():
        *lines, last = path.read_text().splitlines(keepends=True)
        assert json.loads(last)["step"] == done
        path.write_text("".join(lines))
    return done


def check(tmp_path, world, algorithm, stops, *engines, **more):
    """Whether runs in parts, with these engines in turn, are the uninterrupted serial run."""
    train(world, algorithm, settings(SERIAL, algorithm, **more, steps=stops[-1]), run=tmp_path / "whole")
    expected = whole(tmp_path / "whole")
    for i, each in enumerate(engines):
        assert differing(in_parts(tmp_path / f"parts{i}", world, algorithm, stops, each, **more), expected) == []
    return expected


@pytest.mark.parametrize(("name", "ahead"), [(name, 1) for name in EXACT] + [("stand-in", 0), ("once", 0)])
def test_a_resumed_run_is_the_uninterrupted_run(name, ahead, tmp_path):
    """It ends at the end of a period, then within the next one, and within the same one again."""
    world = HUNT if name == "memory" else MATRIX
    stops = (320, 333, 335, 600)
    check(tmp_path, world, EXACT[name], stops, [SERIAL] * 4, [SERIAL, PROCESSES, SERIAL, PROCESSES], ahead=ahead)


@pytest.mark.parametrize("ahead", [0, 1])
def test_processes_resumed_are_the_uninterrupted_run(ahead, tmp_path):
    more = {"evaluate_every": 100, "evaluate_episodes": 2, "worlds_per_actor": 2, "learner_processes": 2}
    check(tmp_path, HUNT, StandIn(prioritised=True), (280, 401, 700), [PROCESSES] * 3, ahead=ahead, **more)


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_evaluation_that_is_due_at_the_last_step_is_played_by_a_longer_run(ahead, tmp_path):
    """The last row of every period ends an episode, so the first part has its steps when a period ends."""
    world, more = functools.partial(MatrixGame, turns=20), {"evaluate_every": 100, "evaluate_episodes": 2}
    check(tmp_path, world, StandIn(), (200, 400), [SERIAL, PROCESSES], ahead=ahead, **more)


@dataclass(frozen=True)
class Paused(StandIn):
    """Its updates take long enough for checkpoints in between."""

    def build(self, *given, **named):
        algorithm = super().build(*given, **named)
        update = algorithm.update

        def slow(*batch):
            time.sleep(0.003)
            return update(*batch)

        algorithm.update = slow
        return algorithm


def slow(outcome):
    time.sleep(0.03)
    return outcome.team


def test_every_checkpoint_is_one_to_continue_from(tmp_path, monkeypatch):
    """Among them those that are made while actors and learners work, which wait for actors and evaluations."""
    more = {"worlds_per_actor": 2, "evaluate_every": 40, "evaluate_episodes": 1, "checkpoint_every": 60}
    more |= {"metrics_every_s": 0.005, "score": slow}
    algorithm = Paused(prioritised=True, capacity=900)
    played, save = {}, RunDirectory.save

    def keeping(directory, checkpoint):
        path = directory.path / "evaluation.jsonl"
        played[directory.path.name, checkpoint.step] = path.read_text() if path.exists() else ""
        return save(directory, checkpoint, keep=100)

    monkeypatch.setattr(RunDirectory, "save", keeping)
    for engine in (SERIAL, PROCESSES):
        train(HUNT, algorithm, settings(engine, algorithm, **more), run=tmp_path / engine)
    expected = whole(tmp_path / SERIAL)
    assert differing(whole(tmp_path / PROCESSES), expected) == []
    for engine, other in ((SERIAL, PROCESSES), (PROCESSES, SERIAL)):
        *steps, last = RunDirectory(tmp_path / engine).steps()
        assert len(steps) >= 2 and last == 600
        for step in (steps[0], steps[-1]):
            folder = tmp_path / f"{engine}{step}"
            shutil.copytree(tmp_path / engine, folder)
            lines = played[engine, step].splitlines(keepends=True)
            done = max(int(kept["steps"]) for kept in RunDirectory(folder).load(step).replay.values())
            (folder / "evaluation.jsonl").write_text("".join(x for x in lines if json.loads(x)["step"] <= done))
            go_on(folder, HUNT, algorithm, other, 600 - step, checkpoint=step)
            assert differing(whole(folder), expected) == [], step


LEAGUE = League(snapshot_every=100, review_every=50, block=2)


@pytest.mark.parametrize("ahead", [0, 1])
def test_self_play_continues_with_its_league(ahead, tmp_path):
    more = {"self_play": True, "league": LEAGUE, "period": 10, "worlds_per_actor": 3, "ahead": ahead}
    more |= {"checkpoint_every": 200}
    stops, engines = (301, 320, 900), ([SERIAL] * 3, [PROCESSES, SERIAL, PROCESSES])
    found = check(tmp_path, Pennies, StandIn(), stops, *engines, **more)
    assert np.frombuffer(found["league counts"], np.int64)[0] >= 8


def by_callback(snapshot):
    return snapshot.steps == 0


def by_interrupt(snapshot):
    if snapshot.steps:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("stop", [None, by_callback, by_interrupt], ids=["seconds", "callback", "interrupt"])
def test_a_stopped_run_continues_exactly(stop, tmp_path):
    told, more = [], {"steps": 10**7, "metrics_every_s": 0.1, "evaluate_every": 3000, "evaluate_episodes": 1}
    algorithm = StandIn(capacity=400)

    def once(snapshot):
        if stop is not None and snapshot.steps and not told:
            told.append(snapshot)
            return stop(snapshot)
        return None

    chosen = settings(PROCESSES, algorithm, **more, seconds=0.5 if stop is None else None)
    first = train(MATRIX, algorithm, chosen, run=tmp_path / "parts", on_update=once)
    assert first.state == "stopped" and first.steps
    without_last_evaluation(tmp_path / "parts")
    go_on(tmp_path / "parts", MATRIX, algorithm, PROCESSES, 301, seconds=1000.0)
    more["steps"] = first.steps + 301
    train(MATRIX, algorithm, settings(SERIAL, algorithm, **more), run=tmp_path / "whole")
    assert differing(whole(tmp_path / "parts"), whole(tmp_path / "whole")) == []


def test_a_limit_that_was_reached_before_the_run_was_stopped_still_ends_it(tmp_path):
    """The first result counts when the second evaluation is due, in the session after."""
    more = {"evaluate_every": 100, "evaluate_episodes": 1, "until_return": -1e9}
    train(MATRIX, StandIn(), settings(SERIAL, StandIn(), **more), run=tmp_path / "whole")
    for i, engine in enumerate((SERIAL, PROCESSES)):
        folder = tmp_path / f"parts{i}"
        train(MATRIX, StandIn(), settings(engine, StandIn(), **more, steps=140), run=folder)
        without_last_evaluation(folder)
        result = go_on(folder, MATRIX, StandIn(), engine, 460)
        assert result.state == "stopped" and 200 < result.steps < 300
        assert differing(whole(folder), whole(tmp_path / "whole")) == []


def cartpole():
    return gymnasium.make("CartPole-v1")


def test_worlds_that_cannot_save_continue_with_new_episodes_and_their_rows(tmp_path):
    found = []
    for i, engine in enumerate((SERIAL, PROCESSES)):
        said, folder = [], tmp_path / f"run{i}"
        train(cartpole, StandIn(), settings(engine, StandIn(), steps=310), run=folder)
        resume(folder, steps=290, world=cartpole, algorithm=StandIn(), trust=True, on_message=said.append)
        assert len(said) == 1 and "cannot save its state" in said[0] and "not that of an uninterrupted run" in said[0]
        found.append(whole(folder))
    assert differing(*found) == []
    assert sum(rows[0] for name, rows in found[0].items() if " lane" in name) >= 600, "the rows were kept"
    seeds = [line["seed"] for line in found[0]["episodes.jsonl"]]
    assert len(set(seeds)) == len(seeds) > 10


class Fickle(Office):
    """The second clerk is called as often as the first one, or four times as often."""

    def reset(self, seed=None):
        self.order = (0, 1) if seed % 2 else (0, 1, 1, 1, 1)
        super().reset(seed)

    can_save = True

    def get_state(self):
        return self.rng.bit_generator.state, self.order, self.count, list(self.acted), list(self.earned), self.shown

    def set_state(self, state):
        bits, self.order, self.count, acted, self.earned, self.shown = state
        self.rng, self.ends, self.acted = np.random.default_rng(), [], set(acted)
        self.rng.bit_generator.state = bits


def test_actors_that_end_periods_apart_continue_together(tmp_path):
    world, found = functools.partial(Fickle, 2, calls=7), []
    for i, engine in enumerate((SERIAL, PROCESSES)):
        said, folder = [], tmp_path / f"run{i}"
        train(world, StandIn(), settings(engine, StandIn(), steps=310, period=4), run=folder)
        resume(folder, steps=290, world=world, algorithm=StandIn(), trust=True, on_message=said.append)
        assert len(said) == 1 and "one actor has ended more periods than another" in said[0]
        found.append(whole(folder))
    assert differing(*found) == []


# ---- without the replay


def run(folder, engine, algorithm, **more):
    train(MATRIX, algorithm, settings(engine, algorithm, **more, steps=300, keep_replay=False), run=folder)
    said = []
    result = resume(folder, steps=300, world=MATRIX, algorithm=algorithm, trust=True, on_message=said.append)
    assert any("function of the checkpoint" in line for line in said)
    assert result.steps >= 600 and result.restarts == 0
    return result.steps, result.updates, fingerprint(result)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_without_its_replay_is_the_serial_run_that_was(name, tmp_path):
    prints = [run(tmp_path / engine, engine, RUNS[name]) for engine in (SERIAL, PROCESSES)]
    assert prints[0] == prints[1]


def test_evaluations_continue_where_they_were(tmp_path):
    more = {"evaluate_every": 100, "evaluate_episodes": 2}
    prints = [run(tmp_path / engine, engine, StandIn(), **more) for engine in (SERIAL, PROCESSES)]
    assert prints[0] == prints[1]
    lines = [lines_of(tmp_path / engine / "evaluation.jsonl") for engine in (SERIAL, PROCESSES)]
    assert lines[0] == lines[1] and [line["step"] // 100 for line in lines[0]] == [1, 2, 3, 4, 5, 6]
