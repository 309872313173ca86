// motet._native.Bell and SumTree.
#include <cmath>
#include <memory>

#include "bell.hpp"
#include "python.hpp"
#include "tree.hpp"

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
  if (seen > 0xffffffffUL) return raise("SettingError", "seen: given %R, expected a count below 2**32", args[0]);
  if (!(timeout >= 0 && timeout < 1e9))
    return raise("SettingError", "timeout_s: given %R, expected seconds from 0 on, and finite", args[1]);
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
     "wait(seen, timeout_s)\n--\n\nWait until the count is no longer `seen`; return the count (`seen` again: deadline)."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef bell_getset[] = {{"count", bell_count, nullptr, "Rings so far, modulo 2**32.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---- SumTree

struct TreeHandle {
  SumTree tree;
  Rng rng{};
  bool busy = false;
  explicit TreeHandle(u64 n) : tree(n) {}

  static TreeHandle* make(PyObject* args, PyObject* kwargs) {
    unsigned long long capacity;
    PyObject* seed;
    static const char* names[] = {"capacity", "seed", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KO", const_cast<char**>(names), &capacity, &seed)) return nullptr;
    if (capacity == 0 || capacity > (u64(1) << 40)) {
      raise("SettingError", "capacity: given %llu, expected 1 to 2**40", capacity);
      return nullptr;
    }
    View words;
    if (!words.take_array(seed, "seed", {'u', 8}, 4, false)) return nullptr;
    auto h = std::make_unique<TreeHandle>(capacity);
    std::memcpy(h->rng.s, words.data(), 32);
    return h.release();
  }
};

PyObject* tree_set(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "set(index, priority) takes 2 arguments, %zd given", n);
  Alone alone(unbox<TreeHandle>(o).busy, "a tree");
  if (!alone) return nullptr;
  auto& tree = unbox<TreeHandle>(o).tree;
  View index, value;
  if (!index.take(args[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return nullptr;
  u64 count = index.bytes() / 8;
  if (!index.take_array(args[0], "index", {'u', 8}, count, false)) return nullptr;
  if (!value.take_array(args[1], "priority", {'f', 4}, count, false)) return nullptr;
  for (u64 i = 0; i < count; ++i) {
    if (index.as<u64>()[i] >= tree.capacity())
      return raise("SpecError", "index[%llu]: given %llu, expected less than the capacity %llu", (unsigned long long)i,
                   (unsigned long long)index.as<u64>()[i], (unsigned long long)tree.capacity());
    float v = value.as<float>()[i];
    if (!(std::isfinite(v) && v >= 0))
      return raise("SpecError", "priority[%llu]: expected a finite value from 0 on", (unsigned long long)i);
  }
  {
    Unlocked unlocked;
    tree.set(index.as<u64>(), value.as<float>(), count);
  }
  Py_RETURN_NONE;
}

PyObject* tree_sample(PyObject* o, PyObject* out) {
  auto& h = unbox<TreeHandle>(o);
  Alone alone(h.busy, "a tree");
  if (!alone) return nullptr;
  View index;
  if (!index.take(out, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) return nullptr;
  u64 count = index.bytes() / 8;
  if (!index.take_array(out, "out", {'u', 8}, count, true)) return nullptr;
  if (!(h.tree.total() > 0)) return raise("NotReadyError", "nothing to sample: all priorities are 0");
  {
    Unlocked unlocked;
    h.tree.sample(h.rng, count, index.as<u64>());
  }
  Py_RETURN_NONE;
}

PyObject* tree_get(PyObject* o, PyObject* index) {
  auto& tree = unbox<TreeHandle>(o).tree;
  unsigned long long i = PyLong_AsUnsignedLongLong(index);
  if (PyErr_Occurred()) return nullptr;
  if (i >= tree.capacity())
    return raise("SpecError", "index: given %llu, expected less than the capacity %llu", i, (unsigned long long)tree.capacity());
  return PyFloat_FromDouble(double(tree.get(i)));
}
PyObject* tree_total(PyObject* o, void*) { return PyFloat_FromDouble(unbox<TreeHandle>(o).tree.total()); }
PyObject* tree_positive(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(unbox<TreeHandle>(o).tree.positive()); }

PyMethodDef tree_methods[] = {
    {"set", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(tree_set)), METH_FASTCALL,
     "set(index, priority)\n--\n\nSet the priorities of a batch of leaves (uint64 and float32 arrays); the last of equal ones wins."},
    {"sample", tree_sample, METH_O, "sample(out)\n--\n\nFill `out` (uint64) with leaves, one from each equal slice of the total."},
    {"get", tree_get, METH_O, "get(index)\n--\n\nThe priority of one leaf."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef tree_getset[] = {{"total", tree_total, nullptr, "Sum of all priorities.", nullptr},
                             {"positive", tree_positive, nullptr, "How many leaves are above zero.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_bell(PyObject* m) {
  return add_type<BellHandle>(m, "Bell", "A word in shared memory that one can wait on.", bell_methods, bell_getset) &&
         PyModule_AddIntConstant(m, "BELL_BYTES", long(sizeof(Bell))) == 0;
}
bool add_tree(PyObject* m) {
  return add_type<TreeHandle>(m, "SumTree", "Priorities and their sums, sampled and updated in whole batches.", tree_methods,
                              tree_getset);
}
}  // namespace motet
