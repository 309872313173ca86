// motet._native.SlotWriter and SlotReader: the two ends of a publication.
#include <memory>

#include "core/slots.hpp"
#include "python/python.hpp"

namespace motet {
namespace {
using ull = unsigned long long;
constexpr u64 kUnlockBytes = 1 << 16;  // copies of this size or more release the interpreter's lock

Slots* open_slots(View& memory, PyObject* buffer) {
  if (!memory.take_shared(buffer, "memory of a publication", sizeof(Slots))) return nullptr;
  Slots* s = memory.as<Slots>();
  if (s->magic != Slots::kMagic || s->n_slots < 1 || s->stride != Slots::slot_stride(s->payload_bytes) ||
      Slots::bytes(s->payload_bytes, s->n_slots) > memory.bytes()) {
    raise("CorruptionError", "memory must hold a publication, but it is fresh or damaged; format it first");
    return nullptr;
  }
  return s;
}

bool fits(const Slots* s, u64 header, u64 offset, u64 body) {
  if (header <= offset && offset <= s->payload_bytes && body <= s->payload_bytes - offset) return true;
  raise("SpecError", "payload must have at most %llu bytes, got a header of %llu and a body of %llu at offset %llu",
        ull(s->payload_bytes), ull(header), ull(body), ull(offset));
  return false;
}

struct SlotWriter {
  View memory;
  Slots* slots;
  u64 header_bytes, body_offset, body_bytes, incarnation;
  bool busy = false;

  static SlotWriter* make(PyObject* args, PyObject* kwargs) {
    PyObject* buffer;
    ull header, offset, body;
    static const char* names[] = {"memory", "header_bytes", "body_offset", "body_bytes", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKKK", const_cast<char**>(names), &buffer, &header, &offset, &body))
      return nullptr;
    auto w = std::make_unique<SlotWriter>();
    if (!(w->slots = open_slots(w->memory, buffer)) || !fits(w->slots, header, offset, body)) return nullptr;
    w->header_bytes = header;
    w->body_offset = offset;
    w->body_bytes = body;
    w->incarnation = w->slots->incarnation.fetch_add(1, std::memory_order_acq_rel) + 1;
    w->slots->newest.store(w->slots->highest_version(), std::memory_order_relaxed);
    return w.release();
  }
};

PyObject* writer_publish(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 3) return PyErr_Format(PyExc_TypeError, "_publish(header, body, version) takes 3 arguments, %zd given", n);
  auto& w = unbox<SlotWriter>(o);
  Alone alone(w.busy, "a publisher");
  if (!alone) return nullptr;
  View header, body;
  if (!header.take_array(args[0], "header", {'u', 1}, w.header_bytes, false)) return nullptr;
  if (!body.take_array(args[1], "weights", {'f', 4}, w.body_bytes / 4, false)) return nullptr;
  u64 version = PyLong_AsUnsignedLongLong(args[2]);
  if (PyErr_Occurred()) return nullptr;
  if (w.slots->incarnation.load(std::memory_order_acquire) != w.incarnation)
    return raise("SupersededError", "another writer has taken over this publication (incarnation %llu, this one is %llu)",
                 ull(w.slots->incarnation.load()), ull(w.incarnation));
  u64 count;
  if (w.body_bytes >= kUnlockBytes) {
    Unlocked unlocked;
    count = w.slots->publish(header.data(), w.header_bytes, body.data(), w.body_offset, w.body_bytes, version);
  } else {
    count = w.slots->publish(header.data(), w.header_bytes, body.data(), w.body_offset, w.body_bytes, version);
  }
  return PyLong_FromUnsignedLongLong(count);
}

template <class T>
PyObject* slots_published(PyObject* o, void*) {
  return PyLong_FromUnsignedLongLong(unbox<T>(o).slots->published.load(std::memory_order_acquire));
}
template <class T>
PyObject* slots_newest(PyObject* o, void*) {
  return PyLong_FromUnsignedLongLong(unbox<T>(o).slots->newest.load(std::memory_order_acquire));
}

PyObject* writer_announced(PyObject* o, void*) {
  return PyLong_FromUnsignedLongLong(unbox<SlotWriter>(o).slots->announced());
}

struct SlotReader {
  View memory, spare[2];
  Slots* slots;
  u64 header_bytes, body_offset, body_bytes;
  u64 have = 0, version = 0, met_writes = 0;
  int current = 0;
  bool met_write = false, busy = false;

