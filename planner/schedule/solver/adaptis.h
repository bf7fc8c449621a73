// AdaPtis (arXiv 2509.23722): chooses the layers of stages, the ranks of stages and the order of
// the lists together, for unequal layers.
//
// Every family of schedules implies a placement (one stage on each rank, or two, round robin or in
// a V). For each, the search cuts the layers to minimize the slowest stage's time within memory,
// generates the family's schedule for these costs, cuts again for the microbatches that it keeps in
// flight, and then moves boundaries by a layer while that shortens the step. The solver orders the
// best of all (opt_pipe.h), boundaries move under that order, and so on until nothing improves. The
// search ends when no rank waits. It keeps to the limits' seconds, except to find a first schedule
// within memory and to finish the current schedule or cut; one MILP is solved at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/schedule/solver/layer_cut.h"
#include "planner/schedule/solver/opt_pipe.h"

namespace longspan {

struct AdaptisRequest {
  std::vector<LayerCosts> layers;
  int32_t ranks = 1;
  int32_t microbatches = 1;
  double communication = 0;
  /// Memory limit of a rank, including resident memory; 0: unlimited. Activations of every rank get
  /// what is left on the rank with the most resident memory.
  int64_t memory_limit = 0;
  SolverLimits limits = {};  ///< nodes are for all orders together, seconds for the whole search
};

struct AdaptisPlan {
  std::string family;
  int32_t virtual_stages = 1;
  std::vector<int64_t> ends;  ///< ends of stages, in layers
  OptimalSchedule schedule;
  ScheduleCosts costs;
  int64_t memory_limit = 0;  ///< the part of the limit for activations
  double even_cost = 0;      ///< best cost with equally many layers per stage; 0: none fits
};

/// Throws bad_input for fewer layers than ranks, no_fit if no schedule is within memory.
AdaptisPlan adaptis(const AdaptisRequest& request);

}  // namespace longspan
