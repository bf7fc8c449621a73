#include "planner/schedule/attention_shares.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace longspan {

std::vector<AttentionLot> evened_out(const std::vector<int32_t>& rectangles) {
  const size_t members = rectangles.size();
  std::vector<size_t> order(members);  // from most to least
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rectangles[a] > rectangles[b]; });
  const int64_t all = std::accumulate(rectangles.begin(), rectangles.end(), int64_t{0});
  const auto count = static_cast<int64_t>(members);
  std::vector<int32_t> wanted(members);
  for (size_t i = 0; i < members; ++i) {
    const bool one_more = static_cast<int64_t>(i) < all % count;
    wanted[order[i]] = static_cast<int32_t>(all / count + (one_more ? 1 : 0));
  }
  std::vector<AttentionLot> lots;
  std::vector<int32_t> has = rectangles;
  size_t last = members;
  for (const size_t from : order) {
    int32_t next = 0;
    while (has[from] > wanted[from]) {
      // The last of the order that still takes has least.
      while (has[order[last - 1]] >= wanted[order[last - 1]]) --last;
      const size_t to = order[last - 1];
      const int32_t slices = std::min(has[from] - wanted[from], wanted[to] - has[to]);
      lots.push_back({from, to, next, slices});
      next += slices;
      has[from] -= slices;
      has[to] += slices;
    }
  }
  return lots;
}

std::vector<int32_t> rectangles_after(std::vector<int32_t> rectangles,
                                      const std::vector<AttentionLot>& lots) {
  for (const AttentionLot& lot : lots) {
    rectangles[lot.from] -= lot.slices;
    rectangles[lot.to] += lot.slices;
  }
  return rectangles;
}

std::vector<std::vector<double>> meeting_times(const Schedule& schedule) {
  const auto ranks = static_cast<int64_t>(schedule.ranks.size());
  // The meeting of forwards that the first one of backwards follows.
  const int64_t alone = schedule.stages / ranks * schedule.slices + ranks - 2;
  std::vector<std::vector<double>> times;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<double>& own = times.emplace_back();
    int64_t forwards = 0, backwards = 0, time = 0;
    for (const Action& action : schedule.ranks[static_cast<size_t>(rank)]) {
      if (action.kind == ActionKind::forward) {
        const int64_t meeting = forwards++ + rank;
        time = meeting + std::max<int64_t>(0, meeting - alone);
      } else if (action.kind == ActionKind::backward) {
        time = alone + 2 * (backwards++ + ranks - 1 - rank) + 1;
      }
      own.push_back(static_cast<double>(time));
    }
  }
  return times;
}

bool meets_few(const Schedule& schedule, const Action& action, int32_t ranks) {
  // The slice that a first rank would be at that goes on beyond the sequence, either way.
  const int32_t of_first = action.slice + action.stage % ranks;
  const bool forward = action.kind == ActionKind::forward;
  const bool in_first_chunk = action.stage < ranks;
  const bool in_last_chunk = action.stage >= schedule.stages - ranks;
  const bool begins = action.microbatch == 0 && (forward ? in_first_chunk : in_last_chunk);
  const bool ends =
      action.microbatch == schedule.microbatches - 1 && (forward ? in_last_chunk : in_first_chunk);
  const bool before = of_first <= ranks - 2, after = of_first >= schedule.slices;
  return forward ? (begins && before) || (ends && after) : (begins && after) || (ends && before);
}

std::vector<AttentionShare> attention_shares(const Schedule& schedule) {
  struct Member {
    int32_t rank;
    Action action;
  };
  std::map<double, std::vector<Member>> meetings;
  const std::vector<std::vector<double>> times = meeting_times(schedule);
  for (size_t rank = 0; rank < times.size(); ++rank) {
    for (size_t i = 0; i < times[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      if (!is_compute(action.kind)) continue;
      meetings[times[rank][i]].push_back({static_cast<int32_t>(rank), action});
    }
  }
  std::vector<AttentionShare> shares;
  for (const auto& [time, members] : meetings) {
    if (members.size() < schedule.ranks.size()) continue;
    std::vector<int32_t> rectangles;
    for (const Member& member : members) rectangles.push_back(member.action.slice);
    for (const AttentionLot& lot : evened_out(rectangles)) {
      const Member &from = members[lot.from], &to = members[lot.to];
      shares.push_back({from.rank, to.rank, from.action, to.action, lot.first, lot.slices});
    }
  }
  return shares;
}

}  // namespace longspan
