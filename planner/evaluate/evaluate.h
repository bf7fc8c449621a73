// What a configuration costs, by full simulation.
//
// The whole program is lowered, laid out and simulated: the numbers the engine allocates and the
// timeline it is compared with. sampled_simulation.h is what a search can afford. A program of more
// than kMostListedOps is evaluated by its period.
#pragma once

#include <array>
#include <cstdint>

#include "planner/cost/cost_model.h"
#include "planner/program/layout.h"
#include "planner/simulate/evaluation.h"

namespace longspan {

/// The time is that of the first rank, the memory that of whichever rank needs most of a tier:
/// ranks differ in what of a ring they see, and so in how buffers pack. Of a ring of more than 16
/// positions as many are laid out, evenly spaced, as together have a million ops, and at least
/// four. `request.rank` is not read.
Evaluation evaluate(const StepRequest& request, const CostModel& cost);

/// Time only, likewise of the first rank.
double exact_seconds(const StepRequest& request, const CostModel& cost);

/// Memory only (no simulation), likewise over all ranks: what is the largest is the first rank's.
/// With limits it stops at the first buffer of any rank that exceeds them: bytes say then that they
/// do, not by how much.
Arenas exact_arenas(const StepRequest& request,
                    const std::array<int64_t, kTierCount>* limits = nullptr);
std::array<int64_t, kTierCount> exact_peak_bytes(const StepRequest& request);

/// About how many ops evaluate() and exact_arenas() lay out.
int64_t ops_of_all_positions(const StepRequest& request);

}  // namespace longspan
