// What the bindings of Mlp and Recurrent share: the choice of a variant, the arguments of a forward pass, and the lock.
#pragma once
#include "core/kernels.hpp"
#include "python/python.hpp"

namespace motet {

// Below this many multiplications the interpreter's lock is kept: releasing it costs more than the work.
constexpr u64 kUnlockFrom = 200'000;

// Runs `work`, and releases the lock if the work is long enough. Returns None, or null with an error set.
template <class Work>
PyObject* without_lock(u64 multiplications, Work work) {
  try {
    if (multiplications < kUnlockFrom) {
      work();
    } else {
      Unlocked unlocked;
      work();
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

// Finds the variant of a name, by default the fastest. Returns false, with an error set, if there is none.
inline bool find_variant(const char* name, kernel::Variant* found) {
  bool any = false;
  for (const kernel::Variant& one : kernel::variants())
    if (!name || std::string(name) == one.name) *found = one, any = true;
  if (!any) raise("SettingError", "variant must be one of motet._native.MLP_VARIANTS, got '%s'", name);
  return any;
}

inline bool take_flat(View& flat, PyObject* o, u64 least) {
  if (flat.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) && dtype_of(flat.raw().format) == Dtype{'f', 4} && flat.bytes() / 4 >= least)
    return true;
  PyErr_Clear();
  raise("SpecError", "flat must be a contiguous float32 array with at least %llu items, got %s with %llu bytes",
        static_cast<unsigned long long>(least), type_name(o).c_str(), static_cast<unsigned long long>(flat.bytes()));
  return false;
}

// Takes rows of inputs: float32, or bytes.
inline bool take_inputs(View& x, PyObject* o, u64 inputs, u64* rows, bool* bytes) {
  if (!x.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
    PyErr_Clear();
    raise("SpecError", "x must be a contiguous array of float32, uint8 or bool, got %s", type_name(o).c_str());
    return false;
  }
  const Dtype dtype = dtype_of(x.raw().format);
  *bytes = dtype.size == 1 && (dtype.kind == 'u' || dtype.kind == 'b');
  if (!*bytes && !(dtype == Dtype{'f', 4})) {
    raise("SpecError", "x must be float32, uint8 or bool, got %s", dtype.name().c_str());
    return false;
  }
  const u64 items = x.bytes() / u64(dtype.size);
  *rows = items / inputs;
  if (*rows * inputs == items) return true;
  raise("SpecError", "x must have rows of %llu items, got %llu items", static_cast<unsigned long long>(inputs),
        static_cast<unsigned long long>(items));
  return false;
}
}  // namespace motet
