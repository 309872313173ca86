"""Normalised observations: exact statistics, the same in both halves for the same version, frozen when asked to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.algorithm import stacked_batch
from motet.algorithms._device import Device
from motet.algorithms._normaliser import Normaliser
from motet.algorithms._statistics import CLIP, Statistics
from motet.algorithms.td3 import TD3Config
from motet.schedule import Stages

SEEN, DONE = Box(-np.inf, np.inf, (5,)), Box(-1, 1, (2,))
CONFIG = TD3Config(hidden=(8,), batch_size=8, min_rows=8, normalise=True)


def fresh(size: int, agents: int = 1) -> tuple[Statistics, Normaliser, np.ndarray]:
    places = Statistics(size, 0, 2 * size)
    rows = np.zeros((agents, 2 * size + places.n_private), np.float32)
    for row in rows:
        places.initialise(row)
    return places, Normaliser(places, torch.from_numpy(rows), Device("cpu")), rows


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.floats(-1e4, 1e4),
    st.floats(1e-2, 1e3),
    st.integers(0, 2**32 - 1),
)
def test_statistics_are_those_of_all_rows(sizes: list[int], middle: float, spread: float, seed: int) -> None:
    _, normaliser, _ = fresh(3)
    rng = np.random.default_rng(seed)
    batches = [(middle + spread * rng.normal(size=(1, n, 3))).astype(np.float32) for n in sizes]
    for batch in batches:
        normaliser.update(torch.from_numpy(batch))
    rows = np.concatenate(batches, 1)[0].astype(np.float64)
    assert normaliser.count.item() == len(rows)
    np.testing.assert_allclose(normaliser.mean[0], rows.mean(0), rtol=1e-9, atol=1e-9 * spread)
    np.testing.assert_allclose(normaliser.variance[0], rows.var(0), rtol=1e-6, atol=1e-8 * spread**2)


def test_counts_beyond_what_a_float32_holds_are_exact() -> None:
    _, normaliser, _ = fresh(1)
    with torch.no_grad():
        normaliser._private[:, -2].fill_(2.0**26)
    for _ in range(3):
        normaliser.update(torch.ones(1, 1, 1))
    assert normaliser.count.item() == 2**26 + 3


def test_actors_and_learners_normalise_with_the_same_bits() -> None:
    places, normaliser, rows = fresh(4)
    rng = np.random.default_rng(0)
    normaliser.update(torch.from_numpy((100 + 7 * rng.normal(size=(1, 50, 4))).astype(np.float32)))
    x = (100 + 30 * rng.normal(size=(1, 1000, 4))).astype(np.float32)
    inside = torch.from_numpy(x.copy())
    normaliser.apply(inside)
    np.testing.assert_array_equal(places.normalise(rows[0], x[0]), inside[0].numpy())
    assert np.abs(inside.numpy()).max() == CLIP  # some were far out


def test_rows_that_are_not_valid_do_not_count() -> None:
    _, some, _ = fresh(2, agents=2)
    _, all_, _ = fresh(2, agents=2)
    x = torch.randn(2, 6, 2)
    valid = torch.tensor([[True, False, True, True, False, True], [False] * 6])
    some.update(x, valid)
    all_.update(x[:, [0, 2, 3, 5]])
    np.testing.assert_allclose(some.mean[0], all_.mean[0])
    np.testing.assert_allclose(some.variance[0], all_.variance[0])
    assert some.count.tolist() == [4, 0]
    assert some.mean[1].tolist() == [0, 0]
    assert some._scale_row[1, 0].tolist() == [1, 1]


def test_an_update_works_with_the_statistics_that_were_published() -> None:
    """What a version acts with is what learning begins from; its own batch counts from the next version on."""
    td3 = CONFIG.build(SEEN, DONE, 1, [0])
    behaviour = CONFIG.behaviour(SEEN, DONE)
    batch = stacked_batch(SEEN, DONE, CONFIG.replay(SEEN, DONE), 1)
    rng = np.random.default_rng(0)
    for step in range(6):
        batch.observation[:] = step + 5 * rng.normal(size=batch.observation.shape)
        published = td3.weights()[0].copy()
        behaviour.load(published, td3.header(step, 0))
        assert behaviour._statistics is not None
        acted = behaviour._statistics.normalise(published, batch.observation[0])
        td3.update(batch, [step])
        learnt = td3._batches[id(batch)].tensors.x[0].numpy()
        np.testing.assert_array_equal(acted, learnt)
        assert not np.array_equal(td3.weights()[0][:10], published[:10])


def test_statistics_freeze_at_a_stage_by_each_agents_own_steps() -> None:
    config = replace(CONFIG, stages=Stages({"ramp": 10, "full": None}), freeze_normaliser_on_stage="full")
    td3 = config.build(SEEN, DONE, 2, [0, 1])
    batch = stacked_batch(SEEN, DONE, config.replay(SEEN, DONE), 2)
    batch.observation[:] = np.random.default_rng(0).normal(size=batch.observation.shape)
    td3.update(batch, [9, 9])
    before = td3.state[:, :10].copy()
    batch.observation[:] += 3
    td3.update(batch, [10, 9])
    np.testing.assert_array_equal(td3.state[0, :10], before[0])
    assert not np.array_equal(td3.state[1, :10], before[1])
    assert td3._normaliser is not None
    assert td3._normaliser.count.tolist() == [8, 16]


@pytest.mark.parametrize("value", [0.0, 3.5])
def test_an_input_that_never_changes_is_harmless(value: float) -> None:
    places, normaliser, rows = fresh(1)
    for _ in range(100):
        normaliser.update(torch.full((1, 16, 1), value))
    assert places.normalise(rows[0], np.full((1, 1), value, np.float32)).item() == 0
