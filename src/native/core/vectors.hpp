// Vectors of float32 that every compiler lowers to the registers of the machine, and the functions of them.
#pragma once
#include <cstring>

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

namespace kernel {

// For x >= 0: tanh x = t / (t + 2), where t = exp(2 x) - 1 = (2^f - 1) 2^k + (2^k - 1), k is an integer, |f| <= 1/2, and
// 2^f - 1 is a polynomial without a constant term. So it is precise near zero, and within a few units in the last place
// elsewhere. Beyond 9.5 the result is 1.
MOTET_INLINE void tanh16(Floats16& x) {
  constexpr u32 kSign = 0x80000000u, kOne = 0x3f800000u;
  Words16 sign, bits;
  std::memcpy(&bits, &x, sizeof bits);
  sign = bits & kSign;
  bits ^= sign;
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
  std::memcpy(&x, &bits, sizeof x);
}
MOTET_INLINE void sigmoid16(Floats16& x) {
  x = x * 0.5f;
  tanh16(x);
  x = x * 0.5f + 0.5f;
}

// Up to 16 adjacent numbers; the rest of the vector is zero.
MOTET_INLINE void load(Floats16& x, const float* from, u64 n) {
  if (n == kLanes) {
    std::memcpy(&x, from, sizeof x);
  } else {
    x = Floats16{};
    std::memcpy(&x, from, n * sizeof(float));
  }
}
MOTET_INLINE void store(const Floats16& x, float* to, u64 n) {
  if (n == kLanes) std::memcpy(to, &x, sizeof x);
  else std::memcpy(to, &x, n * sizeof(float));
}

// The rest of an array is padded to a block, so that a result does not depend on the position in the array.
inline void tanh_all(float* at, u64 n) {
  for (u64 i = 0; i < n; i += kLanes) {
    const u64 here = n - i < kLanes ? n - i : kLanes;
    Floats16 x;
    load(x, at + i, here);
    tanh16(x);
    store(x, at + i, here);
  }
}
}  // namespace kernel

// Returns n inputs as float32, times a scale: the given ones, or a copy in `room`.
inline const float* scaled(const float* x, u64 n, float scale, float* room) {
  if (scale == 1.0f) return x;
  for (u64 i = 0; i < n; ++i) room[i] = x[i] * scale;
  return room;
}
inline const float* scaled(const u8* x, u64 n, float scale, float* room) {
  for (u64 i = 0; i < n; ++i) room[i] = float(x[i]) * scale;
  return room;
}
}  // namespace motet
