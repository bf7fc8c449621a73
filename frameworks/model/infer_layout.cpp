#include "frameworks/model/infer_layout.h"

#include <limits>

#include "frameworks/model/run_memory.h"
#include "frameworks/model/run_time.h"

namespace longspan {
namespace {

// Megatron interleaves whole layers, and needs a multiple of the number of stages of microbatches
// (arXiv 2104.04473, section 2.2).
bool interleaves(const TrainingRun& c, const ModelSpec& model, int64_t virtual_stages) {
  if (virtual_stages == 1) return true;
  const int64_t stages = c.degrees.pipeline;
  return stages > 1 && model.layers % (stages * virtual_stages) == 0 &&
         c.global_batch / (c.degrees.data * *c.microbatch) % stages == 0;
}

TrainingRun with_stage_layers(const TrainingRun& run, const ModelSpec& model, const Stack& stack) {
  TrainingRun c = run;
  const int64_t stages = c.degrees.pipeline, layers = model.layers + 2;
  const bool divides = model.layers % stages == 0 || layers % stages != 0;
  if (stack.ends_as_layers.value <= 0 || !c.stage_layers.empty() || divides) return c;
  c.stage_layers.assign(static_cast<size_t>(stages), layers / stages);
  --c.stage_layers.front();
  --c.stage_layers.back();
  return c;
}

}  // namespace

TrainingRun infer_layout(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                         const Stack& stack) {
  TrainingRun tried = with_stage_layers(run, model, stack);
  if (run.microbatch) return tried;
  tried.microbatch = 1;
  tried.virtual_stages = 1;
  TrainingRun best = tried;
  double least = std::numeric_limits<double>::infinity();
  const int64_t batch = run.global_batch / run.degrees.data;
  for (int64_t micro = 1; batch % micro == 0; micro *= 2) {
    tried.microbatch = micro;
    for (int64_t virtual_stages = 1; virtual_stages <= model.layers; ++virtual_stages) {
      if (!interleaves(tried, model, virtual_stages)) continue;
      tried.virtual_stages = virtual_stages;
      const double bytes = device_bytes(run_memory(tried, model, hw, stack), stack);
      if (bytes > hw.device.memory_bytes.value) continue;
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
