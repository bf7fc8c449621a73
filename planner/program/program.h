// The step program: what one rank does in one training step, as a list of ops over buffers.
//
// Ops are in sequential semantics: running them one after another in list order is correct. Each
// names its kind, the buffers it reads and writes, and the stream it runs on; no op writes
// synchronisation by hand. layout.h derives from the list where every buffer lies and which ops on
// other streams an op must wait for. The simulator and the engine read the same Program.
//
// A Program is a plain value, immutable once built, safe to share between threads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/program/op.h"
#include "planner/program/tensor.h"
#include "planner/schedule/actions.h"

namespace longspan {

struct Buffer {
  Tensor tensor = Tensor::x;
  Tier tier = Tier::device;
  bool persistent = false;  // lives between steps: parameters and optimizer state
  int32_t layer = -1;
  int32_t index = 0;      // which unit: block or chunk
  int32_t first_op = -1;  // lifetime: from before first_op ...
  int32_t last_op = -1;   // ... to after last_op
};

/// The parts of a model in a program besides its layers: the embedding before the first of them,
/// the loss behind the last. Where it is not, residuals are received and sent.
struct StageBoundary {
  bool has_embedding = true;
  bool has_loss = true;
  bool operator==(const StageBoundary&) const = default;
};

/// One of the stages of a pipeline that a rank has: of the layers of its program those from `first`
/// to before `end`.
struct StageLayers {
  int32_t stage = 0;
  int first = 0, end = 0;
  StageBoundary boundary;
};

struct Program {
  ModelSpec model;  // with as many layers as the program has
  StageBoundary boundary;
  Strategy strategy;
  Lengths lengths;
  Place place;  // of the rank whose program this is
  DType dtype = DType::float32;
  int64_t microbatches = 1;
  TensorBytes bytes;

  std::vector<OpShape> shapes;
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  std::vector<BufferId> releases;  // buffers in the order their lifetimes end

  BufferId loss = -1;                       // the step's summed loss, read by the engine afterwards
  BufferId grad_norm = -1;                  // sum of squares of all gradients
  std::vector<BufferId> parameters;         // per unit: where the current values are between steps
  std::vector<BufferId> kernel_parameters;  // per unit: where the kernels' copy comes from; may be
                                            // the same buffer
  std::vector<BufferId> adam_m, adam_v;     // per unit

  int64_t bytes_of(BufferId id) const { return bytes[buffers[id].tensor]; }
  /// Where this rank's shard of a state begins in `id`: 0 in a shard, further in where it holds
  /// the whole unit.
  int64_t shard_offset_bytes(BufferId id) const;
  /// Where the rows of `chunk` begin in a buffer. REQUIRES: it has rows, and covers the chunk.
  int64_t chunk_offset_bytes(BufferId id, int64_t chunk) const;
  /// Where the heads of a group begin among those of one rank, in every row of a buffer of
  /// attention's; 0 where it holds one group's.
  int64_t group_offset_bytes(BufferId id, int64_t group) const;
};

/// The token of the whole sequence at which the rows of `chunk` begin that this rank projects.
int64_t first_own_token(const Program& program, int64_t chunk);
/// The token at which run `run` of Lengths::own_run() rows of its residual begins.
int64_t first_token_of_run(const Program& program, int64_t run);

/// Tokens this rank's loss is a sum over, times what makes it a mean over all ranks' and
/// microbatches' tokens: 1 / (S * microbatches * data replicas).
double loss_scale(const Program& program);

/// The ranks that a gather, scatter or reduction of this shape is among, this one included.
RankGroup group_of(const Program& program, const OpShape& shape);

/// Gradients that a sum_replicated of this shape sums: all of an embedding or head unit, of a layer
/// what its ranks hold alike.
int64_t replicated_gradients(const Program& program, const OpShape& shape);

/// Bytes this rank sends to others in one run of an op; 0 for ops that do not communicate.
int64_t sent_bytes(const Program& program, const Op& op);

/// Finds the op with which the first backward begins to compute: the loss, or what follows on the
/// gradient that the next stage sends.
class FirstBackward {
 public:
  /// Whether `op`, of this shape, is it: ask in program order, until it is.
  bool is(const Op& op, const OpShape& shape);

 private:
  bool received_ = false;
};
/// Its index; as many as there are ops if there is none.
size_t first_backward_op(const Program& program);

/// "attention_forward L3 c2 kv0": what traces and messages call an op.
std::string describe(const Program& program, const Op& op);

/// The input of lowering.
struct StepRequest {
  ModelSpec model;  // of a stage: with the stage's layers
  Strategy strategy;
  int64_t sequence = 0;
  int64_t microbatches = 1;
  DType dtype = DType::float32;
  int64_t rank = 0;  // whose program
  StageBoundary boundary = {};
};

/// Whether the step is one program, to be listed, traced and run: a pipeline has one for each rank,
/// a model whose layers differ one for each kind of them.
inline bool is_one_program(const ModelSpec& model, const Strategy& strategy) {
  return model.uniform() && !strategy.parallel.has_pipeline();
}

/// All of a program but its list, which is what op costs are asked of.
Program empty_program(const StepRequest& request);

/// Lowers a step to its program: the actions of the schedule, layer by layer, chunk by chunk.
/// Deterministic. Throws bad_input where the strategy contradicts the length (validate()).
Program build_program(const StepRequest& request);

/// What a rank of a pipeline does: its stages, which together have the request's layers and ends,
/// and its list of F, B and OPTIMIZER, in which every microbatch passes every stage.
struct RankOfPipeline {
  std::vector<StageLayers> stages;
  std::vector<Action> actions;
};
/// The same of a rank of a pipeline. Throws bad_input for actions that cannot be lowered.
Program build_program(const StepRequest& request, const RankOfPipeline& rank);

}  // namespace longspan
