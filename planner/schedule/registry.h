// The table of all families of schedules: name, parameters, and source of the definition.
//
// Code that lists, compares or searches schedules reads this table; no other code has their names.
#pragma once

#include <span>
#include <string_view>

#include "planner/schedule/request.h"

namespace longspan {

struct ScheduleFamily {
  std::string_view name;
  std::string_view summary;  ///< one line
  std::string_view source;   ///< source of the definition
  int32_t least_virtual_stages = 1;
  int32_t most_virtual_stages = 1;  ///< 0: unlimited
  bool sliced = false;              ///< supports more than one slice
  bool uneven_slices = false;       ///< slices may have equal work instead of equal tokens
  bool grouped = false;             ///< uses ScheduleRequest::group
  /// Attention is a stage of its own; costs are attention_apart_costs().
  bool attention_apart = false;
  bool takes_memory_limit = false;  ///< adapts to ScheduleRequest::memory_limit
  bool cuts_vocabulary = false;     ///< embedding and output layer are cut over all ranks
  bool gradient_in_t = false;       ///< and T computes the gradient of the output, not S
  bool offloads = false;            ///< its lists copy what forwards save to the host and back
  bool recomputes = false;          ///< its lists repeat forwards before their backward
  bool splits_backward = false;     ///< gradients of weights are actions of their own
  /// Whether plans may use it. False if it copies the model, or has parts of a layer on several
  /// ranks.
  bool plannable = true;
  /// Ranks working on slices of the same sequence divide their attention among them
  /// (planner/pipeline/attention_exchange.h).
  bool exchanges_attention = false;
  /// Only on request: another family is mostly as fast in less memory, or with the knobs of a plan,
  /// which offload and recompute tensor by tensor.
  bool dominated = false;
  /// Throws bad_input if the family has no schedule for the request, naming the numbers that it
  /// supports.
  Schedule (*generate)(const ScheduleRequest& request) = nullptr;
};

/// All families, roughly in the order of their publication.
std::span<const ScheduleFamily> schedule_families();

/// Returns null for an unknown name.
const ScheduleFamily* find_schedule_family(std::string_view name);
/// Throws bad_input for an unknown name, with the nearest known one, and for a family that a solver
/// makes (solver/solved_families.h).
const ScheduleFamily& schedule_family(std::string_view name);

/// Whether the family supports `count` stages on each rank.
bool takes_virtual_stages(const ScheduleFamily& family, int64_t count);

/// The family's schedule for `request`. Throws bad_input for unsupported numbers.
Schedule make_schedule(const ScheduleFamily& family, const ScheduleRequest& request);

}  // namespace longspan
