#include "engine/profile/device_optimizer.h"

#include <algorithm>
#include <memory>

#include "base/bfloat16.h"
#include "base/units.h"
#include "engine/cpu/blocks.h"

namespace longspan {
namespace {

// Bytes of a gradient, a parameter, two moments, and the parameter rounded to bfloat16.
constexpr int64_t kStateBytes = 4 * sizeof(float) + sizeof(bfloat16);
constexpr int64_t kAlign = 256;

// Optimizer states whose location cycles through all of the memory, to keep them out of caches.
class HostStates {
 public:
  HostStates(cuda::Device& device, int64_t most)
      : memory_(device.allocate(Tier::host, bytes_of(most))) {}

  double update(ThreadPool& pool, int64_t count) {
    if (next_ + bytes_of(count) > memory_->bytes()) next_ = 0;
    std::byte* at = memory_->data() + next_;
    next_ += bytes_of(count);
    const int64_t piece = round_up(count * static_cast<int64_t>(sizeof(float)), kAlign);
    const auto floats = [&](int64_t i) { return reinterpret_cast<float*>(at + i * piece); };
    auto* narrowed = reinterpret_cast<bfloat16*>(at + 4 * piece);
    cpu::AdamWStep step;
    step.learning_rate = 1e-3;
    return timed([&] {
      cpu::adamw(pool, step, floats(0), count, floats(1), floats(2), floats(3), narrowed);
    });
  }

 private:
  static int64_t bytes_of(int64_t count) {
    return round_up(count * kStateBytes, kAlign) + 4 * kAlign;
  }

  std::unique_ptr<Arena> memory_;  // zeros, which stay zeros
  int64_t next_ = 0;
};

}  // namespace

void add_host_optimizer_samples(Sampler& sampler, DeviceBench& bench, ThreadPool& pool) {
  const std::vector<int64_t>& counts = bench.grid.host_states;
  const auto states =
      std::make_shared<HostStates>(bench.device, *std::max_element(counts.begin(), counts.end()));
  for (const int64_t count : counts) {
    sampler.add("adamw_host", {static_cast<double>(count), 1, 1}, static_cast<double>(count),
                [=, &pool] { return states->update(pool, count); });
  }
}

}  // namespace longspan
