// What the experts of a plan's model cost a rank: states, rows on their way to other ranks, time.
#pragma once

#include <array>
#include <cstdint>

#include "planner/explain/analysis.h"

namespace longspan {

struct ExpertCosts {
  int64_t layers = 0;                             // with experts
  int64_t count = 0, own = 0;                     // experts of a layer; those of this rank
  std::array<int64_t, kTierCount> state_bytes{};  // parameters, gradients and moments
  // With experts on several ranks: a tile, and the rows that a rank has memory for.
  int64_t tile_tokens = 0, most_rows = 0;
  double busiest = 1;           // rows of the busiest rank, over the mean
  int64_t tile_bytes = 0;       // of a tile's rows, on the way and in products
  double compute_seconds = 0;   // of ops of layers' MLPs with experts
  double exchange_seconds = 0;  // of rows
  double waited_seconds = 0;    // in which compute waits for those exchanges
};
/// REQUIRES: the model has experts.
ExpertCosts costs_of_experts(const Simulated& simulated);

}  // namespace longspan
