#include "planner/schedule/costs.h"

#include <cmath>

#include "base/error.h"

namespace longspan {
namespace {

template <class T>
const T& by_stage(const std::vector<T>& table, const Schedule& schedule, int32_t stage) {
  return table.size() == 1 ? table[0] : table[stage % schedule.stages];
}

size_t share_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action) {
  const auto slices = static_cast<size_t>(schedule.slices);
  return action.slice + (costs.shares.size() == slices ? 0 : slices * action.micro_batch);
}

void check_number(double value, const char* what) {
  if (!(value >= 0) || !std::isfinite(value)) {
    throw bad_input("the schedule's {} is {}; expected a number, 0 or more", what, value);
  }
}

void check_count(size_t count, int64_t wanted, int64_t or_wanted, const char* what) {
  if (static_cast<int64_t>(count) == wanted || static_cast<int64_t>(count) == or_wanted) return;
  throw bad_input("costs have {} {}, but the schedule has {}; give {} or {}", count, what, wanted,
                  or_wanted, wanted);
}

}  // namespace

const StageTimes& ScheduleCosts::times_of(const Schedule& schedule, int32_t stage) const {
  return by_stage(times, schedule, stage);
}

const StageMemory& ScheduleCosts::memory_of(const Schedule& schedule, int32_t stage) const {
  return by_stage(memory, schedule, stage);
}

ScheduleCosts uniform_costs(int32_t virtual_stages, const StageTimes& rank,
                            const StageMemory& memory, double communication) {
  const auto v = static_cast<double>(virtual_stages);
  StageTimes stage = rank;
  for (double* time : {&stage.forward, &stage.input, &stage.weight, &stage.recompute,
                       &stage.offload, &stage.reload}) {
    *time /= v;
  }
  const StageMemory part{memory.activations / virtual_stages, memory.for_weights / virtual_stages,
                         memory.checkpoint / virtual_stages, memory.offloaded / virtual_stages};
  return {{stage}, {part}, {}, communication};
}

double duration_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action) {
  const StageTimes& t = costs.times_of(schedule, action.stage);
  SliceShare share;
  if (!costs.shares.empty()) {
    share = costs.shares[share_of(schedule, costs, action)];
  } else if (schedule.slices > 1) {
    share.forward = share.input = share.weight = 1.0 / schedule.slices;
  }
  switch (action.kind) {
    case ActionKind::forward:
      return t.forward * share.forward;
    case ActionKind::backward:
      return t.input * share.input + t.weight * share.weight;
    case ActionKind::backward_input:
      return t.input * share.input;
    case ActionKind::backward_weight:
      return t.weight * share.weight;
    case ActionKind::recompute:
      return t.recompute * share.forward;
    case ActionKind::vocabulary_forward:
      return t.vocabulary_forward * share.weight;
    case ActionKind::vocabulary_backward:
      return t.vocabulary_backward * share.weight;
    case ActionKind::offload:
      return t.offload * share.weight;
    case ActionKind::reload:
      return t.reload * share.weight;
    default:
      return 0;  // exchanges run beside the rank's list; what waits for one waits `communication`
  }
}

int64_t slice_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action,
                 int64_t whole) {
  if (schedule.slices == 1) return whole;
  int64_t before = action.slice, own = 1, all = schedule.slices;
  if (!costs.shares.empty()) {
    const size_t first = share_of(schedule, costs, action) - action.slice;
    before = all = 0;
    for (int32_t slice = 0; slice < schedule.slices; ++slice) {
      const int64_t tokens = costs.shares[first + slice].tokens;
      if (slice < action.slice) before += tokens;
      if (slice == action.slice) own = tokens;
      all += tokens;
    }
  }
  // whole * tokens / all, rounded down, without the product of two large numbers.
  const auto up_to = [&](int64_t tokens) {
    return whole / all * tokens + whole % all * tokens / all;
  };
  return up_to(before + own) - up_to(before);
}

void check_costs(const Schedule& schedule, const ScheduleCosts& costs) {
  check_count(costs.times.size(), schedule.stages, 1, "stages' times");
  check_count(costs.memory.size(), schedule.stages, 1, "stages' memory");
  if (!costs.shares.empty()) {
    check_count(costs.shares.size(), schedule.slices,
                int64_t{schedule.micro_batches} * schedule.slices, "slices");
  }
  check_number(costs.communication, "communication time");
  check_number(costs.hidden, "share hidden in overlapped pairs");
  if (costs.hidden > 1) throw bad_input("no more than all (1) can be hidden in overlapped pairs");
  if (costs.ranks_per_channel < 1) throw bad_input("a copy channel serves at least one rank");
  for (const StageTimes& t : costs.times) {
    for (const double time : {t.forward, t.input, t.weight, t.recompute, t.vocabulary_forward,
                              t.vocabulary_backward, t.offload, t.reload}) {
      check_number(time, "time of an action");
    }
  }
  for (const SliceShare& share : costs.shares) {
    for (const double part : {share.forward, share.input, share.weight}) {
      check_number(part, "share of a slice");
    }
    if (share.tokens < 1)
      throw bad_input("a slice has {} tokens; expected 1 or more", share.tokens);
  }
}

}  // namespace longspan
