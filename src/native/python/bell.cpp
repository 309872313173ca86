// motet._native.Bell: a word in shared memory that processes can wait on.
#include <memory>

#include "core/bell.hpp"
#include "python/python.hpp"

namespace motet {
namespace {

struct BellHandle {
  View memory;
  Bell* bell;
  Spin spin;

  static BellHandle* make(PyObject* args, PyObject* kwargs) {
    PyObject* buffer;
    int fresh = 0;
    static const char* names[] = {"memory", "fresh", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p", const_cast<char**>(names), &buffer, &fresh)) return nullptr;
    auto h = std::make_unique<BellHandle>();
    if (!h->memory.take_shared(buffer, "memory of a bell", sizeof(Bell))) return nullptr;
    h->bell = h->memory.as<Bell>();
    if (fresh) std::memset(static_cast<void*>(h->bell), 0, sizeof(Bell));
    return h.release();
  }
};

PyObject* bell_ring(PyObject* o, PyObject*) {
  unbox<BellHandle>(o).bell->ring();
  Py_RETURN_NONE;
}

PyObject* bell_wait(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "wait(seen, timeout_s) takes 2 arguments, %zd given", n);
  unsigned long seen = PyLong_AsUnsignedLong(args[0]);
  if (seen == static_cast<unsigned long>(-1) && PyErr_Occurred()) return nullptr;
  double timeout = PyFloat_AsDouble(args[1]);
  if (timeout == -1.0 && PyErr_Occurred()) return nullptr;
  if (seen > 0xffffffffUL) return raise("SettingError", "seen must be a count below 2**32, got %R", args[0]);
  if (!(timeout >= 0 && timeout < 1e9))
    return raise("SettingError", "timeout_s must be a finite number of seconds >= 0, got %R", args[1]);
  auto& h = unbox<BellHandle>(o);
  i64 deadline = now_ns() + i64(timeout * 1e9);
  bool rung = false;
  do {
    {
      Unlocked unlocked;
      rung = h.bell->wait_slice(u32(seen), deadline, h.spin);
    }
    if (!rung && PyErr_CheckSignals()) return nullptr;
  } while (!rung && now_ns() < deadline);
  return PyLong_FromUnsignedLong(h.bell->read());
}

PyObject* bell_count(PyObject* o, void*) { return PyLong_FromUnsignedLong(unbox<BellHandle>(o).bell->read()); }

PyMethodDef bell_methods[] = {
    {"ring", bell_ring, METH_NOARGS, "ring()\n--\n\nWake every waiter. Never waits."},
    {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(bell_wait)), METH_FASTCALL,
     "wait(seen, timeout_s)\n--\n\nWait until the count is not `seen`; return the count, which is `seen` after a timeout."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef bell_getset[] = {{"count", bell_count, nullptr, "Number of rings so far, modulo 2**32.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_bell(PyObject* m) {
  return add_type<BellHandle>(m, "Bell", "A word in shared memory that processes can wait on.", bell_methods, bell_getset) &&
         PyModule_AddIntConstant(m, "BELL_BYTES", long(sizeof(Bell))) == 0;
}
}  // namespace motet
