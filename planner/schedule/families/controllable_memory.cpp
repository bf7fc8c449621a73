// V-Min, V-Half and what lies between (Pipeline Parallelism with Controllable Memory, arXiv
// 2405.15362): building blocks whose microbatches live shorter than those of ZB-V, and take that
// much less memory.
//
// A block goes down the ranks in steps of `down` slots and up in steps of `up`: a microbatch lives
// about (down + up) slots per rank, of which each six cost one microbatch of memory. V-Min steps 1
// and 1, a third of 1F1B's memory; V-Half 2 and 1, half of it; ZB-V 4 and 2, as much as 1F1B.
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/schedule/families/building_block.h"
#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/families/cut_vocabulary.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

// Repeated every six slots, no two passes of a rank meet.
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

// The block of these steps that repeats and is done soonest: passes follow each other at once but
// for a few free slots where the way turns. None where no free slots help.
std::optional<BuildingBlock> block_of(int32_t ranks, int32_t down, int32_t up) {
  std::optional<BuildingBlock> best;
  int32_t least = 0;
  for (int32_t free = 0; free < 6 * 6 * 6; ++free) {
    const int32_t at_end = free % 6, at_start = free / 6 % 6, at_end_again = free / 36;
    if (best && at_end + at_start + at_end_again >= least) continue;
    BuildingBlock block(ranks);
    int32_t slot = 0;
    const auto go_down = [&](VPass pass) {
      for (int32_t i = 0; i < ranks; ++i) block[i][pass] = slot + down * i;
      slot += down * (ranks - 1) + 1;
    };
    const auto go_up = [&](VPass pass) {
      for (int32_t i = ranks - 1; i >= 0; --i) block[i][pass] = slot + up * (ranks - 1 - i);
      slot += up * (ranks - 1) + 1;
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

// V-Half's, whose way back begins so many repetitions later than it could.
BuildingBlock half_block(const ScheduleRequest& request, int32_t repetitions) {
  const int32_t p = request.ranks, later = (p % 2 == 0 ? 3 : 0) + 6 * repetitions;
  BuildingBlock block;
  for (int32_t i = 0; i < p; ++i) {
    block.push_back({2 * i, 3 * p - 2 - i, 3 * p + later + 2 * i - 1, 6 * p + later - 2 - i});
  }
  return block;
}

}  // namespace

// The paper's tables 8 and 9 say where the free slots of these two are.
Schedule v_min(const ScheduleRequest& request) {
  const int32_t p = request.ranks, later = p % 3 == 0 ? 2 : 0;
  BuildingBlock block;
  for (int32_t i = 0; i < p; ++i) {
    block.push_back({i, 2 * p - 1 - i, 2 * p + later + i, 4 * p + later - 1 - i});
  }
  return repeat(request, block);
}

Schedule v_half(const ScheduleRequest& request) { return repeat(request, half_block(request, 0)); }

// With the output layer cut over all ranks (Vocabulary Parallelism, arXiv 2411.05288) a
// microbatch turns back two repetitions later, or one where S gives the gradient already.
Schedule v_half_vocabulary_1(const ScheduleRequest& request) {
  return with_cut_vocabulary(repeat(request, half_block(request, 2)), request.costs, true);
}
Schedule v_half_vocabulary_2(const ScheduleRequest& request) {
  return with_cut_vocabulary(repeat(request, half_block(request, 1)), request.costs, false);
}

Schedule v_adaptive(const ScheduleRequest& request) {
  Cheapest cheapest(request.costs, request.memory_limit);
  cheapest.offer(v_min(request));
  cheapest.offer(v_half(request));
  // Steps of five in all do not repeat where ranks are many; more than six are longer for nothing.
  for (const auto& [down, up] : {std::pair{1, 2}, {2, 2}, {3, 1}, {1, 3}, {3, 3}, {4, 2}, {2, 4}}) {
    const std::optional<BuildingBlock> block = block_of(request.ranks, down, up);
    if (block) cheapest.offer(repeat(request, *block));
  }
  try {
    cheapest.offer(zb_v(request));
  } catch (const Error&) {
    // It wants more memory than there is; there are others.
  }
  std::optional<Schedule> best = cheapest.take();
  if (!best) {
    const int64_t held = held_by_microbatch(request, 2, v_stage);
    throw no_fit(
        "v-adaptive cannot keep {} ranks within a memory limit of {:.4g} microbatches on each; its "
        "smallest "
        "block holds {:.4g}",
        request.ranks, in_microbatches(request.memory_limit, held),
        in_microbatches(cheapest.least_memory(), held));
  }
  return *std::move(best);
}

}  // namespace longspan
