#include "validation/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/median.h"
#include "frameworks/model/stack.h"
#include "validation/measure.h"

namespace longspan {
namespace {

// measured / predicted, from the error predicted / measured - 1.
double ratio_of(double error) { return 1 / (1 + error); }

// The errors that a table's summaries are computed from.
struct Collected {
  struct AgainstPeer {
    std::vector<double> ours_step, peer_step, ours_peak, peer_peak;
    void append(const CaseErrors& ours, const std::optional<double>& step,
                const std::optional<double>& peak) {
      if (ours.step && step) {
        ours_step.push_back(*ours.step);
        peer_step.push_back(*step);
      }
      if (ours.peak && peak) {
        ours_peak.push_back(*ours.peak);
        peer_peak.push_back(*peak);
      }
    }
  };
  // Errors predicted without the table, and the number of measurements in the range.
  struct Without {
    std::vector<double> errors;
    int64_t in_range = 0;
    void append(const std::optional<double>& error, bool within) {
      if (!error) return;
      errors.push_back(*error);
      if (within) ++in_range;
    }
    void append(const std::optional<double>& error, const PredictionInterval& interval) {
      append(error, error && interval.holds(ratio_of(*error)));
    }
    HeldOut summary() const { return {summarize(errors), in_range}; }
  };
  TableReport table;
  std::vector<double> step, peak, longest, mfu, speedup;
  Without step_without, peak_without, longest_without;
  std::map<std::string, AgainstPeer> peers;
};

template <class T>
std::optional<double> error_of(const std::optional<T>& predicted,
                               const std::optional<T>& measured) {
  if (!predicted || !measured) return std::nullopt;
  return static_cast<double>(*predicted) / static_cast<double>(*measured) - 1;
}

// The last length that may be the longest: one token below the length that did not train.
int64_t last_possible(const PublishedCase& c) {
  return c.measured.longest_below.value_or(c.sequence + 1) - 1;
}

std::optional<double> length_error(const CasePrediction& p, const PublishedCase& c) {
  const std::optional<int64_t> predicted = p.longest_sequence;
  if (!predicted) return std::nullopt;
  return error_of(predicted, std::optional(std::clamp(*predicted, c.sequence, last_possible(c))));
}

std::optional<bool> length_in_range(const CasePrediction& p, const PublishedCase& c) {
  if (!p.longest_range) return std::nullopt;
  return p.longest_range->low <= last_possible(c) && c.sequence <= p.longest_range->high;
}

void append(std::vector<double>& errors, const std::optional<double>& error) {
  if (error) errors.push_back(*error);
}

// The measured step time; nothing if the only figure counts FLOPs of an unknown model.
std::optional<double> step_or_nothing(const PublishedCase& c) {
  try {
    return measured_step_seconds(c);
  } catch (const Error&) {
    return std::nullopt;
  }
}

CaseErrors errors_of(const PublishedCase& c, const CasePrediction& p,
                     const CasePrediction& left_out) {
  CaseErrors errors;
  errors.measured_step_seconds = step_or_nothing(c);
  errors.measured_peak_bytes = measured_peak_bytes(c);
  if (c.peer) {
    errors.peer_step = error_of(c.peer->step_seconds, errors.measured_step_seconds);
    errors.peer_peak = error_of(c.peer->peak_bytes, errors.measured_peak_bytes);
  }
  if (!c.left_out.empty()) return errors;
  errors.step = error_of(p.step_seconds, errors.measured_step_seconds);
  errors.peak = error_of(p.peak_bytes, errors.measured_peak_bytes);
  errors.step_left_out = error_of(left_out.step_seconds, errors.measured_step_seconds);
  errors.peak_left_out = error_of(left_out.peak_bytes, errors.measured_peak_bytes);
  if (errors.step && c.measured.mfu) {
    errors.mfu = *restated(c, *p.step_seconds).mfu - *c.measured.mfu;
  }
  if (c.measured.longest) {
    errors.longest = length_error(p, c);
    errors.longest_left_out = length_error(left_out, c);
    errors.longest_in_range = length_in_range(left_out, c);
  }
  return errors;
}

double tokens_per_second(const PublishedCase& c, double step_seconds) {
  return *restated(c, step_seconds).tokens_per_second;
}

// REQUIRES: the case has a speed-up that was measured.
void compare_speedup(CaseErrors& errors, const PublishedCase& c, const CasePrediction& p,
                     const PublishedCase& base, const CasePrediction& of_base) {
  if (!p.step_seconds || !of_base.step_seconds) return;
  const double predicted =
      tokens_per_second(c, *p.step_seconds) / tokens_per_second(base, *of_base.step_seconds);
  const CaseSpeedup& measured = *c.measured.speedup;
  errors.predicted_speedup = predicted;
  errors.speedup = predicted / std::clamp(predicted, measured.low, measured.high) - 1;
}

void count_fit(FitCounts& fit, bool trained, bool fits) {
  if (trained) ++(fits ? fit.trained_fits : fit.trained_refused);
  if (!trained) ++(fits ? fit.failed_fits : fit.failed_refused);
}

void collect(Collected& into, const PublishedCase& c, const CasePrediction& p,
             const CaseErrors& errors, const PredictionIntervals& ranges) {
  TableReport& table = into.table;
  ++table.cases;
  if (!c.left_out.empty()) {
    ++table.left_out[c.left_out];
    return;
  }
  if (!c.assumed.empty()) ++table.assumed[c.assumed];
  if (!p.reason.empty()) {
    ++table.not_covered[p.reason];
    return;
  }
  ++table.predicted;
  append(into.step, errors.step);
  append(into.peak, errors.peak);
  append(into.longest, errors.longest);
  into.step_without.append(errors.step_left_out, ranges.step_under(family_of(c)).of(c.table));
  into.peak_without.append(errors.peak_left_out, ranges.memory_under(family_of(c)).of(c.table));
  into.longest_without.append(errors.longest_left_out, errors.longest_in_range.value_or(false));
  append(into.mfu, errors.mfu);
  append(into.speedup, errors.speedup);
  if (p.fits) count_fit(table.fit, !c.measured.out_of_memory, *p.fits);
  if (p.verdict == Fit::at_risk) ++table.fit.at_risk;
  if (c.peer) into.peers[c.peer->name].append(errors, errors.peer_step, errors.peer_peak);
  if (!p.as_plan && (errors.plan_step || errors.plan_peak)) {
    into.peers["plan"].append(errors, errors.plan_step, errors.plan_peak);
  }
}

TableReport finished(Collected collected) {
  TableReport table = std::move(collected.table);
  table.step = summarize(collected.step);
  table.peak = summarize(collected.peak);
  table.longest = summarize(collected.longest);
  table.step_left_out = collected.step_without.summary();
  table.peak_left_out = collected.peak_without.summary();
  table.longest_left_out = collected.longest_without.summary();
  table.mfu = summarize(collected.mfu);
  table.speedup = summarize(collected.speedup);
  for (const auto& [name, against] : collected.peers) {
    table.peers.push_back({name, summarize(against.ours_step), summarize(against.peer_step),
                           summarize(against.ours_peak), summarize(against.peer_peak)});
  }
  return table;
}

std::vector<TableReport> finished(std::vector<Collected> tables) {
  std::vector<TableReport> reports;
  for (Collected& table : tables) reports.push_back(finished(std::move(table)));
  return reports;
}

// Tables in the order of their first case, and all together.
struct Tables {
  std::vector<Collected> tables;
  std::map<std::string, size_t> index_of;
  Collected overall;
  Collected& of(const PublishedCase& c) {
    const auto [it, is_new] = index_of.emplace(c.table, tables.size());
    if (is_new) {
      TableReport& table = tables.emplace_back().table;
      table.table = c.table;
      table.file = c.file;
      table.source = c.source;
    }
    return tables[it->second];
  }
};

}  // namespace

std::string family_of(const PublishedCase& c) {
  return is_stack(c.stack) ? load_stack(c.stack).family : std::string();
}

ErrorSummary summarize(const std::vector<double>& errors) {
  ErrorSummary summary;
  if (errors.empty()) return summary;
  std::vector<double> sizes;
  for (const double error : errors) {
    sizes.push_back(std::abs(error));
    summary.mean += std::abs(error);
    summary.bias += error;
    if (std::abs(error) > std::abs(summary.worst)) summary.worst = error;
  }
  summary.count = static_cast<int64_t>(errors.size());
  summary.mean /= static_cast<double>(errors.size());
  summary.bias /= static_cast<double>(errors.size());
  summary.median = median(std::move(sizes));
  return summary;
}

ValidationReport make_report(const std::vector<PublishedCase>& cases,
                             const std::vector<CasePrediction>& predictions,
                             const std::vector<CasePrediction>& left_out,
                             const std::vector<CasePrediction>& as_plans,
                             const PredictionIntervals& ranges) {
  ValidationReport report;
  Tables counted, assumed;
  std::map<std::pair<std::string, std::string>, size_t> case_of;
  for (size_t i = 0; i < cases.size(); ++i) case_of[{cases[i].table, cases[i].name}] = i;
  for (size_t i = 0; i < cases.size(); ++i) {
    const PublishedCase& c = cases[i];
    CaseErrors errors = errors_of(c, predictions[i], left_out[i]);
    if (const auto& speedup = c.measured.speedup; speedup && c.left_out.empty()) {
      const size_t base = case_of.at({c.table, speedup->over});
      compare_speedup(errors, c, predictions[i], cases[base], predictions[base]);
    }
    if (!as_plans.empty() && c.left_out.empty()) {
      errors.plan_step = error_of(as_plans[i].step_seconds, errors.measured_step_seconds);
      errors.plan_peak = error_of(as_plans[i].peak_bytes, errors.measured_peak_bytes);
    }
    report.cases.push_back(errors);
    counted.of(c);
    Tables& tables = c.assumed.empty() || !c.left_out.empty() ? counted : assumed;
    collect(tables.of(c), c, predictions[i], errors, ranges);
    collect(tables.overall, c, predictions[i], errors, ranges);
  }
  report.tables = finished(std::move(counted.tables));
  report.overall = finished(std::move(counted.overall));
  report.assumed_tables = finished(std::move(assumed.tables));
  report.assumed_overall = finished(std::move(assumed.overall));
  return report;
}

PredictionIntervals intervals_of(const std::vector<PublishedCase>& cases,
                                 const ValidationReport& report) {
  Ratios step, memory, plan_step;
  std::map<std::string, Ratios> families, memory_families;
  std::set<std::string> measured_stacks;
  const auto put = [](Ratios& ratios, const std::string& table,
                      const std::optional<double>& error) {
    if (error) ratios[table].push_back(ratio_of(*error));
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i].assumed.empty()) continue;
    put(step, cases[i].table, report.cases[i].step_left_out);
    put(families[family_of(cases[i])], cases[i].table, report.cases[i].step_left_out);
    put(memory, cases[i].table, report.cases[i].peak_left_out);
    put(memory_families[family_of(cases[i])], cases[i].table, report.cases[i].peak_left_out);
    put(plan_step, cases[i].table, report.cases[i].plan_step);
    if (report.cases[i].peak) measured_stacks.insert(cases[i].stack);
  }
  PredictionIntervals intervals;
  intervals.measured_stacks = measured_stacks;
  intervals.step = calibrate(step);
  intervals.memory = calibrate(memory);
  intervals.plan_step = calibrate(plan_step);
  for (const auto& [family, ratios] : families) {
    if (enough(ratios)) intervals.families[family] = calibrate(ratios);
  }
  for (const auto& [family, ratios] : memory_families) {
    if (enough(ratios)) intervals.memory_families[family] = calibrate(ratios);
  }
  return intervals;
}

}  // namespace longspan
