// Bellman backups over flat transition arrays: humans with goals, the robot that serves them, and plain rewards.
//
// A state has a list of distinct successor distributions; a joint action selects one of them. Each backup writes the rows
// of its states and reads rows of later levels only. Terms and order of the sums depend on the state alone, so any split
// of a level over threads gives bitwise equal results. Values are stored as double, float or half; all sums are in double.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/shared.hpp"

namespace motet {

// IEEE half precision, for storage only.
struct Half {
  std::uint16_t bits;
};

inline double load(double x) { return x; }
inline double load(float x) { return double(x); }
inline double load(Half h) {
  const int exponent = (h.bits >> 10) & 31, fraction = h.bits & 1023;
  const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return h.bits >> 15 ? -size : size;
}

inline void keep(double& out, double x) { out = x; }
inline void keep(float& out, double x) { out = float(x); }
inline void keep(Half& out, double x) {  // round to nearest, ties to even; beyond 65504: infinity
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(x);
  int exponent = -24;
  if (size > 0) std::frexp(size, &exponent);  // size = f * 2^exponent, f in [0.5, 1)
  const int shift = std::max(exponent - 11, -24);
  const double units = std::nearbyint(std::ldexp(size, -shift));  // in units of 2^shift; at most 2048
  std::uint32_t bits = shift == -24 ? std::uint32_t(units) : std::uint32_t((shift + 24) * 1024 + units);
  if (!(size < 65520)) bits = 0x7C00;
  out.bits = std::uint16_t(sign | bits);
}

constexpr double kTie = 1e-12;  // actions whose values differ by less, relative to the larger, count as equally good

// The transitions of a graph. Distribution d has the transitions rows[d] .. rows[d + 1]; state s has the distributions
// dists[s] .. dists[s + 1].
struct Flat {
  u64 states = 0, joints = 0;
  const void* joint = nullptr;  // [states, joints], of 1, 2 or 4 bytes: index of one of the state's distributions
  int joint_bytes = 1;
  const i64 *dists = nullptr, *rows = nullptr;
  const std::int32_t* successor = nullptr;
  const double *probability = nullptr, *duration = nullptr;  // duration: null for none

  bool terminal(u64 s) const { return dists[s] == dists[s + 1]; }
  u64 dist(u64 s, u64 j) const {
    const u64 at = s * joints + j;
    if (joint_bytes == 1) return static_cast<const std::uint8_t*>(joint)[at];
    if (joint_bytes == 2) return static_cast<const std::uint16_t*>(joint)[at];
    return static_cast<const std::uint32_t*>(joint)[at];
  }
  u64 most_dists(u64 first, u64 last) const {
    i64 most = 0;
    for (u64 s = first; s < last; ++s) most = std::max(most, dists[s + 1] - dists[s]);
    return u64(most);
  }
};

// The value in states where the goal is already achieved: 0 (kZero) or 1 (kOne). With kStay, the human does nothing
// there: its V is 0, and its attainment is the probability that the goal still holds after the step.
enum class Holding { kZero, kOne, kStay };

// The columns of the humans: column c is one goal of one human; the columns of human h are first[h] .. first[h + 1].
struct Columns {
  u64 humans = 0, columns = 0, robots = 1;  // robots: joint actions of all robots
  const i64* first = nullptr;               // [humans + 1]
  const i64* actions = nullptr;             // [humans]
  const i64* policy_at = nullptr;           // [humans + 1]: offset of pi of human h in a state's row, [action, goal]
  const std::int32_t* table = nullptr;      // [humans, joints]: joint action by the human's action, the other humans' and the robots'
  const double* discount = nullptr;         // [humans]: gamma, or the discount rate if transitions have durations
  const std::uint8_t* achieved = nullptr;   // [states, columns]
  bool timed = false;
  Holding holding = Holding::kZero;
  u64 still = 0;  // the action of a human whose goal is achieved, with kStay

  u64 most_actions() const {
    i64 most = 1;
    for (u64 h = 0; h < humans; ++h) most = std::max(most, actions[h]);
    return u64(most);
  }
};

// The expected payoff of each distribution of one state, for all columns. The payoff of a successor is 1 where the goal is
// achieved there, else its discounted value; it is computed from the values, and not stored.
template <class T>
class Worth {
 public:
  Worth(const Flat& g, const Columns& c, const T* value, u64 most)
      : g_(g), c_(c), value_(value), own_(most * c.columns) {}

