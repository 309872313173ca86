"""When a run is evaluated, with which weights, and by which score; the last evaluation is of the final weights."""

import functools
import itertools
import json
import os
import signal

import gymnasium
import numpy as np
import pytest
from support import foreign_scores
from support.coins import Coins
from support.stand_in import StandIn

from motet.algorithms import DQNConfig
from motet.cli.flags import parse
from motet.errors import SettingError
from motet.runs.config import rebuild
from motet.runs.directory import RunDirectory
from motet.training import League, Settings, evaluator
from motet.training.callbacks import StopRun
from motet.training.drivers import make_learner
from motet.training.evaluator import EvaluationPlan, Evaluations
from motet.training.roster import make_roster
from motet.training.run import resume, train
from motet.training.shared import SharedMemory
from motet.worlds import MatrixGame

pytestmark = pytest.mark.usefixtures("no_leaks")
WORLD = functools.partial(MatrixGame, turns=10)
ENGINES = {
    "serial": {"engine": "serial", "updates_per_step": 0.5},
    "lockstep": {"slack": 0, "updates_per_step": 0.5},
    "free": {},
}
SCORES = "support.foreign_scores"


def lines_of(run):
    return [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]


class Goes(gymnasium.Env):
    """A world in which every turn takes the training seven steps and one version further."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    goes = staticmethod(lambda: None)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        self.goes()
        return np.zeros(3, np.float32), 1.0, self.t == 5, False, {}


def test_each_evaluation_is_of_the_weights_when_it_was_due_and_at_most_one_waits(monkeypatch, tmp_path):
    monkeypatch.setattr(evaluator, "_LOOK_S", 0.0)
    shared = SharedMemory(make_roster(Goes, DQNConfig(hidden=(4,)), Settings(evaluate_every=10)))
    (learner,) = (make_learner(shared, k) for k in range(len(shared.roster.stacks)))
    learner.begin()
    now, version_at, weights_at = [10], {10: 1}, {10: learner.algorithm.weights().copy()}

    def goes():
        now[0] += 7
        learner.algorithm.state[...] += 1.0
        learner.algorithm.load()
        learner.publish()
        version_at[now[0]], weights_at[now[0]] = (
            shared.publications[0].subscriber().newest,
            learner.algorithm.weights().copy(),
        )

    monkeypatch.setattr(Goes, "goes", staticmethod(goes))
    evaluations = Evaluations(shared, EvaluationPlan(every=10, episodes=1), tmp_path, steps=lambda: now[0])
    assert evaluations.play() and evaluations.play()
    lines = lines_of(tmp_path)
    # Due at 10, 20, 30 …: seen at 10, and while that is played at 24 (it waits), 31 and 45 (skipped); while that of 24
    # is played at 52 (it waits), 66, 73 and 80 (skipped).
    assert [line["step"] for line in lines] == [10, 24]
    versions = [line["agents"][shared.roster.policies[0].name]["version"] for line in lines]
    assert versions == [version_at[10], version_at[24]]
    assert np.array_equal(evaluations._played.weights[0], weights_at[24][0])
    assert shared.board.evaluation.skipped[0] == 5 and shared.board.evaluation.waiting[0] == 1
    Evaluations(shared, EvaluationPlan(every=10, episodes=1), tmp_path)  # a restart loses the one that waits
    assert shared.board.evaluation.skipped[0] == 6 and shared.board.evaluation.waiting[0] == 0
    shared.board.request_stop()
    evaluations.play_last()
    asked_at = now[0] - 7 * 5  # of the last one: the world goes on in its five turns
    assert [line["step"] for line in lines_of(tmp_path)[2:]] == [52, asked_at] and not evaluations.play()


def interrupt(snapshot):
    if snapshot.state == "running" and snapshot.steps > 20:
        os.kill(os.getpid(), signal.SIGINT)


def stop(snapshot):
    if snapshot.steps > 20:
        raise StopRun


ENDS = {
    "steps": ({"steps": 95}, None),
    "seconds": ({"steps": 10**9, "seconds": 0.3}, None),
    "callback": ({"steps": 10**9}, stop),
    "interrupt": ({"steps": 10**9}, interrupt),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_evaluation_is_of_the_final_weights_whatever_ended_the_run(engine, end, tmp_path):
    more, on_update = ENDS[end]
    run, number = tmp_path / "run", itertools.count()
    settings = Settings(
        **ENGINES[engine], **more, evaluate_every=10**6, evaluate_episodes=1, metrics_every_s=0.02,
        score=lambda outcome: next(number),
    )  # fmt: skip
    said = []
    result = train(WORLD, StandIn(), settings, run=run, on_update=on_update, on_message=said.append)
    last = lines_of(run)[-1]
    assert last["step"] == result.steps and (result.steps > 0 or end == "seconds")
    best = RunDirectory(run).path / "best" / "checkpoint.json"
    assert json.loads(best.read_text())["step"] == result.steps
    (kept,) = RunDirectory(run).steps()[-1:]
    assert kept == result.steps
    newest = json.loads((run / "status.json").read_text())["agents"][0]
    assert last["agents"]["player_0"]["version"] == newest["version"]  # the learners published it when they ended
    assert any("Press Ctrl-C again to skip it" in line for line in said) == (end == "interrupt")


@pytest.mark.parametrize("engine", ["serial", "free"])
def test_a_second_interrupt_skips_the_last_evaluation_alone(engine, tmp_path):
    said = []

    def on_message(line):
        said.append(line)
        if "skip it" in line:
            os.kill(os.getpid(), signal.SIGINT)

    settings = Settings(**ENGINES[engine], steps=10**9, evaluate_every=10**6, metrics_every_s=0.02)
    run = tmp_path / "run"
    result = train(WORLD, StandIn(), settings, run=run, on_update=interrupt, on_message=on_message)
    assert result.interrupted and said[-1] == "skipped the last evaluation"
    assert not (run / "evaluation.jsonl").exists() and RunDirectory(run).steps()[-1] == result.steps


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluations_by_the_clock(engine, tmp_path):
    for every_s, least in ((10.0**6, 1), (10.0**-6, 3)):
        settings = Settings(**ENGINES[engine], steps=300, seconds=30, evaluate_every_s=every_s, evaluate_episodes=1)
        if engine == "free":  # as many as it takes until three are there
            settings = Settings(steps=10**9 if least > 1 else 100, evaluate_every_s=every_s, evaluate_episodes=1)
        run = tmp_path / str(every_s)

        def enough(snapshot, run=run, least=least):
            return least == 1 or not (run / "evaluation.jsonl").exists() or len(lines_of(run)) < least

        train(WORLD, StandIn(), settings, run=run, on_update=enough)
        assert len(lines_of(run)) >= least and (least > 1 or len(lines_of(run)) == 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_best_is_kept_by_the_users_score_and_ends_the_run(engine, tmp_path):
    run = tmp_path / "run"
    settings = Settings(
        **ENGINES[engine], steps=10**9, evaluate_every=40, evaluate_episodes=2, score=foreign_scores.worst_agent,
        until_score=-1e9,
    )  # fmt: skip
    assert train(WORLD, StandIn(), settings, run=run).state == "stopped"
    lines = lines_of(run)
    assert [line["score"] for line in lines] == [min(one["mean"] for one in line["agents"].values()) for line in lines]
    assert RunDirectory(run).best_score() == max(line["score"] for line in lines)
    plain = RunDirectory(run).config()["settings"]
    assert plain["score"] == {"function": f"{SCORES}:worst_agent"}
    assert rebuild(plain, trust=True).score is foreign_scores.worst_agent
    with pytest.raises(SettingError, match="not part of motet"):
        rebuild(plain)


def test_a_score_in_flags_and_files_and_one_that_cannot_be_named(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text(f'score = "{SCORES}:negative"\nevaluate_every = 10\n[world]\nname = "matrix"\n')
    asked = (
        parse(["matrix", "--evaluate-every", "10", "--score", f"{SCORES}:negative"]).settings,
        parse([str(file)]).settings,
    )
    assert all(settings.score is foreign_scores.negative for settings in asked)
    for wrong, words in (
        ({"score": "negative"}, "score must be a function or None, got 'negative'"),
        ({"score": foreign_scores.negative, "evaluate_every": None}, "score is only valid with evaluate_every"),
        ({"until_score": 1.0, "evaluate_every": None}, "until_score is only valid with evaluate_every"),
    ):
        with pytest.raises(SettingError, match=words):
            Settings(**{"evaluate_every": 10, **wrong})
    settings = Settings(engine="serial", steps=40, evaluate_every=10, score=lambda outcome: 0.5)
    train(WORLD, StandIn(), settings, run=tmp_path / "run")
    with pytest.raises(SettingError, match=r"function <function .*lambda.* cannot be imported"):
        resume(tmp_path / "run", steps=10, world=WORLD, algorithm=StandIn())
    with pytest.raises(SettingError, match=r"score \(returned by the function\) must be a finite number, got nan"):
        train(WORLD, StandIn(), Settings(engine="serial", steps=40, evaluate_every=10, score=foreign_scores.broken))


def test_self_play_ends_by_its_win_rate(tmp_path):
    settings = Settings(
        engine="serial", steps=400, self_play=True, league=League(snapshot_every=100, review_every=50),
        evaluate_every=60, evaluate_episodes=4, until_score=0.0,
    )  # fmt: skip
    result = train(Coins, StandIn(), settings, run=tmp_path / "run")
    assert result.steps < 100 and 0 <= lines_of(tmp_path / "run")[-1]["score"] <= 1
