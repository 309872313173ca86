// A value that Python passes for a leaf, checked against its spec, with its bytes ready to be copied.
#pragma once
#include "python/leaf.hpp"

namespace motet {

// A checked value: either a scalar converted into `small`, or a buffer.
struct Value {
  const u8* bytes = nullptr;
  alignas(8) u8 small[8] = {};
  View view;
};

template <class T>
inline bool all_finite(const u8* bytes, u64 n) {
  auto at = [=](u64 i) {  // at any alignment
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    return value;
  };
  // Zero times a finite number is zero, zero times NaN or infinity is NaN, and a sum with NaN is NaN. There is no branch,
  // so that compilers vectorise the loop.
  T sum[8] = {};
  u64 i = 0;
  for (; i + 8 <= n; i += 8)
    for (u64 j = 0; j < 8; ++j) sum[j] += at(i + j) * T(0);
  T rest = 0;
  for (; i < n; ++i) rest += at(i) * T(0);
  for (T s : sum) rest += s;
  return rest == T(0);
}

inline bool all_finite_halves(const u8* bytes, u64 n) {  // float16: an exponent of ones is infinity or NaN
  bool ok = true;
  for (u64 i = 0; i < n; ++i) ok &= (load_racy<std::uint16_t>(bytes + 2 * i) & 0x7c00) != 0x7c00;
  return ok;
}

inline bool check_finite(const LeafSpec& leaf, const u8* bytes, u64 items) {
  if (!leaf.finite || leaf.dtype.kind != 'f') return true;
  bool ok = leaf.dtype.size == 8   ? all_finite<double>(bytes, items)
            : leaf.dtype.size == 4 ? all_finite<float>(bytes, items)
                                   : all_finite_halves(bytes, items);
  if (!ok) raise("SpecError", "%s must be finite numbers, got NaN or infinity", leaf.name.c_str());
  return ok;
}

template <class T>
inline bool store_int(long long v, u8* to) {
  T t = T(v);
  std::memcpy(to, &t, sizeof t);
  return (long long)t == v && (v >= 0 || T(-1) < T(0));
}

inline bool store_scalar(const LeafSpec& leaf, double d, long long i, bool integral, u8* to) {
  switch (leaf.dtype.kind) {
    case 'f':
      if (integral) d = double(i);
      if (leaf.dtype.size == 8) std::memcpy(to, &d, 8);
      else if (leaf.dtype.size == 4) {
        float f = float(d);
        std::memcpy(to, &f, 4);
      } else return false;
      return true;
    case 'b': {
      u8 b = integral && i == 1;
      *to = b;
      return integral && (i == 0 || i == 1);
    }
    case 'i':
      if (!integral) return false;
      return leaf.dtype.size == 8   ? store_int<std::int64_t>(i, to)
             : leaf.dtype.size == 4 ? store_int<std::int32_t>(i, to)
             : leaf.dtype.size == 2 ? store_int<std::int16_t>(i, to)
                                    : store_int<std::int8_t>(i, to);
    case 'u':
      if (!integral) return false;
      return leaf.dtype.size == 8   ? store_int<u64>(i, to)
             : leaf.dtype.size == 4 ? store_int<u32>(i, to)
             : leaf.dtype.size == 2 ? store_int<std::uint16_t>(i, to)
                                    : store_int<u8>(i, to);
    default: return false;
  }
}

// A Python or numpy number (0-d) for a leaf without dimensions.
inline bool take_scalar(const LeafSpec& leaf, PyObject* o, Value& v) {
  v.bytes = v.small;
  bool ok = false;
  if (PyFloat_Check(o)) {
    ok = store_scalar(leaf, PyFloat_AsDouble(o), 0, false, v.small);
  } else if (PyLong_Check(o)) {
    int overflow = 0;
    long long i = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow > 0 && leaf.dtype == Dtype{'u', 8}) {  // the upper half of uint64
      u64 big = PyLong_AsUnsignedLongLong(o);
      std::memcpy(v.small, &big, 8);
      ok = !PyErr_Occurred();
    } else {
      ok = !overflow && store_scalar(leaf, 0, i, true, v.small);
    }
  } else if (View scalar; PyObject_CheckBuffer(o) && scalar.take(o, PyBUF_FULL_RO) && scalar.raw().ndim == 0) {
    Dtype d = dtype_of(scalar.raw().format);
    if (d == leaf.dtype) {
      std::memcpy(v.small, scalar.data(), std::size_t(d.size));
      ok = true;
    } else if (d.kind == 'f') {
      double x = PyFloat_AsDouble(o);
      ok = !PyErr_Occurred() && store_scalar(leaf, x, 0, false, v.small);
    } else if (d.kind) {
      PyObject* index = PyNumber_Long(o);
      long long i = index ? PyLong_AsLongLong(index) : 0;
      Py_XDECREF(index);
      ok = !PyErr_Occurred() && store_scalar(leaf, 0, i, true, v.small);
    }
  }
  if (ok) return check_finite(leaf, v.bytes, 1);
  PyErr_Clear();
  View given;
  std::string what = type_name(o);
  if (PyObject_CheckBuffer(o) && given.take(o, PyBUF_FULL_RO))
    what += " of " + dtype_of(given.raw().format).name() + " " + shape_name(given.raw().shape, given.raw().ndim);
  PyErr_Clear();
  raise("SpecError", "%s must be one %s, got %R (%s)", leaf.name.c_str(), leaf.dtype.name().c_str(), o, what.c_str());
  return false;
}

inline bool fits(const LeafSpec& leaf, u64 rows, const Py_ssize_t* shape, int ndim) {
  int extra = rows ? 1 : 0;
  bool same = ndim == int(leaf.shape.size()) + extra && (!rows || u64(shape[0]) == rows);
  for (int i = extra; same && i < ndim; ++i) same = shape[i] == leaf.shape[std::size_t(i - extra)];
  return same;
}

// rows == 0: one value of the leaf's shape. Otherwise an array with one value per row. The caller must hold `o` until the
// bytes have been read; for a numpy array this has the same effect as holding its buffer.
inline bool take_value(LeafSpec& leaf, PyObject* o, u64 rows, Value& v) {
  if (rows == 0 && leaf.shape.empty()) return take_scalar(leaf, o, v);
  const Array* array = Array::of(o);
  if (array && array->dtype == leaf.numpy_dtype && array->contiguous() && fits(leaf, rows, array->shape, array->ndim)) {
    v.bytes = reinterpret_cast<const u8*>(array->data);
    return check_finite(leaf, v.bytes, leaf.items * (rows ? rows : 1));
  }
  if (!v.view.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
    PyErr_Clear();
    bool strided = PyObject_CheckBuffer(o);
    raise("SpecError", "%s must be a contiguous array of %s, got %s%s%s", leaf.name.c_str(), leaf.expected(rows).c_str(),
          strided ? "a strided " : "", type_name(o).c_str(), strided ? "; use numpy.ascontiguousarray" : "");
    return false;
  }
  const Py_buffer& b = v.view.raw();
  Dtype d = dtype_of(b.format);
  if (!(d == leaf.dtype && fits(leaf, rows, b.shape, b.ndim))) {
    raise("SpecError", "%s must be %s, got %s %s", leaf.name.c_str(), leaf.expected(rows).c_str(), d.name().c_str(),
          shape_name(b.shape, b.ndim).c_str());
    return false;
  }
  if (array) Py_XDECREF(std::exchange(leaf.numpy_dtype, Py_NewRef(array->dtype)));
  v.bytes = v.view.as<u8>();
  return check_finite(leaf, v.bytes, leaf.items * (rows ? rows : 1));
}
}  // namespace motet
