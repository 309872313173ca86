// A leaf of a row for Python: the argument that holds its value, the required dtype and shape, and the stored layout.
#pragma once
#include <cmath>
#include <vector>

#include "core/reader.hpp"
#include "python/array.hpp"

namespace motet {

struct LeafSpec {
  u64 offset, bytes;      // position and size within a row
  bool stacked;           // gathered as n_frames consecutive rows
  bool next;              // gathered from the end of the transition too
  std::string name;       // for errors: "observation/camera"
  u32 root;               // index of the argument that has the value
  PyObject* path;         // tuple of keys into that argument
  Dtype dtype;
  std::vector<Py_ssize_t> shape;
  u64 items;
  bool finite;            // NaN and infinity are refused
  bool nested;            // the path is not empty
  PyObject* numpy_dtype = nullptr;  // dtype object of the last array that passed all checks

  LeafSpec() = default;
  LeafSpec(const LeafSpec&) = delete;
  LeafSpec(LeafSpec&& o) noexcept
      : offset(o.offset), bytes(o.bytes), stacked(o.stacked), next(o.next), name(std::move(o.name)), root(o.root),
        path(std::exchange(o.path, nullptr)), dtype(o.dtype), shape(std::move(o.shape)), items(o.items), finite(o.finite),
        nested(o.nested), numpy_dtype(std::exchange(o.numpy_dtype, nullptr)) {}
  ~LeafSpec() {
    Py_XDECREF(path);
    Py_XDECREF(numpy_dtype);
  }

  std::string expected(bool many) const {
    std::string s = dtype.name() + (many ? " (rows," : " (");
    for (std::size_t i = 0; i < shape.size(); ++i) s += (i || many ? " " : "") + std::to_string(shape[i]) + (i + 1 < shape.size() ? "," : "");
    return s + (!many && shape.size() == 1 ? ",)" : ")");
  }
};

// One leaf is (name, root, path, kind, itemsize, shape, offset, stacked, next, finite).
inline bool parse_leaves(PyObject* list, u64 row_bytes, std::vector<LeafSpec>& out) {
  Py_ssize_t n = PySequence_Size(list);
  if (n < 0) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_GetItem(list, i);
    if (!item) return false;
    const char *name, *kind;
    unsigned int root;
    PyObject *path, *shape;
    int itemsize, stacked, next, finite;
    unsigned long long offset;
    LeafSpec leaf;
    leaf.path = nullptr;
    bool ok = PyArg_ParseTuple(item, "sIO!siO!Kppp", &name, &root, &PyTuple_Type, &path, &kind, &itemsize, &PyTuple_Type, &shape,
                               &offset, &stacked, &next, &finite);
    if (ok) {
      leaf.name = name;
      leaf.root = root;
      leaf.path = Py_NewRef(path);
      leaf.nested = PyTuple_Size(path) > 0;
      leaf.dtype = {kind[0], itemsize};
      leaf.items = 1;
      for (Py_ssize_t d = 0; d < PyTuple_Size(shape); ++d) {
        leaf.shape.push_back(PyLong_AsSsize_t(PyTuple_GetItem(shape, d)));
        leaf.items *= u64(leaf.shape.back());
      }
      leaf.offset = offset;
      leaf.bytes = leaf.items * u64(itemsize);
      leaf.stacked = stacked;
      leaf.next = next;
      leaf.finite = finite;
      if (PyErr_Occurred()) ok = false;
      else if (leaf.offset < 8 || leaf.offset > row_bytes || leaf.bytes > row_bytes - leaf.offset) {
        raise("SpecError", "%s must fit into a row of %llu bytes after its meta word, got %llu bytes at offset %llu", name,
              (unsigned long long)row_bytes, (unsigned long long)leaf.bytes, offset);
        ok = false;
      }
    }
    Py_DECREF(item);
    if (!ok) return false;
    out.push_back(std::move(leaf));
  }
  return true;
}

inline Lane* open_lane(View& memory, PyObject* buffer, u64 row_bytes, u64 spec_hash) {
  if (!memory.take_shared(buffer, "memory of a lane", sizeof(Lane))) return nullptr;
  Lane* lane = memory.as<Lane>();
  if (lane->magic != Lane::kMagic || lane->capacity == 0 || !Lane::possible(lane->capacity, row_bytes) || lane->row_bytes != row_bytes || lane->spec_hash != spec_hash ||
      Lane::bytes(lane->capacity, row_bytes) > memory.bytes()) {
    raise("CorruptionError", "memory must hold a lane of this spec, but it is fresh, damaged, or was made for another spec");
    return nullptr;
  }
  return lane;
}
}  // namespace motet
