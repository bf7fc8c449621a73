#include "frameworks/check/explain_speed.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "frameworks/check/sample_lengths.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/model/partition.h"

namespace longspan {
namespace {

// An effect on the step below which a difference explains nothing.
constexpr double kLeastEffect = 0.01;
// The share of the distance between prediction and measurement that an explanation covers at least.
constexpr double kLeastCovered = 0.1;
constexpr int64_t kShortest = 16;  // tokens of a sample
// Devices exchange through the link to the host where there is no other: the share of its bandwidth
// that they reach, and the time of a message (hwprofiles/catalog/nodes/pcie4-server.yaml).
constexpr double kPcieShare = 0.8, kPcieSeconds = 1e-5;

class SpeedExplainer {
 public:
  SpeedExplainer(const MeasuredSpeed& measured, const ExplainedRun& run)
      : run_(run), step_(run.predicted.time.step()) {
    verdict_.measured = measured;
    verdict_.seconds = step_seconds(measured, run.work);
    if (!std::isfinite(verdict_.seconds) || verdict_.seconds <= 0) {
      throw bad_input("a step at {} has no finite time", speed_text(measured));
    }
  }

  SpeedVerdict explain() {
    const double ratio = verdict_.seconds / step_;
    if (run_.range.holds(ratio)) return std::move(verdict_);
    verdict_.position = ratio > 1 ? SpeedPosition::slower : SpeedPosition::faster;
    if (ratio > 1) {
      slower_runs();
      slower_counts();
    } else {
      faster_runs();
      faster_counts();
    }
    std::stable_sort(verdict_.explanations.begin(), verdict_.explanations.end(),
                     [&](const SpeedExplanation& a, const SpeedExplanation& b) {
                       return distance(a.predicted_seconds) < distance(b.predicted_seconds);
                     });
    // These are chosen to fit, and so always do.
    (ratio > 1 ? slower_rests() : faster_lengths());
    return std::move(verdict_);
  }

 private:
  bool slower() const { return verdict_.position == SpeedPosition::slower; }
  double distance(double seconds) const { return std::abs(std::log(seconds / verdict_.seconds)); }

  void rule_out(const std::string& what, const std::string& why) {
    verdict_.ruled_out.push_back({what, why});
  }
  // A step of `seconds` explains the measured one if it is nearer than the prediction.
  void offer(const std::string& what, double seconds, const std::string& setting = "") {
    const double effect = std::log(seconds / step_) * (slower() ? 1 : -1);
    if (effect < std::log1p(kLeastEffect)) {
      rule_out(what, "it has no such effect on this run");
    } else if (distance(seconds) >= (1 - kLeastCovered) * distance(step_)) {
      rule_out(what, fmt::format("a step would take {}", format_seconds(seconds)));
    } else if (std::none_of(verdict_.explanations.begin(), verdict_.explanations.end(),
                            [&](const auto& e) { return e.predicted_seconds == seconds; })) {
      verdict_.explanations.push_back({what, setting, seconds, false});
    }
  }
  void offer_run(const std::string& what, const ConfiguredRun& other,
                 const std::string& setting = "") {
    const RunPrediction predicted = run_.predict(other);
    // The run had memory enough, if the prediction of that is right.
    if (run_.fit != Fit::does_not_fit && run_.fit_of(predicted) == Fit::does_not_fit) {
      rule_out(what, fmt::format("it would need {} of a GPU, {} of the host",
                                 format_bytes(static_cast<int64_t>(predicted.needs.device)),
                                 format_bytes(static_cast<int64_t>(predicted.needs.host))));
      return;
    }
    offer(what, predicted.time.step(), setting);
  }
  void offer_knob(const std::string& what, const std::string& knob, const std::string& value,
                  const std::vector<std::string>& cleared = {}) {
    const std::optional<ChangedRun> changed = run_.change(knob, value);
    RunKnobs knobs = changed ? changed->knobs : run_.knobs;
    for (const std::string& other : cleared) knobs.clear(other);
    knobs.set(knob, value);
    try {
      offer_run(what, run_.configure(knobs), changed ? changed->text : "");
    } catch (const Error& e) {
      rule_out(what, e.what());
    }
  }
  // Whether the config itself sets a knob; the key if it does.
  std::optional<std::string> key_of(const std::string& knob) const {
    const auto place = run_.reading.places.find(knob);
    if (place == run_.reading.places.end()) return std::nullopt;
    return spelled_key(*run_.reading.framework, place->second);
  }

