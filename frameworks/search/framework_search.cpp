#include "frameworks/search/framework_search.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"
#include "frameworks/knobs/device_support.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/model/infer_layout.h"
#include "frameworks/model/max_sequence_length.h"
#include "frameworks/prediction_interval.h"
#include "planner/evaluate/fit.h"

namespace longspan {
namespace {

// Knobs that every plan has, where the framework can say them, besides products in 16 bits.
constexpr std::pair<const char*, const char*> kCommon[] = {
    {"microbatch", "1"}, {"accumulation", "1"}, {"adapter", "none"}, {"task", "sft"}};

// What a framework for reinforcement learning adds by default: plans are of one update.
constexpr const char* kOfLearning[] = {"reference",       "critic",    "reward-model",
                                       "rollout-prompts", "responses", "epochs"};

const std::vector<std::string> kMicrobatches = {"1", "2", "4", "8"};

constexpr double kEqual = 0.01;  // lengths that differ by less count as equal

// All settings of the framework's space.
class Space {
 public:
  /// `longest`: for the longest sequence, where a microbatch has one.
  Space(const FrameworkQuestion& question, bool longest)
      : question_(question), framework_(*question.given.framework), longest_(longest) {
    RunKnobs knobs = question.given.knobs;
    for (const char* knob : kOfLearning) {
      if (!fixed(knob)) knobs.clear(knob);
    }
    say(knobs, "precision", half_precision(question.hw->device));
    for (const auto& [knob, value] : kCommon) say(knobs, knob, value);
    dimensions_ = framework_.search;
    const bool listed = std::any_of(dimensions_.begin(), dimensions_.end(),
                                    [](const auto& entry) { return entry.first == "microbatch"; });
    if (!listed && !longest) dimensions_.emplace_back("microbatch", kMicrobatches);
    enumerate(knobs, 0);
  }
  std::vector<RunKnobs> take() { return std::move(all_); }

 private:
  bool fixed(const std::string& knob) const { return question_.given.places.contains(knob); }
  // Whether the user has given the key: its value stays, even one that sets no knob.
  bool given(const std::string& key) const {
    return question_.given.keys.contains(key) || question_.given.written_as.contains(key);
  }
  // Whether the knobs have the value, after the setting that says it if needed.
  bool say(RunKnobs& knobs, const std::string& knob, const std::string& value) const {
    if (knobs.effective(knob) == value) return true;
    if (fixed(knob)) return false;
    const std::optional<FrameworkSetting> setting = setting_of(framework_, knobs, knob, value);
    if (!setting || given(setting->key)) return false;
    for (const auto& [changed, word] : setting->sets) {
      if (fixed(changed) && knobs.effective(changed) != word) return false;
    }
    for (const auto& [changed, word] : setting->sets) knobs.set(changed, word);
    return true;
  }
  std::vector<std::string> values_of(const std::vector<std::string>& listed) const {
    if (listed.front() != "degrees") return listed;
    std::vector<std::string> degrees;
    const int64_t world = question_.hw->devices();
    for (int64_t d = 1; d <= world; ++d) {
      if (world % d == 0) degrees.push_back(std::to_string(d));
    }
    return degrees;
  }
  void enumerate(const RunKnobs& knobs, size_t at) {
    if (at == dimensions_.size()) {
      RunKnobs whole = knobs;
      if (ends_are_layers(question_.model->layers, knobs.count_or("pipeline", 1))) {
        for (const char* end : kEndLayers) say(whole, end, "true");
      }
      if (seen_.insert(whole.all()).second) all_.push_back(whole);
      return;
    }
    const auto& [knob, listed] = dimensions_[at];
    bool any = false;
    const bool skipped = longest_ && knob == "microbatch";
    for (const std::string& value : skipped ? std::vector<std::string>{} : values_of(listed)) {
      RunKnobs next = knobs;
      if (!say(next, knob, value)) continue;
      any = true;
      if (divides(next)) enumerate(next, at + 1);
    }
    if (!any) enumerate(knobs, at + 1);
  }
  bool divides(const RunKnobs& knobs) const {
    int64_t group = 1;
    for (const char* knob : {"tensor", "pipeline", "context", "ulysses", "ring"}) {
      group *= std::max<int64_t>(1, knobs.count_or(knob, 1));
    }
    return question_.hw->devices() % group == 0;
  }

