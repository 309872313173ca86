// motet._native.LaneReader: the reading end of all lanes of a replay.
#include <memory>

#include "python/leaf.hpp"

namespace motet {
namespace {
using ull = unsigned long long;

struct BoundTarget {
  Target target;
  std::vector<View> views;
};

struct LaneReader {
  std::vector<View> memory;
  Reader reader;
  std::vector<LeafSpec> specs;
  std::vector<std::unique_ptr<BoundTarget>> targets;
  bool busy = false;

  static LaneReader* make(PyObject* args, PyObject* kwargs) {
    PyObject *lanes, *leaves, *partition_of, *shares, *seed;
    ull row_bytes, hash, n_frames, n_step, reward_offset, length, burn_in;
    double gamma, alpha, epsilon;
    int reward_double, prioritised;
    static const char* names[] = {"lanes",         "leaves",        "row_bytes", "spec_hash", "partition_of", "shares",
                                  "n_frames",      "n_step",        "gamma",     "reward_offset", "reward_double", "prioritised",
                                  "alpha",         "epsilon",       "length",    "burn_in",   "seed",         nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOKKOOKKdKppddKKO", const_cast<char**>(names), &lanes, &leaves, &row_bytes, &hash,
                                     &partition_of, &shares, &n_frames, &n_step, &gamma, &reward_offset, &reward_double, &prioritised,
                                     &alpha, &epsilon, &length, &burn_in, &seed))
      return nullptr;
    auto h = std::make_unique<LaneReader>();
    Reader& r = h->reader;
    Py_ssize_t n = PySequence_Size(lanes), parts = PySequence_Size(shares);
    if (n < 1 || parts < 1 || PySequence_Size(partition_of) != n || n_frames < 1 || n_step < 1 ||
        reward_offset + (reward_double ? 8 : 4) > row_bytes) {
      if (!PyErr_Occurred()) raise("SettingError", "a reader must have 1 or more lanes and partitions, n_frames and n_step >= 1, and a reward");
      return nullptr;
    }
    if (burn_in >= std::max<ull>(length, 1) || (length && n_step > 255)) {
      raise("SettingError", "a reader of sequences must have a burn_in below its length, and n_step <= 255");
      return nullptr;
    }
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* buffer = PySequence_GetItem(lanes, i);
      PyObject* part = PySequence_GetItem(partition_of, i);
      Reader::LaneState s{};
      unsigned long p = part ? PyLong_AsUnsignedLong(part) : 0;
      h->memory.emplace_back();
      s.lane = buffer ? open_lane(h->memory.back(), buffer, row_bytes, hash) : nullptr;
      Py_XDECREF(buffer);
      Py_XDECREF(part);
      if (!s.lane || PyErr_Occurred()) return nullptr;
      if (p >= static_cast<unsigned long>(parts)) {
        raise("SettingError", "the partition of lane %zd must be less than %zd, got %lu", i, parts, p);
        return nullptr;
      }
      s.partition = u32(p);
      r.lanes.push_back(std::move(s));
    }
    for (Py_ssize_t i = 0; i < parts; ++i) {
      PyObject* share = PySequence_GetItem(shares, i);
      Reader::Partition p;
      p.share = share ? PyFloat_AsDouble(share) : 0;
      Py_XDECREF(share);
      if (PyErr_Occurred()) return nullptr;
      r.partitions.push_back(std::move(p));
    }
    if (!parse_leaves(leaves, row_bytes, h->specs)) return nullptr;
    r.rules = {n_frames, n_step, gamma, reward_offset, bool(reward_double), bool(prioritised), alpha, epsilon, length, burn_in};
    View words;
    if (!words.take_array(seed, "seed", {'u', 8}, 4, false)) return nullptr;
    std::memcpy(r.rng.s, words.data(), 32);
    r.prepare();
    for (auto& s : r.lanes)
      if (u64 kept = s.cursor - s.lane->released.load(std::memory_order_acquire); s.lane->once && std::min(s.cursor, r.rules.n_frames - 1) > kept) {
        raise("SettingError", "n_frames must be at most %llu, got %llu: an earlier reader with fewer frames has released older rows",
              ull(kept + 1), n_frames);
        return nullptr;
      }
    return h.release();
  }
};

