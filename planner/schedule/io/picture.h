// Pictures of a timed schedule: a line per rank, time from left to right, and a legend.
//
// Passes are drawn one by one if they are wide enough to be told apart. If not, repetitions are
// drawn as blocks (picture_rows.h). Labels of passes are drawn for all of them or for none. Pure
// functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>

#include "planner/schedule/timing.h"

namespace longspan {

/// Lines of at most `width` characters. A pass is "F0" with its microbatch if all passes have room,
/// else its letter, filled up with "=" (F), "#" (B), "+" (I), "-" (W) or ":" (other passes); later
/// stages of a rank have small letters. In blocks the letters of what is repeated take turns. "."
/// is idle time; each line of at least 60 characters ends with the rank's share of it. Copies to
/// the host and back are not shown. REQUIRES: width >= 20.
std::string text_picture(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing, int32_t width);

/// An SVG document of 1000 units' width. `title` stands above it, `time_axis` says what is on the
/// axis of time and its unit. Shades tell the stages of a rank apart; copies have lanes below their
/// rank. The heights in a block are shares of its time.
std::string svg_picture(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleTiming& timing, std::string_view title,
                        std::string_view time_axis);

}  // namespace longspan