  const FrameworkQuestion& question_;
  const Framework& framework_;
  const bool longest_;
  std::vector<std::pair<std::string, std::vector<std::string>>> dimensions_;
  std::vector<RunKnobs> all_;
  std::set<std::map<std::string, std::string, std::less<>>> seen_;
};

class Searcher {
 public:
  explicit Searcher(const FrameworkQuestion& question)
      : question_(question),
        names_([&framework = *question.given.framework](const std::string& knob) {
          return name_of_knob(framework, knob);
        }) {}

  FrameworkPlan plan(const RunKnobs& knobs, int64_t sequence) const {
    FrameworkPlan plan{question_.given.framework, knobs, {}, {}};
    set_length(plan.knobs, sequence);
    plan.configured = configured(plan.knobs);
    plan.predicted = predict(plan.configured);
    return plan;
  }
  // One sequence of each group of GPUs that shares one is a step.
  void set_length(RunKnobs& knobs, int64_t sequence) const {
    const auto degree = [&](const char* knob) {
      return std::max<int64_t>(1, knobs.count_or(knob, 1));
    };
    const int64_t of_sequence = degree("context") * degree("ulysses") * degree("ring");
    knobs.set("sequence", sequence);
    if (knobs.has("token-budget")) {
      knobs.set("token-budget", (sequence + of_sequence - 1) / of_sequence);
    }
    const int64_t group = of_sequence * degree("tensor") * degree("pipeline");
    const std::string batch = std::to_string(question_.hw->devices() / group);
    if (!question_.given.places.contains("batch") &&
        setting_of(*question_.given.framework, knobs, "batch", batch)) {
      knobs.set("batch", batch);
    }
    knobs.clear("batch-tokens");
  }
  ConfiguredRun configured(const RunKnobs& knobs) const {
    return configure(knobs, *question_.given.framework, *question_.model, *question_.hw, names_);
  }
  bool fits(const RunNeeds& needs, const ConfiguredRun& c, bool longest) const {
    return needs.fit(c.hw, 1, longest ? c.stack.spare_bytes.value : 0);
  }
  /// The verdict that check has on the settings.
  Fit verdict(const FrameworkPlan& plan) const {
    const ConfiguredRun& c = plan.configured;
    const PredictionInterval& range = published_intervals().memory_under(c.stack.family).all;
    return verdict_of(plan.predicted.needs, c.hw, range, 0);
  }
  // The longest sequence with these knobs; 0: none. Throws bad_input if the framework refuses them.
  int64_t longest(RunKnobs knobs, int64_t granularity) const {
    const int64_t chunk = std::max<int64_t>(1, knobs.count_or("chunk", 1));
    const int64_t world = question_.hw->devices();
    set_length(knobs, std::lcm(std::lcm(granularity, 2 * world), chunk));
    const ConfiguredRun c = configured(knobs);
    const HardwareProfile under = hardware_under(c.run, c.stack, c.hw);
    const TrainingRun run = infer_layout(c.run, c.model, under, c.stack);
    const int64_t step = std::lcm(granularity, granularity_of(run));
    return longest_multiple(step, 1000, [&](int64_t tokens) {
      return has_positions(*question_.model, tokens) &&
             fits(needs_at(run, tokens, c.model, under, c.stack), c, true);
    });
  }

