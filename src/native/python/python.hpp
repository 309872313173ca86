// The boundary with Python: limited C API, checked buffers, motet's exceptions, heap types around C++ objects.
#pragma once
#include <Python.h>

#include <cstdarg>
#include <new>
#include <string>
#include <utility>

#include "core/shared.hpp"

namespace motet {

// Raises motet.errors.<name> with a formatted message; always returns null.
inline PyObject* raise(const char* name, const char* format, ...) {
  PyObject* module = PyImport_ImportModule("motet.errors");
  PyObject* type = module ? PyObject_GetAttrString(module, name) : nullptr;
  Py_XDECREF(module);
  if (!type) return nullptr;
  va_list args;
  va_start(args, format);
  PyErr_FormatV(type, format, args);
  va_end(args);
  Py_DECREF(type);
  return nullptr;
}

inline std::string type_name(PyObject* o) {
  std::string text = "?";
  PyObject* name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "__name__");
  if (name) {
    if (const char* s = PyUnicode_AsUTF8AndSize(name, nullptr)) text = s;
    Py_DECREF(name);
  }
  PyErr_Clear();
  return text;
}

// ---- dtypes: a kind (b bool, i int, u unsigned, f float) and a size.
struct Dtype {
  char kind = 0;
  int size = 0;
  bool operator==(const Dtype& o) const { return kind == o.kind && size == o.size; }
  std::string name() const {
    if (kind == 0) return "a foreign dtype";  // objects, text, complex numbers, another byte order
    if (kind == 'b') return "bool";
    const char* word = kind == 'f' ? "float" : kind == 'i' ? "int" : "uint";
    return word + std::to_string(size * 8);
  }
};

inline Dtype dtype_of(const char* format) {
  if (!format) return {'u', 1};
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (!*format || format[1]) return {};
  switch (*format) {
    case '?': return {'b', 1};
    case 'b': return {'i', 1};
    case 'B': return {'u', 1};
    case 'h': return {'i', 2};
    case 'H': return {'u', 2};
    case 'i': return {'i', 4};
    case 'I': return {'u', 4};
    case 'l': return {'i', int(sizeof(long))};
    case 'L': return {'u', int(sizeof(long))};
    case 'q': return {'i', 8};
    case 'Q': return {'u', 8};
    case 'e': return {'f', 2};
    case 'f': return {'f', 4};
    case 'd': return {'f', 8};
    default: return {};
  }
}

