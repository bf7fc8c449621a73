#include "frameworks/check/propose_changes.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

constexpr double kLeastHelp = 0.01;  // of the memory, or of the step
constexpr size_t kBeam = 4;          // changes that are combined with more
constexpr int kMostCombined = 4;     // knobs of a change

// Knobs that decide about memory: each word that a framework has for them is tried, besides what
// its search says.
constexpr const char* kOfMemory[] = {"zero",        "sequence-parallel", "recompute",
                                     "checkpoints", "activations",       "parameters",
                                     "mlp",         "optimizer-states",  "loss"};

// What a change must not touch: it would be another training.
constexpr const char* kOfTraining[] = {"task",    "head",      "adapter",      "optimizer",
                                       "packing", "reference", "reward-model", "critic",
                                       "epochs",  "precision", "padding"};

struct KnobValue {
  std::string knob, value;
};

struct Tried {
  ConfigChange change;
  ProposedChange proposed;
  double rank = 0;  // the less, the nearer to a fast run that fits
};

class Proposer {
 public:
  Proposer(const ConfigReading& reading, const ConfigPredictor& predict)
      : reading_(reading), predict_(predict), base_(predict(reading)) {}

  std::vector<ProposedChange> run(int64_t most) {
    // Exchanges between nodes are the last resort of a tensor group.
    for (const bool beyond_node : {false, true}) {
      beyond_node_ = beyond_node;
      found_.clear();
      search();
      if (base_.fit == Fit::fits || any_fits()) break;
    }
    drop_needless();
    std::stable_sort(found_.begin(), found_.end(), [](const Tried& a, const Tried& b) {
      return order(a.proposed) < order(b.proposed);
    });
    std::vector<ProposedChange> changes;
    for (Tried& one : found_) {
      if (most > 0 && std::ssize(changes) >= most) break;
      one.proposed.keys = place_keys(reading_, one.change);
      changes.push_back(std::move(one.proposed));
    }
    return changes;
  }

 private:
  static std::pair<int, double> order(const ProposedChange& c) {
    return {static_cast<int>(c.fit), c.fit == Fit::does_not_fit ? -c.saved_bytes : c.paid_seconds};
  }
  bool any_fits() const {
    return std::any_of(found_.begin(), found_.end(),
                       [](const Tried& one) { return one.proposed.fit == Fit::fits; });
  }
  double step() const { return base_.predicted.time.step(); }

  // Single changes; if none is enough, the best of them with more.
  void search() {
    const ConfigChange as_it_is{{}, reading_};
    std::vector<KnobValue> values = to_try(base_.knobs);
    std::vector<Tried> nearest;
    std::vector<KnobValue> useful;
    for (const KnobValue& value : values) {
      std::optional<Tried> one = tried(as_it_is, value);
      // One that is refused by itself may go with another.
      if (!one || one->proposed.saved_bytes >= 0) useful.push_back(value);
      if (!one) continue;
      if (helps(one->proposed)) found_.push_back(*one);
      nearest.push_back(std::move(*one));
    }
    if (base_.fit == Fit::fits) return;
    for (int round = 1; round < kMostCombined && !any_fits(); ++round) {
      keep_best(nearest);
      std::vector<Tried> next;
      for (const Tried& from : nearest) {
        for (const KnobValue& value : useful) {
          std::optional<Tried> further = tried(from.change, value);
          if (!further || further->rank >= from.rank) continue;
          if (further->proposed.fit < Fit::does_not_fit) found_.push_back(*further);
          next.push_back(std::move(*further));
        }
      }
      if (next.empty()) {
        // The nearest combination, though it is not enough.
        if (round > 1 && !any_fits()) found_.push_back(nearest.front());
        break;
      }
      nearest = std::move(next);
    }
  }
  static void keep_best(std::vector<Tried>& all) {
    std::stable_sort(all.begin(), all.end(),
                     [](const Tried& a, const Tried& b) { return a.rank < b.rank; });
    std::vector<Tried> best;
    for (Tried& one : all) {
      const bool known = std::any_of(best.begin(), best.end(), [&](const Tried& other) {
        return other.proposed.device_bytes == one.proposed.device_bytes &&
               other.proposed.step_seconds == one.proposed.step_seconds;
      });
      if (!known) best.push_back(std::move(one));
      if (best.size() == kBeam) break;
    }
    all = std::move(best);
  }

