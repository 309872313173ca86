// GRU and LSTM on torch's weight layout: single steps for acting, forwards and backwards through time for learning.
//
// Both ways forward use the same kernels row by row, so the states of an unrolled sequence are bit for bit those of single
// steps, for any number of rows. The backward pass follows one agent at a time; all its sums go in a fixed order.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "core/kernels.hpp"

namespace motet {

enum class Cell { gru, lstm };

// Arrays of one agent with sequences of rows. A null array is not computed.
struct Sequences {
  u64 count, length;
  const float *x, *memory;  // [count, length, inputs], [count, length, state]
  const u8* begin;          // [count, length]: whether a row starts from `memory`; the first row always does
  float *out, *kept;        // [count, length, size], [count, length, kept]
};

class Recurrent {
 public:
  // offsets: where weight_ih, weight_hh, bias_ih and bias_hh begin in the flat vector.
  Recurrent(Cell cell, u64 inputs, u64 size, std::array<u64, 4> offsets, float scale, const kernel::Variant& variant)
      : inputs_(inputs), size_(size), gates_(cell == Cell::gru ? 3 * size : 4 * size), lstm_(cell == Cell::lstm),
        at_(offsets), scale_(scale), variant_(variant) {}

  u64 inputs() const { return inputs_; }
  u64 size() const { return size_; }
  u64 state() const { return lstm_ ? 2 * size_ : size_; }
  u64 kept() const { return lstm_ ? 7 * size_ : 5 * size_; }  // values per row that are kept for the backward pass
  u64 weights() const { return gates_ * (inputs_ + size_); }  // multiplications for one row
  u64 end() const {                                           // minimum number of values in the flat vector
    return std::max(std::max(at_[0] + gates_ * inputs_, at_[1] + gates_ * size_), std::max(at_[2], at_[3]) + gates_);
  }

  // x: [rows, inputs], as float or as bytes; state and out: [rows, state].
  template <class T>
  void step(const float* flat, const T* x, const float* state, float* out, u64 rows) const {
    Work work(*this, std::min(rows, kRows));
    for (u64 first = 0; first < rows; first += kRows) {
      const u64 n = std::min(kRows, rows - first);
      for (u64 r = 0; r < n; ++r) work.set(r, state + (first + r) * this->state());
      const float* scaled_x = scaled(x + first * inputs_, n * inputs_, scale_, work.x);
      sum(flat, scaled_x, work, n);
      for (u64 r = 0; r < n; ++r) {
        forward(work, r, nullptr);
        work.get(r, out + (first + r) * this->state());
      }
    }
  }

  void unroll(const float* flat, const Sequences& s) const {
    Work work(*this, std::min(s.count, kRows));
    for (u64 first = 0; first < s.count; first += kRows) {
      const u64 n = std::min(kRows, s.count - first);
      for (u64 t = 0; t < s.length; ++t) {
        for (u64 r = 0; r < n; ++r) {
          const u64 row = (first + r) * s.length + t;
          if (t == 0 || s.begin[row]) work.set(r, s.memory + row * state());
          std::copy_n(s.x + row * inputs_, inputs_, work.x + r * inputs_);
        }
        sum(flat, work.x, work, n);
        for (u64 r = 0; r < n; ++r) {
          const u64 row = (first + r) * s.length + t;
          forward(work, r, s.kept ? s.kept + row * kept() : nullptr);
          std::copy_n(work.h + r * size_, size_, s.out + row * size_);
        }
      }
    }
  }

  // grad: gradient of out; rows before learn_from neither get nor pass on a gradient. flat_grad and x_grad are
  // overwritten unless they are null. The contents of `kept` are overwritten too.
  void backward(const float* flat, const Sequences& s, const float* grad, u64 learn_from, float* flat_grad, float* x_grad) const {
    through_time(flat, s, grad, learn_from);
    // Rows in the order of memory: all of them, or the learned end of each sequence.
    const u64 parts = learn_from ? s.count : 1, length = learn_from ? s.length - learn_from : s.count * s.length;
    const u64 stride = learn_from ? s.length : 0;
    if (flat_grad) {
      std::fill_n(flat_grad + at_[0], gates_ * inputs_, 0.0f);
      std::fill_n(flat_grad + at_[1], gates_ * size_, 0.0f);
      std::fill_n(flat_grad + at_[2], gates_, 0.0f);
      std::fill_n(flat_grad + at_[3], gates_, 0.0f);
    }
    for (u64 p = 0; p < parts; ++p) {
      const u64 row = p * stride + learn_from;
      const float *d = s.kept + row * kept(), *h = d + gates_ + (lstm_ ? 0 : size_), *x = s.x + row * inputs_;
      if (flat_grad) {
        variant_.product({d, x, 1, kept(), inputs_, length}, flat_grad + at_[0], inputs_, gates_, inputs_, true);
        for_each_sum([&](u64 gate, u64 n, u64 from) {
          variant_.product({d + from, h, 1, kept(), kept(), length}, flat_grad + at_[1] + gate * size_, size_, n, size_, true);
        });
        for (u64 i = 0; i < length; ++i) add_biases(d + i * kept(), flat_grad + at_[2], flat_grad + at_[3]);
      }
      if (x_grad) {
        std::fill_n(x_grad + p * stride * inputs_, learn_from * inputs_, 0.0f);
        variant_.product({d, flat + at_[0], kept(), 1, inputs_, gates_}, x_grad + row * inputs_, inputs_, length, inputs_, false);
      }
    }
  }