inline std::string shape_name(const Py_ssize_t* shape, int ndim) {
  std::string s = "(";
  for (int i = 0; i < ndim; ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + (ndim == 1 ? ",)" : ")");
}

// A held buffer; released when it goes out of scope.
class View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  View(View&& o) noexcept : view_(o.view_), held_(std::exchange(o.held_, false)) {}
  ~View() { drop(); }
  void drop() {
    if (held_) PyBuffer_Release(&view_);
    held_ = false;
  }
  bool take(PyObject* o, int flags) {
    drop();
    held_ = PyObject_GetBuffer(o, &view_, flags) == 0;
    return held_;
  }
  // Takes a contiguous buffer of n items of one dtype, or raises a SpecError with its name.
  bool take_array(PyObject* o, const char* name, Dtype dtype, u64 items, bool writable) {
    if (!take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) {
      PyErr_Clear();
      raise("SpecError", "%s must be a contiguous%s array of %s, got %s", name, writable ? ", writable" : "",
            dtype.name().c_str(), type_name(o).c_str());
      return false;
    }
    if (Dtype got = dtype_of(view_.format); !(got == dtype) || u64(view_.len) != items * u64(dtype.size)) {
      raise("SpecError", "%s must be %s with %llu items, got %s with %zd bytes", name, dtype.name().c_str(),
            static_cast<unsigned long long>(items), got.name().c_str(), view_.len);
      return false;
    }
    return true;
  }
  // Takes shared memory for a structure: writable, aligned, at least n bytes.
  bool take_shared(PyObject* o, const char* name, u64 bytes) {
    if (!take(o, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return false;
    if (u64(view_.len) < bytes || reinterpret_cast<std::uintptr_t>(view_.buf) % kLine) {
      raise("SpecError", "%s must have at least %llu bytes, aligned to 64, got %zd bytes at an address that is %d modulo 64", name,
            static_cast<unsigned long long>(bytes), view_.len, int(reinterpret_cast<std::uintptr_t>(view_.buf) % kLine));
      return false;
    }
    return true;
  }
  void* data() const { return view_.buf; }
  u64 bytes() const { return u64(view_.len); }
  const Py_buffer& raw() const { return view_; }
  template <class T>
  T* as() const { return static_cast<T*>(view_.buf); }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

// Runs a block without the interpreter's lock. A function must return after that block, not inside it: even returning
// None changes a reference count.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

// Guards an object during one call that releases the interpreter's lock: no other thread may enter it meanwhile.
class Alone {
 public:
  Alone(bool& busy, const char* what) : busy_(busy), mine_(!busy) {
    if (mine_) busy_ = true;
    else PyErr_Format(PyExc_RuntimeError, "another thread is inside this object: %s belongs to one thread at a time", what);
  }
  Alone(const Alone&) = delete;
  ~Alone() {
    if (mine_) busy_ = false;
  }
  explicit operator bool() const { return mine_; }

 private:
  bool& busy_;
  bool mine_;
};

// Two sizes. A number beyond 64 bits becomes a size that no memory can hold, instead of being truncated.
inline bool parse_sizes(PyObject* args, unsigned long long* first, unsigned long long* second) {
  PyObject* given[2];
  if (!PyArg_ParseTuple(args, "O!O!", &PyLong_Type, &given[0], &PyLong_Type, &given[1])) return false;
  unsigned long long* out[2] = {first, second};
  for (int i = 0; i < 2; ++i) {
    *out[i] = PyLong_AsUnsignedLongLong(given[i]);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      *out[i] = ~0ull;
    }
  }
  return true;
}

// ---- heap types around C++ objects: `Boxed<T>` owns a T made by T::make(args, kwargs).
template <class T>
struct Boxed {
  PyObject_HEAD
  T* self;
};

template <class T>
T& unbox(PyObject* o) { return *reinterpret_cast<Boxed<T>*>(o)->self; }

template <class T>
PyObject* boxed_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  T* made = nullptr;
  try {
    made = T::make(args, kwargs);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  if (!made) return nullptr;
  auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* o = alloc(type, 0);
  if (!o) {
    delete made;
    return nullptr;
  }
  reinterpret_cast<Boxed<T>*>(o)->self = made;
  return o;
}

template <class T>
void boxed_dealloc(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  delete reinterpret_cast<Boxed<T>*>(o)->self;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(o);
  Py_DECREF(type);
}

// tp_new consumes the constructor's arguments; the __init__ of a subclass may take any arguments.
inline int boxed_init(PyObject*, PyObject*, PyObject*) { return 0; }

template <class T>
bool add_type(PyObject* module, const char* name, const char* doc, PyMethodDef* methods, PyGetSetDef* getset) {
  PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(boxed_new<T>)},
      {Py_tp_init, reinterpret_cast<void*>(boxed_init)},
      {Py_tp_dealloc, reinterpret_cast<void*>(boxed_dealloc<T>)},
      {Py_tp_methods, methods},
      {Py_tp_getset, getset},
      {Py_tp_doc, const_cast<char*>(doc)},
      {0, nullptr},
  };
  std::string full = std::string("motet._native.") + name;
  PyType_Spec spec = {full.c_str(), int(sizeof(Boxed<T>)), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) return false;
  int rc = PyModule_AddObjectRef(module, name, type);
  Py_DECREF(type);
  return rc == 0;
}

bool add_bell(PyObject* module);
bool add_tree(PyObject* module);
bool add_slots(PyObject* module);
bool add_lane(PyObject* module);
bool add_lanes(PyObject* module);
bool add_reader(PyObject* module);
bool add_mlp(PyObject* module);
bool add_recurrent(PyObject* module);
bool add_limits(PyObject* module);
bool add_sweep(PyObject* module);
}  // namespace motet
