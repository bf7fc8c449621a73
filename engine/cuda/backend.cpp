#include "engine/cuda/backend.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/processors.h"
#include "engine/cpu/blocks.h"
#include "engine/cuda/blocks.h"
#include "engine/cuda/kernels/optimizer.h"
#include "engine/cuda/libraries.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ranges.h"
#include "engine/runtime/dispatch.h"
#include "engine/runtime/exchange.h"

namespace longspan::cuda {
namespace {

template <class T>
class CudaBackend final : public Backend {
 public:
  CudaBackend(const Program& program, Device& device, int host_threads,
              std::unique_ptr<DeviceRanks> ranks, const Progress& preparing)
      : step_(program), device_(device), ranks_(std::move(ranks)), host_pool_(host_threads) {
    const Queue& queue = device.queue(Stream::compute);
    for (const LayerShape& kind : step_.kinds()) {
      blocks_.emplace_back(kind, step_.share(), queue, program.strategy.deterministic);
    }
    if (queue.has_fused_attention) {
      queue.libraries->attention().prepare(library_calls(program, queue.compute_capability),
                                           host_pool_, preparing);
    }
    if (ranks_ != nullptr) device_.watch([this] { ranks_->check(); });
  }
  ~CudaBackend() override { device_.watch({}); }

  std::string name() const override { return "cuda"; }
  std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes) override {
    return device_.allocate(tier, bytes);
  }
  DeviceQueues* queues() override { return &device_.queues(); }
  void abandon(const std::string& reason) noexcept override {
    if (ranks_ != nullptr) ranks_->abandon(reason);
  }
  bool cancel() noexcept override { return ranks_ == nullptr || ranks_->cancel(); }
  int64_t sent_bytes() const override { return ranks_ == nullptr ? 0 : ranks_->sent_bytes(); }
  void run(const Program& program, const Op& op, const OperandPointers& pointers,
           const StepContext& context) override;

 private:
  void adamw_on_device(const Program& p, const Op& op, const BoundOp<OpKind::adamw>& b,
                       const StepContext& context);
  void adamw_on_host(const Program& p, const Op& op, const BoundOp<OpKind::adamw>& b,
                     const StepContext& context);

  StepShape step_;
  Device& device_;
  std::unique_ptr<DeviceRanks> ranks_;
  std::vector<Blocks<T>> blocks_;  // by kind of layers
  ThreadPool host_pool_;
};

template <class T>
void CudaBackend<T>::run(const Program& p, const Op& op, const OperandPointers& pointers,
                         const StepContext& context) {
  const NamedRange range(name_of(op.kind));
  switch (op.kind) {
    case OpKind::batch: {
      const BoundOp<OpKind::batch> b(p, op, pointers);
      fill_tokens(p, op, b.whole<int32_t>("tokens"), context);
      return;
    }
    case OpKind::report: {
      const BoundOp<OpKind::report> b(p, op, pointers);
      report_log_probs(p, op, b.whole<float>("log_probs"), context);
      return;
    }
    case OpKind::documents: {
      const BoundOp<OpKind::documents> b(p, op, pointers);
      fill_documents(p, op, b.whole<int32_t>("begins"), context);
      return;
    }
    case OpKind::copy_h2d:
    case OpKind::copy_d2h: {
      const CopyRange range = copy_range(p, op);
      copy_bytes(device_.queue(op.stream), pointers[kCopySource] + range.from_bytes, range.bytes,
                 pointers[kCopyDestination] + range.to_bytes);
      return;
    }
    case OpKind::sum_of_squares: {
      const BoundOp<OpKind::sum_of_squares> b(p, op, pointers);
      for (const UnitRange& range : step_.counted(p, op)) {
        sum_of_squares(device_.queue(op.stream), b.whole<float>("grads") + range.begin,
                       range.end - range.begin, b.whole<double>("grad_norm"));
      }
      return;
    }
    case OpKind::adamw: {
      const BoundOp<OpKind::adamw> b(p, op, pointers);
      if (op.stream == Stream::host) {
        adamw_on_host(p, op, b, context);
      } else {
        adamw_on_device(p, op, b, context);
      }
      return;
    }
    default:
      if (is_exchange(op.kind)) {
        run_exchange(*ranks_, p, op, pointers);
      } else if (!run_block<T>(blocks_[layer_kind(p, op)], step_, p, op, pointers, context)) {
        throw failed("cuda backend: {} is not its op", name_of(op.kind));
      }
  }
}

// Whether the parameters that an update writes are bfloat16.
bool updates_narrow(const Program& p) {
  return p.dtype == DType::bfloat16 && !has_masters(p.strategy, p.dtype);
}

template <class T>
void CudaBackend<T>::adamw_on_device(const Program& p, const Op& op,
                                     const BoundOp<OpKind::adamw>& b, const StepContext& context) {
  const double t = static_cast<double>(context.step);
  AdamWStep step;
  step.beta1 = static_cast<float>(context.beta1);
  step.beta2 = static_cast<float>(context.beta2);
  step.rate = static_cast<float>(context.learning_rate / (1 - std::pow(context.beta1, t)));
  step.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(context.beta2, t)));
  step.epsilon = static_cast<float>(context.epsilon);
  step.clip_norm = context.clip_norm;
  step.norm_before = context.norm_before;
  const auto with_states = [&]<class Parameter, class Moment>() {
    const float* grads = b.shard<float>("grads");
    auto* values = b.shard<Parameter>("params");
    auto *m = b.shard<Moment>("m"), *v = b.shard<Moment>("v");
    bfloat16* narrowed = b.shard<bfloat16>("narrowed");
    for (const StepShape::Update& update : step_.updates(p, op)) {
      const double decay = update.decays ? context.weight_decay : 0;
      step.keep = static_cast<float>(1 - context.learning_rate * decay);
      adamw(device_.queue(op.stream), step, b.whole<double>("grad_norm"), grads + update.first,
            update.count, values + update.first, m + update.first, v + update.first,
            narrowed == nullptr ? nullptr : narrowed + update.first);
    }
  };
  const bool narrow_moments = p.strategy.moments == MomentFormat::bfloat16;
  if (updates_narrow(p)) {
    if (narrow_moments) return with_states.template operator()<bfloat16, bfloat16>();
    return with_states.template operator()<bfloat16, float>();
  }
  if (narrow_moments) return with_states.template operator()<float, bfloat16>();
  with_states.template operator()<float, float>();
}

