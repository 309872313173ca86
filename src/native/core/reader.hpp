// The reading side of a replay: samples rows from its lanes and copies them into the caller's arrays.
//
// Everything here is private to one process except the lanes, in which it writes only `taken`, `released` and the bell
// `room`. The reader copies first and verifies afterwards; it draws again, and counts, rows that were overwritten
// meanwhile.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "core/lane.hpp"
#include "core/tree.hpp"

namespace motet {

struct Rules {
  u64 n_frames = 1, n_step = 1;
  double gamma = 0.99;
  u64 reward_offset = 0;
  bool reward_double = false;
  bool prioritised = false;
  double alpha = 0.6, epsilon = 1e-6;  // priority p becomes (p + epsilon) ** alpha
  // A sample is a sequence of `length` consecutive rows, of which the first `burn_in` are not learned from; 0: single
  // transitions. A prioritised sequence begins at a multiple of the rows that are learned from, so that each row is
  // among those of exactly one sequence.
  u64 length = 0, burn_in = 0;

  u64 span() const { return std::max<u64>(length, 1) + n_step; }  // number of rows that one sample needs
  u64 stride() const { return std::max<u64>(length, 1) - burn_in; }
};

// One array of a batch, and the bytes of a row that are copied into it.
struct Copy {
  u8* to;
  u64 offset, bytes;  // within a row
  u64 frames;         // number of consecutive rows that are stacked
  bool next;          // transitions: copy from the end. Fragments and sequences: also copy the rows after them
};

// The arrays of a batch.
struct Target {
  u64 rows = 0;    // number of transitions, fragments or sequences
  u64 length = 0;  // rows of a fragment or a sequence; 0 for transitions
  std::vector<Copy> copies;
  void* reward = nullptr;
  float *discount = nullptr, *weight = nullptr;
  u64 *version = nullptr, *row = nullptr;
  u32* lane = nullptr;
  u8 *valid = nullptr, *ahead = nullptr;
};

struct Counters {
  u64 sampled = 0, redrawn = 0, overwritten_unread = 0, late_priorities = 0, consumed = 0;
};

enum class Draw { kOk, kTooFew, kNoStart, kLapped, kOverrun, kCorrupt };

class Reader {
 public:
  enum class Read : unsigned char { kNo, kYes };  // an enum: a plain byte could alias everything
  static constexpr u64 kLive = ~u64(0);
  struct LaneState {
    Lane* lane;
    u32 partition;
    u64 base;       // index of its first leaf in the partition's tree
    u64 end = kLive;  // first row that is not read; kLive: the end is the lane's head
    u64 floor = 0;  // rows with smaller numbers are never sampled again
    u64 cursor = 0;               // for take: the next row to return
    u64 cursor_before = 0;        // for take: the cursor before the current call
    u64 taken_over = 0;           // for rows with smaller numbers `read` is up to date
    u64 prioritised = 0;          // rows with smaller numbers have received their first priority
    u64 zeroed = 0;               // rows with smaller numbers have priority zero
    u64 low = 0, high = 0;        // first rows of transitions are drawn from [low, high)
    u64 low_place = 0;
    u64 tail = 0;                 // the lane's tail after the last copy
    std::vector<Read> read;       // by place: whether the row there was part of a batch
  };
  struct Partition {
    double share;
    double carry = 0;  // what rounding left over, so that shares are exact over many batches
    u64 rows = 0;      // number of rows to draw from in all its lanes
    u64 want = 0;      // number of its rows in the batch that is being drawn
    std::vector<u32> lanes;
    std::unique_ptr<SumTree> tree;
  };

  std::vector<LaneState> lanes;
  std::vector<Partition> partitions;
  Rules rules;
  Rng rng;
  Counters counters;
  float max_priority = 1.0f;
  u64 room = 0;  // number of rows that a writer may append to a lane between two calls of limit()
  u64 bad_lane = 0, bad_row = 0;  // where the last kCorrupt was found