  void look(u64 s) {
    double* w = own_.data();
    for (i64 d = g_.dists[s]; d < g_.dists[s + 1]; ++d, w += c_.columns) {
      const i64 begin = g_.rows[d], end = g_.rows[d + 1];
      if (!c_.timed && end - begin == 1 && g_.probability[begin] == 1.0) {  // deterministic
        each(begin, [&](u64 c, double payoff) { w[c] = payoff; });
        continue;
      }
      std::fill(w, w + c_.columns, 0.0);
      for (i64 k = begin; k < end; ++k) {
        const double p = g_.probability[k];
        if (c_.timed) add_timed(w, k);
        else each(k, [&](u64 c, double payoff) { w[c] += p * payoff; });
      }
    }
  }
  const double* operator[](u64 slot) const { return own_.data() + slot * c_.columns; }

 private:
  // Calls visit(column, payoff) for the successor of a transition.
  template <class Visit>
  void each(i64 k, Visit visit) const {
    const u64 row = u64(g_.successor[k]) * c_.columns;
    const T* v = value_ + row;
    const std::uint8_t* achieved = c_.achieved + row;
    for (u64 h = 0; h < c_.humans; ++h) {
      const double discount = c_.discount[h];
      const u64 last = u64(c_.first[h + 1]);
      for (u64 c = u64(c_.first[h]); c < last; ++c) visit(c, achieved[c] ? 1.0 : discount * load(v[c]));
    }
  }
  void add_timed(double* w, i64 k) const {
    const u64 row = u64(g_.successor[k]) * c_.columns;
    const double p = g_.probability[k], duration = g_.duration ? g_.duration[k] : 1.0;
    for (u64 h = 0; h < c_.humans; ++h) {
      const double later = p * std::exp(-c_.discount[h] * duration);
      for (i64 c = c_.first[h]; c < c_.first[h + 1]; ++c)
        w[c] += c_.achieved[row + u64(c)] ? p : later * load(value_[row + u64(c)]);
    }
  }
  const Flat& g_;
  const Columns& c_;
  const T* value_;
  std::vector<double> own_;
};

// Stores a state's value. `v` is the value by the formula; where the goal is achieved it is used only with kStay.
template <class T>
inline void settle(const Columns& c, u64 s, u64 column, double v, T* value) {
  const u64 at = s * c.columns + column;
  keep(value[at], c.achieved[at] && c.holding != Holding::kStay ? double(c.holding == Holding::kOne) : v);
}

// The values of a terminal state are zero, except with kOne. Arrays are zero at first, and what stays zero is not written,
// so that memory pages of terminal states alone are never touched and take no memory.
template <class T>
inline void settle_terminal(const Columns& c, u64 s, T* value) {
  if (c.holding != Holding::kOne) return;
  for (u64 k = 0; k < c.columns; ++k)
    if (c.achieved[s * c.columns + k]) keep(value[s * c.columns + k], 1.0);
}

enum class Over { kWorst, kBest, kMean };  // how humans aggregate over the robot's actions

// V_h and pi_h of every human and goal.
template <class T>
struct HumanSweep {
  Flat g;
  Columns c;
  const double* beta = nullptr;      // [humans], may be infinite
  const double* beliefs = nullptr;   // [states, width], by human, own action, other humans' actions; null: uniform
  u64 belief_width = 0;
  Over over = Over::kWorst;
  T* value = nullptr;

  // Memory for the work on one state at a time.
  struct Scratch {
    Scratch(const HumanSweep& sweep, u64 first, u64 last)
        : worth(sweep.g, sweep.c, sweep.value, sweep.g.most_dists(first, last)),
          q(sweep.c.most_actions() * sweep.c.columns), over_robots(sweep.c.columns), weight(sweep.c.most_actions()),
          pi(u64(sweep.c.policy_at[sweep.c.humans])) {}
    Worth<T> worth;
    std::vector<double> q, over_robots, weight;
    std::vector<T> pi;  // pi_h of the state, as it is stored
  };

  u64 width() const { return u64(c.policy_at[c.humans]); }

  void run(u64 first, u64 last) const {
    Scratch scratch(*this, first, last);
    for (u64 s = first; s < last; ++s) {
      if (g.terminal(s)) settle_terminal(c, s, value);
      else solve(s, scratch, scratch.pi.data(), value);
    }
  }

