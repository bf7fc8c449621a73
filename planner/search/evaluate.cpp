#include "planner/search/evaluate.h"

#include "planner/program/layout.h"
#include "planner/simulate/simulate.h"

namespace longspan {

Evaluation evaluate(const StepRequest& request, const CostModel& cost) {
  const Program program = build_program(request);
  const Layout layout = lay_out(program);
  const Timeline timeline =
      simulate(program, layout, cost.durations(program), cost.interference(), false);
  return {timeline.step_seconds, layout.arena_bytes};
}

std::array<int64_t, kTierCount> exact_peak_bytes(const StepRequest& request) {
  return lay_out(build_program(request)).arena_bytes;
}

}  // namespace longspan
