// FlexSP (arXiv 2412.01523): assigns sequences of many lengths to groups of ranks.
//
// A batch is split into microbatches, which follow each other. Within one, the ranks form groups of
// several sizes, each sequence-parallel, and every sequence goes to one group. Long sequences need
// large groups for their memory; short ones are faster in small groups, which exchange less. A
// microbatch takes as long as its slowest group. Pure functions, safe from any thread; one MILP is
// solved at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/solver/milp.h"

namespace longspan {

/// A possible size of groups.
struct GroupSize {
  int32_t ranks = 1;
  double exchange = 0;  ///< time of exchanges per token of the group
};

/// Costs of sequences in a group of n ranks: time
///   (quadratic * sum of s^2 + linear * sum of s) / n + fixed + exchange * sum of s,
/// the form of the paper's cost model, in any unit; and memory_per_token * sum of s / n on each
/// rank, in the unit of `memory_limit`.
struct SequenceCosts {
  double quadratic = 0, linear = 1, fixed = 0;
  double memory_per_token = 1;
  double memory_limit = 0;  ///< of a rank for activations; 0: unlimited
  std::vector<GroupSize> sizes = {{}};
};

struct SequenceGroup {
  int32_t ranks = 1;
  std::vector<int64_t> sequences;  ///< tokens of each
  double time = 0;
};

struct Microbatch {
  std::vector<SequenceGroup> groups;  ///< no group is empty
  double time = 0;                    ///< time of the slowest group
  /// A lower bound on the time with lengths rounded up to buckets; with exact buckets, a true
  /// bound.
  double bound = 0;
  Stop stop = Stop::optimal;
};

struct SequenceAssignment {
  std::vector<Microbatch> microbatches;
  double time = 0;  ///< sum over microbatches
  int64_t nodes = 0;
};

/// The time of a group with these sequences.
double group_time(const SequenceCosts& costs, const GroupSize& size,
                  const std::vector<int64_t>& sequences);

/// The upper ends of at most `buckets` buckets of lengths, ascending, that minimize the sum of
/// lengths rounded up to them.
std::vector<int64_t> length_buckets(std::vector<int64_t> lengths, int64_t buckets);

struct AssignOptions {
  int64_t buckets = 16;  ///< buckets of lengths per microbatch; exact if as many as lengths
  /// The number of microbatches. 0: tries the least that memory allows and a few more, and takes
  /// the fastest.
  int64_t microbatches = 0;
  SolverLimits limits = {};  ///< for each microbatch
};

/// Assigns `lengths`, in any order, to groups of `ranks` ranks in all. Sorted lengths are cut into
/// microbatches that minimize the largest number of tokens. Each microbatch is solved as a MILP,
/// with the best groups of one size as a warm start. Throws bad_input for invalid numbers, no_fit
/// naming the sequence that no group can hold.
SequenceAssignment assign_sequences(const std::vector<int64_t>& lengths, int32_t ranks,
                                    const SequenceCosts& costs, const AssignOptions& options = {});

}  // namespace longspan