  void prepare() {
    for (auto& p : partitions) p.lanes.clear();
    std::vector<u64> base(partitions.size(), 0);
    for (u32 i = 0; i < lanes.size(); ++i) {
      LaneState& s = lanes[i];
      s.base = base[s.partition];
      base[s.partition] += s.lane->capacity;
      s.read.assign(s.lane->capacity, Read::kNo);
      partitions[s.partition].lanes.push_back(i);
      if (s.lane->once) s.cursor = s.lane->taken.load(std::memory_order_acquire);
    }
    if (rules.prioritised)
      for (u32 p = 0; p < partitions.size(); ++p) partitions[p].tree = std::make_unique<SumTree>(base[p]);
  }

  // Fixes the end of each lane, so that draws do not depend on how many rows the writers have appended since. A writer
  // may append up to `room` rows after the end. The oldest rows, which it may overwrite by that, are not drawn either.
  void limit(const u64* ends, u64 most) {
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i].end = ends[i];
    room = most;
  }

  // A restarted reader does not know which of the stored rows were read before, and counts none of them as unread. Rows
  // that were released after the state was saved may be overwritten already, and are not returned again.
  void adopt() {
    for (auto& s : lanes) {
      s.taken_over = head_of(s);
      if (s.lane->once) s.cursor = std::max(s.cursor, s.lane->taken.load(std::memory_order_acquire));
      std::fill(s.read.begin(), s.read.end(), Read::kYes);
    }
  }

  // Saves or loads the priorities of all places by partition, because adopt() cannot rebuild them. Both call
  // ready() first, so that new rows have received their first priority.
  void save_priorities(float* out) {
    ready();
    for (auto& p : partitions)
      for (u64 i = 0; i < p.tree->capacity(); ++i) *out++ = p.tree->get(i);
  }
  void load_priorities(const float* in) {
    ready();
    for (auto& p : partitions) {
      index_.resize(p.tree->capacity());
      for (u64 i = 0; i < index_.size(); ++i) index_[i] = i;
      p.tree->set(index_.data(), in, index_.size());
      in += index_.size();
    }
  }

  u64 ready() {  // number of rows from which a transition or a sequence may be drawn
    u64 n = 0;
    for (auto& p : partitions)
      if (u64 rows = refresh(p); p.share > 0) n += rows;
    return n;
  }

  // ---- sampling with replacement: uniform, or by priority

  Draw sample(const Target& t, double beta) {
    u64 total = ready(), n = t.rows, first = 0;
    if (total < n) return Draw::kTooFew;
    divide(n);
    for (auto& p : partitions) {
      if (p.want == 0) continue;
      if (Draw d = fill(p, t, first, p.want, beta); d != Draw::kOk) return d;
      first += p.want;
    }
    if (t.weight) {
      float top = 0;
      for (u64 i = 0; i < n; ++i) top = std::max(top, t.weight[i]);
      for (u64 i = 0; i < n; ++i) t.weight[i] /= top;
    }
    counters.sampled += n;
    return Draw::kOk;
  }

  // Sets new priorities for rows of an earlier batch. Rows that were overwritten meanwhile are only counted.
  void update(const u32* lane, const u64* row, const float* priority, u64 n) {
    for (u32 p = 0; p < partitions.size(); ++p) {
      index_.clear();
      value_.clear();
      for (u64 i = 0; i < n; ++i) {
        LaneState& s = lanes[lane[i]];
        if (s.partition != p) continue;
        if (row[i] < s.zeroed || row[i] >= s.prioritised) {
          ++counters.late_priorities;
          continue;
        }
        float v = std::pow(priority[i] + float(rules.epsilon), float(rules.alpha));
        max_priority = std::max(max_priority, v);
        index_.push_back(s.base + row[i] % s.lane->capacity);
        value_.push_back(v);
      }
      partitions[p].tree->set(index_.data(), value_.data(), index_.size());
    }
  }

  void forget(u64 more) {  // forgets every row written so far, and the next `more` rows of each lane
    for (auto& s : lanes) s.floor = (s.cursor = head_of(s)) + more;
  }

  // ---- rows that are read once, in order

  // Fragments of t.length rows, plus one row for the observation after them, that were not handed out yet: the first of
  // every lane, then the second of every lane, and so on.
  u64 fragments(u64 length) {
    u64 n = 0;
    for (auto& s : lanes) n += available(s) / length;
    return n;
  }