  static SlotReader* make(PyObject* args, PyObject* kwargs) {
    PyObject *buffer, *first, *second;
    ull header, offset, body;
    static const char* names[] = {"memory", "header_bytes", "body_offset", "body_bytes", "first", "second", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKKKOO", const_cast<char**>(names), &buffer, &header, &offset, &body,
                                     &first, &second))
      return nullptr;
    auto r = std::make_unique<SlotReader>();
    if (!(r->slots = open_slots(r->memory, buffer)) || !fits(r->slots, header, offset, body)) return nullptr;
    r->header_bytes = header;
    r->body_offset = offset;
    r->body_bytes = body;
    if (!r->spare[0].take_array(first, "first", {'u', 1}, offset + body, true) ||
        !r->spare[1].take_array(second, "second", {'u', 1}, offset + body, true))
      return nullptr;
    return r.release();
  }

  // Only an intact copy replaces the version held.
  Slots::Read read(u64* publication, u64* label) {
    *publication = have;
    return slots->read(spare[1 - current].as<u8>(), header_bytes, body_offset, body_bytes, publication, label);
  }
};

PyObject* reader_refresh(PyObject* o, PyObject*) {
  auto& r = unbox<SlotReader>(o);
  Alone alone(r.busy, "a subscriber");
  if (!alone) return nullptr;
  if (r.slots->published.load(std::memory_order_acquire) == r.have) {
    r.met_write = false;
    Py_RETURN_FALSE;
  }
  Slots::Read got;
  u64 publication, label = 0;
  if (r.body_bytes >= kUnlockBytes) {
    Unlocked unlocked;
    got = r.read(&publication, &label);
  } else {
    got = r.read(&publication, &label);
  }
  r.met_write = got == Slots::Read::kMetWrite;
  r.met_writes += r.met_write;
  if (got == Slots::Read::kCorrupt)
    return raise("CorruptionError", "publication %llu, version %llu: the checksum does not match the bytes; version %llu is kept",
                 ull(publication), ull(label), ull(r.version));
  if (got != Slots::Read::kNew) Py_RETURN_FALSE;
  r.have = publication;
  // A reader that was suspended may have copied, from the slot of an older publication, a newer one that was not
  // announced yet. The next publication announced after that may then be older than the one it holds.
  if (label < r.version) Py_RETURN_FALSE;
  r.version = label;
  r.current = 1 - r.current;
  Py_RETURN_TRUE;
}

PyObject* reader_load(PyObject* o, PyObject* number) {
  auto& r = unbox<SlotReader>(o);
  Alone alone(r.busy, "a subscriber");
  if (!alone) return nullptr;
  u64 version = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred()) return nullptr;
  Slots::Read got;
  {
    Unlocked unlocked;
    got = r.slots->read_version(r.spare[1 - r.current].as<u8>(), r.header_bytes, r.body_offset, r.body_bytes, version);
  }
  if (got == Slots::Read::kCorrupt)
    return raise("CorruptionError", "version %llu: the checksum does not match the bytes; version %llu is kept", ull(version), ull(r.version));
  if (got != Slots::Read::kNew) Py_RETURN_FALSE;
  r.have = std::max<u64>(r.have, 1);
  r.version = version;
  r.current = 1 - r.current;
  Py_RETURN_TRUE;
}

PyObject* reader_wait(PyObject* o, PyObject* timeout_s) {
  auto& r = unbox<SlotReader>(o);
  double timeout = PyFloat_AsDouble(timeout_s);
  if (timeout == -1.0 && PyErr_Occurred()) return nullptr;
  if (!(timeout >= 0 && timeout < 1e9))
    return raise("SettingError", "timeout_s must be a finite number of seconds >= 0, got %R", timeout_s);
  i64 deadline = now_ns() + i64(timeout * 1e9);
  Spin spin;
  for (;;) {
    u32 seen = r.slots->bell.read();
    if (r.slots->published.load(std::memory_order_acquire) != r.have) Py_RETURN_TRUE;
    if (now_ns() >= deadline) Py_RETURN_FALSE;
    {
      Unlocked unlocked;
      r.slots->bell.wait_slice(seen, deadline, spin);
    }
    if (PyErr_CheckSignals()) return nullptr;
  }
}

