// The step program: one rank's training step as a list of ops over buffers.
//
// The list has sequential semantics: running ops one after another in list order is correct. An op
// names its kind, the buffers it reads and writes, and its stream; synchronisation is implicit.
// layout.h derives the offset of every buffer, and the ops on other streams that an op must wait
// for. The simulator and the engine read the same Program.
//
// A Program is a plain value, immutable once built, safe to share between threads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/vocabulary_share.h"
#include "planner/program/op.h"
#include "planner/program/tensor.h"
#include "planner/program/token_share.h"
#include "planner/schedule/actions.h"

namespace longspan {

struct Buffer {
  Tensor tensor = Tensor::x;
  Tier tier = Tier::device;
  bool persistent = false;  // lives between steps: parameters and optimizer state
  int32_t layer = -1;
  int32_t kind = 0;       // of layers, which determines its size
  int32_t index = 0;      // of the first unit: block or chunk
  int32_t units = 1;      // adjacent ones: the chunks of a slice
  int32_t first_op = -1;  // lifetime: from before first_op ...
  int32_t last_op = -1;   // ... to after last_op
};

/// The ends of a model that a program has besides its layers: the embedding before the first layer,
/// the loss after the last. Without an end, residuals and their gradients are received and sent
/// there.
struct StageBoundary {
  bool has_embedding = true;
  bool has_loss = true;
  bool operator==(const StageBoundary&) const = default;
};

/// One of a rank's stages of a pipeline: the layers [first, end) of its program, which are those
/// from `in_model` on of the model. Its neighbours are on the meshes `before` and `after`.
struct StageLayers {
  int32_t stage = 0;
  int first = 0, end = 0;
  StageBoundary boundary;
  int64_t in_model = 0;
  int32_t before = -1, after = -1;
  TokenShares enters{1}, leaves{1};  // the hidden states at its ends
};

/// A share of the vocabulary, if a pipeline cuts it over its meshes.
struct VocabularyCut {
  VocabularyShare share;          // of the mesh; the model's vocabulary has its rows
  int32_t first = -1, last = -1;  // the meshes of the first and the last stage
  bool gradient_in_t = false;     // T computes the gradient of the last stage's output, not S
  bool operator==(const VocabularyCut&) const = default;
};

/// Layers that are alike: what their ops, tensors and workspaces have in common.
struct LayerKind {
  ModelSpec model;   // uniform, of these layers alone
  double share = 1;  // of the sequence's tokens
  Lengths lengths;
  TensorBytes bytes;
};

/// The kinds of layers are numbered. Kind 0 is that of the ends, and of layers that work on all
/// tokens and have the model's own fields: `model`, `lengths` and `bytes` are its. If all layers
/// are alike there is no other.
struct Program {
  ModelSpec model;  // with only the program's layers and share of the vocabulary
  StageBoundary boundary;
  Strategy strategy;
  Lengths lengths;
  Place place;                      // of this program's rank
  std::vector<StageLayers> stages;  // of a rank of a pipeline
  VocabularyCut vocabulary;
  std::vector<Action> actions;  // that the ops belong to
  DType dtype = DType::float32;
  int64_t compute_capability = 0;  // as DeviceProfile::compute_capability
  int64_t microbatches = 1;
  TensorBytes bytes;
  std::vector<LayerKind> more_kinds;  // 1, 2, ...
  std::vector<int32_t> layer_kinds;   // by layer; empty: all are of kind 0
  int64_t message_levels = 1;         // most TokenShares at a border of stages

  std::vector<OpShape> shapes;
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  std::vector<BufferId> releases;  // buffers in the order their lifetimes end

  BufferId loss = -1;                // the step's summed loss, which the engine reads
  BufferId grad_norm = -1;           // sum of squares of all gradients; -1: there are none
  std::vector<BufferId> parameters;  // per unit: the current values between steps
  std::vector<BufferId>
      kernel_parameters;  // per unit: the source of the kernels' copy; may be the same buffer
  std::vector<BufferId> adam_m, adam_v;  // per unit; -1 without moments

