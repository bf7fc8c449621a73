#include "planner/reference/unpublished.h"

#include <limits>

#include "planner/reference/run_memory.h"
#include "planner/reference/run_time.h"

namespace longspan {
namespace {

// Megatron interleaves whole layers, and micro-batches in rounds of as many as there are stages
// (arXiv 2104.04473, section 2.2).
bool interleaves(const ReferenceCase& c, const ModelSpec& model, int64_t virtual_stages) {
  if (virtual_stages == 1) return true;
  const int64_t stages = c.degrees.pipeline;
  return stages > 1 && model.layers % (stages * virtual_stages) == 0 &&
         c.global_batch / (c.degrees.data * *c.micro_batch) % stages == 0;
}

}  // namespace

ReferenceCase with_micro_batch(const ReferenceCase& reference, const ModelSpec& model,
                               const HardwareProfile& hw, const Stack& stack) {
  if (reference.micro_batch) return reference;
  ReferenceCase tried = reference;
  tried.micro_batch = 1;
  tried.virtual_stages = 1;
  ReferenceCase best = tried;
  double least = std::numeric_limits<double>::infinity();
  const int64_t batch = reference.global_batch / reference.degrees.data;
  for (int64_t micro = 1; batch % micro == 0; micro *= 2) {
    tried.micro_batch = micro;
    for (int64_t virtual_stages = 1; virtual_stages <= model.layers; ++virtual_stages) {
      if (!interleaves(tried, model, virtual_stages)) continue;
      tried.virtual_stages = virtual_stages;
      if (!fits(run_memory(tried, model, stack), stack, hw)) continue;
      const double seconds = run_time(tried, model, hw, stack).step();
      if (seconds < least) {
        least = seconds;
        best = tried;
      }
    }
  }
  return best;
}

}  // namespace longspan
