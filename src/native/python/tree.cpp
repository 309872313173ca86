// motet._native.SumTree: priorities and their sums.
#include <cmath>
#include <memory>

#include "core/tree.hpp"
#include "python/python.hpp"

namespace motet {
namespace {

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
      raise("SettingError", "capacity must be from 1 to 2**40, got %llu", capacity);
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
      return raise("SpecError", "index[%llu] must be less than the capacity %llu, got %llu", (unsigned long long)i,
                   (unsigned long long)tree.capacity(), (unsigned long long)index.as<u64>()[i]);
    float v = value.as<float>()[i];
    if (!(std::isfinite(v) && v >= 0))
      return raise("SpecError", "priority[%llu] must be a finite number >= 0", (unsigned long long)i);
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
  if (!(h.tree.total() > 0)) return raise("NotReadyError", "cannot sample: all priorities are 0");
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
    return raise("SpecError", "index must be less than the capacity %llu, got %llu", (unsigned long long)tree.capacity(), i);
  return PyFloat_FromDouble(double(tree.get(i)));
}
PyObject* tree_total(PyObject* o, void*) { return PyFloat_FromDouble(unbox<TreeHandle>(o).tree.total()); }
PyObject* tree_positive(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(unbox<TreeHandle>(o).tree.positive()); }

PyMethodDef tree_methods[] = {
    {"set", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(tree_set)), METH_FASTCALL,
     "set(index, priority)\n--\n\nSet the priorities of a batch of leaves (uint64 and float32 arrays); if an index occurs twice, the last one counts."},
    {"sample", tree_sample, METH_O, "sample(out)\n--\n\nFill `out` (uint64) with leaves, one from each equal slice of the total."},
    {"get", tree_get, METH_O, "get(index)\n--\n\nReturn the priority of one leaf."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef tree_getset[] = {{"total", tree_total, nullptr, "Sum of all priorities.", nullptr},
                             {"positive", tree_positive, nullptr, "Number of leaves above zero.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_tree(PyObject* m) {
  return add_type<TreeHandle>(m, "SumTree", "Priorities and their sums, sampled and updated in whole batches.", tree_methods,
                              tree_getset);
}
}  // namespace motet