// bind(rows, length, leaf_arrays, next_arrays, reward, discount, weight, version, row, lane, valid, ahead) -> number
// Leaves whose array is None are not gathered.
PyObject* reader_bind(PyObject* o, PyObject* args) {
  auto& h = unbox<LaneReader>(o);
  ull rows, length;
  PyObject *leaf, *next, *reward, *discount, *weight, *version, *row, *lane, *valid, *ahead;
  if (!PyArg_ParseTuple(args, "KKOOOOOOOOOO", &rows, &length, &leaf, &next, &reward, &discount, &weight, &version, &row, &lane, &valid, &ahead))
    return nullptr;
  if (rows == 0) return raise("SettingError", "batch_size must be 1 or more, got 0");
  auto b = std::make_unique<BoundTarget>();
  Target& t = b->target;
  t.rows = rows;
  t.length = length;
  const Rules& rules = h.reader.rules;
  u64 steps = rows * (length ? length : 1), draws = rules.length ? rows : steps;
  auto take = [&](PyObject* array, const char* name, Dtype dtype, u64 items) -> void* {
    b->views.emplace_back();
    return b->views.back().take_array(array, name, dtype, items, true) ? b->views.back().data() : nullptr;
  };
  for (std::size_t f = 0; f < h.specs.size(); ++f) {
    const LeafSpec& s = h.specs[f];
    u64 frames = s.stacked ? rules.n_frames : 1;
    for (PyObject* list : {leaf, next}) {
      PyObject* array = PySequence_GetItem(list, Py_ssize_t(f));
      if (!array) return nullptr;
      bool wanted = !Py_IsNone(array);
      u64 count = length && s.next ? rows * (length + rules.n_step) : steps;
      void* at = wanted ? take(array, s.name.c_str(), s.dtype, count * frames * s.items) : nullptr;
      Py_DECREF(array);
      if (wanted && !at) return nullptr;
      if (wanted) t.copies.push_back({static_cast<u8*>(at), s.offset, s.bytes, frames, length ? s.next : list == next});
    }
  }
  if (!(t.reward = take(reward, "reward", {'f', rules.reward_double ? 8 : 4}, steps)) ||
      !(t.discount = static_cast<float*>(take(discount, "discount", {'f', 4}, steps))) ||
      !(t.version = static_cast<u64*>(take(version, "version", {'u', 8}, steps))) ||
      !(t.row = static_cast<u64*>(take(row, "row", {'u', 8}, draws))) ||
      !(t.lane = static_cast<u32*>(take(lane, "lane", {'u', 4}, draws))))
    return nullptr;
  if (!Py_IsNone(weight) && !(t.weight = static_cast<float*>(take(weight, "weight", {'f', 4}, draws)))) return nullptr;
  if (!Py_IsNone(valid) && !(t.valid = static_cast<u8*>(take(valid, "valid", {'b', 1}, steps)))) return nullptr;
  if (!Py_IsNone(ahead) && !(t.ahead = static_cast<u8*>(take(ahead, "ahead", {'u', 1}, steps)))) return nullptr;
  if (length && !t.valid) return raise("SpecError", "valid must be an array for a batch of fragments or sequences, got None");
  h.targets.push_back(std::move(b));
  return PyLong_FromSize_t(h.targets.size() - 1);
}

PyObject* outcome(LaneReader& h, Draw d, u64 wanted) {
  switch (d) {
    case Draw::kOk: Py_RETURN_NONE;
    case Draw::kTooFew:
      return raise("NotReadyError", "batch_size must be at most %llu, the number of stored %s, got %llu", ull(h.reader.ready()),
                   h.reader.rules.length ? "sequences" : "transitions", ull(wanted));
    case Draw::kNoStart:
      return raise("NotReadyError", "no transition starts at any stored row: all rows are final rows or the last ones of broken segments");
    case Draw::kLapped:
      return raise("NotReadyError", "the writers overwrite rows faster than the reader can copy them; use a larger capacity");
    case Draw::kOverrun:
      return raise("NotReadyError", "a writer overwrote rows that may still be sampled: it wrote more than %llu rows after the given end of its lane",
                   ull(h.reader.room));
    case Draw::kCorrupt:
      return raise("CorruptionError", "lane %llu, row %llu: the checksum does not match the bytes", ull(h.reader.bad_lane),
                   ull(h.reader.bad_row));
  }
  return nullptr;
}

