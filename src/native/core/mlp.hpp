// Forward pass of a fully connected network on torch's weight layout, for acting: few rows, low latency, no copies.
// A row's result depends neither on the other rows nor on their number (`kernel::layer`).
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/kernels.hpp"

namespace motet {

enum class Activation { relu, tanh };

struct Layer {
  u64 in, out, weight, bias;  // sizes, and where weight [out, in] and bias [out] begin in the flat vector
};

class Mlp {
 public:
  Mlp(std::vector<Layer> layers, Activation activation, bool activate_last, float scale, const kernel::Variant& variant)
      : layers_(std::move(layers)), activation_(activation), activate_last_(activate_last), scale_(scale), layer_(variant.layer) {
    for (const Layer& l : layers_) {
      widest_ = std::max(widest_, std::max(l.in, l.out));
      weights_ += l.in * l.out;
      end_ = std::max(end_, std::max(l.weight + l.in * l.out, l.bias + l.out));
    }
  }
  u64 in() const { return layers_.front().in; }
  u64 out() const { return layers_.back().out; }
  u64 weights() const { return weights_; }  // multiplications for one row
  u64 end() const { return end_; }          // minimum number of values in the flat vector

  // x: [rows, in], as float or as bytes; y: [rows, out].
  template <class T>
  void forward(const float* flat, const T* x, float* y, u64 rows) const {
    constexpr u64 kRows = 16;
    const u64 chunk = std::min(rows, kRows);
    std::unique_ptr<float[]> here(new float[chunk * widest_]), there(new float[chunk * widest_]);
    for (u64 first = 0; first < rows; first += chunk) {
      const u64 n = std::min(chunk, rows - first);
      const float* input = scaled(x + first * in(), n * in(), scale_, here.get());
      for (u64 l = 0; l < layers_.size(); ++l) {
        const Layer& s = layers_[l];
        const bool last = l + 1 == layers_.size(), activate = !last || activate_last_;
        float* output = last ? y + first * out() : input == here.get() ? there.get() : here.get();
        layer_(flat + s.weight, flat + s.bias, s.in, s.out, input, output, n,
               activate && activation_ == Activation::relu);
        if (activate && activation_ == Activation::tanh) kernel::tanh_all(output, n * s.out);
        input = output;
      }
    }
  }

 private:
  std::vector<Layer> layers_;
  Activation activation_;
  bool activate_last_;
  float scale_;
  decltype(kernel::Variant::layer) layer_;
  u64 widest_ = 0, weights_ = 0, end_ = 0;
};

// Chooses epsilon-greedy actions. Each row consumes two uniform draws in [0, 1), even if it does not need them, so that
// the random stream does not depend on the values. Without draws the choice is greedy. Among equal values the first one
// is chosen. Returns the first row whose mask allows no action, or -1.
inline i64 choose(const float* values, const u8* mask, const double* draws, double epsilon, i64 first_action, u64 rows, u64 n,
                  i64* actions) {
  for (u64 r = 0; r < rows; ++r) {
    const float* v = values + r * n;
    const u8* allowed = mask ? mask + r * n : nullptr;
    u64 count = n;
    if (allowed) {
      count = 0;
      for (u64 a = 0; a < n; ++a) count += allowed[a] != 0;
      if (!count) return i64(r);
    }
    u64 pick = n;
    if (draws && draws[2 * r] < epsilon) {
      u64 skip = std::min(u64(draws[2 * r + 1] * double(count)), count - 1);
      for (u64 a = 0; a < n && pick == n; ++a)
        if ((!allowed || allowed[a]) && skip-- == 0) pick = a;
    } else {
      for (u64 a = 0; a < n; ++a)
        if ((!allowed || allowed[a]) && (pick == n || v[a] > v[pick])) pick = a;
    }
    actions[r] = i64(pick) + first_action;
  }
  return -1;
}
}  // namespace motet
