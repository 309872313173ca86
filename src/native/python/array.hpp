// Direct access to the memory layout of numpy arrays, for calls so short that the buffer protocol would take a fifth of
// their time.
//
// The head of an array is part of numpy's binary interface, which every compiled extension has inlined, so it does not
// change. It is still compared with the buffer protocol once, when the module is loaded. If anything differs, if the
// build has MOTET_PORTABLE, or if the environment has MOTET_PORTABLE=1 when the module is loaded, then every array goes
// through the buffer protocol, with the same results.
#pragma once
#include <cstdlib>

#include "python/python.hpp"

namespace motet {

#ifdef MOTET_PORTABLE
constexpr bool kPortable = true;
#else
constexpr bool kPortable = false;
#endif

struct Array {
  PyObject_HEAD
  char* data;
  int ndim;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;
  bool contiguous() const { return flags & 1; }

  // Returns `o` as an Array if it is exactly a numpy array, otherwise null.
  static const Array* of(PyObject* o) { return !kPortable && Py_TYPE(o) == type_ ? reinterpret_cast<const Array*>(o) : nullptr; }

  // Whether direct access is in use.
  static bool readable() { return type_; }

  // Called when the module is loaded. Returns false, with an error set, only if numpy itself fails.
  static bool learn() {
    const char* portable = std::getenv("MOTET_PORTABLE");
    if (kPortable || (portable && std::strcmp(portable, "1") == 0)) return true;
    PyObject* numpy = PyImport_ImportModule("numpy");
    PyObject* type = numpy ? PyObject_GetAttrString(numpy, "ndarray") : nullptr;
    PyObject* size = type ? PyObject_GetAttrString(type, "__basicsize__") : nullptr;
    PyObject* rows = size ? PyObject_CallMethod(numpy, "ones", "((ii)s)", 2, 3, "float32") : nullptr;
    PyObject* columns = rows ? PyObject_GetAttrString(rows, "T") : nullptr;
    bool fine = columns && PyLong_AsSize_t(size) >= sizeof(Array);
    if (fine && agrees(rows) && agrees(columns)) type_ = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
    for (PyObject* o : {numpy, type, size, rows, columns}) Py_XDECREF(o);
    return !PyErr_Occurred();
  }

 private:
  static inline PyTypeObject* type_ = nullptr;

  static bool agrees(PyObject* o) {
    auto a = reinterpret_cast<const Array*>(o);
    View view;
    PyObject* dtype = PyObject_GetAttrString(o, "dtype");
    bool fine = dtype && view.take(o, PyBUF_FULL_RO);
    const Py_buffer& b = view.raw();
    fine = fine && a->data == b.buf && a->ndim == 2 && b.ndim == 2 && a->dtype == dtype &&
           a->contiguous() == bool(PyBuffer_IsContiguous(&b, 'C'));
    for (int i = 0; fine && i < 2; ++i) fine = a->shape[i] == b.shape[i] && a->strides[i] == b.strides[i];
    Py_XDECREF(dtype);
    return fine;
  }
};
}  // namespace motet