BoundTarget* bound(LaneReader& h, PyObject* number) {
  std::size_t i = PyLong_AsSize_t(number);
  if (PyErr_Occurred()) return nullptr;
  if (i < h.targets.size()) return h.targets[i].get();
  raise("SpecError", "target must be less than %zu, got %zu", h.targets.size(), i);
  return nullptr;
}

PyObject* reader_sample(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "_sample(target, beta) takes 2 arguments, %zd given", n);
  auto& h = unbox<LaneReader>(o);
  Alone alone(h.busy, "a reader");
  if (!alone) return nullptr;
  BoundTarget* b = bound(h, args[0]);
  double beta = b ? PyFloat_AsDouble(args[1]) : 0;
  if (!b || PyErr_Occurred()) return nullptr;
  if (b->target.length != h.reader.rules.length)
    return raise("SpecError", "target must be bound with the length %llu, got %llu", ull(h.reader.rules.length), ull(b->target.length));
  if (!(beta >= 0 && beta <= 1)) return raise("SettingError", "beta must be a number from 0 to 1, got %R", args[1]);
  Draw d;
  {
    Unlocked unlocked;
    d = h.reader.sample(b->target, beta);
  }
  return outcome(h, d, b->target.rows);
}

PyObject* reader_take(PyObject* o, PyObject* number) {
  auto& h = unbox<LaneReader>(o);
  Alone alone(h.busy, "a reader");
  if (!alone) return nullptr;
  BoundTarget* b = bound(h, number);
  if (!b) return nullptr;
  if (!b->target.length) return raise("SpecError", "target must be bound with a length, got one bound for sampling");
  Draw d;
  {
    Unlocked unlocked;
    d = h.reader.take(b->target);
  }
  if (d == Draw::kTooFew) Py_RETURN_FALSE;
  if (d != Draw::kOk) return outcome(h, d, b->target.rows);
  Py_RETURN_TRUE;
}

PyObject* reader_update(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 3) return PyErr_Format(PyExc_TypeError, "_update(lane, row, priority) takes 3 arguments, %zd given", n);
  auto& h = unbox<LaneReader>(o);
  Alone alone(h.busy, "a reader");
  if (!alone) return nullptr;
  View lane, row, priority;
  if (!priority.take(args[2], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
    PyErr_Clear();
    return raise("SpecError", "priority must be a contiguous array of float32, got %s", type_name(args[2]).c_str());
  }
  u64 count = priority.bytes() / 4;
  if (!priority.take_array(args[2], "priority", {'f', 4}, count, false) || !lane.take_array(args[0], "lane", {'u', 4}, count, false) ||
      !row.take_array(args[1], "row", {'u', 8}, count, false))
    return nullptr;
  for (u64 i = 0; i < count; ++i) {
    float p = priority.as<float>()[i];
    if (!(std::isfinite(p) && p >= 0)) {
      PyObject* given = PyFloat_FromDouble(double(p));
      raise("SpecError", "priority[%llu] must be a finite number >= 0, got %R", ull(i), given);
      Py_XDECREF(given);
      return nullptr;
    }
    if (lane.as<u32>()[i] >= h.reader.lanes.size())
      return raise("SpecError", "lane[%llu] must be less than %zu, got %u", ull(i), h.reader.lanes.size(), lane.as<u32>()[i]);
  }
  {
    Unlocked unlocked;
    h.reader.update(lane.as<u32>(), row.as<u64>(), priority.as<float>(), count);
  }
  Py_RETURN_NONE;
}

