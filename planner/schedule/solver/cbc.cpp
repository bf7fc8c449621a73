// solve() of milp.h by COIN-OR's CBC.
#include <coin/Cbc_C_Interface.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "planner/schedule/solver/milp.h"

namespace longspan {
namespace {

struct Delete {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};
using Model = std::unique_ptr<Cbc_Model, Delete>;

// The terms of a row, summed so that each column appears once.
std::vector<Term> added_up(std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end(),
            [](const Term& a, const Term& b) { return a.column < b.column; });
  size_t kept = 0;
  for (const Term& term : terms) {
    if (kept > 0 && terms[kept - 1].column == term.column) {
      terms[kept - 1].factor += term.factor;
    } else {
      terms[kept++] = term;
    }
  }
  terms.resize(kept);
  return terms;
}

void load(Cbc_Model* model, const Milp& milp) {
  std::vector<std::vector<std::pair<int, double>>> by_column(milp.columns.size());
  std::vector<double> row_lower, row_upper;
  for (const Milp::Row& row : milp.rows) {
    for (const Term& term : added_up(row.terms)) {
      by_column[term.column].emplace_back(static_cast<int>(row_lower.size()), term.factor);
    }
    row_lower.push_back(row.lower);
    row_upper.push_back(row.upper);
  }
  std::vector<CoinBigIndex> starts = {0};
  std::vector<int> indices;
  std::vector<double> factors, lower, upper, prices;
  for (size_t i = 0; i < milp.columns.size(); ++i) {
    for (const auto& [row, factor] : by_column[i]) {
      indices.push_back(row);
      factors.push_back(factor);
    }
    starts.push_back(static_cast<CoinBigIndex>(indices.size()));
    lower.push_back(milp.columns[i].lower);
    upper.push_back(milp.columns[i].upper);
    prices.push_back(milp.columns[i].price);
  }
  Cbc_loadProblem(model, static_cast<int>(lower.size()), static_cast<int>(row_lower.size()),
                  starts.data(), indices.data(), factors.data(), lower.data(), upper.data(),
                  prices.data(), row_lower.data(), row_upper.data());
  for (size_t i = 0; i < milp.columns.size(); ++i) {
    if (milp.columns[i].whole) Cbc_setInteger(model, static_cast<int>(i));
  }
}

Stop stop_of(Cbc_Model* model) {
  if (Cbc_isProvenOptimal(model)) return Stop::optimal;
  if (Cbc_isProvenInfeasible(model)) return Stop::infeasible;
  if (Cbc_isNodeLimitReached(model)) return Stop::nodes;
  if (Cbc_isSecondsLimitReached(model)) return Stop::seconds;
  throw failed("the solver gave up, with status {} of its own; try a smaller question",
               Cbc_secondaryStatus(model));
}

}  // namespace

MilpSolution solve(const Milp& milp, const SolverLimits& limits, std::span<const Term> start) {
  static std::mutex one_at_a_time;  // CBC keeps its parameters in static variables
  const std::lock_guard guard(one_at_a_time);
  const Model model(Cbc_newModel());
  load(model.get(), milp);
  Cbc_setLogLevel(model.get(), 0);
  Cbc_setParameter(model.get(), "timeMode", "elapsed");
  Cbc_setParameter(model.get(), "randomSeed", "1");
  Cbc_setParameter(model.get(), "randomCbcSeed", "1");
  if (!limits.cuts) {
    for (const char* kind : {"cuts", "preprocess", "heuristics"}) {
      Cbc_setParameter(model.get(), kind, "off");
    }
  }
  Cbc_setMaximumSeconds(model.get(), limits.seconds);
  Cbc_setMaximumNodes(model.get(), static_cast<int>(std::clamp<int64_t>(
                                       limits.nodes, 0, std::numeric_limits<int>::max())));
  if (!start.empty()) {
    std::vector<int> columns;
    std::vector<double> values;
    for (const Term& term : start) {
      columns.push_back(term.column);
      values.push_back(term.factor);
    }
    Cbc_setMIPStartI(model.get(), static_cast<int>(columns.size()), columns.data(), values.data());
  }
  Cbc_solve(model.get());
  MilpSolution solution;
  solution.stop = stop_of(model.get());
  solution.nodes = Cbc_getNodeCount(model.get());
  solution.bound = Cbc_getBestPossibleObjValue(model.get());
  const double* values = Cbc_bestSolution(model.get());
  if (values != nullptr && solution.stop != Stop::infeasible) {
    solution.values.assign(values, values + milp.columns.size());
    for (size_t i = 0; i < milp.columns.size(); ++i) {
      solution.objective += milp.columns[i].price * solution.values[i];
    }
  }
  // After a complete search CBC's bound on open nodes has no meaning.
  if (solution.stop == Stop::optimal) solution.bound = solution.objective;
  return solution;
}

}  // namespace longspan
