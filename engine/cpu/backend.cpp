#include "engine/cpu/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/processors.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/exchange.h"
#include "models/tensor_slices.h"

namespace longspan::cpu {
namespace {

// An op with its operands resolved to typed pointers at the op's own rows.
class BoundOp {
 public:
  BoundOp(const Program& program, const Op& op, const OperandPointers& pointers)
      : program_(program), op_(op), pointers_(pointers) {}

  const OpShape& shape() const { return program_.shapes[op_.shape]; }
  /// Start of operand i, whatever it is.
  float* whole(int i) const { return reinterpret_cast<float*>(pointers_[i]); }
  /// Operand i at the first row of a chunk.
  float* at(int i, int64_t chunk) const {
    return reinterpret_cast<float*>(pointers_[i] +
                                    program_.chunk_offset_bytes(op_.operands[i], chunk));
  }
  /// Operand i of attention at the chunk and head group of the op; null where it is absent.
  float* heads(int i) const {
    return pointers_[i] == nullptr
               ? nullptr
               : at(i, op_.index) +
                     program_.group_offset_bytes(op_.operands[i], op_.head_group) / 4;
  }
  /// Elements from one row of operand i to the next.
  int64_t row(int i) const {
    return program_.bytes.row[static_cast<int>(program_.buffers[op_.operands[i]].tensor)] / 4;
  }
  int32_t* tokens(int i) const { return reinterpret_cast<int32_t*>(pointers_[i]); }
  double* scalar(int i) const { return reinterpret_cast<double*>(pointers_[i]); }

 private:
  const Program& program_;
  const Op& op_;
  const OperandPointers& pointers_;
};

// Copies between device and host; between units of different extent the smaller one moves.
void copy(const Program& program, const Op& op, const OperandPointers& pointers) {
  const BufferId from = op.operands[0], to = op.operands[1];
  const int64_t bytes = std::min(program.bytes_of(from), program.bytes_of(to));
  const auto offset = [&](BufferId larger) -> int64_t {
    if (program.bytes_of(larger) == bytes) return 0;
    if (is_state(program.buffers[larger].tensor)) return program.shard_offset_bytes(larger);
    return program.buffers[larger == from ? to : from].index * bytes;
  };
  std::memcpy(pointers[1] + offset(to), pointers[0] + offset(from), bytes);
}

constexpr int64_t kUnitEnd = std::numeric_limits<int64_t>::max();

// The elements of an embedding, a layer and the head unit whose squares this rank adds to the
// gradient norm: what a tensor group holds alike counts on its first rank.
std::array<std::vector<UnitRange>, 3> counted_elements(const Program& program) {
  const std::vector<UnitRange> all{{0, kUnitEnd}};
  if (program.place.tensor == 0) return {all, all, all};
  std::vector<UnitRange> layer;
  int64_t next = 0;
  for (const UnitRange& skipped : replicated_in_layer(program.model, program.lengths.tensor)) {
    if (next < skipped.begin) layer.push_back({next, skipped.begin});
    next = skipped.end;
  }
  layer.push_back({next, kUnitEnd});
  return {std::vector<UnitRange>{}, layer, std::vector<UnitRange>{}};
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Program& program, int threads, Communicator* comm)
      : model_(narrow_model(program.model, program.lengths.tensor)),
        share_(share_of(model_, program.lengths.head_shares())),
        kv_groups_(kv_groups(model_, program.lengths)),
        units_(parameter_units(model_)),
        counted_(counted_elements(program)),
        comm_(comm),
        pool_(threads),
        host_pool_(threads) {
    compute_ = make_block_context(model_, pool_);
    attention_ = make_block_context(share_, pool_);
  }

  std::string name() const override { return "cpu"; }
  void run(const Program& program, const Op& op, const OperandPointers& pointers,
           const StepContext& context) override;

 private:
  // The model as attention sees it: a head group of this rank's share of the heads.
  static ModelSpec share_of(const ModelSpec& model, int64_t shares) {
    ModelSpec share = model;
    share.heads /= shares;
    share.kv_heads = kv_heads_per_rank(model, shares);
    return share;
  }
  // The heads of a group among all: those that each rank of the Ulysses group will attend with.
  HeadGroup group_of(const Program& p, int64_t group) const {
    const int64_t ranks = p.lengths.ulysses, kv_group = group * kv_groups_ / p.lengths.head_groups;
    return {{ranks, group * share_.heads, share_.heads},
            {std::min(ranks, model_.kv_heads), kv_group * share_.kv_heads, share_.kv_heads}};
  }
  void sum_of_squares_op(const Program& p, const Op& op, const BoundOp& b);
  void adamw_op(const Program& p, const Op& op, const BoundOp& b, ThreadPool& pool,
                const StepContext& context);

