// The writing end of one lane: sorts and checks the arguments from Python, waits for room, writes rows.
#pragma once
#include <memory>

#include "python/value.hpp"

namespace motet {
using ull = unsigned long long;
constexpr u64 kUnlockBytes = 1 << 16;
constexpr std::size_t kMaxLeaves = 64;

struct LaneWriter {
  View memory;
  Lane* lane;
  std::vector<LeafSpec> leaves;
  std::vector<PyObject*> names;  // names of arguments: roots, terminated, truncated, version, then final_<root>
  std::size_t roots;
  std::vector<bool> has_final;  // by root: whether the last step of an episode needs a final_<root>
  u64 incarnation;
  double timeout_s;
  u64 ahead = 0;  // the place after the next row's place
  bool begin = true;
  bool busy = false;  // another thread is inside append, waiting or copying without the interpreter's lock
  Spin spin;
  std::vector<Value> values, finals;  // reused, because allocating them again would cost more than writing a small row

  ~LaneWriter() {
    for (PyObject* n : names) Py_DECREF(n);
  }

  static LaneWriter* make(PyObject* args, PyObject* kwargs) {
    PyObject *buffer, *specs, *roots;
    ull row_bytes, hash;
    double timeout;
    int goes_on = 0;
    static const char* keys[] = {"memory", "leaves", "roots", "row_bytes", "spec_hash", "timeout_s", "goes_on", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOKKd|p", const_cast<char**>(keys), &buffer, &specs, &roots, &row_bytes,
                                     &hash, &timeout, &goes_on))
      return nullptr;
    auto w = std::make_unique<LaneWriter>();
    if (!(w->lane = open_lane(w->memory, buffer, row_bytes, hash))) return nullptr;
    if (!parse_leaves(specs, row_bytes, w->leaves)) return nullptr;
    Py_ssize_t n_roots = PySequence_Size(roots);
    if (n_roots < 0) return nullptr;
    if (w->leaves.empty() || w->leaves.size() > kMaxLeaves || std::size_t(n_roots) > kMaxLeaves) {
      raise("SettingError", "fields must be 1 to %zu arrays per row, got %zu in %zd arguments", kMaxLeaves, w->leaves.size(), n_roots);
      return nullptr;
    }
    if (!(timeout >= 0 && timeout < 1e9)) {
      PyObject* given = PyFloat_FromDouble(timeout);
      raise("SettingError", "timeout_s must be a finite number of seconds >= 0, got %R", given);
      Py_XDECREF(given);
      return nullptr;
    }
    w->values.resize(w->leaves.size());
    w->finals.resize(w->leaves.size());
    w->roots = std::size_t(n_roots);
    w->has_final.assign(w->roots, false);
    std::vector<std::string> all;
    for (std::size_t i = 0; i < w->roots; ++i) {
      PyObject* name = PySequence_GetItem(roots, Py_ssize_t(i));
      const char* text = name ? PyUnicode_AsUTF8AndSize(name, nullptr) : nullptr;
      if (text) all.emplace_back(text);
      Py_XDECREF(name);
      if (!text) return nullptr;
    }
    for (const char* name : {"terminated", "truncated", "version"}) all.emplace_back(name);
    for (std::size_t i = 0; i < w->roots; ++i) all.push_back("final_" + all[i]);
    for (auto& name : all) {
      PyObject* s = PyUnicode_InternFromString(name.c_str());
      if (!s) return nullptr;
      w->names.push_back(s);
    }
    for (auto& leaf : w->leaves)
      if (leaf.root >= w->roots) {
        raise("SpecError", "%s: no argument number %u", leaf.name.c_str(), leaf.root);
        return nullptr;
      }
    for (auto& leaf : w->leaves)
      if (leaf.next) w->has_final[leaf.root] = true;
    w->timeout_s = timeout;
    w->incarnation = w->lane->incarnation.fetch_add(1, std::memory_order_acq_rel) + 1;
    u64 head = w->lane->head.load(std::memory_order_acquire);
    if (goes_on) w->begin = head == 0 || w->lane->meta(w->lane->place(head - 1)) & kFinal;
    else w->lane->count_broken();
    return w.release();
  }

