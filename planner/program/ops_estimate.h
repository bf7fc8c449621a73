// Estimates the number of ops of a step without lowering it. It decides whether the program is held
// as a list, and how long its evaluation takes.
#pragma once

#include <cstdint>

#include "planner/program/program.h"

namespace longspan {

/// Programs with more ops are not held as a list. At this size build_program(), lay_out() and
/// simulate() take about a second and half a gigabyte.
inline constexpr int64_t kMostListedOps = 2'500'000;

/// Programs with more ops are not evaluated. Those between kMostListedOps and this are evaluated by
/// their period.
inline constexpr int64_t kMostPricedOps = 20'000'000;

/// The number of ops of build_program(request), approximately. For a pipeline's stages and layers
/// that differ, as if one rank had all layers and all had attention. At most 2^62. REQUIRES: the
/// strategy is valid for the length.
int64_t ops_estimate(const StepRequest& request);

/// The approximate number of ops of outline_without_repeats(); arenas_without_repeats() has fewer.
int64_t ops_without_repeats(const StepRequest& request);

}  // namespace longspan
