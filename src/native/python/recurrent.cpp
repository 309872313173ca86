// motet._native.Recurrent: GRU and LSTM, single steps for actors and passes through time for learners, without torch.
#include "core/recurrent.hpp"

#include "python/kernels.hpp"
#include "python/python.hpp"

namespace motet {
namespace {

constexpr unsigned long long kMostSize = 1ull << 31;

// Takes a contiguous array of a dtype and a shape, or raises a SpecError with its name. A dimension kAny matches any size.
constexpr Py_ssize_t kAny = -1;
template <size_t kAxes>
bool take_shape(View& view, PyObject* o, const char* name, Dtype dtype, const Py_ssize_t (&shape)[kAxes], bool writable) {
  if (!view.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) {
    PyErr_Clear();
    raise("SpecError", "%s must be a contiguous%s array of %s, got %s", name, writable ? ", writable" : "", dtype.name().c_str(),
          type_name(o).c_str());
    return false;
  }
  const Py_buffer& raw = view.raw();
  bool fits = dtype_of(raw.format) == dtype && raw.ndim == int(kAxes);
  std::string wanted = "(";
  for (size_t i = 0; i < kAxes; ++i) {
    fits = fits && (shape[i] == kAny || raw.shape[i] == shape[i]);
    wanted += (i ? ", " : "") + (shape[i] == kAny ? std::string("any") : std::to_string(shape[i]));
  }
  if (fits) return true;
  raise("SpecError", "%s must be %s of shape %s), got %s of shape %s", name, dtype.name().c_str(), wanted.c_str(),
        dtype_of(raw.format).name().c_str(), shape_name(raw.shape, raw.ndim).c_str());
  return false;
}

// Rows of agents, which may be columns of a wider array.
struct Rows {
  View view;
  bool take(PyObject* o, const char* name, u64 least, Py_ssize_t agents, bool writable) {
    if (!view.take(o, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) {
      PyErr_Clear();
      raise("SpecError", "%s must be a%s array of float32, got %s", name, writable ? " writable" : "", type_name(o).c_str());
      return false;
    }
    const Py_buffer& raw = view.raw();
    if (dtype_of(raw.format) == Dtype{'f', 4} && raw.ndim == 2 && (agents == kAny || raw.shape[0] == agents) &&
        u64(raw.shape[1]) >= least && raw.strides[1] == 4 && raw.strides[0] % 4 == 0)
      return true;
    raise("SpecError", "%s must be float32 of shape (%s, at least %llu) whose rows have adjacent values, got %s of shape %s", name,
          agents == kAny ? "any" : std::to_string(agents).c_str(), static_cast<unsigned long long>(least),
          dtype_of(raw.format).name().c_str(), shape_name(raw.shape, raw.ndim).c_str());
    return false;
  }
  Py_ssize_t agents() const { return view.raw().shape[0]; }
  float* row(Py_ssize_t agent) const { return view.as<float>() + agent * (view.raw().strides[0] / 4); }
};

struct RecurrentHandle {
  Recurrent net;

