// V-Min and V-Half (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362): building
// blocks whose microbatches live a third and a half as long as those of ZB-V, and take that much
// less memory.
//
// A block goes down the ranks in steps of `down` slots and up in steps of `up`: a microbatch lives
// about (down + up) slots per rank, of which each six cost one microbatch of memory. Where passes
// of a rank would fall on the same slot modulo six, gradients start later (the paper's tables 8,
// 9).
#include <array>

#include "planner/schedule/families/building_block.h"
#include "planner/schedule/families/families.h"

namespace longspan {

Schedule v_min(const ScheduleRequest& request) {
  const int32_t p = request.ranks, later = p % 3 == 0 ? 2 : 0;
  BuildingBlock block;
  for (int32_t i = 0; i < p; ++i) {
    block.push_back({i, 2 * p - 1 - i, 2 * p + later + i, 4 * p + later - 1 - i});
  }
  return repeat(request, block);
}

Schedule v_half(const ScheduleRequest& request) {
  const int32_t p = request.ranks, later = p % 2 == 0 ? 3 : 0;
  BuildingBlock block;
  for (int32_t i = 0; i < p; ++i) {
    block.push_back({2 * i, 3 * p - 2 - i, 3 * p + later + 2 * i - 1, 6 * p + later - 2 - i});
  }
  return repeat(request, block);
}

}  // namespace longspan
