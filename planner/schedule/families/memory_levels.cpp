#include "planner/schedule/families/memory_levels.h"

#include <algorithm>

namespace longspan {

std::vector<int64_t> memory_levels(const ScheduleRequest& request, int64_t held, double most,
                                   int64_t actions) {
  constexpr int64_t kActions = 3'000'000;      // takes a second or less
  constexpr int64_t kFewest = 4, kFinest = 8;  // parts of the whole memory, and of a microbatch
  const int64_t ranks = request.ranks, whole = held * ranks;
  if (whole <= 0) return {};
  const auto affordable = static_cast<int64_t>(
      static_cast<double>(kActions) / static_cast<double>(std::max<int64_t>(1, actions)) / most);
  int64_t parts = std::min(kFewest, ranks);
  for (int64_t more = 2 * parts; more < ranks && more <= affordable; more *= 2) parts = more;
  for (int64_t more = ranks; more <= kFinest * ranks && more <= affordable; more *= 2) parts = more;
  std::vector<int64_t> levels;
  for (auto part = static_cast<int64_t>(most * static_cast<double>(parts)); part > 0; --part) {
    const int64_t level = whole / parts * part + whole % parts * part / parts;
    if (level > 0 && (request.memory_limit == 0 || level <= request.memory_limit)) {
      levels.push_back(level);
    }
  }
  return levels;
}

int64_t lowest_level(const std::vector<int64_t>& levels, int64_t least, int64_t level) {
  if (level == 0) return 0;
  int64_t lowest = level;
  for (const int64_t other : levels) {
    if (other >= least && other > 0) lowest = std::min(lowest, other);
  }
  return lowest;
}

}  // namespace longspan