  int kinds() const { return 1 + static_cast<int>(more_kinds.size()); }
  /// The kind of a layer, or of the ends if there is no such layer.
  int kind_of_layer(int layer) const {
    const auto at = static_cast<size_t>(layer);  // -1 is beyond all
    return at < layer_kinds.size() ? layer_kinds[at] : 0;
  }
  /// The unit of a layer's experts, which follow that of the head; -1 if it has none.
  int experts_unit(int layer) const;
  /// The unit of a layer's adapters, which follow all experts; -1 without adapters.
  int adapters_unit(int layer) const;
  /// The first kind with a share of the tokens. REQUIRES: there is one.
  int kind_of_share(double share) const;
  double share_of(int kind) const {
    return kind == 0 ? 1 : more_kinds[static_cast<size_t>(kind - 1)].share;
  }
  const ModelSpec& model_of(int kind) const {
    return kind == 0 ? model : more_kinds[static_cast<size_t>(kind - 1)].model;
  }
  const Lengths& lengths_of(int kind) const {
    return kind == 0 ? lengths : more_kinds[static_cast<size_t>(kind - 1)].lengths;
  }
  const TensorBytes& table_of(int kind) const {
    return kind == 0 ? bytes : more_kinds[static_cast<size_t>(kind - 1)].bytes;
  }

  int64_t bytes_of(const Buffer& buffer) const {
    return buffer.units * table_of(buffer.kind)[buffer.tensor];
  }
  int64_t bytes_of(BufferId id) const { return bytes_of(buffers[id]); }
  /// The bytes of one row of a buffer.
  int64_t row_bytes_of(BufferId id) const {
    return table_of(buffers[id].kind).row[static_cast<int>(buffers[id].tensor)];
  }
  /// The offset of this rank's shard of a state in `id`; 0 if the buffer is the shard itself.
  int64_t shard_offset_bytes(BufferId id) const;
  /// The offset of the rows of `chunk` in a buffer. REQUIRES: it has rows, and covers the chunk.
  int64_t chunk_offset_bytes(BufferId id, int64_t chunk) const;
  /// The offset of a group's heads in every row of one of attention's buffers; 0 if it holds one
  /// group.
  int64_t group_offset_bytes(BufferId id, int64_t group) const;
};

/// The tokens of `chunk` that this rank projects in layers of a kind.
TokenPositions own_tokens(const Program& program, int kind, int64_t chunk);
/// The rows of a block on this rank in layers of kind `inner`, among those of `outer`.
RowChoice rows_of_block(const Program& program, int inner, int outer);
/// Rows of the rank's residual whose tokens are neighbours in a sequence.
struct TokenRun {
  int64_t row = 0;       // the first, in the residual
  int64_t sequence = 0;  // of the microbatch
  int64_t first = 0;     // the position of the first
  int64_t count = 0;
};
/// The runs of `rows` rows from `row` on, in their order. REQUIRES: both are multiples of
/// Lengths::own_run().
std::vector<TokenRun> token_runs(const Program& program, int64_t row, int64_t rows);
/// All runs of the rank's residual.
std::vector<TokenRun> token_runs(const Program& program);

/// The factor from a sum of tokens' losses to the mean over all ranks' and microbatches' tokens, if
/// all have labels: 1 / (S * microbatches * data replicas).
double loss_scale(const Program& program);

/// The number of ranks that run the step: of all meshes.
int64_t world_ranks(const Program& program);

/// The number of a message between stages, which no other message of a step to the same rank has.
/// Its send, sent and receive have the same. Messages of shared attention have it again once it has
/// left.
int64_t message_number(const Program& program, const Op& op);
/// The rank of the world at the other end of a message.
int64_t message_peer(const Program& program, const Op& op);

/// The ranks of a gather, scatter or reduction of this shape, including this one.
RankGroup group_of(const Program& program, const OpShape& shape);

/// The number of gradients in a sum_replicated of this shape: all of an embedding or head unit; in
/// a layer those that its ranks replicate.
int64_t replicated_gradients(const Program& program, const OpShape& shape);

/// The tokens of the tile of an op with experts of several ranks.
int64_t tile_tokens(const Program& program, const OpShape& shape);
/// Bytes of all rows of the tile's tokens in a dispatch or collect of this shape.
int64_t expert_tile_bytes(const Program& program, const OpShape& shape);

/// Bytes this rank sends to others in one run of an op; 0 for ops that do not communicate. Of rows
/// that routing sends to experts: as many as if all experts got equal numbers.
int64_t sent_bytes(const Program& program, const Op& op);

/// Finds the first compute op of the first backward: the loss, or that of a share of the
/// vocabulary, or the first one after the next stage's gradient was received.
class FirstBackward {
 public:
  /// Whether `op`, of this shape, is that op. Call in program order until true.
  bool is(const Op& op, const OpShape& shape);

