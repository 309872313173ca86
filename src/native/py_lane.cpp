// motet._native.LaneWriter: checks and copies what Python gives into the rows of one lane.
#include <memory>

#include "leaf.hpp"

namespace motet {
namespace {
using ull = unsigned long long;
constexpr u64 kUnlockBytes = 1 << 16;
constexpr std::size_t kMaxLeaves = 64;

// A checked value: either a scalar converted into `small`, or a buffer.
struct Value {
  const u8* bytes = nullptr;
  alignas(8) u8 small[8] = {};
  View view;
};

template <class T>
bool all_finite(const T* p, u64 n) {
  // Zero times anything finite is zero; the sum turns into NaN otherwise. Branch-free, so that it vectorises.
  T sum[8] = {};
  u64 i = 0;
  for (; i + 8 <= n; i += 8)
    for (u64 j = 0; j < 8; ++j) sum[j] += p[i + j] * T(0);
  T rest = 0;
  for (; i < n; ++i) rest += p[i] * T(0);
  for (T s : sum) rest += s;
  return rest == T(0);
}

bool all_finite_halves(const u8* bytes, u64 n) {  // float16: an exponent of ones is infinity or NaN
  bool ok = true;
  for (u64 i = 0; i < n; ++i) ok &= (load_racy<std::uint16_t>(bytes + 2 * i) & 0x7c00) != 0x7c00;
  return ok;
}

bool check_finite(const LeafSpec& leaf, const u8* bytes, u64 items) {
  if (!leaf.finite || leaf.dtype.kind != 'f') return true;
  bool ok = leaf.dtype.size == 8   ? all_finite(reinterpret_cast<const double*>(bytes), items)
            : leaf.dtype.size == 4 ? all_finite(reinterpret_cast<const float*>(bytes), items)
                                   : all_finite_halves(bytes, items);
  if (!ok) raise("SpecError", "%s: given NaN or infinity, expected finite numbers", leaf.name.c_str());
  return ok;
}

template <class T>
bool store_int(long long v, u8* to) {
  T t = T(v);
  std::memcpy(to, &t, sizeof t);
  return (long long)t == v && (v >= 0 || T(-1) < T(0));
}

bool store_scalar(const LeafSpec& leaf, double d, long long i, bool integral, u8* to) {
  switch (leaf.dtype.kind) {
    case 'f':
      if (integral) d = double(i);
      if (leaf.dtype.size == 8) std::memcpy(to, &d, 8);
      else if (leaf.dtype.size == 4) {
        float f = float(d);
        std::memcpy(to, &f, 4);
      } else return false;
      return true;
    case 'b': {
      u8 b = integral && i == 1;
      *to = b;
      return integral && (i == 0 || i == 1);
    }
    case 'i':
      if (!integral) return false;
      return leaf.dtype.size == 8   ? store_int<std::int64_t>(i, to)
             : leaf.dtype.size == 4 ? store_int<std::int32_t>(i, to)
             : leaf.dtype.size == 2 ? store_int<std::int16_t>(i, to)
                                    : store_int<std::int8_t>(i, to);
    case 'u':
      if (!integral) return false;
      return leaf.dtype.size == 8   ? store_int<u64>(i, to)
             : leaf.dtype.size == 4 ? store_int<u32>(i, to)
             : leaf.dtype.size == 2 ? store_int<std::uint16_t>(i, to)
                                    : store_int<u8>(i, to);
    default: return false;
  }
}

// A Python or numpy number (0-d) for a leaf without dimensions.
bool take_scalar(const LeafSpec& leaf, PyObject* o, Value& v) {
  v.bytes = v.small;
  bool ok = false;
  if (PyFloat_Check(o)) {
    ok = store_scalar(leaf, PyFloat_AsDouble(o), 0, false, v.small);
  } else if (PyLong_Check(o)) {
    int overflow = 0;
    long long i = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow > 0 && leaf.dtype == Dtype{'u', 8}) {  // the upper half of uint64
      u64 big = PyLong_AsUnsignedLongLong(o);
      std::memcpy(v.small, &big, 8);
      ok = !PyErr_Occurred();
    } else {
      ok = !overflow && store_scalar(leaf, 0, i, true, v.small);
    }
  } else if (View scalar; PyObject_CheckBuffer(o) && scalar.take(o, PyBUF_FULL_RO) && scalar.raw().ndim == 0) {
    Dtype d = dtype_of(scalar.raw().format);
    if (d == leaf.dtype) {
      std::memcpy(v.small, scalar.data(), std::size_t(d.size));
      ok = true;
    } else if (d.kind == 'f') {
      double x = PyFloat_AsDouble(o);
      ok = !PyErr_Occurred() && store_scalar(leaf, x, 0, false, v.small);
    } else if (d.kind) {
      PyObject* index = PyNumber_Long(o);
      long long i = index ? PyLong_AsLongLong(index) : 0;
      Py_XDECREF(index);
      ok = !PyErr_Occurred() && store_scalar(leaf, 0, i, true, v.small);
    }
  }
  if (ok) return check_finite(leaf, v.bytes, 1);
  PyErr_Clear();
  View given;
  std::string what = type_name(o);
  if (PyObject_CheckBuffer(o) && given.take(o, PyBUF_FULL_RO))
    what += " of " + dtype_of(given.raw().format).name() + " " + shape_name(given.raw().shape, given.raw().ndim);
  PyErr_Clear();
  raise("SpecError", "%s: given %R (%s), expected one %s", leaf.name.c_str(), o, what.c_str(), leaf.dtype.name().c_str());
  return false;
}

// rows == 0: one value of the leaf's shape. Otherwise an array with one value per row.
bool take_value(const LeafSpec& leaf, PyObject* o, u64 rows, Value& v) {
  if (rows == 0 && leaf.shape.empty()) return take_scalar(leaf, o, v);
  int extra = rows ? 1 : 0, ndim = int(leaf.shape.size()) + extra;
  if (!v.view.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
    PyErr_Clear();
    bool strided = PyObject_CheckBuffer(o);
    raise("SpecError", "%s: given %s%s, expected a contiguous array of %s%s", leaf.name.c_str(), strided ? "a strided " : "",
          type_name(o).c_str(), leaf.expected(rows).c_str(), strided ? "; use numpy.ascontiguousarray" : "");
    return false;
  }
  const Py_buffer& b = v.view.raw();
  Dtype d = dtype_of(b.format);
  bool same = d == leaf.dtype && b.ndim == ndim && (!rows || u64(b.shape[0]) == rows);
  for (int i = extra; same && i < ndim; ++i) same = b.shape[i] == leaf.shape[std::size_t(i - extra)];
  if (!same) {
    raise("SpecError", "%s: given %s %s, expected %s", leaf.name.c_str(), d.name().c_str(), shape_name(b.shape, b.ndim).c_str(),
          leaf.expected(rows).c_str());
    return false;
  }
  v.bytes = v.view.as<u8>();
  return check_finite(leaf, v.bytes, leaf.items * (rows ? rows : 1));
}

PyObject* writer_type = nullptr;  // motet._native.LaneWriter

struct LaneWriter {
  View memory;
  Lane* lane;
  std::vector<LeafSpec> leaves;
  std::vector<PyObject*> names;  // of arguments: roots, terminated, truncated, version, then final_<root>
  std::size_t roots;
  std::vector<bool> has_final;  // by root: an episode's last row comes with a final_<root>
  u64 incarnation;
  double timeout_s;
  bool begin = true;
  bool busy = false;  // another thread is inside append, waiting or copying without the interpreter's lock
  Spin spin;
  std::vector<Value> values, finals;  // kept, since making them anew would cost more than a small row

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
      raise("SettingError", "fields: given %zu arrays per row in %zd arguments, expected 1 to %zu", w->leaves.size(), n_roots, kMaxLeaves);
      return nullptr;
    }
    if (!(timeout >= 0 && timeout < 1e9)) {
      PyObject* given = PyFloat_FromDouble(timeout);
      raise("SettingError", "timeout_s: given %R, expected seconds from 0 on, and finite", given);
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

  // The value of a leaf inside its argument: a borrowed or new reference in `held`.
  static bool follow(const LeafSpec& leaf, PyObject* argument, PyObject*& held) {
    held = Py_NewRef(argument);
    Py_ssize_t depth = PyTuple_Size(leaf.path);
    for (Py_ssize_t i = 0; i < depth; ++i) {
      PyObject* inner = PyObject_GetItem(held, PyTuple_GetItem(leaf.path, i));
      Py_DECREF(held);
      if (!inner) {
        PyErr_Clear();
        raise("SpecError", "%s: given a %s without it", leaf.name.c_str(), type_name(argument).c_str());
        return false;
      }
      held = inner;
    }
    return true;
  }

  bool check_superseded() {
    u64 now = lane->incarnation.load(std::memory_order_acquire);
    if (now == incarnation) return true;
    raise("SupersededError", "a successor writes to this lane (incarnation %llu, this one is %llu)", ull(now), ull(incarnation));
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
      raise("WaitTimeoutError", "the writer waited %llu ms for the reader to release rows: the lane is full with %llu unread rows",
            ull((now_ns() - start) / 1000000), ull(lane->head.load() - lane->released.load()));
    return room;
  }

  void write_row(u64 row, u64 meta, const std::vector<Value>& from, u64 index, bool final) {
    u8* to = lane->at(lane->place(row));
    copy_racy(to, &meta, 8);
    for (std::size_t f = 0; f < leaves.size(); ++f) {
      const LeafSpec& leaf = leaves[f];
      if (final && !leaf.next) zero_racy(to + leaf.offset, leaf.bytes);
      else copy_racy(to + leaf.offset, from[f].bytes + index * leaf.bytes, leaf.bytes);
    }
    lane->seal(row);
  }

  // One or more rows at once, and the final row behind them; everything was checked.
  u64 write(u64 rows, const std::vector<Value>& from, u64 index, const std::vector<Value>& last, u64 last_index, u64 version,
            bool terminated, bool truncated) {
    bool end = terminated || truncated;
    u64 total = rows + (end ? 1 : 0), first = lane->begin_append(total);
    for (u64 i = 0; i < rows; ++i) {
      u64 flags = i == 0 && begin ? u64(kBegin) : 0;
      if (i + 1 == rows) flags |= (terminated ? u64(kTerminated) : 0) | (truncated ? u64(kTruncated) : 0);
      write_row(first + i, version << kVersionShift | flags, from, index + i, false);
    }
    if (end) write_row(first + rows, version << kVersionShift | kFinal, last, last_index, true);
    lane->end_append(first, total);
    lane->prefetch_for_write(first + total + 1);
    if (end) lane->finals.fetch_add(1, std::memory_order_relaxed);
    begin = end;
    return first + total;
  }

  struct Hold;
  bool sort_arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** given);
  bool take_values(PyObject* const* given, bool end, u64 rows, u64 last_rows, Hold& hold);
  PyObject* append(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool many);
  PyObject* append_rows(PyObject* given);
};