  // Computes pi_h again, [last - first, width], from the values of later states.
  void policies(u64 first, u64 last, T* out) const {
    Scratch scratch(*this, first, last);
    for (u64 s = first; s < last; ++s, out += width()) {
      if (g.terminal(s))
        for (u64 k = 0; k < width(); ++k) keep(out[k], 0.0);
      else solve(s, scratch, out, nullptr);
    }
  }

  // Computes pi_h of a state, and V_h unless `to` is null.
  void solve(u64 s, Scratch& scratch, T* pi, T* to) const {
    scratch.worth.look(s);
    const double* belief = beliefs ? beliefs + s * belief_width : nullptr;
    for (u64 h = 0; h < c.humans; ++h) {
      const u64 goals = u64(c.first[h + 1] - c.first[h]);
      belief = weigh(s, h, goals, scratch.worth, belief, scratch.q.data(), scratch.over_robots.data());
      choose(s, h, goals, scratch.q.data(), scratch.weight.data(), pi + c.policy_at[h], to);
    }
  }

 private:
  // Q_h [action, goal]: expectation over h's belief about the other humans of the worst (best, mean) robot action.
  const double* weigh(u64 s, u64 h, u64 goals, const Worth<T>& worth, const double* belief, double* q, double* m) const {
    const u64 actions = u64(c.actions[h]), profiles = g.joints / (actions * c.robots), column = u64(c.first[h]);
    const std::int32_t* joint = c.table + h * g.joints;
    for (u64 a = 0; a < actions; ++a, q += goals) {
      std::fill(q, q + goals, 0.0);
      for (u64 o = 0; o < profiles; ++o, joint += c.robots) {
        const double b = belief ? *belief++ : 1.0 / double(profiles);
        if (b == 0.0) continue;
        const double* w = worth[g.dist(s, u64(joint[0]))] + column;
        std::copy(w, w + goals, m);
        for (u64 r = 1; r < c.robots; ++r) {
          w = worth[g.dist(s, u64(joint[r]))] + column;
          if (over == Over::kWorst)
            for (u64 k = 0; k < goals; ++k) m[k] = w[k] < m[k] ? w[k] : m[k];
          else if (over == Over::kBest)
            for (u64 k = 0; k < goals; ++k) m[k] = w[k] > m[k] ? w[k] : m[k];
          else
            for (u64 k = 0; k < goals; ++k) m[k] += w[k];
        }
        const double share = over == Over::kMean ? b / double(c.robots) : b;
        for (u64 k = 0; k < goals; ++k) q[k] += share * m[k];
      }
    }
    return belief;
  }

  // Computes pi_h [action, goal] and V_h from Q_h; `weight` is scratch with one entry per action.
  void choose(u64 s, u64 h, u64 goals, const double* q, double* weight, T* pi, T* to) const {
    const u64 actions = u64(c.actions[h]);
    for (u64 k = 0; k < goals; ++k) {
      if (c.holding == Holding::kStay && c.achieved[s * c.columns + u64(c.first[h]) + k]) {
        for (u64 a = 0; a < actions; ++a) keep(pi[a * goals + k], double(a == c.still));
        if (to) settle(c, s, u64(c.first[h]) + k, 0.0, to);
        continue;
      }
      double most = q[k], sum = 0.0, v = 0.0;
      for (u64 a = 1; a < actions; ++a) most = std::max(most, q[a * goals + k]);
      const double tie = kTie * std::max(1.0, std::fabs(most));
      for (u64 a = 0; a < actions; ++a) {
        const double below = q[a * goals + k] - most;
        weight[a] = std::isinf(beta[h]) ? double(below >= -tie) : std::exp(beta[h] * below);
        sum += weight[a];
      }
      for (u64 a = 0; a < actions; ++a) {
        const double share = weight[a] / sum;
        keep(pi[a * goals + k], share);
        v += share * q[a * goals + k];
      }
      if (to) settle(c, s, u64(c.first[h]) + k, v, to);
    }
  }
};

// The robot's pi_r, Q_r and V_r, and with them the humans' effective attainment V_he and power X_h.
template <class T>
struct RobotSweep {
  Flat g;
  Columns c;
  const T* policy = nullptr;          // [states, width]: given policies of the humans; null: those of `humans`
  HumanSweep<T> humans;               // computes the humans' policies in the same sweep, unless they are given
  const double* weights = nullptr;    // [states or 1, columns]: weights of the goals
  u64 weights_stride = 0;             // columns, or 0 if all states share one row
  const double* given = nullptr;      // [states, robots]: the robot's policy, if it is evaluated; null: computed from Q_r
  double beta = 10, rho = 0, zeta = 1, xi = 1, eta = 1, terminal = -1e-10;
  T* value = nullptr;  // V_he
  double *power = nullptr, *robot_value = nullptr, *robot_q = nullptr, *robot_policy = nullptr, *utility = nullptr;

