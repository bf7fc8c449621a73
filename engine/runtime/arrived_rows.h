// The rows that the ranks of an expert group send each other of one tile, for any backend.
//
// Every rank has its rows in the order of experts; the first rows of these, of all ranks, are the
// tile's arrivals (planner/program/expert_tiles.h). A rank has a range of the experts, and keeps
// the rows that it gets in their order, too, those of one expert in the order of the ranks that
// sent them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

class ArrivedRows {
 public:
  /// `ranks`: of the group. Copies the arrivals.
  ArrivedRows(const Experts& experts, int64_t ranks, const std::byte* arrivals);

  int64_t ranks() const { return ranks_; }
  int64_t experts_of_rank() const { return count_ / ranks_; }
  /// The rows that a rank gets.
  int64_t rows(int64_t rank) const;
  /// The first rows of the rank's experts among those that it gets, and the end of the last.
  using FirstRows = std::array<int64_t, kMostExperts + 1>;
  FirstRows first_rows(int64_t rank) const;

  /// Rows of one expert from one rank to another, adjacent on both: the first row on either.
  struct Part {
    int64_t from, to, rows;
  };
  /// Those that are not empty, in the order of experts.
  std::vector<Part> parts(int64_t source, int64_t destination) const;

 private:
  int64_t first(int64_t rank, int64_t expert) const {
    return first_[static_cast<size_t>(rank * (count_ + 1) + expert)];
  }
  int64_t rows_of(int64_t rank, int64_t expert) const {
    return first(rank, expert + 1) - first(rank, expert);
  }

  int64_t count_, ranks_;
  std::vector<int64_t> first_;
};

}  // namespace longspan
