// The core's structures between threads, for the thread sanitizer: whoever reads must never see a mix of two writes, and
// the sanitizer must find no access that the protocol leaves unordered. Exits with 1 and a line at the first wrong read.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/reader.hpp"
#include "core/slots.hpp"

using namespace motet;

namespace {
[[noreturn]] void fail(const char* what, u64 a, u64 b) {
  std::printf("FAILED: %s (%llu, %llu)\n", what, static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
  std::exit(1);
}

struct Memory {  // aligned like a shared segment
  void* bytes;
  explicit Memory(u64 n) : bytes(std::aligned_alloc(kLine, round_up(n, kLine))) { std::memset(bytes, 0xff, round_up(n, kLine)); }
  ~Memory() { std::free(bytes); }
  template <class T>
  T* as() { return static_cast<T*>(bytes); }
};

// A row holds its own number in every word.
constexpr u64 kWords = 24, kRowBytes = 8 + kWords * 8;

void write_row(Lane* lane, u64 row, u64 meta) {
  u8* to = lane->at(lane->place(row));
  copy_racy(to, &meta, 8);
  for (u64 w = 0; w < kWords; ++w) copy_racy(to + 8 + 8 * w, &row, 8);
  lane->seal(row, to);
}

void append(Lane* lane, u64 n, bool begin) {
  u64 first = lane->begin_append(n);
  for (u64 i = 0; i < n; ++i) write_row(lane, first + i, i == 0 && begin ? u64(kBegin) : 0);
  lane->end_append(first, n);
}

struct Sink {  // arrays that a batch is gathered into
  std::vector<u64> here, there, version, row;  // sequences: `there` is not used, and `row` by the first rows alone
  std::vector<float> reward, discount, weight;
  std::vector<u32> lane;
  std::vector<u8> valid, ahead;
  Target target;
  Sink(u64 rows, u64 length, u64 n_step = 1) {
    u64 steps = rows * (length ? length : 1), more = length ? rows * (length + n_step) : rows;
    here.resize(more * kWords);
    there.resize(rows * kWords);
    version.resize(steps), row.resize(steps), reward.resize(steps), discount.resize(steps), weight.resize(steps);
    lane.resize(steps), valid.resize(steps), ahead.resize(steps);
    target.rows = rows;
    target.length = length;
    target.copies = {{reinterpret_cast<u8*>(here.data()), 8, kWords * 8, 1, length > 0}};
    if (!length) target.copies.push_back({reinterpret_cast<u8*>(there.data()), 8, kWords * 8, 1, true});
    target.reward = reward.data();
    target.discount = discount.data();
    target.weight = weight.data();
    target.version = version.data();
    target.row = row.data();
    target.lane = lane.data();
    target.valid = valid.data();
    target.ahead = ahead.data();
  }
};

void set_up(Reader& reader, Lane* lane, bool prioritised) {
  Reader::LaneState state{};
  state.lane = lane;
  state.partition = 0;
  reader.lanes.push_back(std::move(state));
  reader.partitions.emplace_back();
  reader.partitions[0].share = 1;
  reader.rules.reward_offset = 8;
  reader.rules.prioritised = prioritised;
  reader.rng = Rng{{1, 2, 3, 4}};
  reader.prepare();
}

void lane_sampled(bool prioritised, bool checked) {
  constexpr u64 kCapacity = 16, kBatch = 4;
  const u64 bytes = kRowBytes + (checked ? 8 : 0), appends = 15000;
  Memory memory(Lane::bytes(kCapacity, bytes));
  Lane* lane = memory.as<Lane>();
  lane->format(kCapacity, bytes, 1, checked, false);
  append(lane, 12, true);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (u64 i = 0; i < appends; ++i) append(lane, 1 + i % 3, i % 7 == 0);
    done.store(true);
  });
  Reader reader;
  set_up(reader, lane, prioritised);
  Sink sink(kBatch, 0);
  u64 batches = 0;
  while (!done.load()) {
    Draw d = reader.sample(sink.target, 0.5);
    if (d == Draw::kCorrupt) fail("a checksum of a row", reader.bad_lane, reader.bad_row);
    if (d != Draw::kOk) continue;
    ++batches;
    for (u64 i = 0; i < kBatch; ++i)
      for (u64 w = 0; w < kWords; ++w) {
        if (sink.here[i * kWords + w] != sink.row[i]) fail("a row is a mix", sink.here[i * kWords + w], sink.row[i]);
        if (sink.there[i * kWords + w] != sink.row[i] + 1) fail("a next row is a mix", sink.there[i * kWords + w], sink.row[i] + 1);
      }
  }
  writer.join();
  std::printf("lane, sampled%s%s: %llu batches, %llu redrawn\n", prioritised ? ", prioritised" : "", checked ? ", checked" : "",
              static_cast<unsigned long long>(batches), static_cast<unsigned long long>(reader.counters.redrawn));
}

