#include "frameworks/check/check_config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "frameworks/model/max_sequence_length.h"

namespace longspan {
namespace {

// Tokens of a sample where a config does not limit them, as many fine-tuning sets have at most.
constexpr int64_t kAssumedLength = 2048;

class Checker {
 public:
  Checker(const ConfigReading& reading, const ModelSpec& model, const HardwareProfile& hw,
          const CheckOptions& options)
      : reading_(reading), model_(model), hw_(hw), options_(options), knobs_(reading.knobs) {
    if (options.sequence > 0) {
      knobs_.set("sequence", options.sequence);
      knobs_.clear("token-budget");
    } else if (!knobs_.has("sequence") && !knobs_.has("token-budget")) {
      knobs_.set("sequence", kAssumedLength);
      check_.assumed_length = true;
    }
  }

  ConfigCheck run() {
    check_.configured = configured(knobs_);
    check_.predicted = predict(check_.configured);
    summarize();
    find_longest();
    find_changes();
    return std::move(check_);
  }

 private:
  ConfiguredRun configured(const RunKnobs& knobs) const {
    return configure(knobs, *reading_.framework, model_, hw_, places_of(reading_));
  }
  static const PredictionInterval& memory_range() { return published_intervals().memory.all; }
  // Bytes of each device for others: as asked, and a rollout engine's share.
  double reserve() const {
    const double share = knobs_.share("rollout-share").value_or(0);
    return static_cast<double>(options_.reserve_bytes) + share * hw_.device.memory_bytes.value;
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
    if (!needs.addressable) {
      check_.short_of = "the kernels' 32-bit indices";
    } else if (device > 0 || host > 0) {
      check_.short_of = device > 0 ? "device" : "host";
      check_.short_bytes = device > 0 ? device : host;
    }
    const RunMemory& m = needs.memory;
    check_.parts = {{"parameters", m.parameters},
                    {"gradients", m.gradients},
                    {"optimizer", m.optimizer},
                    {"gathered", m.gathered},
                    {"saved activations", m.saved},
                    {"work", m.work + m.passing},
                    {"logits and loss", m.loss},
                    {"buffers", m.buffers},
                    {"reserved, unused", needs.reserved - m.tensors()},
                    {"context and libraries", needs.device - needs.reserved}};
    const double seconds = check_.predicted.time.step();
    check_.tokens_per_second_per_gpu =
        step_tokens(c.run) / static_cast<double>(c.run.gpus) / seconds;
    check_.mfu = mfu_of(c.run, c.model, c.hw, seconds);
    check_.mfu_full = mfu_of(c.run, c.model, c.hw, seconds, false);
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
    if (fits(c.run.sequence) || check_.predicted.needs.fit(c.hw, 1, reserve()))
      longest = std::max(longest, c.run.sequence);
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
    for (const auto& [changed, word] : setting->sets) tried.knobs.set(changed, word);
    tried.change.settings = before;
    std::erase_if(tried.change.settings,
                  [&](const FrameworkSetting& other) { return other.key == setting->key; });
    tried.change.settings.push_back(*setting);
    // What an export would write for the new knobs, and not for these.
    for (const FrameworkWrite& write : reading_.framework->writes) {
      if (write.value == "auto" || holds(write.when, from)) continue;
      if (!holds(write.when, tried.knobs) || reading_.keys.contains(write.key)) continue;
      tried.change.settings.push_back({write.key, write.value, {}});
    }
    try {
      const ConfiguredRun c = configured(tried.knobs);
      const RunPrediction predicted = predict(c);
      const RunNeeds& needs = predicted.needs;
      tried.change.fit = verdict_of(needs, c.hw, memory_range(), reserve());
      tried.change.saved_bytes = check_.predicted.needs.device - needs.device;
      const double ratio = step_tokens(check_.configured.run) / step_tokens(c.run);
      tried.change.paid_seconds = predicted.time.step() * ratio - check_.predicted.time.step();
    } catch (const Error&) {
      return std::nullopt;
    }
    return tried;
  }
  std::vector<Tried> neighbors(const RunKnobs& from,
                               const std::vector<FrameworkSetting>& before) const {
    std::vector<Tried> all;
    for (const auto& [knob, values] : reading_.framework->search) {
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

ConfigCheck check_config(const ConfigReading& reading, const ModelSpec& model,
                         const HardwareProfile& hw, const CheckOptions& options) {
  return Checker(reading, model, hw, options).run();
}

}  // namespace longspan
