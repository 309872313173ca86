// motet._native.Mlp and choose: forward pass and epsilon-greedy choice for actors, without torch.
#include "core/mlp.hpp"

#include "python/kernels.hpp"
#include "python/python.hpp"

namespace motet {
namespace {

bool read_sizes(PyObject* o, const char* name, std::vector<u64>& out) {
  PyObject* items = PySequence_Tuple(o);
  if (!items) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(items); ++i) {
    unsigned long long n = PyLong_AsUnsignedLongLong(PyTuple_GetItem(items, i));
    if (PyErr_Occurred()) break;
    if (n > (u64(1) << 31)) {
      raise("SettingError", "%s must be at most 2**31, got %llu", name, n);
      break;
    }
    out.push_back(n);
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

struct MlpHandle {
  Mlp net;

  static MlpHandle* make(PyObject* args, PyObject* kwargs) {
    PyObject *sizes_given, *offsets_given;
    const char *activation = "relu", *variant = nullptr;
    int activate_last = 0;
    float scale = 1;
    static const char* names[] = {"sizes", "offsets", "activation", "activate_last", "scale", "variant", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|spfz", const_cast<char**>(names), &sizes_given, &offsets_given,
                                     &activation, &activate_last, &scale, &variant))
      return nullptr;
    std::vector<u64> sizes, offsets;
    if (!read_sizes(sizes_given, "sizes", sizes) || !read_sizes(offsets_given, "offsets", offsets)) return nullptr;
    if (sizes.size() < 2 || std::find(sizes.begin(), sizes.end(), 0u) != sizes.end()) {
      raise("SettingError", "sizes must be two or more sizes >= 1, got %R", sizes_given);
      return nullptr;
    }
    if (offsets.size() != 2 * (sizes.size() - 1)) {
      raise("SettingError", "offsets must be %zu offsets, of weight and bias of each layer, got %zu", 2 * (sizes.size() - 1),
            offsets.size());
      return nullptr;
    }
    std::string word = activation;
    if (word != "relu" && word != "tanh") {
      raise("SettingError", "activation must be 'relu' or 'tanh', got '%s'", activation);
      return nullptr;
    }
    kernel::Variant chosen;
    if (!find_variant(variant, &chosen)) return nullptr;
    std::vector<Layer> layers;
    for (u64 l = 0; l + 1 < sizes.size(); ++l) layers.push_back({sizes[l], sizes[l + 1], offsets[2 * l], offsets[2 * l + 1]});
    Activation kind = word == "relu" ? Activation::relu : Activation::tanh;
    return new MlpHandle{Mlp(std::move(layers), kind, activate_last != 0, scale, chosen)};
  }
};

PyObject* mlp_forward(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 3) return PyErr_Format(PyExc_TypeError, "forward(flat, x, out) takes 3 arguments, %zd given", n);
  const Mlp& net = unbox<MlpHandle>(o).net;
  View flat, x, out;
  if (!take_flat(flat, args[0], net.end())) return nullptr;
  u64 rows;
  bool bytes;
  if (!take_inputs(x, args[1], net.in(), &rows, &bytes)) return nullptr;
  if (!out.take_array(args[2], "out", {'f', 4}, rows * net.out(), true)) return nullptr;
  return without_lock(rows * net.weights(), [&] {
    if (bytes)
      net.forward(flat.as<const float>(), x.as<const u8>(), out.as<float>(), rows);
    else
      net.forward(flat.as<const float>(), x.as<const float>(), out.as<float>(), rows);
  });
}

PyObject* mlp_end(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(unbox<MlpHandle>(o).net.end()); }

PyObject* choose_actions(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 6)
    return PyErr_Format(PyExc_TypeError, "choose(values, masks, draws, epsilon, first, actions) takes 6 arguments, %zd given", n);
  View values, masks, draws, actions;
  if (!actions.take(args[5], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return nullptr;
  const u64 rows = actions.bytes() / 8;
  if (!actions.take_array(args[5], "actions", {'i', 8}, rows, true)) return nullptr;
  if (!values.take(args[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return nullptr;
  const u64 count = rows ? values.bytes() / 4 / rows : 0;
  if (!values.take_array(args[0], "values", {'f', 4}, rows * count, false)) return nullptr;
  if (rows && !count) return raise("SpecError", "values must be one or more for each of %llu rows, got none", (unsigned long long)rows);
  if (args[1] != Py_None && !masks.take_array(args[1], "masks", {'b', 1}, rows * count, false)) return nullptr;
  if (args[2] != Py_None && !draws.take_array(args[2], "draws", {'f', 8}, rows * 2, false)) return nullptr;
  const double epsilon = PyFloat_AsDouble(args[3]);
  const long long first = PyLong_AsLongLong(args[4]);
  if (PyErr_Occurred()) return nullptr;
  i64 bad = choose(values.as<const float>(), args[1] != Py_None ? masks.as<const u8>() : nullptr,
                   args[2] != Py_None ? draws.as<const double>() : nullptr, epsilon, first, rows, count, actions.as<i64>());
  if (bad >= 0) return raise("SpecError", "masks must allow at least one action in each row, got none in row %lld", (long long)bad);
  Py_RETURN_NONE;
}

PyMethodDef mlp_methods[] = {
    {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(mlp_forward)), METH_FASTCALL,
     "forward(flat, x, out)\n--\n\nFill out [rows, last size] from x [rows, first size] (float32, uint8 or bool)."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef mlp_getset[] = {{"end", mlp_end, nullptr, "Minimum number of values in the flat vector.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef functions[] = {
    {"choose", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(choose_actions)), METH_FASTCALL,
     "choose(values, masks, draws, epsilon, first, actions)\n--\n\n"
     "Write epsilon-greedy actions for rows of values; masks None: all actions allowed, draws None: greedy."},
    {nullptr, nullptr, 0, nullptr}};
}  // namespace

bool add_mlp(PyObject* m) {
  PyObject* variants = PyTuple_New(Py_ssize_t(kernel::variants().size()));
  if (!variants) return false;
  Py_ssize_t i = 0;
  for (const kernel::Variant& one : kernel::variants()) PyTuple_SetItem(variants, i++, PyUnicode_FromString(one.name));
  bool added = PyModule_AddObjectRef(m, "MLP_VARIANTS", variants) == 0;
  Py_DECREF(variants);
  return added && PyModule_AddFunctions(m, functions) == 0 &&
         add_type<MlpHandle>(m, "Mlp", "Forward pass of a fully connected network, directly on a flat vector of weights.",
                             mlp_methods, mlp_getset);
}
}  // namespace motet
