// Evaluates a configuration by full simulation.
//
// The whole program is lowered, laid out and simulated: memory equals what the engine allocates,
// and time is what its measurements are compared with. Searches use the faster
// sampled_simulation.h. A program of more than kMostListedOps is evaluated by its period.
#pragma once

#include <array>
#include <cstdint>

#include "planner/cost/cost_model.h"
#include "planner/program/layout.h"
#include "planner/simulate/evaluation.h"

namespace longspan {

/// Whether evaluate() prices a step by stages and kinds of layers, instead of by one program: with
/// a pipeline; and if layers differ, where their program would be too large to list, or the tokens
/// of a run do not divide as all tokens do.
bool is_priced_by_kinds(const StepRequest& request);

/// Time of the first rank; memory of the rank that needs most of each tier, as ranks see different
/// parts of a ring and so pack differently. In a ring of more than 16 positions, evenly spaced ones
/// are laid out: at least four, and as many as have a million ops together. `request.rank` is not
/// read.
Evaluation evaluate(const StepRequest& request, const CostModel& cost);

/// Time only, of the first rank.
double exact_seconds(const StepRequest& request, const CostModel& cost);

/// Memory only (no simulation), over all ranks; Arenas::largest is of the first rank. With limits
/// it stops at the first buffer of any rank that exceeds them; bytes then exceed the limits by an
/// unspecified amount.
Arenas exact_arenas(const StepRequest& request,
                    const std::array<int64_t, kTierCount>* limits = nullptr);
std::array<int64_t, kTierCount> exact_peak_bytes(const StepRequest& request);

/// The memory of the rank that needs most of each tier, if the first needs `of_first`, as
/// evaluate().
std::array<int64_t, kTierCount> peak_of_mesh(const StepRequest& request,
                                             const std::array<int64_t, kTierCount>& of_first);

/// The approximate number of ops that evaluate() and exact_arenas() lay out.
int64_t ops_of_all_positions(const StepRequest& request);

}  // namespace longspan
