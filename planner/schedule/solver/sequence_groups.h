// FlexSP (arXiv 2412.01523): sequences of many lengths, and groups of ranks to hold them.
//
// A batch is split into microbatches, which follow each other; within one the ranks form groups of
// several sizes, sequence-parallel each by itself, and every sequence goes to one of them. Long
// sequences need large groups for their memory; short ones are better off in small groups, which
// exchange less. A microbatch takes as long as its slowest group. Pure functions, but that one
// programme is solved at a time; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/solver/milp.h"

namespace longspan {

/// A size that groups may have.
struct GroupSize {
  int32_t ranks = 1;
  double exchange = 0;  ///< time per token of the group, for what its ranks send each other
};

/// What sequences cost a group of n ranks: time
///   (quadratic * sum of s^2 + linear * sum of s) / n + fixed + exchange * sum of s,
/// the form of the paper's cost model, in any unit; and memory_per_token * sum of s / n on each
/// rank, in the unit of `memory_limit`.
struct SequenceCosts {
  double quadratic = 0, linear = 1, fixed = 0;
  double memory_per_token = 1;
  double memory_limit = 0;  ///< of a rank for activations; 0: any amount
  std::vector<GroupSize> sizes = {{}};
};

struct SequenceGroup {
  int32_t ranks = 1;
  std::vector<int64_t> sequences;  ///< tokens of each
  double time = 0;
};

struct Microbatch {
  std::vector<SequenceGroup> groups;  ///< none is empty
  double time = 0;                    ///< of the slowest
  /// No grouping is faster with lengths rounded up to their buckets; without buckets, none at all.
  double bound = 0;
  Stop stop = Stop::optimal;
};

struct SequenceAssignment {
  std::vector<Microbatch> microbatches;
  double time = 0;  ///< of all, one after another
  int64_t nodes = 0;
};

/// The time of a group that has these sequences.
double group_time(const SequenceCosts& costs, const GroupSize& size,
                  const std::vector<int64_t>& sequences);

/// Upper ends of at most `buckets` buckets of lengths, ascending, such that lengths rounded up to
/// them grow as little in sum as can be.
std::vector<int64_t> length_buckets(std::vector<int64_t> lengths, int64_t buckets);

struct AssignOptions {
  int64_t buckets = 16;  ///< of lengths in a microbatch; as many as there are lengths: exact
  /// Microbatches: 0 for the number, of the least that memory allows and a few more, that takes the
  /// least time.
  int64_t microbatches = 0;
  SolverLimits limits = {};  ///< of each microbatch
};

/// Groups of `ranks` ranks in all and their sequences, `lengths`, in any order. Sorted lengths are
/// cut into microbatches whose most tokens are as few as can be; a microbatch is solved as a mixed
/// integer programme with the best of groups of one size as a warm start. Throws bad_input for
/// numbers that make no sense, no_fit naming the sequence that no group can hold.
SequenceAssignment assign_sequences(const std::vector<int64_t>& lengths, int32_t ranks,
                                    const SequenceCosts& costs, const AssignOptions& options = {});

}  // namespace longspan
