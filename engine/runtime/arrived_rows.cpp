#include "engine/runtime/arrived_rows.h"

#include <cstring>

#include "planner/program/expert_tiles.h"

namespace longspan {

ArrivedRows::ArrivedRows(const Experts& experts, int64_t ranks, const std::byte* arrivals)
    : count_(experts.count),
      ranks_(ranks),
      first_(static_cast<size_t>(ranks * (experts.count + 1))) {
  const auto bytes = static_cast<size_t>(experts.count + 1) * sizeof(int64_t);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::memcpy(&first_[static_cast<size_t>(rank * (count_ + 1))],
                arrivals + rank * first_rows_bytes(experts), bytes);
  }
}

int64_t ArrivedRows::rows(int64_t rank) const {
  const int64_t begin = rank * experts_of_rank(), end = begin + experts_of_rank();
  int64_t rows = 0;
  for (int64_t source = 0; source < ranks_; ++source) {
    rows += first(source, end) - first(source, begin);
  }
  return rows;
}

ArrivedRows::FirstRows ArrivedRows::first_rows(int64_t rank) const {
  FirstRows rows{};
  for (int64_t i = 0; i < experts_of_rank(); ++i) {
    rows[i + 1] = rows[i];
    for (int64_t source = 0; source < ranks_; ++source) {
      rows[i + 1] += rows_of(source, rank * experts_of_rank() + i);
    }
  }
  return rows;
}

std::vector<ArrivedRows::Part> ArrivedRows::parts(int64_t source, int64_t destination) const {
  const FirstRows to = first_rows(destination);
  std::vector<Part> parts;
  for (int64_t i = 0; i < experts_of_rank(); ++i) {
    const int64_t expert = destination * experts_of_rank() + i, rows = rows_of(source, expert);
    if (rows == 0) continue;
    int64_t before = 0;
    for (int64_t other = 0; other < source; ++other) before += rows_of(other, expert);
    parts.push_back({first(source, expert), to[i] + before, rows});
  }
  return parts;
}

}  // namespace longspan
