// Fits terms of a reference stack to tables of published cases, and again with each table left out:
// where the values of "fitted: " terms, and their `without`, come from.
//
//     stack_fit tests/published --stack megatron-deepspeed --terms host_kernel_s,micro_batch_s
//               --tables vtrain-single-node,vtrain-multi-node
//     stack_fit tests/published --stack megatron-deepspeed-2024 --terms product_share,step_s
//               --tables fpdt-ablation --without fpdt-figure-4
//     stack_fit tests/published --stack sail-megatron --terms idle_speedup --tables zero-bubble
//               --cases 1f1b, --relative
//
// --without begins with what the stacks are without a table: what is found from others is then a
// value that owes it nothing. --relative judges only how runs of one model on as many GPUs differ.
// Minimised is the mean over the tables of the mean |log(predicted / measured)|, term by term in a
// few sweeps, and a little for the distance from --start, what one would assume without any table:
// so a term about which the tables say nothing stays there. Stacks that inherit a term from this
// one move with it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "validation/measure.h"
#include "validation/predict.h"

namespace longspan {
namespace {

struct Flags {
  std::string path, stack, without, cases;
  std::vector<std::string> terms, tables;
  std::vector<double> start;
  double hold = 0.01;
  bool memory = false, relative = false;
  int64_t sweeps = 3;
};

// The published cases of one table with what was measured.
struct Target {
  std::vector<PublishedCase> cases;
  std::vector<double> measured;
};

class Fit {
 public:
  Fit(const Flags& flags, std::map<std::string, Target> targets)
      : flags_(flags), targets_(std::move(targets)) {
    for (const std::string& name : stack_names()) {
      stacks_.push_back(load(name));
      predictor_.use(stacks_.back());
    }
  }

  // Mean |log| error of a table with these values.
  double error(const std::string& table, const std::vector<double>& values) {
    set(values);
    const Target& target = targets_.at(table);
    std::map<std::pair<std::string, int64_t>, std::vector<double>> logs;  // by model and GPUs
    for (size_t i = 0; i < target.cases.size(); ++i) {
      const PublishedCase& c = target.cases[i];
      const CasePrediction p = predictor_.predict(c);
      if (!(flags_.memory ? p.peak_bytes.has_value() : p.step_seconds.has_value())) continue;
      const double predicted = flags_.memory ? static_cast<double>(*p.peak_bytes) : *p.step_seconds;
      logs[{c.model, c.gpus}].push_back(std::log(predicted / target.measured[i]));
    }
    double sum = 0, count = 0;
    for (const auto& [run, of_run] : logs) {
      const auto n = static_cast<double>(of_run.size());
      const double offset =
          flags_.relative ? std::accumulate(of_run.begin(), of_run.end(), 0.0) / n : 0;
      for (const double log : of_run) sum += std::abs(log - offset);
      count += n;
    }
    return count > 0 ? sum / count : 0;
  }

  std::vector<double> start() {
    if (!flags_.start.empty()) return flags_.start;
    Stack stack = load(flags_.stack);
    std::vector<double> values;
    for (const std::string& term : flags_.terms) values.push_back(term_of(stack, term).value);
    return values;
  }

  // Each term in turn by golden section, within a factor of four of where it stands.
  std::vector<double> fit(const std::vector<std::string>& tables) {
    const std::vector<double> from = start();
    std::vector<double> values = from;
    const auto objective = [&](size_t i, double log_value) {
      std::vector<double> at = values;
      at[i] = std::exp(log_value);
      double sum = 0, away = 0;
      for (const std::string& table : tables) sum += error(table, at);
      for (size_t j = 0; j < at.size(); ++j) away += std::pow(std::log(at[j] / from[j]), 2);
      return sum / static_cast<double>(tables.size()) + flags_.hold * away;
    };
    for (int64_t sweep = 0; sweep < flags_.sweeps; ++sweep) {
      for (size_t i = 0; i < values.size(); ++i) {
        constexpr double kGolden = 0.6180339887498949;
        const double middle = std::log(values[i]);
        double low = middle - std::log(4), high = middle + std::log(4);
        double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
        double at_a = objective(i, a), at_b = objective(i, b);
        while (high - low > 0.02) {
          if (at_a <= at_b) {
            high = b, b = a, at_b = at_a;
            at_a = objective(i, a = high - kGolden * (high - low));
          } else {
            low = a, a = b, at_a = at_b;
            at_b = objective(i, b = low + kGolden * (high - low));
          }
        }
        const double found = (low + high) / 2;
        if (objective(i, found) < objective(i, middle)) values[i] = std::exp(found);
      }
    }
    return values;
  }

