// The space that a search goes through: frames, and in each frame groups of knobs.
//
// A frame fixes what a program's list depends on most: the layout of ranks, the pipeline's
// schedule, the chunk, the block, where keys, values and tensors between uses wait, the order of
// the backward, groups of heads. The knobs that are left come in groups whose demands add up
// (relaxation.h): states with the ZeRO stage, each saved tensor, the MLP with its tile, the other
// tiles. Prefetch depth and offload window are refined at the end (refine.h).
//
// A length that a frame does not divide is padded for it, by less than a sixteenth; where all
// frames of a layout can, by less than a 256th.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "hwprofiles/hardware_profile.h"
#include "planner/evaluate/candidate.h"
#include "planner/search/meshes.h"

namespace longspan {

/// Settings fixed for all candidates of a question.
struct SpaceOptions {
  ParallelChoice parallel;
  int64_t chunk_tokens = 0;  ///< fixes the chunk; 0: any
  int64_t microbatches = 1;  ///< per replica
  int64_t global_batch = 0;  ///< sequences of a step over all replicas; 0: microbatches of each
  bool deterministic = false;
  int64_t most_tokens = INT64_MAX;  ///< of a plan's sequence, with what it is padded by
};

/// A layout of ranks, with or without a pipeline.
struct RankLayout {
  ParallelLayout parallel;  ///< with its pipeline, and the least ZeRO stage
  int64_t microbatches = 1;
};

/// Groups of knobs whose demands add up.
enum class KnobGroup : uint8_t {
  states,
  layer_input,
  qkv,
  attention_out,
  mlp_input,
  mlp,
  projection_tile,
  loss_tile,
  count
};
inline constexpr int kGroupCount = static_cast<int>(KnobGroup::count);

/// Copies the group's knobs.
void take(KnobGroup group, const Strategy& from, Strategy& to);
/// The policy of a saved tensor that is the group's; null where it has none.
SavedPolicy* saved_policy(KnobGroup group, Strategy& strategy);

/// Values of every group in a frame: strategies that differ from `frame` in that group alone, the
/// frame's own first. With `nvme` also those that put something into a file.
using GroupValues = std::array<std::vector<Strategy>, kGroupCount>;
GroupValues values_of(const Candidate& frame, const SpaceOptions& options, bool nvme);

/// All layouts that the choice admits on the hardware: without a pipeline, and with. Throws
/// bad_input where there is none, saying why.
std::vector<RankLayout> layouts_of(const ModelSpec& model, const HardwareProfile& hw,
                                   const SpaceOptions& options);

/// What makes a frame of any length.
struct FrameShape {
  RankLayout layout;
  int64_t chunks = 1;        ///< of a sequence; of a ring position two each at least
  int64_t chunk_tokens = 0;  ///< the chunk's size instead, where the question fixes it
  int64_t block_parts = 0;   ///< blocks of a ring position's share; 0: one for each chunk
  int64_t head_groups = 1;
  Tier kv = Tier::device, between_uses = Tier::device;
  BackwardOrder order = BackwardOrder::q_outer;
};

/// All shapes of a layout for lengths about `sequence`. `min_memory`: only those that may hold
/// least.
std::vector<FrameShape> shapes_of(const ModelSpec& model, const RankLayout& layout,
                                  int64_t sequence, const SpaceOptions& options,
                                  bool min_memory = false);

/// The frame of a shape and a length: a candidate with the first value of every group, which keeps
/// all on the device. None where the length is too short for the shape, or padding would be large.
std::optional<Candidate> frame_of(const FrameShape& shape, int64_t sequence,
                                  const SpaceOptions& options);

/// The shape of a frame's candidate.
FrameShape shape_of(const Candidate& c, const SpaceOptions& options);

/// What lengths of a shape are multiples of, so that nothing is padded.
int64_t unit_of(const FrameShape& shape);

/// The shortest length that a shape cuts into chunks which are not too small.
int64_t shortest_of(const FrameShape& shape);

/// Ops of the programs that the fastest is looked for among: many chunks make a step slower long
/// before they make it fit.
inline constexpr int64_t kModerateOps = 600'000;

/// Which frames of a length are wanted.
struct FrameFilter {
  bool min_memory = false;  ///< only those that may hold least
  int64_t most_ops = 0;     ///< of a step's program, about (program/ops_estimate.h)
};

/// All frames of these layouts for a length.
std::vector<Candidate> frames_of(const ModelSpec& model, const std::vector<RankLayout>& layouts,
                                 int64_t sequence, const SpaceOptions& options,
                                 const FrameFilter& filter);
/// The same of all layouts. Throws as layouts_of().
std::vector<Candidate> frames_of(const ModelSpec& model, const HardwareProfile& hw,
                                 int64_t sequence, const SpaceOptions& options,
                                 const FrameFilter& filter);

}  // namespace longspan
