// V-Min, V-Half and schedules between them (Pipeline Parallelism with Controllable Memory, arXiv
// 2405.15362): building blocks with shorter lives of microbatches than ZB-V, and less memory in
// proportion.
//
// A block goes down the ranks in steps of `down` slots and up in steps of `up`: a microbatch lives
// about (down + up) slots per rank, and every six slots cost one microbatch of memory. V-Min has
// steps 1 and 1, a third of 1F1B's memory; V-Half 2 and 1, half of it; ZB-V 4 and 2, as much as
// 1F1B. V-adaptive also tries other blocks, the greedy of ZB-V, and a greedy (v_greedy.h) for
// memory between the needs of blocks.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/schedule/families/building_block.h"
#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/families/cut_vocabulary.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/fill_gaps.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/v_greedy.h"
#include "planner/schedule/families/zero_bubble_v.h"

namespace longspan {
namespace {

// Whether no two passes of a rank collide if the block is repeated every six slots.
bool repeats(const BuildingBlock& block) {
  for (const std::array<int32_t, 4>& passes : block) {
    unsigned taken = 0;
    for (const int32_t slot : passes) {
      if (taken & 1U << slot % 6) return false;
      taken |= 1U << slot % 6;
    }
  }
  return true;
}

// Slots from one rank to the next, on the ways down and up.
struct Steps {
  int32_t down, up;
};

// The shortest block that repeats, with steps `first` up to rank `turn` and `then` after it. Passes
// follow each other at once, except for a few free slots at the turns. None if no number of free
// slots helps.
std::optional<BuildingBlock> block_of(int32_t ranks, const Steps& first, const Steps& then,
                                      int32_t turn) {
  std::optional<BuildingBlock> best;
  int32_t least = 0;
  for (int32_t free = 0; free < 6 * 6 * 6; ++free) {
    const int32_t at_end = free % 6, at_start = free / 6 % 6, at_end_again = free / 36;
    if (best && at_end + at_start + at_end_again >= least) continue;
    BuildingBlock block(ranks);
    int32_t slot = 0;
    const auto go_down = [&](VPass pass) {
      for (int32_t i = 0; i < ranks; ++i) {
        block[i][pass] = slot;
        slot += i + 1 == ranks ? 1 : i < turn ? first.down : then.down;
      }
    };
    const auto go_up = [&](VPass pass) {
      for (int32_t i = ranks - 1; i >= 0; --i) {
        block[i][pass] = slot;
        slot += i == 0 ? 1 : i <= turn ? first.up : then.up;
      }
    };
    go_down(kForwardDown);
    slot += at_end;
    go_up(kForwardUp);
    slot += at_start;
    go_down(kInputDown);
    slot += at_end_again;
    go_up(kInputUp);
    if (!repeats(block)) continue;
    best = std::move(block);
    least = at_end + at_start + at_end_again;
  }
  return best;
}

// Offers blocks with equal steps between all ranks, and blocks whose steps change at one rank, with
// memory in between. These blocks make the best schedules for some memory among all pairs of steps
// up to four, within 1 % in 60 random settings of 3 to 10 ranks. Steps that sum to five do not
// repeat with many ranks; sums above six make blocks longer without a gain. Blocks count in slots;
// their waits are also filled by the real times. What is made depends on no memory limit.
void offer_blocks(const ScheduleRequest& request, Cheapest& cheapest) {
  constexpr Steps kAlike[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 1},
                              {1, 3}, {3, 3}, {4, 2}, {2, 4}};
  constexpr std::pair<Steps, Steps> kUnlike[] = {
      {{1, 2}, {3, 3}}, {{2, 2}, {2, 4}}, {{1, 3}, {1, 1}}, {{2, 1}, {1, 3}},
      {{1, 4}, {2, 1}}, {{1, 2}, {4, 4}}, {{1, 2}, {4, 2}}, {{1, 1}, {1, 2}},
      {{1, 1}, {1, 3}}, {{4, 4}, {2, 1}}, {{3, 3}, {1, 2}}, {{4, 1}, {2, 1}}};
  constexpr int32_t kTurns = 8;  // tries all turns up to this many ranks
  const auto offer = [&](const Steps& first, const Steps& then, int32_t turn) {
    const std::optional<BuildingBlock> block = block_of(request.ranks, first, then, turn);
    if (!block) return;
    Schedule repeated = repeat(request, *block);
    for (const bool may_delay : {false, true}) {
      cheapest.offer(fill_gaps(repeated, request.costs, may_delay));
    }
    cheapest.offer(std::move(repeated));
  };
  for (const Steps& steps : kAlike) offer(steps, steps, 0);
  const int32_t apart = std::max(1, request.ranks / kTurns);
  for (const auto& [first, then] : kUnlike) {
    for (int32_t turn = 1; turn < request.ranks; turn += apart) offer(first, then, turn);
  }
}

// The block of V-Half, with a way back that begins `repetitions` later than it could.
BuildingBlock half_block(const ScheduleRequest& request, int32_t repetitions) {
  const int32_t p = request.ranks, later = (p % 2 == 0 ? 3 : 0) + 6 * repetitions;
  BuildingBlock block;
  for (int32_t i = 0; i < p; ++i) {
    block.push_back({2 * i, 3 * p - 2 - i, 3 * p + later + 2 * i - 1, 6 * p + later - 2 - i});
  }
  return block;
}

}  // namespace

// The free slots of these two are from the paper's tables 8 and 9.
Schedule v_min(const ScheduleRequest& request) {
  const int32_t p = request.ranks, later = p % 3 == 0 ? 2 : 0;
  BuildingBlock block;
  for (int32_t i = 0; i < p; ++i) {
    block.push_back({i, 2 * p - 1 - i, 2 * p + later + i, 4 * p + later - 1 - i});
  }
  return repeat(request, block);
}

Schedule v_half(const ScheduleRequest& request) { return repeat(request, half_block(request, 0)); }

// With the output layer cut over all ranks (Vocabulary Parallelism, arXiv 2411.05288), a microbatch
// turns back two repetitions later; one if S computes the gradient already.
Schedule v_half_vocabulary_1(const ScheduleRequest& request) {
  return with_cut_vocabulary(repeat(request, half_block(request, 2)), request.costs, true);
}
Schedule v_half_vocabulary_2(const ScheduleRequest& request) {
  return with_cut_vocabulary(repeat(request, half_block(request, 1)), request.costs, false);
}

Schedule v_adaptive(const ScheduleRequest& asked) {
  const ScheduleRequest request = with_limit_in_flight(asked, 2);
  const auto offer_all = [](const ScheduleRequest& of_limit, Cheapest& cheapest) {
    cheapest.offer(v_min(of_limit));
    cheapest.offer(v_half(of_limit));
    offer_blocks(of_limit, cheapest);
    offer_v_greedy(of_limit, cheapest);
    offer_zb_v(of_limit, cheapest);
  };
  return cheapest_of("v-adaptive", request, held_by_microbatch(request, 2, v_stage), offer_all);
}

}  // namespace longspan
