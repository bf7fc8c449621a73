// OptPipe in plans: a pipeline whose lists a solver has ordered for the plan's own costs.
//
// The search chooses everything but the order: mesh, chunks, what is saved. For these plans the
// best lists of all families, with one virtual stage and with two, are the starts of a solver
// (schedule/solver/opt_pipe.h), which keeps to the memory that the hardware leaves. The plan holds
// the lists themselves, so nothing that reads it needs a solver. Deterministic unless time stops
// the solver.
#pragma once

#include <string>

#include "planner/schedule/solver/opt_pipe.h"
#include "planner/search/search.h"

namespace longspan {

struct OrderedPlan {
  Plan plan;
  OptimalSchedule order;     // of the actions alone, without the step's last reductions and update
  double start_seconds = 0;  // the step of the same plan with the start's lists
};

/// The fastest plan found, of whole sequences and without recomputation, as backwards are split.
/// Throws bad_input for slices, a limit on microbatches in flight, or more than two virtual stages;
/// no_fit if none fits; otherwise as search(). REQUIRES: options.parallel names no schedule.
OrderedPlan search_order(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                         const SearchOptions& options, const SolverLimits& limits,
                         const Progress& progress = {});

}  // namespace longspan
