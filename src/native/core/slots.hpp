// Publication: one writer, any number of readers, one flat payload per version. Neither side ever waits.
//
// Each slot has a sequence number, which is odd while the slot is written, and which also protects the version stored in
// the slot. The writer fills the slots in turn. A reader copies the newest slot and reads the sequence number again: if
// it has changed, the reader discards the copy.
#pragma once
#include "core/bell.hpp"

namespace motet {

struct alignas(kLine) Slots {
  static constexpr u64 kMagic = 0x3153544f4c535f4dull;  // "M_SLOTS1"
  u64 magic, n_slots, payload_bytes, stride, checked;
  u8 pad0[kLine - 40];
  alignas(kLine) std::atomic<u64> published;  // completed publications; the newest is in slot (published - 1) % n_slots
  std::atomic<u64> newest;                    // newest version: only a hint, to show lag; the slot has the exact number
  std::atomic<u64> incarnation;
  u8 pad1[kLine - 24];
  Bell bell;

  struct alignas(kLine) Slot {
    std::atomic<u64> sequence;
    u64 version, sum;
    u8 pad[kLine - 24];
    u8* payload() { return reinterpret_cast<u8*>(this) + sizeof(Slot); }
  };

  static bool possible(u64 payload, u64 n) { return n >= 1 && n <= 64 && payload <= kMost / n; }
  static u64 slot_stride(u64 payload) { return sizeof(Slot) + round_up(payload, kLine); }
  static u64 bytes(u64 payload, u64 n) { return sizeof(Slots) + n * slot_stride(payload); }
  Slot* slot(u64 i) { return reinterpret_cast<Slot*>(reinterpret_cast<u8*>(this) + sizeof(Slots) + i * stride); }

  void format(u64 payload, u64 n, bool check) {
    std::memset(static_cast<void*>(this), 0, sizeof(Slots));
    n_slots = n;
    payload_bytes = payload;
    stride = slot_stride(payload);
    checked = check;
    for (u64 i = 0; i < n; ++i) std::memset(static_cast<void*>(slot(i)), 0, sizeof(Slot));
    magic = kMagic;
  }

  // For a writer that takes over: the highest version that any reader may have read. The writer before it may have died
  // after completing a slot but before storing `newest` and `published`.
  u64 highest_version() {
    u64 v = newest.load(std::memory_order_relaxed);
    for (u64 i = 0; i < n_slots; ++i)
      if (Slot* s = slot(i); !(s->sequence.load(std::memory_order_relaxed) & 1) && load_racy<u64>(&s->version) > v)
        v = load_racy<u64>(&s->version);
    return v;
  }

  // For the writer: the version that readers find as the newest; 0 if there is none. A writer that died after completing
  // a slot may not have announced it, and the next publication fills the same slot.
  u64 announced() {
    u64 n = published.load(std::memory_order_relaxed);
    return n ? load_racy<u64>(&slot((n - 1) % n_slots)->version) : 0;
  }

  // The payload is given in two parts (header and weights), so that they need not be copied together first.
  u64 publish(const void* head, u64 head_bytes, const void* body, u64 body_offset, u64 body_bytes, u64 version) {
    u64 n = published.load(std::memory_order_relaxed);
    Slot* s = slot(n % n_slots);
    u64 even = s->sequence.load(std::memory_order_relaxed) & ~u64(1);  // it is odd if a writer died while writing
    s->sequence.store(even + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    copy_racy(s->payload(), head, head_bytes);
    copy_racy(s->payload() + body_offset, body, body_bytes);
    copy_racy(&s->version, &version, 8);
    if (checked) {
      u64 sum = payload_sum(s->payload(), head_bytes, body_offset, body_bytes);
      copy_racy(&s->sum, &sum, 8);
    }
    s->sequence.store(even + 2, std::memory_order_release);
    newest.store(version, std::memory_order_relaxed);
    published.store(n + 1, std::memory_order_release);
    bell.ring();
    return n + 1;
  }

  static u64 payload_sum(const u8* p, u64 head_bytes, u64 body_offset, u64 body_bytes) {
    return checksum(p + body_offset, body_bytes, checksum(p, head_bytes));
  }

  enum class Read { kSame, kNew, kMetWrite, kCorrupt };

  // Copies the newest payload if it is newer than publication `have`. Unless the result is kNew, `to` is undefined.
  Read read(u8* to, u64 head_bytes, u64 body_offset, u64 body_bytes, u64* have, u64* version) {
    u64 n = published.load(std::memory_order_acquire);
    if (n == *have) return Read::kSame;
    constexpr int kTries = 3;  // with two slots a second try almost always succeeds; more tries would amount to waiting
    for (int attempt = 0; attempt < kTries; ++attempt, n = published.load(std::memory_order_acquire)) {
      Read got = copy(slot((n - 1) % n_slots), to, head_bytes, body_offset, body_bytes, version);
      if (got == Read::kMetWrite) continue;
      *have = n;
      return got;
    }
    return Read::kMetWrite;
  }

  // Copies the payload with a given version. kSame: no slot has it.
  Read read_version(u8* to, u64 head_bytes, u64 body_offset, u64 body_bytes, u64 version) {
    for (u64 i = 0; i < n_slots; ++i) {
      u64 found;
      if (load_racy<u64>(&slot(i)->version) != version) continue;
      Read got = copy(slot(i), to, head_bytes, body_offset, body_bytes, &found);
      if (got != Read::kMetWrite && found == version) return got;
    }
    return Read::kSame;
  }

  Read copy(Slot* s, u8* to, u64 head_bytes, u64 body_offset, u64 body_bytes, u64* version) {
    u64 before = s->sequence.load(std::memory_order_acquire);
    if (before & 1) return Read::kMetWrite;
    copy_racy(to, s->payload(), head_bytes);
    copy_racy(to + body_offset, s->payload() + body_offset, body_bytes);
    u64 v = load_racy<u64>(&s->version), sum = load_racy<u64>(&s->sum);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (s->sequence.load(std::memory_order_relaxed) != before) return Read::kMetWrite;
    *version = v;
    return checked && sum != payload_sum(to, head_bytes, body_offset, body_bytes) ? Read::kCorrupt : Read::kNew;
  }
};
}  // namespace motet