  // Finds the value of a leaf inside its argument: a borrowed or new reference in `held`.
  static bool follow(const LeafSpec& leaf, PyObject* argument, PyObject*& held) {
    held = Py_NewRef(argument);
    Py_ssize_t depth = PyTuple_Size(leaf.path);
    for (Py_ssize_t i = 0; i < depth; ++i) {
      PyObject* inner = PyObject_GetItem(held, PyTuple_GetItem(leaf.path, i));
      Py_DECREF(held);
      if (!inner) {
        PyErr_Clear();
        raise("SpecError", "%s is missing in the given %s", leaf.name.c_str(), type_name(argument).c_str());
        return false;
      }
      held = inner;
    }
    return true;
  }

  bool check_superseded() {
    u64 now = lane->incarnation.load(std::memory_order_acquire);
    if (now == incarnation) return true;
    raise("SupersededError", "another writer has taken over this lane (incarnation %llu, this one is %llu)", ull(now), ull(incarnation));
    return false;
  }

  bool wait_for_room(u64 rows) {
    if (lane->has_room(rows)) return true;
    i64 start = now_ns(), deadline = start + i64(timeout_s * 1e9);
    lane->waits.fetch_add(1, std::memory_order_relaxed);
    bool room = false;
    while (!room && now_ns() < deadline) {
      u32 seen = lane->room.read();
      if ((room = lane->has_room(rows))) break;
      {
        Unlocked unlocked;
        lane->room.wait_slice(seen, deadline, spin);
      }
      if (PyErr_CheckSignals() || !check_superseded()) break;
      room = lane->has_room(rows);
    }
    lane->waited_ns.fetch_add(u64(now_ns() - start), std::memory_order_relaxed);
    if (PyErr_Occurred()) return false;
    if (!room)
      raise("WaitTimeoutError", "the writer waited %llu ms for the reader to release rows; the lane is full with %llu unread rows",
            ull((now_ns() - start) / 1000000), ull(lane->head.load() - lane->released.load()));
    return room;
  }

  void write_row(u64 row, u64 place, u64 meta, const std::vector<Value>& from, u64 index, bool final) {
    u8* to = lane->at(place);
    copy_racy(to, &meta, 8);
    for (std::size_t f = 0; f < leaves.size(); ++f) {
      const LeafSpec& leaf = leaves[f];
      if (final && !leaf.next) zero_racy(to + leaf.offset, leaf.bytes);
      else copy_racy(to + leaf.offset, from[f].bytes + index * leaf.bytes, leaf.bytes);
    }
    lane->seal(row, to);
  }

  // Writes one or more rows at once, and the final row after them; everything was checked before.
  u64 write(u64 rows, const std::vector<Value>& from, u64 index, const std::vector<Value>& last, u64 last_index, u64 version,
            bool terminated, bool truncated) {
    bool end = terminated || truncated;
    u64 total = rows + (end ? 1 : 0), first = lane->begin_append(total);
    u64 place = lane->place(first);
    lane->prefetch_for_write(ahead, true);
    for (u64 i = 0; i < rows; ++i, place = lane->after(place)) {
      u64 flags = i == 0 && begin ? u64(kBegin) : 0;
      if (i + 1 == rows) flags |= (terminated ? u64(kTerminated) : 0) | (truncated ? u64(kTruncated) : 0);
      write_row(first + i, place, version << kVersionShift | flags, from, index + i, false);
    }
    if (end) {
      write_row(first + rows, place, version << kVersionShift | kFinal, last, last_index, true);
      place = lane->after(place);
    }
    lane->end_append(first, total);
    lane->prefetch_for_write(ahead = lane->after(place), false);
    if (end) lane->finals.fetch_add(1, std::memory_order_relaxed);
    begin = end;
    return first + total;
  }

  struct Hold;
  bool sort_arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** given);
  bool take_values(PyObject* const* given, bool end, u64 rows, u64 last_rows, Hold& hold);
  PyObject* append(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool many);
  PyObject* append_rows(PyObject* given);
  PyObject* interrupt();
};

