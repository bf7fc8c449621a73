// The Pareto front of plans.
//
// The criteria are tokens per second of all ranks together, the length, the number of devices, and
// the host and device memory of a rank. They are not weighted: a plan is on the front unless
// another is as good in all five and better in one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "planner/plan/plan.h"

namespace longspan {

/// The costs of a row: lower is better, none is negative.
using Costs = std::vector<double>;

/// Indices of the non-dominated rows, in lexicographic order of costs; of equal rows only the
/// first. With `slack`, rows are dropped, too, if an earlier row is within this fraction of them in
/// every cost. REQUIRES: rows of equal length.
std::vector<size_t> non_dominated(const std::vector<Costs>& rows, double slack = 0);

/// Whether a mixture of two of the rows is no worse than `row` in every cost. As policies may cover
/// a part of the layers, a mixture of two plans is nearly a plan.
bool beaten_by_mixture(const Costs& row, const std::vector<Costs>& rows);

/// A plan for a requested length. With padding, the plan's own sequence is longer.
struct Planned {
  Plan plan;
  int64_t asked = 0;
};

/// The costs of a plan on the front, from its prediction: seconds per requested token, 1 /
/// requested length, devices, bytes of host memory and of device memory.
Costs costs_of(const Planned& planned);

struct FrontPoint : Planned {
  /// Why it is on the front: "fastest", "least host memory", "fewest GPUs", "longest"; or what it
  /// saves compared with the fastest of its length and number of devices.
  std::string because;
};

/// The front of all plans, by length, devices and time. The fastest plan of each length and number
/// of devices is always kept. Other plans fill up to `lines` lines in all.
std::vector<FrontPoint> front_of(const std::vector<Planned>& all, size_t lines);

}  // namespace longspan
