"""The native GRU and LSTM against torch's cells and autograd. Differences are rounding: 1e-5 of the largest value."""

import numpy as np
import pytest
import torch
from support import cells
from torch import Tensor, nn

from motet import _native

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def cell_of(kind: str, inputs: int, size: int, seed: int) -> tuple[nn.RNNCellBase, np.ndarray, list[int]]:
    """Return torch's cell, its weights as a flat row, and their offsets there."""
    torch.manual_seed(seed)
    cell = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(inputs, size)
    offsets, _, n = cells.layout(kind, inputs, size, gap=3)
    row = np.zeros((1, n), np.float32)
    for name, at in zip(NAMES, offsets, strict=True):
        values = getattr(cell, name).detach().numpy().ravel()
        row[0, at : at + values.size] = values
    return cell, row, offsets


def stepped(cell: nn.RNNCellBase, x: Tensor, state: Tensor) -> Tensor:
    if isinstance(cell, nn.GRUCell):
        return cell(x, state)
    return torch.cat(cell(x, state.chunk(2, 1)), 1)


def close(found: np.ndarray, expected: Tensor) -> None:
    exact = expected.detach().numpy()
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * max(1e-3, np.abs(exact).max(initial=0)))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("rows", [1, 16, 50])
def test_a_step_equals_torch(kind, rows):
    cell, row, offsets = cell_of(kind, 23, 64, seed=rows)
    net = _native.Recurrent(kind, 23, 64, offsets)
    x, state = torch.randn(rows, 23), torch.randn(rows, net.state_size)
    out = np.empty((rows, net.state_size), np.float32)
    net.step(row, x.numpy(), state.numpy(), out)
    close(out, stepped(cell, x, state))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("sizes", [(3, 5), (16, 32), (40, 64)])
@pytest.mark.parametrize("learn_from", [0, 4])
def test_passes_through_time_equal_autograd_with_random_borders(kind, sizes, learn_from):
    (inputs, size), count, length = sizes, 6, 11
    cell, row, offsets = cell_of(kind, inputs, size, seed=size)
    net = _native.Recurrent(kind, inputs, size, offsets)
    shape = (1, count, length)
    x, memory, begin = torch.randn(*shape, inputs), torch.randn(*shape, net.state_size), torch.rand(shape) < 0.2
    begin[0, 0] = False
    begin[0, 1] = True
    grad = torch.randn(*shape, size)
    out, kept = np.empty((*shape, size), np.float32), np.empty((*shape, net.kept_size), np.float32)
    net.unroll(row, x.numpy(), memory.numpy(), begin.numpy(), out, kept)
    x.requires_grad_()
    state, states = memory[0, :, 0], []
    for t in range(length):
        if t == learn_from:
            state = state.detach()
        state = torch.where(begin[0, :, t, None], memory[0, :, t], state)
        with torch.set_grad_enabled(t >= learn_from):
            state = stepped(cell, x[0, :, t], state)
        states.append(state[:, :size])
    expected = torch.stack(states, 1)
    close(out[0], expected)
    expected[:, learn_from:].backward(grad[0, :, learn_from:])
    grad_row, grad_x = np.full_like(row, np.nan), np.full(x.shape, np.nan, np.float32)
    net.backward(row, x.detach().numpy(), begin.numpy(), kept, grad.numpy(), learn_from, grad_row, grad_x)
    assert x.grad is not None
    close(grad_x, x.grad)
    for name, at in zip(NAMES, offsets, strict=True):
        wanted = getattr(cell, name).grad
        close(grad_row[0, at : at + wanted.numel()], wanted.flatten())


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_sequence_without_borders_equals_torchs_own(kind):
    cell, row, offsets = cell_of(kind, 9, 20, seed=0)
    net = _native.Recurrent(kind, 9, 20, offsets)
    whole = (nn.GRU if kind == "gru" else nn.LSTM)(9, 20, batch_first=True)
    for name in NAMES:
        getattr(whole, f"{name}_l0").data.copy_(getattr(cell, name).data)
    x, out = torch.randn(1, 4, 30, 9), np.empty((1, 4, 30, 20), np.float32)
    memory = np.zeros((1, 4, 30, net.state_size), np.float32)
    net.unroll(row, x.numpy(), memory, np.zeros((1, 4, 30), np.bool_), out, None)
    close(out[0], whole(x[0])[0])
