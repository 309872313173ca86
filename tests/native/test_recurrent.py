"""The native GRU and LSTM against plain numpy. Without torch, so that the sanitizers can run it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import cells

from motet import _native
from motet.errors import SettingError, SpecError

KINDS = st.sampled_from(["gru", "lstm"])
SEEDS = st.integers(0, 99)
SIZES = {"inputs": st.integers(1, 40), "size": st.integers(1, 40)}
SHAPE = {"agents": st.integers(1, 3), "count": st.integers(1, 5), "length": st.integers(1, 7)}


class Case:
    """Weights, inputs, states and borders, and the native arrays that go with them."""

    def __init__(self, kind, inputs, size, agents=1, count=1, length=1, seed=0, gap=0, borders=0.3, variant=None):
        rng = np.random.default_rng(seed)
        self.kind, self.inputs, self.size, self.gap = kind, inputs, size, gap
        self.offsets, self.shapes, n = cells.layout(kind, inputs, size, gap)
        self.net = _native.Recurrent(kind, inputs, size, self.offsets, variant=variant)
        wide = (rng.normal(size=(agents, n + 5)) / np.sqrt(size)).astype(np.float32)
        self.rows = wide[:, 2 : 2 + n]  # rows are columns of a wider array
        shape = (agents, count, length)
        self.x = rng.normal(size=(*shape, inputs)).astype(np.float32)
        self.memory = rng.normal(size=(*shape, self.net.state_size)).astype(np.float32)
        self.begin = rng.random(shape) < borders
        self.out = np.full((*shape, size), np.nan, np.float32)
        self.kept = np.full((*shape, self.net.kept_size), np.nan, np.float32)
        self.grad_out = rng.normal(size=self.out.shape).astype(np.float32)
        self.wide_grad = np.full(wide.shape, 7, np.float32)
        self.grad_rows = self.wide_grad[:, 2 : 2 + n]
        self.grad_x = np.full_like(self.x, np.nan)

    def weights(self, agent, rows=None):
        rows = self.rows if rows is None else rows
        return cells.weights(rows[agent], self.kind, self.inputs, self.size, self.gap)

    def unroll(self):
        self.net.unroll(self.rows, self.x, self.memory, self.begin, self.out, self.kept)
        return self.out

    def backward(self, learn_from=0):
        given = (self.rows, self.x, self.begin, self.kept, self.grad_out, learn_from)
        self.net.backward(*given, self.grad_rows, self.grad_x)

    def step(self, agent, x, state):
        out = np.full_like(state, np.nan)
        self.net.step(np.ascontiguousarray(self.rows[agent]), np.ascontiguousarray(x), state, out)
        return out


@pytest.mark.parametrize("variant", _native.MLP_VARIANTS)
@given(
    kind=KINDS, rows=st.integers(0, 40), gap=st.integers(0, 3), bytes_=st.booleans(), seed=st.integers(0, 99), **SIZES
)
@settings(max_examples=40, deadline=None)
def test_a_step_equals_numpy_and_places_do_not_meet(variant, kind, inputs, size, rows, gap, bytes_, seed):
    case, rng = Case(kind, inputs, size, seed=seed, gap=gap), np.random.default_rng(seed)
    net = _native.Recurrent(kind, inputs, size, case.offsets, 0.5, variant)
    drawn = rng.integers(0, 3, (rows, inputs), np.uint8) if bytes_ else rng.normal(size=(rows, inputs))
    x = drawn if bytes_ else drawn.astype(np.float32)
    state = rng.normal(size=(rows, net.state_size)).astype(np.float32)
    flat, before, out = np.ascontiguousarray(case.rows[0]), state.copy(), np.full_like(state, np.nan)
    net.step(flat, x, state, out)
    expected = cells.step(kind, case.weights(0), 0.5 * x, state)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max(initial=0)))
    assert np.array_equal(state, before)
    one = np.empty((1, net.state_size), np.float32)
    for i in range(rows):
        net.step(flat, x[i : i + 1], state[i : i + 1], one)
        assert np.array_equal(one[0], out[i])


@pytest.mark.parametrize("variant", _native.MLP_VARIANTS)
@given(kind=KINDS, seed=SEEDS, **SIZES, **SHAPE)
@settings(max_examples=40, deadline=None)
def test_unrolled_states_are_those_of_steps_bit_for_bit(variant, kind, inputs, size, agents, count, length, seed):
    case = Case(kind, inputs, size, agents, count, length, seed, variant=variant)
    out, many = case.unroll(), Case(kind, inputs, size, agents, 40, length, seed + 1, variant=variant)
    for a in range(agents):
        for b in range(count):
            state = None
            for t in range(length):
                if t == 0 or case.begin[a, b, t]:
                    state = case.memory[a, b, t : t + 1]
                state = case.step(a, case.x[a, b, t : t + 1], state)
                assert np.array_equal(out[a, b, t], state[0, :size])
    many.rows, many.x[:, -count:], many.memory[:, -count:], many.begin[:, -count:] = (
        case.rows, case.x, case.memory, case.begin,
    )  # fmt: skip
    assert np.array_equal(many.unroll()[:, -count:], out)


@given(kind=KINDS, learn_from=st.integers(0, 7), seed=SEEDS, gap=st.integers(0, 2), **SIZES, **SHAPE)
@settings(max_examples=60, deadline=None)
def test_gradients_equal_the_slopes_of_numpy(kind, inputs, size, agents, count, length, learn_from, seed, gap):
    case, rng = Case(kind, inputs, size, agents, count, length, seed, gap), np.random.default_rng(seed)
    learn_from, exact = min(learn_from, length), case.unroll().copy()
    case.backward(learn_from)
    assert not case.grad_x[:, :, :learn_from].any()
    inside = np.zeros(case.rows.shape[1], bool)
    for at, shape in zip(case.offsets, case.shapes, strict=True):
        inside[at : at + int(np.prod(shape))] = True
    assert (case.grad_rows[:, ~inside] == 7).all() and (case.wide_grad[:, [0, 1, -3, -2, -1]] == 7).all()
    later = slice(learn_from, None)
    for a in range(agents):
        mine = case.weights(a)
        states = cells.unroll(kind, mine, case.x[a], case.memory[a], case.begin[a])
        np.testing.assert_allclose(exact[a], states[..., :size], rtol=0, atol=1e-5)
        if learn_from == length:
            assert not case.grad_rows[a, inside].any()
            continue
        # What lies before learn_from is a constant: the sequence begins there, in the state that it reached.
        memory, begin = case.memory[a, :, later].astype(np.float64), case.begin[a, :, later].copy()
        if learn_from:
            carried = ~begin[:, 0]
            memory[carried, 0] = states[carried, learn_from - 1]
        moved_rows, moved_x = rng.normal(size=case.rows.shape), rng.normal(size=case.x[a, :, later].shape)

        def loss(e, a=a, memory=memory, begin=begin, moved_rows=moved_rows, moved_x=moved_x):
            rows, x = case.rows + e * moved_rows, case.x[a, :, later] + e * moved_x
            found = cells.unroll(kind, case.weights(a, rows), x, memory, begin)
            return (found[..., :size] * case.grad_out[a, :, later]).sum()

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        parts = [case.grad_rows[a, inside] * moved_rows[a, inside], case.grad_x[a, :, later] * moved_x]
        total, scale = sum(part.sum() for part in parts), np.sqrt(sum((part**2).sum() for part in parts))
        assert abs(total - slope) <= 1e-4 * (1 + scale)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_variants_agree_and_agents_do_not_meet(kind):
    found = []
    for variant in _native.MLP_VARIANTS:
        case = Case(kind, 21, 35, 3, 37, 9, variant=variant)
        case.unroll()
        case.backward(2)
        for a in range(3):
            one = Case(kind, 21, 35, variant=variant)
            for name in ("x", "memory", "begin", "out", "kept", "grad_out", "rows", "grad_x"):
                setattr(one, name, getattr(case, name)[a : a + 1].copy())
            one.grad_rows = np.zeros_like(one.rows)
            assert np.array_equal(one.unroll()[0], case.out[a])
            one.backward(2)
            assert np.array_equal(one.grad_rows[0], case.grad_rows[a]) and np.array_equal(one.grad_x[0], case.grad_x[a])
        found.append((case.out, case.grad_rows, case.grad_x))
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(mine).max())


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_are_replaced_and_are_optional(kind):
    case = Case(kind, 5, 18, 2, 4, 6)
    case.unroll()
    kept = case.kept.copy()
    case.backward()
    rows, x = case.grad_rows.copy(), case.grad_x.copy()
    for learn_from in (0, 3):  # both ways through the rows
        case.kept[:] = kept
        case.backward(learn_from)
        first = case.grad_rows.copy(), case.grad_x.copy()
        case.kept[:] = kept
        case.backward(learn_from)
        assert np.array_equal(case.grad_rows, first[0]) and np.array_equal(case.grad_x, first[1])
    for wanted in ((True, False), (False, True), (False, False)):
        case.kept[:], case.grad_rows[:], case.grad_x[:] = kept, 7, 7
        given = (case.rows, case.x, case.begin, case.kept, case.grad_out, 0)
        case.net.backward(*given, case.grad_rows if wanted[0] else None, case.grad_x if wanted[1] else None)
        assert np.array_equal(case.grad_rows, rows if wanted[0] else np.full_like(rows, 7))
        assert np.array_equal(case.grad_x, x if wanted[1] else np.full_like(x, 7))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_only_states_at_borders_are_read_and_a_nan_stays_in_its_sequence(kind):
    case = Case(kind, 4, 17, 1, 3, 8)
    expected = case.unroll().copy()
    borders = case.begin.copy()
    borders[:, :, 0] = True
    case.memory[~borders] = np.nan
    assert np.array_equal(case.unroll(), expected)
    case.begin[:] = False
    case.x[0, 1, 3, 2] = np.nan
    hurt = np.isnan(case.unroll()[0])
    assert hurt[1, 3:].all() and not hurt[1, :3].any() and not hurt[[0, 2]].any()


def test_wrong_arguments_are_named():
    offsets = cells.layout("gru", 3, 4)[0]
    for arguments, name in (
        (("rnn", 3, 4, offsets), "kind must be 'gru' or 'lstm', got 'rnn'"),
        (("gru", 0, 4, offsets), "inputs must be an int from 1 to 2\\*\\*31, got 0"),
        (("gru", 3, -1, offsets), "size must be an int from 1"),
        (("gru", 3, "four", offsets), "size must be an int from 1"),
        (("gru", 3, 4, offsets[:3]), "offsets must be those of weight_ih"),
        (("gru", 3, 4, [0, 1, 2, 2**63]), "offsets must be those of weight_ih"),
        (("gru", 3, 4, offsets, 1.0, "abacus"), "variant must be one of"),
    ):
        with pytest.raises(SettingError, match=name):
            _native.Recurrent(*arguments)
    case = Case("lstm", 3, 4, 2, 3, 5)
    net, flat, x = case.net, np.ascontiguousarray(case.rows[0]), np.ones((2, 3), np.float32)
    state, out = np.ones((2, 8), np.float32), np.ones((2, 8), np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    for arguments, name in (
        ((flat[:-1], x, state, out), "flat"),
        ((flat, x.astype("float64"), state, out), "x must be float32, uint8 or bool"),
        ((flat, x.ravel()[:5], state, out), "x must have rows of 3"),
        ((flat, x, state[:, :4], out), "state"),
        ((flat, x, state, out[:1]), "out"),
        ((flat, x, state, frozen), "out"),
    ):
        with pytest.raises(SpecError, match=name):
            net.step(*arguments)
    names = ("rows", "x", "begin", "kept", "grad_out", "learn_from", "grad_rows", "grad_x")
    good = {name: getattr(case, name, 0) for name in names}
    for name, bad in (
        ("kept", None),
        ("grad_out", case.grad_out[:1]),
        ("learn_from", 6),
        ("learn_from", -1),
        ("grad_rows", case.grad_rows[:1]),
        ("grad_x", case.grad_x[:, :, :2].copy()),
    ):
        with pytest.raises(SpecError, match=f"^{name} must be"):
            net.backward(*{**good, name: bad}.values())
