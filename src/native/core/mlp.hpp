// Forward pass of a fully connected network on torch's weight layout, for acting: few rows, low latency, no copies.
//
// Each output of each row is one dot product, summed in an order that does not depend on the batch: 16 running sums over
// the inputs, then a tree over the 16. So a row's result depends neither on the other rows nor on their number. Outputs
// are computed in blocks of 16, whose weights stay in the first-level cache for all rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/shared.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define MOTET_X86_CLONES 1
#endif
#define MOTET_INLINE inline __attribute__((always_inline))

namespace motet {

constexpr u64 kLanes = 16;
typedef float Floats4 __attribute__((vector_size(16)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats16 __attribute__((vector_size(64)));

typedef std::uint32_t Words16 __attribute__((vector_size(64)));

enum class Activation { relu, tanh };

struct Layer {
  u64 in, out, weight, bias;  // sizes, and where weight [out, in] and bias [out] begin in the flat vector
};

namespace kernel {

// For x >= 0: tanh x = t / (t + 2), where t = exp(2 x) - 1 = (2^f - 1) 2^k + (2^k - 1), k is an integer, |f| <= 1/2, and
// 2^f - 1 is a polynomial without a constant term. So it is precise near zero, and within a few units in the last place
// elsewhere. Beyond 9.5 the result is 1.
MOTET_INLINE void tanh16(float* at) {
  constexpr u32 kSign = 0x80000000u, kOne = 0x3f800000u;
  Words16 sign, bits;
  std::memcpy(&bits, at, sizeof bits);
  sign = bits & kSign;
  bits ^= sign;
  Floats16 x;
  std::memcpy(&x, &bits, sizeof x);
  const Floats16 zero = {}, most = zero + 9.5f;
  x = x > most ? most : x;
  const Floats16 whole = zero + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  Floats16 y = x * 2.885390082f, shifted = y + whole, u = (y - (shifted - whole)) * 0.6931471806f;
  Floats16 t = u * (1 / 5040.0f) + 1 / 720.0f;
  t = t * u + 1 / 120.0f;
  t = t * u + 1 / 24.0f;
  t = t * u + 1 / 6.0f;
  t = t * u + 0.5f;
  t = t * u * u + u;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + kOne;  // 2^k
  Floats16 power;
  std::memcpy(&power, &bits, sizeof power);
  t = t * power + (power - 1.0f);
  x = t / (t + 2.0f);
  std::memcpy(&bits, &x, sizeof bits);
  bits |= sign;
  std::memcpy(at, &bits, sizeof bits);
}
// The rest of an array is padded to a block, so that a result does not depend on the position in the array.
inline void tanh_all(float* at, u64 n) {
  for (; n >= kLanes; n -= kLanes, at += kLanes) tanh16(at);
  if (n == 0) return;
  float rest[kLanes] = {};
  std::copy_n(at, n, rest);
  tanh16(rest);
  std::copy_n(rest, n, at);
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define MOTET_SHUFFLE 1
#endif
#endif

// Adds the 16 sums of each of 16 outputs, given as vectors of any width, to 16 totals by the same tree: lane l adds lane
// l + 8, then l + 4, l + 2, l + 1.
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

// Sums of one block of 16 outputs for kRows rows, kAtOnce outputs at a time: a loaded weight is used for all rows. The
// order of a row's sums does not depend on kRows and kAtOnce.
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

using Function = void (*)(const float*, const float*, u64, u64, const float*, float*, u64, bool);

#define MOTET_LAYER(name, V, sums, together)                                                                                \
  inline void name(const float* w, const float* b, u64 in, u64 out, const float* x, float* y, u64 rows, bool rectify) {     \
    layer<V, sums, together>(w, b, in, out, x, y, rows, rectify);                                                           \
  }
#ifdef MOTET_X86_CLONES
MOTET_LAYER(layer_baseline, Floats4, 2, 1)
__attribute__((target("avx2,fma"))) MOTET_LAYER(layer_avx2, Floats8, 4, 2)
__attribute__((target("avx512f,avx512dq,avx512vl,fma"))) MOTET_LAYER(layer_avx512, Floats16, 16, 4)
#else
MOTET_LAYER(layer_baseline, Floats4, 4, 2)
#endif
#undef MOTET_LAYER

// The variants that this machine can run, the fastest last.
inline std::vector<std::pair<const char*, Function>> variants() {
  std::vector<std::pair<const char*, Function>> all{{"baseline", layer_baseline}};
#ifdef MOTET_X86_CLONES
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.emplace_back("avx2", layer_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    all.emplace_back("avx512", layer_avx512);
#endif
  return all;
}
}  // namespace kernel

class Mlp {
 public:
  Mlp(std::vector<Layer> layers, Activation activation, bool activate_last, float scale, kernel::Function function)
      : layers_(std::move(layers)), activation_(activation), activate_last_(activate_last), scale_(scale), layer_(function) {
    for (const Layer& l : layers_) {
      widest_ = std::max(widest_, std::max(l.in, l.out));
      weights_ += l.in * l.out;
      end_ = std::max(end_, std::max(l.weight + l.in * l.out, l.bias + l.out));
    }
  }
  u64 in() const { return layers_.front().in; }
  u64 out() const { return layers_.back().out; }
  u64 weights() const { return weights_; }  // multiplications for one row
  u64 end() const { return end_; }          // minimum number of values in the flat vector

  // x: [rows, in], as float or as bytes; y: [rows, out].
  template <class T>
  void forward(const float* flat, const T* x, float* y, u64 rows) const {
    constexpr u64 kRows = 16;
    const u64 chunk = std::min(rows, kRows);
    std::unique_ptr<float[]> here(new float[chunk * widest_]), there(new float[chunk * widest_]);
    for (u64 first = 0; first < rows; first += chunk) {
      const u64 n = std::min(chunk, rows - first);
      const float* input = converted(x + first * in(), n * in(), here.get());
      for (u64 l = 0; l < layers_.size(); ++l) {
        const Layer& s = layers_[l];
        const bool last = l + 1 == layers_.size(), activate = !last || activate_last_;
        float* output = last ? y + first * out() : input == here.get() ? there.get() : here.get();
        layer_(flat + s.weight, flat + s.bias, s.in, s.out, input, output, n,
               activate && activation_ == Activation::relu);
        if (activate && activation_ == Activation::tanh) kernel::tanh_all(output, n * s.out);
        input = output;
      }
    }
  }

 private:
  const float* converted(const float* x, u64 n, float* room) const {
    if (scale_ == 1.0f) return x;
    for (u64 i = 0; i < n; ++i) room[i] = x[i] * scale_;
    return room;
  }
  const float* converted(const u8* x, u64 n, float* room) const {
    for (u64 i = 0; i < n; ++i) room[i] = float(x[i]) * scale_;
    return room;
  }

  std::vector<Layer> layers_;
  Activation activation_;
  bool activate_last_;
  float scale_;
  kernel::Function layer_;
  u64 widest_ = 0, weights_ = 0, end_ = 0;
};

// Epsilon-greedy with two uniform draws in [0, 1) for each row, used or not, so that the random stream does not depend on
// the values. Greedy without draws; among equal values the first one is chosen. Returns the first row whose mask allows
// no action, or -1.
inline i64 choose(const float* values, const u8* mask, const double* draws, double epsilon, i64 first_action, u64 rows, u64 n,
                  i64* actions) {
  for (u64 r = 0; r < rows; ++r) {
    const float* v = values + r * n;
    const u8* allowed = mask ? mask + r * n : nullptr;
    u64 count = n;
    if (allowed) {
      count = 0;
      for (u64 a = 0; a < n; ++a) count += allowed[a] != 0;
      if (!count) return i64(r);
    }
    u64 pick = n;
    if (draws && draws[2 * r] < epsilon) {
      u64 skip = std::min(u64(draws[2 * r + 1] * double(count)), count - 1);
      for (u64 a = 0; a < n && pick == n; ++a)
        if ((!allowed || allowed[a]) && skip-- == 0) pick = a;
    } else {
      for (u64 a = 0; a < n; ++a)
        if ((!allowed || allowed[a]) && (pick == n || v[a] > v[pick])) pick = a;
    }
    actions[r] = i64(pick) + first_action;
  }
  return -1;
}
}  // namespace motet
