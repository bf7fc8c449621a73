// The costs of a schedule's actions: time on the rank, and memory between actions.
//
// Times are in any unit, the same for all. Memory is in bytes, or in any unit that makes it whole.
// Both are given for one microbatch on one stage and divided among the slices of its sequence.
// Plain values; safe from any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

/// Units per microbatch in which memory on a rank, stage or layer is counted if not in bytes:
/// enough that rounding a share is negligible, few enough that sums are exact.
inline constexpr int64_t kMicrobatchUnits = 10000;

/// Speeds of what a rank does at the same time, 1 if alone.
struct CopySpeeds {
  double compute = 1;       ///< of its computation during a copy
  double compute_both = 1;  ///< of its computation during copies both ways
  double copy = 1;          ///< of a copy during computation
  double copy_both = 1;     ///< of copies both ways during computation
  double both_alone = 1;    ///< of copies both ways without computation
  bool operator==(const CopySpeeds&) const = default;
};

/// Times of one microbatch on one stage.
struct StageTimes {
  double forward = 1;
  double input = 1;   ///< I; B is input + weight
  double weight = 1;  ///< W
  double recompute = 1;
  double vocabulary_forward = 0;   ///< S, of one rank's share
  double vocabulary_backward = 0;  ///< T
  double embedding_forward = 0;    ///< E
  double embedding_backward = 0;   ///< G
  double offload = 1;              ///< on the copy channel; does not occupy the rank
  double reload = 1;
};

/// Memory of one microbatch on one stage.
struct StageMemory {
  int64_t activations = 1;  ///< from the start of F to the end of I, or of B
  int64_t for_weights = 1;  ///< the part of them that stays from I to the end of W
  int64_t checkpoint = 0;   ///< what F keeps if R follows; R replaces it with `activations`
  int64_t offloaded = 0;    ///< the part of them that OFFLOAD removes and RELOAD restores
};

/// A slice's share of its microbatch. Attention makes later slices cost more per token.
struct SliceShare {
  double forward = 1;
  double input = 1;
  double weight = 1;
  int64_t tokens = 1;  ///< memory is divided in proportion to tokens
};

/// Times to send, of one microbatch, a hidden state for each token between one rank and all others,
/// the terms of the softmax among all, and what S computes of the gradient of the output.
struct VocabularyMessages {
  double hidden = 0;
  double terms = 0;
  double gradient = 0;
};

struct ScheduleCosts {
  std::vector<StageTimes> times = {{}};    ///< by stage of a pipe, or one entry for all
  std::vector<StageMemory> memory = {{}};  ///< by stage of a pipe, or one entry for all
  /// By slice, or by microbatch and slice, or if ranks share by rank and slice; empty: equal
  /// shares.
  std::vector<SliceShare> shares;
  /// The number of ranks that share the work of their current slices (attention_shares.h), each of
  /// which then has its own shares: those of stage s are row s mod sharing_ranks. As many rows
  /// follow for actions at which not all ranks meet. 0: each rank does its own work.
  int32_t sharing_ranks = 0;
  double communication = 0;  ///< from the end of an action to a dependent action on another rank
  /// Communication time by stage, in both directions between it and the next stage; empty:
  /// `communication` for all.
  std::vector<double> messages;
  /// Communication time between one rank and all others that have a share of the vocabulary; none:
  /// as above.
  std::optional<VocabularyMessages> vocabulary_messages;
  double sending = 0;  ///< how long a rank stops after an action that another rank needs
  /// For actions that run as one: the share of the shorter ones that the longest hides, 0 to 1.
  double hidden = 0;
  /// Whether the ranks begin a step together, as where one norm of all gradients ends it; the span
  /// of a rank then begins at 0.
  bool together = false;
  int32_t ranks_per_channel = 1;  ///< neighbouring ranks that share a copy channel to their host
  bool both_ways = false;         ///< a channel offloads and reloads at the same time
  /// If ranks are shares of one machine: how many times as fast as its times a rank computes while
  /// k ranks compute, at k - 1. Empty: ranks do not share. Otherwise no action may run as one with
  /// another.
  std::vector<double> speeds;
  CopySpeeds copy_speeds;

  const StageTimes& times_of(const Schedule& schedule, int32_t stage) const;
  const StageMemory& memory_of(const Schedule& schedule, int32_t stage) const;
  /// The communication time between two stages.
  double message(int32_t from, int32_t to) const {
    return messages.empty() ? communication : messages[static_cast<size_t>(std::min(from, to))];
  }
  /// The communication time between two actions.
  double message(const Action& from, const Action& to) const;
};

/// Equal costs on every rank. `rank` has the times and `memory` the memory of one microbatch on all
/// stages of one rank; a stage has an equal share. REQUIRES: `memory` divides by virtual_stages.
ScheduleCosts uniform_costs(int32_t virtual_stages, const StageTimes& rank,
                            const StageMemory& memory, double communication);

/// The same if attention of every layer is a stage of its own (HelixPipe). Each of `ranks` has
/// `layers`; stages 1, 3, 5 ... are attention, stages 0, 2, 4 ... the parts between two attentions.
/// Attention is the share `attention` of a forward and has no W. Its I takes twice its forward, I
/// of everything else as long as its forward. A layer's memory is divided as in arXiv 2205.05198
/// (34 sbh: 4 before attention, 6 for q, k and v), the time of the parts with parameters by their
/// products (12 h^2 per token: 3 before attention).
ScheduleCosts attention_apart_costs(int32_t ranks, int32_t layers, const StageTimes& rank,
                                    const StageMemory& memory, double communication,
                                    double attention);

/// How long `action` takes alone. REQUIRES: costs that check_costs() accepts.
double duration_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action);

/// Schedule::offloaded_shares of slices that offload as much as the forward of the next slice
/// hides: min(1, F of the next slice / OFFLOAD of all of this one), the rule of SPPO (arXiv
/// 2503.10377). Throws as check_costs().
std::vector<double> shares_that_forwards_hide(const Schedule& schedule, const ScheduleCosts& costs);

/// The share of `whole` of the action's slice. Slices add up exactly; an action divided among ranks
/// is rounded up for each.
int64_t slice_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action,
                 int64_t whole);

/// Throws bad_input if a table does not have the schedule's length, or a number is negative or not
/// finite.
void check_costs(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace longspan
