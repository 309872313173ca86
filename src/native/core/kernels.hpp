// Products with weights, for networks that act and for passes that are native, compiled for several processors.
//
// Each output of each row of `layer` is one dot product, summed in an order that does not depend on the batch: 16 running
// sums over the inputs, then a tree over the 16. So a row's result depends neither on the other rows nor on their number.
// Outputs are computed in blocks of 16, whose weights stay in the first-level cache for all rows.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/gates.hpp"
#include "core/vectors.hpp"

namespace motet {

namespace kernel {

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define MOTET_SHUFFLE 1
#endif
#endif

// Adds up the 16 running sums of each of 16 outputs, given as vectors of any width. The order is always that of the same
// tree: lane l adds lane l + 8, then l + 4, l + 2, l + 1.
#ifdef MOTET_SHUFFLE
MOTET_INLINE void add_lanes(Floats16 (*sums)[1], float* totals) {
  Floats16 a[8], b[4], c[2];
  for (int i = 0; i < 8; ++i) {
    Floats16 x = sums[i][0], y = sums[i + 8][0];
    a[i] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  for (int i = 0; i < 4; ++i) {
    Floats16 x = a[i], y = a[i + 4];
    b[i] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
           __builtin_shufflevector(x, y, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  for (int i = 0; i < 2; ++i) {
    Floats16 x = b[i], y = b[i + 2];
    c[i] = __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  Floats16 all = __builtin_shufflevector(c[0], c[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
                 __builtin_shufflevector(c[0], c[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  std::memcpy(totals, &all, sizeof all);
}
MOTET_INLINE void to_quad(const Floats8* s, Floats4& quad) {
  Floats8 v = s[0] + s[1];
  quad = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
MOTET_INLINE void to_quad(const Floats4* s, Floats4& quad) { quad = (s[0] + s[2]) + (s[1] + s[3]); }

template <class V, u64 kParts>
MOTET_INLINE void add_lanes(V (*sums)[kParts], float* totals) {
  for (u64 o = 0; o < kLanes; o += 4) {
    Floats4 q[4];
    for (u64 i = 0; i < 4; ++i) to_quad(sums[o + i], q[i]);
    Floats4 even = __builtin_shufflevector(q[0], q[2], 0, 1, 4, 5) + __builtin_shufflevector(q[0], q[2], 2, 3, 6, 7);
    Floats4 odd = __builtin_shufflevector(q[1], q[3], 0, 1, 4, 5) + __builtin_shufflevector(q[1], q[3], 2, 3, 6, 7);
    Floats4 all = __builtin_shufflevector(even, odd, 0, 4, 2, 6) + __builtin_shufflevector(even, odd, 1, 5, 3, 7);
    std::memcpy(totals + o, &all, sizeof all);
  }
}
#else
template <class V, u64 kParts>
MOTET_INLINE void add_lanes(V (*sums)[kParts], float* totals) {
  for (u64 o = 0; o < kLanes; ++o) {
    float v[kLanes];
    std::memcpy(v, sums[o], sizeof v);
    for (u64 half = kLanes / 2; half; half /= 2)
      for (u64 l = 0; l < half; ++l) v[l] += v[l + half];
    totals[o] = v[0];
  }
}
#endif

// Computes one block of 16 outputs for kRows rows, kAtOnce outputs at a time, so that each weight is loaded once for all
// rows. The order in which a row is summed does not depend on kRows and kAtOnce.
template <class V, u64 kAtOnce, u64 kRows>
MOTET_INLINE void block(const float* const* row, const float* const* end, const float* const* xs, const float (*last)[kLanes],
                        u64 whole, bool rest, V (*sums)[kLanes][kLanes / (sizeof(V) / sizeof(float))]) {
  constexpr u64 kWidth = sizeof(V) / sizeof(float), kParts = kLanes / kWidth;
  for (u64 k = 0; k < kLanes; k += kAtOnce) {
    V held[kRows][kAtOnce][kParts] = {};
    auto add = [&](const float* const* from, const float* const* ws, u64 i) __attribute__((always_inline)) {
      V a[kRows][kParts], b;
#pragma GCC unroll 4
      for (u64 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (u64 p = 0; p < kParts; ++p) std::memcpy(&a[r][p], from[r] + i + p * kWidth, sizeof(V));
#pragma GCC unroll 16
      for (u64 j = 0; j < kAtOnce; ++j)
#pragma GCC unroll 4
        for (u64 p = 0; p < kParts; ++p) {
          std::memcpy(&b, ws[k + j] + i + p * kWidth, sizeof(V));
#pragma GCC unroll 4
          for (u64 r = 0; r < kRows; ++r) held[r][j][p] += a[r][p] * b;
        }
    };
    for (u64 i = 0; i < whole; i += kLanes) add(xs, row, i);
    if (rest) {
      const float* ends[kRows];
      for (u64 r = 0; r < kRows; ++r) ends[r] = last[r];
      add(ends, end, 0);
    }
#pragma GCC unroll 4
    for (u64 r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (u64 j = 0; j < kAtOnce; ++j)
#pragma GCC unroll 4
        for (u64 p = 0; p < kParts; ++p) sums[r][k + j][p] = held[r][j][p];
  }
}

// y[r, o] = x[r, :] . w[o, :] + b[o], then ReLU if `rectify`.
// V is the vector type of the machine's registers, kSums the number of outputs whose sums are held in registers, and
// kTogether the number of rows computed at once if there are enough; none of them changes the order of the sums.
template <class V, u64 kSums, u64 kTogether>
MOTET_INLINE void layer(const float* w, const float* b, u64 in, u64 out, const float* x, float* y, u64 rows, bool rectify) {
  constexpr u64 kWidth = sizeof(V) / sizeof(float), kParts = kLanes / kWidth;
  const u64 whole = in / kLanes * kLanes, rest = in - whole;
  for (u64 o = 0; o < out; o += kLanes) {
    const u64 n = out - o < kLanes ? out - o : kLanes;
    // If fewer than 16 outputs remain, the last one is computed repeatedly and the extra results are discarded.
    const float* row[kLanes];
    for (u64 k = 0; k < kLanes; ++k) row[k] = w + (o + (k < n ? k : n - 1)) * in;
    float bias[kLanes] = {};
    std::memcpy(bias, b + o, n * sizeof(float));
    // The inputs after the last whole block of 16: a read of 16 weights that ends with the last one stays inside the row;
    // weights that were already summed are multiplied by zero. Rows shorter than 16 are copied into zeros instead.
    const float* end[kLanes];
    float room[kLanes][kLanes] = {};
    for (u64 k = 0; k < kLanes; ++k) {
      if (rest && !whole) std::memcpy(room[k], row[k], in * sizeof(float));
      end[k] = whole ? row[k] + in - kLanes : room[k];
    }
    for (u64 r = 0; r < rows;) {
      const u64 together = rows - r < kTogether ? 1 : kTogether;
      const float* xs[kTogether];
      float last[kTogether][kLanes] = {};
      for (u64 i = 0; i < together; ++i) {
        xs[i] = x + (r + i) * in;
        if (rest) std::memcpy(last[i] + (whole ? kLanes - rest : 0), xs[i] + whole, rest * sizeof(float));
      }
      V sums[kTogether][kLanes][kParts];
      if (together == 1) block<V, kSums, 1>(row, end, xs, last, whole, rest, sums);
      else block<V, kSums / kTogether, kTogether>(row, end, xs, last, whole, rest, sums);
      for (u64 i = 0; i < together; ++i, ++r) {
        float totals[kLanes];
        add_lanes(sums[i], totals);
        for (u64 k = 0; k < kLanes; ++k) {
          float total = totals[k] + bias[k];
          totals[k] = rectify && total < 0 ? 0.0f : total;  // a NaN stays NaN
        }
        std::memcpy(y + r * out + o, totals, n * sizeof(float));
      }
    }
  }
}

// c[r, n] = sum over k of a[r a_row + k a_step] b[k b_step + n], added to what c holds if `add`. Each sum goes in the order
// of k, so it depends neither on the other rows nor on the other columns.
struct Factors {
  const float *a, *b;
  u64 a_row, a_step, b_step, steps;
};

template <class V, u64 kRows, u64 kVectors>
MOTET_INLINE void tile(const Factors& f, u64 row, u64 column, u64 columns, float* c, u64 c_row, bool add) {
  constexpr u64 kWidth = sizeof(V) / sizeof(float);
  V sums[kRows][kVectors] = {};
  const float *a = f.a + row * f.a_row, *b = f.b + column;
  c += row * c_row + column;
  // Only a tile of one vector may have fewer columns than numbers.
  const bool whole = kVectors > 1 || columns == kWidth;
  auto get = [&](V& to, const float* from) __attribute__((always_inline)) {
    if (whole) std::memcpy(&to, from, sizeof to);
    else std::memcpy(&to, from, columns * sizeof(float));
  };
  if (add)
#pragma GCC unroll 8
    for (u64 r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (u64 v = 0; v < kVectors; ++v) get(sums[r][v], c + r * c_row + v * kWidth);
  for (u64 k = 0; k < f.steps; ++k, a += f.a_step, b += f.b_step) {
    V held[kVectors] = {};
#pragma GCC unroll 8
    for (u64 v = 0; v < kVectors; ++v) get(held[v], b + v * kWidth);
#pragma GCC unroll 8
    for (u64 r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (u64 v = 0; v < kVectors; ++v) sums[r][v] += held[v] * a[r * f.a_row];
  }
#pragma GCC unroll 8
  for (u64 r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (u64 v = 0; v < kVectors; ++v) {
      if (whole) std::memcpy(c + r * c_row + v * kWidth, &sums[r][v], sizeof(V));
      else std::memcpy(c + r * c_row, &sums[r][v], columns * sizeof(float));
    }
}

template <class V, u64 kTogether, u64 kVectors>
MOTET_INLINE void product(const Factors& f, float* c, u64 c_row, u64 rows, u64 columns, bool add) {
  constexpr u64 kWidth = sizeof(V) / sizeof(float);
  for (u64 n = 0; n < columns;) {
    const bool wide = columns - n >= kVectors * kWidth;
    const u64 here = wide ? kVectors * kWidth : std::min(columns - n, kWidth);
    u64 r = 0;
    for (; r + kTogether <= rows; r += kTogether) {
      if (wide) tile<V, kTogether, kVectors>(f, r, n, here, c, c_row, add);
      else tile<V, kTogether, 1>(f, r, n, here, c, c_row, add);
    }
    for (; r < rows; ++r) {
      if (wide) tile<V, 1, kVectors>(f, r, n, here, c, c_row, add);
      else tile<V, 1, 1>(f, r, n, here, c, c_row, add);
    }
    n += here;
  }
}

// The kernels as compiled for one kind of processor.
struct Variant {
  const char* name;
  void (*layer)(const float* w, const float* b, u64 in, u64 out, const float* x, float* y, u64 rows, bool rectify);
  void (*product)(const Factors& f, float* c, u64 c_row, u64 rows, u64 columns, bool add);
  GatesForward gru_forward, lstm_forward;
  GatesBackward gru_backward, lstm_backward;
};

// Two of them give one result up to rounding: they may add products in one instruction, or in two.
#define MOTET_KERNELS(name, target, V, sums, together, tile_rows, tile_vectors)                                               \
  target inline void layer_##name(const float* w, const float* b, u64 in, u64 out, const float* x, float* y, u64 rows,      \
                                  bool rectify) {                                                                           \
    layer<V, sums, together>(w, b, in, out, x, y, rows, rectify);                                                           \
  }                                                                                                                         \
  target inline void product_##name(const Factors& f, float* c, u64 c_row, u64 rows, u64 columns, bool add) {               \
    product<V, tile_rows, tile_vectors>(f, c, c_row, rows, columns, add);                                                   \
  }                                                                                                                         \
  target inline void gru_forward_##name(const float* x, const float* y, float* h, float* c, float* kept, u64 size) {        \
    gru_forward(x, y, h, c, kept, size);                                                                                    \
  }                                                                                                                         \
  target inline void lstm_forward_##name(const float* x, const float* y, float* h, float* c, float* kept, u64 size) {       \
    lstm_forward(x, y, h, c, kept, size);                                                                                   \
  }                                                                                                                         \
  target inline void gru_backward_##name(const float* grad, float* kept, float* dh, float* dc, u64 size) {                  \
    gru_backward(grad, kept, dh, dc, size);                                                                                 \
  }                                                                                                                         \
  target inline void lstm_backward_##name(const float* grad, float* kept, float* dh, float* dc, u64 size) {                 \
    lstm_backward(grad, kept, dh, dc, size);                                                                                \
  }                                                                                                                         \
  constexpr Variant k_##name = {#name,             layer_##name,      product_##name,    gru_forward_##name,                \
                                lstm_forward_##name, gru_backward_##name, lstm_backward_##name};
#ifdef MOTET_X86_CLONES
MOTET_KERNELS(baseline, , Floats4, 2, 1, 2, 4)
MOTET_KERNELS(avx2, __attribute__((target("avx2,fma"))), Floats8, 4, 2, 4, 2)
MOTET_KERNELS(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,fma"))), Floats16, 16, 4, 4, 4)
#else
MOTET_KERNELS(baseline, , Floats4, 4, 2, 4, 4)
#endif
#undef MOTET_KERNELS

// The variants that this machine can run, the fastest last.
inline std::vector<Variant> variants() {
  std::vector<Variant> all{k_baseline};
#ifdef MOTET_X86_CLONES
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(k_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    all.push_back(k_avx512);
#endif
  return all;
}
}  // namespace kernel
}  // namespace motet
