#include "tests/search/improve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "planner/plan/plan.h"
#include "tests/search/longest_of.h"
#include "tests/search/mutate.h"

namespace longspan::testing {
namespace {

constexpr const char* kLocal = "local search";

// The question with one more knob fixed, and a name for it.
std::vector<std::pair<Question, std::string>> variants(const Row& row, const Examiner& examiner) {
  const Question& q = row.question;
  std::vector<std::pair<Question, std::string>> all;
  if (q.strategy != "auto" && q.verb == Question::Verb::plan) return all;
  const auto add = [&](const std::string& flags) {
    const std::string line = line_of(q) + flags;
    try {
      all.emplace_back(parse_question(line, "variant"), "search with" + flags);
    } catch (const Error&) {  // the variant may be invalid: say, a flag is given twice
    }
  };
  if (q.chunk == 0) {
    for (const int64_t chunk : {65536, 16384, 32768, 131072, 8192, 262144, 4096, 49152}) {
      const bool suits =
          q.verb == Question::Verb::max_seq || (chunk <= q.sequence && q.sequence % chunk == 0);
      if (suits && q.strategy != "auto" && q.strategy != "fpdt") continue;
      if (suits) add(fmt::format(" --chunk {}", format_tokens(chunk)));
    }
  }
  if (q.strategy != "auto" || q.fewest || q.max_gpus > 0) return all;
  if (q.verb == Question::Verb::plan && q.objective == Objective::throughput) {
    add(" --objective memory");
  }
  for (const int64_t multiple : {64, 4096, 65536}) {
    if (q.sequence % multiple == 0) continue;
    Question padded = q;
    padded.sequence = round_up(q.sequence, multiple);
    all.emplace_back(padded, fmt::format("search with --seq {}", padded.sequence));
  }
  if (examiner.hardware().devices() == 1) return all;
  for (const int64_t degree : {1, 2, 4, 8, 16}) {
    if (examiner.hardware().devices() % degree != 0) continue;
    if (!q.parallel.data) add(fmt::format(" --data {}", degree));
    if (!q.parallel.ulysses) add(fmt::format(" --ulysses {}", degree));
    if (!q.parallel.tensor && degree > 1) add(fmt::format(" --tensor {}", degree));
  }
  return all;
}

// One walk from answer to answer: slightly worse ones are accepted, less so as time passes.
class Walk {
 public:
  Walk(Row& row, Examiner& examiner, double until, uint64_t seed)
      : row_(row), examiner_(examiner), mutator_(examiner), until_(until), random_(seed) {}

  void run() {
    for (int round = 0; !over(); ++round) {
      const Fit fit = round % 2 == 0 ? Fit::at_risk : Fit::fits;
      const bool longest = examiner_.question().verb == Question::Verb::max_seq;
      if (const Known* known = row_.held_to(fit); known != nullptr) {
        const Known begin = *known;
        longest ? walk_longest(begin) : walk(begin, fit, round % 4 == 3);
      } else if (!find_any()) {
        return;
      }
    }
  }

 private:
  static constexpr int kSteps = 3000;       // of a walk before it restarts
  static constexpr double kWarm = 0.03;     // relative loss that is accepted at first
  static constexpr double kGain = 1e-4;     // relative gain that is worth a full simulation
  static constexpr int kLengthSteps = 400;  // a length takes many evaluations

  bool over() const { return processor_seconds() > until_; }
  double chance() { return std::uniform_real_distribution<>(0, 1)(random_); }

  // Whether the rough measurement of a candidate is good enough.
  bool may_do(const Measured& rough, Fit wanted) const {
    return rough.excess == 0 && (wanted == Fit::at_risk || rough.fit == Fit::fits);
  }

  void walk(const Known& begin, Fit wanted, bool elsewhere) {
    const Question& q = examiner_.question();
    const std::optional<Measured> first = examiner_.rough(begin.answer);
    if (!first) return;
    const double exactly = begin.best / std::max(1.0e-12, first->value);  // exact / rough
    Answering at = begin.answer;
    double value = first->value, best = begin.best;
    if (elsewhere) {
      at = mutator_.start(begin.answer.tokens, random_);
      value = 1e300;
    }
    for (int step = 0; step < kSteps && !over(); ++step) {
      const Answering next = mutator_.changed(at, random_);
      if (!examiner_.admits(next)) continue;
      const std::optional<Measured> rough = examiner_.rough(next);
      if (!rough || !may_do(*rough, wanted)) continue;
      const double warm = kWarm * (1 - static_cast<double>(step) / kSteps);
      if (rough->value > value * (1 + warm * chance())) continue;
      if (times_worse(q, best, rough->value * exactly) > 1 + kGain) {
        const std::optional<Measured> exact = examiner_.exact(next);
        if (!exact || exact->excess > 0 || (wanted == Fit::fits && exact->fit != Fit::fits)) {
          continue;
        }
        if (row_.offer(next, *exact, kLocal)) best = std::min(best, exact->value);
      }
      at = next;
      value = rough->value;
    }
  }

