#include "planner/schedule/families/lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace longspan {

Schedule empty_schedule(const ScheduleRequest& request, int32_t stages) {
  Schedule schedule;
  schedule.stages = stages;
  schedule.microbatches = request.microbatches;
  schedule.slices = request.slices;
  schedule.ranks.resize(request.ranks);
  return schedule;
}

int32_t looped_stage(const ScheduleRequest& request, int32_t rank, int32_t chunk) {
  return chunk * request.ranks + rank;
}

int32_t v_stage(const ScheduleRequest& request, int32_t rank, int32_t chunk) {
  return chunk == 0 ? rank : 2 * request.ranks - 1 - rank;
}

int64_t held_by_microbatch(const ScheduleRequest& request, int32_t chunks, StageOf stage_of) {
  const Schedule schedule = empty_schedule(request, request.ranks * chunks);
  int64_t most = 0;
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    int64_t held = 0;
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      held += request.costs.memory_of(schedule, stage_of(request, rank, chunk)).activations;
    }
    most = std::max(most, held);
  }
  return most;
}

std::string limit_text(double microbatches) {
  constexpr double kExact = 1e-9;  // of a unit of the last digit
  if (!(microbatches > 0)) return "0";
  const double unit = std::pow(10.0, std::floor(std::log10(microbatches)) - 3);
  return fmt::format("{:.4g}", std::ceil(microbatches / unit - kExact) * unit);
}

ScheduleRequest with_limit_in_flight(const ScheduleRequest& request, int32_t chunks) {
  if (request.in_flight == 0) return request;
  constexpr int64_t kParts = 1 << 20;  // of what a microbatch holds on a stage
  ScheduleRequest limited = request;
  limited.memory_limit = int64_t{request.in_flight} * chunks * kParts;
  for (StageMemory& memory : limited.costs.memory) {
    const double for_weights = static_cast<double>(memory.for_weights) /
                               static_cast<double>(std::max<int64_t>(1, memory.activations));
    memory = {.activations = kParts,
              .for_weights = std::llround(std::min(1.0, for_weights) * kParts),
              .offloaded = kParts};
  }
  return limited;
}

ActionList in_order(const ScheduleRequest& request, ActionKind kind, int32_t stage) {
  const bool forward = kind == ActionKind::forward;
  ActionList list;
  list.reserve(int64_t{request.microbatches} * request.slices);
  for (int32_t m = 0; m < request.microbatches; ++m) {
    for (int32_t i = 0; i < request.slices; ++i) {
      list.push_back({kind, stage, m, forward ? i : request.slices - 1 - i});
    }
  }
  return list;
}

ActionList in_turns(std::span<const ActionList> lists, int32_t group) {
  ActionList merged;
  const auto count = static_cast<int64_t>(lists[0].size());
  merged.reserve(count * lists.size());
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t end = std::min(begin + group, count);
    for (const ActionList& list : lists) {
      merged.insert(merged.end(), list.begin() + begin, list.begin() + end);
    }
  }
  return merged;
}

int32_t equal_groups(std::string_view family, int32_t microbatches, int32_t least) {
  const int32_t groups = std::max(1, microbatches / least);
  if (microbatches % groups == 0) return microbatches / groups;
  throw bad_input("{} cannot deal {} microbatches to {} equal groups; try a multiple of {}", family,
                  microbatches, groups, least);
}

ActionList one_and_one(std::span<const Action> forwards, std::span<const Action> backwards,
                       int64_t warm_up) {
  const size_t first = std::min<size_t>(warm_up, forwards.size());
  ActionList list(forwards.begin(), forwards.begin() + first);
  list.reserve(2 * forwards.size());
  size_t backward = 0;
  for (size_t forward = first; forward < forwards.size(); ++forward) {
    list.push_back(forwards[forward]);
    list.push_back(backwards[backward++]);
  }
  list.insert(list.end(), backwards.begin() + backward, backwards.end());
  return list;
}

ActionList looped_one_and_one(const ScheduleRequest& request, int32_t rank, int32_t group,
                              int64_t ahead) {
  const int32_t v = request.virtual_stages;
  std::vector<ActionList> forwards, backwards;
  for (int32_t chunk = 0; chunk < v; ++chunk) {
    forwards.push_back(in_order(request, ActionKind::forward, looped_stage(request, rank, chunk)));
    backwards.push_back(
        in_order(request, ActionKind::backward, looped_stage(request, rank, v - 1 - chunk)));
  }
  return one_and_one(in_turns(forwards, group), in_turns(backwards, group),
                     int64_t{v - 1} * group + ahead);
}

ActionList with_delayed_weights(const ActionList& list, int32_t delay) {
  ActionList split, weights;
  split.reserve(2 * list.size());
  size_t done = 0;
  for (Action action : list) {
    if (action.kind != ActionKind::backward) {
      split.push_back(action);
      continue;
    }
    action.kind = ActionKind::backward_input;
    split.push_back(action);
    action.kind = ActionKind::backward_weight;
    weights.push_back(action);
    if (weights.size() > done + delay) split.push_back(weights[done++]);
  }
  split.insert(split.end(), weights.begin() + done, weights.end());
  return split;
}

void recompute(Schedule& schedule, const std::function<bool(const Action& backward)>& again) {
  for (ActionList& list : schedule.ranks) {
    ActionList recomputed;
    recomputed.reserve(list.size() + list.size() / 2);
    for (const Action& a : list) {
      const bool first = a.kind == ActionKind::backward || a.kind == ActionKind::backward_input;
      if (first && again(a)) {
        recomputed.push_back(a);
        recomputed.back().kind = ActionKind::recompute;
      }
      recomputed.push_back(a);
    }
    list = std::move(recomputed);
  }
}

}  // namespace longspan