  // Returns -1, or the first fault: state * (humans + 1) + h if human h has no power, or + humans if V_r overflows.
  i64 run(u64 first, u64 last) const {
    Worth<T> worth(g, c, value, g.most_dists(first, last));
    std::optional<typename HumanSweep<T>::Scratch> scratch;
    if (!policy) scratch.emplace(humans, first, last);
    std::vector<double> prior(c.humans * c.most_actions()), later(g.most_dists(first, last)), stays(later.size());
    for (u64 s = first; s < last; ++s) {
      if (g.terminal(s)) {
        end(s);
        continue;
      }
      if (!policy) humans.solve(s, *scratch, scratch->pi.data(), humans.value);
      const T* pi = policy ? policy + s * u64(c.policy_at[c.humans]) : scratch->pi.data();
      priors(s, pi, prior.data());
      const double stay = decide(s, prior.data(), later.data(), stays.data());
      worth.look(s);
      for (u64 h = 0; h < c.humans; ++h) attain(s, h, pi + c.policy_at[h], prior.data(), worth);
      const i64 fault = reward(s, stay);
      if (fault >= 0) return i64(s * (c.humans + 1)) + fault;
    }
    return -1;
  }

 private:
  void end(u64 s) const {  // all other arrays are zero already
    if (!policy) settle_terminal(c, s, humans.value);
    settle_terminal(c, s, value);
    robot_value[s] = terminal;
  }

  // The action probabilities of each human, averaged over its goals: [human, action].
  void priors(u64 s, const T* pi, double* prior) const {
    const double* w = weights + s * weights_stride;
    const u64 stride = c.most_actions();
    for (u64 h = 0; h < c.humans; ++h, prior += stride) {
      const u64 goals = u64(c.first[h + 1] - c.first[h]);
      double total = 0.0;
      for (u64 k = 0; k < goals; ++k) total += w[u64(c.first[h]) + k];
      for (u64 a = 0; a < u64(c.actions[h]); ++a) {
        double sum = 0.0;
        const T* row = pi + u64(c.policy_at[h]) + a * goals;
        for (u64 k = 0; k < goals; ++k) sum += w[u64(c.first[h]) + k] * load(row[k]);
        prior[a] = sum / total;
      }
    }
  }

  // Calls visit(action of h, probability of the other humans' actions, robots' profile, joint action). With h = humans,
  // all humans count as others.
  template <class Visit>
  void profiles(u64 h, const double* prior, Visit visit) const {
    const u64 stride = c.most_actions();
    const bool own = h < c.humans;
    const std::int32_t* joint = c.table + h * g.joints;
    u64 others = g.joints / c.robots;
    const u64 mine = own ? u64(c.actions[h]) : 1;
    others /= mine;
    for (u64 a = 0; a < mine; ++a)
      for (u64 o = 0; o < others; ++o) {
        double share = 1.0;
        u64 rest = o;
        for (u64 i = c.humans; i-- > 0;) {  // the last human's action varies fastest
          if (i == h) continue;
          share *= prior[i * stride + rest % u64(c.actions[i])];
          rest /= u64(c.actions[i]);
        }
        for (u64 r = 0; r < c.robots; ++r, ++joint) visit(a, share, r, u64(*joint));
      }
  }