void lane_sequences(bool prioritised, bool checked) {
  constexpr u64 kCapacity = 24, kBatch = 4, kLength = 5, kSteps = 2;
  const u64 bytes = kRowBytes + (checked ? 8 : 0), appends = 15000;
  Memory memory(Lane::bytes(kCapacity, bytes));
  Lane* lane = memory.as<Lane>();
  lane->format(kCapacity, bytes, 1, checked, false);
  append(lane, 20, true);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (u64 i = 0; i < appends; ++i) append(lane, 1 + i % 3, i % 7 == 0);
    done.store(true);
  });
  Reader reader;
  set_up(reader, lane, prioritised);
  reader.rules.length = kLength, reader.rules.burn_in = 1, reader.rules.n_step = kSteps;
  Sink sink(kBatch, kLength, kSteps);
  u64 batches = 0;
  while (!done.load()) {
    Draw d = reader.sample(sink.target, 0.5);
    if (d == Draw::kCorrupt) fail("a checksum of a row", reader.bad_lane, reader.bad_row);
    if (d != Draw::kOk) continue;
    ++batches;
    for (u64 i = 0; i < kBatch; ++i)
      for (u64 j = 0; j < kLength + kSteps; ++j)
        for (u64 w = 0; w < kWords; ++w) {
          u64 got = sink.here[(i * (kLength + kSteps) + j) * kWords + w];
          if (got != sink.row[i] + j) fail("a row of a sequence is a mix", got, sink.row[i] + j);
        }
  }
  writer.join();
  std::printf("lane, sequences%s%s: %llu batches, %llu redrawn\n", prioritised ? ", prioritised" : "", checked ? ", checked" : "",
              static_cast<unsigned long long>(batches), static_cast<unsigned long long>(reader.counters.redrawn));
}

void lane_consumed() {
  constexpr u64 kCapacity = 16, kLength = 3, kRows = 15000;
  Memory memory(Lane::bytes(kCapacity, kRowBytes));
  Lane* lane = memory.as<Lane>();
  lane->format(kCapacity, kRowBytes, 1, false, true);
  std::thread writer([&] {
    Spin spin;
    for (u64 i = 0; i < kRows; ++i) {
      while (!lane->has_room(1)) {
        u32 seen = lane->room.read();
        if (!lane->has_room(1)) lane->room.wait_slice(seen, now_ns() + 1000000000, spin);
      }
      append(lane, 1, i == 0);
    }
  });
  Reader reader;
  set_up(reader, lane, false);
  Sink sink(1, kLength);
  for (u64 expected = 0; expected + kLength < kRows;) {
    if (reader.take(sink.target) != Draw::kOk) {
      std::this_thread::yield();
      continue;
    }
    for (u64 i = 0; i <= kLength; ++i)
      for (u64 w = 0; w < kWords; ++w)
        if (sink.here[i * kWords + w] != expected + i) fail("a row out of turn", sink.here[i * kWords + w], expected + i);
    expected += kLength;
    reader.release();
  }
  writer.join();
  std::printf("lane, consumed once: %llu rows in order\n", static_cast<unsigned long long>(kRows));
}

void slots(u64 n_slots) {
  constexpr u64 kHead = 16, kOffset = 64, kBody = 512, kVersions = 20000;
  Memory memory(Slots::bytes(kOffset + kBody, n_slots));
  Slots* shared = memory.as<Slots>();
  shared->format(kOffset + kBody, n_slots, true);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    std::vector<u64> body(kBody / 8);
    for (u64 v = 1; v <= kVersions; ++v) {
      u64 head[2] = {v, ~v};
      std::fill(body.begin(), body.end(), v);
      shared->publish(head, kHead, body.data(), kOffset, kBody, v);
    }
    done.store(true);
  });
  u64 have = 0, version = 0, taken = 0, met = 0;
  Memory copy(kOffset + kBody);
  auto look = [&] {
    Slots::Read got = shared->read(copy.as<u8>(), kHead, kOffset, kBody, &have, &version);
    if (got == Slots::Read::kCorrupt) fail("a checksum of a version", have, version);
    met += got == Slots::Read::kMetWrite;
    if (got != Slots::Read::kNew) return;
    ++taken;
    const u64* head = copy.as<u64>();
    if (head[0] != version || head[1] != ~version) fail("a header of another version", head[0], version);
    for (u64 w = 0; w < kBody / 8; ++w)
      if (head[kOffset / 8 + w] != version) fail("weights of another version", head[kOffset / 8 + w], version);
  };
  while (!done.load()) look();
  writer.join();
  look();
  if (version != kVersions) fail("the last version was not read", version, kVersions);
  std::printf("%llu slots: %llu versions taken, %llu writes met\n", static_cast<unsigned long long>(n_slots),
              static_cast<unsigned long long>(taken), static_cast<unsigned long long>(met));
}

void bells() {
  constexpr u32 kRounds = 5000;
  Memory memory(2 * sizeof(Bell));
  std::memset(memory.bytes, 0, 2 * sizeof(Bell));
  Bell *ping = memory.as<Bell>(), *pong = ping + 1;
  u64 message = 0;  // plain memory, handed over by the bells alone
  auto wait = [](Bell* bell, u32 seen, Spin& spin) {
    i64 deadline = now_ns() + i64(60) * 1000000000;
    while (!bell->wait_slice(seen, deadline, spin))
      if (now_ns() > deadline) fail("a ring was lost", seen, bell->read());
  };
  std::thread answering([&] {
    Spin spin;
    for (u32 i = 0; i < kRounds; ++i) {
      wait(ping, i, spin);
      ++message;
      pong->ring();
    }
  });
  Spin spin;
  for (u32 i = 0; i < kRounds; ++i) {
    ++message;
    ping->ring();
    wait(pong, i, spin);
    if (message != 2 * (u64(i) + 1)) fail("a message was lost", message, i);
  }
  answering.join();
  std::printf("bells: %u rounds\n", kRounds);
}
}  // namespace

int main() {
  for (bool prioritised : {false, true})
    for (bool checked : {false, true}) {
      lane_sampled(prioritised, checked);
      lane_sequences(prioritised, checked);
    }
  lane_consumed();
  for (u64 n : {1, 2, 3}) slots(n);
  bells();
  std::puts("nothing found");
}
