// Determines which flags of `longspan schedule` have an effect for the schedule that it shows, and
// refuses the others.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/arguments.h"
#include "planner/schedule/registry.h"

namespace longspan::cli {

/// The subject of a verb of `schedule`.
enum class ScheduleAsked { list, compare, measured, file, family, optpipe, adaptis };

/// The subject of `schedule show NAME`: a file, a family or a solver's schedule. Throws bad_input
/// for a name that is not one of these, and for a file whose name does not end in .csv.
ScheduleAsked schedule_shown(const std::string& name);

/// Returns whether one of `asked` accepts the flag.
bool takes_flag(std::string_view flag, std::initializer_list<ScheduleAsked> asked);

/// A flag and its option.
using ScheduleFlag = std::pair<std::string, Option>;

/// The names of the flags that the arguments contain.
std::vector<std::string> given_flags(std::span<const ScheduleFlag> flags);

/// Throws bad_input for a flag that has no effect for any schedule of that kind.
void check_flags(ScheduleAsked asked, const std::string& name, std::span<const std::string> given);

/// Throws bad_input for a flag about actions that `schedule` (of a family or a file) does not have.
void check_flags_of(const Schedule& schedule, const ScheduleFamily& family,
                    std::span<const std::string> given);

}  // namespace longspan::cli
