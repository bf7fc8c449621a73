#include "planner/schedule/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

// Parts that a microbatch's memory on a rank is counted in, of each stage and slice.
constexpr int64_t kParts = 10000;

int64_t parts_of(const ScheduleRequest& request) {
  return kParts * request.virtual_stages * request.slices;
}

std::vector<ScheduleChoice> choices_of(const ScheduleFamily& family, int32_t ranks) {
  std::vector<int32_t> stages = {family.least_virtual_stages}, slices = {1}, groups = {0};
  if (family.most_virtual_stages == 0) stages = {2, 4};
  if (family.sliced) slices = {2, 4, 8, ranks};
  if (family.grouped && family.most_virtual_stages == 1) groups = {2, 3, 4};
  std::vector<ScheduleChoice> choices;
  for (const int32_t v : stages) {
    for (const int32_t s : slices) {
      for (const int32_t group : groups) choices.push_back({v, s, group});
    }
  }
  return choices;
}

// F, B, I: what passes activations or their gradients on.
constexpr ActionKind kLastOfStages = ActionKind::backward_input;

double messages_of(const TimedSchedule& timed) {
  int64_t count = 0;
  for (size_t i = 0; i < timed.linked.actions.size(); ++i) {
    if (!is_compute(timed.linked.actions[i].kind)) continue;
    for (const Wait& wait : timed.linked.waits_of(static_cast<int32_t>(i))) {
      // What S passes on are a few numbers per token.
      count += wait.delayed && timed.linked.actions[wait.action].kind <= kLastOfStages;
    }
  }
  return static_cast<double>(count) / timed.schedule.slices /
         static_cast<double>(timed.schedule.ranks.size());
}

}  // namespace

double TimedSchedule::microbatches_held(int32_t rank) const {
  return static_cast<double>(timing.ranks[rank].peak_memory) /
         static_cast<double>(parts_of(request));
}

double TimedSchedule::most_microbatches_held() const {
  return static_cast<double>(timing.peak_memory()) / static_cast<double>(parts_of(request));
}

ScheduleRequest request_of(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice) {
  if (!(task.kept_for_weights >= 0 && task.kept_for_weights <= 1)) {
    throw bad_input("a part of activations is between 0 and 1; got {}", task.kept_for_weights);
  }
  ScheduleRequest r;
  r.ranks = task.ranks;
  r.micro_batches = task.micro_batches;
  r.virtual_stages =
      choice.virtual_stages > 0 ? choice.virtual_stages : family.least_virtual_stages;
  r.slices = choice.slices > 0 ? choice.slices : family.sliced ? task.ranks : 1;
  r.group = choice.group;
  const auto whole = static_cast<double>(parts_of(r));
  r.costs = uniform_costs(r.virtual_stages, task.times,
                          {.activations = parts_of(r),
                           .for_weights = std::llround(whole * task.kept_for_weights),
                           .offloaded = parts_of(r)},
                          task.communication);
  r.costs.hidden = task.hidden;
  r.memory_limit = std::llround(whole * task.memory_limit);
  return r;
}

TimedSchedule timed_answer(const ScheduleFamily& family, ScheduleRequest request,
                           Schedule schedule) {
  TimedSchedule timed;
  timed.family = &family;
  timed.request = std::move(request);
  timed.schedule = std::move(schedule);
  const ScheduleRequest& r = timed.request;
  timed.linked = link(timed.schedule);
  timed.timing = simulate(timed.schedule, timed.linked, r.costs);
  timed.messages = messages_of(timed);
  if (r.memory_limit > 0 && timed.timing.peak_memory() > r.memory_limit) {
    throw no_fit("{} of {} ranks holds {:.4g} microbatches at its peak; the limit is {:.4g}",
                 family.name, r.ranks, timed.most_microbatches_held(),
                 static_cast<double>(r.memory_limit) / static_cast<double>(parts_of(r)));
  }
  return timed;
}

TimedSchedule time_schedule(const ScheduleFamily& family, const PipelineTask& task,
                            const ScheduleChoice& choice) {
  ScheduleRequest request = request_of(family, task, choice);
  Schedule schedule = make_schedule(family, request);
  return timed_answer(family, std::move(request), std::move(schedule));
}

std::vector<Compared> compare_schedules(const PipelineTask& task) {
  std::vector<Compared> all;
  for (const ScheduleFamily& family : schedule_families()) {
    Compared best;
    best.family = &family;
    for (const ScheduleChoice& choice : choices_of(family, task.ranks)) {
      try {
        const TimedSchedule timed = time_schedule(family, task, choice);
        if (best.cost > 0 && timed.timing.cost >= best.cost) continue;
        best = {&family,
                choice,
                timed.timing.cost,
                timed.timing.bubble_rate,
                timed.most_microbatches_held(),
                timed.messages,
                {}};
      } catch (const Error& e) {
        if (best.cost == 0 && best.refusal.empty()) best.refusal = e.what();
      }
    }
    all.push_back(std::move(best));
  }
  std::stable_sort(all.begin(), all.end(), [](const Compared& a, const Compared& b) {
    if (a.refusal.empty() != b.refusal.empty()) return a.refusal.empty();
    return a.cost < b.cost;
  });
  return all;
}

}  // namespace longspan