  // Computes Q_r, and pi_r unless it is given, and stores E[V_r] in robot_value; returns w, the expected weight of staying in the state.
  double decide(u64 s, const double* prior, double* later, double* stays) const {
    for (i64 d = g.dists[s]; d < g.dists[s + 1]; ++d) {
      double sum = 0.0, weight = 0.0;
      for (i64 k = g.rows[d]; k < g.rows[d + 1]; ++k) {
        const double p = g.probability[k], duration = g.duration ? g.duration[k] : 1.0;
        sum += p * std::exp(-rho * duration) * robot_value[g.successor[k]];
        weight += rho > 0 ? p * -std::expm1(-rho * duration) / rho : p;
      }
      later[d - g.dists[s]] = sum;
      stays[d - g.dists[s]] = weight;
    }
    double* q = robot_q + s * c.robots;
    double* pi = robot_policy + s * c.robots;
    std::fill(q, q + c.robots, 0.0);
    std::fill(pi, pi + c.robots, 0.0);  // the weights of staying, until pi_r is known
    profiles(c.humans, prior, [&](u64, double share, u64 r, u64 j) {
      const u64 d = g.dist(s, j);
      q[r] += share * later[d];
      pi[r] += share * stays[d];
    });
    double most = -std::numeric_limits<double>::infinity(), sum = 0.0, stay = 0.0, next = 0.0;
    for (u64 r = 0; r < c.robots; ++r) most = std::max(most, -std::log(-q[r]));
    auto weight = [&](u64 r) {
      const double below = -std::log(-q[r]) - most;
      return std::isinf(beta) ? double(below >= -kTie) : std::exp(beta * below);
    };
    if (!given)
      for (u64 r = 0; r < c.robots; ++r) sum += weight(r);
    for (u64 r = 0; r < c.robots; ++r) {
      const double share = given ? given[s * c.robots + r] : weight(r) / sum;
      stay += share * pi[r];
      pi[r] = share;
      next += share * q[r];
    }
    robot_value[s] = next;
    return stay;
  }

  // Computes V_he of one human from its policy for each goal, the others' priors and the robot's policy.
  void attain(u64 s, u64 h, const T* pi, const double* prior, const Worth<T>& worth) const {
    const u64 goals = u64(c.first[h + 1] - c.first[h]), column = u64(c.first[h]);
    const double* robot = robot_policy + s * c.robots;
    std::vector<double> sum(goals, 0.0), v(goals, 0.0);
    u64 current = 0;
    auto close = [&] {  // for each goal: weight the sum of the current action by the action's probability
      for (u64 k = 0; k < goals; ++k) v[k] += load(pi[current * goals + k]) * sum[k];
      std::fill(sum.begin(), sum.end(), 0.0);
    };
    profiles(h, prior, [&](u64 a, double share, u64 r, u64 j) {
      if (a != current) close();
      current = a;
      const double p = share * robot[r];
      const double* w = worth[g.dist(s, j)] + column;
      for (u64 k = 0; k < goals; ++k) sum[k] += p * w[k];
    });
    close();
    for (u64 k = 0; k < goals; ++k) settle(c, s, column + k, v[k], value);
  }

  // Computes X_h, U_r and V_r; returns -1, a human without power, or `humans` if V_r overflows.
  i64 reward(u64 s, double stay) const {
    const double* w = weights + s * weights_stride;
    double most = -std::numeric_limits<double>::infinity();
    for (u64 h = 0; h < c.humans; ++h) {
      double x = 0.0;
      for (i64 k = c.first[h]; k < c.first[h + 1]; ++k) {
        const double v = load(value[s * c.columns + u64(k)]);
        if (w[k] > 0.0) x += w[k] * (zeta == 1.0 ? v : std::pow(v, zeta));
      }
      if (!(x > 0.0)) return i64(h);
      power[s * c.humans + h] = x;
      most = std::max(most, -xi * std::log(x));
    }
    double u = 0.0;
    if (c.humans) {
      double sum = 0.0;
      for (u64 h = 0; h < c.humans; ++h) sum += std::exp(-xi * std::log(power[s * c.humans + h]) - most);
      u = -std::exp(eta * (most + std::log(sum / double(c.humans))));
    }
    utility[s] = u;
    robot_value[s] += stay * u;
    return std::isfinite(robot_value[s]) && robot_value[s] < 0.0 ? -1 : i64(c.humans);
  }
};

// The decision problem of one agent with the policies of all others fixed: rows [states * actions] of merged successors.
struct Collapse {
  Flat g;
  const double* reward = nullptr;  // [transitions]
  u64 actions = 0;                 // number of actions of the agent
  const std::int32_t* table = nullptr;   // [joints]: joint action by the agent's action and the others' profile
  const double* shares = nullptr;  // [states or 1, others' profiles]: probabilities of the profiles
  u64 shares_stride = 0;
  double rho = 0;                  // discount rate per unit of duration; folded into the weights

