#include "cli/optimal_schedule.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "cli/solving.h"
#include "cli/text.h"

namespace longspan::cli {
namespace {

AdaptisRequest layers_of(const PipelineTask& task, const OptimalFlags& flags) {
  AdaptisRequest request;
  request.ranks = task.ranks;
  request.microbatches = task.microbatches;
  request.communication = task.communication;
  constexpr auto kUnits = static_cast<double>(kMicrobatchUnits);
  request.memory_limit = limit_in_parts(task.memory_limit, kUnits);
  request.limits = {.nodes = flags.nodes, .seconds = flags.seconds};
  const int layers = flags.layers > 0 ? flags.layers : 4 * task.ranks;
  const double part = static_cast<double>(task.ranks) / layers;
  const int64_t activations = std::llround(kUnits * part);
  const LayerCosts layer{task.times.forward * part, task.times.input * part,
                         task.times.weight * part, activations,
                         std::llround(kUnits * part * task.kept_for_weights)};
  const auto end = [&](double times) {
    request.layers.push_back(
        {layer.forward * times, layer.input * times, layer.weight * times, 0, 0});
  };
  if (flags.embedding > 0) end(flags.embedding);
  request.layers.insert(request.layers.end(), layers, layer);
  if (flags.head > 0) end(flags.head);
  return request;
}

}  // namespace

OptimalAnswer make_optimal(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice, const OptimalFlags& flags) {
  if (choice.slices > 1)
    throw bad_input("{} takes whole sequences; leave --slices out", family.name);
  OptimalAnswer answer;
  ScheduleRequest request = request_of(family, task, choice);
  if (family.name == "optpipe") {
    const SolverLimits limits{.nodes = flags.nodes, .seconds = flags.seconds};
    answer.result = with_progress(flags.seconds, [&] { return opt_pipe(request, limits); });
  } else {
    if (choice.virtual_stages > 0) {
      throw bad_input("adaptis chooses virtual stages itself; leave --virtual out");
    }
    const AdaptisRequest asked = layers_of(task, flags);
    answer.plan = with_progress(flags.seconds, [&] { return adaptis(asked); });
    answer.result = answer.plan->schedule;
    request.costs = answer.plan->costs;
  }
  answer.timed = timed_answer(family, std::move(request), answer.result.schedule);
  return answer;
}

std::string end_text(const OptimalSchedule& result) {
  const std::optional<double> most = result.gap();
  // A gap that is shown as 0.0 % is not proven to be none.
  constexpr double kShown = 0.001;
  const std::string gap = !most ? "no bound is known"
                          : *most < kShown
                              ? fmt::format("less than {} above the best order", percent(kShown))
                              : fmt::format("at most {} above the best order", percent(*most));
  if (!result.stop) return fmt::format("optimised in windows, too large for the whole; {}", gap);
  switch (*result.stop) {
    case Stop::nodes:
      return fmt::format("stopped by the limit of nodes; {}", gap);
    case Stop::seconds:
      return fmt::format("stopped by the time limit; {}", gap);
    default:
      return "proven the best order";
  }
}

}  // namespace longspan::cli
