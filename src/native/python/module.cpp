// The extension `motet._native`: arrays in, arrays out; the interpreter's lock is released during copies and waits.
#include "python/array.hpp"

namespace {
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "motet._native", "The native core of motet.", -1,
                          nullptr,               nullptr,         nullptr,                     nullptr,
                          nullptr};
}  // namespace

PyMODINIT_FUNC PyInit__native() {
  PyObject* m = PyModule_Create(&definition);
  if (!m) return nullptr;
  using namespace motet;
  if (Array::learn() && PyModule_AddObjectRef(m, "DIRECT_ARRAYS", Array::readable() ? Py_True : Py_False) == 0 && add_bell(m) &&
      add_tree(m) && add_slots(m) && add_lane(m) && add_lanes(m) && add_reader(m) && add_mlp(m) &&
      add_recurrent(m) && add_limits(m) && add_sweep(m))
    return m;
  Py_DECREF(m);
  return nullptr;
}
