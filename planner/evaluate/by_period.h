// Evaluates a step whose program is too large to process as a whole, by the program's period.
//
// Loops over pairs of chunks reach a period, in the device's memory and in time; further iterations
// are left out and counted. The device's arena is then exact; other tiers and time are close. If
// the program is still too large, programs of the same strategy with fewer layers and chunks are
// evaluated this way and extrapolated: linearly in layers; in chunks as a quadratic for time,
// linearly for memory.
#pragma once

#include "planner/cost/cost_model.h"
#include "planner/evaluate/evaluate.h"

namespace longspan {

/// Evaluates the program of the request's rank. Deterministic.
Evaluation evaluate_by_period(const StepRequest& request, const CostModel& cost);
/// The same without the memory.
Evaluation time_by_period(const StepRequest& request, const CostModel& cost);
/// The memory alone.
Arenas arenas_by_period(const StepRequest& request);

}  // namespace longspan
