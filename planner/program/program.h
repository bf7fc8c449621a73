// The step program: what one rank does in one training step, as a list of ops over buffers.
//
// Ops are in sequential semantics: running them one after another in list order is correct. Each
// names its kind, the buffers it reads and writes, and the stream it runs on; nobody writes
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

#include "planner/program/tensor.h"
#include "planner/schedule/actions.h"

namespace longspan {

/// Queues of a rank. Ops of one stream run in list order; streams run beside each other.
enum class Stream : uint8_t { compute, h2d, d2h, io, host, comm };
inline constexpr int kStreamCount = 6;
std::string_view name_of(Stream);

/// Operands in order; [w] written, [rw] read and written, otherwise read. An operand in brackets
/// with "?" may be absent. docs/adding.md says what a new kind needs.
enum class OpKind : uint8_t {
  batch,          // tokens_all[w]                       (host stream: filled by the data source)
  embed_forward,  // params, tokens, x[w]
  norm_forward,   // params, x or y, h[w]
  qkv_forward,  // params, x or h, q[w], k[w]?, v[w]?, workspace[w]   (one head group's; without k,
                // v where it shares them with the group before)
  attention_forward,  // q, k, v, o[rw]?, lse[rw], workspace[w], o_sum[rw]?   (where a query chunk's
                      // keys come in several ops and o_sum takes them; the last has o[w], too)
  out_forward,        // params, x?, o, y[w]                 (y may be x; partial: no x, part[w])
  mlp_forward,        // params, y, x[w], workspace[w], inner[w]?   (x may be y; partial: h, part)
  residual_forward,   // params, x, sum, y[w]                (y may be x)
  loss,               // params head, params output, x, tokens, loss[rw], dx[w], grads head[rw],
                      // grads output[rw], workspace[w]      (dx may be x)
  mlp_backward,       // params, y, dx[rw], grads[rw], workspace[w], inner[rw]?  (partial: h, and
                      // dx of all tokens becomes the part of the gradient of h)
  out_backward,       // params, dx, o, d_o[w], delta[w], grads[rw]  (d_o may be o)
  attention_backward,  // q, k, v, d_o, lse, delta, dq[rw], dk[rw], dv[rw], workspace[w]
  qkv_backward,        // params, x or h, dq[rw], dk[rw]?, dv[rw]?, dx[rw] or dh[w], grads[rw],
                       // workspace[w]                        (with dk, dv once the last head group
                       // that shares them is done)
  norm_backward,       // params, x or y, dh, dx[rw], grads[rw]
  residual_backward,   // dx, grads[rw]                       (of the bias, where there is one)
  embed_backward,      // tokens, dx, grads[rw]
  add,                 // sum[rw], part                       (ring: gradients of keys and values)
  zero,                // buffer[w]
  sum_of_squares,      // grads, grad_norm[rw]
  adamw,               // grads, grad_norm, m[rw], v[rw], params or master[rw], params[w]?
  copy_h2d,            // source, destination[w]
  copy_d2h,            // source, destination[w]
  io_read,             // source, destination[w]              (nvme to host)
  io_write,            // source, destination[w]              (host to nvme)
  all_to_all,      // up to three sources, as many destinations[w], workspace[w]: one chunk's tokens
                   // for heads (of one head group), or heads for tokens, in the Ulysses group
  ring_shift,      // k, v, next k[w], next v[w]: to the ring's next rank, from the one before
  all_gather,      // shard, unit[w]                            (shard may be the unit itself); or
                   // own tokens', all tokens'[w] in the tensor group
  reduce_scatter,  // grads[rw], shard[rw], workspace[w]: adds the sum over the ranks to the shard;
                   // or part, sum[w], workspace[w] in the tensor group
  all_reduce,      // grads[rw], workspace[w]; or loss[rw] or grad_norm[rw]
  sum_replicated,  // grads[rw], workspace[w]: of what the tensor group holds alike, the sum
  send,     // x or dx: to the same place in the next stage of the pipeline, or the one before
  receive,  // x[w] or dx[w]: from there
  count
};
inline constexpr int kOpKindCount = static_cast<int>(OpKind::count);
std::string_view name_of(OpKind);

using BufferId = int32_t;
inline constexpr int kMaxOperands = 10;
inline constexpr int kExchanged = 3;  // tensors one all_to_all exchanges at most

/// What an op costs depends only on this; ops of equal shape share one entry.
struct OpShape {
  OpKind kind = OpKind::batch;
  Tensor tensor = Tensor::count;  // copies, zero, adamw, sum_of_squares: whose unit
  int32_t kv_chunks = 0;          // attention: chunks of keys ...
  bool diagonal = false;          // ... of which the last is the query's own
  bool first = false;             // attention: nothing to merge with
  bool into_sum = false;          // attention_forward: o_sum is given
  bool saves_inner = false;       // mlp: inner is written (forward) or given (backward)
  bool normed = false;            // qkv: the norm is a separate op
  bool to_heads = false;          // all_to_all: from tokens to heads
  bool of_mlp = false;            // norm, residual: the MLP's, not attention's
  bool partial = false;  // out, mlp: one rank's part of a sum over its tensor group; neither norm,
                         // residual nor the bias that is added once
  bool queries_only = false;  // qkv, all_to_all: of a head group without its K,V
  bool on_host = false;       // adamw: by the processor, on its own memory
  bool operator==(const OpShape&) const = default;
};

struct Op {
  OpKind kind = OpKind::batch;
  Stream stream = Stream::compute;
  uint8_t operand_count = 0;
  bool first_dq = false;   // attention_backward: dq is written, not added to
  bool first_dkv = false;  // likewise dk, dv
  uint16_t reads = 0;      // bit i: operand i is read
  uint16_t writes = 0;     // bit i: operand i is written
  int32_t shape = 0;       // index into Program::shapes
  int32_t layer = -1;
  int32_t index = 0;     // block, chunk (of this ring position) or parameter unit it works on
  int32_t kv_first = 0;  // attention: first chunk of keys
  int32_t micro_batch = 0;
  int32_t head_group = 0;  // around attention
  std::array<BufferId, kMaxOperands> operands{};
};

struct Buffer {
  Tensor tensor = Tensor::x;
  Tier tier = Tier::device;
  bool persistent = false;  // lives between steps: parameters and optimizer state
  int32_t layer = -1;
  int32_t index = 0;      // which unit: block or chunk
  int32_t first_op = -1;  // lifetime: from before first_op ...
  int32_t last_op = -1;   // ... to after last_op
};

/// What of a model a program is of beside its layers: the embedding before the first of them, the
/// loss behind the last. Where it is not, residuals are received and sent.
struct Ends {
  bool first = true;
  bool last = true;
  bool operator==(const Ends&) const = default;
};

/// One of the stages of a pipeline that a rank has: of the layers of its program those from `first`
/// to before `end`.
struct StageLayers {
  int32_t stage = 0;
  int first = 0, end = 0;
  Ends ends;
};

struct Program {
  ModelSpec model;  // with as many layers as the program has
  Ends ends;
  Strategy strategy;
  Lengths lengths;
  Place place;  // of the rank whose program this is
  DType dtype = DType::float32;
  int64_t micro_batches = 1;
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
  /// Where the rows of `chunk` begin in a buffer that has rows and covers it.
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

/// What is asked of lowering.
struct StepRequest {
  ModelSpec model;  // of a stage: with the stage's layers
  Strategy strategy;
  int64_t sequence = 0;
  int64_t micro_batches = 1;
  DType dtype = DType::float32;
  int64_t rank = 0;  // whose program
  Ends ends = {};
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