  // A cause by a knob that the config does not set.
  void offer_unless_set(const std::string& what, const std::string& knob,
                        const std::string& value) {
    if (run_.knobs.is(knob, value)) {
      rule_out(what, "the run has it");
    } else if (const std::optional<std::string> key = key_of(knob)) {
      rule_out(what, *key + " is set");
    } else {
      offer_knob(what, knob, value);
    }
  }

  void slower_runs() {
    const TrainingRun& run = run_.configured.run;
    const char* const eager = "attention without a fused kernel";
    if (run.flash_attention && run_.knobs.is("attention", "sdpa")) {
      offer_knob(eager, "attention", "eager");  // PyTorch's falls back to it
    } else {
      offer_unless_set(eager, "attention", "eager");
    }
    const char* const full = "full recomputation";
    if (run.recompute == Recompute::full && run.recompute_layers.empty()) {
      rule_out(full, "the run has it");
    } else {
      offer_knob(full, "recompute", "full", {"recompute-method", "recompute-layers"});
    }
    offer_unless_set("products in fp32", "precision", "fp32");
    offer_unless_set("an optimizer on the host", "optimizer-states", "host");
    offer_unless_set("exchanges that do not run during computation", "overlap", "false");
    offer_pcie();
    const char* const host = "a host that issues kernels half as fast";
    ConfiguredRun slow = run_.configured;
    slow.stack.host_kernel_s.value *= 2;
    offer_run(host, slow);
  }
  void offer_pcie() {
    const char* const what = "PCIe between the GPUs of a node in place of their fabric";
    ConfiguredRun other = run_.configured;
    FabricProfile& fabric = other.hw.node_fabric;
    const double bandwidth = kPcieShare * other.hw.link.h2d_bandwidth.value;
    if (other.hw.devices_per_node == 1) {
      rule_out(what, "a node has one GPU");
    } else if (fabric.bandwidth.value <= bandwidth) {
      rule_out(what, "the machine has no faster one");
    } else {
      fabric.bandwidth.value = bandwidth;
      fabric.latency_seconds.value = std::max(fabric.latency_seconds.value, kPcieSeconds);
      offer_run(what, other);
    }
  }

  bool counts_tokens() const {
    const SpeedUnit unit = verdict_.measured.unit;
    return unit == SpeedUnit::tokens || unit == SpeedUnit::tokens_per_gpu;
  }
  bool counts_flops() const {
    const SpeedUnit unit = verdict_.measured.unit;
    return unit == SpeedUnit::teraflops || unit == SpeedUnit::mfu;
  }
  // Microbatches of a step, where their number is the user's choice.
  double accumulated() const {
    const TrainingRun& run = run_.predicted.run;
    return run.degrees.pipeline > 1 ? 1 : microbatches(run);
  }
  std::string of_accumulation() const {
    return fmt::format("one microbatch, and a step has {:.0f}", accumulated());
  }

  void slower_counts() {
    if (verdict_.measured.unit == SpeedUnit::tokens && run_.work.gpus > 1) {
      offer("the figure is of one GPU, not of all", step_ * run_.work.gpus);
    }
    if (counts_tokens() && accumulated() > 1) {
      offer("the tokens are those of " + of_accumulation(), step_ * accumulated());
    }
    if (counts_flops()) {
      offer("masked pairs of attention are not counted", step_ / run_.causal_share);
    }
  }
  void slower_rests() {
    const double fill = step_ / verdict_.seconds;
    if (counts_tokens() && !run_.packed && run_.mean_length == 0) {
      const int64_t length = run_.configured.run.sequence;
      const auto mean = static_cast<int64_t>(std::llround(fill * static_cast<double>(length)));
      if (mean > 0) {
        fitted(fmt::format("samples of {} tokens on average, padded to {}, and padding not counted",
                           grouped(mean), grouped(length)));
      }
    }
    const bool generates = run_.knobs.is("task", "rl");
    fitted(
        fmt::format("{} a step that no setting explains: {}loading data, evaluation, slow clocks",
                    format_seconds(verdict_.seconds - step_), generates ? "rollouts, " : ""));
  }
  void fitted(const std::string& what) {
    verdict_.explanations.push_back({what, "", verdict_.seconds, true});
  }

