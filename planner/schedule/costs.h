// What the actions of a schedule take: time on the rank, memory from one action to another.
//
// Times are in any unit, the same for all; memory is counted in bytes, or in any unit that makes it
// whole. Both are given for one microbatch on one stage, and shared out to the slices of its
// sequence. Plain values; safe from any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

/// Parts that a microbatch's memory on a rank, a stage or a layer is counted in, where it is not
/// counted in bytes: enough that rounding a share is negligible, few enough that sums are exact.
inline constexpr int64_t kMicrobatchUnits = 10000;

/// Times of one microbatch on one stage.
struct StageTimes {
  double forward = 1;
  double input = 1;   ///< I; B takes input + weight
  double weight = 1;  ///< W
  double recompute = 1;
  double vocabulary_forward = 0;   ///< S, of one rank's share
  double vocabulary_backward = 0;  ///< T
  double offload = 1;              ///< on the copy channel, not on the rank
  double reload = 1;
};

/// What one microbatch holds on one stage.
struct StageMemory {
  int64_t activations = 1;  ///< from the start of F to the end of I, or of B
  int64_t for_weights = 1;  ///< what of them stays from I to the end of W
  int64_t checkpoint = 0;   ///< what F keeps where R follows; R makes it `activations`
  int64_t offloaded = 0;    ///< what of them leaves with OFFLOAD and returns with RELOAD
};

/// A slice's part of its microbatch. Attention makes later slices cost more than their tokens.
struct SliceShare {
  double forward = 1;
  double input = 1;
  double weight = 1;
  int64_t tokens = 1;  ///< memory is shared out in proportion
};

struct ScheduleCosts {
  std::vector<StageTimes> times = {{}};    ///< by stage of a pipe, or one for all
  std::vector<StageMemory> memory = {{}};  ///< likewise
  std::vector<SliceShare> shares;  ///< by slice, or by microbatch and slice; none: equal parts
  /// The number of ranks that share the work of slices they are at, one behind the other: the
  /// share of slice j on stage s is then number j + s mod these ranks. 0: each does its own.
  int32_t sharing_ranks = 0;
  double communication = 0;  ///< from the end of an action to what needs it on another rank
  /// The same by stage of a pipe, for what it passes to the next one and gets back; none: all
  /// alike.
  std::vector<double> messages;
  double sending = 0;  ///< how long a rank stops behind an action that another rank needs
  /// How much of the shorter actions is hidden by the longest where actions run as one, 0 to 1.
  double hidden = 0;
  int32_t ranks_per_channel = 1;  ///< neighbours that share a copy channel to their host
  bool both_ways = false;         ///< a channel offloads and reloads at once

  const StageTimes& times_of(const Schedule& schedule, int32_t stage) const;
  const StageMemory& memory_of(const Schedule& schedule, int32_t stage) const;
  /// What a message between two stages takes.
  double message(int32_t from, int32_t to) const {
    return messages.empty() ? communication : messages[static_cast<size_t>(std::min(from, to))];
  }
};

/// The same on every rank: `rank` is what one microbatch takes on all stages of one rank, and
/// `memory` what it holds there; a stage has its part of that. REQUIRES: `memory` divides by the
/// virtual stages.
ScheduleCosts uniform_costs(int32_t virtual_stages, const StageTimes& rank,
                            const StageMemory& memory, double communication);

/// The same where attention of every layer is a stage of its own (HelixPipe): of `layers` on each
/// of `ranks`, stages 0, 2, 4 ... are what lies between two attentions, 1, 3, 5 ... attention,
/// which is the part `attention` of a forward and knows of no gradients of weights. Its gradients
/// take twice its forward, those of inputs of all else as long as theirs. What a layer keeps is
/// shared out as in arXiv 2205.05198 (34 sbh: 4 before attention, 6 for q, k and v), time of what
/// has parameters by its products (12 h^2 per token: 3 before attention).
ScheduleCosts attention_apart_costs(int32_t ranks, int32_t layers, const StageTimes& rank,
                                    const StageMemory& memory, double communication,
                                    double attention);

/// How long `action` takes, alone. REQUIRES: costs that check_costs() lets pass.
double duration_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action);

/// Which part of what may leave with OFFLOAD does, 0 to 1: all of it, or in a schedule with
/// adaptive offload min(1, F of the next slice / OFFLOAD of all of this one), SPPO's
/// (arXiv 2503.10377) rule.
double part_offloaded(const Schedule& schedule, const ScheduleCosts& costs, const Action& action);

/// `whole`, of which the action's slice has its part; slices add up exactly, and what is shared
/// between ranks is rounded up for each.
int64_t slice_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action,
                 int64_t whole);

/// Throws bad_input where the tables are not as long as the schedule wants them, or where a number
/// is negative or no number.
void check_costs(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace longspan
