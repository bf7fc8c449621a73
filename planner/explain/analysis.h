// Analysis of a timeline and its program: where time goes, what compute waits for, what memory
// holds at its peak. Works on predicted and measured timelines alike.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "planner/plan/plan.h"
#include "planner/program/layout.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// A plan with everything that follows from it.
struct Simulated {
  Program program;
  Layout layout;
  Timeline timeline;  // with spans
};
/// REQUIRES: is_listable(plan).
Simulated simulate_plan(const Plan& plan);
/// The prediction of that step, with the memory of the rank that needs most of each tier.
Prediction prediction_of(const Plan& plan, const Simulated& simulated);

struct KindTime {
  OpKind kind;
  int64_t count = 0;
  double seconds = 0;
  double flops = 0;  // matrix products and attention; 0 for others
  double bytes = 0;  // of copies; 0 for others
};
/// Kinds that occur, the longest first.
std::vector<KindTime> time_by_kind(const Program& program, const Timeline& timeline);

/// Time in which the compute stream was idle, by what it waited for.
struct ComputeWait {
  Stream stream;  // of the op that compute waited for
  std::string what;
  double seconds = 0;
};
/// The longest first. What remains after the last compute op counts too.
std::vector<ComputeWait> compute_waits(const Simulated& simulated);

struct TensorMemory {
  Tensor tensor;
  int64_t count = 0;
  int64_t bytes = 0;  // with padding, as laid out
};
struct PeakMemory {
  Tier tier;
  int64_t arena_bytes = 0;
  int64_t live_bytes = 0;             // the sum of the tensors below
  std::string op;                     // the first op at the peak
  std::vector<TensorMemory> tensors;  // the largest first
};
/// One entry for each tier in use.
std::vector<PeakMemory> memory_at_peak(const Program& program, const Layout& layout);

/// One sentence on what limits the step. Remedies: neighbour_result.h.
std::string limit_of(const Simulated& simulated);

}  // namespace longspan
