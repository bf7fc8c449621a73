#include "engine/cpu/backend.h"

#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/processors.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/exchange.h"
#include "engine/cpu/expert_tiles.h"
#include "engine/cpu/router.h"
#include "engine/runtime/dispatch.h"

namespace longspan::cpu {
namespace {

// Adapts the blocks to the dispatch. Attention has a model of its own: this rank's share.
struct Blocks {
  Blocks(const LayerShape& layers, const VocabularyShare& share, ThreadPool& pool)
      : layer(make_block_context(layers.model(), pool, layers.expert_degree())),
        attention(make_block_context(layers.attention(), pool)) {
    layer.share = share;
  }

  void embed_forward(auto... args) { cpu::embed_forward(layer, args...); }
  void norm_forward(const float* unit, bool of_mlp, const float* x, int64_t n, float* h) {
    (of_mlp ? norm2_forward : norm1_forward)(layer, unit, x, n, h);
  }
  void qkv_forward(auto... args) { cpu::qkv_forward(layer, args...); }
  void attention_forward(const float* q, const float* k, const float* v, int64_t q0, int64_t nq,
                         int64_t k0, int64_t nk, bool first, float* o, float* lse, float* workspace,
                         float* /*o_sum: o is float*/, HeadRows rows,
                         const AttentionTerms<float>& terms) {
    cpu::attention_forward(attention, q, k, v, q0, nq, k0, nk, first, o, lse, workspace, rows,
                           terms);
  }
  void merge_outputs(const float* part, const float* part_lse, int64_t n, float* o, float* lse,
                     float* /*o_sum: o is float*/, HeadRows rows) {
    cpu::merge_outputs(attention, part, part_lse, n, o, lse, rows);
  }
  void out_forward(auto... args) { cpu::out_forward(layer, args...); }
  void mlp_forward(auto... args) { cpu::mlp_forward(layer, args...); }
  void route(auto... args) { cpu::route_tile(layer, args...); }
  void shared_forward(auto... args) { cpu::shared_forward(layer, args...); }
  void experts_forward(auto... args) { cpu::received_forward(layer, args...); }
  void combine_forward(auto... args) { cpu::combine_forward(layer, args...); }
  void shared_backward(auto... args) { cpu::shared_backward(layer, args...); }
  void experts_backward(auto... args) { cpu::received_backward(layer, args...); }
  void combine_backward(auto... args) { cpu::combine_backward(layer, args...); }
  void residual_forward(auto... args) { cpu::residual_forward(layer, args...); }
  void balance(auto... args) { balance_load(args...); }
  void loss_forward(auto... args) { cpu::loss_forward(layer, args...); }
  void loss_forward_backward(auto... args) { cpu::loss_forward_backward(layer, args...); }
  void final_norm_forward(auto... args) { cpu::final_norm_forward(layer, args...); }
  void final_norm_backward(auto... args) { cpu::final_norm_backward(layer, args...); }
  void vocabulary_forward(auto... args) { cpu::vocabulary_forward(layer, args...); }
  void vocabulary_merge(auto... args) { cpu::vocabulary_merge(args...); }
  void vocabulary_combine(auto... args) { cpu::vocabulary_combine(layer, args...); }
  void vocabulary_backward(auto... args) { cpu::vocabulary_backward(layer, args...); }
  void mlp_backward(auto... args) { cpu::mlp_backward(layer, args...); }
  void mlp_backward_input(auto... args) { cpu::mlp_backward_input(layer, args...); }
  void mlp_backward_weight(auto... args) { cpu::mlp_backward_weight(layer, args...); }
  void out_backward(auto... args) { cpu::out_backward(layer, args...); }
  void out_backward_input(auto... args) { cpu::out_backward_input(layer, args...); }
  void out_backward_weight(auto... args) { cpu::out_backward_weight(layer, args...); }
  void attention_backward(const float* q, const float* k, const float* v, const float* d_o,
                          const float* lse, const float* delta, int64_t q0, int64_t nq, int64_t k0,
                          int64_t nk, bool first_dq, float* dq, bool first_dkv, float* dk,
                          float* dv, float* workspace, HeadRows rows,
                          const AttentionTerms<float>& terms) {
    cpu::attention_backward(attention, q, k, v, d_o, lse, delta, q0, nq, k0, nk, first_dq, dq,
                            first_dkv, dk, dv, workspace, rows, terms);
  }
  void qkv_backward(auto... args) { cpu::qkv_backward(layer, args...); }
  void qkv_backward_input(auto... args) { cpu::qkv_backward_input(layer, args...); }
  void qkv_backward_weight(auto... args) { cpu::qkv_backward_weight(layer, args...); }
  void norm_backward(const float* unit, bool of_mlp, const float* x, const float* dh, int64_t n,
                     const float* more, float* dx, float* unit_gradient) {
    (of_mlp ? norm2_backward : norm1_backward)(layer, unit, x, dh, n, more, dx, unit_gradient);
  }
  void residual_backward(auto... args) { cpu::residual_backward(layer, args...); }
  void select_rows(auto... args) { cpu::select_rows(layer, args...); }
  void restore_rows(auto... args) { cpu::restore_rows(layer, args...); }
  void embed_backward(auto... args) { cpu::embed_backward(layer, args...); }
  void add(const float* part, int64_t n, float* sum) { cpu::add(*layer.pool, part, n, sum); }
  void dequantize(const std::byte* from, const Nf4Layout& layout, float* unit) {
    cpu::dequantize(*layer.pool, from, layout, unit);
  }
  void add_to_rows(const float* part, int64_t n, float* sum) { add(part, n, sum); }
  void zero(std::byte* x, int64_t bytes) {
    cpu::zero(*layer.pool, reinterpret_cast<float*>(x), bytes / 4);
  }

