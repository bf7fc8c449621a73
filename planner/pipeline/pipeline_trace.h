// Writes a pipeline's step as a Perfetto (Chrome JSON) trace. Pure functions; safe from any thread.
#pragma once

#include <string>

#include "planner/pipeline/pipeline_step.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// The predicted times of all ops of a rank: those of its program alone, stretched so that every
/// action begins and ends as in the step's schedule. A receive takes until the action that needs it
/// begins. REQUIRES: `program` is of a rank of mesh `mesh`.
Timeline rank_timeline(const PipelineStep& step, int64_t mesh, const Program& program,
                       const CostModel& cost);

/// Whether the step has a trace op by op: its lists can be lowered, and are small enough to hold.
bool has_op_trace(const StepRequest& request, const Schedule& schedule);

/// The trace op by op: the tracks of trace_events() for the first rank of every mesh, with messages
/// as arrows. REQUIRES: has_op_trace(); `step` is evaluate_pipeline() of `request`.
std::string op_trace(const StepRequest& request, const PipelineStep& step, const CostModel& cost);

/// The trace of the schedule alone: a track for each mesh, a span for each action of its list.
/// Actions that run as one are one span. Copies to the host and back have tracks of their own. The
/// last reductions and the update, after the schedule's end, are a separate span on every track.
std::string schedule_trace(const PipelineStep& step);

}  // namespace longspan
