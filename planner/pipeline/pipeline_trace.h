// A pipeline's step as a Perfetto (Chrome JSON) trace: one track per rank, a span for every action
// of its list. Pure functions.
#pragma once

#include <string>

#include "planner/pipeline/pipeline_step.h"

namespace longspan {

/// The whole trace. Actions that run as one are one span. What comes behind the schedule's end (the
/// last reductions and the update) is a span of its own on every rank.
std::string pipeline_trace(const PipelineStep& step);

}  // namespace longspan
