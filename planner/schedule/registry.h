// All families of schedules, by name: what each needs, and where its definition comes from.
//
// Code that lists, compares or searches schedules reads this table; nothing else knows their names.
#pragma once

#include <span>
#include <string_view>

#include "planner/schedule/request.h"

namespace longspan {

struct ScheduleFamily {
  std::string_view name;
  std::string_view summary;  ///< one line
  std::string_view source;   ///< of the definition
  int32_t least_virtual_stages = 1;
  int32_t most_virtual_stages = 1;  ///< 0: as many as wanted
  bool sliced = false;              ///< takes more than one slice
  bool uneven_slices = false;       ///< sequences may be cut by work, not by tokens alone
  bool grouped = false;             ///< takes ScheduleRequest::group
  /// Attention is a stage of its own; costs are attention_apart_costs().
  bool attention_apart = false;
  bool takes_memory_limit = false;  ///< arranges itself under ScheduleRequest::memory_limit
  bool cuts_vocabulary = false;     ///< all ranks have a share of embedding and output layer
  /// Whether plans may name it: not where it offloads or recomputes by itself, waits for messages
  /// in groups, copies the model, or has parts of a layer on several ranks.
  bool plannable = true;
  /// Ranks that are at slices of one sequence share their attention out among them
  /// (planner/pipeline/attention_exchange.h).
  bool exchanges_attention = false;
  bool dominated = false;  ///< another is as fast in less memory: for those who ask for it
  /// Throws bad_input where there is no such schedule, with the numbers for which there is.
  Schedule (*generate)(const ScheduleRequest& request) = nullptr;
};

/// In the order in which people came to them.
std::span<const ScheduleFamily> schedule_families();

/// Null for a name that there is none of.
const ScheduleFamily* find_schedule_family(std::string_view name);
/// Throws bad_input naming the nearest for a name that there is none of, and for one that a solver
/// makes (solver/solved_families.h).
const ScheduleFamily& schedule_family(std::string_view name);

/// Whether ranks may have this number of stages each.
bool takes_virtual_stages(const ScheduleFamily& family, int64_t count);

/// The family's schedule for `request`. Throws bad_input for numbers that the family does not take.
Schedule make_schedule(const ScheduleFamily& family, const ScheduleRequest& request);

}  // namespace longspan