// For the time of one append: nobody else is inside, and what is held of Python's is given back at the end.
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

bool as_flag(PyObject* o, bool& out) {
  if (!o) return true;
  int truth = PyObject_IsTrue(o);
  out = truth > 0;
  return truth >= 0;
}

bool as_version(PyObject* o, u64& out) {
  PyObject* index = PyNumber_Index(o);
  if (index) out = PyLong_AsUnsignedLongLong(index);
  Py_XDECREF(index);
  if (!PyErr_Occurred() && !(out >> (64 - kVersionShift))) return true;
  PyErr_Clear();
  raise("SpecError", "version: given %R, expected an integer from 0 on, less than 2**56", o);
  return false;
}

// Which argument is given for which name: borrowed references in the order of `names`.
bool LaneWriter::sort_arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** given) {
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
      raise("SpecError", "%U: this replay has no such field", key);
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

// Checks every field and finds its bytes. Rows: how many values an argument holds, 0 for one without an axis of rows.
bool LaneWriter::take_values(PyObject* const* given, bool end, u64 rows, u64 last_rows, Hold& hold) {
  for (std::size_t f = 0; f < leaves.size(); ++f) {
    const LeafSpec& leaf = leaves[f];
    for (bool last : {false, true}) {
      PyObject* argument = given[last ? roots + 3 + leaf.root : leaf.root];
      bool needed = !last || (end && leaf.next);
      if (!needed) {
        if (last && argument && !has_final[leaf.root]) {
          raise("SpecError", "%U: given, but this field has no next: make it with Field(next=True)", names[roots + 3 + leaf.root]);
          return false;
        }
        if (last && argument && !end) {
          raise("SpecError", "%U: given without terminated or truncated, expected only with the episode's last row",
                names[roots + 3 + leaf.root]);
          return false;
        }
        continue;
      }
      if (!argument) {
        raise("SpecError", "%U: missing; %s", names[last ? roots + 3 + leaf.root : leaf.root],
              last ? "the last row of an episode comes with what is observed behind it" : "every field needs a value");
        return false;
      }
      if (PyTuple_Size(leaf.path)) {
        PyObject* inner;
        if (!follow(leaf, argument, inner)) return false;
        hold.objects.push_back(argument = inner);
      }
      if (!take_value(leaf, argument, last ? last_rows : rows, last ? finals[f] : values[f])) return false;
    }
  }
  return true;
}

PyObject* LaneWriter::append(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool many) {
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
    if (!argument) return raise("SpecError", "%U: missing; every field needs a value", names[leaf.root]);
    PyObject* first;
    if (!follow(leaf, argument, first)) return nullptr;
    View any;
    bool ok = any.take(first, PyBUF_FULL_RO) && any.raw().ndim >= 1;
    PyErr_Clear();
    if (ok) rows = u64(any.raw().shape[0]);
    else raise("SpecError", "%s: given %s, expected an array of %s", leaf.name.c_str(), type_name(first).c_str(), leaf.expected(true).c_str());
    any.drop();
    Py_DECREF(first);
    if (!ok) return nullptr;
    if (rows == 0 && (terminated || truncated))
      return raise("SpecError", "%s: given 0 rows with an end, expected at least the row that ended the episode", leaf.name.c_str());
    if (rows == 0) return PyLong_FromUnsignedLongLong(lane->head.load(std::memory_order_relaxed));
  }

  bool end = terminated || truncated;
  // Everything is checked before the first byte is written: a refused row leaves no trace.
  if (busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: one writer each");
  Hold hold(*this);
  if (!take_values(given, end, many ? rows : 0, 0, hold)) return nullptr;
  if (!check_superseded()) return nullptr;
  u64 total = rows + (end ? 1 : 0);
  if (total > lane->capacity)
    return raise("SpecError", "rows: given %llu at once, expected at most the lane's capacity of %llu", ull(total), ull(lane->capacity));
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

// Rows as lane_rows gave them, of a lane of the same spec elsewhere: as many as there is room for, without waiting.
PyObject* LaneWriter::append_rows(PyObject* given) {
  View bytes;
  if (!bytes.take(given, PyBUF_SIMPLE)) return nullptr;
  if (bytes.bytes() % lane->row_bytes)
    return raise("SpecError", "rows: given %llu bytes, expected whole rows of %llu bytes", ull(bytes.bytes()), ull(lane->row_bytes));
  if (busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: one writer each");
  if (!check_superseded()) return nullptr;
  u64 rows = std::min(bytes.bytes() / lane->row_bytes, lane->capacity), head = lane->head.load(std::memory_order_relaxed);
  if (lane->once) rows = std::min(rows, lane->released.load(std::memory_order_acquire) + lane->capacity - head);
  if (rows == 0) return PyLong_FromLong(0);
  Hold hold(*this);
  u64 finals = 0, breaks = 0;
  auto write = [&] {
    const u8* from = bytes.as<u8>();
    bool ended = begin;  // a fresh writer has counted what its predecessor left
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
      lane->seal(first + i);
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

// The writing ends of several lanes of one replay, which take one row each in one call.
struct LaneWriters {
  std::vector<PyObject*> held;
  std::vector<LaneWriter*> writers;

  ~LaneWriters() {
    for (PyObject* o : held) Py_DECREF(o);
  }

  static LaneWriters* make(PyObject* args, PyObject* kwargs) {
    PyObject* given;
    static const char* keys[] = {"writers", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", const_cast<char**>(keys), &given)) return nullptr;
    Py_ssize_t n = PySequence_Size(given);
    if (n < 0) return nullptr;
    auto all = std::make_unique<LaneWriters>();
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* o = PySequence_GetItem(given, i);
      if (!o) return nullptr;
      all->held.push_back(o);
      if (PyObject_IsInstance(o, writer_type) != 1) {
        if (!PyErr_Occurred()) raise("SettingError", "writers: given %R, expected writers of lanes", o);
        return nullptr;
      }
      all->writers.push_back(&unbox<LaneWriter>(o));
      if (all->writers[0]->lane->spec_hash != all->writers.back()->lane->spec_hash) {
        raise("SettingError", "writers: given lanes with different rows, expected lanes of one replay");
        return nullptr;
      }
    }
    if (all->writers.empty()) {
      raise("SettingError", "writers: given none, expected 1 or more");
      return nullptr;
    }
    return all.release();
  }

  // Flags of rows: an array of bool with one for each, or nothing.
  static bool take_flags(PyObject* o, const char* name, u64 rows, View& view) {
    if (!o || o == Py_None) return true;
    if (view.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) && view.raw().ndim == 1 && u64(view.raw().shape[0]) == rows &&
        dtype_of(view.raw().format) == Dtype{'b', 1})
      return true;
    PyErr_Clear();
    raise("SpecError", "%s: given %R, expected an array of bool with one for each of %llu rows", name, o, ull(rows));
    return false;
  }

  PyObject* append(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
    LaneWriter& first = *writers[0];
    if (nargs < 1) return PyErr_Format(PyExc_TypeError, "append takes the lanes and then a value for every field");
    View at;
    if (!at.take(args[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) || at.raw().ndim != 1 || !(dtype_of(at.raw().format) == Dtype{'i', 8})) {
      PyErr_Clear();
      return raise("SpecError", "lanes: given %R, expected an array of int64 with one for each row", args[0]);
    }
    const i64* lanes = at.as<i64>();
    u64 rows = u64(at.raw().shape[0]);
    for (u64 i = 0; i < rows; ++i)
      if (lanes[i] < 0 || u64(lanes[i]) >= writers.size())
        return raise("SpecError", "lanes: given %lld, expected 0 to %zu", (long long)lanes[i], writers.size() - 1);
    PyObject* given[2 * kMaxLeaves + 3];
    if (!first.sort_arguments(args + 1, nargs - 1, kwnames, given)) return nullptr;
    if (rows == 0) Py_RETURN_NONE;
    std::size_t roots = first.roots;
    View terminated, truncated, versions;
    if (!take_flags(given[roots], "terminated", rows, terminated) || !take_flags(given[roots + 1], "truncated", rows, truncated))
      return nullptr;
    auto flag = [](const View& view, u64 i) { return view.data() && view.as<u8>()[i]; };
    bool end = terminated.data() || truncated.data();
    for (u64 i = 0; end && i < rows; ++i)
      if (!flag(terminated, i) && !flag(truncated, i))
        return raise("SpecError", "row %llu: neither terminated nor truncated, expected rows that end all together or not at all", ull(i));
    u64 version = 0;
    bool several = false;
    if (PyObject* o = given[roots + 2]) {
      several = !PyLong_Check(o) && versions.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) && versions.raw().ndim == 1;
      PyErr_Clear();
      if (several) {
        if (u64(versions.raw().shape[0]) != rows || !(dtype_of(versions.raw().format) == Dtype{'u', 8}))
          return raise("SpecError", "version: given %R, expected an array of uint64 with one for each of %llu rows", o, ull(rows));
        for (u64 i = 0; i < rows; ++i)
          if (versions.as<u64>()[i] >> (64 - kVersionShift)) return raise("SpecError", "version: given %R, expected less than 2**56", o);
      } else {
        if (!as_version(o, version)) return nullptr;
      }
    }
    if (first.busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to these lanes: one writer each");
    for (u64 i = 0; i < rows; ++i)
      if (writers[u64(lanes[i])]->busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: one writer each");
    LaneWriter::Hold hold(first);
    if (!first.take_values(given, end, rows, rows, hold)) return nullptr;
    for (u64 i = 0; i < rows; ++i)
      if (!writers[u64(lanes[i])]->check_superseded() || !writers[u64(lanes[i])]->wait_for_room(end ? 2 : 1)) return nullptr;
    auto write = [&] {
      for (u64 i = 0; i < rows; ++i)
        writers[u64(lanes[i])]->write(1, first.values, i, first.finals, i, several ? versions.as<u64>()[i] : version,
                                      flag(terminated, i), flag(truncated, i));
    };
    if (rows * first.lane->row_bytes >= kUnlockBytes) {
      Unlocked unlocked;
      write();
    } else {
      write();
    }
    Py_RETURN_NONE;
  }
};

// How far the writers of all lanes of a replay are; whoever has the memory may look.
struct LaneCounts {
  std::vector<View> memory;

  static LaneCounts* make(PyObject* args, PyObject* kwargs) {
    PyObject* given;
    static const char* keys[] = {"lanes", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", const_cast<char**>(keys), &given)) return nullptr;
    Py_ssize_t n = PySequence_Size(given);
    if (n < 0) return nullptr;
    auto counts = std::make_unique<LaneCounts>();
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* buffer = PySequence_GetItem(given, i);
      if (!buffer) return nullptr;
      View view;
      bool ok = view.take_shared(buffer, "memory of a lane", sizeof(Lane));
      Py_DECREF(buffer);
      if (!ok) return nullptr;
      if (view.as<Lane>()->magic != Lane::kMagic) {
        raise("CorruptionError", "this memory holds no lane (fresh, or damaged)");
        return nullptr;
      }
      counts->memory.push_back(std::move(view));
    }
    return counts.release();
  }
  template <class Count>
  PyObject* sum(Count count) const {
    u64 all = 0;
    for (const View& view : memory) all += count(*view.as<Lane>());
    return PyLong_FromUnsignedLongLong(all);
  }
};

// The final rows are counted behind the head: read first, they never make it look as if a step were missing.
PyObject* counts_steps(PyObject* o, PyObject*) {
  return unbox<LaneCounts>(o).sum([](const Lane& lane) {
    u64 finals = lane.finals.load(std::memory_order_acquire);
    return lane.head.load(std::memory_order_acquire) - finals;
  });
}
PyObject* counts_rows(PyObject* o, PyObject*) {
  return unbox<LaneCounts>(o).sum([](const Lane& lane) { return lane.head.load(std::memory_order_acquire); });
}

PyObject* writers_append(PyObject* o, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return unbox<LaneWriters>(o).append(args, n, names);
}
PyObject* writer_append(PyObject* o, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return unbox<LaneWriter>(o).append(args, n, names, false);
}
PyObject* writer_append_many(PyObject* o, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return unbox<LaneWriter>(o).append(args, n, names, true);
}
PyObject* writer_append_rows(PyObject* o, PyObject* rows) { return unbox<LaneWriter>(o).append_rows(rows); }
PyObject* interrupt(LaneWriter& w) {
  if (w.busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: one writer each");
  if (!w.check_superseded()) return nullptr;
  w.lane->count_broken();
  w.begin = true;
  Py_RETURN_NONE;
}
PyObject* writer_interrupt(PyObject* o, PyObject*) { return interrupt(unbox<LaneWriter>(o)); }
PyObject* writers_interrupt(PyObject* o, PyObject* lane) {
  auto& writers = unbox<LaneWriters>(o).writers;
  std::size_t i = PyLong_AsSize_t(lane);
  if (PyErr_Occurred() || i >= writers.size()) {
    PyErr_Clear();
    return raise("SpecError", "lane: given %R, expected 0 to %zu", lane, writers.size() - 1);
  }
  return interrupt(*writers[i]);
}

template <std::atomic<u64> Lane::*Word>
PyObject* word(PyObject* o, void*) {
  return PyLong_FromUnsignedLongLong((unbox<LaneWriter>(o).lane->*Word).load(std::memory_order_acquire));
}

PyObject* lane_bytes(PyObject*, PyObject* args) {
  ull capacity, row;
  if (!parse_sizes(args, &capacity, &row)) return nullptr;
  if (!Lane::possible(capacity, row)) return raise("MemoryShortError", "capacity: %llu rows of %llu bytes are more than any machine can hold", capacity, row);
  return PyLong_FromUnsignedLongLong(Lane::bytes(capacity, row));
}
PyObject* lane_format(PyObject*, PyObject* args) {
  PyObject* buffer;
  ull capacity, row, hash;
  int checked, once;
  if (!PyArg_ParseTuple(args, "OKKKpp", &buffer, &capacity, &row, &hash, &checked, &once)) return nullptr;
  if (!capacity || row < 8 || row % 8 || !Lane::possible(capacity, row))
    return raise("SettingError", "a lane of %llu rows of %llu bytes cannot be made", capacity, row);
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", Lane::bytes(capacity, row))) return nullptr;
  memory.as<Lane>()->format(capacity, row, hash, checked, once);
  Py_RETURN_NONE;
}
// What anybody may read of a lane, as a tuple: reserve, head, incarnation, broken, waits, waited_ns, released, finals.
PyObject* lane_words(PyObject*, PyObject* buffer) {
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", sizeof(Lane))) return nullptr;
  Lane* l = memory.as<Lane>();
  if (l->magic != Lane::kMagic) return raise("CorruptionError", "this memory holds no lane (fresh, or damaged)");
  return Py_BuildValue("(KKKKKKKK)", ull(l->reserve.load()), ull(l->head.load()), ull(l->incarnation.load()), ull(l->broken.load()),
                       ull(l->waits.load()), ull(l->waited_ns.load()), ull(l->released.load()), ull(l->finals.load()));
}

// For whoever carries the rows of a lane elsewhere. The lane is read once, so nothing is overwritten that was not released.
PyObject* lane_rows(PyObject*, PyObject* args) {
  PyObject* buffer;
  ull first, most;
  if (!PyArg_ParseTuple(args, "OKK", &buffer, &first, &most)) return nullptr;
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", sizeof(Lane))) return nullptr;
  Lane* l = memory.as<Lane>();
  if (l->magic != Lane::kMagic) return raise("CorruptionError", "this memory holds no lane (fresh, or damaged)");
  u64 head = l->head.load(std::memory_order_acquire);
  if (!l->once || first < l->released.load(std::memory_order_relaxed) || first > head)
    return raise("SettingError", "first: given %llu, expected a row of a lane that is read once, not released yet, up to %llu", first, ull(head));
  u64 rows = std::min<u64>(head - first, most);
  PyObject* out = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(rows * l->row_bytes));
  if (!out) return nullptr;
  u8* to = reinterpret_cast<u8*>(PyBytes_AsString(out));
  for (u64 i = 0; i < rows; ++i, to += l->row_bytes) {
    copy_racy(to, l->at(l->place(first + i)), l->row_bytes);
    u64 sum = 0;
    if (l->checked) std::memcpy(&sum, to + l->row_bytes - 8, 8);
    if (l->checked && sum != l->row_sum(to, first + i)) {
      Py_DECREF(out);
      return raise("CorruptionError", "row %llu: its checksum does not fit", ull(first + i));
    }
  }
  return out;
}
PyObject* lane_release(PyObject*, PyObject* args) {
  PyObject* buffer;
  ull row;
  if (!PyArg_ParseTuple(args, "OK", &buffer, &row)) return nullptr;
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", sizeof(Lane))) return nullptr;
  Lane* l = memory.as<Lane>();
  if (l->magic != Lane::kMagic) return raise("CorruptionError", "this memory holds no lane (fresh, or damaged)");
  if (row < l->released.load(std::memory_order_relaxed) || row > l->head.load(std::memory_order_relaxed))
    return raise("SettingError", "row: given %llu, expected %llu to %llu", row, ull(l->released.load()), ull(l->head.load()));
  l->released.store(row, std::memory_order_release);
  l->room.ring();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"lane_bytes", lane_bytes, METH_VARARGS, "lane_bytes(capacity, row_bytes)\n--\n\nHow much memory a lane takes."},
    {"lane_format", lane_format, METH_VARARGS,
     "lane_format(memory, capacity, row_bytes, spec_hash, checked, once)\n--\n\nMake memory an empty lane."},
    {"lane_words", lane_words, METH_O,
     "lane_words(memory)\n--\n\n(reserve, head, incarnation, broken, waits, waited_ns, released, finals) of a lane."},
    {"lane_rows", lane_rows, METH_VARARGS,
     "lane_rows(memory, first, most)\n--\n\nA copy of the complete rows from `first` on, of a lane that is read once."},
    {"lane_release", lane_release, METH_VARARGS, "lane_release(memory, row)\n--\n\nRows before this one may be overwritten."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef methods[] = {
    {"append", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writer_append)), METH_FASTCALL | METH_KEYWORDS,
     "Append one step; with terminated or truncated also the episode's final row. Returns the rows written so far."},
    {"append_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writer_append_many)), METH_FASTCALL | METH_KEYWORDS,
     "Append consecutive steps of one episode: arrays with one value per row. The flags belong to the last of them."},
    {"append_rows", writer_append_rows, METH_O,
     "Append rows of another lane of the same spec, as lane_rows gave them; how many there was room for."},
    {"interrupt", writer_interrupt, METH_NOARGS, "interrupt()\n--\n\nThe episode broke off: the next row begins a new one."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef many_methods[] = {
    {"append", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writers_append)), METH_FASTCALL | METH_KEYWORDS,
     "Append one step to each of some lanes: their numbers (int64), then arrays with one value per lane."},
    {"interrupt", writers_interrupt, METH_O, "interrupt(lane)\n--\n\nThe episode in this lane broke off."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef count_methods[] = {
    {"steps", counts_steps, METH_NOARGS, "steps()\n--\n\nRows written so far but for the final ones, in all lanes."},
    {"rows", counts_rows, METH_NOARGS, "rows()\n--\n\nRows written so far, in all lanes."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef no_getset[] = {{nullptr, nullptr, nullptr, nullptr, nullptr}};
PyGetSetDef getset[] = {{"head", word<&Lane::head>, nullptr, "Rows written so far.", nullptr},
                        {"waits", word<&Lane::waits>, nullptr, "How often an append waited for room.", nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_lane(PyObject* m) {
  return PyModule_AddFunctions(m, functions) == 0 &&
         add_type<LaneWriter>(m, "LaneWriter", "The writing end of one lane.", methods, getset) &&
         (writer_type = PyObject_GetAttrString(m, "LaneWriter")) &&
         add_type<LaneCounts>(m, "LaneCounts", "How far the writers of some lanes are.", count_methods, no_getset) &&
         add_type<LaneWriters>(m, "LaneWriters", "The writing ends of several lanes of one replay.", many_methods, no_getset);
}
}  // namespace motet