PyObject* reader_release(PyObject* o, PyObject*) {
  Alone alone(unbox<LaneReader>(o).busy, "a reader");
  if (!alone) return nullptr;
  unbox<LaneReader>(o).reader.release();
  Py_RETURN_NONE;
}
PyObject* reader_limit(PyObject* o, PyObject* args) {
  Reader& r = unbox<LaneReader>(o).reader;
  PyObject* given;
  ull room;
  if (!PyArg_ParseTuple(args, "OK", &given, &room)) return nullptr;
  Alone alone(unbox<LaneReader>(o).busy, "a reader");
  if (!alone) return nullptr;
  View ends;
  if (!ends.take_array(given, "ends", {'u', 8}, r.lanes.size(), false)) return nullptr;
  const u64* end = ends.as<u64>();
  for (std::size_t i = 0; i < r.lanes.size(); ++i) {
    u64 head = r.lanes[i].lane->head.load(std::memory_order_acquire), least = r.lanes[i].end == Reader::kLive ? 0 : r.lanes[i].end;
    if (end[i] < least || end[i] > head)
      return raise("SettingError", "ends must be from %llu to the %llu rows written to lane %zu, got %llu", ull(least), ull(head), i, ull(end[i]));
  }
  r.limit(end, room);
  Py_RETURN_NONE;
}
PyObject* reader_forget(PyObject* o, PyObject* args) {
  int open = 0;
  if (!PyArg_ParseTuple(args, "|p", &open)) return nullptr;
  Alone alone(unbox<LaneReader>(o).busy, "a reader");
  if (!alone) return nullptr;
  unbox<LaneReader>(o).reader.forget(u64(open));
  Py_RETURN_NONE;
}
PyObject* reader_ready(PyObject* o, PyObject*) {
  Alone alone(unbox<LaneReader>(o).busy, "a reader");
  if (!alone) return nullptr;
  return PyLong_FromUnsignedLongLong(unbox<LaneReader>(o).reader.ready());
}
PyObject* reader_fragments(PyObject* o, PyObject* length) {
  u64 n = PyLong_AsUnsignedLongLong(length);
  if (PyErr_Occurred()) return nullptr;
  if (n == 0) return raise("SettingError", "length must be 1 or more, got 0");
  return PyLong_FromUnsignedLongLong(unbox<LaneReader>(o).reader.fragments(n));
}
PyObject* reader_counters(PyObject* o, PyObject*) {
  const Counters& c = unbox<LaneReader>(o).reader.counters;
  return Py_BuildValue("(KKKKK)", ull(c.sampled), ull(c.redrawn), ull(c.overwritten_unread), ull(c.late_priorities), ull(c.consumed));
}

// The state that a restarted reader needs, as words: rng, maximum priority, counters, carries, then floor and cursor of
// each lane.
constexpr u64 kFixedWords = 4 + 1 + 5;  // words of the random stream, the highest priority and the counters
u64 state_words(const Reader& r) { return kFixedWords + r.partitions.size() + 2 * r.lanes.size(); }

PyObject* reader_state_words(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(state_words(unbox<LaneReader>(o).reader)); }

template <bool Save>
PyObject* reader_state(PyObject* o, PyObject* array) {
  Reader& r = unbox<LaneReader>(o).reader;
  Alone alone(unbox<LaneReader>(o).busy, "a reader");
  if (!alone) return nullptr;
  View words;
  if (!words.take_array(array, "state", {'u', 8}, state_words(r), Save)) return nullptr;
  u64* w = words.as<u64>();
  if (!Save)
    for (std::size_t i = 0; i < r.lanes.size(); ++i) {
      u64 head = r.lanes[i].lane->head.load(std::memory_order_acquire);
      const u64* rows = w + state_words(r) - 2 * (r.lanes.size() - i);
      if (rows[0] > head + 1 || rows[1] > head)  // +1: forget(open=True) also excludes the next row
        return raise("SettingError", "state must not be past the %llu rows written to lane %zu, got row %llu: it belongs to another replay",
                     ull(head), i, ull(std::max(rows[0], rows[1])));
    }
  auto move = [&](auto& field) {
    static_assert(sizeof(field) <= 8, "each field must fit into one word");
    if (Save) {
      *w = 0;
      std::memcpy(w, &field, sizeof field);
    } else {
      std::memcpy(&field, w, sizeof field);
    }
    ++w;
  };
  for (u64& s : r.rng.s) move(s);
  move(r.max_priority);
  Counters& c = r.counters;
  for (u64* field : {&c.sampled, &c.redrawn, &c.overwritten_unread, &c.late_priorities, &c.consumed}) move(*field);
  for (auto& p : r.partitions) move(p.carry);
  for (auto& s : r.lanes) {
    move(s.floor);
    move(s.cursor);
  }
  if (!Save) r.adopt();
  Py_RETURN_NONE;
}

