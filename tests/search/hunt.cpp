// Asks the planner random questions in pairs whose answers must agree (pairs.h), and counts those
// that do not:
//
//   search_hunt --seed 7 --questions 2000 --counterexamples found.yaml
//
// Every pair that disagrees is printed as the command lines that show it. Exit status 1 if there is
// one. Threads ask pairs at the same time; the pairs depend on the seed only.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tests/search/pairs.h"

namespace longspan::testing {
namespace {

struct Options {
  uint64_t seed = 1;
  int64_t questions = 200;
  int jobs = 1;
  int64_t begin = 0;
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

// The i-th pair. Every second round of all kinds is on few GPUs, as most users' questions are.
Pair pair_at(const Options& options, int64_t i) {
  static const std::vector<std::string> kinds = kinds_of(options);
  const auto count = static_cast<int64_t>(kinds.size());
  return random_pair(kinds[static_cast<size_t>(i % count)],
                     options.seed * 1'000'003 + static_cast<uint64_t>(i),
                     options.quick || i / count % 2 == 1 ? Scale::quick : Scale::whole);
}

class Hunt {
 public:
  explicit Hunt(const Options& options) : options_(options), pairs_(options.begin) {
    if (!options.kept.empty()) kept_ = read_pairs(options.kept);
  }

  /// Asks until all questions are asked or the time is over. Called by several threads.
  void ask() {
    while (const std::optional<Pair> pair = next()) {
      try {
        take(*pair, check(*pair));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
        return;
      }
    }
  }

  /// Prints the counts. Returns whether all pairs agree. Call when no thread asks any more.
  bool finish() const {
    if (error_) std::rethrow_exception(error_);
    Count all;
    for (const auto& [kind, count] : counts_) {
      fmt::print("{:10} disagree {:5}  agree {:5}  nothing to compare {:5}\n", kind, count.disagree,
                 count.agree, count.nothing);
      all.agree += count.agree;
      all.disagree += count.disagree;
    }
    const int64_t compared = all.agree + all.disagree;
    fmt::print(
        "{} of {} pairs disagree ({:.2f} %), {} questions, seed {}, the next pair is {}, {:.0f} s; "
        "slowest answer {:.1f} s: {}\n",
        all.disagree, compared,
        100 * static_cast<double>(all.disagree) /
            static_cast<double>(std::max<int64_t>(1, compared)),
        asked_, options_.seed, pairs_, elapsed(), slowest_, slowest_pair_);
    if (!options_.counterexamples.empty() && all.disagree > 0) {
      write_file_atomically(options_.counterexamples, found_);
    }
    return all.disagree == 0;
  }

 private:
  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  std::optional<Pair> next() {
    const std::lock_guard lock(mutex_);
    if (error_ || elapsed() > options_.seconds) return std::nullopt;
    if (!options_.kept.empty()) {
      const auto i = static_cast<size_t>(pairs_);
      if (i == kept_.size()) return std::nullopt;
      ++pairs_;
      return kept_[i];
    }
    if (asked_ >= options_.questions) return std::nullopt;
    return pair_at(options_, pairs_++);
  }

  void take(const Pair& pair, const Finding& finding) {
    const std::lock_guard lock(mutex_);
    asked_ += static_cast<int64_t>(finding.lines.size());
    if (finding.slowest > slowest_) {
      slowest_ = finding.slowest;
      slowest_pair_ = finding.lines.front();
    }
    const bool disagree = finding.verdict == Verdict::disagree;
    Count& count = counts_[pair.kind];
    count.agree += finding.verdict == Verdict::agree;
    count.disagree += disagree;
    count.nothing += finding.verdict == Verdict::nothing_to_compare;
    if (disagree || options_.verbose) {
      fmt::print("{}: {}{}\n  {}\n", pair.kind, disagree ? "" : "agree ", finding.what,
                 fmt::join(finding.lines, "\n  "));
      std::fflush(stdout);
    }
    if (disagree) found_ += item_of(pair);
  }

  const Options& options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<Pair> kept_;
  std::mutex mutex_;  // of all below
  int64_t pairs_;     // the next pair
  int64_t asked_ = 0;
  std::map<std::string, Count> counts_;
  std::string found_ = "pairs:\n";
  double slowest_ = 0;
  std::string slowest_pair_;
  std::exception_ptr error_;
};

int run(const Options& options) {
  Hunt hunt(options);
  std::vector<std::thread> threads;
  for (int i = 0; i < options.jobs; ++i) threads.emplace_back([&] { hunt.ask(); });
  for (std::thread& thread : threads) thread.join();
  return hunt.finish() ? 0 : 1;
}

}  // namespace
}  // namespace longspan::testing

int main(int argc, char** argv) {
  longspan::testing::Options options;
  CLI::App app{"Looks for pairs of questions whose answers do not agree"};
  app.add_option("--seed", options.seed, "Of the questions");
  app.add_option("--questions", options.questions, "Questions to ask, in pairs (or more)");
  app.add_option("--begin", options.begin, "The first pair, to continue a run that has ended");
  app.add_option("--jobs", options.jobs, "Threads")->check(CLI::Range(1, 1024));
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
