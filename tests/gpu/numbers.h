// Memory of a device with random numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/bfloat16.h"
#include "engine/cuda/device.h"

namespace longspan::testing {

/// Random numbers in [-1, 1) as bfloat16, which repeat after kPeriod elements: products run
/// unrealistically fast on zeros.
class Numbers {
 public:
  Numbers(cuda::Device& device, Tier tier, int64_t bytes, uint32_t seed = 1)
      : arena_(device.allocate(tier, bytes)) {
    std::mt19937 random(seed);
    period_.resize(static_cast<size_t>(std::min(bytes / 2, kPeriod)));
    for (bfloat16& x : period_) x = narrow(static_cast<float>(random()) * 0x1p-31F - 1);
    for (int64_t at = 0; at < bytes; at += 2 * std::ssize(period_)) {
      arena_->write(at, period_.data(), std::min<int64_t>(bytes - at, 2 * std::ssize(period_)));
    }
  }
  /// The address of a byte of the memory.
  template <class T>
  T* at(int64_t byte = 0) const {
    return reinterpret_cast<T*>(arena_->data() + byte);
  }
  /// Element i, as it was written in the beginning.
  double operator[](int64_t i) const {
    return widen(period_[static_cast<size_t>(i % std::ssize(period_))]);
  }

 private:
  static constexpr int64_t kPeriod = int64_t{1} << 22;

  std::unique_ptr<Arena> arena_;
  std::vector<bfloat16> period_;
};

}  // namespace longspan::testing