 private:
  bool received_ = false;
};
/// The index of that op; the number of ops if there is none.
size_t first_backward_op(const Program& program);

/// The name of an op in traces and messages: "attention_forward L3 c2 kv0".
std::string describe(const Program& program, const Op& op);

/// The input of lowering.
struct StepRequest {
  ModelSpec model;  // for a stage: with the stage's layers
  Strategy strategy;
  int64_t sequence = 0;
  int64_t microbatches = 1;
  DType dtype = DType::float32;
  int64_t rank = 0;              // the program's rank, in its mesh ...
  int64_t mesh = 0, meshes = 1;  // ... and the mesh's place among those of a pipeline
  StageBoundary boundary = {};
  int64_t compute_capability = 0;  // as DeviceProfile::compute_capability
  VocabularyCut vocabulary = {};
};

/// Whether searches price the step as one program. A pipeline has one for each rank; of a model
/// whose layers differ they add up a program for each kind of layer.
inline bool is_one_program(const ModelSpec& model, const Strategy& strategy) {
  return model.uniform() && !strategy.parallel.has_pipeline();
}

/// A program without its list, sufficient for op costs.
Program empty_program(const StepRequest& request);

/// Lowers a step to its program: the actions of the schedule, layer by layer, chunk by chunk.
/// Deterministic. Throws bad_input if the strategy contradicts the length (validate()).
Program build_program(const StepRequest& request);

/// A part of attention that another rank computes for this one in one of its actions, or this rank
/// for another: the queries of a slice with the keys of slices [first, first + slices), in the
/// first `layers` layers that the action passes. The other does the same for its part meanwhile.
struct SharedAttention {
  Action own;
  bool gives = false;  // it is of this rank's queries
  int32_t mesh = 0;    // of the other rank
  int32_t of = 0;      // the slice of the queries
  int32_t first = 0, slices = 0;
  int64_t layers = 0;
};

/// The end of messages of a cut vocabulary: what the rank has sent of a microbatch has left.
struct SharedSent {
  size_t before = 0;  // this action of its list
  Tensor what = Tensor::count;
  int32_t microbatch = 0;
};

/// The work of a rank of a pipeline: its stages, which together have the request's layers and ends,
/// and its list of F, B, I, W, R, OPTIMIZER and the actions of copies and messages, in which every
/// microbatch passes every stage. With a cut vocabulary also S, T, E and G, which send and receive
/// by themselves.
struct RankOfPipeline {
  std::vector<StageLayers> stages;
  std::vector<Action> actions;
  std::vector<double> shares = {};  // by action: of what F saves, what OFFLOAD moves; empty: all
  std::vector<SharedAttention> shared = {};  // in the order of the list
  std::vector<SharedSent> sent = {};         // in order
  std::vector<int64_t> slice_tokens = {};    // of every slice, if there are several
  int64_t message_levels = 1;                // as Program's
};
/// The same for a rank of a pipeline. Throws bad_input for actions that cannot be lowered.
Program build_program(const StepRequest& request, const RankOfPipeline& rank);

}  // namespace longspan