  void faster_runs() {
    if (run_.configured.run.recompute == Recompute::none) {
      rule_out("less recomputation", "the run has none");
    } else {
      offer_knob("no recomputation", "recompute", "none",
                 {"recompute-method", "recompute-layers", "checkpoints"});
      if (run_.configured.run.recompute == Recompute::full) {
        offer_knob("selective recomputation", "recompute", "selective",
                   {"recompute-method", "recompute-layers", "checkpoints"});
      }
    }
    if (run_.packed && run_.mean_length > 0) {
      const auto mean = static_cast<int64_t>(run_.mean_length);
      offer("packed documents that attend only to themselves",
            run_.predict(packed_with(run_.configured, mean)).time.step());
    }
    for (const char* kernel : {"flash3", "flash4"}) {
      const std::string what = fmt::format("FlashAttention {}", kernel + 5);
      if (!run_.configured.hw.attention_kernels.contains(kernel)) {
        rule_out(what, "its rates on this GPU are not known");
      } else {
        offer_unless_set(what, "attention", kernel);
      }
    }
  }
  void faster_counts() {
    if (verdict_.measured.unit == SpeedUnit::tokens_per_gpu && run_.work.gpus > 1) {
      offer("the figure is of all GPUs, not of one", step_ / run_.work.gpus);
    }
    const SpeedUnit unit = verdict_.measured.unit;
    if ((unit == SpeedUnit::seconds || unit == SpeedUnit::steps) && accumulated() > 1) {
      offer("an iteration of the log is " + of_accumulation(), step_ / accumulated());
    }
    if (counts_flops() && run_.configured.run.recompute == Recompute::full) {
      offer("recomputed FLOPs are counted, too", step_ * 3 / 4);
    }
    if (counts_tokens() && !run_.packed && run_.padded_tokens > run_.work.tokens) {
      offer("padding is counted, too", step_ * run_.work.tokens / run_.padded_tokens);
    }
  }

  // The lengths of samples with which a step takes as long as measured.
  void faster_lengths() {
    if (run_.mean_length == 0) run_.packed ? faster_documents() : faster_batches();
  }
  void faster_documents() {
    const char* const what = "packed documents that attend only to themselves";
    const ConfiguredRun& c = run_.configured;
    for (int64_t tokens = c.run.sequence / 2; tokens >= kShortest; tokens /= 2) {
      if (run_.predict(packed_with(c, tokens)).time.step() > verdict_.seconds) continue;
      return fitted(fmt::format("{}, of about {} tokens each", what, grouped(tokens)));
    }
    rule_out(what, "no length of theirs makes a step as short");
  }
  void faster_batches() {
    const ConfiguredRun& c = run_.configured;
    const auto is_short = [&](int64_t tokens) {
      return run_.predict(padded_to(c, tokens)).time.step() <= verdict_.seconds;
    };
    int64_t good = c.run.sequence / 2;
    while (good >= kShortest && !is_short(good)) good /= 2;
    if (good < kShortest) {
      return rule_out("shorter samples", "no length of theirs makes a step as short");
    }
    int64_t bad = 2 * good;
    while (bad - good > std::max<int64_t>(1, good / 50)) {
      const int64_t middle = good + (bad - good) / 2;
      (is_short(middle) ? good : bad) = middle;
    }
    const bool counted = counts_tokens() || counts_flops();
    fitted(fmt::format("batches of {} tokens on average, not of {}{}", grouped(good),
                       grouped(c.run.sequence), counted ? ", counted as full" : ""));
  }

  const ExplainedRun& run_;
  const double step_;
  SpeedVerdict verdict_;
};

}  // namespace

SpeedVerdict explain_speed(const MeasuredSpeed& measured, const ExplainedRun& run) {
  return SpeedExplainer(measured, run).explain();
}

}  // namespace longspan
