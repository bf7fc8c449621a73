// What a step costs whose program is too large to go through as a whole: by its period.
//
// Loops over pairs of chunks come to repeat themselves, in the device's memory and in time; what
// repeats is left out and counted. The device's arena is then what it would be, of other tiers and
// of time it is close. Where that is too much still, whole programs of the same strategy with fewer
// layers and chunks are evaluated so, and extrapolated: linearly in layers, as a quadratic in
// chunks.
#pragma once

#include "planner/cost/cost_model.h"
#include "planner/evaluate/evaluate.h"

namespace longspan {

/// Evaluates the program of the request's rank. Deterministic.
Evaluation evaluate_by_period(const StepRequest& request, const CostModel& cost);
/// The same without its bytes.
Evaluation time_by_period(const StepRequest& request, const CostModel& cost);
/// The same, memory alone.
Arenas arenas_by_period(const StepRequest& request);

}  // namespace longspan
