"""A reproducible run that is resumed is a function of its checkpoint: processes give the bits of the serial engine."""

import functools
import json

import pytest
from support.stand_in import StandIn
from test_lockstep import ALGORITHMS, ONCE, fingerprint

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.schedule import Stages
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

MATRIX = functools.partial(MatrixGame, turns=23)
CLEARED = Stages({"early": 350, "late": None}, clear_replay_on_stage=("late",))
RUNS = {
    "stand-in": StandIn(),
    "prioritised": ALGORITHMS["dqn, prioritised"],
    "stages": DQNConfig(hidden=(16,), min_rows=16, batch_size=16, stages=CLEARED),
    "once": PPOConfig(**ONCE, hidden=(16,)),
}


def run(folder, engine, algorithm, **more):
    ratio = None if isinstance(algorithm, PPOConfig) else 0.5
    settings = {"steps": 300, "updates_per_step": ratio, "period": 20, "actors": 2, **more}
    train(MATRIX, algorithm, Settings(engine=engine, **settings), run=folder)
    said = []
    result = resume(folder, steps=300, world=MATRIX, algorithm=algorithm, trust=True, on_message=said.append)
    assert any("function of the checkpoint" in line for line in said)
    assert result.steps >= 600 and result.restarts == 0
    return result.steps, result.updates, fingerprint(result)


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_serial_run_that_was_resumed(name, tmp_path):
    prints = [run(tmp_path / engine, engine, RUNS[name]) for engine in ("serial", "processes")]
    assert prints[0] == prints[1]


def test_evaluations_continue_where_they_were(tmp_path):
    more = {"evaluate_every": 100, "evaluate_episodes": 2}
    prints = [run(tmp_path / engine, engine, StandIn(), **more) for engine in ("serial", "processes")]
    assert prints[0] == prints[1]
    lines = []
    for engine in ("serial", "processes"):
        found = map(json.loads, (tmp_path / engine / "evaluation.jsonl").read_text().splitlines())
        lines.append([(line["step"], line["team"]) for line in found])
    assert lines[0] == lines[1] and [step // 100 for step, _ in lines[0]] == [1, 2, 3, 4, 5, 6]
