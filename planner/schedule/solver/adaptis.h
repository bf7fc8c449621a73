// AdaPtis (arXiv 2509.23722): layers to stages, stages to ranks and the order of the lists, chosen
// together for layers that are not alike.
//
// For every family of schedules, which brings a placement with it (a stage on each rank, two round
// robin or in a V), the layers are cut for the fastest slowest stage under memory, the family makes
// its schedule for these costs, the layers are cut again for the microbatches that it keeps in
// flight, and then boundaries move by a layer as long as that makes the step shorter. The best of
// all is ordered by the solver (opt_pipe.h), boundaries move under that order, and so on until
// nothing improves. All of it keeps to the limits' seconds, but for the first schedule within
// memory and whatever is being made or cut when they end; one programme is solved at a time.
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
  /// The most of a rank, with what is resident; 0: any amount. Every rank's activations get what
  /// the one with most resident leaves.
  int64_t memory_limit = 0;
  SolverLimits limits = {};  ///< nodes of all orders together, seconds of everything
};

struct AdaptisPlan {
  std::string family;
  int32_t virtual_stages = 1;
  std::vector<int64_t> ends;  ///< of stages, in layers
  OptimalSchedule schedule;
  ScheduleCosts costs;
  int64_t memory_limit = 0;  ///< what the limit leaves for activations
  double even_cost = 0;      ///< the best family with as many layers in each stage; 0: none fits
};

/// Throws bad_input for fewer layers than ranks, no_fit where nothing is within memory.
AdaptisPlan adaptis(const AdaptisRequest& request);

}  // namespace longspan
