// The Pareto front: plans of which none is better in everything.
//
// What counts is what a person pays and gets: tokens a second of all ranks together, the length,
// the number of devices, and the host and device memory of a rank. Nothing is weighed against
// anything: a plan is on the front unless another is as good in all five and better in one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "planner/plan/plan.h"

namespace longspan {

/// What a row costs, each the less the better and none negative.
using Costs = std::vector<double>;

/// Indices of the rows that no other row is as good as in every cost and better than in one, in
/// lexicographic order of costs; of equal rows the first. With `slack` also without those that a
/// row before them comes within this fraction of in every cost: they are not worth a line.
/// REQUIRES: rows of equal length.
std::vector<size_t> non_dominated(const std::vector<Costs>& rows, double slack = 0);

/// Whether a mixture of two of the rows costs no more than `row` in anything. As policies may cover
/// a part of the layers, a mixture of two plans is nearly a plan.
bool beaten_by_mixture(const Costs& row, const std::vector<Costs>& rows);

/// A plan for a length that was asked for. Its own may be longer by what it is padded with.
struct Planned {
  Plan plan;
  int64_t asked = 0;
};

/// What a plan costs on the front, from its prediction: seconds per token that was asked for, 1 /
/// that length, devices, bytes of host memory and of device memory.
Costs costs_of(const Planned& planned);

struct FrontPoint : Planned {
  /// Why it is there: "fastest", "least host memory", "fewest GPUs", "longest"; or what it saves
  /// for being slower than the fastest of its length and devices.
  std::string because;
};

/// The front of all that was planned, by length, devices and time; the fastest of each length and
/// number of devices is kept however close others are, and of those between only as many as make at
/// most `lines` in all.
std::vector<FrontPoint> front_of(const std::vector<Planned>& all, size_t lines);

}  // namespace longspan
