// The gates of one row of a GRU or an LSTM, forwards and backwards, as in torch.nn.GRUCell and torch.nn.LSTMCell.
//
// x and y hold the weighted sums of the gates over the inputs and over the state, biases included. h (and c of an LSTM)
// are replaced by their new values. Unless `kept` is null, it receives what a backward pass needs, in blocks of `size`
// numbers:
//
//   GRU    r  z  n  q  h        q: the weighted sum of n over the state; h: the old state
//   LSTM   i  f  g  o  h  c  t  h and c: the old state; t: tanh of the new c
//
// The backward pass replaces the gates in `kept` by the gradients of their weighted sums: of r, z, n, q, or of i, f, g, o.
// On entry dh holds the gradient of the new h that comes from later rows. On return it holds the gradient of the old h,
// except for the part that comes from the weighted sums. dc holds the gradient of the new c, then that of the old c.
#pragma once
#include <initializer_list>

#include "core/vectors.hpp"

namespace motet {

using GatesForward = void (*)(const float* x, const float* y, float* h, float* c, float* kept, u64 size);
using GatesBackward = void (*)(const float* grad, float* kept, float* dh, float* dc, u64 size);

namespace kernel {

MOTET_INLINE void gru_forward(const float* x, const float* y, float* h, float*, float* kept, u64 size) {
  for (u64 j = 0; j < size; j += kLanes) {
    const u64 n = size - j < kLanes ? size - j : kLanes;
    Floats16 r, z, m, q, old, more;
    load(r, x + j, n), load(more, y + j, n);
    r += more;
    sigmoid16(r);
    load(z, x + size + j, n), load(more, y + size + j, n);
    z += more;
    sigmoid16(z);
    load(m, x + 2 * size + j, n), load(q, y + 2 * size + j, n);
    m += r * q;
    tanh16(m);
    load(old, h + j, n);
    if (kept) {
      float* to = kept + j;
      for (const Floats16* part : {&r, &z, &m, &q, &old}) store(*part, to, n), to += size;
    }
    store(m + z * (old - m), h + j, n);
  }
}

MOTET_INLINE void gru_backward(const float* grad, float* kept, float* dh, float*, u64 size) {
  for (u64 j = 0; j < size; j += kLanes) {
    const u64 n = size - j < kLanes ? size - j : kLanes;
    float* at = kept + j;
    Floats16 r, z, m, q, old, back, more;
    load(r, at, n), load(z, at + size, n), load(m, at + 2 * size, n), load(q, at + 3 * size, n), load(old, at + 4 * size, n);
    load(back, dh + j, n), load(more, grad + j, n);
    back += more;
    const Floats16 dm = back * (1.0f - z) * (1.0f - m * m);
    store(dm * q * r * (1.0f - r), at, n);
    store(back * (old - m) * z * (1.0f - z), at + size, n);
    store(dm, at + 2 * size, n);
    store(dm * r, at + 3 * size, n);
    store(back * z, dh + j, n);
  }
}

MOTET_INLINE void lstm_forward(const float* x, const float* y, float* h, float* c, float* kept, u64 size) {
  for (u64 j = 0; j < size; j += kLanes) {
    const u64 n = size - j < kLanes ? size - j : kLanes;
    Floats16 gate[4], more, old_h, old_c;
    for (u64 g = 0; g < 4; ++g) {
      load(gate[g], x + g * size + j, n), load(more, y + g * size + j, n);
      gate[g] += more;
      if (g == 2) tanh16(gate[g]);
      else sigmoid16(gate[g]);
    }
    load(old_h, h + j, n), load(old_c, c + j, n);
    const Floats16 now = gate[1] * old_c + gate[0] * gate[2];
    Floats16 t = now;
    tanh16(t);
    if (kept) {
      float* to = kept + j;
      for (const Floats16* part : {&gate[0], &gate[1], &gate[2], &gate[3], &old_h, &old_c, &t}) store(*part, to, n), to += size;
    }
    store(now, c + j, n);
    store(gate[3] * t, h + j, n);
  }
}

MOTET_INLINE void lstm_backward(const float* grad, float* kept, float* dh, float* dc, u64 size) {
  for (u64 j = 0; j < size; j += kLanes) {
    const u64 n = size - j < kLanes ? size - j : kLanes;
    float* at = kept + j;
    Floats16 i, f, g, o, old_c, t, back, more;
    load(i, at, n), load(f, at + size, n), load(g, at + 2 * size, n), load(o, at + 3 * size, n);
    load(old_c, at + 5 * size, n), load(t, at + 6 * size, n);
    load(back, dh + j, n), load(more, grad + j, n);
    back += more;
    load(more, dc + j, n);
    more += back * o * (1.0f - t * t);
    store(more * g * i * (1.0f - i), at, n);
    store(more * old_c * f * (1.0f - f), at + size, n);
    store(more * i * (1.0f - g * g), at + 2 * size, n);
    store(back * t * o * (1.0f - o), at + 3 * size, n);
    store(more * f, dc + j, n);
    store(Floats16{}, dh + j, n);
  }
}
}  // namespace kernel
}  // namespace motet