  Draw take(const Target& t) {
    if (fragments(t.length) < t.rows) return Draw::kTooFew;
    for (auto& s : lanes) s.cursor_before = s.cursor;
    for (u64 f = 0; f < t.rows;)
      for (u32 l = 0; l < lanes.size() && f < t.rows; ++l) {
        LaneState& s = lanes[l];
        if (available(s) < t.length) continue;
        if (Draw d = copy_fragment(s, t, f, l); d != Draw::kOk) {
          for (auto& back : lanes) back.cursor = back.cursor_before;
          return d;
        }
        s.cursor += t.length;
        ++f;
      }
    return Draw::kOk;
  }

  // Lets writers overwrite the rows that were taken, except the frames that the next row is stacked with.
  void release() {
    u64 keep = rules.n_frames - 1;
    for (auto& s : lanes) {
      u64 r = s.cursor > keep ? s.cursor - keep : 0;
      u64 taken = s.lane->taken.load(std::memory_order_relaxed), released = s.lane->released.load(std::memory_order_relaxed);
      if (s.cursor == taken && r == released) continue;
      // `taken` is stored first: if the process dies before the next store, no row is returned twice.
      s.lane->taken.store(s.cursor, std::memory_order_relaxed);
      s.lane->released.store(r, std::memory_order_release);
      s.lane->room.ring();
    }
  }

 private:
  struct Drawn {
    u64 out;                 // index in the batch
    LaneState* from;
    u64 place, end;          // places where the transition starts and ends
    const u8 *first, *last;  // the rows in these places
    Drawn() {}               // not zeroed, because everything is overwritten
  };
  std::vector<u64> index_;      // scratch memory: indices of the tree's leaves
  std::vector<Drawn> pending_;  // the rows of a batch that are still to be filled
  std::vector<float> value_;
  std::vector<u8> scratch_;

  static u64 head_of(const LaneState& s) {
    return s.end == kLive ? s.lane->head.load(std::memory_order_acquire) : s.end;
  }

  static u64 available(const LaneState& s) {  // rows from the cursor on that are followed by another row
    u64 head = head_of(s);
    return head > s.cursor + 1 ? head - 1 - s.cursor : 0;
  }

  // Computes the number of rows of each partition in a batch of n. Shares are relative to the partitions that are not
  // empty; what a partition loses by rounding is carried over to the next batch.
  void divide(u64 n) {
    auto eligible = [](const Partition& p) { return p.rows > 0 && p.share > 0; };
    double all = 0;
    for (auto& p : partitions) all += eligible(p) ? p.share : 0;
    u64 given = 0;
    for (auto& p : partitions) {
      p.want = 0;
      if (!eligible(p)) continue;
      p.carry += double(n) * p.share / all;
      if (p.carry > 0) p.want = std::min(n - given, u64(p.carry));
      p.carry -= double(p.want);
      given += p.want;
    }
    for (; given < n; ++given) {
      Partition* most = nullptr;
      for (auto& p : partitions)
        if (eligible(p) && (!most || p.carry > most->carry)) most = &p;
      ++most->want;
      most->carry -= 1;
    }
  }

  u64 refresh(Partition& p) {
    p.rows = 0;
    for (u32 l : p.lanes) {
      LaneState& s = lanes[l];
      if (s.lane->once) {  // if rows are taken instead of drawn: count those that can still be taken
        p.rows += available(s);
        continue;
      }
      u64 head = s.end, tail = head + room > s.lane->capacity ? head + room - s.lane->capacity : 0;
      while (s.end == kLive) {  // until head did not change while tail was read
        head = s.lane->head.load(std::memory_order_acquire);
        tail = s.lane->tail();
        std::atomic_thread_fence(std::memory_order_acquire);
        if (s.lane->head.load(std::memory_order_relaxed) == head) break;
      }
      // A stack of frames needs the n_frames - 1 rows before its row. If nothing was overwritten yet, all rows can be
      // used.
      s.low = std::max(s.floor, tail ? tail + rules.n_frames - 1 : 0);
      s.high = head >= rules.span() ? head - rules.span() + 1 : 0;
      if (s.low > s.high) s.low = s.high;
      s.low_place = s.lane->place(s.low);
      account(s, head);
      if (p.tree) prioritise(p, s);
      p.rows += s.high - s.low;
    }
    if (p.tree) p.rows = p.tree->positive();
    return p.rows;
  }

