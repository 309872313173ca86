// A lane: a ring of rows with one writer. Row numbers start at 0 and never wrap around; row i lies in place i % capacity.
//
// Writing:  reserve (never decreases) -> rows -> head.   Reading:  head -> rows -> reserve: row i was intact if
// i >= reserve - capacity. So a writer that dies at any point loses at most the rows that it was writing, and a reader,
// however slow, detects every row that was overwritten while it read.
//
// A row is: meta word | leaves (aligned) | checksum (only in checked lanes). The transition that starts at row i ends in
// row i + 1, which holds the next observation; the last observation of an episode has a separate row (kFinal).
#pragma once
#include "core/bell.hpp"

namespace motet {

enum Flag : u64 {
  kBegin = 1,       // first row of a segment: of an episode, or of the rows that a restarted writer appends
  kTerminated = 2,  // the transition that starts here terminated the episode: no bootstrapping
  kTruncated = 4,   // the transition that starts here truncated the episode: bootstrap from the final row's observation
  kFinal = 8,       // holds the last observation of an episode; no transition starts here
};
constexpr int kVersionShift = 8;  // meta word: version of the policy that acted << 8 | flags

struct alignas(kLine) Lane {
  static constexpr u64 kMagic = 0x31454e414c5f5f4dull;  // "M__LANE1"
  u64 magic, capacity, row_bytes, spec_hash;
  u64 checked;  // each row ends with a checksum
  u64 once;     // the writer waits instead of overwriting rows that the reader has not released
  u8 pad0[kLine - 48];
  // The writer's words.
  alignas(kLine) std::atomic<u64> reserve;  // number of rows begun
  std::atomic<u64> head;                    // number of complete rows
  std::atomic<u64> incarnation;             // raised by each writer that takes over
  std::atomic<u64> broken;                  // segments that broke off without an end
  std::atomic<u64> broken_at;               // head when the last broken segment was counted, so that it counts once
  std::atomic<u64> waits, waited_ns;        // how often and how long the writer waited for room
  std::atomic<u64> finals;                  // final rows; stored after the head, so that a death loses one at most

  // The reader's words.
  alignas(kLine) std::atomic<u64> released;  // rows with smaller numbers may be overwritten (used if `once`)
  std::atomic<u64> taken;                    // rows with smaller numbers were returned; stored before `released`; a
                                             // restarted reader continues here
  u8 pad2[kLine - 16];
  Bell room;  // rung by the reader when it releases rows

  // Check for impossible sizes first: a product that wraps around would pass every later check.
  static bool possible(u64 capacity, u64 row_bytes) { return row_bytes && capacity <= kMost / row_bytes; }
  static u64 bytes(u64 capacity, u64 row_bytes) { return sizeof(Lane) + round_up(capacity * row_bytes, kLine); }
  // Inner loops increment the place, because a division per row would cost more than copying a small row.
  u8* at(u64 place) { return reinterpret_cast<u8*>(this) + sizeof(Lane) + place * row_bytes; }
  u64 place(u64 row) const { return row % capacity; }
  u64 after(u64 place) const { return place + 1 == capacity ? 0 : place + 1; }
  u64 before(u64 place) const { return place ? place - 1 : capacity - 1; }
  u64 distance(u64 from, u64 to) const { return to >= from ? to - from : to + capacity - from; }
  u64 meta(u64 place) { return load_racy<u64>(at(place)); }

  void format(u64 rows, u64 bytes_per_row, u64 hash, bool check, bool consume_once) {
    std::memset(static_cast<void*>(this), 0, sizeof(Lane));
    capacity = rows;
    row_bytes = bytes_per_row;
    spec_hash = hash;
    checked = check;
    once = consume_once;
    magic = kMagic;
  }

  // ---- writer
  u64 begin_append(u64 n) {
    u64 h = head.load(std::memory_order_relaxed), r = reserve.load(std::memory_order_relaxed);
    if (h + n > r) reserve.store(h + n, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    return h;
  }
  void end_append(u64 first, u64 n) { head.store(first + n, std::memory_order_release); }
  // Prefetches the row after next while the caller does other work, because a ring is too large for the cache. This
  // happens in two halves, one after the rows of an append and one before those of the next: a core can have few requests
  // in flight, and stalls when it has to wait for a free one.
  void prefetch_for_write(u64 place, bool second_half) {
    constexpr u64 kMostBytes = 4096;
    const u8* p = at(place);
    const u64 bytes = row_bytes < kMostBytes ? row_bytes : kMostBytes, half = round_up(bytes / 2, kLine);
    for (u64 b = second_half ? half : 0, end = second_half ? bytes : half; b < end; b += kLine) __builtin_prefetch(p + b, 1);
  }
  bool has_room(u64 n) const {
    return !once || head.load(std::memory_order_relaxed) + n <= released.load(std::memory_order_acquire) + capacity;
  }
  // Counts a broken segment: the last row has no end, and the next row is the first of a new segment.
  void count_broken() {
    u64 h = head.load(std::memory_order_relaxed);
    if (h == 0 || broken_at.load(std::memory_order_relaxed) == h || meta(place(h - 1)) & kFinal) return;
    broken_at.store(h, std::memory_order_relaxed);
    broken.fetch_add(1, std::memory_order_relaxed);
  }
  void seal(u64 row, u8* bytes) {
    if (!checked) return;
    u64 sum = row_sum(bytes, row);
    copy_racy(bytes + row_bytes - 8, &sum, 8);
  }

  // ---- reader
  u64 tail() const {  // the oldest row that is intact now
    u64 r = reserve.load(std::memory_order_relaxed);
    return r > capacity ? r - capacity : 0;
  }
  u64 row_sum(const u8* bytes, u64 row) const { return checksum(bytes, row_bytes - 8, row + 1); }
  // Whether a transition starts here. The next row must be complete.
  bool startable(u64 place) { return !(meta(place) & kFinal) && !(meta(after(place)) & kBegin); }
};
}  // namespace motet
