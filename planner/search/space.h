// The search space: frames, and groups of knobs within each frame. Internal to
// planner/search.
//
// A frame fixes the knobs that determine most of a program's list: the layout of ranks, the
// pipeline's schedule, the chunk, the block, slices of one stage, where keys, values and tensors
// between uses wait, the order of the backward, and head groups. The other knobs form groups whose
// demands add up (relaxation.h): states with the ZeRO stage, each saved tensor, the MLP with its
// tile, the other tiles. Prefetch depth and offload window are refined at the end (refine.h).
//
// A length that a frame does not divide is padded, by less than a 256th if that keeps chunks
// aligned, else by less than a sixteenth.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "hwprofiles/hardware_profile.h"
#include "planner/evaluate/candidate.h"
#include "planner/search/meshes.h"
#include "planner/search/optimizer_place.h"

namespace longspan {

/// A time, length or number of bytes that nothing reaches.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Settings fixed for all candidates of a question.
struct SpaceOptions {
  ParallelChoice parallel;
  int64_t chunk_tokens = 0;  ///< fixes the chunk; 0: any
  int64_t microbatches = 1;  ///< per replica
  int64_t global_batch = 0;  ///< microbatches of a step over all replicas; 0: use microbatches
  bool deterministic = false;
  MomentFormat moments = MomentFormat::float32;
  MasterFormat masters = MasterFormat::float32;
  std::optional<OptimizerPlace> optimizer;  ///< none: search
  ProductFormat products = ProductFormat::dtype;
  bool early_update = false;
  bool forward_only = false;
  bool has_files = false;           ///< the hardware has storage
  int64_t most_tokens = INT64_MAX;  ///< of a plan's sequence, padding included
  int64_t of_shares = 1;            ///< tokens_of_shares() of the model
  int64_t most_zero = 3;            ///< most_zero() of the model
};

/// A layout of ranks, with or without a pipeline.
struct RankLayout {
  ParallelLayout parallel;  ///< with the pipeline and the least ZeRO stage
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

/// Copies the group's knobs from `from` to `to`.
void take(KnobGroup group, const Strategy& from, Strategy& to);
/// The group's policy of a saved tensor; null if it has none.
SavedPolicy* saved_policy(KnobGroup group, Strategy& strategy);

/// Values of every group in a frame: strategies that differ from `frame` only in that group, the
/// frame's own first. `nvme` includes values that use a file.
using GroupValues = std::array<std::vector<Strategy>, kGroupCount>;
GroupValues values_of(const Candidate& frame, const SpaceOptions& options, bool nvme);

/// All layouts that the choice allows on the hardware, without a pipeline first. Throws bad_input
/// with the reason if there is none.
std::vector<RankLayout> layouts_of(const ModelSpec& model, const HardwareProfile& hw,
                                   const SpaceOptions& options);

/// A frame without its length.
struct FrameShape {
  RankLayout layout;
  int64_t chunks = 1;        ///< per sequence; in a ring twice as many per position
  int64_t chunk_tokens = 0;  ///< replaces `chunks` if the question fixes the chunk
  int64_t block_parts = 0;   ///< blocks of a ring position's share; 0: one per chunk
  int64_t head_groups = 1;
  int64_t slices = 1;  ///< of one stage; 0: one per block
  Tier kv = Tier::device, between_uses = Tier::device;
  BackwardOrder order = BackwardOrder::q_outer;
};

/// All shapes of a layout for lengths about `sequence`. `min_memory`: only those that may need
/// least memory.
std::vector<FrameShape> shapes_of(const ModelSpec& model, const RankLayout& layout,
                                  int64_t sequence, const SpaceOptions& options,
                                  bool min_memory = false);

/// The frame of a shape and a length: a candidate with the first value of every group, which keeps
/// everything on the device (but inner activations of experts on several ranks). None if the length
/// is too short for the shape, or padding too large.
std::optional<Candidate> frame_of(const FrameShape& shape, int64_t sequence,
                                  const SpaceOptions& options);

/// Sets the knobs that a question fixes in all its plans.
void fix_knobs(const SpaceOptions& options, Strategy& strategy);

/// The shape of a candidate's frame.
FrameShape shape_of(const Candidate& c, const SpaceOptions& options);

/// The number of tokens that unpadded lengths of a shape are multiples of.
int64_t unit_of(const FrameShape& shape);

/// The shortest length at which a shape's chunks are not too small.
int64_t shortest_of(const FrameShape& shape);

/// The fewest tokens of a chunk on a rank, unless the question fixes the chunk.
inline constexpr int64_t kLeastChunkOfRank = 64;

/// Limit on program ops in searches for the fastest plan: many chunks slow a step down long before
/// they make it fit.
inline constexpr int64_t kModerateOps = 600'000;

/// A filter on the frames of a length.
struct FrameFilter {
  bool min_memory = false;  ///< only frames that may need least memory
  int64_t most_ops = 0;     ///< limit on ops_estimate() of a step
};

/// All frames of these layouts for a length.
std::vector<Candidate> frames_of(const ModelSpec& model, const std::vector<RankLayout>& layouts,
                                 int64_t sequence, const SpaceOptions& options,
                                 const FrameFilter& filter);
/// The same for all layouts. Throws as layouts_of().
std::vector<Candidate> frames_of(const ModelSpec& model, const HardwareProfile& hw,
                                 int64_t sequence, const SpaceOptions& options,
                                 const FrameFilter& filter);

}  // namespace longspan
