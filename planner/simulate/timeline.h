// The times of all ops of a step.
//
// The simulator fills it with predictions, the engine with measurements; tables, traces and
// comparisons read it. A plain value.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/program.h"

namespace longspan {

struct Span {
  double start = 0;  // seconds from the beginning of the step
  double end = 0;
};

struct Timeline {
  double step_seconds = 0;
  std::vector<Span> spans;                          // per op of the program, or empty
  std::array<double, kStreamCount> busy_seconds{};  // per stream
  std::array<int64_t, kTierCount> peak_bytes{};     // arena bytes in use at the peak
};

/// Seconds per op kind summed over a timeline's spans. REQUIRES: the spans are those of `program`.
std::array<double, kOpKindCount> seconds_by_kind(const Program& program, const Timeline& timeline);

/// By action of the program: from the start of its first compute op to the end of its last. An
/// action without one ends before it starts. REQUIRES: the spans are those of `program`.
std::vector<Span> spans_of_actions(const Program& program, const Timeline& timeline);

/// The time of a rank of a pipeline in forwards and backwards: from the first compute op of each to
/// its last, without the time in which compute waits there while a message has not arrived.
/// REQUIRES: the spans are those of `program`.
double seconds_in_passes(const Program& program, const Timeline& timeline);

/// Seconds of copies during which compute ran, summed over the streams h2d, d2h and io: copies at
/// the same time count once each.
double overlapped_copy_seconds(const Program& program, const Timeline& timeline);

}  // namespace longspan
