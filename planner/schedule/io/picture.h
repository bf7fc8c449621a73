// Pictures of a timed schedule: a line for each rank, time from left to right.
//
// Actions of a rank's later stages are told from those of its first by small letters in text and by
// darker fields in drawings. Pure functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>

#include "planner/schedule/timing.h"

namespace longspan {

/// Lines of `width` characters or less: "F0" and its microbatch where an action is wide enough, its
/// letter alone where not, the rest of it filled with "=" (F), "#" (B), "+" (I), "-" (W), ":" for
/// what else computes; "." idles. REQUIRES: width >= 12.
std::string text_picture(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing, int32_t width);

/// An SVG document with a legend. `title` stands above it.
std::string svg_picture(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleTiming& timing, std::string_view title);

}  // namespace longspan
