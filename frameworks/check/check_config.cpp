#include "frameworks/check/check_config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "frameworks/model/max_sequence_length.h"

namespace longspan {
namespace {

constexpr int64_t kAssumedLength = 2048;

bool says_length(const RunKnobs& knobs) {
  return knobs.has("sequence") || knobs.has("token-budget");
}

class Checker {
 public:
  Checker(const ConfigReading& reading, const ModelSpec& model, const HardwareProfile& hw,
          const CheckOptions& options)
      : reading_(reading),
        model_(model),
        hw_(hw),
        options_(options),
        knobs_(with_sequence(reading.knobs, options.sequence)) {
    if (options.sequence == 0 && !says_length(reading.knobs)) assume_length();
    check_.packed = packs(knobs_);
  }

  ConfigCheck run() {
    check_.configured = configured(knobs_);
    check_.predicted = predict_samples(check_.configured);
    summarize_samples();
    summarize();
    summarize_step();
    find_longest();
    find_changes();
    explain_measured();
    return std::move(check_);
  }

 private:
  // Where the config does not limit samples, the longest does.
  void assume_length() {
    const std::optional<SampleLengths>& lengths = options_.lengths;
    check_.assumed_length = !lengths || lengths->has_only_mean();
    if (!lengths) return;
    const int64_t longest = lengths->longest();
    knobs_.set("sequence", lengths->has_only_mean() ? std::max(kAssumedLength, longest) : longest);
  }

  ConfiguredRun configured(const RunKnobs& knobs) const {
    return configure(knobs, *reading_.framework, model_, hw_, places_of(reading_));
  }
  const PredictionInterval& memory_range() const {
    return published_intervals().memory_under(check_.configured.stack.family).all;
  }
  // Bytes of each device for others: as asked, and a rollout engine's share.
  double reserve() const {
    const double share = knobs_.share("rollout-share").value_or(0);
    return static_cast<double>(options_.reserve_bytes) + share * hw_.device.memory_bytes.value;
  }

  static bool packs(const RunKnobs& knobs) {
    return knobs.flag("packing") || knobs.has("token-budget");
  }
  bool is_padded() const { return options_.lengths && !check_.packed; }
  // Memory for the longest sample, time for samples as they are.
  RunPrediction predict_samples(const ConfiguredRun& c) const {
    return predict_samples(c, check_.packed);
  }
  RunPrediction predict_samples(const ConfiguredRun& c, bool packed) const {
    if (!options_.lengths || packed) return predict(c);
    const PaddedLengths lengths = padded_lengths(c.run, *options_.lengths);
    RunPrediction predicted = predict(padded_to(c, lengths.longest));
    predicted.time = predict(padded_to(c, lengths.step)).time;
    return predicted;
  }

  // Tokens of samples in a step, without padding.
  double sample_tokens(const TrainingRun& run, bool packed) const {
    if (!options_.lengths || packed) return step_tokens(run);
    return run.step_sequences() * padded_lengths(run, *options_.lengths).mean;
  }

  void summarize_samples() {
    const ConfiguredRun& c = check_.configured;
    check_.step_tokens = sample_tokens(c.run, check_.packed);
    if (!options_.lengths) return;
    const PaddedLengths lengths = padded_lengths(c.run, *options_.lengths);
    check_.mean_length = lengths.mean;
    check_.cut_share = lengths.cut_share;
    if (!is_padded()) {
      const auto mean = static_cast<int64_t>(lengths.mean);
      check_.separate_seconds = predict(packed_with(c, mean)).time.step();
      return;
    }
    const RunNeeds typical = predict(padded_to(c, lengths.microbatch)).needs;
    check_.padded = {lengths, verdict_of(typical, c.hw, memory_range(), reserve()), typical.device,
                     c.run.step_sequences() * lengths.computed};
  }

  // The share of a GPU's best rate at which samples of their lengths are computed.
  double mfu(bool causal) const {
    const ConfiguredRun& c = check_.configured;
    const double seconds = check_.predicted.time.step();
    if (!is_padded()) return mfu_of(c.run, c.model, c.hw, seconds, causal);
    TrainingRun run = c.run;
    double sum = 0, samples = 0;
    const SampleLengths cut = options_.lengths->cut_at(c.run.sequence);
    for (const auto& [length, count] : cut.counts()) {
      run.sequence = length;
      sum += static_cast<double>(count) * mfu_of(run, c.model, c.hw, seconds, causal);
      samples += static_cast<double>(count);
    }
    return sum / samples;
  }

