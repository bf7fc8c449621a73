// How good the planner's answers are, and what they cost: every question of
// tests/search/corpus.yaml against the best answer known to it.
//
//   search_bench                    asks all; exit status 1 unless 98 % are within 1 % and all
//                                   within 3 %
//   search_bench --verify           measures the stored plans only: each fits and is as good as the
//                                   corpus says
//   search_bench --improve SECONDS  looks for better ones, so long for each question
//
// Each answer's own plan is measured by full simulation too, and counts as what that says of it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/heap.h"
#include "base/units.h"
#include "tests/search/corpus.h"
#include "tests/search/examiner.h"
#include "tests/search/improve.h"

namespace longspan::testing {
namespace {

constexpr double kNear = 1.01, kFar = 1.03, kShare = 0.98;
constexpr double kSame = 1e-6;
constexpr double kNone = 1e9;  // `times` if there is an answer but the search finds none

struct Options {
  std::string corpus = LONGSPAN_SEARCH_CORPUS;
  std::string json, baseline;
  std::vector<std::string> only, exhaust;
  bool verify = false, write = false, ask = false;
  double improve = 0;
  uint64_t seed = 1;
};

struct Result {
  std::string id;
  double times = kNone;  // how many times as much as the best known
  double value = 0, best = 0;
  bool at_risk = false;  // its plan
  std::optional<double> gap;
  int64_t considered = 0, simulated = 0;
  double seconds = 0;
  std::string why;  // why there is no answer, or why it is not as good as claimed
};

std::string value_text(const Question& q, double value) {
  const std::string name = value_name(q);
  if (name == "seconds") return format_seconds(value);
  if (name == "bytes") return format_bytes(static_cast<int64_t>(value));
  if (name == "tokens") return format_tokens(static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Asks the search. With `offer`, the row takes an answer that is better than the best known.
Result asked(Row& row, bool offer) {
  Examiner examiner(row.question);
  const Reply reply = ask(row.question);
  Result result;
  result.id = row.id;
  result.gap = reply.gap;
  result.considered = reply.considered;
  result.simulated = reply.simulated;
  result.seconds = reply.processor_seconds;
  result.why = reply.refusal;
  const Known* known = row.held_to(Fit::at_risk);
  result.best = known != nullptr ? known->best : 0;
  if (!reply.plan) return result;
  const Answering answer{reply.tokens, reply.plan->strategy};
  std::optional<Measured> exact;
  if (examiner.admits(answer)) exact = examiner.exact(answer);
  if (!exact || exact->excess > 0) {
    result.why = exact ? "its plan does not fit" : "its plan is not one that was asked for";
    return result;
  }
  known = row.held_to(exact->fit);
  result.value = exact->value;
  result.at_risk = exact->fit == Fit::at_risk;
  result.best = known != nullptr ? known->best : exact->value;
  result.times = times_worse(row.question, result.value, result.best);
  if (offer) row.offer(answer, *exact, "search");
  // The longest sequence depends on memory alone; its time may come from the sampled simulation.
  if (row.question.verb == Question::Verb::max_seq) return result;
  const double said =
      reply.plan->predicted.step_seconds / static_cast<double>(reply.plan->strategy.parallel.data);
  if (std::abs(said / exact->seconds - 1) > kSame) {
    result.why = fmt::format("it says {}, its plan takes {}", format_seconds(said),
                             format_seconds(exact->seconds));
    result.times = kNone;
  }
  return result;
}

// Results of an earlier --json, by question.
std::map<std::string, Result> read_results(const std::string& path) {
  std::map<std::string, Result> results;
  if (path.empty()) return results;
  const auto document = nlohmann::json::parse(read_file(path));
  for (const auto& entry : document.at("questions")) {
    Result r;
    r.id = entry.at("id");
    r.times = entry.at("times_worse");
    r.considered = entry.at("considered");
    r.simulated = entry.at("simulated");
    r.seconds = entry.at("processor_seconds");
    results[r.id] = r;
  }
  return results;
}

void print(const Row& row, const Result& r, const std::map<std::string, Result>& before) {
  const std::string times =
      r.times >= kNone ? "none" : fmt::format("{:+.2f} %", 100 * (r.times - 1));
  fmt::print("{:34} {:>9} {:>11} of {:>11}  gap {:>7}  {:>8} considered {:>6} simulated {:>7.2f} s",
             r.id, times, r.value > 0 ? value_text(row.question, r.value) : "-",
             value_text(row.question, r.best), r.gap ? fmt::format("{:.2f} %", 100 * *r.gap) : "-",
             r.considered, r.simulated, r.seconds);
  if (const auto old = before.find(r.id); old != before.end()) {
    fmt::print("  before {:>8} {:>6} {:>7.2f} s", old->second.considered, old->second.simulated,
               old->second.seconds);
  }
  fmt::print("{}{}\n", r.why.empty() ? "" : "  ", r.why);
  std::fflush(stdout);
}

// Whether the answers are good enough.
bool summarise(const std::vector<Result>& results, const std::map<std::string, Result>& before) {
  std::vector<double> seconds, considered, simulated, gaps;
  size_t near = 0, far = 0, none = 0, beyond_gap = 0;
  const Result* worst = nullptr;
  for (const Result& r : results) {
    near += r.times <= kNear;
    far += r.times > kFar;
    none += r.times >= kNone;
    if (r.gap) gaps.push_back(*r.gap);
    beyond_gap += r.gap && r.times < kNone && r.times > 1 + *r.gap + 1e-6;
    seconds.push_back(r.seconds);
    considered.push_back(static_cast<double>(r.considered));
    simulated.push_back(static_cast<double>(r.simulated));
    if (worst == nullptr || r.times > worst->times) worst = &r;
  }
  if (results.empty()) return true;
  const double share = static_cast<double>(near) / static_cast<double>(results.size());
  double total = 0;
  for (const double s : seconds) total += s;
  fmt::print(
      "{} of {} within 1 % ({:.1f} %), {} beyond 3 %, of them {} without an answer; worst {}", near,
      results.size(), 100 * share, far, none, worst->id);
  if (worst->times < kNone) fmt::print(" {:+.2f} %", 100 * (worst->times - 1));
  fmt::print(
      "\nprocessor seconds: median {:.2f}, 90 % below {:.2f}, longest {:.2f}, all "
      "{:.0f}\n",
      percentile(seconds, 0.5), percentile(seconds, 0.9), percentile(seconds, 1), total);
  fmt::print("median: {:.0f} considered, {:.0f} simulated\n", percentile(considered, 0.5),
             percentile(simulated, 0.5));
  if (!gaps.empty()) {
    fmt::print(
        "stated gap: median {:.2f} %, largest {:.2f} %; {} answers are worse than theirs "
        "allows\n",
        100 * percentile(gaps, 0.5), 100 * percentile(gaps, 1), beyond_gap);
  }
  if (!before.empty()) {
    std::vector<double> faster;
    double old_total = 0;
    for (const Result& r : results) {
      const auto old = before.find(r.id);
      if (old == before.end()) continue;
      old_total += old->second.seconds;
      faster.push_back(old->second.seconds / std::max(1e-3, r.seconds));
    }
    fmt::print("against the baseline: {:.0f} s then; median {:.2f} times as fast now\n", old_total,
               percentile(faster, 0.5));
  }
  return share >= kShare && far == 0 && beyond_gap == 0;
}

void write_json(const std::string& path, const std::vector<Result>& results) {
  if (path.empty()) return;
  nlohmann::json list = nlohmann::json::array();
  for (const Result& r : results) {
    list.push_back({{"id", r.id},
                    {"times_worse", r.times},
                    {"value", r.value},
                    {"best_known", r.best},
                    {"at_risk", r.at_risk},
                    {"gap", r.gap ? nlohmann::json(*r.gap) : nlohmann::json()},
                    {"considered", r.considered},
                    {"simulated", r.simulated},
                    {"processor_seconds", r.seconds},
                    {"why", r.why}});
  }
  write_file_atomically(path, nlohmann::json{{"questions", list}}.dump(1) + "\n");
}

bool verify(std::vector<Row>& rows) {
  size_t wrong = 0, plans = 0;
  for (Row& row : rows) {
    plans += row.fits.has_value() + row.at_risk.has_value();
    Examiner examiner(row.question);
    const bool none = !row.fits && !row.at_risk;
    if (!none && !measure_again(row, examiner)) continue;
    ++wrong;
    fmt::print("{}: {}\n", row.id,
               none ? "no answer is known" : "a stored plan is not what the corpus says");
  }
  fmt::print("{} questions, {} plans, {} not as stored\n", rows.size(), plans, wrong);
  return wrong == 0;
}

bool chosen(const std::vector<std::string>& ids, const std::string& id) {
  return ids.empty() || std::find(ids.begin(), ids.end(), id) != ids.end();
}

void look_for_better(const Options& options, std::vector<Row>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (!chosen(options.only, row.id)) continue;
    Examiner examiner(row.question);
    const Known* known = row.held_to(Fit::at_risk);
    const double before = known != nullptr ? known->best : 0;
    measure_again(row, examiner);
    const bool none = !row.fits && !row.at_risk;
    if (options.ask || none) ask_search(row, examiner, std::max(1.0, options.improve));
    improve(row, examiner, options.improve, options.seed + i);
    if (!options.exhaust.empty() && chosen(options.exhaust, row.id)) exhaust(row, examiner);
    known = row.held_to(Fit::at_risk);
    fmt::print("{:34} {:>11} -> {:>11} ({}), {} looked at, {} measured\n", row.id,
               before > 0 ? value_text(row.question, before) : "-",
               known != nullptr ? value_text(row.question, known->best) : "-",
               known != nullptr ? known->from : "none", examiner.looked_at(), examiner.examined());
    std::fflush(stdout);
    if (options.write) write_corpus(options.corpus, rows);
  }
}

int run(const Options& options) {
  std::vector<Row> rows = read_corpus(options.corpus);
  if (options.improve > 0 || !options.exhaust.empty()) {
    look_for_better(options, rows);
    return 0;
  }
  if (options.verify) {
    std::erase_if(rows, [&](const Row& row) { return !chosen(options.only, row.id); });
    return verify(rows) ? 0 : 1;
  }
  const std::map<std::string, Result> before = read_results(options.baseline);
  std::vector<Result> results;
  for (Row& row : rows) {
    if (!chosen(options.only, row.id)) continue;
    results.push_back(asked(row, options.write));
    print(row, results.back(), before);
    if (options.write) write_corpus(options.corpus, rows);
  }
  const bool good = summarise(results, before);
  write_json(options.json, results);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace longspan::testing

int main(int argc, char** argv) {
  longspan::keep_freed_memory();
  longspan::testing::Options options;
  CLI::App app{"Holds the planner's search to the best answers known"};
  app.add_option("--corpus", options.corpus, "The corpus")->capture_default_str();
  app.add_option("--only", options.only, "Questions, by id")->delimiter(',');
  app.add_option("--json", options.json, "Where the results are written");
  app.add_option("--baseline", options.baseline, "An earlier --json to compare with");
  app.add_flag("--verify", options.verify, "Measure the stored plans only");
  app.add_option("--improve", options.improve, "Seconds to look for a better answer to each");
  app.add_flag("--ask", options.ask, "With --improve: ask the search too, with knobs fixed");
  app.add_option("--exhaust", options.exhaust, "Try every combination of knobs for these ids")
      ->delimiter(',');
  app.add_flag("--write", options.write, "Write what is better to the corpus");
  app.add_option("--seed", options.seed, "Of the changes that are tried");
  CLI11_PARSE(app, argc, argv);
  try {
    return longspan::testing::run(options);
  } catch (const longspan::Error& e) {
    fmt::print(stderr, "search_bench: {}\n", e.what());
    return e.exit_status();
  }
}