// Guards a writer during one append: no other thread may enter it, and Python references are released at the end.
struct LaneWriter::Hold {
  LaneWriter& writer;
  std::vector<PyObject*> objects;
  explicit Hold(LaneWriter& w) : writer(w) { w.busy = true; }
  ~Hold() {
    for (auto& v : writer.values) v.view.drop();
    for (auto& v : writer.finals) v.view.drop();
    for (PyObject* o : objects) Py_DECREF(o);
    writer.busy = false;
  }
};

inline bool as_flag(PyObject* o, bool& out) {
  if (!o) return true;
  int truth = PyObject_IsTrue(o);
  out = truth > 0;
  return truth >= 0;
}

inline bool as_version(PyObject* o, u64& out) {
  PyObject* index = PyNumber_Index(o);
  if (index) out = PyLong_AsUnsignedLongLong(index);
  Py_XDECREF(index);
  if (!PyErr_Occurred() && !(out >> (64 - kVersionShift))) return true;
  PyErr_Clear();
  raise("SpecError", "version must be an integer >= 0 and less than 2**56, got %R", o);
  return false;
}

// Sorts the arguments by name: borrowed references in the order of `names`.
inline bool LaneWriter::sort_arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** given) {
  std::fill_n(given, names.size(), nullptr);
  if (std::size_t(nargs) > roots) {
    PyErr_Format(PyExc_TypeError, "append takes %zu positional arguments, %zd given", roots, nargs);
    return false;
  }
  for (Py_ssize_t i = 0; i < nargs; ++i) given[i] = args[i];
  Py_ssize_t nkw = kwnames ? PyTuple_Size(kwnames) : 0;
  for (Py_ssize_t k = 0; k < nkw; ++k) {
    PyObject* key = PyTuple_GetItem(kwnames, k);
    std::size_t i = 0;
    while (i < names.size() && names[i] != key) ++i;
    if (i == names.size()) {
      i = 0;
      while (i < names.size() && PyUnicode_Compare(names[i], key) != 0) ++i;
    }
    if (i == names.size()) {
      raise("SpecError", "%U is not a field of this replay", key);
      return false;
    }
    if (given[i]) {
      PyErr_Format(PyExc_TypeError, "append got more than one value for %U", key);
      return false;
    }
    given[i] = args[nargs + k];
  }
  return true;
}

// Checks every field and finds its bytes. Rows: the number of values in an argument; 0 for one value without a row axis.
inline bool LaneWriter::take_values(PyObject* const* given, bool end, u64 rows, u64 last_rows, Hold& hold) {
  for (std::size_t f = 0; f < leaves.size(); ++f) {
    LeafSpec& leaf = leaves[f];
    for (bool last : {false, true}) {
      PyObject* argument = given[last ? roots + 3 + leaf.root : leaf.root];
      bool needed = !last || (end && leaf.next);
      if (!needed) {
        if (last && argument && !has_final[leaf.root]) {
          raise("SpecError", "%U is not valid: this field has no next value; make it with Field(next=True)", names[roots + 3 + leaf.root]);
          return false;
        }
        if (last && argument && !end) {
          raise("SpecError", "%U is only valid with terminated or truncated, for the last step of an episode",
                names[roots + 3 + leaf.root]);
          return false;
        }
        continue;
      }
      if (!argument) {
        raise("SpecError", "%U is missing: %s", names[last ? roots + 3 + leaf.root : leaf.root],
              last ? "the last step of an episode needs the final values" : "every field needs a value");
        return false;
      }
      if (leaf.nested) {
        PyObject* inner;
        if (!follow(leaf, argument, inner)) return false;
        hold.objects.push_back(argument = inner);
      }
      if (!take_value(leaf, argument, last ? last_rows : rows, last ? finals[f] : values[f])) return false;
    }
  }
  return true;
}

