// A mixed integer linear programme, and what a solver makes of it.
//
// Columns are numbers to find, rows are sums of them within bounds; the objective is smallest. The
// solver is COIN-OR's CBC: one thread, a fixed seed, silent. Its answer is the same every time
// unless the clock stopped it, so limits are counted in nodes of its search first. A programme is a
// plain value; solve() may be called from any thread, and one call waits for another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

struct Term {
  int32_t column;
  double factor;
};

struct Milp {
  struct Column {
    double lower, upper, price;  ///< the objective is the sum of price * value
    bool whole;
  };
  struct Row {
    double lower, upper;
    std::vector<Term> terms;  ///< of one column several are added up
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  /// Each returns the number of the column.
  int32_t add_number(double lower, double upper, double price = 0);
  int32_t add_whole(double lower, double upper, double price = 0);
  int32_t add_binary() { return add_whole(0, 1); }
  void at_least(double lower, std::vector<Term> terms);
  void at_most(double upper, std::vector<Term> terms);
  void equal(double value, std::vector<Term> terms);

  int64_t whole_columns() const;
};

struct SolverLimits {
  int64_t nodes = 2000;  ///< of the search tree; the answer does not depend on the machine
  double seconds = 60;   ///< the second guard
  /// Whether the solver looks for cuts, a smaller programme and solutions by its own means before
  /// it branches: a gain unless the programme is tight already.
  bool cuts = true;
};

enum class Stop {
  optimal,     ///< proven
  infeasible,  ///< there is no solution
  nodes,       ///< SolverLimits::nodes
  seconds,     ///< SolverLimits::seconds
};

struct MilpSolution {
  Stop stop = Stop::infeasible;
  std::vector<double> values;  ///< by column; empty where none was found
  double objective = 0;        ///< of `values`
  double bound = 0;            ///< no solution is below
  int64_t nodes = 0;
};

/// `start` is a solution to begin with: a value (the factor) for every whole column; one that
/// cannot be completed is passed over. Throws failed where the solver gives up, bad_input in a
/// build without one. REQUIRES: lower <= upper everywhere.
MilpSolution solve(const Milp& milp, const SolverLimits& limits, std::span<const Term> start = {});

}  // namespace longspan
