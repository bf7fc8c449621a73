// Attention's samples on a device, and a fit of how its rate depends on the number of heads.
// Internal to engine/profile.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/profile/device_kernels.h"

namespace longspan {

/// Adds attention_forward, attention_backward and their diagonals with the grid's number of heads:
/// first for `chunks`, then, as optional parts, for `more_chunks` and for `other_head_dim`.
void add_attention_samples(Sampler& sampler, DeviceBench& bench);

/// Adds unmasked rectangles with other numbers of heads, for attention_by_heads().
void add_heads_samples(Sampler& sampler, DeviceBench& bench);

/// A measured rate for one shape and number of heads.
struct HeadsRate {
  int shape = 0;  // index of the shape; rates of one shape differ only in the number of heads
  double queries = 0, heads = 0;
  double rate = 0;
};

/// How attention is tiled over a device's processors (SMs): one processor computes one tile of
/// queries of one head.
struct HeadsTiling {
  Tiling tiling;
  double worst = 0;  // largest relative deviation of the rates from the fit
};
/// Returns the tiling that best explains how the rates vary with the number of heads (least
/// squares of log rates). REQUIRES: rates is not empty.
HeadsTiling fit_heads(const std::vector<HeadsRate>& rates, int64_t processors);

/// Returns the measured rates of the samples that add_heads_samples() added.
std::vector<HeadsRate> attention_by_heads(const std::map<std::string, RateTable>& tables);

/// Sets the tiling of a table that was measured with `heads` heads, and converts its rates to those
/// of one head, as tables with a tiling require.
void share_by_heads(RateTable& table, const Tiling& tiling, double heads);

}  // namespace longspan
