import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motet import _native
from motet.errors import SettingError, SpecError


def make(sizes: tuple[int, ...], seed: int, gap: int = 0) -> tuple[np.ndarray, list[int]]:
    """A flat vector and the offsets of its layers, perhaps with something between them."""
    rng, offsets, at = np.random.default_rng(seed), [], gap
    for n_in, n_out in itertools.pairwise(sizes):
        offsets += [at, at + n_in * n_out + gap]
        at += n_in * n_out + n_out + 2 * gap
    return rng.normal(size=at).astype(np.float32), offsets


def reference(flat, offsets, sizes, x, activation="relu", activate_last=False):
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        weight = flat[offsets[2 * i] :][: n_in * n_out].reshape(n_out, n_in).astype(np.float64)
        x = x @ weight.T + flat[offsets[2 * i + 1] :][:n_out]
        if i < len(sizes) - 2 or activate_last:
            x = np.maximum(x, 0) if activation == "relu" else np.tanh(x)
    return x


@pytest.mark.parametrize("variant", _native.MLP_VARIANTS)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=2, max_size=4).map(tuple),
    rows=st.integers(0, 40),
    activation=st.sampled_from(["relu", "tanh"]),
    last=st.booleans(),
    gap=st.integers(0, 3),
    bytes_=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_forward_equals_numpy_and_rows_do_not_meet(variant, sizes, rows, activation, last, gap, bytes_, seed):
    flat, offsets = make(sizes, seed, gap)
    mlp = _native.Mlp(sizes, offsets, activation, last, 0.5, variant)
    rng = np.random.default_rng(seed)
    x = (
        rng.integers(0, 3, (rows, sizes[0]), np.uint8)
        if bytes_
        else rng.normal(size=(rows, sizes[0])).astype(np.float32)
    )
    out = np.full((rows, sizes[-1]), np.nan, np.float32)
    mlp.forward(flat, x, out)
    expected = reference(flat, offsets, sizes, 0.5 * x, activation, last)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4 * max(1, np.abs(expected).max(initial=0)))
    one = np.empty((1, sizes[-1]), np.float32)
    for i in range(rows):
        mlp.forward(flat, x[i : i + 1], one)
        assert np.array_equal(one[0], out[i])


def test_forward_equals_torch():
    sizes = (125, 64, 64, 4)
    flat, offsets = make(sizes, 0)
    flat *= 0.1
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(9, 125)).astype(np.float32))
    out, h = np.empty((9, 4), np.float32), x
    _native.Mlp(sizes, offsets).forward(flat, x.numpy(), out)
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        weight = torch.from_numpy(flat[offsets[2 * i] :][: n_in * n_out])
        bias = torch.from_numpy(flat[offsets[2 * i + 1] :][:n_out])
        h = torch.nn.functional.linear(h, weight.view(n_out, n_in), bias)
        h = torch.relu(h) if i < 2 else h
    np.testing.assert_allclose(out, h.numpy(), rtol=1e-4, atol=1e-5)


def test_tanh_is_right_to_a_few_units_in_the_last_place_wherever_a_value_lies():
    mlp = _native.Mlp((1, 1), (0, 1), "tanh", True)
    around = np.concatenate([np.linspace(0, 12, 100_001), np.logspace(-38, 1, 100_001), [9.4999, 9.5, 9.6, np.inf]])
    x = np.concatenate([around, -around]).astype(np.float32)[:, None]
    out = np.empty_like(x)
    mlp.forward(np.array([1, 0], np.float32), x, out)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(out - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()
    assert np.abs(out).max() == 1
    assert (out[: len(around)] == -out[len(around) :]).all()
    for n in (1, 7, 16, 17, 31):
        alone = np.empty((n, 1), np.float32)
        mlp.forward(np.array([1, 0], np.float32), x[5:][:n], alone)
        assert (alone == out[5:][:n]).all()


@pytest.mark.parametrize("variant", _native.MLP_VARIANTS)
def test_a_nan_is_not_hidden_and_stays_in_its_row(variant):
    flat, offsets = make((20, 18, 3), 0)
    mlp = _native.Mlp((20, 18, 3), offsets, variant=variant)
    x, out = np.ones((3, 20), np.float32), np.empty((3, 3), np.float32)
    x[1, 7] = np.nan
    mlp.forward(flat, x, out)
    assert np.isnan(out).all(1).tolist() == [False, True, False] and not np.isnan(out[[0, 2]]).any()


def test_memory_behind_the_vector_is_not_read():
    sizes = (5, 3)
    room = np.full(40, np.nan, np.float32)
    room[:18] = 1
    out = np.empty((1, 3), np.float32)
    _native.Mlp(sizes, (0, 15)).forward(room[:18], np.ones((1, 5), np.float32), out)
    assert out.tolist() == [[6, 6, 6]]


def test_wrong_arguments_are_named():
    flat, offsets = make((4, 3), 0)
    for arguments, name in (
        (((4,), ()), "sizes"),
        (((4, 0), (0, 12)), "sizes"),
        (((4, 3), (0,)), "offsets"),
        (((4, 3), offsets, "gelu"), "activation"),
        (((4, 3), offsets, "relu", False, 1.0, "abacus"), "variant"),
    ):
        with pytest.raises(SettingError, match=name):
            _native.Mlp(*arguments)
    mlp, x, out = _native.Mlp((4, 3), offsets), np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    for arguments, name in (
        ((flat[:-1], x, out), "flat"),
        ((flat.astype("float64"), x, out), "flat"),
        ((flat, x.astype("float64"), out), "x"),
        ((flat, x[:, :3], out), "x"),
        ((flat, x.ravel()[:7], out), "x"),
        ((flat, x, out[:1]), "out"),
        ((flat, x, frozen), "out"),
    ):
        with pytest.raises(SpecError, match=name):
            mlp.forward(*arguments)


@given(
    rows=st.integers(1, 9), n=st.integers(1, 6), epsilon=st.floats(0, 1), masked=st.booleans(), greedy=st.booleans(),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_choose_equals_the_plain_rule(rows, n, epsilon, masked, greedy, seed):
    rng = np.random.default_rng(seed)
    values, draws = rng.integers(0, 3, (rows, n)).astype(np.float32), rng.random((rows, 2))
    masks = rng.random((rows, n)) < 0.5
    masks[np.arange(rows), rng.integers(0, n, rows)] = True
    actions = np.zeros(rows, np.int64)
    _native.choose(values, masks if masked else None, None if greedy else draws, epsilon, 10, actions)
    for r in range(rows):
        allowed = np.flatnonzero(masks[r]) if masked else np.arange(n)
        if not greedy and draws[r, 0] < epsilon:
            expected = allowed[int(draws[r, 1] * len(allowed))]
        else:
            expected = allowed[values[r, allowed].argmax()]
        assert actions[r] == expected + 10
