// motet._native.HumanSweep, RobotSweep, Collapse, DecisionSweep and graph_depths: the backups of `plan` on numpy arrays.
//
// Arrays arrive in a dict by name, are checked once when a sweep is made, and are held until the sweep is freed. The
// kernels trust the indices in the graph: `plan` checks them when a graph is made or loaded.
#include <map>
#include <memory>
#include <variant>

#include "core/sweep.hpp"
#include "python/python.hpp"

namespace motet {
namespace {
constexpr Dtype kF64{'f', 8}, kI64{'i', 8}, kI32{'i', 4}, kU8{'u', 1};

// Arrays by name from one dict; a missing array, or one of the wrong dtype or size, raises a SpecError with its name.
class Arrays {
 public:
  bool open(PyObject* dict) {
    if (PyDict_Check(dict)) return dict_ = dict, true;
    raise("SpecError", "arrays must be a dict of arrays by name, got %s", type_name(dict).c_str());
    return false;
  }
  PyObject* find(const char* name) const { return PyDict_GetItemString(dict_, name); }  // borrowed, null if missing
  bool has(const char* name) const {
    PyObject* o = find(name);
    return o && o != Py_None;
  }
  template <class T>
  bool take(const char* name, Dtype dtype, u64 items, bool writable, T** out) {
    PyObject* o = find(name);
    if (!o) {
      raise("SpecError", "%s must be an array of %s, got nothing", name, dtype.name().c_str());
      return false;
    }
    View view;
    if (!view.take_array(o, name, dtype, items, writable)) return false;
    *out = view.as<std::remove_const_t<T>>();
    held_.push_back(std::move(view));
    return true;
  }
  bool number(const char* name, double* out) const {
    PyObject* o = find(name);
    if (!o) {
      raise("SpecError", "%s must be a number, got nothing", name);
      return false;
    }
    *out = PyFloat_AsDouble(o);
    return !(*out == -1.0 && PyErr_Occurred());
  }
  bool count(const char* name, u64* out) const {
    double x;
    if (!number(name, &x)) return false;
    *out = u64(x);
    return true;
  }
  // The dtype and the number of items of an array.
  bool peek(const char* name, Dtype* dtype, u64* items) const {
    PyObject* o = find(name);
    View view;
    if (!o || !view.take(o, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) {
      PyErr_Clear();
      raise("SpecError", "%s must be a contiguous array", name);
      return false;
    }
    *dtype = dtype_of(view.raw().format);
    *items = dtype->size ? view.bytes() / u64(dtype->size) : 0;
    return true;
  }

 private:
  PyObject* dict_ = nullptr;
  std::vector<View> held_;
};

bool take_graph(Arrays& in, Flat* g) {
  Dtype dtype;
  u64 items = 0;
  if (!in.peek("dists", &dtype, &items) || !in.take("dists", kI64, items, false, &g->dists)) return false;
  if (items < 1) return raise("SpecError", "dists must have one more entry than there are states, got none") != nullptr;
  g->states = items - 1;
  if (!in.take("rows", kI64, u64(g->dists[g->states]) + 1, false, &g->rows)) return false;
  const u64 transitions = u64(g->rows[g->dists[g->states]]);
  if (!in.take("successor", kI32, transitions, false, &g->successor)) return false;
  if (!in.take("probability", kF64, transitions, false, &g->probability)) return false;
  if (in.has("duration") && !in.take("duration", kF64, transitions, false, &g->duration)) return false;
  if (!in.has("joint")) return true;
  if (!in.peek("joint", &dtype, &items)) return false;
  g->joint_bytes = dtype.size;
  g->joints = g->states ? items / g->states : 0;
  const std::uint8_t* bytes;
  if (dtype.kind != 'u' || dtype.size > 4)
    return raise("SpecError", "joint must be uint8, uint16 or uint32, got %s", dtype.name().c_str()) != nullptr;
  if (!in.take("joint", dtype, g->joints * g->states, false, &bytes)) return false;
  g->joint = bytes;
  return true;
}

bool take_columns(Arrays& in, const Flat& g, Columns* c) {
  double timed;
  u64 holding;
  if (!in.count("humans", &c->humans) || !in.count("columns", &c->columns) || !in.count("robots", &c->robots)) return false;
  if (!in.number("timed", &timed) || !in.count("holding", &holding) || !in.count("still", &c->still)) return false;
  c->timed = timed != 0;
  c->holding = Holding(holding);
  return in.take("first", kI64, c->humans + 1, false, &c->first) && in.take("actions", kI64, c->humans, false, &c->actions) &&
         in.take("policy_at", kI64, c->humans + 1, false, &c->policy_at) &&
         in.take("table", kI32, (c->humans + 1) * g.joints, false, &c->table) &&
         in.take("discount", kF64, c->humans, false, &c->discount) &&
         in.take("achieved", kU8, g.states * c->columns, false, &c->achieved);
}

bool range(PyObject* args, u64 states, u64* first, u64* last) {
  unsigned long long from, to;
  if (!PyArg_ParseTuple(args, "KK", &from, &to)) return false;
  if (from > to || to > states) {
    raise("SpecError", "states must be a range within 0 to %llu, got %llu to %llu", static_cast<unsigned long long>(states), from, to);
    return false;
  }
  *first = from;
  *last = to;
  return true;
}

PyObject* only_dict(PyObject* args, PyObject* kwargs) {
  PyObject* dict;
  static const char* names[] = {"arrays", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", const_cast<char**>(names), &dict)) return nullptr;
  return dict;
}

// The three dtypes of stored values.
template <template <class> class Sweep>
using Kept = std::variant<Sweep<double>, Sweep<float>, Sweep<Half>>;

template <template <class> class Sweep>
bool pick(Arrays& in, Kept<Sweep>* kept, Dtype* dtype) {
  u64 items;
  if (!in.peek("value", dtype, &items)) return false;
  if (*dtype == Dtype{'f', 8}) kept->template emplace<0>();
  else if (*dtype == Dtype{'f', 4}) kept->template emplace<1>();
  else if (*dtype == Dtype{'f', 2}) kept->template emplace<2>();
  else return raise("SpecError", "value must be float64, float32 or float16, got %s", dtype->name().c_str()) != nullptr;
  return true;
}

template <class Sweep, class T = std::remove_pointer_t<decltype(Sweep::value)>>
bool take_humans(Arrays& in, Sweep* sweep, const char* value, Dtype dtype) {
  u64 over;
  if (!in.count("over", &over)) return false;
  sweep->over = Over(over);
  const u64 states = sweep->g.states;
  if (in.has("beliefs")) {
    sweep->belief_width = sweep->c.humans * (sweep->g.joints / sweep->c.robots);
    if (!in.take("beliefs", kF64, states * sweep->belief_width, false, &sweep->beliefs)) return false;
  }
  return in.take("beta", kF64, sweep->c.humans, false, &sweep->beta) &&
         in.take(value, dtype, states * sweep->c.columns, true, &sweep->value);
}

struct PyHumanSweep {
  Arrays in;
  Kept<HumanSweep> kept;
  Dtype dtype;
  u64 states = 0;

  static PyHumanSweep* make(PyObject* args, PyObject* kwargs) {
    PyObject* dict = only_dict(args, kwargs);
    auto made = std::make_unique<PyHumanSweep>();
    if (!dict || !made->in.open(dict) || !pick<HumanSweep>(made->in, &made->kept, &made->dtype)) return nullptr;
    const bool good = std::visit([&](auto& sweep) { return made->fill(sweep, made->dtype); }, made->kept);
    return good ? made.release() : nullptr;
  }
  template <class Sweep>
  bool fill(Sweep& sweep, Dtype dtype) {
    if (!take_graph(in, &sweep.g) || !take_columns(in, sweep.g, &sweep.c)) return false;
    states = sweep.g.states;
    return take_humans(in, &sweep, "value", dtype);
  }
};

PyObject* human_policies(PyObject* o, PyObject* args) {
  auto& self = unbox<PyHumanSweep>(o);
  unsigned long long first, last;
  PyObject* out;
  if (!PyArg_ParseTuple(args, "KKO", &first, &last, &out)) return nullptr;
  if (first > last || last > self.states)
    return raise("SpecError", "states must be a range within 0 to %llu, got %llu to %llu",
                 static_cast<unsigned long long>(self.states), first, last);
  View rows;
  const bool good = std::visit(
      [&](auto& sweep) { return rows.take_array(out, "out", self.dtype, (last - first) * sweep.width(), true); }, self.kept);
  if (!good) return nullptr;
  {
    Unlocked unlocked;
    std::visit(
        [&](auto& sweep) {
          using T = std::remove_pointer_t<decltype(sweep.value)>;
          sweep.policies(first, last, rows.as<T>());
        },
        self.kept);
  }
  Py_RETURN_NONE;
}

PyObject* human_run(PyObject* o, PyObject* args) {
  auto& self = unbox<PyHumanSweep>(o);
  u64 first, last;
  if (!range(args, self.states, &first, &last)) return nullptr;
  {
    Unlocked unlocked;
    std::visit([&](auto& sweep) { sweep.run(first, last); }, self.kept);
  }
  Py_RETURN_NONE;
}

struct PyRobotSweep {
  Arrays in;
  Kept<RobotSweep> kept;
  u64 states = 0;

  static PyRobotSweep* make(PyObject* args, PyObject* kwargs) {
    PyObject* dict = only_dict(args, kwargs);
    auto made = std::make_unique<PyRobotSweep>();
    Dtype dtype;
    if (!dict || !made->in.open(dict) || !pick<RobotSweep>(made->in, &made->kept, &dtype)) return nullptr;
    const bool good = std::visit([&](auto& sweep) { return made->fill(sweep, dtype); }, made->kept);
    return good ? made.release() : nullptr;
  }
  template <class Sweep>
  bool fill(Sweep& sweep, Dtype dtype) {
    if (!take_graph(in, &sweep.g) || !take_columns(in, sweep.g, &sweep.c)) return false;
    states = sweep.g.states;
    const u64 columns = sweep.c.columns, cells = states * columns, robots = states * sweep.c.robots;
    Dtype got;
    u64 items;
    if (!in.peek("weights", &got, &items)) return false;
    sweep.weights_stride = items == columns ? 0 : columns;
    if (in.has("given") && !in.take("given", kF64, robots, false, &sweep.given)) return false;
    return in.take("weights", kF64, sweep.weights_stride ? cells : columns, false, &sweep.weights) &&
           take_policy(sweep, dtype) && in.take("value", dtype, cells, true, &sweep.value) &&
           in.take("power", kF64, states * sweep.c.humans, true, &sweep.power) &&
           in.take("robot_value", kF64, states, true, &sweep.robot_value) &&
           in.take("utility", kF64, states, true, &sweep.utility) &&
           in.take("robot_q", kF64, robots, true, &sweep.robot_q) &&
           in.take("robot_policy", kF64, robots, true, &sweep.robot_policy) && in.number("beta_r", &sweep.beta) &&
           in.number("rho_r", &sweep.rho) && in.number("zeta", &sweep.zeta) && in.number("xi", &sweep.xi) &&
           in.number("eta", &sweep.eta) && in.number("terminal_robot_value", &sweep.terminal);
  }
  // The given policies of the humans; if there are none, what is needed to solve for the humans too.
  template <class Sweep>
  bool take_policy(Sweep& sweep, Dtype dtype) {
    if (in.has("policy")) return in.take("policy", dtype, states * u64(sweep.c.policy_at[sweep.c.humans]), false, &sweep.policy);
    sweep.humans.g = sweep.g;
    sweep.humans.c = sweep.c;
    return take_humans(in, &sweep.humans, "human_value", dtype);
  }
};

PyObject* robot_run(PyObject* o, PyObject* args) {
  auto& self = unbox<PyRobotSweep>(o);
  u64 first, last;
  if (!range(args, self.states, &first, &last)) return nullptr;
  i64 fault;
  {
    Unlocked unlocked;
    fault = std::visit([&](auto& sweep) { return sweep.run(first, last); }, self.kept);
  }
  return PyLong_FromLongLong(fault);
}

struct PyCollapse {
  Arrays in;
  Collapse collapse;

  static PyCollapse* make(PyObject* args, PyObject* kwargs) {
    PyObject* dict = only_dict(args, kwargs);
    auto made = std::make_unique<PyCollapse>();
    Arrays& in = made->in;
    Collapse& c = made->collapse;
    if (!dict || !in.open(dict) || !take_graph(in, &c.g) || !in.count("actions", &c.actions)) return nullptr;
    const u64 transitions = u64(c.g.rows[c.g.dists[c.g.states]]), others = c.actions ? c.g.joints / c.actions : 0;
    Dtype dtype;
    u64 items;
    if (!in.peek("shares", &dtype, &items)) return nullptr;
    c.shares_stride = items == others ? 0 : others;
    if (in.has("reward") && !in.take("reward", kF64, transitions, false, &c.reward)) return nullptr;
    const bool good = in.take("shares", kF64, c.shares_stride ? others * c.g.states : others, false, &c.shares) &&
                      in.take("table", kI32, c.g.joints, false, &c.table) && in.number("rho", &c.rho);
    return good ? made.release() : nullptr;
  }
};

template <class T>
PyObject* as_bytes(const std::vector<T>& v) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(v.data()), Py_ssize_t(v.size() * sizeof(T)));
}

PyObject* collapse_run(PyObject* o, PyObject* args) {
  auto& self = unbox<PyCollapse>(o);
  u64 first, last;
  if (!range(args, self.collapse.g.states, &first, &last)) return nullptr;
  std::vector<i64> lengths;
  std::vector<std::int32_t> successor;
  std::vector<double> weight, earned;
  try {
    Unlocked unlocked;
    self.collapse.run(first, last, lengths, successor, weight, earned);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return Py_BuildValue("NNNN", as_bytes(lengths), as_bytes(successor), as_bytes(weight), as_bytes(earned));
}

struct PyDecisionSweep {
  Arrays in;
  DecisionSweep sweep;

  static PyDecisionSweep* make(PyObject* args, PyObject* kwargs) {
    PyObject* dict = only_dict(args, kwargs);
    auto made = std::make_unique<PyDecisionSweep>();
    Arrays& in = made->in;
    DecisionSweep& d = made->sweep;
    Dtype dtype;
    if (!dict || !in.open(dict) || !in.count("actions", &d.actions) || !in.number("gamma", &d.gamma)) return nullptr;
    if (!in.peek("terminal", &dtype, &d.states) || !in.take("terminal", kU8, d.states, false, &d.terminal)) return nullptr;
    const u64 rows = d.states * d.actions;
    if (!in.take("rows", kI64, rows + 1, false, &d.rows)) return nullptr;
    const u64 entries = u64(d.rows[rows]);
    const bool good = in.take("successor", kI32, entries, false, &d.successor) &&
                      in.take("weight", kF64, entries, false, &d.weight) && in.take("earned", kF64, rows, false, &d.earned);
    return good ? made.release() : nullptr;
  }
};

PyObject* decision_best(PyObject* o, PyObject* args) {
  auto& d = unbox<PyDecisionSweep>(o).sweep;
  unsigned long long first, last;
  PyObject *from, *to, *choice;
  if (!PyArg_ParseTuple(args, "KKOOO", &first, &last, &from, &to, &choice)) return nullptr;
  View source, target, chosen;
  if (!source.take_array(from, "from", kF64, d.states, false) || !target.take_array(to, "to", kF64, d.states, true) ||
      !chosen.take_array(choice, "choice", kI32, d.states, true))
    return nullptr;
  if (first > last || last > d.states) return raise("SpecError", "states must be a range within 0 to %llu, got %llu to %llu", static_cast<unsigned long long>(d.states), first, last);
  {
    Unlocked unlocked;
    d.best(first, last, source.as<double>(), target.as<double>(), chosen.as<std::int32_t>());
  }
  Py_RETURN_NONE;
}

PyObject* decision_follow(PyObject* o, PyObject* args) {
  auto& d = unbox<PyDecisionSweep>(o).sweep;
  unsigned long long first, last;
  PyObject *from, *to, *policy;
  if (!PyArg_ParseTuple(args, "KKOOO", &first, &last, &from, &to, &policy)) return nullptr;
  View source, target, table;
  if (!source.take_array(from, "from", kF64, d.states, false) || !target.take_array(to, "to", kF64, d.states, true) ||
      !table.take_array(policy, "policy", kF64, d.states * d.actions, false))
    return nullptr;
  if (first > last || last > d.states) return raise("SpecError", "states must be a range within 0 to %llu, got %llu to %llu", static_cast<unsigned long long>(d.states), first, last);
  {
    Unlocked unlocked;
    d.follow(first, last, source.as<double>(), target.as<double>(), table.as<double>());
  }
  Py_RETURN_NONE;
}

PyObject* graph_depths(PyObject*, PyObject* args) {
  PyObject *dict, *out;
  if (!PyArg_ParseTuple(args, "OO", &dict, &out)) return nullptr;
  Arrays in;
  Flat g;
  View depth;
  if (!in.open(dict) || !take_graph(in, &g) || !depth.take_array(out, "depth", kI32, g.states, true)) return nullptr;
  u64 reached;
  {
    Unlocked unlocked;
    reached = depths(g, depth.as<std::int32_t>());
  }
  return PyLong_FromUnsignedLongLong(reached);
}

PyMethodDef functions[] = {
    {"graph_depths", graph_depths, METH_VARARGS,
     "graph_depths(arrays, depth)\n--\n\nWrite the length of the longest path to each state; return the number of states that no cycle precedes."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef human_methods[] = {
    {"run", human_run, METH_VARARGS, "run(first, last)\n--\n\nBack up the states of a part of one level."},
    {"policies", human_policies, METH_VARARGS,
     "policies(first, last, out)\n--\n\nCompute the policies of some states from the values of later ones."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef robot_methods[] = {
    {"run", robot_run, METH_VARARGS, "run(first, last)\n--\n\nCompute the values of a part of one level. Return -1, or if there was a fault the code of the first one."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef collapse_methods[] = {
    {"run", collapse_run, METH_VARARGS,
     "run(first, last)\n--\n\nReturn row lengths, successors, weights and expected rewards of a part, as bytes."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef decision_methods[] = {
    {"best", decision_best, METH_VARARGS, "best(first, last, from, to, choice)\n--\n\nCompute value and best action of each state."},
    {"follow", decision_follow, METH_VARARGS, "follow(first, last, from, to, policy)\n--\n\nCompute the value of a given policy."},
    {nullptr, nullptr, 0, nullptr}};
}  // namespace

bool add_sweep(PyObject* m) {
  return PyModule_AddFunctions(m, functions) == 0 &&
         add_type<PyHumanSweep>(m, "HumanSweep", "Soft policies of humans with goals.", human_methods, nullptr) &&
         add_type<PyRobotSweep>(m, "RobotSweep", "Policy and values of the robot that serves the humans.", robot_methods, nullptr) &&
         add_type<PyCollapse>(m, "Collapse", "One agent's decision problem with the policies of all others fixed.", collapse_methods, nullptr) &&
         add_type<PyDecisionSweep>(m, "DecisionSweep", "Backups of one agent's decision problem.", decision_methods, nullptr);
}
}  // namespace motet
