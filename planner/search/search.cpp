#include "planner/search/search.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/units.h"
#include "planner/search/best_first.h"
#include "planner/search/front.h"
#include "planner/search/preset_plans.h"
#include "planner/search/question.h"

namespace longspan {
namespace {

Goal goal_of(Objective objective) {
  if (objective == Objective::memory) return Goal::least_device;
  if (objective == Objective::host_memory) return Goal::least_host;
  return Goal::fastest;
}

[[noreturn]] void refuse(const TierBytes& limits, const HardwareProfile& hw, int64_t sequence,
                         const TierBytes& nearest) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (nearest[tier] <= limits[tier]) continue;
    throw no_fit("no plan for {} tokens fits {}; nearest: {}", format_tokens(sequence), hw.name,
                 describe_shortfall(static_cast<Tier>(tier), nearest[tier], limits[tier]));
  }
  throw no_fit("no plan for {} tokens fits {}", format_tokens(sequence), hw.name);
}

}  // namespace

SearchResult search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                    const SearchOptions& options, const Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  Evaluator evaluator(model, hw, capacities(hw));
  const SpaceOptions space = space_of(options);
  const std::vector<Candidate> frames = frames_of(model, hw, sequence, space);
  Wanted wanted;
  wanted.goal = goal_of(options.objective);
  const Found found = best_first(evaluator, frames, space, wanted, {}, progress);
  if (!found.best) {
    refuse(evaluator.limits(), hw, sequence,
           found.nearest ? found.nearest->score.bytes : TierBytes{});
  }
  SearchResult result;
  result.best = evaluator.plan(found.best->candidate, found.best->score);
  result.gap = 1 - found.bound / measure_of(wanted.goal, found.best->score, evaluator.limits());
  result.pareto.push_back(result.best);
  result.considered = evaluator.considered();
  result.evaluated = evaluator.simulated();
  if (getenv("LS_DEBUG")) fmt::print(stderr, "frames {} bound {} best {} gap {:.2f} %\n", frames.size(), found.bound, found.best->score.seconds, 100*result.gap);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Plan plan_preset(const ModelSpec& model, const HardwareProfile& hw, const std::string& preset,
                 int64_t sequence, const SearchOptions& options) {
  Evaluator evaluator(model, hw, capacities(hw));
  const Scored found =
      PresetPlans(evaluator, model, hw, preset, space_of(options)).best(sequence);
  Plan plan = evaluator.plan(found.candidate, found.score);
  if (found.score.overflow > 0) check_fits(plan, found.score.bytes);
  return plan;
}

}  // namespace longspan