  static RecurrentHandle* make(PyObject* args, PyObject* kwargs) {
    const char *kind, *variant = nullptr;
    unsigned long long inputs, size, at[4];
    PyObject *sizes_given[2], *offsets_given;
    float scale = 1;
    static const char* names[] = {"kind", "inputs", "size", "offsets", "scale", "variant", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOOO|fz", const_cast<char**>(names), &kind, &sizes_given[0], &sizes_given[1],
                                     &offsets_given, &scale, &variant))
      return nullptr;
    std::string word = kind;
    if (word != "gru" && word != "lstm") {
      raise("SettingError", "kind must be 'gru' or 'lstm', got '%s'", kind);
      return nullptr;
    }
    unsigned long long* sizes[2] = {&inputs, &size};
    for (int i = 0; i < 2; ++i) {
      *sizes[i] = PyLong_AsUnsignedLongLong(sizes_given[i]);
      const bool failed = PyErr_Occurred();
      PyErr_Clear();
      if (failed || *sizes[i] < 1 || *sizes[i] > kMostSize) {
        raise("SettingError", "%s must be an int from 1 to 2**31, got %R", names[1 + i], sizes_given[i]);
        return nullptr;
      }
    }
    PyObject* offsets = PySequence_Tuple(offsets_given);
    if (!offsets) return nullptr;
    bool fine = PyTuple_Size(offsets) == 4;
    for (int i = 0; fine && i < 4; ++i) {
      at[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(offsets, i));
      fine = !PyErr_Occurred() && at[i] <= kMost;
    }
    PyErr_Clear();
    Py_DECREF(offsets);
    if (!fine) {
      raise("SettingError", "offsets must be those of weight_ih, weight_hh, bias_ih and bias_hh, got %R", offsets_given);
      return nullptr;
    }
    kernel::Variant chosen;
    if (!find_variant(variant, &chosen)) return nullptr;
    return new RecurrentHandle{Recurrent(word == "gru" ? Cell::gru : Cell::lstm, inputs, size, {at[0], at[1], at[2], at[3]}, scale,
                                         chosen)};
  }
};

PyObject* recurrent_step(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 4) return PyErr_Format(PyExc_TypeError, "step(flat, x, state, out) takes 4 arguments, %zd given", n);
  const Recurrent& net = unbox<RecurrentHandle>(o).net;
  View flat, x, state, out;
  if (!take_flat(flat, args[0], net.end())) return nullptr;
  u64 rows;
  bool bytes;
  if (!take_inputs(x, args[1], net.inputs(), &rows, &bytes)) return nullptr;
  if (!state.take_array(args[2], "state", {'f', 4}, rows * net.state(), false)) return nullptr;
  if (!out.take_array(args[3], "out", {'f', 4}, rows * net.state(), true)) return nullptr;
  return without_lock(rows * net.weights(), [&] {
    if (bytes)
      net.step(flat.as<const float>(), x.as<const u8>(), state.as<const float>(), out.as<float>(), rows);
    else
      net.step(flat.as<const float>(), x.as<const float>(), state.as<const float>(), out.as<float>(), rows);
  });
}

// What unroll and backward have in common: rows of agents and their sequences.
struct Given {
  Rows rows;
  View x, memory, begin, out, kept;
  Py_ssize_t agents, count, length;
  bool take(const Recurrent& net, PyObject* rows_given, PyObject* x_given, PyObject* begin_given) {
    if (!rows.take(rows_given, "rows", net.end(), kAny, false)) return false;
    agents = rows.agents();
    if (!take_shape(x, x_given, "x", {'f', 4}, {agents, kAny, kAny, Py_ssize_t(net.inputs())}, false)) return false;
    count = x.raw().shape[1];
    length = x.raw().shape[2];
    return take_shape(begin, begin_given, "begin", {'b', 1}, {agents, count, length}, false);
  }
  bool take(View& view, PyObject* o, const char* name, u64 last, bool writable) {
    return take_shape(view, o, name, {'f', 4}, {agents, count, length, Py_ssize_t(last)}, writable);
  }
  template <class T>
  T* part(const View& view, Py_ssize_t agent, u64 last) const {
    return view.data() ? view.as<T>() + u64(agent) * u64(count * length) * last : nullptr;
  }
  Sequences of(const Recurrent& net, Py_ssize_t agent) const {
    return {u64(count),
            u64(length),
            part<const float>(x, agent, net.inputs()),
            part<const float>(memory, agent, net.state()),
            part<const u8>(begin, agent, 1),
            part<float>(out, agent, net.size()),
            part<float>(kept, agent, net.kept())};
  }
  u64 work(const Recurrent& net) const { return u64(agents * count * length) * net.weights(); }
};

PyObject* recurrent_unroll(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 6) return PyErr_Format(PyExc_TypeError, "unroll(rows, x, memory, begin, out, kept) takes 6 arguments, %zd given", n);
  const Recurrent& net = unbox<RecurrentHandle>(o).net;
  Given given;
  if (!given.take(net, args[0], args[1], args[3]) || !given.take(given.memory, args[2], "memory", net.state(), false) ||
      !given.take(given.out, args[4], "out", net.size(), true) ||
      (args[5] != Py_None && !given.take(given.kept, args[5], "kept", net.kept(), true)))
    return nullptr;
  return without_lock(given.work(net), [&] {
    for (Py_ssize_t a = 0; a < given.agents; ++a) net.unroll(given.rows.row(a), given.of(net, a));
  });
}

