// A 16-ary sum tree: priorities in the leaves, sums above them. It is private to one process and works on whole batches.
// Sums are always recomputed from the children, never adjusted, so rounding errors do not accumulate.
#pragma once
#include <new>
#include <vector>

#include "core/shared.hpp"

namespace motet {

// Sixteen leaves are one cache line, if the array begins on one.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(kLine))); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t(kLine)); }
  template <class U>
  bool operator==(const LineAllocator<U>&) const { return true; }
  template <class U>
  bool operator!=(const LineAllocator<U>&) const { return false; }
};
template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

class SumTree {
 public:
  static constexpr u64 kFan = 16;

  explicit SumTree(u64 capacity) : capacity_(capacity), leaves_(round_up(capacity, kFan), 0.0f) {
    u64 n = leaves_.size() / kFan;
    for (;;) {
      sums_.emplace_back(n == 1 ? 1 : round_up(n, kFan), 0.0);
      if (n == 1) break;
      n = sums_.back().size() / kFan;
    }
  }

  u64 capacity() const { return capacity_; }
  u64 positive() const { return positive_; }  // number of leaves above zero
  double total() const { return sums_.back()[0]; }
  float get(u64 i) const { return leaves_[i]; }

  void set(const u64* index, const float* value, u64 n) {
    for (u64 i = 0; i < n; ++i) __builtin_prefetch(&leaves_[index[i] & ~(kFan - 1)], 1);
    for (u64 i = 0; i < n; ++i) put(index[i], value[i]);
    // Neighbouring leaves share parents: a parent is summed once for consecutive entries that share it, not per leaf.
    u64 shift = 4;
    for (std::size_t level = 0; level < sums_.size(); ++level, shift += 4) {
      u64 done = ~u64(0);
      for (u64 i = 0; i < n; ++i) {
        u64 p = index[i] >> shift;
        if (p == done) continue;
        sums_[level][p] = level ? sum(&sums_[level - 1][p * kFan]) : sum(&leaves_[p * kFan]);
        done = p;
      }
    }
  }

  // Divides the total into n equal slices and samples one leaf from each, in order. Needs total() > 0.
  void sample(Rng& rng, u64 n, u64* index) {
    double slice = total() / double(n);
    rest_.resize(n);
    for (u64 i = 0; i < n; ++i) {
      rest_[i] = (double(i) + rng.unit()) * slice;
      index[i] = 0;
    }
    for (std::size_t level = sums_.size() - 1; level-- > 0;)
      for (u64 i = 0; i < n; ++i) {
        index[i] = index[i] * kFan + descend(&sums_[level][index[i] * kFan], rest_[i]);
        const void* next = level ? static_cast<const void*>(&sums_[level - 1][index[i] * kFan]) : &leaves_[index[i] * kFan];
        __builtin_prefetch(next);
        if (level) __builtin_prefetch(static_cast<const u8*>(next) + kLine);
      }
    for (u64 i = 0; i < n; ++i) index[i] = index[i] * kFan + descend(&leaves_[index[i] * kFan], rest_[i]);
  }

 private:
  void put(u64 i, float value) {
    positive_ += u64(value > 0) - u64(leaves_[i] > 0);
    leaves_[i] = value;
  }
  template <class T>
  static double sum(const T* p) {
    double s[4] = {0, 0, 0, 0};
    for (u64 i = 0; i < kFan; i += 4)
      for (u64 j = 0; j < 4; ++j) s[j] += double(p[i + j]);
    return (s[0] + s[1]) + (s[2] + s[3]);
  }
  // Returns the child into which `rest` falls; rounding never leads to an empty one.
  template <class T>
  static u64 descend(const T* p, double& rest) {
    u64 last = 0;
    for (u64 c = 0; c < kFan; ++c) {
      double w = double(p[c]);
      if (w > 0) {
        if (rest < w) return c;
        last = c;
      }
      rest -= w;
    }
    rest = double(p[last]) * 0.99999999;
    return last;
  }

  u64 capacity_, positive_ = 0;
  LineVector<float> leaves_;
  std::vector<LineVector<double>> sums_;  // sums_[0] over leaves ... sums_.back() has one entry
  std::vector<double> rest_;
};
}  // namespace motet
