#include "planner/explain/cast_costs.h"

#include <algorithm>

#include "planner/cost/cost_model.h"
#include "planner/cost/product_speed.h"

namespace longspan {
namespace {

// The largest workspace of an op, with and without the copies.
int64_t copies_of_ops(const Program& p, int kind) {
  Strategy plain = p.strategy;
  plain.products = ProductFormat::dtype;
  const TensorBytes& with = p.table_of(kind);
  const TensorBytes without =
      tensor_bytes(p.model_of(kind), p.lengths_of(kind), plain, p.dtype, p.compute_capability);
  int64_t most = 0;
  for (int i = 0; i < kTensorCount; ++i) {
    const auto tensor = static_cast<Tensor>(i);
    if (is_workspace(tensor)) most = std::max(most, with[tensor] - without[tensor]);
  }
  return most;
}

}  // namespace

CastCosts costs_of_casts(const Plan& plan, const Program& program) {
  const CostModel cost(plan.hardware, plan.dtype);
  std::vector<double> count(program.shapes.size());
  for (const Op& op : program.ops) ++count[op.shape];

  CastCosts costs;
  costs.speed = product_speed(plan.hardware.device, plan.strategy.products);
  std::vector<Primitive> primitives;
  for (size_t i = 0; i < program.shapes.size(); ++i) {
    work_of(program, program.shapes[i], primitives);
    for (const Primitive& p : primitives) {
      if (p.format == ProductFormat::dtype) continue;
      (is_cast(p) ? costs.cast_seconds : costs.product_seconds) += count[i] * cost.seconds(p);
      if (is_cast(p)) costs.cast_bytes += count[i] * p.work * p.repeats;
    }
    const int kind = program.shapes[i].layer_kind;
    costs.most_bytes = std::max(costs.most_bytes, copies_of_ops(program, kind));
  }
  return costs;
}

}  // namespace longspan