  bool helps(const ProposedChange& c) const {
    if (base_.fit == Fit::fits) return c.fit == Fit::fits && c.paid_seconds < -kLeastHelp * step();
    return c.fit < base_.fit ||
           (c.fit == base_.fit && c.saved_bytes > kLeastHelp * base_.predicted.needs.device);
  }

  // What a search tries, each word of knobs that decide about memory, and fewer sequences at a
  // time.
  std::vector<KnobValue> to_try(const RunKnobs& from) const {
    std::vector<KnobValue> all;
    const auto add = [&](const std::string& knob, const std::string& value) {
      const bool known = std::any_of(all.begin(), all.end(), [&](const KnobValue& other) {
        return other.knob == knob && other.value == value;
      });
      if (!known) all.push_back({knob, value});
    };
    const TrainingRun& run = base_.configured.run;
    for (const auto& [knob, values] : reading_.framework->search) {
      for (const std::string& value : values) {
        if (value != "degrees") {
          add(knob, value);
          continue;
        }
        const bool whole = knob != "tensor" || beyond_node_;
        const int64_t most = whole ? run.gpus : std::min(run.gpus, run.gpus_per_node);
        for (int64_t degree = 1; degree <= most; degree *= 2) add(knob, std::to_string(degree));
      }
    }
    for (const char* knob : kOfMemory) {
      const RunKnobRow& row = *find_run_knob(knob);
      if (row.kind == RunKnobKind::flag) {
        add(knob, "true");
        continue;
      }
      for (const std::string& word : words_of(row)) {
        if (word != "nvme" && word != "paged") add(knob, word);
      }
    }
    for (int64_t n = from.count_or("microbatch", 1) / 2; n > 0; n /= 2) {
      add("microbatch", std::to_string(n));
    }
    return all;
  }

  std::optional<Tried> tried(const ConfigChange& from, const KnobValue& value) const {
    if (from.reading.knobs.effective(value.knob) == value.value) return std::nullopt;
    std::optional<ConfigChange> change = change_knob(reading_, from, value.knob, value.value);
    if (!change) return std::nullopt;
    change = with_shards(std::move(*change), from.reading.knobs, value);
    std::optional<PredictedConfig> predicted = predict(*change);
    if (!predicted) return std::nullopt;
    if (!keep_batch(*change, *predicted) || !is_same_training(*predicted)) return std::nullopt;
    return judged(std::move(*change), *predicted);
  }
  std::optional<PredictedConfig> predict(const ConfigChange& change) const {
    try {
      return predict_(change.reading);
    } catch (const Error&) {
      return std::nullopt;  // refused
    }
  }

  // A degree that the config states next to the ranks that share states changes both.
  ConfigChange with_shards(ConfigChange change, const RunKnobs& from,
                           const KnobValue& value) const {
    const bool degree =
        value.knob == "tensor" || value.knob == "context" || value.knob == "pipeline";
    const std::optional<int64_t> stated = from.count("shard");
    if (!degree || !stated || predict(change)) return change;
    const int64_t whole = *stated * from.count_or(value.knob, 1), now = std::stoll(value.value);
    if (whole % now != 0) return change;
    std::optional<ConfigChange> both =
        change_knob(reading_, change, "shard", std::to_string(whole / now));
    return both ? std::move(*both) : change;
  }

