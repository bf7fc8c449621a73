// A training run under software other than Longspan's engine: what it is told, and how it is
// partitioned. Its model and hardware are separate arguments of the predictions in
// frameworks/model. A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// Degrees of parallelism; their product, without those of experts, is the number of GPUs.
struct RunDegrees {
  int64_t data = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  /// A sequence is spread over ulysses x ring x all_gather GPUs. The names say how attention sees
  /// the other GPUs' keys: by all-to-all, passed around a ring, or gathered.
  int64_t ulysses = 1;
  int64_t ring = 1;
  int64_t all_gather = 1;
  int64_t expert = 1;  // experts are distributed over this many GPUs of a stage ...
  /// ... and each is cut over this many; 0: over those of a tensor group.
  int64_t expert_tensor = 0;
  int64_t of_expert() const { return expert_tensor > 0 ? expert_tensor : tensor; }
  bool operator==(const RunDegrees&) const = default;
};

enum class Recompute : uint8_t {
  none,
  selective,  // the scores of attention only (arXiv 2205.05198), or what the stack calls so
  full,       // every layer from its input
};

/// Shares of what waits in host memory: one for each pipeline stage, or one for all; empty: none.
struct RunOffload {
  std::vector<double> checkpoints, parameters, gradients, optimizer;
  /// Shares of all that layers keep, in runs that name a schedule.
  std::vector<double> activations = {};
  /// Whether the shares of these are in files, not in host memory.
  bool parameters_in_files = false, optimizer_in_files = false, checkpoints_in_files = false;
  bool operator==(const RunOffload&) const = default;
};

/// Kernels of attention that a run can name. "sdpa" is PyTorch's scaled_dot_product_attention.
inline const std::vector<std::string>& attention_kernel_names() {
  static const std::vector<std::string> kernels{"flash1", "flash2", "flash3",
                                                "flash4", "cudnn",  "sdpa"};
  return kernels;
}

/// What a model is for, besides the one that is trained: in preference tuning and reinforcement
/// learning.
enum class ModelRole : uint8_t { reference, critic, reward };
inline std::string_view name_of(ModelRole role) {
  return role == ModelRole::reference ? "reference"
         : role == ModelRole::critic  ? "critic"
                                      : "reward model";
}

/// Where a model is while another one runs on the same GPUs.
enum class ModelPlace : uint8_t {
  device,   // in memory, in the same process
  process,  // in memory, in a process of its own
  host,     // in host memory; it comes back to run
  joint,    // in memory, and it runs along with every microbatch of the trained model
  actor,    // it is the trained model itself, without its adapter
};

inline std::string_view name_of(ModelPlace place) {
  switch (place) {
    case ModelPlace::device:
      return "device";
    case ModelPlace::process:
      return "process";
    case ModelPlace::host:
      return "host";
    case ModelPlace::joint:
      return "joint";
    case ModelPlace::actor:
      return "actor";
  }
  return "";
}

/// A model besides the trained one. A critic is trained, others are frozen. Critics and reward
/// models have one output for each token.
struct OtherModel {
  ModelRole role = ModelRole::reference;
  ModelPlace place = ModelPlace::device;
  int64_t microbatch = 0;               // of a critic's update, in sequences; 0: that of the run
  int64_t passes = 1;                   // forward passes of each sample, besides those of an update
  std::optional<ModelSpec> model = {};  // nothing: as large as the trained one
  bool trained() const { return role == ModelRole::critic; }
  bool operator==(const OtherModel&) const = default;
};

struct TrainingRun {
  int64_t gpus = 0;
  int64_t gpus_per_node = 8;
  std::string stack;      // a name of frameworks/stacks; "longspan", "fsdp": a plan of the engine
  std::string precision;  // fp32, fp16, bf16, fp8, mxfp8 or nvfp4
  /// The kernel of attention, one of attention_kernel_names(); empty: the stack's.
  std::string attention;

  int64_t sequence = 0;               // tokens
  std::optional<int64_t> microbatch;  // sequences; nothing: not published
  int64_t global_batch = 0;           // sequences of an update
  bool padded = true;                 // short sequences, to the longest of a microbatch
  RunDegrees degrees;
  bool sequence_parallel = false;  // Megatron's, within the tensor group
  int64_t virtual_stages = 1;      // of each pipeline stage (interleaving)
  /// A schedule of planner/schedule, every action simulated; empty: the closed form of 1F1B,
  /// interleaved where there are virtual stages.
  std::string schedule;
  int64_t slices = 1;        // per sequence, each an action of its own
  double in_flight = 0;      // microbatches a rank has memory for, if the schedule asks; 0: any
  int64_t zero = 0;          // stage, over the data and sequence ranks ...
  int64_t state_copies = 1;  // ... in this many groups, each with all states (hybrid sharding)
  std::vector<int64_t> stage_layers;  // per rank, or per virtual stage; empty: equal
  Recompute recompute = Recompute::none;
  /// Layers of each stage that are recomputed in full while the others keep all; empty: all layers
  /// as `recompute` says.
  std::vector<int64_t> recompute_layers;
  int64_t recompute_span = 1;  // layers between two checkpoints
  int64_t outputs = 0;         // of the model for a token; 0: its vocabulary
  /// Other models on the same GPUs.
  std::vector<OtherModel> others = {};
  ModelPlace place = ModelPlace::device;  // of the trained model, while a critic is updated
  /// A step of reinforcement learning takes this many updates, in passes over its samples ...
  int64_t updates = 1, epochs = 1;
  /// ... and forward passes of the trained model itself before these.
  int64_t passes = 0;
  int64_t forward_microbatch = 0;  // sequences of a forward pass; 0: those of an update
  RunOffload offload;
  /// Bytes of the optimizer's states for a parameter on the device: 4 of two moments in 16 bits. 0:
  /// the stack's.
  double optimizer_state_bytes = 0;
  /// The same for an embedding's parameter, where it differs. 0: it does not.
  double embedding_state_bytes = 0;
  /// Bytes of a parameter of a frozen model. 0: as the trained one's.
  double frozen_bytes = 0;
  bool update_copies = false;  // an update makes another copy of all parameters
  /// Gradients stay whole on every rank until a step's last microbatch: FSDP does not reduce them
  /// before (no_sync).
  bool whole_gradients = false;
  bool flash_attention = true;  // false: scores are stored
  bool overlap = true;          // communication runs during computation
  int64_t chunk_tokens = 0;     // attention's, global; 0: whole
  bool tiled_mlp = false;
  bool tiled_loss = false;
  bool dropout = true;  // false: turned off
  /// Experts get as many tokens as they have room for, of this many times the mean, and drop the
  /// rest, so that sizes are known. 0: they get all.
  double expert_capacity = 0;
  double expert_imbalance = 1;  // tokens of the busiest rank's experts, relative to the mean
  double scored_share = 1;      // of the tokens, those whose loss counts
  /// Tiles of the loss; 0: as many as make a tile of logits no larger than the hidden states.
  int64_t loss_tiles = 0;
  bool operator==(const TrainingRun&) const = default;

  /// Sequences of a step: each is in `epochs` of its updates.
  double step_sequences() const {
    return static_cast<double>(global_batch) * static_cast<double>(updates) /
           static_cast<double>(epochs);
  }
  /// Whether a frozen model runs forward after the trained one, which has saved its activations.
  bool has_joint_reference() const {
    for (const OtherModel& other : others) {
      if (!other.trained() && other.place == ModelPlace::joint) return true;
    }
    return false;
  }
};

}  // namespace longspan
