// Writes timelines as a Perfetto (Chrome JSON) trace with one group of tracks per rank. Predicted
// and measured timelines of a program give the same tracks: one per stream, memory counters per
// tier, and in a pipeline the actions of the rank's list and its messages.
#pragma once

#include <span>
#include <string>

#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// One rank's part of a trace, as JSON text. `name` names the track group ("predicted", "measured
/// rank 1"), `rank`, of the world, is its process id. Messages between stages are arrows. Spans on
/// a track never overlap; memory counters follow the program's lifetimes.
std::string trace_events(const Program& program, const Timeline& timeline, const std::string& name,
                         int rank = 0);

/// A span of a trace, in microseconds.
struct TraceSpan {
  double start = 0, duration = 0;
};
/// A span from `start` to `end` in seconds. Both are rounded to the file's resolution before the
/// duration is computed, so adjacent spans stay adjacent and never overlap.
TraceSpan trace_span(double start, double end);

/// The whole trace, from trace_events() of the ranks.
std::string trace_document(std::span<const std::string> parts);

}  // namespace longspan
