#include "engine/cpu/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "engine/cpu/blocks.h"

namespace longspan::cpu {
namespace {

// An op with its operands resolved to typed pointers at the op's own rows.
class BoundOp {
 public:
  BoundOp(const Program& program, const Op& op, const OperandPointers& pointers)
      : program_(program), op_(op), pointers_(pointers) {}

  const OpShape& shape() const { return program_.shapes[op_.shape]; }
  int64_t chunk() const { return program_.lengths.chunk; }
  int64_t block() const { return program_.lengths.block; }

  /// Start of operand i, whatever it is.
  float* whole(int i) const { return reinterpret_cast<float*>(pointers_[i]); }
  /// Operand i at the row of global token `token`.
  float* at(int i, int64_t token) const {
    return reinterpret_cast<float*>(pointers_[i] + row_offset(op_.operands[i], token));
  }
  int32_t* tokens(int i) const { return reinterpret_cast<int32_t*>(pointers_[i]); }
  double* scalar(int i) const { return reinterpret_cast<double*>(pointers_[i]); }

  int64_t row_offset(BufferId id, int64_t token) const {
    const Buffer& buffer = program_.buffers[id];
    const int64_t unit_rows = program_.lengths.rows(rows_of(buffer.tensor));
    return (token - buffer.index * unit_rows) * program_.bytes.row[static_cast<int>(buffer.tensor)];
  }

 private:
  const Program& program_;
  const Op& op_;
  const OperandPointers& pointers_;
};

// Copies between device and host; between units of different extent the smaller one moves.
void copy(const Program& program, const Op& op, const OperandPointers& pointers) {
  const BufferId from = op.operands[0], to = op.operands[1];
  const int64_t bytes = std::min(program.bytes_of(from), program.bytes_of(to));
  const BufferId smaller = program.bytes_of(from) <= program.bytes_of(to) ? from : to;
  const Buffer& unit = program.buffers[smaller];
  const int64_t token = unit.index * program.lengths.rows(rows_of(unit.tensor));
  const BoundOp bound(program, op, pointers);
  const bool rows = rows_of(unit.tensor) != Rows::none;
  const int64_t source = rows ? bound.row_offset(from, token) : 0;
  const int64_t target = rows ? bound.row_offset(to, token) : 0;
  std::memcpy(pointers[1] + target, pointers[0] + source, bytes);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Program& program, int threads)
      : model_(program.model),
        units_(parameter_units(model_)),
        pool_(threads),
        host_pool_(threads) {
    compute_ = make_block_context(model_, pool_);
  }

  std::string name() const override { return "cpu"; }
  void run(const Program& program, const Op& op, const OperandPointers& pointers,
           const StepContext& context) override;

 private:
  void adamw_op(const Op& op, const BoundOp& b, ThreadPool& pool, const StepContext& context);