  void run(u64 first, u64 last, std::vector<i64>& lengths, std::vector<std::int32_t>& successor,
           std::vector<double>& weight, std::vector<double>& earned) const {
    const u64 others = g.joints / actions;
    std::vector<double> share(g.most_dists(first, last));
    std::vector<std::pair<std::int32_t, double>> row;
    for (u64 s = first; s < last; ++s)
      for (u64 a = 0; a < actions; ++a) {
        row.clear();
        double sum = 0.0;
        if (!g.terminal(s)) {
          std::fill(share.begin(), share.end(), 0.0);
          for (u64 o = 0; o < others; ++o) share[g.dist(s, u64(table[a * others + o]))] += shares[s * shares_stride + o];
          for (i64 d = g.dists[s]; d < g.dists[s + 1]; ++d) sum += spread(d, share[d - g.dists[s]], row);
        }
        std::stable_sort(row.begin(), row.end(), [](auto& x, auto& y) { return x.first < y.first; });
        const u64 before = successor.size();
        for (auto& [to, p] : row) {
          if (successor.size() > before && successor.back() == to) weight.back() += p;
          else successor.push_back(to), weight.push_back(p);
        }
        lengths.push_back(i64(successor.size() - before));
        earned.push_back(sum);
      }
  }

 private:
  double spread(i64 d, double share, std::vector<std::pair<std::int32_t, double>>& row) const {
    double sum = 0.0;
    if (share == 0.0) return sum;
    for (i64 k = g.rows[d]; k < g.rows[d + 1]; ++k) {
      const double p = share * g.probability[k];
      if (reward) sum += p * reward[k];
      row.emplace_back(g.successor[k], rho > 0 ? p * std::exp(-rho * (g.duration ? g.duration[k] : 1.0)) : p);
    }
    return sum;
  }
};

// One backup of a decision problem: the best action, or the mean over a given policy.
struct DecisionSweep {
  u64 states = 0, actions = 0;
  const i64* rows = nullptr;               // [states * actions + 1]
  const std::int32_t* successor = nullptr;
  const double *weight = nullptr, *earned = nullptr;  // earned: [states * actions]
  const std::uint8_t* terminal = nullptr;  // [states]: states whose entry in `to` is not changed
  double gamma = 1;

  double q(u64 row, const double* from) const {
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;  // four sums, so that no addition waits for the previous one
    i64 k = rows[row];
    const i64 end = rows[row + 1];
    for (; k + 3 < end; k += 4) {
      a += weight[k] * from[successor[k]];
      b += weight[k + 1] * from[successor[k + 1]];
      c += weight[k + 2] * from[successor[k + 2]];
      d += weight[k + 3] * from[successor[k + 3]];
    }
    for (; k < end; ++k) a += weight[k] * from[successor[k]];
    return earned[row] + gamma * ((a + b) + (c + d));
  }
  void best(u64 first, u64 last, const double* from, double* to, std::int32_t* choice) const {
    for (u64 s = first; s < last; ++s) {
      if (terminal[s]) {
        choice[s] = -1;
        continue;
      }
      double most = q(s * actions, from);
      std::int32_t chosen = 0;
      for (u64 a = 1; a < actions; ++a)
        if (const double here = q(s * actions + a, from); here > most) most = here, chosen = std::int32_t(a);
      to[s] = most;
      choice[s] = chosen;
    }
  }
  void follow(u64 first, u64 last, const double* from, double* to, const double* policy) const {
    for (u64 s = first; s < last; ++s) {
      if (terminal[s]) continue;
      double sum = 0.0;
      for (u64 a = 0; a < actions; ++a)
        if (const double share = policy[s * actions + a]; share != 0.0) sum += share * q(s * actions + a, from);
      to[s] = sum;
    }
  }
};

// Writes the length of the longest path from any state without predecessors to each state; -1 if a cycle precedes it.
// Returns the number of states reached. States become ready in the order of their depth, so the last visited predecessor
// of a state is its deepest one.
inline u64 depths(const Flat& g, std::int32_t* depth) {
  std::vector<std::uint32_t> waiting(g.states, 0), ready;
  const i64 transitions = g.rows[g.dists[g.states]];
  for (i64 k = 0; k < transitions; ++k) ++waiting[u64(g.successor[k])];
  ready.reserve(g.states);
  for (u64 s = 0; s < g.states; ++s) {
    depth[s] = waiting[s] ? -1 : 0;
    if (!waiting[s]) ready.push_back(std::uint32_t(s));
  }
  for (u64 i = 0; i < ready.size(); ++i) {
    const u64 s = ready[i];
    for (i64 k = g.rows[g.dists[s]]; k < g.rows[g.dists[s + 1]]; ++k) {
      const u64 to = u64(g.successor[k]);
      if (--waiting[to]) continue;
      depth[to] = depth[s] + 1;
      ready.push_back(std::uint32_t(to));
    }
  }
  return ready.size();
}
}  // namespace motet
