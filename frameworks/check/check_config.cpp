#include "frameworks/check/check_config.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/error.h"
#include "frameworks/knobs/spelling.h"
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
      : reading_(reading), model_(model), hw_(hw), options_(options), knobs_(asked(reading.knobs)) {
    const bool says = options.sequence > 0 || says_length(reading.knobs);
    check_.assumed_length = !says && (!options.lengths || options.lengths->has_only_mean());
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
  // The knobs for the sequences that the question has. Where neither it nor the config limits
  // samples, the longest does.
  RunKnobs asked(const RunKnobs& knobs) const {
    RunKnobs for_length = with_sequence(knobs, options_.sequence);
    if (options_.sequence > 0 || says_length(knobs) || !options_.lengths) return for_length;
    const int64_t longest = options_.lengths->longest();
    const bool mean = options_.lengths->has_only_mean();
    for_length.set("sequence", mean ? std::max(kAssumedLength, longest) : longest);
    return for_length;
  }

  ConfiguredRun configured(const RunKnobs& knobs) const {
    return configure(knobs, *reading_.framework, model_, hw_, places_of(reading_));
  }
  const PredictionInterval& memory_range() const {
    return published_intervals().memory_under(check_.configured.stack.family).all;
  }
  // Bytes of each device for others: as asked, and a rollout engine's share.
  double reserve() const { return reserve_of(knobs_); }
  double reserve_of(const RunKnobs& knobs) const {
    const double share = knobs.share("rollout-share").value_or(0);
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
                         {"exchanges with experts", time.experts},
                         {"exchanges of gradients and parameters", time.data},
                         {"pipeline bubble", time.bubble},
                         {"update", time.update},
                         {"copies to the host and its update", time.host},
                         {"forward passes", time.passes},
                         {"updates of the critic", time.critic},
                         {"data and logging", time.rest}};
  }

  std::optional<ChangedRun> changed(const std::string& knob, const std::string& value) const {
    const std::optional<ConfigChange> change = change_knob(reading_, {{}, reading_}, knob, value);
    if (!change) return std::nullopt;
    std::string text;
    for (const PlacedKey& key : place_keys(reading_, *change)) {
      text += (text.empty() ? "" : ", ") + key.text;
    }
    return ChangedRun{asked(change->reading.knobs), text};
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
        .change = [this](const std::string& knob,
                         const std::string& value) { return changed(knob, value); },
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
    const auto needs_of = [&](int64_t tokens) {
      return needs_at(check_.predicted.run, tokens, c.model, under, c.stack);
    };
    const auto surely_fits = [&](int64_t tokens) {
      return has_positions(model_, tokens) &&
             verdict_of(needs_of(tokens), c.hw, memory_range(), reserve()) == Fit::fits;
    };
    // At least every length of which the verdict is that it fits.
    const auto fits = [&](int64_t tokens) {
      return has_positions(model_, tokens) &&
             (needs_of(tokens).fit(c.hw, 1, spare) || surely_fits(tokens));
    };
    check_.longest_sequence = longest_with(fits);
    check_.longest_fitting = longest_with(surely_fits);
  }
  // The longest sequence, of the lengths that the run can have and the config's own.
  int64_t longest_with(const std::function<bool(int64_t)>& fits) const {
    const TrainingRun& run = check_.configured.run;
    const int64_t coarse = granularity_of(run), fine = std::max<int64_t>(1, coarse / 16);
    int64_t longest = longest_multiple(coarse, 1000, fits);
    if (longest < 16 * coarse && run.chunk_tokens == 0) {
      longest = longest_multiple(fine, 1000, fits);
    }
    const int64_t checked = check_.predicted.run.sequence;
    return fits(checked) ? std::max(longest, checked) : longest;
  }

  // The run of the config with changed keys, asked in the same way.
  PredictedConfig predicted_config(const ConfigReading& reading) const {
    PredictedConfig p;
    p.knobs = asked(reading.knobs);
    p.configured = configure(p.knobs, *reading.framework, model_, hw_, places_of(reading));
    const bool packed = packs(p.knobs);
    p.predicted = predict_samples(p.configured, packed);
    const PredictionInterval& range =
        published_intervals().memory_under(p.configured.stack.family).all;
    p.fit = verdict_of(p.predicted.needs, p.configured.hw, range, reserve_of(p.knobs));
    p.capacity_bytes = p.configured.hw.device.memory_bytes.value - reserve_of(p.knobs);
    p.tokens = sample_tokens(p.configured.run, packed);
    return p;
  }
  void find_changes() {
    if (options_.changes < 0) return;
    const ConfigPredictor predict = [this](const ConfigReading& reading) {
      return predicted_config(reading);
    };
    check_.changes = propose_changes(reading_, predict, options_.changes);
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