template <class T>
void CudaBackend<T>::adamw_on_host(const Program& p, const Op& op, const BoundOp<OpKind::adamw>& b,
                                   const StepContext& context) {
  cpu::AdamWStep step = cpu::adamw_step(context, b.whole<double>("grad_norm"));
  if (updates_narrow(p) || p.strategy.moments != MomentFormat::float32) {
    std::vector<cpu::AdamWPart> parts;
    for (const StepShape::Update& update : step_.updates(p, op)) {
      parts.push_back({update.first, update.count, update.decays});
    }
    const auto with_parameters = [&](auto* values) {
      cpu::adamw_in_format(host_pool_, step, context.weight_decay, p.strategy.moments, parts,
                           b.shard<float>("grads"), b.bytes("grads") / 4, values,
                           b.whole<std::byte>("m"), b.whole<std::byte>("v"),
                           b.shard<bfloat16>("narrowed"));
    };
    if (updates_narrow(p)) return with_parameters(b.shard<bfloat16>("params"));
    return with_parameters(b.shard<float>("params"));
  }
  float* values = b.shard<float>("params");
  bfloat16* narrowed = b.shard<bfloat16>("narrowed");
  for (const StepShape::Update& update : step_.updates(p, op)) {
    step.weight_decay = update.decays ? context.weight_decay : 0;
    cpu::adamw(host_pool_, step, b.shard<float>("grads") + update.first, update.count,
               values + update.first, b.shard<float>("m") + update.first,
               b.shard<float>("v") + update.first,
               narrowed == nullptr ? nullptr : narrowed + update.first);
  }
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Program& program, Device& device, int host_threads,
                                      std::unique_ptr<DeviceRanks> ranks,
                                      const Progress& preparing) {
  if (const int64_t wanted = world_ranks(program); wanted > 1 && ranks == nullptr) {
    throw bad_input("cuda backend: the plan is for {} ranks, and one runs", wanted);
  }
  if (program.model.nf4) {
    throw bad_input("cuda backend: {} has weights in 4 bits, which only the cpu backend restores",
                    program.model.name);
  }
  if (program.strategy.moments == MomentFormat::int8) {
    throw bad_input(
        "cuda backend: moments in int8 run on the cpu backend alone; expected float32 or bfloat16");
  }
  const int threads = host_threads > 0 ? host_threads : bound_processors();
  if (program.dtype == DType::bfloat16) {
    return std::make_unique<CudaBackend<bfloat16>>(program, device, threads, std::move(ranks),
                                                   preparing);
  }
  return std::make_unique<CudaBackend<float>>(program, device, threads, std::move(ranks),
                                              preparing);
}

}  // namespace longspan::cuda