  void summarize() {
    const ConfiguredRun& c = check_.configured;
    const RunNeeds& needs = check_.predicted.needs;
    check_.fit = verdict_of(needs, c.hw, memory_range(), reserve());
    check_.memory_range = memory_range();
    check_.step_range = published_intervals().step_under(c.stack.family).all;
    check_.capacity_bytes = c.hw.device.memory_bytes.value - reserve();
    const double host = needs.host - c.hw.host.memory_bytes.value;
    const double device = needs.device - check_.capacity_bytes;
    check_.host_short_bytes = std::max(0.0, host);
    if (!needs.addressable) {
      check_.short_of = "the kernels' 32-bit indices";
    } else if (device > 0 || host > 0) {
      check_.short_of = device > 0 ? "device" : "host";
      check_.short_bytes = device > 0 ? device : host;
    }
    if (check_.short_of == "device") check_.runs_out = runs_out();
    const RunMemory& m = needs.memory;
    check_.parts = {{"parameters", m.parameters},
                    {"gradients", m.gradients},
                    {"optimizer", m.optimizer},
                    {"gathered", m.gathered},
                    {"saved activations", m.saved},
                    {"work", m.work + m.passing},
                    {"workspaces of libraries", m.workspaces},
                    {"logits and loss", m.loss},
                    {"buffers of NCCL", m.buffers},
                    {"reserved, unused", needs.reserved - m.tensors()},
                    {"context and libraries", needs.device - needs.reserved - m.buffers}};
    for (const RunMemory::Held& other : m.others) {
      check_.parts.push_back({other.model, other.bytes});
    }
    const RunOffload& offload = c.run.offload;
    check_.uses_host = m.away > 0 || m.waiting > 0 || c.run.chunk_tokens > 0;
    for (const auto* shares : {&offload.checkpoints, &offload.parameters, &offload.gradients,
                               &offload.optimizer, &offload.activations}) {
      check_.uses_host = check_.uses_host || !shares->empty();
    }
  }

  std::string runs_out() const {
    const RunNeeds& needs = check_.predicted.needs;
    const RunMemory& m = needs.memory;
    const auto exceeds = [&](double tensors) {
      const double less = (m.tensors() - tensors) * check_.configured.stack.reserved_share.value;
      return needs.device - less > check_.capacity_bytes;
    };
    return exceeds(m.at_start)        ? "start"
           : exceeds(m.before_update) ? "first step"
           : exceeds(m.in_update)     ? "update"
                                      : "second step";
  }

  void summarize_step() {
    const ConfiguredRun& c = check_.configured;
    const RunTime& time = check_.predicted.time;
    check_.tokens_per_second_per_gpu =
        check_.step_tokens / static_cast<double>(c.run.gpus) / time.step();
    check_.mfu = mfu(true);
    check_.mfu_full = mfu(false);
    // What the step would be shorter if the host issued kernels in no time.
    ConfiguredRun free = c;
    free.stack.host_kernel_s.value = 0;
    const double issuing =
        std::clamp(time.compute - predict_samples(free).time.compute, 0.0, time.compute);
    check_.step_parts = {{"computation", time.compute - issuing},
                         {"issuing kernels", issuing},
                         {"exchanges of the tensor group", time.tensor},
                         {"exchanges of a sequence's GPUs", time.context},
                         {"exchanges of gradients and parameters", time.data},
                         {"pipeline bubble", time.bubble},
                         {"update", time.update},
                         {"copies to the host and its update", time.host},
                         {"forward passes", time.passes},
                         {"updates of the critic", time.critic},
                         {"data and logging", time.rest}};
  }

  void explain_measured() {
    if (!options_.measured) return;
    const ConfiguredRun& c = check_.configured;
    const double peak = c.hw.device.peak_flops_bfloat16.value;
    const auto gpus = static_cast<double>(c.run.gpus);
    const double flops = check_.mfu_full * peak * check_.predicted.time.step();
    const ExplainedRun run{
        .reading = reading_,
        .knobs = knobs_,
        .configured = c,
        .predicted = check_.predicted,
        .range = check_.step_range,
        .fit = check_.fit,
        .work = {check_.step_tokens, flops, gpus, peak},
        .causal_share = check_.mfu / check_.mfu_full,
        .packed = check_.packed,
        .mean_length = check_.mean_length,
        .padded_tokens = check_.padded ? check_.padded->computed_tokens : 0,
        .configure = [this](const RunKnobs& knobs) { return configured(knobs); },
        .predict = [this](const ConfiguredRun& other) { return predict_samples(other); },
        .fit_of =
            [this, &c](const RunPrediction& p) {
              return verdict_of(p.needs, c.hw, memory_range(), reserve());
            }};
    check_.speed = explain_speed(*options_.measured, run);
  }