  void walk_longest(const Known& begin) {
    Answering at = begin.answer;
    auto length = static_cast<double>(at.tokens);
    for (int step = 0; step < kLengthSteps && !over(); ++step) {
      const Answering next = mutator_.changed(at, random_);
      const auto family = [&](int64_t tokens) { return mutator_.at_length(next, tokens); };
      const int64_t granularity = granularity_of(next, examiner_.question());
      const auto warm = kWarm * (1 - static_cast<double>(step) / kLengthSteps);
      const auto least = static_cast<int64_t>(length * (1 - warm * chance()));
      const int64_t rough = longest_roughly(examiner_, family, granularity, least);
      if (rough == 0) continue;
      const Known* known = row_.held_to(Fit::at_risk);
      if (static_cast<double>(rough) > known->best * (1 + kGain)) {
        const auto exact = longest_exactly(examiner_, family, granularity, rough,
                                           static_cast<int64_t>(known->best));
        if (!exact) continue;
        row_.offer(exact->first, exact->second, kLocal);
        at = exact->first;
        length = static_cast<double>(at.tokens);
        continue;
      }
      at = family(rough);
      length = static_cast<double>(rough);
    }
  }

  // Finds any plan that fits, where none is known: by reducing the memory it is short by.
  bool find_any() {
    const Question& q = examiner_.question();
    const int64_t tokens = q.sequence > 0 ? q.sequence : 4096;
    Answering at = mutator_.start(tokens, random_);
    double excess = 1e300;
    for (int step = 0; step < kSteps && !over(); ++step) {
      const Answering next =
          excess < 1e300 ? mutator_.changed(at, random_) : mutator_.start(tokens, random_);
      if (!examiner_.admits(next)) continue;
      const std::optional<Measured> rough = examiner_.rough(next);
      if (!rough || rough->excess > excess) continue;
      if (rough->excess == 0) {
        const std::optional<Measured> exact = examiner_.exact(next);
        if (exact && row_.offer(next, *exact, kLocal)) return true;
        continue;
      }
      at = next;
      excess = rough->excess;
    }
    return !over();
  }

  Row& row_;
  Examiner& examiner_;
  Mutator mutator_;
  double until_;
  Random random_;
};

// A preset has few knobs, so all of them are tried at every length near its longest.
void improve_preset_longest(Row& row, Examiner& examiner, double until) {
  const Question& q = examiner.question();
  const Known* known = row.held_to(Fit::at_risk);
  if (known == nullptr) return;
  const Strategy s = known->answer.strategy;
  std::vector<int64_t> chunks = {q.chunk};
  if (is_chunked_preset(q.strategy) && q.chunk == 0) {
    chunks.clear();
    for (int64_t chunk = 1024; chunk <= (1 << 21); chunk *= 2) {
      chunks.push_back(chunk);
      chunks.push_back(chunk + chunk / 2);
    }
  }
  constexpr Tier device = Tier::device, host = Tier::host;
  constexpr std::array<Tier, 3> kPlacements[] = {
      {device, device, device}, {device, device, host}, {device, host, host}, {host, host, host}};
  for (const int64_t chunk : chunks) {
    for (const auto& [parameters, gradients, optimizer] : kPlacements) {
      const bool leaves = optimizer != device;
      const bool offloads = q.strategy == "checkpoint-offload" || q.strategy == "alst" ||
                            q.strategy == "upipe" || q.strategy == "fpdt";
      if (leaves && !offloads) continue;
      const auto family = [&, p = parameters, g = gradients, o = optimizer](int64_t tokens) {
        Answering answer{tokens,
                         make_preset(q.strategy, examiner.model(), tokens, chunk, s.parallel)};
        answer.strategy.deterministic = q.deterministic;
        answer.strategy.parameters = p;
        answer.strategy.gradients = g;
        answer.strategy.optimizer = o;
        return answer;
      };
      const int64_t granularity =
          granularity_of(family(q.granularity * s.parallel.ranks()), q, chunk);
      const int64_t rough = longest_roughly(examiner, family, granularity, granularity);
      if (rough == 0) continue;
      const auto exact = longest_exactly(examiner, family, granularity, rough,
                                         static_cast<int64_t>(row.held_to(Fit::at_risk)->best));
      if (exact) row.offer(exact->first, exact->second, "all lengths of the preset");
      if (processor_seconds() > until) return;
    }
  }
}

}  // namespace

bool measure_again(Row& row, Examiner& examiner) {
  constexpr double kRounding = 1e-9;
  const std::optional<Known> before[] = {std::exchange(row.fits, {}),
                                         std::exchange(row.at_risk, {})};
  bool changed = false;
  for (const std::optional<Known>& known : before) {
    if (!known) continue;
    std::optional<Measured> m;
    if (examiner.admits(known->answer)) m = examiner.exact(known->answer);
    if (m) row.offer(known->answer, *m, known->from);
    changed |= !m || m->excess > 0 || std::abs(m->value / known->best - 1) > kRounding;
  }
  return changed;
}

void ask_search(Row& row, Examiner& examiner, double seconds) {
  const double until = processor_seconds() + seconds;
  const auto take = [&](const Question& question, const std::string& from) {
    const Reply reply = ask(question);
    if (!reply.plan) return;
    const Answering answer{reply.tokens, reply.plan->strategy};
    if (!examiner.admits(answer)) return;
    if (const auto m = examiner.exact(answer)) row.offer(answer, *m, from);
  };
  take(row.question, "search");
  for (const auto& [question, from] : variants(row, examiner)) {
    if (processor_seconds() > until) return;
    take(question, from);
  }
}

void improve(Row& row, Examiner& examiner, double seconds, uint64_t seed) {
  const Question& q = row.question;
  if (q.fewest) return;
  const double until = processor_seconds() + seconds;
  if (q.strategy == "auto") return Walk(row, examiner, until, seed).run();
  if (q.verb == Question::Verb::max_seq) improve_preset_longest(row, examiner, until);
}

}  // namespace longspan::testing
