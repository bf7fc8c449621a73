// Booleans in a MILP of which some are known beforehand. Internal to planner/schedule/solver.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/solver/milp.h"

namespace longspan {

/// A boolean in a MILP: a known value, or a column.
struct Choice {
  int32_t column = -1;  ///< -1: known
  bool yes = false;     ///< the value if known; else whether 1 in the column means yes

  bool is_known(bool value) const { return column < 0 && yes == value; }
  /// The value in a solution.
  bool is_yes(const std::vector<double>& values) const {
    return column < 0 ? yes : (values[column] > 0.5) == yes;
  }
};

inline constexpr Choice kAlways{.column = -1, .yes = true};
inline constexpr Choice kNever{.column = -1, .yes = false};

/// A sum of columns and choices; the known choices add up in a number.
struct Sum {
  std::vector<Term> terms = {};
  double known = 0;

  Sum& add(double factor, int32_t column) {
    terms.push_back({column, factor});
    return *this;
  }
  Sum& add(double factor, const Choice& choice) {
    if (choice.column < 0) {
      if (choice.yes) known += factor;
    } else {
      terms.push_back({choice.column, choice.yes ? factor : -factor});
      if (!choice.yes) known += factor;
    }
    return *this;
  }
};

}  // namespace longspan
