#include "planner/pipeline/rank_program.h"

#include <set>

namespace longspan {

RankProgram rank_program(const StepRequest& request, const Schedule& schedule, size_t rank) {
  const std::vector<int64_t> layers =
      layers_of_stages(request.model, request.strategy.parallel.pipeline);
  RankProgram result{request, {{}, schedule.ranks[rank]}};
  std::set<int32_t> numbers;
  for (const Action& action : schedule.ranks[rank]) {
    if (action.kind == ActionKind::forward) numbers.insert(action.stage);
  }
  StepRequest& own = result.request;
  own.strategy.parallel.pipeline = {};
  own.ends = {false, false};
  int first = 0;
  for (const int32_t number : numbers) {
    const Ends ends = {schedule.is_first(number), schedule.is_last(number)};
    const int end = first + static_cast<int>(layers[static_cast<size_t>(number)]);
    result.rank.stages.push_back({number, first, end, ends});
    own.ends.first |= ends.first;
    own.ends.last |= ends.last;
    first = end;
  }
  own.model.layers = first;
  const bool ended =
      !result.rank.actions.empty() && result.rank.actions.back().kind == ActionKind::optimizer;
  if (!ended) result.rank.actions.push_back({ActionKind::optimizer});
  return result;
}

}  // namespace longspan
