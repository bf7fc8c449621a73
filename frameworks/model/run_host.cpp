#include "frameworks/model/run_host.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"
#include "planner/cost/cost_model.h"

namespace longspan {
namespace {

constexpr double kUpdatedBytes = 12;  // a parameter and two moments, in single precision

// Bytes of the layers' inputs that wait on the host for one microbatch.
double checkpoint_bytes(const TrainingRun& c, const ModelSpec& model) {
  const LayerWidths widths = layer_widths(model, layer_shape(c));
  return offloaded(c.offload.checkpoints, 0) * recomputed_layers(c, model, 0) * 2 * widths.between *
         widths.hidden;
}

// Bytes of one layer and one microbatch that attention in chunks copies to and from the host (arXiv
// 2408.16978): each forward stores the input of its projections, queries, keys, values and output;
// the backward fetches them once, and stores and fetches the output's gradient and that of the
// queries, which is in single precision. Repeated fetches run during attention and are not counted.
struct ChunkBytes {
  double forward = 0;  // down
  double backward_down = 0, backward_up = 0;
};

ChunkBytes chunk_bytes(const TrainingRun& c, const ModelSpec& model) {
  if (c.chunk_tokens == 0) return {};
  const LayerWidths w = layer_widths(model, layer_shape(c));
  ChunkBytes bytes;
  bytes.forward = 2 * w.rows * (w.hidden + w.queries + w.keys + w.values + w.attended);
  bytes.backward_down = 2 * w.rows * 3 * w.queries;
  bytes.backward_up = bytes.forward + bytes.backward_down;
  return bytes;
}

// Parameters of one rank after ZeRO's sharding.
double shard(const TrainingRun& c, const ModelSpec& model) {
  const RankParameters own = parameters_of_rank(c, model, 0, ends_of(c, 0));
  return c.zero > 0 ? shard_of(c, own) : own.all();
}

// PyTorch allocates pinned memory in powers of two.
double pinned(double bytes) {
  return bytes > 0 ? static_cast<double>(std::bit_ceil(static_cast<uint64_t>(bytes))) : 0;
}

}  // namespace

double offloaded(const std::vector<double>& shares, int64_t stage) {
  if (shares.empty()) return 0;
  return shares[shares.size() == 1 ? 0 : static_cast<size_t>(stage)];
}

HostTraffic host_traffic(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const double times = microbatches(c), own = shard(c, model);
  const double checkpoints = times * checkpoint_bytes(c, model);
  const double parameters = offloaded(c.offload.parameters, 0) * own * 2;
  HostTraffic traffic;
  traffic.updated = offloaded(c.offload.optimizer, 0) * own;
  // Parameters are fetched for each forward and each backward, or once after an update.
  const double passes = c.zero == 3 ? 2 * times : 1;
  traffic.up = checkpoints + passes * parameters;
  if (parameters == 0) traffic.up += traffic.updated * 2;
  if (c.offload.parameters_in_files) traffic.read += passes * parameters;
  if (c.offload.checkpoints_in_files) traffic.spilled = checkpoints;
  if (c.offload.optimizer_in_files) {
    const double states = traffic.updated * kUpdatedBytes;
    traffic.read += states;
    traffic.written += states;
  }
  const ChunkBytes chunks = chunk_bytes(c, model);
  const double layers = layers_of(c, model, 0), again = recomputed_layers(c, model, 0);
  traffic.up += times * layers * chunks.backward_up;
  traffic.down = times * ((layers + again) * chunks.forward + layers * chunks.backward_down);
  traffic.down +=
      checkpoints + times * offloaded(c.offload.gradients, 0) * own * stack.gradient_bytes.value;
  return traffic;
}

double host_seconds(const TrainingRun& c, const HardwareProfile& hw, const Stack& stack,
                    const HostTraffic& traffic, double compute_seconds) {
  const CostModel cost(hw, DType::bfloat16);
  double copies = 0;
  for (const auto& [kernel, bytes] :
       {std::pair(Kernel::copy_d2h, traffic.down), std::pair(Kernel::copy_h2d, traffic.up)}) {
    if (bytes > 0) copies += cost.seconds({kernel, {bytes, 1, 1}, bytes / stack.copy_share.value});
  }
  const double ranks = number(std::min(c.gpus, c.gpus_per_node));
  const double update =
      ranks * traffic.updated * stack.host_update_bytes.value / hw.host.memory_bandwidth.value;
  const double files =
      ranks * (traffic.read > 0 ? traffic.read / hw.nvme.read_bandwidth.value : 0) +
      ranks * (traffic.written > 0 ? traffic.written / hw.nvme.write_bandwidth.value : 0);
  if (traffic.spilled > 0) {
    // Files are slower than the copies to them, which run meanwhile.
    const double spills = ranks * traffic.spilled *
                          (1 / hw.nvme.read_bandwidth.value + 1 / hw.nvme.write_bandwidth.value);
    copies = std::max(copies, spills);
  }
  return std::max(0.0, copies - stack.copy_hidden.value * compute_seconds) + update + files;
}

double host_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const double own = shard(c, model);
  const double parameters = c.offload.parameters_in_files ? 0 : 2;
  const double optimizer = c.offload.optimizer_in_files ? 0 : stack.host_state_bytes.value;
  const double states = offloaded(c.offload.parameters, 0) * parameters +
                        offloaded(c.offload.optimizer, 0) * optimizer;
  // ZeRO 3 stores a rank's gradients in one buffer, too, before they are widened.
  const double gradients = c.zero == 3 ? pinned(offloaded(c.offload.gradients, 0) * own * 2) : 0;
  const double ranks = number(std::min(c.gpus, c.gpus_per_node));
  const ChunkBytes chunks = chunk_bytes(c, model);  // of the running layer
  const double checkpoints = c.offload.checkpoints_in_files ? 0 : checkpoint_bytes(c, model);
  return ranks * (checkpoints + chunks.forward + chunks.backward_down + own * states + gradients);
}

}  // namespace longspan