  // Microbatches that a step of as many sequences has; 0: no number of them.
  static int64_t accumulated(const TrainingRun& run, int64_t batch) {
    const int64_t each = run.microbatch.value_or(1) * run.degrees.data;
    return batch % each == 0 ? batch / each : 0;
  }
  // Restores the sequences of a step. Whether the change may stay: it never makes a step larger.
  bool keep_batch(ConfigChange& change, PredictedConfig& predicted) const {
    const TrainingRun& was = base_.configured.run;
    const int64_t batch = was.global_batch;
    const auto keeps = [&](const PredictedConfig& p) {
      return p.configured.run.global_batch == batch;
    };
    // Whether the config states microbatches of a step, and rightly.
    const bool stated = reading_.places.contains("accumulation") &&
                        base_.knobs.count_or("accumulation", 1) == accumulated(was, batch);
    const int64_t needed = accumulated(predicted.configured.run, batch);
    const bool agrees = !stated || predicted.knobs.count_or("accumulation", 1) == needed;
    if (keeps(predicted) && agrees) return true;
    const bool pairs = predicted.knobs.is("task", "dpo") || predicted.knobs.is("task", "reward");
    const std::pair<const char*, int64_t> ways[] = {{"accumulation", needed},
                                                    {"batch", pairs ? batch / 2 : batch}};
    for (const auto& [knob, value] : ways) {
      if (needed == 0) break;
      std::optional<ConfigChange> kept = change_knob(reading_, change, knob, std::to_string(value));
      std::optional<PredictedConfig> run = kept ? predict(*kept) : std::nullopt;
      if (!run || !keeps(*run)) continue;
      change = std::move(*kept);
      predicted = std::move(*run);
      return true;
    }
    return predicted.configured.run.global_batch <= batch;
  }
  bool is_same_training(const PredictedConfig& p) const {
    for (const char* knob : kOfTraining) {
      const bool place = knob == std::string_view("reference") ||
                         knob == std::string_view("critic") ||
                         knob == std::string_view("reward-model");
      const std::string was = base_.knobs.effective(knob), now = p.knobs.effective(knob);
      // Where another model is may change, not whether it is.
      const bool same =
          place ? (was.empty() || was == "none") == (now.empty() || now == "none") : was == now;
      if (!same) return false;
    }
    return p.configured.run.sequence == base_.configured.run.sequence &&
           p.configured.run.precision == base_.configured.run.precision;
  }

  Tried judged(ConfigChange change, const PredictedConfig& p) const {
    Tried one{std::move(change), {}, 0};
    ProposedChange& c = one.proposed;
    c.changed = one.change.keys;
    c.fit = p.fit;
    c.device_bytes = p.predicted.needs.device;
    c.step_seconds = p.predicted.time.step();
    c.sequences = p.configured.run.step_sequences();
    c.keeps_batch = p.configured.run.global_batch == base_.configured.run.global_batch;
    c.saved_bytes = base_.predicted.needs.device - c.device_bytes;
    c.paid_seconds = c.step_seconds * base_.tokens / p.tokens - step();
    const double verdict = p.fit == Fit::fits ? 0 : p.fit == Fit::at_risk ? 0.3 : 1 + missing(p);
    one.rank = verdict + std::max(-0.5, c.paid_seconds / step());
    return one;
  }
  // The shortfall, as a share of the one before.
  double missing(const PredictedConfig& p) const {
    const auto of = [](const PredictedConfig& q) {
      const double host = q.configured.hw.host.memory_bytes.value;
      return std::max(0.0, q.predicted.needs.device / q.capacity_bytes - 1) +
             std::max(0.0, q.predicted.needs.host / host - 1);
    };
    return of(p) / std::max(0.01, of(base_));
  }

  // Keeps the change of the fewest keys among those with one effect, and drops a change that adds
  // to another one and is no better.
  void drop_needless() {
    const auto has_all = [](const Tried& whole, const Tried& part) {
      return std::all_of(part.change.keys.begin(), part.change.keys.end(), [&](const auto& key) {
        return std::find(whole.change.keys.begin(), whole.change.keys.end(), key) !=
               whole.change.keys.end();
      });
    };
    std::stable_sort(found_.begin(), found_.end(), [](const Tried& a, const Tried& b) {
      return a.change.keys.size() < b.change.keys.size();
    });
    std::vector<Tried> kept;
    for (Tried& one : found_) {
      const ProposedChange& c = one.proposed;
      const bool needless = std::any_of(kept.begin(), kept.end(), [&](const Tried& other) {
        const ProposedChange& o = other.proposed;
        const bool same = o.device_bytes == c.device_bytes && o.step_seconds == c.step_seconds &&
                          o.fit == c.fit && o.sequences == c.sequences;
        return same || (has_all(one, other) && order(o) <= order(c));
      });
      if (!needless) kept.push_back(std::move(one));
    }
    found_ = std::move(kept);
  }

  const ConfigReading& reading_;
  const ConfigPredictor& predict_;
  const PredictedConfig base_;
  bool beyond_node_ = false;
  std::vector<Tried> found_;
};

}  // namespace

std::vector<ProposedChange> propose_changes(const ConfigReading& reading,
                                            const ConfigPredictor& predict, int64_t most) {
  return Proposer(reading, predict).run(most);
}

}  // namespace longspan