  ModelSpec model_, share_;  // of this rank's layers, and of its attention
  int64_t kv_groups_;
  std::vector<ParameterUnit> units_;
  std::array<std::vector<UnitRange>, 3> counted_;  // embedding, layer, head unit
  Communicator* comm_;
  ThreadPool pool_;       // the compute stream's
  ThreadPool host_pool_;  // the host stream's: AdamW where the optimizer lives on the host
  BlockContext compute_, attention_;
};

// Inputs and labels of every block, in the order in which this rank holds its tokens.
void fill_tokens(const Program& p, const Op& op, int32_t* tokens, const StepContext& context) {
  const int64_t rows = p.lengths.own_block(), part = p.lengths.own_run();
  int64_t run = 0;
  for (int64_t block = 0; block < p.lengths.blocks(); ++block) {
    int32_t* inputs = tokens + block * 2 * rows;
    for (int64_t row = 0; row < rows; row += part, ++run) {
      const int64_t first = first_token_of_run(p, run);
      context.fill_tokens(op.micro_batch, first, part, inputs + row);
      context.fill_tokens(op.micro_batch, first + 1, part, inputs + rows + row);
    }
  }
}

void CpuBackend::run(const Program& p, const Op& op, const OperandPointers& pointers,
                     const StepContext& context) {
  const BoundOp b(p, op, pointers);
  const Strategy& s = p.strategy;
  const int64_t own = p.lengths.own_block(), own_run = p.lengths.own_run();
  const int64_t block = p.lengths.dense_block(), own_chunk = p.lengths.own_chunk();
  const int64_t chunk = p.lengths.chunk, index = op.index;
  // Positions matter to attention only where the mask cuts: in the chunk that is the query's own.
  const int64_t kv_rows = b.shape().kv_chunks * chunk;
  const int64_t query = b.shape().diagonal ? kv_rows - chunk : kv_rows;
  const auto tile = [](int64_t wanted, int64_t rows) {
    return wanted > 0 ? std::min(wanted, rows) : rows;
  };

  switch (op.kind) {
    case OpKind::batch:
      fill_tokens(p, op, b.tokens(0), context);
      break;
    case OpKind::embed_forward:
      for (int64_t row = 0, run = index * own / own_run; row < own; row += own_run, ++run) {
        embed_forward(compute_, b.whole(0), b.tokens(1) + row, own_run, first_token_of_run(p, run),
                      b.whole(2) + row * model_.hidden);
      }
      break;
    case OpKind::norm_forward:
      (b.shape().of_mlp ? norm2_forward : norm1_forward)(compute_, b.whole(0), b.whole(1), own,
                                                         b.whole(2));
      break;
    case OpKind::qkv_forward:
      qkv_forward(compute_, b.whole(0), b.at(1, index), b.shape().normed, own_chunk,
                  first_own_token(p, index), tile(s.projection_tile, own_chunk), b.heads(2),
                  b.heads(3), b.heads(4), b.whole(5), group_of(p, op.head_group));
      break;
    case OpKind::attention_forward:
      attention_forward(attention_, b.at(0, index), b.at(1, op.kv_first), b.at(2, op.kv_first),
                        query, chunk, 0, kv_rows, b.shape().first, b.heads(3), b.heads(4),
                        b.whole(5), {b.row(3), b.row(4)});
      break;
    case OpKind::out_forward:
      out_forward(compute_, b.whole(0), b.whole(1), b.whole(2), block, b.whole(3));
      break;
    case OpKind::mlp_forward:
      mlp_forward(compute_, b.whole(0), b.whole(1), block, tile(s.mlp_tile, block), b.whole(2),
                  b.whole(4), b.whole(3), b.shape().partial);
      break;
    case OpKind::residual_forward:
      residual_forward(compute_, b.whole(0), b.shape().of_mlp, b.whole(1), b.whole(2), own,
                       b.whole(3));
      break;
    case OpKind::loss: {
      // Where the output matrix is tied it is the embedding's token table, the first tensor there;
      // otherwise it is the last tensor of the head unit.
      const int64_t behind_norm =
          model_.tied_embeddings ? 0 : (model_.norm == Norm::layernorm ? 2 : 1) * model_.hidden;
      loss_forward_backward(compute_, b.whole(0), b.whole(1) + behind_norm, b.whole(2),
                            b.tokens(3) + own, own, tile(s.loss_tile, own), loss_scale(p),
                            b.scalar(4), b.whole(5), b.whole(6), b.whole(7) + behind_norm,
                            b.whole(8));
      break;
    }
    case OpKind::mlp_backward:
      mlp_backward(compute_, b.whole(0), b.whole(1), b.whole(5), block, tile(s.mlp_tile, block),
                   b.whole(2), b.whole(3), b.whole(4), b.shape().partial);
      break;
    case OpKind::out_backward:
      out_backward(compute_, b.whole(0), b.whole(1), b.whole(2), block, b.whole(3), b.whole(4),
                   b.whole(5), b.shape().partial);
      break;
    case OpKind::attention_backward:
      attention_backward(attention_, b.at(0, index), b.at(1, op.kv_first), b.at(2, op.kv_first),
                         b.heads(3), b.heads(4), b.heads(5), query, chunk, 0, kv_rows, op.first_dq,
                         b.at(6, index), op.first_dkv, b.at(7, op.kv_first), b.at(8, op.kv_first),
                         b.whole(9), {b.row(3), b.row(4), b.row(5)});
      break;
    case OpKind::qkv_backward:
      qkv_backward(compute_, b.whole(0), b.at(1, index), b.shape().normed, own_chunk,
                   first_own_token(p, index), tile(s.projection_tile, own_chunk), b.heads(2),
                   b.heads(3), b.heads(4), b.at(5, index), b.whole(6), b.whole(7),
                   group_of(p, op.head_group));
      break;
    case OpKind::norm_backward:
      (b.shape().of_mlp ? norm2_backward : norm1_backward)(compute_, b.whole(0), b.whole(1),
                                                           b.whole(2), own, b.whole(3), b.whole(4));
      break;
    case OpKind::residual_backward:
      residual_backward(compute_, b.shape().of_mlp, b.whole(0), own, b.whole(1));
      break;
    case OpKind::embed_backward:
      for (int64_t row = 0, run = index * own / own_run; row < own; row += own_run, ++run) {
        embed_backward(compute_, b.tokens(0) + row, b.whole(1) + row * model_.hidden, own_run,
                       first_token_of_run(p, run), b.whole(2));
      }
      break;
    case OpKind::add:
      add(pool_, b.whole(1), p.bytes_of(op.operands[0]) / 4, b.whole(0));
      break;
    case OpKind::zero:
      zero(pool_, b.whole(0), p.bytes_of(op.operands[0]) / 4);
      break;
    case OpKind::sum_of_squares:
      sum_of_squares_op(p, op, b);
      break;
    case OpKind::adamw:
      adamw_op(p, op, b, op.stream == Stream::host ? host_pool_ : pool_, context);
      break;
    case OpKind::copy_h2d:
    case OpKind::copy_d2h:
      copy(p, op, pointers);
      break;
    case OpKind::all_to_all:
    case OpKind::ring_shift:
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_reduce:
    case OpKind::sum_replicated:
      run_exchange(*comm_, p, op, pointers);
      break;
    case OpKind::io_read:
    case OpKind::io_write:
    case OpKind::count:
      throw failed("cpu backend: {} is not its op", name_of(op.kind));
  }
}

// Where in its unit this rank's shard of `elements` begins; where there are none it is all of it.
int64_t first_of_shard(const Program& p, int64_t elements) {
  const Parallel& parallel = p.strategy.parallel;
  return parallel.shards() > 1 ? replica_group(parallel, p.place).index * elements : 0;
}

void CpuBackend::sum_of_squares_op(const Program& p, const Op& op, const BoundOp& b) {
  const int64_t held = p.bytes_of(op.operands[0]) / 4, begin = first_of_shard(p, held);
  const ParameterUnit::Kind kind = units_[op.index].kind;
  for (const UnitRange& counted : counted_[static_cast<int>(kind)]) {
    const int64_t first = std::max(counted.begin, begin) - begin;
    const int64_t last = std::min(counted.end, begin + held) - begin;
    if (first < last) sum_of_squares(pool_, b.whole(0) + first, last - first, b.scalar(1));
  }
}

void CpuBackend::adamw_op(const Program& p, const Op& op, const BoundOp& b, ThreadPool& pool,
                          const StepContext& context) {
  AdamWStep step;
  step.learning_rate = context.learning_rate;
  step.beta1 = context.beta1;
  step.beta2 = context.beta2;
  step.epsilon = context.epsilon;
  step.step = context.step;
  const double norm = std::sqrt(*b.scalar(1));
  if (!std::isfinite(norm)) throw failed("step {}: the gradient norm is not finite", context.step);
  if (context.clip_norm > 0 && norm > context.clip_norm) {
    step.gradient_scale = context.clip_norm / norm;
  }
  // Of each tensor, the part that lies in this rank's shard (all of it where there are none).
  const int64_t shard = p.bytes_of(op.operands[2]) / 4;
  const int64_t begin = first_of_shard(p, shard);
  const auto slice = [&](int i) { return b.whole(i) + p.shard_offset_bytes(op.operands[i]) / 4; };
  for (const ParameterTensor& tensor : units_[op.index].tensors) {
    const int64_t first = std::max(tensor.offset, begin) - begin;
    const int64_t last = std::min(tensor.offset + tensor.elements, begin + shard) - begin;
    if (first >= last) continue;
    step.weight_decay = tensor.decays ? context.weight_decay : 0;
    adamw(pool, step, slice(0) + first, last - first, slice(4) + first, slice(2) + first,
          slice(3) + first);
  }
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Program& program, int compute_threads,
                                      Communicator* comm) {
  const int64_t ranks = program.strategy.parallel.ranks();
  if (ranks != (comm == nullptr ? 1 : comm->size())) {
    throw bad_input("the plan is for {} ranks, and {} run", ranks,
                    comm == nullptr ? 1 : comm->size());
  }
  if (program.dtype != DType::float32) {
    throw bad_input("dtype: the cpu backend computes in float32, the plan asks for {}",
                    name_of(program.dtype));
  }
  const int threads = compute_threads > 0 ? compute_threads : bound_processors();
  return std::make_unique<CpuBackend>(program, threads, comm);
}

}  // namespace longspan::cpu
