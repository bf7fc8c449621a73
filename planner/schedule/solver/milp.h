// A mixed-integer linear program (MILP), and its solution by a solver.
//
// Columns are the variables, rows are bounded sums of them; the objective is minimized. The solver
// is COIN-OR's CBC: one thread, a fixed seed, no output. Its answer is deterministic unless time
// stopped it, so the first limit is the number of nodes of its search. A MILP is a plain value.
// solve() may be called from any thread; concurrent calls run one after another.
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
    std::vector<Term> terms;  ///< several terms of a column add up
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  /// Each add_ function returns the number of the column.
  int32_t add_number(double lower, double upper, double price = 0);
  int32_t add_whole(double lower, double upper, double price = 0);
  int32_t add_binary() { return add_whole(0, 1); }
  void at_least(double lower, std::vector<Term> terms);
  void at_most(double upper, std::vector<Term> terms);
  void equal(double value, std::vector<Term> terms);

  int64_t whole_columns() const;
};

struct SolverLimits {
  int64_t nodes = 2000;  ///< of the search tree; results do not depend on the machine
  double seconds = 60;   ///< a second limit
  /// Whether the solver runs cuts, presolve and heuristics before it branches: a gain unless the
  /// MILP is tight already.
  bool cuts = true;
};

enum class Stop {
  optimal,     ///< proven
  infeasible,  ///< no solution exists
  nodes,       ///< SolverLimits::nodes
  seconds,     ///< SolverLimits::seconds
};

struct MilpSolution {
  Stop stop = Stop::infeasible;
  std::vector<double> values;  ///< by column; empty if none was found
  double objective = 0;        ///< the objective of `values`
  double bound = 0;            ///< a lower bound on every solution's objective
  int64_t nodes = 0;
};

/// `start` is a warm start: a value (the factor) for every whole column; it is ignored if it cannot
/// be completed. Throws failed if the solver gives up, bad_input in a build without a solver.
/// REQUIRES: lower <= upper everywhere.
MilpSolution solve(const Milp& milp, const SolverLimits& limits, std::span<const Term> start = {});

}  // namespace longspan
