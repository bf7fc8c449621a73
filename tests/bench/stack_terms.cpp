// The use of each term of the stacks: how the errors of published tables change if the term has the
// value of the stack that it inherits from.
//
//     stack_terms tests/published
//
// A row is a term that a stack sets itself, with the table that it moves most, in points of the
// mean |error|; the last rows move no table by its rounding, a tenth of a point, and no verdict on
// whether a run fits.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "validation/predict.h"
#include "validation/report.h"

namespace longspan {
namespace {

// Figures of one table: mean |error| of time, memory and longest sequence; wrong verdicts.
using Errors = std::array<double, 4>;
constexpr const char* kFigures[] = {"step time", "memory", "longest sequence", "wrong verdicts"};

// Cases of one stack, and what they are predicted to be with all its terms.
struct Group {
  std::vector<PublishedCase> cases;
  std::vector<CasePrediction> predictions;
};

std::map<std::string, Errors> errors_of(const std::vector<PublishedCase>& cases,
                                        const std::vector<CasePrediction>& predictions) {
  std::map<std::string, Errors> errors;
  const ValidationReport report = make_report(cases, predictions, predictions);
  const auto put = [&](const std::vector<TableReport>& tables) {
    for (const TableReport& t : tables) {
      const auto wrong = static_cast<double>(t.fit.trained_refused + t.fit.failed_fits);
      if (t.predicted > 0) errors[t.table] = {t.step.mean, t.peak.mean, t.longest.mean, wrong};
    }
  };
  put(report.assumed_tables);
  put(report.tables);
  return errors;
}

struct Row {
  std::string stack, term, table, figure;
  double value = 0, parent = 0;
  double moved = 0;  // the largest change: of errors in points, or of verdicts
};

// The largest change of any table's figure.
void keep_largest(Row& row, const std::map<std::string, Errors>& with,
                  const std::map<std::string, Errors>& without) {
  for (const auto& [table, errors] : without) {
    for (size_t i = 0; i < errors.size(); ++i) {
      const double before = with.at(table)[i];
      const double change = (errors[i] - before) * (i < 3 ? 100 : 1);
      if (std::abs(change) <= std::abs(row.moved)) continue;
      row.moved = change;
      row.table = table;
      row.figure = kFigures[i];
    }
  }
}

int run(const std::string& path) {
  std::map<std::string, Group> of_stack;
  CasePredictor with;
  for (const PublishedCase& c : read_cases(path)) {
    if (!c.left_out.empty() || c.measured.speedup) continue;
    of_stack[c.stack].cases.push_back(c);
    of_stack[c.stack].predictions.push_back(with.predict(c));
  }
  std::vector<Stack> stacks;
  for (const std::string& name : stack_names()) stacks.push_back(load_stack(name));

  std::vector<Row> rows;
  for (const Stack& stack : stacks) {
    if (stack.like.empty()) continue;
    const Stack parent = load_stack(stack.like);
    for (const std::string& key : term_keys()) {
      const StackTerm own = term_of(stack, key);
      if (own == term_of(parent, key)) continue;
      CasePredictor without;
      Group all;
      std::vector<CasePrediction> changed;
      for (Stack heir : stacks) {
        if (term_of(heir, key) != own) continue;
        term_of(heir, key) = term_of(parent, key);
        without.use(heir);
        const Group& its = of_stack[heir.name];
        for (size_t i = 0; i < its.cases.size(); ++i) {
          all.cases.push_back(its.cases[i]);
          all.predictions.push_back(its.predictions[i]);
          changed.push_back(without.predict(its.cases[i]));
        }
      }
      Row row{stack.name, key, "-", "-", own.value, term_of(parent, key).value, 0};
      keep_largest(row, errors_of(all.cases, all.predictions), errors_of(all.cases, changed));
      rows.push_back(row);
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::abs(a.moved) > std::abs(b.moved);
  });
  fmt::print("{:<28}{:<24}{:>10}{:>12}{:>10}  table\n", "stack", "term", "value", "inherited",
             "moves");
  for (const Row& r : rows) {
    fmt::print("{:<28}{:<24}{:>10.4g}{:>12.4g}{:>+10.2f}  {}, {}\n", r.stack, r.term, r.value,
               r.parent, r.moved, r.table, r.figure);
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  std::string path;
  CLI::App app("What each term of the stacks buys on published tables");
  app.add_option("path", path, "A folder of cases")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    return longspan::run(path);
  } catch (const longspan::Error& e) {
    fmt::print(stderr, "stack_terms: {}\n", e.what());
    return 2;
  }
}
