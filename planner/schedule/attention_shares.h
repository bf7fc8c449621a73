// Attention divided among ranks that are at slices of one sequence (SlimPipe, arXiv 2504.14519).
//
// Slice j attends to j earlier slices and to itself. So with equal slices a rank at slice j has j
// rectangles, each of the queries of one slice and the keys of one, and a triangle, which it keeps.
// Ranks that run at the same time even out their rectangles. The paper gives no rule; this one is
// of its text.
//
// Ranks run at the same time in SlimPipe's order. Forward k of rank r is in meeting k + r of
// forwards; backward k in meeting k + p-1-r of backwards, of p ranks. The first backward follows
// that rank's v n + 2 (p-1-r) forwards (n slices, v virtual stages), so with A = v n + p-2 the
// order of all lists is: meetings of forwards up to A, then a meeting of backwards and one of
// forwards in turns. All that an action needs from other ranks is of earlier meetings: a stage
// follows the one before in the next meeting, and the first rank needs the last one's result n >
// p-1 meetings later. So ranks that wait for each other within a meeting never wait in a circle;
// and as all actions of a meeting take equally long, waiting costs nothing.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

/// Rectangles that one member of a meeting gives another: those of its queries with the keys of
/// slices [first, first + slices).
struct AttentionLot {
  size_t from = 0, to = 0;
  int32_t first = 0, slices = 0;
  bool operator==(const AttentionLot&) const = default;
};

/// Evens out the rectangles of members that have `rectangles` each: afterwards they differ by one
/// at most. Those with most give, and give the first slices. A member gives or takes, not both.
std::vector<AttentionLot> evened_out(const std::vector<int32_t>& rectangles);

/// The rectangles of each member afterwards.
std::vector<int32_t> rectangles_after(std::vector<int32_t> rectangles,
                                      const std::vector<AttentionLot>& lots);

/// A lot of a schedule: ranks, and what they are doing when they meet.
struct AttentionShare {
  int32_t from_rank = 0, to_rank = 0;
  Action from, to;
  int32_t first = 0, slices = 0;
};

/// The time of every action's meeting, in meetings, by rank and place in its list; that of other
/// actions than F and B is that of the one before. REQUIRES: the order of slimpipe().
std::vector<std::vector<double>> meeting_times(const Schedule& schedule);

/// Whether an action is in one of the first or last p-1 meetings of forwards or backwards, at which
/// not all ranks are there. REQUIRES: an F, B or I of slimpipe() on `ranks`.
bool meets_few(const Schedule& schedule, const Action& action, int32_t ranks);

/// All lots of a schedule, meeting by meeting. Where not all ranks meet there are none. REQUIRES:
/// the order of slimpipe().
std::vector<AttentionShare> attention_shares(const Schedule& schedule);

}  // namespace longspan
