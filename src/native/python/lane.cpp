// motet._native.LaneWriter, and functions on the memory of a lane that need no writer.
#include "python/writer.hpp"

namespace motet {
namespace {
PyObject* writer_append(PyObject* o, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return unbox<LaneWriter>(o).append(args, n, names, false);
}
PyObject* writer_append_many(PyObject* o, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return unbox<LaneWriter>(o).append(args, n, names, true);
}
PyObject* writer_append_rows(PyObject* o, PyObject* rows) { return unbox<LaneWriter>(o).append_rows(rows); }
PyObject* writer_interrupt(PyObject* o, PyObject*) { return unbox<LaneWriter>(o).interrupt(); }

template <std::atomic<u64> Lane::*Word>
PyObject* word(PyObject* o, void*) {
  return PyLong_FromUnsignedLongLong((unbox<LaneWriter>(o).lane->*Word).load(std::memory_order_acquire));
}

PyObject* lane_bytes(PyObject*, PyObject* args) {
  ull capacity, row;
  if (!parse_sizes(args, &capacity, &row)) return nullptr;
  if (!Lane::possible(capacity, row)) return raise("MemoryShortError", "capacity must fit into memory, got %llu rows of %llu bytes, which is more than any machine can hold", capacity, row);
  return PyLong_FromUnsignedLongLong(Lane::bytes(capacity, row));
}
PyObject* lane_format(PyObject*, PyObject* args) {
  PyObject* buffer;
  ull capacity, row, hash;
  int checked, once;
  if (!PyArg_ParseTuple(args, "OKKKpp", &buffer, &capacity, &row, &hash, &checked, &once)) return nullptr;
  if (!capacity || row < 8 || row % 8 || !Lane::possible(capacity, row))
    return raise("SettingError", "capacity must be 1 or more, and row size a multiple of 8 that fits into memory, got %llu rows of %llu bytes", capacity, row);
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", Lane::bytes(capacity, row))) return nullptr;
  memory.as<Lane>()->format(capacity, row, hash, checked, once);
  Py_RETURN_NONE;
}
// The words of a lane that any process may read, as a tuple: reserve, head, incarnation, broken, waits, waited_ns,
// released, finals.
PyObject* lane_words(PyObject*, PyObject* buffer) {
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", sizeof(Lane))) return nullptr;
  Lane* l = memory.as<Lane>();
  if (l->magic != Lane::kMagic) return raise("CorruptionError", "memory must hold a lane, but it is fresh or damaged");
  return Py_BuildValue("(KKKKKKKK)", ull(l->reserve.load()), ull(l->head.load()), ull(l->incarnation.load()), ull(l->broken.load()),
                       ull(l->waits.load()), ull(l->waited_ns.load()), ull(l->released.load()), ull(l->finals.load()));
}

// Copies rows of a lane to send them elsewhere. The lane is read once, so no row is overwritten before it is released.
PyObject* lane_rows(PyObject*, PyObject* args) {
  PyObject* buffer;
  ull first, most;
  if (!PyArg_ParseTuple(args, "OKK", &buffer, &first, &most)) return nullptr;
  View memory;
  if (!memory.take_shared(buffer, "memory of a lane", sizeof(Lane))) return nullptr;
  Lane* l = memory.as<Lane>();
  if (l->magic != Lane::kMagic) return raise("CorruptionError", "memory must hold a lane, but it is fresh or damaged");
  u64 head = l->head.load(std::memory_order_acquire);
  if (!l->once || first < l->released.load(std::memory_order_relaxed) || first > head)
    return raise("SettingError", "first must be an unreleased row of a lane that is read once, and at most %llu, got %llu", ull(head), first);
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
      return raise("CorruptionError", "row %llu is corrupt: its checksum does not match its bytes", ull(first + i));
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
  if (l->magic != Lane::kMagic) return raise("CorruptionError", "memory must hold a lane, but it is fresh or damaged");
  if (row < l->released.load(std::memory_order_relaxed) || row > l->head.load(std::memory_order_relaxed))
    return raise("SettingError", "row must be from %llu to %llu, got %llu", ull(l->released.load()), ull(l->head.load()), row);
  l->released.store(row, std::memory_order_release);
  l->room.ring();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"lane_bytes", lane_bytes, METH_VARARGS, "lane_bytes(capacity, row_bytes)\n--\n\nReturn the size of a lane in bytes."},
    {"lane_format", lane_format, METH_VARARGS,
     "lane_format(memory, capacity, row_bytes, spec_hash, checked, once)\n--\n\nInitialise memory as an empty lane."},
    {"lane_words", lane_words, METH_O,
     "lane_words(memory)\n--\n\nReturn (reserve, head, incarnation, broken, waits, waited_ns, released, finals) of a lane."},
    {"lane_rows", lane_rows, METH_VARARGS,
     "lane_rows(memory, first, most)\n--\n\nCopy up to `most` complete rows from `first` on, of a lane that is read once."},
    {"lane_release", lane_release, METH_VARARGS, "lane_release(memory, row)\n--\n\nLet the writer overwrite the rows before this one."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef methods[] = {
    {"append", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writer_append)), METH_FASTCALL | METH_KEYWORDS,
     "Append one step; with terminated or truncated also the episode's final row. Returns the number of rows written so far."},
    {"append_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writer_append_many)), METH_FASTCALL | METH_KEYWORDS,
     "Append consecutive steps of one episode: arrays with one value per row. The flags belong to the last step."},
    {"append_rows", writer_append_rows, METH_O,
     "Append rows that lane_rows copied from a lane of the same spec, as many as fit; returns their number."},
    {"interrupt", writer_interrupt, METH_NOARGS, "interrupt()\n--\n\nMark the episode as broken off: the next row begins a new one."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef getset[] = {{"head", word<&Lane::head>, nullptr, "Number of rows written so far.", nullptr},
                        {"waits", word<&Lane::waits>, nullptr, "Number of appends that waited for room.", nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

// Indices of the words of a lane, for code that has a copy of a lane.
static PyObject* lane_words_by_name() {
  auto at = [](std::size_t offset) { return Py_ssize_t(offset / sizeof(u64)); };
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "capacity", at(offsetof(Lane, capacity)), "reserve",
                       at(offsetof(Lane, reserve)), "head", at(offsetof(Lane, head)), "incarnation", at(offsetof(Lane, incarnation)),
                       "broken", at(offsetof(Lane, broken)), "waits", at(offsetof(Lane, waits)), "waited_ns",
                       at(offsetof(Lane, waited_ns)), "finals", at(offsetof(Lane, finals)), "released", at(offsetof(Lane, released)),
                       "taken", at(offsetof(Lane, taken)));
}

bool add_lane(PyObject* m) {
  PyObject* words = lane_words_by_name();
  bool added = words && PyModule_AddObjectRef(m, "LANE_WORDS", words) == 0;
  Py_XDECREF(words);
  return added && PyModule_AddFunctions(m, functions) == 0 && add_type<LaneWriter>(m, "LaneWriter", "The writing end of one lane.", methods, getset);
}
}  // namespace motet
