#include "planner/explain/expert_costs.h"

#include <algorithm>

#include "planner/program/expert_tiles.h"

namespace longspan {
namespace {

bool is_of_experts(OpKind kind) {
  switch (kind) {
    case OpKind::mlp_forward:
    case OpKind::mlp_backward:
    case OpKind::mlp_backward_input:
    case OpKind::mlp_backward_weight:
    case OpKind::route:
    case OpKind::shared_forward:
    case OpKind::experts_forward:
    case OpKind::combine_forward:
    case OpKind::shared_backward:
    case OpKind::experts_backward:
    case OpKind::combine_backward:
      return true;
    default:
      return false;
  }
}

bool is_exchange_of_rows(OpKind kind) {
  return kind == OpKind::dispatch || kind == OpKind::collect;
}

int first_kind_with_experts(const Program& p) {
  int kind = 0;
  while (!p.model_of(kind).experts) ++kind;
  return kind;
}

}  // namespace

ExpertCosts costs_of_experts(const Simulated& s) {
  const Program& p = s.program;
  const int kind = p.model.uniform() ? 0 : first_kind_with_experts(p);
  const Experts& experts = *p.model_of(kind).experts;
  const Lengths& lengths = p.lengths_of(kind);
  const TensorBytes& bytes = p.table_of(kind);
  ExpertCosts costs;
  for (int layer = 0; layer < static_cast<int>(p.model.layers); ++layer) {
    costs.layers += p.experts_unit(layer) >= 0 ? 1 : 0;
  }
  costs.count = experts.count;
  costs.own = experts.count / lengths.expert;
  for (const Buffer& b : p.buffers) {
    if (!b.persistent || !is_state(b.tensor) || unit_kind(b.tensor) != UnitKind::experts) continue;
    costs.state_bytes[static_cast<size_t>(b.tier)] += p.bytes_of(b);
  }
  const bool sharded = p.strategy.parallel.shards(UnitKind::experts) > 1;
  costs.state_bytes[static_cast<size_t>(p.strategy.gradients)] +=
      costs.layers * bytes[sharded ? Tensor::grads_experts_shard : Tensor::grads_experts];
  if (lengths.expert > 1) {
    costs.tile_tokens = expert_tiles(p.strategy, lengths).tokens;
    costs.most_rows = most_received_rows(experts, p.strategy, lengths);
    costs.busiest =
        static_cast<double>(busiest_rows(experts, p.strategy, lengths, costs.tile_tokens)) /
        static_cast<double>(costs.tile_tokens * experts.active);
    for (const Tensor t :
         {Tensor::routing, Tensor::routed, Tensor::routed_gradients, Tensor::routed_weights,
          Tensor::received, Tensor::received_gradients, Tensor::received_weights, Tensor::arrivals,
          Tensor::ws_experts_backward}) {
      costs.tile_bytes += bytes[t];
    }
  }
  for (size_t i = 0; i < p.ops.size(); ++i) {
    const Op& op = p.ops[i];
    const double seconds = s.timeline.spans[i].end - s.timeline.spans[i].start;
    if (is_exchange_of_rows(op.kind)) costs.exchange_seconds += seconds;
    if (is_of_experts(op.kind) && p.experts_unit(op.layer) >= 0) costs.compute_seconds += seconds;
  }
  for (const ComputeWait& wait : compute_waits(s)) {
    if (wait.what == name_of(OpKind::dispatch) || wait.what == name_of(OpKind::collect)) {
      costs.waited_seconds += wait.seconds;
    }
  }
  return costs;
}

}  // namespace longspan