 private:
  const FrameworkQuestion& question_;
  const KnobPlaces names_;
};

double seconds_per_token(const FrameworkPlan& plan) {
  return plan.predicted.time.step() / step_tokens(plan.configured.run);
}

}  // namespace

FrameworkQuestion question_of(const Framework& framework, const std::vector<std::string>& given,
                              const ModelSpec& model, const HardwareProfile& hw) {
  std::string text;
  for (const std::string& setting : given) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw bad_input("--with: expected KEY=VALUE, got \"{}\"", setting);
    }
    std::string key = setting.substr(0, equals);
    if (key.starts_with("--")) key.erase(0, 2);
    if (!knows(framework, key)) std::replace(key.begin(), key.end(), '-', '_');
    if (!knows(framework, key)) {
      std::vector<std::string> keys;
      for (const FrameworkKey& known : framework.keys) keys.push_back(known.key);
      throw bad_input("--with: {} has no key \"{}\"{}", framework.name, key,
                      nearest_hint(key, keys));
    }
    text += fmt::format("{}: {}\n", key, setting.substr(equals + 1));
  }
  std::vector<ConfigText> files;
  if (!text.empty()) files.push_back({"--with.yaml", text});
  FrameworkQuestion question;
  question.given =
      read_config(files, framework.name, [](const std::string&) { return std::nullopt; });
  if (!question.given.notes.empty()) throw bad_input("--with: {}", question.given.notes.front());
  if (question.given.places.contains("sequence")) {
    throw bad_input("--with: {}: the length is --seq's, or the answer",
                    question.given.places.at("sequence"));
  }
  // The hardware says these, not a default.
  for (const char* knob : {"gpus", "nodes", "node-gpus"}) {
    if (!question.given.places.contains(knob)) question.given.knobs.clear(knob);
  }
  question.model = &model;
  question.hw = &hw;
  return question;
}

std::vector<FrameworkPlan> all_on(const FrameworkQuestion& question, int64_t sequence) {
  const Searcher searcher(question);
  std::vector<FrameworkPlan> all;
  for (const RunKnobs& knobs : Space(question, false).take()) {
    try {
      all.push_back(searcher.plan(knobs, sequence));
    } catch (const Error&) {
      continue;  // refused
    }
  }
  return all;
}

std::optional<FrameworkPlan> longest_on(const FrameworkQuestion& question, int64_t granularity) {
  const Searcher searcher(question);
  std::vector<std::pair<int64_t, RunKnobs>> found;
  std::optional<Error> refused;
  int64_t most = 0;
  bool any = false;
  for (RunKnobs& knobs : Space(question, true).take()) {
    try {
      const int64_t length = searcher.longest(knobs, granularity);
      any = true;
      if (length > 0) found.emplace_back(length, std::move(knobs));
      most = std::max(most, length);
    } catch (const Error& e) {
      refused = e;
    }
  }
  if (!any && refused) throw Error(*refused);
  std::optional<FrameworkPlan> best;
  for (const auto& [length, knobs] : found) {
    if (static_cast<double>(length) < (1 - kEqual) * static_cast<double>(most)) continue;
    FrameworkPlan plan = searcher.plan(knobs, length);
    if (!best || seconds_per_token(plan) / static_cast<double>(plan.sequence()) <
                     seconds_per_token(*best) / static_cast<double>(best->sequence())) {
      best = std::move(plan);
    }
  }
  return best;
}

std::optional<FrameworkPlan> fastest_on(const FrameworkQuestion& question, int64_t sequence) {
  const Searcher searcher(question);
  std::optional<FrameworkPlan> best;
  std::pair<Fit, double> least;
  std::optional<Error> refused;
  bool any = false;
  for (const RunKnobs& knobs : Space(question, false).take()) {
    try {
      FrameworkPlan plan = searcher.plan(knobs, sequence);
      any = true;
      if (!searcher.fits(plan.predicted.needs, plan.configured, false)) continue;
      // Settings at the edge of the memory only if no others fit.
      const std::pair rank(searcher.verdict(plan), seconds_per_token(plan));
      if (best && rank >= least) continue;
      best = std::move(plan);
      least = rank;
    } catch (const Error& e) {
      refused = e;
    }
  }
  if (!any && refused) throw Error(*refused);
  return best;
}

}  // namespace longspan
