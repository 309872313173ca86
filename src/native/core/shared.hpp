// The base of every structure in shared memory: lock-free words, ordered copies, a clock, a checksum.
//
// Structures lie in the caller's memory, hold offsets instead of pointers (each process maps them at another address),
// and are written by one process only. Readers copy first and verify afterwards.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace motet {
using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

static_assert(std::atomic<u32>::is_always_lock_free && std::atomic<u64>::is_always_lock_free,
              "motet needs lock-free 32 and 64 bit atomics: a lock inside them would be private to each process");

constexpr u64 kLine = 64;  // a cache line; also the alignment of every structure and array
constexpr u64 kMost = u64(1) << 62;  // maximum size of a structure, so that sums of a few sizes cannot wrap around
constexpr u64 round_up(u64 n, u64 to) { return (n + to - 1) / to * to; }

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

inline i64 now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return i64(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// ---- Copies that may race with a writer.
//
// A sequence-checked read copies bytes that a writer may be changing, and discards the copy if it did. In C++ this is a
// data race unless every access is atomic. Word by word atomics cost several times a memcpy, so release builds use
// memcpy between fences (which compilers keep in place). Thread-sanitizer builds use relaxed atomics, so that the
// sanitizer checks the protocol itself and nothing is suppressed.
#if defined(__SANITIZE_THREAD__)
#define MOTET_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOTET_TSAN 1
#endif
#endif

inline void copy_racy(void* to, const void* from, u64 n) {
#ifdef MOTET_TSAN
  u8* d = static_cast<u8*>(to);
  const u8* s = static_cast<const u8*>(from);
  for (u64 i = 0; i < n; ++i) __atomic_store_n(d + i, __atomic_load_n(s + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
#else
  switch (n) {  // sizes of scalars are copied inline, without a call of memcpy
    case 1: std::memcpy(to, from, 1); return;
    case 4: std::memcpy(to, from, 4); return;
    case 8: std::memcpy(to, from, 8); return;
    default: std::memcpy(to, from, n);
  }
#endif
}

// copy_racy of a small row without a call: n is 16 * Pieces bytes or up to 15 fewer; some bytes may be copied twice.
template <u64 Pieces>
inline void copy_pieces(u8* to, const u8* from, u64 n) {
#ifdef MOTET_TSAN
  copy_racy(to, from, n);
#else
  for (u64 i = 0; i + 1 < Pieces; ++i) std::memcpy(to + 16 * i, from + 16 * i, 16);
  std::memcpy(to + n - 16, from + n - 16, 16);
#endif
}

inline void zero_racy(void* to, u64 n) {
#ifdef MOTET_TSAN
  for (u64 i = 0; i < n; ++i) __atomic_store_n(static_cast<u8*>(to) + i, u8(0), __ATOMIC_RELAXED);
#else
  std::memset(to, 0, n);
#endif
}

template <class T>
T load_racy(const void* from) {
  T v;
  copy_racy(&v, from, sizeof v);
  return v;
}

// A 64-bit checksum for the debug mode. It is fast, and depends on the order of the bytes.
inline u64 checksum(const void* bytes, u64 n, u64 h = 0x9e3779b97f4a7c15ull) {
  const u8* p = static_cast<const u8*>(bytes);
  for (; n >= 8; n -= 8, p += 8) {
    h = (h ^ load_racy<u64>(p)) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  for (; n; --n, ++p) h = (h ^ load_racy<u8>(p)) * 0x100000001b3ull;
  return h ^ (h >> 29);
}

// xoshiro256**: the reader's random stream, saved and restored as four words.
struct Rng {
  u64 s[4];
  static u64 rotl(u64 x, int k) { return (x << k) | (x >> (64 - k)); }
  u64 next() {
    u64 r = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return r;
  }
  // A uniform integer in [0, n), without bias (Lemire's rejection method).
  u64 below(u64 n) {
    for (;;) {
      unsigned __int128 m = (unsigned __int128)next() * n;
      u64 low = u64(m);
      if (low >= n || low >= (0 - n) % n) return u64(m >> 64);
    }
  }
  double unit() { return double(next() >> 11) * 0x1.0p-53; }
};
}  // namespace motet