template <bool Save>
PyObject* reader_priorities(PyObject* o, PyObject* array) {
  Reader& r = unbox<LaneReader>(o).reader;
  Alone alone(unbox<LaneReader>(o).busy, "a reader");
  if (!alone) return nullptr;
  if (!r.rules.prioritised) return raise("SettingError", "this reader samples uniformly and has no priorities");
  u64 places = 0;
  for (auto& s : r.lanes) places += s.lane->capacity;
  View values;
  if (!values.take_array(array, "priorities", {'f', 4}, places, Save)) return nullptr;
  for (u64 i = 0; !Save && i < places; ++i)
    if (!(std::isfinite(values.as<float>()[i]) && values.as<float>()[i] >= 0))
      return raise("SpecError", "priorities[%llu] must be a finite number >= 0", ull(i));
  if (Save) r.save_priorities(values.as<float>());
  else r.load_priorities(values.as<float>());
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"_bind", reader_bind, METH_VARARGS, "Bind the arrays of a batch; returns the number of the target."},
    {"_sample", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(reader_sample)), METH_FASTCALL,
     "_sample(target, beta)\n--\n\nSample a batch into a bound target."},
    {"_take", reader_take, METH_O, "_take(target)\n--\n\nCopy the next fragments into a bound target; return False if there are too few."},
    {"_update", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(reader_update)), METH_FASTCALL,
     "_update(lane, row, priority)\n--\n\nSet the priorities of rows of an earlier batch."},
    {"release", reader_release, METH_NOARGS, "release()\n--\n\nLet writers overwrite the rows that were taken."},
    {"forget", reader_forget, METH_VARARGS,
     "forget(open=False, /)\n--\n\nNever again sample a row that was written before this call; open: nor the next one of each lane."},
    {"limit", reader_limit, METH_VARARGS,
     "limit(ends, room)\n--\n\nLook at no row from the given ones on, one for each lane, until the next call. `room` is how many rows a writer may append meanwhile."},
    {"ready", reader_ready, METH_NOARGS, "ready()\n--\n\nReturn the number of rows from which a transition or a sequence may be sampled."},
    {"fragments", reader_fragments, METH_O, "fragments(length)\n--\n\nReturn the number of fragments of this length that can be taken now."},
    {"_counters", reader_counters, METH_NOARGS, "(sampled, redrawn, overwritten_unread, late_priorities, consumed)"},
    {"save_state", reader_state<true>, METH_O, "save_state(words)\n--\n\nWrite the state that a restarted reader needs into a uint64 array."},
    {"save_priorities", reader_priorities<true>, METH_O,
     "save_priorities(values)\n--\n\nWrite the priorities of all places into a float32 array."},
    {"load_priorities", reader_priorities<false>, METH_O,
     "load_priorities(values)\n--\n\nRestore what save_priorities wrote, after load_state and with the same lanes."},
    {"load_state", reader_state<false>, METH_O, "load_state(words)\n--\n\nContinue from what save_state wrote."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef getset[] = {{"state_words", reader_state_words, nullptr, "Number of words that save_state writes.", nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_reader(PyObject* m) {
  return PyModule_AddIntConstant(m, "READER_WORDS", long(kFixedWords)) == 0 &&
         add_type<LaneReader>(m, "LaneReader", "The reading end of all lanes of a replay.", methods, getset);
}
}  // namespace motet
