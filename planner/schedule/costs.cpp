#include "planner/schedule/costs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "planner/schedule/attention_shares.h"

namespace longspan {
namespace {

template <class T>
const T& by_stage(const std::vector<T>& table, const Schedule& schedule, int32_t stage) {
  return table.size() == 1 ? table[0] : table[stage % schedule.stages];
}

size_t place_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action) {
  const auto slices = static_cast<size_t>(schedule.slices);
  if (costs.sharing_ranks > 0) {
    const int32_t ranks = costs.sharing_ranks;
    const int32_t row = action.stage % ranks + (meets_few(schedule, action, ranks) ? ranks : 0);
    return action.slice + slices * static_cast<size_t>(row);
  }
  return action.slice + (costs.shares.size() == slices ? 0 : slices * action.microbatch);
}

SliceShare share_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action) {
  if (!costs.shares.empty()) return costs.shares[place_of(schedule, costs, action)];
  const double part = 1.0 / schedule.slices;
  return {part, part, part};
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
  ScheduleCosts costs;
  costs.times = {stage};
  costs.memory = {part};
  costs.communication = communication;
  return costs;
}

ScheduleCosts attention_apart_costs(int32_t ranks, int32_t layers, const StageTimes& rank,
                                    const StageMemory& memory, double communication,
                                    double attention) {
  constexpr double kTimeBefore = 3.0 / 12;
  constexpr int64_t kMemoryBefore = 4, kMemoryOfAttention = 6, kMemoryOfAll = 34;
  const ScheduleCosts layer = uniform_costs(layers, rank, memory, communication);
  const StageTimes& whole = layer.times[0];
  const StageMemory& held = layer.memory[0];
  const double in_gradients = 2 * attention / (1 + attention);
  const auto times = [&](double linear, double attended) {
    StageTimes t;
    t.forward = whole.forward * (linear * (1 - attention) + attended * attention);
    t.recompute = whole.recompute * (linear * (1 - attention) + attended * attention);
    t.input = whole.input * (linear * (1 - in_gradients) + attended * in_gradients);
    t.weight = whole.weight * linear;
    return t;
  };
  const int64_t before = held.activations * kMemoryBefore / kMemoryOfAll;
  const int64_t attended = held.activations * kMemoryOfAttention / kMemoryOfAll;
  const int64_t behind = held.activations - before - attended;
  const auto memory_of = [](int64_t kept) { return StageMemory{kept, kept}; };
  ScheduleCosts costs = layer;
  costs.times = {times(kTimeBefore, 0)};
  costs.memory = {memory_of(before)};
  for (int32_t i = 1; i <= ranks * layers; ++i) {
    const bool last = i == ranks * layers;
    costs.times.push_back(times(0, 1));
    costs.memory.push_back(memory_of(attended));
    costs.times.push_back(times(last ? 1 - kTimeBefore : 1, 0));
    costs.memory.push_back(memory_of(last ? behind : behind + before));
  }
  return costs;
}

double ScheduleCosts::message(const Action& from, const Action& to) const {
  const bool shares = of_vocabulary(from.kind) || of_vocabulary(to.kind);
  if (!shares || !vocabulary_messages) return message(from.stage, to.stage);
  if (from.kind != ActionKind::vocabulary_forward) return vocabulary_messages->hidden;
  return of_vocabulary(to.kind) ? vocabulary_messages->terms : vocabulary_messages->gradient;
}

std::vector<double> shares_that_forwards_hide(const Schedule& schedule,
                                              const ScheduleCosts& costs) {
  check_costs(schedule, costs);
  std::vector<double> shares;
  for (int32_t stage = 0; stage < schedule.all_stages(); ++stage) {
    for (int32_t microbatch = 0; microbatch < schedule.microbatches; ++microbatch) {
      for (int32_t slice = 0; slice < schedule.slices; ++slice) {
        const Action own{ActionKind::offload, stage, microbatch, slice};
        Action next{ActionKind::forward, stage, microbatch, slice + 1};
        if (next.slice == schedule.slices) {
          next.slice = 0;
          next.microbatch = std::min(microbatch + 1, schedule.microbatches - 1);
        }
        const double whole =
            costs.times_of(schedule, stage).offload * share_of(schedule, costs, own).weight;
        const double hidden = duration_of(schedule, costs, next);
        shares.push_back(hidden >= whole ? 1 : hidden / whole);
      }
    }
  }
  return shares;
}

double duration_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action) {
  if (action.ways > 1) {
    Action whole = action;
    whole.ways = 1;
    return duration_of(schedule, costs, whole) / action.ways;
  }
  const StageTimes& t = costs.times_of(schedule, action.stage);
  const SliceShare share = share_of(schedule, costs, action);
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
    case ActionKind::embedding_forward:
      return t.embedding_forward * share.weight;
    case ActionKind::embedding_backward:
      return t.embedding_backward * share.weight;
    case ActionKind::offload:
      return t.offload * share.weight * schedule.offloaded_share(action);
    case ActionKind::reload:
      return t.reload * share.weight * schedule.offloaded_share(action);
    default:
      return 0;  // exchanges do not occupy the rank; their dependents wait `communication`
  }
}

int64_t slice_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action,
                 int64_t whole) {
  if (action.ways > 1) {
    Action all = action;
    all.ways = 1;
    return (slice_of(schedule, costs, all, whole) + action.ways - 1) / action.ways;
  }
  if (schedule.slices == 1) return whole;
  int64_t before = action.slice, own = 1, all = schedule.slices;
  if (!costs.shares.empty()) {
    const size_t first = place_of(schedule, costs, action) - action.slice;
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
  if (costs.sharing_ranks < 0) throw bad_input("slices cannot be shared by fewer ranks than none");
  if (!costs.shares.empty()) {
    const bool by_rank = costs.sharing_ranks > 0;
    const int64_t rows = by_rank ? 2 * int64_t{costs.sharing_ranks} : schedule.microbatches;
    check_count(costs.shares.size(), by_rank ? rows * schedule.slices : schedule.slices,
                rows * schedule.slices, "slices");
  }
  check_number(costs.communication, "communication time");
  if (!costs.messages.empty()) {
    check_count(costs.messages.size(), schedule.all_stages(), schedule.all_stages(), "messages");
    for (const double message : costs.messages) check_number(message, "communication time");
  }
  check_number(costs.sending, "time that sending stops a rank");
  check_number(costs.hidden, "share hidden in overlapped pairs");
  if (costs.hidden > 1) throw bad_input("no more than all (1) can be hidden in overlapped pairs");
  if (costs.ranks_per_channel < 1) throw bad_input("a copy channel serves at least one rank");
  for (const StageTimes& t : costs.times) {
    for (const double time :
         {t.forward, t.input, t.weight, t.recompute, t.vocabulary_forward, t.vocabulary_backward,
          t.embedding_forward, t.embedding_backward, t.offload, t.reload}) {
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
