#include "planner/pipeline/rank_program.h"

namespace longspan {

RankProgram rank_program(const StepRequest& request, const Schedule& schedule, size_t rank) {
  const std::vector<int64_t> layers =
      layers_of_stages(request.model, request.strategy.parallel.pipeline, request.sequence);
  RankProgram result{request, {{}, schedule.ranks[rank]}};
  StepRequest& own = result.request;
  own.strategy.parallel.pipeline = {};
  own.boundary = {false, false};
  int first = 0;
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  for (int32_t number = 0; number < schedule.all_stages(); ++number) {
    if (ranks[number] != static_cast<int32_t>(rank)) continue;
    const StageBoundary boundary = {schedule.is_first(number), schedule.is_last(number)};
    const int end = first + static_cast<int>(layers[static_cast<size_t>(number)]);
    result.rank.stages.push_back({number, first, end, boundary});
    own.boundary.has_embedding |= boundary.has_embedding;
    own.boundary.has_loss |= boundary.has_loss;
    first = end;
  }
  own.model.layers = first;
  const bool ended =
      !result.rank.actions.empty() && result.rank.actions.back().kind == ActionKind::optimizer;
  if (!ended) result.rank.actions.push_back({ActionKind::optimizer});
  return result;
}

}  // namespace longspan