  // Counts the unread rows that new rows have overwritten.
  void account(LaneState& s, u64 head) {
    u64 cap = s.lane->capacity, from = s.taken_over;
    if (head <= from) return;
    u64 round = std::min(head, from + cap);  // rows from here to `head` have overwritten rows that were never counted
    counters.overwritten_unread += head - round;
    for (u64 i = from; i < round;) {
      u64 place = i % cap, n = std::min(round - i, cap - place);
      if (i >= cap) counters.overwritten_unread += u64(std::count(&s.read[place], &s.read[place] + n, Read::kNo));
      std::fill_n(&s.read[place], n, Read::kNo);
      i += n;
    }
    s.taken_over = head;
  }

  void prioritise(Partition& p, LaneState& s) {
    u64 cap = s.lane->capacity;
    index_.clear();
    value_.clear();
    // Visit every place: once the ring is full, the rows at multiples of the stride are in other places than before.
    for (u64 i = std::max(s.zeroed, s.low > cap ? s.low - cap : 0); i < s.low; ++i) {
      index_.push_back(s.base + i % cap);
      value_.push_back(0);
    }
    s.zeroed = std::max(s.zeroed, s.low);
    const u64 stride = rules.stride(), from = std::max(s.prioritised, s.low);
    for (u64 i = (from + stride - 1) / stride * stride; i < s.high; i += stride) {
      index_.push_back(s.base + i % cap);
      value_.push_back(teaches(s.lane, s.lane->place(i)) ? max_priority : 0.0f);
    }
    s.prioritised = std::max(s.prioritised, s.high);
    p.tree->set(index_.data(), value_.data(), index_.size());
  }

  // Fills rows [first, first + n) of the batch from one partition, and draws again until each of them is intact.
  Draw fill(Partition& p, const Target& t, u64 first, u64 n, double beta) {
    constexpr int kRounds = 1000;
    pending_.resize(n);
    for (u64 i = 0; i < n; ++i) pending_[i].out = first + i;
    for (int round = 0; !pending_.empty(); ++round) {
      if (round == kRounds) return Draw::kLapped;
      if (round) {
        if (pending_[0].from->end != kLive) return Draw::kOverrun;
        counters.redrawn += pending_.size();
        refresh(p);
      }
      if (!(p.tree ? draw_by_priority(p, t, beta) : draw_uniform(p, t))) {
        if (round) continue;  // all rows were overwritten meanwhile
        return Draw::kTooFew;
      }
      if (!(rules.length ? copy_sequences(p, t) : copy_transitions(p, t))) return Draw::kNoStart;
      if (Draw d = verify(p, t); d != Draw::kOk) return d;
    }
    return Draw::kOk;
  }

  // Memory is slow: rows are prefetched a few rows ahead.
  static constexpr u64 kAhead = 16, kAheadLarge = 8;
  static void prefetch(const u8* p, u64 bytes) {
    bytes = std::min<u64>(bytes, 8 * kLine);
    for (u64 b = 0; b < bytes; b += kLine) __builtin_prefetch(p + b);
  }

  // Whether the sequence that starts here has a transition to learn from.
  bool teaches(Lane* lane, u64 place) const {
    for (u64 skip = rules.burn_in; skip; --skip) place = lane->after(place);
    for (u64 left = rules.stride(); left; --left, place = lane->after(place))
      if (lane->startable(place)) return true;
    return false;
  }

  // Follows an n-step transition from its first place to its end, and sums its rewards and its discount.
  struct Followed {
    double reward;
    float discount;
    u64 end, steps;
  };
  Followed follow(Lane* const lane, u64 place) const {
    const u64 n_step = rules.n_step, reward_at = rules.reward_offset;
    const double gamma = rules.gamma;
    double sum = 0, factor = 1;
    u64 steps = 0, m = lane->meta(place);
    for (;;) {
      sum += factor * reward(lane->at(place) + reward_at);
      factor *= gamma;
      ++steps;
      place = lane->after(place);
      if ((m & (kTerminated | kTruncated)) || steps == n_step || !lane->startable(place)) break;
      m = lane->meta(place);
    }
    return {sum, m & kTerminated ? 0.0f : float(factor), place, steps};
  }