PyObject* reader_version(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(unbox<SlotReader>(o).version); }
PyObject* reader_have(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(unbox<SlotReader>(o).have); }
PyObject* reader_current(PyObject* o, void*) { return PyLong_FromLong(unbox<SlotReader>(o).current); }
PyObject* reader_met_write(PyObject* o, void*) { return PyBool_FromLong(unbox<SlotReader>(o).met_write); }
PyObject* reader_met_writes(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(unbox<SlotReader>(o).met_writes); }

PyObject* slots_bytes(PyObject*, PyObject* args) {
  ull payload, n;
  if (!parse_sizes(args, &payload, &n)) return nullptr;
  if (!Slots::possible(payload, n)) return raise("MemoryShortError", "slots must fit into memory, got %llu slots of %llu bytes, which is more than any machine can hold", n, payload);
  return PyLong_FromUnsignedLongLong(Slots::bytes(payload, n));
}

PyObject* slots_format(PyObject*, PyObject* args) {
  PyObject* buffer;
  ull payload, n;
  int checked;
  if (!PyArg_ParseTuple(args, "OKKp", &buffer, &payload, &n, &checked)) return nullptr;
  if (n < 1 || n > 64) return raise("SettingError", "slots must be from 1 to 64, got %llu", n);
  if (!Slots::possible(payload, n)) return raise("MemoryShortError", "slots must fit into memory, got %llu slots of %llu bytes, which is more than any machine can hold", n, payload);
  View memory;
  if (!memory.take_shared(buffer, "memory of a publication", Slots::bytes(payload, n))) return nullptr;
  memory.as<Slots>()->format(payload, n, checked);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"slots_bytes", slots_bytes, METH_VARARGS, "slots_bytes(payload_bytes, slots)\n--\n\nReturn the size of a publication in bytes."},
    {"slots_format", slots_format, METH_VARARGS,
     "slots_format(memory, payload_bytes, slots, checked)\n--\n\nInitialise memory as an empty publication."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef writer_methods[] = {
    {"_publish", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(writer_publish)), METH_FASTCALL,
     "_publish(header, body, version)\n--\n\nPublish a version: copy it into the next slot."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef writer_getset[] = {
    {"published", slots_published<SlotWriter>, nullptr, "Publications so far.", nullptr},
    {"newest", slots_newest<SlotWriter>, nullptr, "The newest version in a slot, announced or not.", nullptr},
    {"announced", writer_announced, nullptr, "The newest version that subscribers find; 0 for none.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef reader_methods[] = {
    {"refresh", reader_refresh, METH_NOARGS,
     "refresh()\n--\n\nCopy the newest version if there is a new one; return whether there was. Without one this is a single load."},
    {"load", reader_load, METH_O,
     "load(version)\n--\n\nCopy the version with this number; return False if no slot has it. `refresh` then takes it for an old one."},
    {"wait", reader_wait, METH_O, "wait(timeout_s)\n--\n\nWait until there is a new version for refresh(); return False after a timeout."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef reader_getset[] = {
    {"version", reader_version, nullptr, "The version held, as stored in its slot.", nullptr},
    {"newest", slots_newest<SlotReader>, nullptr, "The newest published version, whether or not this reader has copied it.", nullptr},
    {"published", slots_published<SlotReader>, nullptr, "Publications so far.", nullptr},
    {"met_write", reader_met_write, nullptr, "Whether the last refresh met a write in progress and kept the version held.", nullptr},
    {"met_writes", reader_met_writes, nullptr, "Number of refreshes that met a write in progress.", nullptr},
    {"_have", reader_have, nullptr, "Number of the publication held; 0 for none.", nullptr},
    {"_current", reader_current, nullptr, "Index of the private copy that is current, 0 or 1.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_slots(PyObject* m) {
  return PyModule_AddFunctions(m, functions) == 0 &&
         add_type<SlotWriter>(m, "SlotWriter", "The writing end of a publication.", writer_methods, writer_getset) &&
         add_type<SlotReader>(m, "SlotReader", "A reading end of a publication.", reader_methods, reader_getset);
}
}  // namespace motet
