#include "tests/search/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "base/yaml.h"
#include "planner/evaluate/evaluate.h"
#include "planner/search/sweep.h"

namespace longspan::testing {
namespace {

constexpr double kTime = 0.005;  // relative, of seconds per sequence
constexpr double kMemory = 0.001;
constexpr double kSame = 1e-6;

// Asks questions and records their lines.
class Asking {
 public:
  Asking(Finding& finding, bool whole_answers) : finding_(finding), whole_answers_(whole_answers) {}
  Reply operator()(const Question& question) {
    Reply reply = ask(question, whole_answers_);
    finding_.lines.push_back("longspan " + line_of(question));
    finding_.slowest = std::max(finding_.slowest, reply.processor_seconds);
    if (reply.failed) throw failed("{}", reply.refusal);
    return reply;
  }

 private:
  Finding& finding_;
  bool whole_answers_;
};

using Check = std::function<std::pair<Verdict, std::string>(const Pair&, Asking&)>;
using Outcome = std::pair<Verdict, std::string>;

Outcome nothing() { return {Verdict::nothing_to_compare, ""}; }
Outcome agree_if(bool agree, const std::string& what) {
  return {agree ? Verdict::agree : Verdict::disagree, what};
}

double seconds_of(const Reply& reply) { return seconds_per_sequence(*reply.plan); }

// The first must be at least as fast as the second, and must have a plan if the second has one.
Outcome first_no_slower(const Pair& pair, Asking& ask) {
  const Reply second = ask(pair.second);
  if (!second.plan) return nothing();
  const Reply first = ask(pair.first);
  if (!first.plan) {
    return {Verdict::disagree, fmt::format("the first has none ({}), the second takes {}",
                                           first.refusal, format_seconds(seconds_of(second)))};
  }
  const double ratio = seconds_of(first) / seconds_of(second);
  return agree_if(
      ratio <= 1 + kTime,
      fmt::format("{}, the second {}, which is {:.2f} % less", format_seconds(seconds_of(first)),
                  format_seconds(seconds_of(second)), 100 * (1 - 1 / ratio)));
}

Outcome second_no_slower(const Pair& pair, Asking& ask) {
  return first_no_slower({pair.kind, pair.second, pair.first}, ask);
}

Outcome least_memory(const Pair& pair, Asking& ask) {
  const Reply fastest = ask(pair.first), least_memory = ask(pair.second);
  if (!fastest.plan && !least_memory.plan) return nothing();
  if (!fastest.plan || !least_memory.plan) {
    return {Verdict::disagree,
            fmt::format("{} has none: {}", fastest.plan ? "memory" : "throughput",
                        (fastest.plan ? least_memory : fastest).refusal)};
  }
  const size_t tier = pair.second.objective == Objective::host_memory ? 1 : 0;
  const int64_t most = fastest.plan->predicted.peak_bytes[tier];
  const int64_t least = least_memory.plan->predicted.peak_bytes[tier];
  return agree_if(static_cast<double>(least) <= static_cast<double>(most) * (1 + kMemory),
                  fmt::format("the fastest needs {}, the one of least memory {}",
                              format_bytes(most), format_bytes(least)));
}

Outcome both_or_none(const Pair& pair, Asking& ask) {
  const Reply first = ask(pair.first), second = ask(pair.second);
  if (!first.plan && !second.plan) return nothing();
  return agree_if(first.plan && second.plan, first.plan ? second.refusal : first.refusal);
}

Outcome no_hole(const Pair& pair, Asking& ask) {
  const Reply longer = ask(pair.first);
  if (!longer.plan) return nothing();
  const Reply shorter = ask(pair.second);
  return agree_if(shorter.plan.has_value(), shorter.refusal);
}

// The second's longest sequence is at least the first's, up to the granularity.
Outcome no_shorter(const Pair& pair, Asking& ask) {
  const Reply first = ask(pair.first), second = ask(pair.second);
  if (first.bad_input || second.bad_input) return nothing();
  const int64_t granularity = std::max(first.granularity, second.granularity);
  return agree_if(second.tokens >= first.tokens - granularity,
                  fmt::format("{} tokens, the second {} (granularity {})", first.tokens,
                              second.tokens, granularity));
}

Question plan_of_length(const Question& longest, int64_t tokens) {
  Question q = longest;
  q.verb = Question::Verb::plan;
  q.sequence = tokens;
  q.granularity = 256;
  return q;
}

Outcome at_the_border(const Pair& pair, Asking& ask) {
  const Reply longest = ask(pair.first);
  if (!longest.plan) return nothing();
  const int64_t tokens = longest.tokens;
  const Reply there = ask(plan_of_length(pair.first, tokens));
  if (!there.plan) {
    return {Verdict::disagree, fmt::format("plan refuses {} tokens: {}", tokens, there.refusal)};
  }
  constexpr int64_t kRound = 256;
  const int64_t beyond = (tokens + std::max(longest.granularity, tokens / 20)) / kRound * kRound;
  if (beyond - tokens <= longest.granularity) return {Verdict::agree, ""};
  const Reply far = ask(plan_of_length(pair.first, beyond));
  return agree_if(!far.plan, fmt::format("max-seq says {} (granularity {}), plan takes {}", tokens,
                                         longest.granularity, beyond));
}

Outcome longest_in_time(const Pair& pair, Asking& ask) {
  const Reply longest = ask(pair.first);
  if (!longest.plan || longest.within.empty()) return nothing();
  const Within& within = longest.within.front();
  Question q = pair.first;
  q.max_step_time = fmt::format("{:.0f}s", within.step_seconds);
  const Reply limited = ask(q);
  const auto shown = static_cast<double>(within.sequence);
  constexpr double kApart = 0.1;
  if (shown < (1 - kApart) * static_cast<double>(limited.tokens)) {
    return {Verdict::disagree, fmt::format("{} tokens within {:.0f} s are shown, {} are found",
                                           within.sequence, within.step_seconds, limited.tokens)};
  }
  if (within.sequence == 0) return {Verdict::agree, ""};
  const Reply there = ask(plan_of_length(q, within.sequence));
  return agree_if(there.plan.has_value(),
                  fmt::format("plan refuses {} tokens: {}", within.sequence, there.refusal));
}

// The second's time is a limit that the first, which has more to choose from, keeps to.
Outcome found_in_time(const Pair& pair, Asking& ask) {
  const Reply fixed = ask(pair.second);
  if (!fixed.plan) return nothing();
  Question q = pair.first;
  // A refusal is worse than a slower plan, so the tolerance is a tenth of that of "fixed".
  q.max_step_time = fmt::format("{:.9f}s", (1 + kTime / 10) * fixed.plan->predicted.step_seconds);
  const Reply limited = ask(q);
  return agree_if(limited.plan.has_value(), limited.refusal);
}

Outcome the_fewest(const Pair& pair, Asking& ask) {
  const Reply fewest = ask(pair.first);
  if (!fewest.plan) return nothing();
  const std::vector<int64_t> counts =
      device_counts(hardware_of(pair.first), hardware_of(pair.first).devices());
  std::vector<int64_t> fewer;
  std::copy_if(counts.begin(), counts.end(), std::back_inserter(fewer),
               [&](int64_t count) { return count < fewest.devices; });
  constexpr size_t kLooks = 2;  // next lower device counts
  for (size_t i = 0; i < std::min(kLooks, fewer.size()); ++i) {
    Question q = plan_of_length(pair.first, pair.first.sequence);
    q.fewest = false;
    q.gpus = fewer[fewer.size() - 1 - i];
    if (ask(q).plan) {
      return {Verdict::disagree, fmt::format("says {} devices, {} plan", fewest.devices, q.gpus)};
    }
  }
  return {Verdict::agree, ""};
}

Outcome ends_of_the_front(const Pair& pair, Asking& ask) {
  const Reply reply = ask(pair.first);
  if (!reply.plan || reply.front.empty()) return nothing();
  if (seconds_per_sequence(reply.front.front()) > seconds_of(reply) * (1 + kSame)) {
    return {Verdict::disagree, "the front begins with a plan that is slower than the best"};
  }
  for (const auto& [objective, tier, name] : {std::tuple{Objective::memory, 0, "device"},
                                              std::tuple{Objective::host_memory, 1, "host"}}) {
    Question q = pair.first;
    q.objective = objective;
    const Reply least_memory = ask(q);
    if (!least_memory.plan)
      return {Verdict::disagree, fmt::format("least {}: {}", name, least_memory.refusal)};
    int64_t least = INT64_MAX;
    for (const Plan& plan : reply.front) {
      least = std::min(least, plan.predicted.peak_bytes[static_cast<size_t>(tier)]);
    }
    const int64_t there_is = least_memory.plan->predicted.peak_bytes[static_cast<size_t>(tier)];
    constexpr double kShown = 0.02;  // a line that saves less is not shown
    if (static_cast<double>(least) > static_cast<double>(there_is) * (1 + kShown) + (1 << 20)) {
      return {Verdict::disagree, fmt::format("the front's least {} memory is {}, {} is enough",
                                             name, format_bytes(least), format_bytes(there_is))};
    }
  }
  return {Verdict::agree, ""};
}

// A memory below the least by more than the answer's gap is refused.
Outcome really_the_least(const Pair& pair, Asking& ask) {
  const Reply least_memory = ask(pair.first);
  if (!least_memory.plan || !least_memory.gap || *least_memory.gap >= 1) return nothing();
  const bool host = pair.first.objective == Objective::host_memory;
  const int64_t least = least_memory.plan->predicted.peak_bytes[host ? 1 : 0];
  constexpr int64_t kHardlyAny = 64 << 20;
  if (least < kHardlyAny) return nothing();
  constexpr double kApart = 0.98;
  const auto less =
      static_cast<int64_t>(kApart * (1 - *least_memory.gap) * static_cast<double>(least));
  Question q = pair.first;
  q.objective = Objective::throughput;
  const double reserved = least_memory.plan->hardware.device.reserved_bytes.value;
  (host ? q.host_memory : q.device_memory) =
      fmt::format("{}B", less + (host ? 0 : static_cast<int64_t>(reserved)));
  return agree_if(!ask(q).plan, fmt::format("the least is {}, by its gap never {}, which is enough",
                                            format_bytes(least), format_bytes(less)));
}

Outcome same_when_measured(const Pair& pair, Asking& ask) {
  const Reply reply = ask(pair.first);
  if (!reply.plan) return nothing();
  const Plan& plan = *reply.plan;
  const Prediction measured = predict(plan);
  const auto limits = capacities(plan.hardware);
  for (size_t tier = 0; tier < limits.size(); ++tier) {
    if (measured.peak_bytes[tier] > limits[tier]) {
      return {Verdict::disagree, "its plan does not fit"};
    }
  }
  return agree_if(
      std::abs(measured.step_seconds / plan.predicted.step_seconds - 1) <= kSame &&
          measured.peak_bytes == plan.predicted.peak_bytes,
      fmt::format("it says {}, its plan takes {}", format_seconds(plan.predicted.step_seconds),
                  format_seconds(measured.step_seconds)));
}

const std::map<std::string, Check>& checks() {
  static const std::map<std::string, Check> all = {
      {"fixed", first_no_slower},   {"preset", first_no_slower}, {"memory", second_no_slower},
      {"gpus", second_no_slower},   {"objective", least_memory}, {"false-no", both_or_none},
      {"holes", no_hole},           {"longer", no_shorter},      {"reach", no_shorter},
      {"border", at_the_border},    {"fewest", the_fewest},      {"front", ends_of_the_front},
      {"same", same_when_measured}, {"within", longest_in_time}, {"least", really_the_least},
      {"in-time", found_in_time}};
  return all;
}

}  // namespace

const std::vector<std::string>& pair_kinds() {
  static const std::vector<std::string> kinds = [] {
    std::vector<std::string> names;
    for (const auto& [name, check] : checks()) names.push_back(name);
    return names;
  }();
  return kinds;
}

bool has_second(const std::string& kind) {
  return kind != "border" && kind != "fewest" && kind != "front" && kind != "same" &&
         kind != "within" && kind != "least";
}

Finding check(const Pair& pair) {
  const auto known = checks().find(pair.kind);
  if (known == checks().end()) throw bad_input("there is no kind of pair \"{}\"", pair.kind);
  Finding finding;
  Asking asking(finding, pair.kind == "front" || pair.kind == "within");
  try {
    std::tie(finding.verdict, finding.what) = known->second(pair, asking);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::failed) throw;
    finding.verdict = Verdict::disagree;
    finding.what = e.what();
  }
  return finding;
}

std::vector<Pair> read_pairs(const std::filesystem::path& path) {
  const YamlMap file = YamlMap::parse(read_file(path), path.string());
  std::vector<Pair> pairs;
  for (const YamlMap& yaml : file.maps("pairs")) {
    Pair pair;
    pair.kind = yaml.text("kind");
    pair.first = parse_question(yaml.text("first"), path.string());
    if (has_second(pair.kind)) pair.second = parse_question(yaml.text("second"), path.string());
    pair.slow = yaml.has("slow") && yaml.flag("slow");
    yaml.finish();
    pairs.push_back(std::move(pair));
  }
  file.finish();
  return pairs;
}

std::string item_of(const Pair& pair) {
  std::string text = fmt::format("  - kind: {}\n    first: {}\n", pair.kind, line_of(pair.first));
  if (has_second(pair.kind)) text += fmt::format("    second: {}\n", line_of(pair.second));
  return text;
}

}  // namespace longspan::testing