  bool copy_transitions(Partition& p, const Target& t) {
    if (!walk(p, t)) return false;
    for (const Copy& c : t.copies) gather(t, c);
    return true;
  }

  bool copy_sequences(Partition& p, const Target& t) {
    for (Drawn& d : pending_) {
      Lane* lane = d.from->lane;
      if (!p.tree && !teaches(lane, d.place)) {
        if (!draw_another(p, t, d)) return false;
        lane = d.from->lane;
      }
      d.end = copy_rows(lane, t, d.out, t.row[d.out], d.place);
    }
    return true;
  }

  // Finds rewards, discount and end of each drawn transition.
  bool walk(Partition& p, const Target& t) {
    const u64 n = pending_.size(), reward_at = rules.reward_offset;
    const bool look = !p.tree;  // with priorities, only rows that start a transition have a priority above 0
    for (u64 k = 0; k < n; ++k) {
      if (k + kAhead < n) {
        const Drawn& ahead = pending_[k + kAhead];
        Lane* lane = ahead.from->lane;
        const u8* row = lane->at(ahead.place);
        __builtin_prefetch(row);
        __builtin_prefetch(row + reward_at);
        __builtin_prefetch(row + lane->row_bytes);
      }
      Drawn& d = pending_[k];
      if (look && !d.from->lane->startable(d.place) && !draw_another(p, t, d)) return false;
      Lane* const lane = d.from->lane;
      const Followed f = follow(lane, d.place);
      store_reward(t, d.out, f.reward);
      t.discount[d.out] = f.discount;
      t.version[d.out] = lane->meta(d.place) >> kVersionShift;
      d.end = f.end;
      d.first = lane->at(d.place);
      d.last = lane->at(f.end);
    }
    return true;
  }

  // Copies one array of the batch, from the start or from the end of each transition.
  void gather(const Target& t, const Copy& c) {
    if (c.frames > 1) {
      for (const Drawn& d : pending_) {
        Lane* lane = d.from->lane;
        u64 row = t.row[d.out];
        if (c.next) copy_stack(lane, c, row + lane->distance(d.place, d.end), d.end, d.out);
        else copy_stack(lane, c, row, d.place, d.out);
      }
      return;
    }
    switch (c.bytes) {  // sizes that are known at compile time are copied without a call
      case 1: return copy_all(c, [](u8* to, const u8* from, u64) { copy_racy(to, from, 1); });
      case 4: return copy_all(c, [](u8* to, const u8* from, u64) { copy_racy(to, from, 4); });
      case 8: return copy_all(c, [](u8* to, const u8* from, u64) { copy_racy(to, from, 8); });
      default: break;
    }
    switch (c.bytes < 16 ? 0 : (c.bytes + 15) / 16) {
      case 1: return copy_all(c, copy_pieces<1>);
      case 2: return copy_all(c, copy_pieces<2>);
      case 3: return copy_all(c, copy_pieces<3>);
      case 4: return copy_all(c, copy_pieces<4>);
      case 5: return copy_all(c, copy_pieces<5>);
      case 6: return copy_all(c, copy_pieces<6>);
      case 7: return copy_all(c, copy_pieces<7>);
      case 8: return copy_all(c, copy_pieces<8>);
      default: return copy_all(c, [](u8* to, const u8* from, u64 n) { copy_racy(to, from, n); });
    }
  }
  template <class How>
  void copy_all(const Copy& c, How how) {
    const u64 n = pending_.size(), bytes = c.bytes, offset = c.offset;
    const bool next = c.next, large = bytes > 2 * kLine;  // smaller arrays are close to the bytes that walk() has read
    const Drawn* const drawn = pending_.data();
    u8* const to = c.to;
    auto from = [=](u64 k) { return (next ? drawn[k].last : drawn[k].first) + offset; };
    for (u64 k = 0; large && k < std::min(n, kAheadLarge); ++k) prefetch(from(k), bytes);
    for (u64 k = 0; k < n; ++k) {
      if (large && k + kAheadLarge < n) prefetch(from(k + kAheadLarge), bytes);
      how(to + drawn[k].out * bytes, from(k), bytes);
    }
  }

