// Asks the planner random questions in pairs whose answers must agree (pairs.h), and counts those
// that do not:
//
//   search_hunt --seed 7 --questions 2000 --counterexamples found.yaml
//
// Every pair that disagrees is printed as the command lines that show it. Exit status 1 if there is
// one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tests/search/pairs.h"

namespace longspan::testing {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t questions = 200;
  double seconds = 1e9;
  bool quick = false, verbose = false;
  std::vector<std::string> only;
  std::string kept, counterexamples;
};

struct Count {
  int64_t agree = 0, disagree = 0, nothing = 0;
};

// All kinds in turn, those that fail most twice as often.
std::vector<std::string> kinds_of(const Options& options) {
  if (!options.only.empty()) return options.only;
  std::vector<std::string> kinds = pair_kinds();
  for (const char* often : {"fixed", "memory", "border", "holes", "longer", "false-no"}) {
    kinds.emplace_back(often);
  }
  return kinds;
}

int run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<Pair> pairs;
  if (!options.kept.empty()) {
    pairs = read_pairs(options.kept);
  } else {
    const std::vector<std::string> kinds = kinds_of(options);
    for (int64_t i = 0; i < options.questions; ++i) {
      pairs.push_back(random_pair(kinds[static_cast<size_t>(i) % kinds.size()],
                                  options.seed * 1'000'003 + static_cast<uint64_t>(i),
                                  options.quick ? Scale::quick : Scale::whole));
    }
  }
  std::map<std::string, Count> counts;
  Count all;
  std::string found = "pairs:\n";
  double slowest = 0;
  std::string slowest_pair;
  for (const Pair& pair : pairs) {
    if (elapsed() > options.seconds) break;
    const Finding finding = check(pair);
    if (finding.slowest > slowest) {
      slowest = finding.slowest;
      slowest_pair = finding.lines.front();
    }
    const bool disagree = finding.verdict == Verdict::disagree;
    for (Count* count : {&counts[pair.kind], &all}) {
      count->agree += finding.verdict == Verdict::agree;
      count->disagree += disagree;
      count->nothing += finding.verdict == Verdict::nothing_to_compare;
    }
    if (disagree || options.verbose) {
      fmt::print("{}: {}{}\n  {}\n", pair.kind, disagree ? "" : "agree ", finding.what,
                 fmt::join(finding.lines, "\n  "));
      std::fflush(stdout);
    }
    if (disagree) found += item_of(pair);
  }
  for (const auto& [kind, count] : counts) {
    fmt::print("{:10} disagree {:5}  agree {:5}  nothing to compare {:5}\n", kind, count.disagree,
               count.agree, count.nothing);
  }
  const int64_t compared = all.agree + all.disagree;
  fmt::print(
      "{} of {} pairs disagree ({:.2f} %), seed {}, {:.0f} s; slowest answer {:.1f} s: {}\n",
      all.disagree, compared,
      100 * static_cast<double>(all.disagree) / static_cast<double>(std::max<int64_t>(1, compared)),
      options.seed, elapsed(), slowest, slowest_pair);
  if (!options.counterexamples.empty() && all.disagree > 0) {
    write_file_atomically(options.counterexamples, found);
  }
  return all.disagree > 0 ? 1 : 0;
}

}  // namespace
}  // namespace longspan::testing

int main(int argc, char** argv) {
  longspan::testing::Options options;
  CLI::App app{"Looks for pairs of questions whose answers do not agree"};
  app.add_option("--seed", options.seed, "Of the questions");
  app.add_option("--questions", options.questions, "Pairs to ask");
  app.add_option("--seconds", options.seconds, "Stop after so long");
  app.add_option("--only", options.only, "Kinds of pair")->delimiter(',');
  app.add_option("--kept", options.kept, "Ask the pairs of this list, and no others");
  app.add_option("--counterexamples", options.counterexamples, "Where pairs that disagree go");
  app.add_flag("--quick", options.quick, "Smaller models, machines and lengths");
  app.add_flag("--verbose", options.verbose, "Print pairs that agree, too");
  CLI11_PARSE(app, argc, argv);
  try {
    return longspan::testing::run(options);
  } catch (const longspan::Error& e) {
    fmt::print(stderr, "search_hunt: {}\n", e.what());
    return e.exit_status();
  }
}
