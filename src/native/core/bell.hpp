// A word that processes can wait on. Ringing never waits; a waiter that dies or is stopped does not affect others.
#pragma once
#include <cerrno>

#include "core/shared.hpp"
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
// Public since macOS 14.4. The symbols are weak: on older systems they are null, and waiters poll.
extern "C" {
int os_sync_wait_on_address_with_timeout(void*, std::uint64_t, std::size_t, std::uint32_t, std::uint32_t, std::uint64_t)
    __attribute__((weak_import));
int os_sync_wake_by_address_all(void*, std::size_t, std::uint32_t) __attribute__((weak_import));
}
#endif

namespace motet {

// Sleeps while *word == expect, at most ns. May return early for any reason: callers check the word again.
inline void word_sleep(std::atomic<u32>* word, u32 expect, i64 ns) {
#if defined(__linux__)
  timespec t{time_t(ns / 1000000000), long(ns % 1000000000)};
  syscall(SYS_futex, reinterpret_cast<u32*>(word), FUTEX_WAIT, expect, &t, nullptr, 0);
#elif defined(__APPLE__)
  if (os_sync_wait_on_address_with_timeout) {
    constexpr u32 kShared = 1, kAbsoluteTime = 32;
    os_sync_wait_on_address_with_timeout(word, expect, 4, kShared, kAbsoluteTime, u64(ns));
    return;
  }
  timespec t{0, long(ns < 50000 ? ns : 50000)};
  nanosleep(&t, nullptr);
#else
  (void)word, (void)expect;
  timespec t{0, long(ns < 50000 ? ns : 50000)};
  nanosleep(&t, nullptr);
#endif
}

inline void word_wake(std::atomic<u32>* word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<u32*>(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#elif defined(__APPLE__)
  if (os_sync_wake_by_address_all) os_sync_wake_by_address_all(word, 4, 1);
#else
  (void)word;
#endif
}

// How long to spin before sleeping, which each waiter adapts separately. A spin that ends in sleep was wasted (the peer
// is slow, or runs on the same core), so the next 1, 3, 7 ... 1023 waits do not spin; a spin that succeeds lowers this
// penalty. The first spin after such a pause must last longer than a wait in which the peer sleeps too: otherwise two
// peers that both sleep would never detect that they could both spin. How long that takes differs between machines (to
// wake an idle core takes 5 to 150 us), so it is learned: twice the median of the waits that ended in sleep. If these
// are longer than kMostRetryNs, the peer is slow, a longer spin would not help, and the retry is short.
struct Spin {
  static constexpr i64 kBudgetNs = 20000, kRetryNs = 100000, kMostRetryNs = 1000000;
  u32 skip = 0, penalty = 0;
  i64 typical = kRetryNs / 2;  // estimate of the median wait, within bounds
  i64 retry() const { return typical >= kMostRetryNs / 2 ? kRetryNs : 2 * typical; }
  i64 budget() {
    if (skip == 0) return penalty ? retry() : kBudgetNs;
    --skip;
    return 0;
  }
  // Called after a sleep, with the duration of the whole wait. The estimate changes by a fixed share of itself, so it
  // follows the median: rare long waits do not move it far.
  void slept(i64 ns) {
    typical += ns > typical ? typical / 8 : -typical / 8;
    typical = typical < kRetryNs / 2 ? kRetryNs / 2 : typical > kMostRetryNs / 2 ? kMostRetryNs / 2 : typical;
  }
  void learn(bool slept) {
    if (slept) {
      penalty = penalty >= 1023 ? 1023 : penalty * 2 + 1;
      skip = penalty;
    } else {
      penalty >>= 2;
    }
  }
};

struct alignas(kLine) Bell {
  std::atomic<u32> count;    // rings so far
  // Number of waiters; at 0 ring() makes no system call. A killed waiter leaves it too high, which is harmless.
  std::atomic<u32> waiters;
  u8 pad[kLine - 8];

  // Maximum duration of one sleep: even if a hostile peer writes a wrong number of waiters, no waiter blocks for ever.
  static constexpr i64 kSliceNs = 100000000;

  void ring() {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (waiters.load(std::memory_order_seq_cst)) word_wake(&count);
  }
  u32 read() const { return count.load(std::memory_order_acquire); }

  // Spins, then sleeps for one slice at most. Returns whether the count is no longer `seen`.
  bool wait_slice(u32 seen, i64 deadline_ns, Spin& spin) {
    if (read() != seen) return true;
    i64 budget = spin.budget(), now = now_ns();
    const i64 begun = now;
    if (budget) {
      i64 end = now + budget < deadline_ns ? now + budget : deadline_ns;
      do {
        for (int i = 0; i < 16; ++i) {
          cpu_relax();
          if (read() != seen) {
            spin.learn(false);
            return true;
          }
        }
        now = now_ns();
      } while (now < end);
      spin.learn(true);
    }
    i64 left = deadline_ns - now;
    if (left <= 0) return false;
    waiters.fetch_add(1, std::memory_order_seq_cst);
    if (count.load(std::memory_order_seq_cst) == seen) word_sleep(&count, seen, left < kSliceNs ? left : kSliceNs);
    waiters.fetch_sub(1, std::memory_order_seq_cst);
    spin.slept(now_ns() - begun);
    return read() != seen;
  }
};
static_assert(sizeof(Bell) == kLine, "a bell is one cache line");
}  // namespace motet