  // Rows that were overwritten meanwhile stay pending; intact rows are marked as read.
  Draw verify(Partition& p, const Target& t) {
    std::atomic_thread_fence(std::memory_order_acquire);
    bool untouched = true;  // true if none of the rows that could have been drawn was overwritten
    for (u32 l : p.lanes) {
      LaneState& s = lanes[l];
      s.tail = s.lane->tail();
      untouched = untouched && !s.lane->checked && s.tail <= oldest_of(s.low);
    }
    u64 again = 0;
    for (const Drawn& d : pending_) {
      LaneState& s = *d.from;
      if (!untouched) {
        const u64 row = t.row[d.out], oldest = oldest_of(row);
        u64 bad = kNone;
        if (s.lane->checked) {
          bad = first_bad(s.lane, oldest, row + s.lane->distance(d.place, d.end) + 1);
          s.tail = s.lane->tail();
        }
        if (oldest < s.tail) {
          pending_[again++].out = d.out;
          continue;
        }
        if (bad != kNone) return report_corrupt(t.lane[d.out], bad);
      }
      Read* const read = s.read.data();
      for (u64 place = d.place; place != d.end; place = s.lane->after(place)) read[place] = Read::kYes;
      read[d.end] = Read::kYes;
    }
    pending_.resize(again);
    return Draw::kOk;
  }
  u64 oldest_of(u64 row) const { return row - std::min(row, rules.n_frames - 1); }  // the oldest row of its stack

  bool draw_uniform(Partition& p, const Target& t) {
    u64 total = window(p);
    if (total == 0) return false;
    Rng stream = rng;  // in registers, like the window of the first lane: often there is only one lane
    const Window first = window_of(p.lanes[0]);
    for (Drawn& d : pending_) {
      const u64 at = stream.below(total);
      if (at < first.rows) put(t, d, first, at);
      else locate(p, t, d, at);
    }
    rng = stream;
    return true;
  }

  // Rows without a transition to learn from are skipped. After many failed draws, search row by row instead.
  bool draw_another(Partition& p, const Target& t, Drawn& d) {
    constexpr u64 kTries = 64;
    u64 at = 0, total = window(p);
    for (u64 attempt = 0; attempt < kTries + total; ++attempt) {
      at = attempt < kTries ? rng.below(total) : (at + 1) % total;
      locate(p, t, d, at);
      if (teaches(d.from->lane, d.place)) return true;
    }
    return false;
  }

  u64 window(const Partition& p) const {
    u64 n = 0;
    for (u32 l : p.lanes) n += lanes[l].high - lanes[l].low;
    return n;
  }

  struct Window {  // the range of rows of a lane from which rows are drawn
    LaneState* from;
    u32 lane;
    u64 low, low_place, rows, capacity;
  };
  Window window_of(u32 l) {
    LaneState& s = lanes[l];
    return {&s, l, s.low, s.low_place, s.high - s.low, s.lane->capacity};
  }
  static void put(const Target& t, Drawn& d, const Window& w, u64 at) {
    const u64 place = w.low_place + at;
    t.lane[d.out] = w.lane;
    t.row[d.out] = w.low + at;
    d.from = w.from;
    d.place = place < w.capacity ? place : place - w.capacity;
  }

  // Finds the at-th row of the concatenated windows of a partition.
  void locate(Partition& p, const Target& t, Drawn& d, u64 at) {
    for (u32 l : p.lanes) {
      const Window w = window_of(l);
      if (at < w.rows) return put(t, d, w, at);
      at -= w.rows;
    }
  }

  // Importance weights are computed here, because later the writer may reuse the place and its leaf for another row.
  bool draw_by_priority(Partition& p, const Target& t, double beta) {
    if (!(p.tree->total() > 0)) return false;
    double scale = double(p.tree->positive()) / p.tree->total();
    index_.resize(pending_.size());
    p.tree->sample(rng, pending_.size(), index_.data());
    for (u64 k = 0; k < pending_.size(); ++k) {
      u64 i = pending_[k].out, l = 0;
      while (l + 1 < p.lanes.size() && lanes[p.lanes[l + 1]].base <= index_[k]) ++l;
      LaneState& s = lanes[p.lanes[l]];
      u64 cap = s.lane->capacity, place = index_[k] - s.base;
      // The number of the row in this place, of which there is one in [zeroed, zeroed + capacity).
      u64 row = s.zeroed - s.zeroed % cap + place;
      t.lane[i] = p.lanes[l];
      t.row[i] = row < s.zeroed ? row + cap : row;
      pending_[k].from = &s;
      pending_[k].place = place;
      if (t.weight) t.weight[i] = float(std::pow(scale * p.tree->get(index_[k]), -beta));
    }
    return true;
  }

