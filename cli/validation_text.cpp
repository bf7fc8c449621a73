// The text output of `longspan validate`.
#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/validation.h"

namespace longspan::cli {
namespace {

std::string signed_percent(double share) { return fmt::format("{:+.1f} %", share * 100); }

template <class T, class Format>
std::string or_dash(const std::optional<T>& value, Format format) {
  return value ? format(*value) : std::string("-");
}

void add_summary(Table& table, const std::string& name, const std::string& what,
                 const ErrorSummary& errors, const HeldOut* left_out = nullptr) {
  if (errors.count == 0) return;
  std::vector<std::string> row = {name,
                                  what,
                                  fmt::format("{}", errors.count),
                                  percent(errors.median),
                                  percent(errors.mean),
                                  signed_percent(errors.worst),
                                  signed_percent(errors.bias)};
  if (left_out != nullptr) {
    const auto count = static_cast<double>(left_out->errors.count);
    row.push_back(percent(left_out->errors.mean));
    row.push_back(percent(static_cast<double>(left_out->in_range) / count));
  } else {
    row.insert(row.end(), {"", ""});
  }
  table.add(std::move(row));
}

void add_table(Table& table, const TableReport& t, const std::string& name) {
  add_summary(table, name, "step time", t.step, &t.step_left_out);
  add_summary(table, name, "MFU, points", t.mfu);
  add_summary(table, name, "memory", t.peak, &t.peak_left_out);
  add_summary(table, name, "longest sequence", t.longest, &t.longest_left_out);
  add_summary(table, name, "speed-up", t.speedup);
  for (const PeerErrors& peer : t.peers) {
    add_summary(table, name, "step time, against " + peer.name, peer.ours_step);
    add_summary(table, name, "step time, " + peer.name, peer.peer_step);
    add_summary(table, name, "memory, against " + peer.name, peer.ours_peak);
    add_summary(table, name, "memory, " + peer.name, peer.peer_peak);
  }
}

void print_reasons(const char* heading, const std::map<std::string, int64_t>& reasons) {
  if (reasons.empty()) return;
  std::vector<std::pair<std::string, int64_t>> sorted(reasons.begin(), reasons.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  say("{}\n", bold(heading));
  Table table({{"cases"}, {"reason", false}});
  for (const auto& [reason, count] : sorted) table.add({fmt::format("{}", count), reason});
  table.print();
}

std::string longest_text(const PublishedCase& c, const CasePrediction& p, double error) {
  const std::string range = p.longest_range
                                ? fmt::format(" ({} to {})", format_tokens(p.longest_range->low),
                                              format_tokens(p.longest_range->high))
                                : std::string();
  const std::string failed = c.measured.longest_below
                                 ? ", " + format_tokens(*c.measured.longest_below) + " did not"
                                 : std::string();
  return fmt::format("longest {}{} predicted, {} trained{}: {}", format_tokens(*p.longest_sequence),
                     range, format_tokens(c.sequence), failed, signed_percent(error));
}

std::string speedup_text(const CaseSpeedup& measured, const CaseErrors& e) {
  const std::string range = measured.low < measured.high
                                ? fmt::format("{:g} to {:g}", measured.low, measured.high)
                                : fmt::format("{:g}", measured.low);
  return fmt::format("{:.2f} times the speed of \"{}\" predicted, {} measured: {}",
                     *e.predicted_speedup, measured.over, range, signed_percent(*e.speedup));
}

void print_fits(const char* of, const FitCounts& fit) {
  if (fit.total() == 0) return;
  say("{}: {} trained as predicted, {} trained though predicted not to fit; {} ran out of memory "
      "as predicted, {} though predicted to fit. Predictions that say \"at risk\": {}.\n",
      of, fit.trained_fits, fit.trained_refused, fit.failed_refused, fit.failed_fits, fit.at_risk);
}

void print_case_table(const Validation& v, const TableReport& of) {
  say("{}\n  {}\n", bold(of.table), of.source);
  Table table({{"case", false},
               {"measured step"},
               {"predicted step"},
               {"step error"},
               {"measured memory"},
               {"predicted memory"},
               {"memory error"},
               {"remark", false}});
  for (size_t i = 0; i < v.cases.size(); ++i) {
    const PublishedCase& c = v.cases[i];
    if (c.table != of.table) continue;
    const CasePrediction& p = v.predictions[i];
    const CaseErrors& e = v.report.cases[i];
    std::string remark = !c.left_out.empty() ? "left out: " + c.left_out
                         : !p.reason.empty() ? "not covered: " + p.reason
                                             : std::string();
    if (e.longest) {
      remark = longest_text(c, p, *e.longest);
    } else if (e.speedup) {
      remark = speedup_text(*c.measured.speedup, e);
    } else if (p.fits && *p.fits == c.measured.out_of_memory) {
      remark = c.measured.out_of_memory ? "ran out of memory, predicted to fit"
                                        : "trained, predicted not to fit";
    }
    if (!c.assumed.empty()) remark = remark.empty() ? "assumed" : "assumed; " + remark;
    table.add({c.name, or_dash(e.measured_step_seconds, format_seconds),
               or_dash(p.step_seconds, format_seconds), or_dash(e.step, signed_percent),
               or_dash(e.measured_peak_bytes, format_bytes), or_dash(p.peak_bytes, format_bytes),
               or_dash(e.peak, signed_percent), remark});
  }
  table.print();
}

}  // namespace

void print_validation(const Validation& v, bool with_cases) {
  const ValidationReport& report = v.report;
  if (with_cases) {
    for (const TableReport& table : report.tables) print_case_table(v, table);
  }
  say("{}\n", bold(fmt::format("Predicted against published: {} of {} cases in {} table{}",
                               report.overall.predicted, report.overall.cases, report.tables.size(),
                               report.tables.size() == 1 ? "" : "s")));
  Table table({{"table", false},
               {"of", false},
               {"cases"},
               {"median |error|"},
               {"mean |error|", true, 2},
               {"worst"},
               {"bias", true, 1},
               {"held-out mean", true, 1},
               {"in 90 % interval"}});
  for (const TableReport& t : report.tables) add_table(table, t, t.table);
  if (report.tables.size() > 1) add_table(table, report.overall, "all");
  for (const TableReport& t : report.assumed_tables) add_table(table, t, t.table + ", assumed");
  const TableReport& assumed = report.assumed_overall;
  if (report.assumed_tables.size() > 1) add_table(table, assumed, "all, assumed");
  if (report.overall.predicted + assumed.predicted > 0) table.print();
  print_fits("Fits", report.overall.fit);
  if (assumed.cases > 0) {
    say("Apart from these, {} of {} cases are predicted of which something is assumed.\n",
        assumed.predicted, assumed.cases);
  }
  print_fits("Fits, assumed", assumed.fit);
  print_reasons("Not covered by the predictor", report.overall.not_covered);
  print_reasons("Not covered by the predictor, assumed", assumed.not_covered);
  print_reasons("Left out by the files", report.overall.left_out);
  print_reasons("Assumed by the files", assumed.assumed);
}

}  // namespace longspan::cli