inline PyObject* LaneWriter::append(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool many) {
  PyObject* given[2 * kMaxLeaves + 3];
  if (!sort_arguments(args, nargs, kwnames, given)) return nullptr;
  bool terminated = false, truncated = false;
  if (!as_flag(given[roots], terminated) || !as_flag(given[roots + 1], truncated)) return nullptr;
  u64 version = 0;
  if (given[roots + 2] && !as_version(given[roots + 2], version)) return nullptr;

  u64 rows = 1;
  if (many) {
    const LeafSpec& leaf = leaves[0];
    PyObject* argument = given[leaf.root];
    if (!argument) return raise("SpecError", "%U is missing: every field needs a value", names[leaf.root]);
    PyObject* first;
    if (!follow(leaf, argument, first)) return nullptr;
    View any;
    bool ok = any.take(first, PyBUF_FULL_RO) && any.raw().ndim >= 1;
    PyErr_Clear();
    if (ok) rows = u64(any.raw().shape[0]);
    else raise("SpecError", "%s must be an array of %s, got %s", leaf.name.c_str(), leaf.expected(true).c_str(), type_name(first).c_str());
    any.drop();
    Py_DECREF(first);
    if (!ok) return nullptr;
    if (rows == 0 && (terminated || truncated))
      return raise("SpecError", "%s must have 1 or more rows with terminated or truncated, got 0", leaf.name.c_str());
    if (rows == 0) return PyLong_FromUnsignedLongLong(lane->head.load(std::memory_order_relaxed));
  }

  bool end = terminated || truncated;
  // Everything is checked before the first byte is written, so that a refused row changes nothing.
  if (busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: a lane has one writer at a time");
  Hold hold(*this);
  if (!take_values(given, end, many ? rows : 0, 0, hold)) return nullptr;
  if (!check_superseded()) return nullptr;
  u64 total = rows + (end ? 1 : 0);
  if (total > lane->capacity)
    return raise("SpecError", "rows must be at most the lane's capacity of %llu, got %llu at once", ull(lane->capacity), ull(total));
  if (!wait_for_room(total)) return nullptr;
  u64 head;
  if (rows * lane->row_bytes >= kUnlockBytes) {
    Unlocked unlocked;
    head = write(rows, values, 0, finals, 0, version, terminated, truncated);
  } else {
    head = write(rows, values, 0, finals, 0, version, terminated, truncated);
  }
  return PyLong_FromUnsignedLongLong(head);
}

// Appends rows that lane_rows copied from another lane of the same spec: as many as fit, without waiting.
inline PyObject* LaneWriter::append_rows(PyObject* given) {
  View bytes;
  if (!bytes.take(given, PyBUF_SIMPLE)) return nullptr;
  if (bytes.bytes() % lane->row_bytes)
    return raise("SpecError", "rows must be whole rows of %llu bytes, got %llu bytes", ull(lane->row_bytes), ull(bytes.bytes()));
  if (busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: a lane has one writer at a time");
  if (!check_superseded()) return nullptr;
  u64 rows = std::min(bytes.bytes() / lane->row_bytes, lane->capacity), head = lane->head.load(std::memory_order_relaxed);
  if (lane->once) rows = std::min(rows, lane->released.load(std::memory_order_acquire) + lane->capacity - head);
  if (rows == 0) return PyLong_FromLong(0);
  Hold hold(*this);
  u64 finals = 0, breaks = 0;
  auto write = [&] {
    const u8* from = bytes.as<u8>();
    bool ended = begin;  // a new writer has counted the unfinished segment that it found
    u64 first = lane->begin_append(rows);
    for (u64 i = 0; i < rows; ++i, from += lane->row_bytes) {
      u64 meta;
      std::memcpy(&meta, from, 8);
      if (i == 0 && begin) meta |= kBegin;
      breaks += !ended && meta & kBegin;
      ended = meta & kFinal;
      finals += ended;
      u8* to = lane->at(lane->place(first + i));
      copy_racy(to, &meta, 8);
      copy_racy(to + 8, from + 8, lane->row_bytes - 8);
      lane->seal(first + i, to);
    }
    lane->end_append(first, rows);
    begin = ended;
  };
  if (rows * lane->row_bytes >= kUnlockBytes) {
    Unlocked unlocked;
    write();
  } else {
    write();
  }
  lane->finals.fetch_add(finals, std::memory_order_relaxed);
  lane->broken.fetch_add(breaks, std::memory_order_relaxed);
  return PyLong_FromUnsignedLongLong(rows);
}

inline PyObject* LaneWriter::interrupt() {
  if (busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: a lane has one writer at a time");
  if (!check_superseded()) return nullptr;
  lane->count_broken();
  begin = true;
  Py_RETURN_NONE;
}
}  // namespace motet