  double reward(const u8* at) const {
    return rules.reward_double ? load_racy<double>(at) : double(load_racy<float>(at));
  }

  void store_reward(const Target& t, u64 out, double value) const {
    if (rules.reward_double) static_cast<double*>(t.reward)[out] = value;
    else static_cast<float*>(t.reward)[out] = float(value);
  }

  // Frames are ordered from the oldest to the newest; the first row of an episode is repeated as padding.
  static void copy_stack(Lane* lane, const Copy& c, u64 row, u64 place, u64 out) {
    u8* end = c.to + (out + 1) * c.frames * c.bytes;
    for (u64 f = 1; f <= c.frames; ++f) {
      copy_racy(end - f * c.bytes, lane->at(place) + c.offset, c.bytes);
      if (f < c.frames && row > 0 && !(lane->meta(place) & kBegin)) --row, place = lane->before(place);
    }
  }

  // Returns the first of rows [first, end) whose checksum does not match. Overwritten rows do not match either, so the
  // caller must check the tail afterwards.
  static constexpr u64 kNone = ~u64(0);
  u64 first_bad(Lane* lane, u64 first, u64 end) {
    u64 bad = kNone;
    scratch_.resize(lane->row_bytes);
    for (u64 i = first; i < end && bad == kNone; ++i) {
      copy_racy(scratch_.data(), lane->at(lane->place(i)), lane->row_bytes);
      if (load_racy<u64>(scratch_.data() + lane->row_bytes - 8) != lane->row_sum(scratch_.data(), i)) bad = i;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return bad;
  }

  Draw report_corrupt(u64 lane, u64 row) {
    bad_lane = lane;
    bad_row = row;
    return Draw::kCorrupt;
  }

  Draw copy_fragment(LaneState& s, const Target& t, u64 f, u32 l) {
    Lane* lane = s.lane;
    u64 row = s.cursor, place = lane->place(row);
    if (lane->checked) {
      u64 oldest = row - std::min(row, rules.n_frames - 1);
      if (u64 bad = first_bad(lane, oldest, row + t.length + 1); bad != kNone) return report_corrupt(l, bad);
    }
    copy_rows(lane, t, f, row, place);
    for (u64 j = f * t.length; j < (f + 1) * t.length; ++j) {
      t.row[j] = row++;
      t.lane[j] = l;
      counters.consumed += t.valid[j];
    }
    return Draw::kOk;
  }

  // Copies consecutive rows as fragment or sequence number f, with those after them in which its last transitions end.
  // Returns the place of the last one.
  u64 copy_rows(Lane* lane, const Target& t, u64 f, u64 row, u64 place) const {
    const u64 span = t.length + rules.n_step;
    for (u64 j = 0;; ++j, ++row, place = lane->after(place)) {
      const u64 out = f * t.length + j;
      for (const Copy& c : t.copies)
        if (c.next || j < t.length) copy_stack(lane, c, row, place, c.next ? f * span + j : out);
      if (j < t.length) describe(lane, t, out, place);
      if (j + 1 == span) return place;
    }
  }

  // Writes the reward, discount and flags of the transition that starts in a place, if one starts there.
  void describe(Lane* lane, const Target& t, u64 out, u64 place) const {
    const bool start = lane->startable(place);
    Followed f{0, 0, place, 0};
    if (start) f = follow(lane, place);
    // A fragment has the reward as it was written: a sum would turn -0.0 into 0.0.
    if (start && lane->once) f.reward = reward(lane->at(place) + rules.reward_offset);
    store_reward(t, out, f.reward);
    t.discount[out] = f.discount;
    t.version[out] = lane->meta(place) >> kVersionShift;
    t.valid[out] = start;
    if (t.ahead) t.ahead[out] = u8(f.steps);
  }
};
}  // namespace motet
