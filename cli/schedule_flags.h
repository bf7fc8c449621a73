// Which flags of `longspan schedule` mean something for what it is asked to show. What would be
// passed over in silence is refused.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/arguments.h"
#include "planner/schedule/registry.h"

namespace longspan::cli {

/// What the verb's first word names.
enum class ScheduleAsked { list, compare, measured, file, family, optpipe, adaptis };

/// Throws bad_input for a name that is none of these, and for a file whose name says that it is no
/// CSV.
ScheduleAsked schedule_asked(const std::string& name);

/// A flag and its option.
using ScheduleFlag = std::pair<std::string, Option>;

/// The names of the flags that the arguments contain.
std::vector<std::string> given_flags(std::span<const ScheduleFlag> flags);

/// Throws bad_input for a flag that means nothing for any schedule of that kind.
void check_flags(ScheduleAsked asked, const std::string& name, std::span<const std::string> given);

/// Throws bad_input for a flag about actions that `schedule`, of one family or of a file, has none
/// of.
void check_flags_of(const Schedule& schedule, const ScheduleFamily& family,
                    std::span<const std::string> given);

}  // namespace longspan::cli