 private:
  static constexpr u64 kRows = 32;  // number of sequences per block, so that a block's sums stay in the cache

  struct Work {
    u64 size, state;
    std::unique_ptr<float[]> room;
    float *x, *h, *c, *of_x, *of_h;  // inputs, states, and the weighted sums of the gates over each of them
    Work(const Recurrent& r, u64 rows)
        : size(r.size_), state(r.state()), room(new float[rows * (r.inputs_ + 2 * r.size_ + 2 * r.gates_)]), x(room.get()),
          h(x + rows * r.inputs_), c(h + rows * r.size_), of_x(c + rows * r.size_), of_h(of_x + rows * r.gates_) {}
    void set(u64 r, const float* from) {
      std::copy_n(from, size, h + r * size);
      if (state > size) std::copy_n(from + size, size, c + r * size);
    }
    void get(u64 r, float* to) const {
      std::copy_n(h + r * size, size, to);
      if (state > size) std::copy_n(c + r * size, size, to + size);
    }
  };

  void sum(const float* flat, const float* x, Work& work, u64 n) const {
    variant_.layer(flat + at_[0], flat + at_[2], inputs_, gates_, x, work.of_x, n, false);
    variant_.layer(flat + at_[1], flat + at_[3], size_, gates_, work.h, work.of_h, n, false);
  }

  void forward(Work& work, u64 r, float* kept) const {
    (lstm_ ? variant_.lstm_forward : variant_.gru_forward)(work.of_x + r * gates_, work.of_h + r * gates_,
                                                          work.h + r * size_, work.c + r * size_, kept, size_);
  }

  // Calls f(first sum, number of sums, offset of their gradients in a row of `kept`) for the weighted sums over the state.
  // For n of a GRU, the gradient of the sum over the state differs from that of the sum over the inputs.
  template <class F>
  void for_each_sum(F f) const {
    if (lstm_) return f(u64(0), gates_, u64(0));
    f(u64(0), 2 * size_, u64(0));
    f(2 * size_, size_, 3 * size_);
  }

  void add_biases(const float* d, float* of_x, float* of_h) const {
    for (u64 i = 0; i < gates_; ++i) of_x[i] += d[i];
    for_each_sum([&](u64 gate, u64 n, u64 from) {
      for (u64 i = 0; i < n; ++i) of_h[gate + i] += d[from + i];
    });
  }

  // Replaces the gates in `kept` by the gradients of their weighted sums, from the last row back to learn_from.
  void through_time(const float* flat, const Sequences& s, const float* grad, u64 learn_from) const {
    std::vector<float> dh(s.count * size_), dc(lstm_ ? s.count * size_ : 0);
    for (u64 t = s.length; t-- > learn_from;) {
      for (u64 b = 0; b < s.count; ++b) {
        const u64 row = b * s.length + t;
        (lstm_ ? variant_.lstm_backward : variant_.gru_backward)(grad + row * size_, s.kept + row * kept(), dh.data() + b * size_,
                                                                dc.data() + (lstm_ ? b * size_ : 0), size_);
      }
      if (t == learn_from) return;
      for_each_sum([&](u64 gate, u64 n, u64 from) {
        variant_.product({s.kept + t * kept() + from, flat + at_[1] + gate * size_, s.length * kept(), 1, size_, n}, dh.data(), size_,
                         s.count, size_, true);
      });
      for (u64 b = 0; b < s.count; ++b) {
        if (!s.begin[b * s.length + t]) continue;
        std::fill_n(dh.data() + b * size_, size_, 0.0f);
        if (lstm_) std::fill_n(dc.data() + b * size_, size_, 0.0f);
      }
    }
  }

  u64 inputs_, size_, gates_;
  bool lstm_;
  std::array<u64, 4> at_;
  float scale_;
  kernel::Variant variant_;
};
}  // namespace motet
