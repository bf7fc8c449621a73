// Pictures of a timed schedule: a line per rank, time from left to right.
//
// Actions of a rank's later stages have small letters in text and darker fields in drawings. Pure
// functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>

#include "planner/schedule/timing.h"

namespace longspan {

/// Lines of at most `width` characters. An action is "F0" with its microbatch if wide enough, else
/// its letter alone, filled up with "=" (F), "#" (B), "+" (I), "-" (W) or ":" (other computation);
/// "." is idle time. REQUIRES: width >= 12.
std::string text_picture(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing, int32_t width);

/// An SVG document with a legend. `title` stands above it.
std::string svg_picture(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleTiming& timing, std::string_view title);

}  // namespace longspan
