#include "planner/schedule/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/slice_split.h"

namespace longspan {
namespace {

// The parts of a microbatch's memory on a rank; a stage and a slice have whole numbers of them.
int64_t parts_of(const ScheduleRequest& request) {
  return kMicrobatchUnits * request.virtual_stages * request.slices;
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

// The share task.attention of a forward is in proportion to pairs of query and key, the rest to
// tokens.
std::vector<SliceShare> shares_of(const PipelineTask& task, int32_t slices) {
  const int64_t tokens = task.sequence_tokens;
  if (tokens < 1) {
    throw bad_input("where to cut depends on the length of a sequence; say how many tokens it has");
  }
  constexpr double kWhole = 1000;
  const TokenCost cost{checked_mul(tokens, std::llround(kWhole * (1 - task.attention)), "work"),
                       std::llround(2 * kWhole * task.attention)};
  const std::vector<int64_t> lengths = task.split == SliceSplit::equal_tokens
                                           ? equal_token_slices(tokens, slices, 1)
                                           : equal_time_slices(tokens, slices, 1, cost);
  return slice_shares(lengths, cost);
}

// Whether the kind passes on activations or their gradients.
bool passes_on(ActionKind kind) {
  return kind <= ActionKind::backward_input || kind == ActionKind::send_forward ||
         kind == ActionKind::send_backward;
}

double messages_of(const TimedSchedule& timed) {
  constexpr double kToAttention = 4, kFromAttention = 2;
  const bool apart = timed.family->attention_apart;
  double sum = 0;
  for (size_t i = 0; i < timed.linked.actions.size(); ++i) {
    const Action& a = timed.linked.actions[i];
    if (!is_compute(a.kind)) continue;
    for (const Wait& wait : timed.linked.waits_of(static_cast<int32_t>(i))) {
      const Action& from = timed.linked.actions[wait.action];
      // S passes on only a few numbers per token.
      if (!wait.delayed || !passes_on(from.kind) || from.stage == a.stage) continue;
      const bool to_attention = std::max(a.stage, from.stage) % 2 == 1;
      const double size = !apart ? 1 : to_attention ? kToAttention : kFromAttention;
      sum += size / a.ways / from.ways;
    }
  }
  return sum / timed.schedule.slices / static_cast<double>(timed.schedule.ranks.size());
}

}  // namespace

double TimedSchedule::microbatches_held(int32_t rank) const {
  return static_cast<double>(timing.ranks[rank].peak_memory) /
         static_cast<double>(parts_of(request));
}

double TimedSchedule::most_microbatches_held() const {
  return static_cast<double>(timing.peak_memory()) / static_cast<double>(parts_of(request));
}

int64_t limit_in_parts(double microbatches, double parts) {
  if (microbatches <= 0) return 0;
  return std::llround(std::clamp(microbatches * parts, 1.0, 1e18));
}

ScheduleRequest request_of(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice) {
  if (!(task.kept_for_weights >= 0 && task.kept_for_weights <= 1)) {
    throw bad_input("a part of activations is between 0 and 1; got {}", task.kept_for_weights);
  }
  if (!(task.attention >= 0 && task.attention <= 1)) {
    throw bad_input("attention's part of a forward is between 0 and 1; got {}", task.attention);
  }
  ScheduleRequest r;
  r.ranks = task.ranks;
  r.microbatches = task.microbatches;
  r.virtual_stages =
      choice.virtual_stages > 0 ? choice.virtual_stages : family.least_virtual_stages;
  r.slices = choice.slices > 0 ? choice.slices : family.sliced ? task.ranks : 1;
  r.group = choice.group;
  const auto whole = static_cast<double>(parts_of(r));
  const StageMemory memory{.activations = parts_of(r),
                           .for_weights = std::llround(whole * task.kept_for_weights),
                           .offloaded = parts_of(r)};
  r.costs = family.attention_apart
                ? attention_apart_costs(r.ranks, r.virtual_stages, task.times, memory,
                                        task.communication, task.attention)
                : uniform_costs(r.virtual_stages, task.times, memory, task.communication);
  r.costs.hidden = task.hidden;
  if (r.slices > 1 && task.split != SliceSplit::equal_times) {
    r.costs.shares = shares_of(task, r.slices);
  }
  r.memory_limit = limit_in_parts(task.memory_limit, whole);
  return r;
}

namespace {

// More actions take a second or longer to simulate.
constexpr size_t kMostActionsCompared = 1'000'000;

size_t actions_of(const Schedule& schedule) {
  size_t count = 0;
  for (const std::vector<Action>& list : schedule.ranks) count += list.size();
  return count;
}

// The least number of actions: a forward and a backward of every slice on every stage.
size_t least_actions_of(const ScheduleRequest& r) {
  return size_t{2} * static_cast<size_t>(r.ranks) * static_cast<size_t>(r.virtual_stages) *
         static_cast<size_t>(r.microbatches) * static_cast<size_t>(r.slices);
}

void check_few(size_t actions) {
  if (actions <= kMostActionsCompared) return;
  throw bad_input("{} actions are too many to compare with others; ask for it by name",
                  grouped(static_cast<int64_t>(actions)));
}

// The schedule without its times.
TimedSchedule untimed(const ScheduleFamily& family, ScheduleRequest request, Schedule schedule) {
  TimedSchedule timed;
  timed.family = &family;
  timed.request = std::move(request);
  timed.schedule = std::move(schedule);
  return timed;
}

TimedSchedule untimed(const ScheduleFamily& family, const PipelineTask& task,
                      const ScheduleChoice& choice) {
  ScheduleRequest request = request_of(family, task, choice);
  Schedule schedule = make_schedule(family, request);
  return untimed(family, std::move(request), std::move(schedule));
}

void time(TimedSchedule& timed) {
  const ScheduleRequest& r = timed.request;
  timed.linked = link(timed.schedule);
  timed.timing = simulate(timed.schedule, timed.linked, r.costs);
  timed.messages = messages_of(timed);
  if (r.memory_limit > 0 && timed.timing.peak_memory() > r.memory_limit) {
    throw no_fit("{} of {} holds {} microbatches at its peak; the limit is {:.4g}",
                 timed.family->name, counted(r.ranks, "rank", "ranks"),
                 limit_text(timed.most_microbatches_held()),
                 static_cast<double>(r.memory_limit) / static_cast<double>(parts_of(r)));
  }
}

}  // namespace

TimedSchedule timed_answer(const ScheduleFamily& family, ScheduleRequest request,
                           Schedule schedule) {
  TimedSchedule timed = untimed(family, std::move(request), std::move(schedule));
  time(timed);
  return timed;
}

TimedSchedule time_schedule(const ScheduleFamily& family, const PipelineTask& task,
                            const ScheduleChoice& choice) {
  TimedSchedule timed = untimed(family, task, choice);
  time(timed);
  return timed;
}

std::vector<Compared> compare_schedules(const PipelineTask& task, const Progress& progress) {
  std::vector<Compared> all;
  const auto families = static_cast<int64_t>(schedule_families().size());
  for (const ScheduleFamily& family : schedule_families()) {
    if (progress) progress(static_cast<int64_t>(all.size()), families);
    Compared best;
    best.family = &family;
    for (const ScheduleChoice& choice : choices_of(family, task.ranks)) {
      try {
        // Lists can be longer than this minimum; if the minimum is too long, they are not
        // generated.
        check_few(least_actions_of(request_of(family, task, choice)));
        TimedSchedule timed = untimed(family, task, choice);
        check_few(actions_of(timed.schedule));
        time(timed);
        if (best.cost > 0 && timed.timing.cost >= best.cost) continue;
        best = {&family,
                choice,
                timed.timing.cost,
                timed.timing.bubble_rate,
                timed.most_microbatches_held(),
                timed.messages,
                {}};
      } catch (const Error& e) {
        if (best.cost == 0) best.refusal = e.what();
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