  ModelSpec model_;
  std::vector<ParameterUnit> units_;
  ThreadPool pool_;       // the compute stream's
  ThreadPool host_pool_;  // the host stream's: AdamW where the optimizer lives on the host
  BlockContext compute_;
};

void CpuBackend::run(const Program& p, const Op& op, const OperandPointers& pointers,
                     const StepContext& context) {
  const BoundOp b(p, op, pointers);
  const Strategy& s = p.strategy;
  const int64_t block = b.block(), chunk = b.chunk();
  const int64_t block_token = op.index * block, chunk_token = op.index * chunk;
  const int64_t kv_token = op.kv_first * chunk, kv_rows = b.shape().kv_chunks * chunk;
  const auto tile = [](int64_t wanted, int64_t rows) {
    return wanted > 0 ? std::min(wanted, rows) : rows;
  };

  switch (op.kind) {
    case OpKind::batch:
      context.fill_tokens(op.micro_batch, p.lengths.sequence + 1, b.tokens(0));
      break;
    case OpKind::embed_forward:
      embed_forward(compute_, b.whole(0), b.tokens(1), block, block_token, b.whole(2));
      break;
    case OpKind::norm_forward:
      norm1_forward(compute_, b.whole(0), b.whole(1), block, b.whole(2));
      break;
    case OpKind::qkv_forward:
      qkv_forward(compute_, b.whole(0), b.at(1, chunk_token), b.shape().normed, chunk, chunk_token,
                  tile(s.projection_tile, chunk), b.at(2, chunk_token), b.at(3, chunk_token),
                  b.at(4, chunk_token), b.whole(5));
      break;
    case OpKind::attention_forward:
      attention_forward(compute_, b.at(0, chunk_token), b.at(1, kv_token), b.at(2, kv_token),
                        chunk_token, chunk, kv_token, kv_rows, b.shape().first,
                        b.at(3, chunk_token), b.at(4, chunk_token), b.whole(5));
      break;
    case OpKind::out_forward:
      out_forward(compute_, b.whole(0), b.whole(1), b.whole(2), block, b.whole(3));
      break;
    case OpKind::mlp_forward:
      mlp_forward(compute_, b.whole(0), b.whole(1), block, tile(s.mlp_tile, block), b.whole(2),
                  b.whole(4), b.whole(3));
      break;
    case OpKind::loss: {
      // Where the output matrix is tied it is the embedding's token table, the first tensor there;
      // otherwise it is the last tensor of the head unit.
      const int64_t behind_norm =
          model_.tied_embeddings ? 0 : (model_.norm == Norm::layernorm ? 2 : 1) * model_.hidden;
      const double scale =
          1.0 / (static_cast<double>(p.lengths.sequence) * static_cast<double>(p.micro_batches));
      loss_forward_backward(compute_, b.whole(0), b.whole(1) + behind_norm, b.whole(2),
                            b.tokens(3) + 1, block, tile(s.loss_tile, block), scale, b.scalar(4),
                            b.whole(5), b.whole(6), b.whole(7) + behind_norm, b.whole(8));
      break;
    }
    case OpKind::mlp_backward:
      mlp_backward(compute_, b.whole(0), b.whole(1), b.whole(5), block, tile(s.mlp_tile, block),
                   b.whole(2), b.whole(3), b.whole(4));
      break;
    case OpKind::out_backward:
      out_backward(compute_, b.whole(0), b.whole(1), b.whole(2), block, b.whole(3), b.whole(4),
                   b.whole(5));
      break;
    case OpKind::attention_backward:
      attention_backward(compute_, b.at(0, chunk_token), b.at(1, kv_token), b.at(2, kv_token),
                         b.at(3, chunk_token), b.at(4, chunk_token), b.at(5, chunk_token),
                         chunk_token, chunk, kv_token, kv_rows, op.first_dq, b.at(6, chunk_token),
                         op.first_dkv, b.at(7, kv_token), b.at(8, kv_token), b.whole(9));
      break;
    case OpKind::qkv_backward:
      qkv_backward(compute_, b.whole(0), b.at(1, chunk_token), b.shape().normed, chunk, chunk_token,
                   tile(s.projection_tile, chunk), b.at(2, chunk_token), b.at(3, chunk_token),
                   b.at(4, chunk_token), b.at(5, chunk_token), b.whole(6), b.whole(7));
      break;
    case OpKind::norm_backward:
      norm1_backward(compute_, b.whole(0), b.whole(1), b.whole(2), block, b.whole(3), b.whole(4));
      break;
    case OpKind::embed_backward:
      embed_backward(compute_, b.tokens(0), b.whole(1), block, block_token, b.whole(2));
      break;
    case OpKind::zero:
      zero(pool_, b.whole(0), p.bytes_of(op.operands[0]) / 4);
      break;
    case OpKind::sum_of_squares:
      sum_of_squares(pool_, b.whole(0), p.bytes_of(op.operands[0]) / 4, b.scalar(1));
      break;
    case OpKind::adamw:
      adamw_op(op, b, op.stream == Stream::host ? host_pool_ : pool_, context);
      break;
    case OpKind::copy_h2d:
    case OpKind::copy_d2h:
      copy(p, op, pointers);
      break;
    case OpKind::io_read:
    case OpKind::io_write:
    case OpKind::count:
      throw failed("cpu backend: {} is not its op", name_of(op.kind));
  }
}

void CpuBackend::adamw_op(const Op& op, const BoundOp& b, ThreadPool& pool,
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
  for (const ParameterTensor& tensor : units_[op.index].tensors) {
    step.weight_decay = tensor.decays ? context.weight_decay : 0;
    adamw(pool, step, b.whole(0) + tensor.offset, tensor.elements, b.whole(4) + tensor.offset,
          b.whole(2) + tensor.offset, b.whole(3) + tensor.offset);
  }
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Program& program, int compute_threads) {
  if (program.dtype != DType::float32) {
    throw bad_input("dtype: the cpu backend computes in float32, the plan asks for {}",
                    name_of(program.dtype));
  }
  const int threads = compute_threads > 0
                          ? compute_threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::make_unique<CpuBackend>(program, threads);
}

}  // namespace longspan::cpu
