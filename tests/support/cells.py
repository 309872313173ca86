"""GRU and LSTM in plain numpy, in double precision, row by row: what the native ones are compared with."""

import numpy as np

GATES = {"gru": 3, "lstm": 4}


def layout(kind: str, inputs: int, size: int, gap: int = 0) -> tuple[list[int], list[tuple[int, ...]], int]:
    """Return the offsets and shapes of weight_ih, weight_hh, bias_ih, bias_hh, and the length of a row."""
    n = GATES[kind] * size
    shapes: list[tuple[int, ...]] = [(n, inputs), (n, size), (n,), (n,)]
    offsets, at = [], gap
    for shape in shapes:
        offsets.append(at)
        at += int(np.prod(shape)) + gap
    return offsets, shapes, at


def weights(flat, kind, inputs, size, gap=0):
    offsets, shapes, _ = layout(kind, inputs, size, gap)
    return [flat[at:][: int(np.prod(shape))].reshape(shape) for at, shape in zip(offsets, shapes, strict=True)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(kind, weights, x, state):
    """Return the states after inputs x ``[rows, inputs]``."""
    weight_ih, weight_hh, bias_ih, bias_hh = (one.astype(np.float64) for one in weights)
    size = weight_hh.shape[1]
    h = state[:, :size].astype(np.float64)
    of_x = np.split(x @ weight_ih.T + bias_ih, GATES[kind], 1)
    of_h = np.split(h @ weight_hh.T + bias_hh, GATES[kind], 1)
    if kind == "gru":
        r, z = (sigmoid(of_x[i] + of_h[i]) for i in range(2))
        n = np.tanh(of_x[2] + r * of_h[2])
        return (1 - z) * n + z * h
    i, f, g, o = (a + b for a, b in zip(of_x, of_h, strict=True))
    c = sigmoid(f) * state[:, size:] + sigmoid(i) * np.tanh(g)
    return np.concatenate([sigmoid(o) * np.tanh(c), c], 1)


def unroll(kind, weights, x, memory, begin):
    """Return the states after each row ``[B, T, state]``."""
    state, states = memory[:, 0], []
    for t in range(x.shape[1]):
        state = np.where(begin[:, t, None] | (t == 0), memory[:, t], state)
        state = step(kind, weights, x[:, t], state)
        states.append(state)
    return np.stack(states, 1)
