// motet._native.LaneWriters and LaneCounts: several lanes of one replay at once.
#include "python/writer.hpp"

namespace motet {
namespace {
PyObject* writer_type = nullptr;  // motet._native.LaneWriter

// The writing ends of several lanes of one replay; one call appends one row to each of them.
struct LaneWriters {
  std::vector<PyObject*> held;
  std::vector<LaneWriter*> writers;
  std::vector<u64> asked;  // by lane: number of the last call that named the lane
  u64 calls = 0;

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
        if (!PyErr_Occurred()) raise("SettingError", "writers must be writers of lanes, got %R", o);
        return nullptr;
      }
      all->writers.push_back(&unbox<LaneWriter>(o));
      if (all->writers[0]->lane->spec_hash != all->writers.back()->lane->spec_hash) {
        raise("SettingError", "writers must be of lanes of one replay, got lanes with different rows");
        return nullptr;
      }
    }
    if (all->writers.empty()) {
      raise("SettingError", "writers must be 1 or more, got none");
      return nullptr;
    }
    all->asked.resize(all->writers.size());
    return all.release();
  }

  // Flags of rows: an array of bool with one value per row, or null.
  static bool take_flags(PyObject* o, const char* name, u64 rows, View& view) {
    if (!o || o == Py_None) return true;
    if (view.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) && view.raw().ndim == 1 && u64(view.raw().shape[0]) == rows &&
        dtype_of(view.raw().format) == Dtype{'b', 1})
      return true;
    PyErr_Clear();
    raise("SpecError", "%s must be an array of bool with one value for each of %llu rows, got %R", name, ull(rows), o);
    return false;
  }

  PyObject* append(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
    LaneWriter& first = *writers[0];
    if (nargs < 1) return PyErr_Format(PyExc_TypeError, "append takes the lanes, then a value for every field");
    View at;
    if (!at.take(args[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) || at.raw().ndim != 1 || !(dtype_of(at.raw().format) == Dtype{'i', 8})) {
      PyErr_Clear();
      return raise("SpecError", "lanes must be an array of int64 with one value for each row, got %R", args[0]);
    }
    const i64* lanes = at.as<i64>();
    u64 rows = u64(at.raw().shape[0]);
    ++calls;
    for (u64 i = 0; i < rows; ++i) {
      if (lanes[i] < 0 || u64(lanes[i]) >= writers.size())
        return raise("SpecError", "lanes must be from 0 to %zu, got %lld", writers.size() - 1, (long long)lanes[i]);
      if (std::exchange(asked[u64(lanes[i])], calls) == calls)
        return raise("SpecError", "lanes must be different, with one row for each lane, got %lld more than once", (long long)lanes[i]);
    }
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
        return raise("SpecError", "either all rows of an append must end an episode or none, got row %llu, which is neither terminated nor truncated", ull(i));
    u64 version = 0;
    bool several = false;
    if (PyObject* o = given[roots + 2]) {
      several = !PyLong_Check(o) && versions.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) && versions.raw().ndim == 1;
      PyErr_Clear();
      if (several) {
        if (u64(versions.raw().shape[0]) != rows || !(dtype_of(versions.raw().format) == Dtype{'u', 8}))
          return raise("SpecError", "version must be an array of uint64 with one value for each of %llu rows, got %R", ull(rows), o);
        for (u64 i = 0; i < rows; ++i)
          if (versions.as<u64>()[i] >> (64 - kVersionShift)) return raise("SpecError", "version must be less than 2**56, got %R", o);
      } else {
        if (!as_version(o, version)) return nullptr;
      }
    }
    if (first.busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to these lanes: a lane has one writer at a time");
    for (u64 i = 0; i < rows; ++i)
      if (writers[u64(lanes[i])]->busy) return PyErr_Format(PyExc_RuntimeError, "another thread is writing to this lane: a lane has one writer at a time");
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

// Counts the rows that the writers of all lanes of a replay have written; any process with the memory may read them.
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
        raise("CorruptionError", "memory must hold a lane, but it is fresh or damaged");
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

// The writer counts final rows after it moves the head. Reading the final rows first never makes a step look missing.
u64 steps_of(const Lane& lane) {
  u64 finals = lane.finals.load(std::memory_order_acquire);
  return lane.head.load(std::memory_order_acquire) - finals;
}
PyObject* counts_steps(PyObject* o, PyObject*) { return unbox<LaneCounts>(o).sum(steps_of); }
PyObject* counts_steps_by(PyObject* o, PyObject* given) {
  const std::vector<View>& memory = unbox<LaneCounts>(o).memory;
  std::size_t size = PyLong_AsSize_t(given);
  if (PyErr_Occurred() || size == 0 || memory.size() % size) {
    PyErr_Clear();
    return raise("SettingError", "size must divide the %zu lanes, got %R", memory.size(), given);
  }
  PyObject* list = PyList_New(Py_ssize_t(memory.size() / size));
  for (std::size_t i = 0; list && i < memory.size(); i += size) {
    u64 steps = 0;
    for (std::size_t k = i; k < i + size; ++k) steps += steps_of(*memory[k].as<Lane>());
    PyObject* number = PyLong_FromUnsignedLongLong(steps);
    if (!number || PyList_SetItem(list, Py_ssize_t(i / size), number) < 0) Py_CLEAR(list);
  }
  return list;
}
PyObject* counts_rows(PyObject* o, PyObject*) {
  return unbox<LaneCounts>(o).sum([](const Lane& lane) { return lane.head.load(std::memory_order_acquire); });
}

// A fragment needs one more row, whose observation is the next observation of the fragment's last row.
PyObject* counts_fragments(PyObject* o, PyObject* given) {
  u64 length = PyLong_AsUnsignedLongLong(given);
  if (PyErr_Occurred() || length == 0) {
    PyErr_Clear();
    return raise("SettingError", "length must be an int >= 1, got %R", given);
  }
  return unbox<LaneCounts>(o).sum([length](const Lane& lane) {
    u64 head = lane.head.load(std::memory_order_acquire);
    return head ? (head - 1) / length : 0;
  });
}

PyObject* writers_append(PyObject* o, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return unbox<LaneWriters>(o).append(args, n, names);
}
PyObject* writers_interrupt(PyObject* o, PyObject* lane) {
  auto& writers = unbox<LaneWriters>(o).writers;
  std::size_t i = PyLong_AsSize_t(lane);
  if (PyErr_Occurred() || i >= writers.size()) {
    PyErr_Clear();
    return raise("SpecError", "lane must be from 0 to %zu, got %R", writers.size() - 1, lane);
  }
  return writers[i]->interrupt();
}

PyMethodDef many_methods[] = {
    {"append", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writers_append)), METH_FASTCALL | METH_KEYWORDS,
     "Append one step to each of some lanes: their indices (int64), then arrays with one value per lane."},
    {"interrupt", writers_interrupt, METH_O, "interrupt(lane)\n--\n\nMark the episode in this lane as broken off."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef count_methods[] = {
    {"steps", counts_steps, METH_NOARGS, "steps()\n--\n\nReturn the number of rows written so far in all lanes, without final rows."},
    {"steps_by", counts_steps_by, METH_O, "steps_by(size)\n--\n\nReturn the same for every group of `size` lanes, as a list."},
    {"rows", counts_rows, METH_NOARGS, "rows()\n--\n\nReturn the number of rows written so far in all lanes."},
    {"fragments", counts_fragments, METH_O,
     "fragments(length)\n--\n\nReturn the number of whole fragments of consecutive rows written so far in all lanes."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef no_getset[] = {{nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_lanes(PyObject* m) {
  return (writer_type = PyObject_GetAttrString(m, "LaneWriter")) &&
         add_type<LaneCounts>(m, "LaneCounts", "Counts of the rows that the writers of some lanes have written.", count_methods, no_getset) &&
         add_type<LaneWriters>(m, "LaneWriters", "The writing ends of several lanes of one replay.", many_methods, no_getset);
}
}  // namespace motet