PyObject* recurrent_backward(PyObject* o, PyObject* const* args, Py_ssize_t n) {
  if (n != 8)
    return PyErr_Format(PyExc_TypeError,
                        "backward(rows, x, begin, kept, grad_out, learn_from, grad_rows, grad_x) takes 8 arguments, %zd given", n);
  const Recurrent& net = unbox<RecurrentHandle>(o).net;
  Given given;
  View grad, x_grad;
  Rows grad_rows;
  if (!given.take(net, args[0], args[1], args[2]) || !given.take(given.kept, args[3], "kept", net.kept(), true) ||
      !given.take(grad, args[4], "grad_out", net.size(), false))
    return nullptr;
  const long long learn_from = PyLong_AsLongLong(args[5]);
  if (PyErr_Occurred()) return nullptr;
  if (learn_from < 0 || learn_from > given.length)
    return raise("SpecError", "learn_from must be an int from 0 to %zd, got %lld", given.length, learn_from);
  if (args[6] != Py_None && !grad_rows.take(args[6], "grad_rows", net.end(), given.agents, true)) return nullptr;
  if (args[7] != Py_None && !given.take(x_grad, args[7], "grad_x", net.inputs(), true)) return nullptr;
  return without_lock(given.work(net), [&] {
    for (Py_ssize_t a = 0; a < given.agents; ++a)
      net.backward(given.rows.row(a), given.of(net, a), given.part<const float>(grad, a, net.size()), u64(learn_from),
                   grad_rows.view.data() ? grad_rows.row(a) : nullptr, given.part<float>(x_grad, a, net.inputs()));
  });
}

template <u64 (Recurrent::*kNumber)() const>
PyObject* number(PyObject* o, void*) {
  return PyLong_FromUnsignedLongLong((unbox<RecurrentHandle>(o).net.*kNumber)());
}

PyMethodDef methods[] = {
    {"step", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(recurrent_step)), METH_FASTCALL,
     "step(flat, x, state, out)\n--\n\n"
     "Fill out with the states [rows, state_size] after inputs x [rows, inputs] (float32, uint8 or bool)."},
    {"unroll", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(recurrent_unroll)), METH_FASTCALL,
     "unroll(rows, x, memory, begin, out, kept)\n--\n\n"
     "Fill out [A, B, T, size] for inputs x [A, B, T, inputs]. Where begin, the state is memory, otherwise the carried one."},
    {"backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(recurrent_backward)), METH_FASTCALL,
     "backward(rows, x, begin, kept, grad_out, learn_from, grad_rows, grad_x)\n--\n\n"
     "Overwrite the gradients of the weights and of x, given that of out. Uses up what unroll kept."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef getset[] = {
    {"end", number<&Recurrent::end>, nullptr, "Minimum number of values in the flat vector.", nullptr},
    {"state_size", number<&Recurrent::state>, nullptr, "Number of values of a state.", nullptr},
    {"kept_size", number<&Recurrent::kept>, nullptr, "Number of values that unroll keeps for each row.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
}  // namespace

bool add_recurrent(PyObject* m) {
  return add_type<RecurrentHandle>(m, "Recurrent", "GRU or LSTM, directly on flat vectors of weights.", methods, getset);
}
}  // namespace motet
