#include "planner/search/ordered_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/evaluate.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/program/layout.h"
#include "planner/schedule/check.h"
#include "planner/schedule/timing.h"
#include "planner/search/pipeline_space.h"
#include "planner/search/question.h"

namespace longspan {
namespace {

// What a plan's pipeline is ordered from: the best lists of the families, and their task.
struct Start {
  Plan plan;  // with these lists
  NamedSchedule lists;
  OrderingTask task;
};

// What the flags of a question may ask of the pipeline: whole sequences, one virtual stage or two.
constexpr int32_t kMostVirtualStages = 2;
constexpr ScheduleFamily kOrdered = {.name = "optpipe",
                                     .summary = "lists in the order of a solver",
                                     .source = "OptPipe, arXiv 2510.05186",
                                     .most_virtual_stages = kMostVirtualStages};

bool may_be_ordered(const Schedule& schedule) {
  return can_be_reordered(schedule) &&
         std::all_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& list) {
           return std::all_of(list.begin(), list.end(), [](const Action& action) {
             return is_compute(action.kind) || action.kind == ActionKind::optimizer;
           });
         });
}

// The plan with other lists, and its prediction.
Plan with_lists(Plan plan, const Schedule& schedule) {
  Pipeline& pipeline = plan.strategy.parallel.pipeline;
  pipeline.schedule = kOwnLists;
  pipeline.lists = schedule.ranks;
  pipeline.in_flight = 0;
  plan.predicted = predict(plan);
  return plan;
}

// None if no family has lists for the plan that fit.
std::optional<Start> start_of(const Plan& plan, const TierBytes& capacity) {
  const Pipeline& p = plan.strategy.parallel.pipeline;
  const CostModel cost(plan.hardware, plan.dtype);
  const auto evaluate_stage = [&](const StepRequest& stage) { return evaluate(stage, cost); };
  // The task depends on where the stages are, not on their order.
  std::map<std::vector<int32_t>, OrderingTask> tasks;
  const auto task_of = [&](const Schedule& lists) -> const OrderingTask& {
    const std::vector<int32_t> ranks = lists.ranks_of_stages();
    const auto known = tasks.find(ranks);
    if (known != tasks.end()) return known->second;
    OrderingTask task = ordering_task(step_request(plan), cost, evaluate_stage, lists, capacity);
    task.costs.speeds.clear();  // a solver orders as if ranks shared no processors
    return tasks.emplace(ranks, std::move(task)).first->second;
  };
  std::optional<Start> start;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.microbatches = static_cast<int32_t>(plan.microbatches);
  for (const ScheduleFamily& family : schedule_families()) {
    if (!family.plannable || family.sliced || family.cuts_vocabulary ||
        !takes_virtual_stages(family, p.virtual_stages)) {
      continue;
    }
    try {
      wanted.memory_limit = 0;
      wanted.costs = {};
      // The stages of its ranks, which do not depend on costs.
      const Schedule stages = make_schedule(family, wanted);
      if (!may_be_ordered(stages)) continue;
      const OrderingTask& task = task_of(stages);
      wanted.costs = task.costs;
      wanted.memory_limit = task.memory_limit;
      Schedule lists = make_schedule(family, wanted);
      if (first_fault(lists, task.costs, task.memory_limit)) continue;
      const double seconds = simulate(lists, task.costs).cost;
      if (start && seconds >= start->lists.cost) continue;
      // The limit of a task is by sums.
      Plan listed = with_lists(plan, lists);
      if (!fits_within(listed.predicted.peak_bytes, capacity)) continue;
      start = {std::move(listed), {std::string(family.name), std::move(lists), seconds}, task};
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::failed) throw;
    }
  }
  return start;
}

// The start itself if no faster order fits when it is laid out.
OrderedPlan ordered(const Start& start, const TierBytes& capacity, const SolverLimits& limits) {
  const double start_seconds = start.plan.predicted.step_seconds;
  constexpr int kTries = 3;
  constexpr double kLess = 0.97;
  auto limit = static_cast<double>(start.task.memory_limit);
  for (int i = 0; i < kTries; ++i, limit *= kLess) {
    const auto units = static_cast<int64_t>(limit);
    if (first_fault(start.lists.schedule, start.task.costs, units)) break;
    OptimalSchedule order = reorder(start.lists, start.task.costs, units, limits);
    const Plan plan = with_lists(start.plan, order.schedule);
    if (fits_within(plan.predicted.peak_bytes, capacity))
      return OrderedPlan{plan, std::move(order), start_seconds};
  }
  OptimalSchedule kept;
  kept.schedule = start.lists.schedule;
  kept.cost = kept.start_cost = start.lists.cost;
  kept.start = start.lists.name;
  return {start.plan, std::move(kept), start_seconds};
}

// The plans that the search finds, whose order is left to choose.
std::vector<Plan> plans_to_order(const ModelSpec& model, const HardwareProfile& hw,
                                 int64_t sequence, const SearchOptions& options,
                                 const Progress& progress) {
  std::vector<Plan> plans;
  std::optional<Error> refusal;
  const auto take = [&](const std::optional<Plan>& plan) {
    if (!plan || plan->strategy.parallel.pipeline.stages == 1 || recomputes(plan->strategy)) return;
    for (const int64_t virtual_stages : virtual_stages_of(kOrdered, options.parallel)) {
      if (virtual_stages * plan->strategy.parallel.pipeline.stages > plan->model.layers) continue;
      Plan& added = plans.emplace_back(*plan);
      added.strategy.parallel.pipeline = {.stages = plan->strategy.parallel.pipeline.stages,
                                          .virtual_stages = virtual_stages};
    }
  };
  // The second finds nothing that recomputes.
  for (const char* schedule : {"", "zb-h1"}) {
    SearchOptions own = options;
    omit_front(own);
    own.parallel.slices = 1;
    own.parallel.virtual_stages.reset();
    if (*schedule != 0) own.parallel.schedule = schedule;
    try {
      const SearchResult found = search(model, hw, sequence, own, progress);
      take(found.best);
      take(found.alternative);
    } catch (const Error& e) {
      refusal = e;
    }
  }
  if (plans.empty() && refusal) throw *refusal;
  return plans;
}

}  // namespace

OrderedPlan search_order(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                         const SearchOptions& options, const SolverLimits& limits,
                         const Progress& progress) {
  ParallelChoice choice = options.parallel;
  choice.schedule = "1f1b";  // for checks that hold for any schedule
  check_choice(choice);
  const std::optional<std::string> refusal =
      pipeline_refusal({model, hw, options.parallel, options.microbatches, sequence}, &kOrdered);
  if (refusal) throw bad_input("pipeline: {}", *refusal);
  const TierBytes capacity = limits_of(hw, options);
  std::vector<Start> starts;
  for (const Plan& plan : plans_to_order(model, hw, sequence, options, progress)) {
    if (std::optional<Start> start = start_of(plan, capacity)) starts.push_back(*std::move(start));
  }
  SolverLimits each = limits;
  each.seconds /= static_cast<double>(std::max<size_t>(1, starts.size()));
  std::optional<OrderedPlan> best;
  for (const Start& start : starts) {
    OrderedPlan found = ordered(start, capacity, each);
    if (best && found.plan.predicted.step_seconds >= best->plan.predicted.step_seconds) continue;
    best = std::move(found);
  }
  if (!best) {
    throw no_fit(
        "optpipe: no plan fits that has a pipeline of whole sequences and recomputes nothing");
  }
  return *std::move(best);
}

}  // namespace longspan