  BlockContext layer, attention;
};

void copy(const Program& program, const Op& op, const OperandPointers& pointers) {
  const CopyRange range = copy_range(program, op);
  std::memcpy(pointers[kCopyDestination] + range.to_bytes, pointers[kCopySource] + range.from_bytes,
              range.bytes);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Program& program, int threads, Communicator* comm)
      : step_(program), comm_(comm), pool_(threads), host_pool_(threads) {
    for (const LayerShape& kind : step_.kinds()) blocks_.emplace_back(kind, step_.share(), pool_);
    if (comm != nullptr) ranks_.emplace(*comm);
  }

  std::string name() const override { return "cpu"; }
  void abandon(const std::string& reason) noexcept override {
    if (ranks_) ranks_->abandon(reason);
  }
  bool cancel() noexcept override { return !ranks_ || ranks_->cancel(); }
  int64_t sent_bytes() const override { return comm_ == nullptr ? 0 : comm_->bytes_sent(); }
  void run(const Program& program, const Op& op, const OperandPointers& pointers,
           const StepContext& context) override;

 private:
  void adamw_op(const Program& p, const Op& op, const OperandPointers& pointers,
                const StepContext& context);

  StepShape step_;
  Communicator* comm_;
  std::optional<HostExchange> ranks_;
  ThreadPool pool_;             // of the compute stream
  ThreadPool host_pool_;        // of the host stream: AdamW with the optimizer on the host
  std::vector<Blocks> blocks_;  // by kind of layers
};

void CpuBackend::run(const Program& p, const Op& op, const OperandPointers& pointers,
                     const StepContext& context) {
  if (run_block<float>(blocks_[layer_kind(p, op)], step_, p, op, pointers, context)) return;
  switch (op.kind) {
    case OpKind::batch: {
      const BoundOp<OpKind::batch> b(p, op, pointers);
      fill_tokens(p, op, b.whole<int32_t>("tokens"), context);
      break;
    }
    case OpKind::report: {
      const BoundOp<OpKind::report> b(p, op, pointers);
      report_log_probs(p, op, b.whole<float>("log_probs"), context);
      break;
    }
    case OpKind::documents: {
      const BoundOp<OpKind::documents> b(p, op, pointers);
      fill_documents(p, op, b.whole<int32_t>("begins"), context);
      break;
    }
    case OpKind::sum_of_squares: {
      const BoundOp<OpKind::sum_of_squares> b(p, op, pointers);
      for (const UnitRange& range : step_.counted(p, op)) {
        sum_of_squares(pool_, b.whole<float>("grads") + range.begin, range.end - range.begin,
                       b.whole<double>("grad_norm"));
      }
      break;
    }
    case OpKind::adamw:
      adamw_op(p, op, pointers, context);
      break;
    case OpKind::copy_h2d:
    case OpKind::copy_d2h:
      copy(p, op, pointers);
      break;
    default:
      if (!is_exchange(op.kind)) throw failed("cpu backend: {} is not its op", name_of(op.kind));
      run_exchange(*ranks_, p, op, pointers);
  }
}

void CpuBackend::adamw_op(const Program& p, const Op& op, const OperandPointers& pointers,
                          const StepContext& context) {
  const BoundOp<OpKind::adamw> b(p, op, pointers);
  ThreadPool& pool = op.stream == Stream::host ? host_pool_ : pool_;
  AdamWStep step = adamw_step(context, b.whole<double>("grad_norm"));
  if (p.strategy.moments != MomentFormat::float32) {
    std::vector<AdamWPart> parts;
    for (const StepShape::Update& update : step_.updates(p, op)) {
      parts.push_back({update.first, update.count, update.decays});
    }
    adamw_in_format(pool, step, context.weight_decay, p.strategy.moments, parts,
                    b.shard<float>("grads"), b.bytes("grads") / 4, b.shard<float>("params"),
                    b.whole<std::byte>("m"), b.whole<std::byte>("v"));
    return;
  }
  for (const StepShape::Update& update : step_.updates(p, op)) {
    step.weight_decay = update.decays ? context.weight_decay : 0;
    adamw(pool, step, b.shard<float>("grads") + update.first, update.count,
          b.shard<float>("params") + update.first, b.shard<float>("m") + update.first,
          b.shard<float>("v") + update.first);
  }
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Program& program, int compute_threads,
                                      Communicator* comm) {
  const int64_t ranks = world_ranks(program);
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
