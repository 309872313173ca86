"""Worlds and policies that draw from the global generators: an episode is a function of its seed, wherever it runs."""

import hashlib

import numpy as np
import pytest
from support.drawing import Choir, Moody, Noisy, Squad, Weather
from support.stand_in import StandIn

import motet
from motet.evaluation.jobs import JobPool
from motet.policy import PolicySpec
from motet.runs.directory import RunDirectory
from motet.seeds import seed_for
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.world.batch import make_world_batch


def fingerprint(result):
    digest = hashlib.sha256()
    for name, arrays in sorted(result.agents.items()):
        for part in ("state", "counters", "random", "reader", "stage"):
            digest.update(name.encode() + part.encode() + arrays[part].tobytes())
    return digest.hexdigest()


# ---- worlds in actors


def episodes(factory, worlds, count, between=lambda: None):
    """Rewards and observations of the first episodes of each world, by seed."""
    batch = make_world_batch(factory, worlds, [False, False])
    begun, found = [0] * worlds, {}
    while min(begun) <= count:
        over = list(batch.over)
        seeds = [seed_for(5, w, begun[w]) for w in over]
        batch.reset(over, seeds)
        for w, seed in zip(over, seeds, strict=True):
            begun[w] += 1
            found[w, begun[w]] = (seed, [])
        while not batch.over:
            turns = batch.turns()
            for turn in turns:
                for row, w in enumerate(turn.at.tolist()):
                    found[w, begun[w]][1].append((turn.agent, turn.observation[row].tolist(), turn.reward[row]))
            between()
            batch.act([np.zeros(len(turn.at), np.int64) for turn in turns])
    return {seed: rows for (_, n), (seed, rows) in found.items() if n <= count}


def test_episodes_do_not_depend_on_the_other_worlds_of_an_actor():
    together = episodes(Weather, 3, 4)
    for w in range(3):
        batch = make_world_batch(Weather, 1, [False, False])
        for n in range(4):
            batch.reset([0], [seed := seed_for(5, w, n)])
            rows = []
            while not batch.over:
                turns = batch.turns()
                rows += [(turn.agent, turn.observation[0].tolist(), turn.reward[0]) for turn in turns]
                batch.act([np.zeros(1, np.int64) for _ in turns])
            assert rows == together[seed]


def test_episodes_do_not_depend_on_draws_of_the_calling_program():
    assert episodes(Weather, 2, 3) == episodes(Weather, 2, 3)


def test_an_episode_begins_with_streams_that_were_seeded():
    import random

    import torch

    batch = make_world_batch(lambda: Weather(turns=1), 1, [False, False])
    batch.reset([0], [2**33 + 7])
    (first, _) = batch.turns()
    random.seed(2**33 + 7)
    np.random.seed(7)
    torch.manual_seed(2**33 + 7)
    world = Weather(turns=1)
    random.seed(2**33 + 7)
    np.random.seed(7)
    torch.manual_seed(2**33 + 7)
    world.reset()
    assert first.observation[0][0] == world.wind[0]


# ---- training


def both(world, algorithm, **settings):
    settings = {"steps": 300, "updates_per_step": 0.25, "learner_processes": 1, "publish_every": 3, **settings}
    serial = train(world, algorithm, Settings(engine="serial", **settings))
    lockstep = train(world, algorithm, Settings(engine="processes", slack=0, **settings))
    assert min(serial.updates.values()) > 20
    return fingerprint(serial), fingerprint(lockstep)


@pytest.mark.parametrize("algorithm", [StandIn(), Noisy()], ids=["shipped", "drawing"])
def test_lockstep_is_the_serial_run(algorithm):
    one, other = both(Weather, algorithm, actors=2, worlds_per_actor=2)
    assert one == other


def test_evaluations_do_not_change_a_serial_run():
    settings = {"steps": 200, "updates_per_step": 0.25, "engine": "serial"}
    plain = train(Weather, Noisy(), Settings(**settings))
    evaluated = train(Weather, Noisy(), Settings(**settings, evaluate_every=50, evaluate_episodes=2))
    assert fingerprint(plain) == fingerprint(evaluated)


def test_callbacks_and_the_caller_keep_their_streams():
    import random

    drawn = []
    random.seed(4)
    np.random.seed(4)
    expected = [(random.random(), np.random.randn()) for _ in range(300)]
    random.seed(4)
    np.random.seed(4)
    settings = Settings(steps=100, updates_per_step=0.25, engine="serial")
    with_callback = train(
        Weather, Noisy(), settings, on_update=lambda _: drawn.append((random.random(), np.random.randn()))
    )
    drawn.append((random.random(), np.random.randn()))
    assert drawn == expected[: len(drawn)]
    assert fingerprint(with_callback) == fingerprint(train(Weather, Noisy(), settings))


def test_a_resumed_run_continues_the_streams(tmp_path):
    settings = {"updates_per_step": 0.25, "engine": "serial", "worlds_per_actor": 2, "seed": 3}
    whole = train(Weather, Noisy(), Settings(steps=200, **settings))
    train(Weather, Noisy(), Settings(steps=100, keep_replay=True, **settings), run=tmp_path / "run")
    assert "serial" in RunDirectory(tmp_path / "run").load().notes
    resumed = resume(tmp_path / "run", world=Weather, algorithm=Noisy(), steps=100)
    assert fingerprint(resumed) == fingerprint(whole)


# ---- evaluation


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


POLICIES = {
    "policies": [Moody],
    "a team": [PolicySpec(Squad, kind="team")],
    "a joint policy": [PolicySpec(Choir, shared=True)],
}
HOW = [
    {"jobs": 2},
    {"pooled": False},
    {"isolate": True, "jobs": 2},
    {"isolate": True, "pooled": False},
    {"isolate": True, "max_processes": 1},
]


@pytest.mark.parametrize("name", POLICIES)
def test_evaluations_give_one_result(workers, name):
    first = motet.evaluate(Weather, POLICIES[name], episodes=4, seed=5, jobs=1, workers=workers)
    assert not first.failures()
    assert len({episode.returns for episode in first.episodes}) == 4
    for how in HOW:
        result = motet.evaluate(Weather, POLICIES[name], **{"episodes": 4, "seed": 5, "workers": workers, **how})
        assert result.deterministic() == first.deterministic(), how
