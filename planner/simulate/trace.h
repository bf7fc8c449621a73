// A timeline as a Perfetto (Chrome JSON) trace. Predicted and measured timelines of one program
// give the same tracks: one per stream (compute, h2d, d2h, io, host), and memory counters per tier.
#pragma once

#include <string>

#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// The trace as JSON text. `process` names the track group ("predicted", "measured"), `rank` is its
/// process id. Spans on a track never overlap; memory counters follow the program's lifetimes.
std::string perfetto_trace(const Program& program, const Timeline& timeline,
                           const std::string& process, int rank = 0);

}  // namespace longspan
