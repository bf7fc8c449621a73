// Attention's samples on a device, and what its rate owes to the number of heads. Internal to
// engine/profile.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/profile/device_kernels.h"

namespace longspan {

/// Adds attention_forward, attention_backward and their diagonals at the grid's heads: its first
/// chunks of tokens, then as optional parts the other chunks and the other width of heads.
void add_attention_samples(Sampler& sampler, DeviceBench& bench);

/// Adds rectangles of other numbers of heads under names that attention_by_heads() knows.
void add_heads_samples(Sampler& sampler, DeviceBench& bench);

/// A rate of one shape and number of heads.
struct HeadsRate {
  int shape = 0;  // which of them; rates of one shape differ in the heads alone
  double queries = 0, heads = 0;
  double rate = 0;
};

/// How a device's processors share attention: tiles of queries of one head, each a processor's.
struct HeadsTiling {
  Tiling tiling;
  double worst = 0;  // by how much the rates differ from it, as a fraction, at most
};
/// The tiling that leaves the least of the rates' differences. REQUIRES: there are rates.
HeadsTiling fit_heads(const std::vector<HeadsRate>& rates, int64_t processors);

/// What was measured of add_heads_samples().
std::vector<HeadsRate> attention_by_heads(const std::map<std::string, RateTable>& tables);

/// Gives a table that was measured with `heads` heads the tiling: its points become those of one
/// head, as a table with a tiling has them.
void share_by_heads(RateTable& table, const Tiling& tiling, double heads);

}  // namespace longspan