 private:
  Stack load(const std::string& name) const {
    return without_table(load_stack(name), flags_.without);
  }

  void set(const std::vector<double>& values) {
    Stack of = load(flags_.stack);
    for (Stack stack : stacks_) {
      bool moved = false;
      for (size_t i = 0; i < values.size(); ++i) {
        StackTerm& term = term_of(stack, flags_.terms[i]);
        if (term != term_of(of, flags_.terms[i])) continue;
        term.value = values[i];
        moved = true;
      }
      if (moved) predictor_.use(stack);
    }
  }

  const Flags& flags_;
  std::map<std::string, Target> targets_;
  std::vector<Stack> stacks_;
  CasePredictor predictor_;
};

std::map<std::string, Target> targets_of(const Flags& flags) {
  std::map<std::string, Target> targets;
  for (const PublishedCase& c : read_cases(flags.path)) {
    if (!c.left_out.empty() || !c.assumed.empty() || c.measured.out_of_memory) continue;
    if (!c.name.starts_with(flags.cases)) continue;
    if (std::find(flags.tables.begin(), flags.tables.end(), c.table) == flags.tables.end())
      continue;
    const std::optional<double> seconds = measured_step_seconds(c);
    const std::optional<int64_t> bytes = measured_peak_bytes(c);
    if (flags.memory ? !bytes : !seconds) continue;
    targets[c.table].cases.push_back(c);
    targets[c.table].cases.back().measured.longest = false;  // not asked for, and slow
    targets[c.table].measured.push_back(flags.memory ? static_cast<double>(*bytes) : *seconds);
  }
  for (const std::string& table : flags.tables) {
    if (!targets.contains(table)) {
      throw bad_input("--tables: {} measures nothing of the kind", table);
    }
  }
  return targets;
}

void print(const std::string& what, const std::vector<double>& values, Fit& fit,
           const Flags& flags) {
  fmt::print("{}\n", what);
  for (size_t i = 0; i < values.size(); ++i) {
    fmt::print("  {:<24}{:.4g}\n", flags.terms[i], values[i]);
  }
  for (const std::string& table : flags.tables) {
    fmt::print("  {:<24}mean |error| {:.2f} %\n", table, fit.error(table, values) * 100);
  }
}

int run(const Flags& flags) {
  if (!flags.start.empty() && flags.start.size() != flags.terms.size()) {
    throw bad_input("--start: expected {} values, as many as terms", flags.terms.size());
  }
  Fit fit(flags, targets_of(flags));
  print("at the start", fit.start(), fit, flags);
  print("fitted", fit.fit(flags.tables), fit, flags);
  for (const std::string& table : flags.tables) {
    std::vector<std::string> others = flags.tables;
    std::erase(others, table);
    if (!others.empty()) print("without " + table, fit.fit(others), fit, flags);
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  longspan::Flags flags;
  CLI::App app("Fits terms of a reference stack to tables of published cases");
  app.add_option("path", flags.path, "A file of cases, or a folder of them")->required();
  app.add_option("--stack", flags.stack, "The stack whose terms they are")->required();
  app.add_option("--terms", flags.terms, "Keys of the stack's file")->required()->delimiter(',');
  app.add_option("--tables", flags.tables, "Tables to fit to")->required()->delimiter(',');
  app.add_option("--cases", flags.cases, "Only those whose names begin with this");
  app.add_option("--without", flags.without, "A table that nothing may be fitted to");
  app.add_option("--start", flags.start, "Values to begin at; else those of the file")
      ->delimiter(',');
  app.add_option("--hold", flags.hold, "What a factor e away from the start costs, in error");
  app.add_flag("--relative", flags.relative, "Up to one factor for each model and number of GPUs");
  app.add_flag("--memory", flags.memory, "Fit memory, not time");
  app.add_option("--sweeps", flags.sweeps, "Over all terms");
  CLI11_PARSE(app, argc, argv);
  try {
    return longspan::run(flags);
  } catch (const longspan::Error& e) {
    fmt::print(stderr, "stack_fit: {}\n", e.what());
    return 2;
  }
}
