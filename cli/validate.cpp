// longspan validate: how right are the predictions of published measurements?
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/file.h"
#include "base/nearest.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "planner/reference/measure.h"
#include "planner/reference/report.h"

namespace longspan::cli {
namespace {

struct Flags {
  std::string path;
  std::string table;
  bool cases = false;
  std::string ranges;  // where to write them
};

struct Validated {
  std::vector<ReferenceCase> cases;
  std::vector<CasePrediction> predictions, left_out;
  ValidationReport report;
};

std::vector<ReferenceCase> chosen_cases(const Flags& flags) {
  std::vector<ReferenceCase> cases = read_cases(flags.path);
  if (flags.table.empty()) return cases;
  std::vector<std::string> tables;
  for (const ReferenceCase& c : cases) {
    if (tables.empty() || tables.back() != c.table) tables.push_back(c.table);
  }
  std::erase_if(cases, [&](const ReferenceCase& c) { return c.table != flags.table; });
  if (cases.empty()) {
    throw bad_input("--table: {} has no table \"{}\"{}", flags.path, flags.table,
                    nearest_hint(flags.table, tables));
  }
  return cases;
}

Validated validate_cases(const Flags& flags) {
  Validated v;
  v.cases = chosen_cases(flags);
  CasePredictor predictor;
  ProgressBar bar;
  for (const ReferenceCase& c : v.cases) {
    bar.show(c.table,
             static_cast<double>(v.predictions.size()) / static_cast<double>(v.cases.size()));
    const bool takes_part = c.left_out.empty();
    v.predictions.push_back(takes_part ? predictor.predict(c) : CasePrediction{});
    const bool fitted = takes_part && predictor.fitted_to(c);
    v.left_out.push_back(fitted ? predictor.predict_left_out(c) : v.predictions.back());
  }
  v.report = make_report(v.cases, v.predictions, v.left_out);
  return v;
}

std::string signed_percent(double share) { return fmt::format("{:+.1f} %", share * 100); }

template <class T, class Format>
std::string or_dash(const std::optional<T>& value, Format format) {
  return value ? format(*value) : std::string("-");
}

// Text.

void add_summary(Table& table, const std::string& name, const std::string& what,
                 const ErrorSummary& errors, const LeftOut* left_out = nullptr) {
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
  for (const PeerErrors& peer : t.peers) {
    add_summary(table, name, "step time, beside " + peer.name, peer.ours_step);
    add_summary(table, name, "step time, " + peer.name, peer.peer_step);
    add_summary(table, name, "memory, beside " + peer.name, peer.ours_peak);
    add_summary(table, name, "memory, " + peer.name, peer.peer_peak);
  }
}

void print_reasons(const char* heading, const std::map<std::string, int64_t>& reasons) {
  if (reasons.empty()) return;
  std::vector<std::pair<std::string, int64_t>> sorted(reasons.begin(), reasons.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  fmt::print("{}\n", bold(heading));
  Table table({{"cases"}, {"reason", false}});
  for (const auto& [reason, count] : sorted) table.add({fmt::format("{}", count), reason});
  table.print();
}

void print_case_table(const Validated& v, const TableReport& of) {
  fmt::print("{}\n  {}\n", bold(of.table), of.source);
  Table table({{"case", false},
               {"measured"},
               {"predicted"},
               {"error"},
               {"memory"},
               {"predicted"},
               {"error"},
               {"", false}});
  for (size_t i = 0; i < v.cases.size(); ++i) {
    const ReferenceCase& c = v.cases[i];
    if (c.table != of.table) continue;
    const CasePrediction& p = v.predictions[i];
    const CaseErrors& e = v.report.cases[i];
    std::string remark = !c.left_out.empty() ? "left out: " + c.left_out
                         : !p.reason.empty() ? "not covered: " + p.reason
                                             : std::string();
    if (e.longest) {
      remark =
          fmt::format("longest {} predicted, {} trained: {}", format_tokens(*p.longest_sequence),
                      format_tokens(c.sequence), signed_percent(*e.longest));
    } else if (p.fits && *p.fits == c.measured.out_of_memory) {
      remark = c.measured.out_of_memory ? "ran out of memory, predicted to fit"
                                        : "trained, predicted not to fit";
    }
    table.add({c.name, or_dash(e.measured_step_seconds, format_seconds),
               or_dash(p.step_seconds, format_seconds), or_dash(e.step, signed_percent),
               or_dash(e.measured_peak_bytes, format_bytes), or_dash(p.peak_bytes, format_bytes),
               or_dash(e.peak, signed_percent), remark});
  }
  table.print();
}

void print_text(const Validated& v, bool with_cases) {
  const ValidationReport& report = v.report;
  if (with_cases) {
    for (const TableReport& table : report.tables) print_case_table(v, table);
  }
  fmt::print("{}\n", bold(fmt::format("Predicted against published: {} of {} cases in {} table{}",
                                      report.overall.predicted, report.overall.cases,
                                      report.tables.size(), report.tables.size() == 1 ? "" : "s")));
  Table table({{"table", false},
               {"of", false},
               {"cases"},
               {"median |error|"},
               {"mean |error|"},
               {"worst"},
               {"bias"},
               {"mean, left out"},
               {"in range"}});
  for (const TableReport& t : report.tables) add_table(table, t, t.table);
  if (report.tables.size() > 1) add_table(table, report.overall, "all");
  if (report.overall.predicted > 0) table.print();
  if (const FitCounts& fit = report.overall.fit; fit.total() > 0) {
    fmt::print(
        "Fits: {} trained as predicted, {} trained though predicted not to fit; {} ran out "
        "of memory as predicted, {} though predicted to fit. Of these, {} are said to be at "
        "risk.\n",
        fit.trained_fits, fit.trained_refused, fit.failed_refused, fit.failed_fits, fit.at_risk);
  }
  print_reasons("Not covered by the predictor", report.overall.not_covered);
  print_reasons("Left out by the files", report.overall.left_out);
}

// JSON.

template <class T>
void put(Json& object, const char* key, const std::optional<T>& value) {
  if (value) object[key] = *value;
}

Json summary_json(const ErrorSummary& errors, const LeftOut* left_out = nullptr) {
  if (errors.count == 0) return {{"count", 0}};
  Json object = {{"count", errors.count},
                 {"median_absolute_error", errors.median},
                 {"mean_absolute_error", errors.mean},
                 {"worst_error", errors.worst},
                 {"bias", errors.bias}};
  if (left_out != nullptr) {
    object["left_out_mean_absolute_error"] = left_out->errors.mean;
    object["in_range"] = left_out->in_range;
  }
  return object;
}

Json reasons_json(const std::map<std::string, int64_t>& reasons) {
  Json list = Json::array();
  for (const auto& [reason, count] : reasons)
    list.push_back({{"reason", reason}, {"cases", count}});
  return list;
}

void put_report(Json& object, const TableReport& t) {
  object["cases"] = t.cases;
  object["predicted"] = t.predicted;
  object["step_time"] = summary_json(t.step, &t.step_left_out);
  object["mfu"] = summary_json(t.mfu);
  object["memory"] = summary_json(t.peak, &t.peak_left_out);
  object["longest_sequence"] = summary_json(t.longest, &t.longest_left_out);
  object["fits"] = {{"trained_fits", t.fit.trained_fits},
                    {"trained_refused", t.fit.trained_refused},
                    {"at_risk", t.fit.at_risk},
                    {"failed_fits", t.fit.failed_fits},
                    {"failed_refused", t.fit.failed_refused}};
  Json peers = Json::array();
  for (const PeerErrors& peer : t.peers) {
    peers.push_back(
        {{"name", peer.name},
         {"step_time",
          {{"ours", summary_json(peer.ours_step)}, {"peer", summary_json(peer.peer_step)}}},
         {"memory",
          {{"ours", summary_json(peer.ours_peak)}, {"peer", summary_json(peer.peer_peak)}}}});
  }
  object["peers"] = std::move(peers);
  object["not_covered"] = reasons_json(t.not_covered);
  object["left_out"] = reasons_json(t.left_out);
}

Json case_json(const ReferenceCase& c, const CasePrediction& p, const CaseErrors& e) {
  Json object = {{"name", c.name},
                 {"line", c.line},
                 {"model", c.model},
                 {"hardware", c.hardware},
                 {"gpus", c.gpus},
                 {"stack", c.stack},
                 {"chunk_tokens", c.chunk_tokens},
                 {"tensor", c.degrees.tensor},
                 {"ulysses", c.degrees.ulysses},
                 {"sequence_tokens", c.sequence}};
  put(object, "measured_step_seconds", e.measured_step_seconds);
  put(object, "predicted_step_seconds", p.step_seconds);
  put(object, "measured_mfu", c.measured.mfu);
  if (c.measured.mfu && p.step_seconds)
    put(object, "predicted_mfu", restated(c, *p.step_seconds).mfu);
  put(object, "step_error", e.step);
  put(object, "left_out_step_error", e.step_left_out);
  put(object, "mfu_error", e.mfu);
  put(object, "measured_peak_bytes", e.measured_peak_bytes);
  put(object, "predicted_peak_bytes", p.peak_bytes);
  put(object, "peak_error", e.peak);
  put(object, "left_out_peak_error", e.peak_left_out);
  if (c.measured.longest) object["measured_longest_tokens"] = c.sequence;
  put(object, "predicted_longest_tokens", p.longest_sequence);
  put(object, "longest_error", e.longest);
  put(object, "left_out_longest_error", e.longest_left_out);
  object["out_of_memory"] = c.measured.out_of_memory;
  put(object, "predicted_to_fit", p.fits);
  if (p.verdict) object["verdict"] = name_of(*p.verdict);
  if (p.step_seconds && e.step_left_out) {
    const Range& range = published_ranges().step.of(c.table);
    object["step_seconds_range"] = {*p.step_seconds * range.low, *p.step_seconds * range.high};
  }
  if (c.peer) object["peer"] = c.peer->name;
  put(object, "peer_step_error", e.peer_step);
  put(object, "peer_peak_error", e.peer_peak);
  if (!p.reason.empty()) object["not_covered"] = p.reason;
  if (!c.left_out.empty()) object["left_out"] = c.left_out;
  return object;
}

Json document_of(const Validated& v, bool with_cases) {
  Json tables = Json::array();
  for (const TableReport& t : v.report.tables) {
    Json object = {{"table", t.table}, {"file", t.file}, {"source", t.source}};
    put_report(object, t);
    if (with_cases) {
      Json results = Json::array();
      for (size_t i = 0; i < v.cases.size(); ++i) {
        if (v.cases[i].table != t.table) continue;
        results.push_back(case_json(v.cases[i], v.predictions[i], v.report.cases[i]));
      }
      object["results"] = std::move(results);
    }
    tables.push_back(std::move(object));
  }
  Json overall;
  put_report(overall, v.report.overall);
  return {{"tables", std::move(tables)}, {"overall", std::move(overall)}};
}

int run(const Flags& flags, bool json) {
  check_folder_of(flags.ranges, "--write-ranges");
  const Validated v = validate_cases(flags);
  if (!flags.ranges.empty()) {
    write_file_atomically(flags.ranges, write_ranges(ranges_of(v.cases, v.report)));
  }
  if (json) {
    print_json(document_of(v, flags.cases));
  } else {
    print_text(v, flags.cases);
  }
  return 0;
}

}  // namespace

void add_validate(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      add_verb(app, invocation, "validate", "How right predictions of published measurements are",
               "longspan validate tests/published --table torchtitan --cases");
  verb->add_option("path", flags->path, "A file of cases, or a folder of them")->required();
  verb->add_option("--table", flags->table, "Only the table of this name");
  verb->add_flag("--cases", flags->cases, "Every case, not only each table's errors");
  verb->add_option("--write-ranges", flags->ranges,
                   "Write where nine of ten measurements lie, as multiples of the prediction");
  verb->callback([flags, &invocation] {
    invocation.action = [flags, &invocation] { return run(*flags, invocation.json); };
  });
}

}  // namespace longspan::cli
