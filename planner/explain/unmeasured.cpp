#include "planner/explain/unmeasured.h"

#include <algorithm>

#include "planner/cost/cost_model.h"

namespace longspan {

std::vector<UnmeasuredKernel> unmeasured_kernels(const Plan& plan, const Program& program) {
  const CostModel cost(plan.hardware, plan.dtype);
  std::vector<double> count(program.shapes.size());
  for (const Op& op : program.ops) ++count[op.shape];

  std::vector<UnmeasuredKernel> found;
  std::vector<double> longest;  // seconds of the shape that is shown
  std::vector<Primitive> primitives;
  for (size_t i = 0; i < program.shapes.size(); ++i) {
    work_of(program, program.shapes[i], primitives);
    for (const Primitive& p : primitives) {
      if (is_transfer(p.kernel) || cost.measured(p)) continue;
      const double seconds = count[i] * cost.seconds(p);
      auto of_kernel = std::find_if(found.begin(), found.end(), [&](const UnmeasuredKernel& other) {
        return other.kernel == p.kernel;
      });
      if (of_kernel == found.end()) {
        found.push_back({p.kernel, cost.has_table(p.kernel), p.shape, 0});
        longest.push_back(0);
        of_kernel = found.end() - 1;
      }
      of_kernel->seconds += seconds;
      double& most = longest[of_kernel - found.begin()];
      if (seconds > most) {
        most = seconds;
        of_kernel->shape = p.shape;
      }
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return found;
}

}  // namespace longspan
