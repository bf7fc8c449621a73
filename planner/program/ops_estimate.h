// How many ops a step has, without lowering it: what decides whether its program is to be held
// whole, and what looking at it will take.
#pragma once

#include <cstdint>

#include "planner/program/program.h"

namespace longspan {

/// A program of more ops is not held as a list: build_program(), lay_out() and simulate() of one as
/// large take about a second and half a gigabyte.
inline constexpr int64_t kMostListedOps = 2'500'000;

/// A program of more ops is not looked at; one of fewer that is not held as a list is priced by
/// what repeats in it.
inline constexpr int64_t kMostPricedOps = 20'000'000;

/// Ops of build_program(request), or close to that; of a pipeline's stages and of layers that
/// differ as if one rank had them all and all had attention. At most 2^62. REQUIRES: a strategy
/// that is valid for the length.
int64_t ops_estimate(const StepRequest& request);

/// About what is left of them in outline_without_repeats(); arenas_without_repeats() has fewer.
int64_t ops_without_repeats(const StepRequest& request);

}  // namespace longspan
