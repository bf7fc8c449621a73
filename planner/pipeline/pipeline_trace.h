// Writes a pipeline's step as a Perfetto (Chrome JSON) trace: one track per rank, one span per
// action of its list; copies to the host and back have tracks of their own. Pure functions.
#pragma once

#include <string>

#include "planner/pipeline/pipeline_step.h"

namespace longspan {

/// The whole trace. Actions that run as one are one span. The last reductions and the update, after
/// the schedule's end, are a separate span on every rank.
std::string pipeline_trace(const PipelineStep& step);

}  // namespace longspan