  void find_longest() {
    const ConfiguredRun& c = check_.configured;
    const HardwareProfile under = hardware_under(c.run, c.stack, c.hw);
    const double spare = std::max(reserve(), c.stack.spare_bytes.value);
    // At least every length of which the verdict is that it fits.
    const auto fits = [&](int64_t tokens) {
      if (!has_positions(model_, tokens)) return false;
      const RunNeeds needs = needs_at(check_.predicted.run, tokens, c.model, under, c.stack);
      return needs.fit(c.hw, 1, spare) ||
             verdict_of(needs, c.hw, memory_range(), reserve()) == Fit::fits;
    };
    const int64_t coarse = granularity_of(c.run), fine = std::max<int64_t>(1, coarse / 16);
    int64_t longest = longest_multiple(coarse, 1000, fits);
    if (longest < 16 * coarse && c.run.chunk_tokens == 0) {
      longest = longest_multiple(fine, 1000, fits);
    }
    const int64_t checked = check_.predicted.run.sequence;
    if (fits(checked) || check_.predicted.needs.fit(c.hw, 1, reserve())) {
      longest = std::max(longest, checked);
    }
    check_.longest_sequence = longest;
  }

  // The knobs with a setting of the framework, and that setting; nothing if there is none, or the
  // knob has this value already.
  struct Tried {
    RunKnobs knobs;
    ProposedChange change;
  };
  std::optional<Tried> tried(const RunKnobs& from, const std::vector<FrameworkSetting>& before,
                             const std::string& knob, const std::string& value) const {
    if (from.effective(knob) == value) return std::nullopt;
    const std::optional<FrameworkSetting> setting =
        setting_of(*reading_.framework, from, knob, value);
    if (!setting) return std::nullopt;
    Tried tried{from, {}};
    tried.change.settings = before;
    apply(*setting, tried);
    for (const auto& [other, needed] : needed_with(from, knob, value)) {
      const auto with = setting_of(*reading_.framework, tried.knobs, other, needed);
      if (!with) return std::nullopt;
      apply(*with, tried);
    }
    // What an export would write for the new knobs, and not for these.
    for (const FrameworkWrite& write : reading_.framework->writes) {
      if (write.value == "auto" || holds(write.when, from)) continue;
      if (!holds(write.when, tried.knobs) || reading_.keys.contains(write.key)) continue;
      const auto is_same = [&](const FrameworkSetting& other) { return other.key == write.key; };
      if (std::any_of(tried.change.settings.begin(), tried.change.settings.end(), is_same))
        continue;
      tried.change.settings.push_back({write.key, write.value, {}});
    }
    try {
      const ConfiguredRun c = configured(tried.knobs);
      const bool packed = packs(tried.knobs);
      const RunPrediction predicted = predict_samples(c, packed);
      const RunNeeds& needs = predicted.needs;
      tried.change.fit = verdict_of(needs, c.hw, memory_range(), reserve());
      tried.change.saved_bytes = check_.predicted.needs.device - needs.device;
      const double ratio = check_.step_tokens / sample_tokens(c.run, packed);
      tried.change.paid_seconds = predicted.time.step() * ratio - check_.predicted.time.step();
    } catch (const Error&) {
      return std::nullopt;
    }
    return tried;
  }
  static void apply(const FrameworkSetting& setting, Tried& tried) {
    for (const auto& [changed, word] : setting.sets) tried.knobs.set(changed, word);
    std::vector<FrameworkSetting>& settings = tried.change.settings;
    std::erase_if(settings, [&](const auto& other) { return other.key == setting.key; });
    settings.push_back(setting);
  }
  // Counts that a config states and that a change of another count changes, too: the ranks that
  // share states, and the microbatches of a step of as many sequences.
  static std::vector<std::pair<std::string, std::string>> needed_with(const RunKnobs& from,
                                                                      const std::string& knob,
                                                                      const std::string& value) {
    const bool degree = knob == "tensor" || knob == "context" || knob == "pipeline";
    const char* const other = degree ? "shard" : knob == "microbatch" ? "accumulation" : "";
    const std::optional<int64_t> stated = *other != 0 ? from.count(other) : std::nullopt;
    if (!stated || (!degree && from.has("batch"))) return {};
    const int64_t whole = *stated * from.count_or(knob, 1), now = std::stoll(value);
    if (whole % now != 0) return {};
    return {{other, std::to_string(whole / now)}};
  }
  // What a search tries, and fewer sequences at a time.
  std::vector<std::pair<std::string, std::vector<std::string>>> all_to_try(
      const RunKnobs& from) const {
    auto all = reading_.framework->search;
    auto batches = std::find_if(all.begin(), all.end(),
                                [](const auto& entry) { return entry.first == "microbatch"; });
    if (batches == all.end()) batches = all.insert(all.end(), {"microbatch", {}});
    std::vector<std::string>& values = batches->second;
    for (int64_t n = from.count_or("microbatch", 1) / 2; n > 0; n /= 2) {
      const std::string value = std::to_string(n);
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
    return all;
  }
  std::vector<Tried> neighbors(const RunKnobs& from,
                               const std::vector<FrameworkSetting>& before) const {
    std::vector<Tried> all;
    for (const auto& [knob, values] : all_to_try(from)) {
      for (const std::string& value : values) {
        if (value != "degrees") {
          if (std::optional<Tried> one = tried(from, before, knob, value)) all.push_back(*one);
          continue;
        }
        for (int64_t degree = 1; degree <= check_.configured.run.gpus; degree *= 2) {
          const std::string word = std::to_string(degree);
          if (std::optional<Tried> one = tried(from, before, knob, word)) all.push_back(*one);
        }
      }
    }
    return all;
  }

  void find_changes() {
    const bool fits = check_.fit == Fit::fits;
    std::vector<Tried> all = neighbors(knobs_, {});
    const double step = check_.predicted.time.step();
    std::erase_if(all, [&](const Tried& one) {
      const ProposedChange& c = one.change;
      if (fits) return c.fit != Fit::fits || c.paid_seconds > -0.01 * step;
      return c.saved_bytes <= 0.01 * check_.predicted.needs.device && c.fit >= check_.fit;
    });
    const auto better = [&](const Tried& a, const Tried& b) {
      const auto rank = [&](const Tried& one) {
        const ProposedChange& c = one.change;
        return std::pair(static_cast<int>(c.fit),
                         c.fit == Fit::does_not_fit ? -c.saved_bytes : c.paid_seconds);
      };
      return rank(a) < rank(b);
    };
    std::stable_sort(all.begin(), all.end(), better);
    const bool enough = fits || (!all.empty() && all.front().change.fit == Fit::fits);
    if (!enough) combine(all);
    for (const Tried& one : all) {
      if (std::ssize(check_.changes) >= options_.changes) break;
      check_.changes.push_back(one.change);
    }
  }

  // If no single change is enough, takes what saves most, one after the other, until it fits.
  void combine(const std::vector<Tried>& singles) {
    if (singles.empty()) return;
    const auto most = [](const std::vector<Tried>& all) {
      return *std::max_element(all.begin(), all.end(), [](const Tried& a, const Tried& b) {
        return a.change.saved_bytes < b.change.saved_bytes;
      });
    };
    Tried best = most(singles);
    for (int round = 0; round < 4 && best.change.fit != Fit::fits; ++round) {
      const std::vector<Tried> next = neighbors(best.knobs, best.change.settings);
      if (next.empty()) break;
      const Tried further = most(next);
      if (further.change.saved_bytes <= best.change.saved_bytes) break;
      best = further;
    }
    if (best.change.settings.size() > 1) check_.changes.push_back(best.change);
  }

  const ConfigReading& reading_;
  const ModelSpec& model_;
  const HardwareProfile& hw_;
  const CheckOptions& options_;
  RunKnobs knobs_;
  ConfigCheck check_;
};

}  // namespace

KnobPlaces places_of(const ConfigReading& reading) {
  return [&reading](const std::string& knob) {
    if (const auto it = reading.places.find(knob); it != reading.places.end()) {
      return spelled_key(*reading.framework, it->second);
    }
    if (const auto it = reading.default_keys.find(knob); it != reading.default_keys.end()) {
      return spelled_key(*reading.framework, it->second) + " (by default)";
    }
    return name_of_knob(*reading.framework, knob);
  };
}

RunKnobs with_sequence(RunKnobs knobs, int64_t sequence) {
  if (sequence > 0) {
    // A budget for sequences that a config limits is one of several; else it is their length.
    const int64_t ranks = std::max<int64_t>(1, knobs.count_or("ulysses", 1)) *
                          std::max<int64_t>(1, knobs.count_or("context", 1));
    const bool several =
        knobs.has("sequence") && sequence <= knobs.count_or("token-budget", 0) * ranks;
    knobs.set("sequence", sequence);
    if (!several) knobs.clear("token-budget");
  } else if (!says_length(knobs)) {
    knobs.set("sequence", kAssumedLength);
  }
  return knobs;
}

ConfigCheck check_config(const ConfigReading& reading, const ModelSpec& model,
                         const HardwareProfile& hw, const CheckOptions& options) {
  return Checker(reading, model, hw, options).run();
}

}  // namespace longspan
