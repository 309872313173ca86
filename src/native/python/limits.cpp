// Plain copies without any protocol, for `motet bench` only: the limit of the machine, with which the structures of the
// core are compared.
#include "python/python.hpp"

namespace motet {
namespace {

constexpr u64 kAhead = 6;

inline void prefetch_row(const u8* row, u64 bytes) {
  for (u64 b = 0; b < bytes && b < 8 * kLine; b += kLine) __builtin_prefetch(row + b);
}

// copy_rows(source, pitch, out, row_bytes, index): row i of `out` becomes the `row_bytes` at byte index[i] * pitch of
// `source`. One memcpy per row; rows of the next few copies are prefetched.
PyObject* copy_rows(PyObject*, PyObject* args) {
  PyObject *source_o, *out_o, *index_o;
  unsigned long long pitch, row_bytes;
  if (!PyArg_ParseTuple(args, "OKOKO", &source_o, &pitch, &out_o, &row_bytes, &index_o)) return nullptr;
  View source, out, index;
  if (!source.take(source_o, PyBUF_C_CONTIGUOUS) || !out.take(out_o, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) ||
      !index.take(index_o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
    return nullptr;
  u64 n = index.bytes() / sizeof(u64);
  if (!(dtype_of(index.raw().format) == Dtype{'u', 8}))
    return raise("SpecError", "index must be uint64, got %s", dtype_of(index.raw().format).name().c_str());
  if (out.bytes() < n * row_bytes)
    return raise("SpecError", "out must have %llu bytes for %llu rows, got %llu", static_cast<unsigned long long>(n * row_bytes),
                 static_cast<unsigned long long>(n), static_cast<unsigned long long>(out.bytes()));
  const u64* at = index.as<u64>();
  const u8* from = source.as<u8>();
  u8* to = out.as<u8>();
  for (u64 i = 0; i < n; ++i)
    if (row_bytes > source.bytes() || at[i] > (source.bytes() - row_bytes) / (pitch ? pitch : 1))
      return raise("SpecError", "index[%llu] must be a row of the source, got %llu, which is outside its %llu bytes",
                   static_cast<unsigned long long>(i), static_cast<unsigned long long>(at[i]),
                   static_cast<unsigned long long>(source.bytes()));
  {
    Unlocked unlocked;
    for (u64 i = 0; i < kAhead && i < n; ++i) prefetch_row(from + at[i] * pitch, row_bytes);
    for (u64 i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch_row(from + at[i + kAhead] * pitch, row_bytes);
      std::memcpy(to + i * row_bytes, from + at[i] * pitch, row_bytes);
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"copy_rows", copy_rows, METH_VARARGS, "copy_rows(source, pitch, out, row_bytes, index): plain scattered memcpy."},
    {nullptr, nullptr, 0, nullptr},
};
}  // namespace

bool add_limits(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
}  // namespace motet
