#include "planner/evaluate/sampled_simulation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "planner/evaluate/sampled_program.h"
#include "planner/simulate/simulate.h"

namespace longspan {
namespace {

// Spread between the fastest and the slowest layer, relative to a layer's time, above which larger
// samples are taken.
constexpr double kUneven = 0.003;
// Time to lower and lay out an op over the time to simulate a chain.
constexpr int64_t kLowerings = 8;
// A generation of the cache ends when its samples have this many ops; an op takes up to two hundred
// bytes. The latest two generations are kept.
constexpr int64_t kOpsOfGeneration = 500'000;

// The measures of one sample. Along repeats, the peak of every kind of moment grows linearly, busy
// time as a quadratic (pairs of chunks), and the excess of a phase over its busiest stream
// linearly. Along layers and microbatches, which repeat exactly, all measures grow linearly. The
// busiest stream and the kind of the peak are determined at the real size, where they may differ
// from the sample's.
struct Measures {
  struct Peak {
    int kind;
    std::array<double, kTierCount> bytes;
  };
  std::vector<Peak> peaks;  // by kind
  std::array<std::array<double, kStreamCount>, phase_count> busy{};
  std::array<double, phase_count> seconds{};
  bool by_repeats = false;  // whether repeats were sampled; set when all samples are folded

  double most_busy(int phase) const {
    return *std::max_element(busy[phase].begin(), busy[phase].end());
  }
  int busiest(int phase) const {
    return static_cast<int>(std::max_element(busy[phase].begin(), busy[phase].end()) -
                            busy[phase].begin());
  }
};

// Extrapolates the peaks of the largest sample: adds `beyond` times its difference to a smaller
// one. Kinds that only one of them has (at the ends) stay.
void extend_peaks(std::vector<Measures::Peak>& peaks, const std::vector<Measures::Peak>& largest,
                  const std::vector<Measures::Peak>& smaller, double beyond) {
  auto own = largest.begin();
  auto other = smaller.begin();
  for (Measures::Peak& peak : peaks) {
    while (own->kind < peak.kind) ++own;
    while (other != smaller.end() && other->kind < peak.kind) ++other;
    if (other == smaller.end() || other->kind != peak.kind) continue;
    for (int tier = 0; tier < kTierCount; ++tier) {
      peak.bytes[tier] += beyond * (own->bytes[tier] - other->bytes[tier]);
    }
  }
}

using Samples = std::array<Measures, 3>;

// A measure at the real extent, by the polynomial through the last `points` samples.
template <class Figure>
double grown(const Dimension& dimension, const Samples& samples, int points, Figure figure) {
  std::array<double, 3> values{};
  for (int i = 0; i < dimension.count; ++i) values[i] = figure(samples[i]);
  return dimension.extrapolate(values, points);
}

// Extrapolates the samples along the sequence to its real extent.
Measures fold_repeats(const Dimension& dimension, Samples& samples) {
  if (dimension.count == 1) return std::move(samples[0]);
  const Measures& last = samples[dimension.count - 1];
  Measures result;
  const Measures& before = samples[dimension.count - 2];
  result.peaks = last.peaks;
  extend_peaks(result.peaks, last.peaks, before.peaks, dimension.beyond());
  for (int phase = 0; phase < phase_count; ++phase) {
    for (int stream = 0; stream < kStreamCount; ++stream) {
      result.busy[phase][stream] =
          grown(dimension, samples, 3, [=](const Measures& m) { return m.busy[phase][stream]; });
    }
  }
  for (int phase = 0; phase < phase_count; ++phase) {
    const auto excess = [=](const Measures& m) { return m.seconds[phase] - m.most_busy(phase); };
    const bool same = result.busiest(phase) == last.busiest(phase);
    result.seconds[phase] =
        result.most_busy(phase) + (same ? grown(dimension, samples, 2, excess) : excess(last));
  }
  return result;
}

// A smaller sample, and the factor of its difference to the largest one in the extrapolation.
struct Smaller {
  const Measures& measures;
  double beyond;
};

// Extrapolates the largest sample of layers or of microbatches, which repeat exactly, to the real
// extents.
Measures fold_alike(const Measures& largest, const std::vector<Smaller>& smaller) {
  Measures result = largest;
  for (const auto& [other, beyond] : smaller) {
    extend_peaks(result.peaks, largest.peaks, other.peaks, beyond);
    for (int phase = 0; phase < phase_count; ++phase) {
      for (int stream = 0; stream < kStreamCount; ++stream) {
        result.busy[phase][stream] +=
            beyond * (largest.busy[phase][stream] - other.busy[phase][stream]);
      }
      result.seconds[phase] += beyond * (largest.seconds[phase] - other.seconds[phase]);
    }
  }
  return result;
}

double peak_of(const std::vector<LiveSnapshot>& moments,
               const std::array<int64_t, kTensorCount>& unit) {
  int64_t peak = 0;
  for (const LiveSnapshot& moment : moments) {
    int64_t sum = 0;
    for (const LiveUnits& live : moment) sum += live.units * unit[live.tensor];
    peak = std::max(peak, sum);
  }
  return static_cast<double>(peak);
}

std::vector<Measures::Peak> measure_peaks(const SampledProgram& sample) {
  std::array<int64_t, kTensorCount> unit;
  for (int i = 0; i < kTensorCount; ++i) {
    unit[i] = round_up(sample.program.bytes.unit[i], kArenaAlignment);
  }
  std::vector<Measures::Peak> peaks;
  if (!sample.lives.empty()) {
    std::array<int64_t, kTierCount> live{}, most{};
    for (const LifeEvent& event : sample.lives) {
      int64_t& of_tier = live[event.tier];
      of_tier += (event.ends ? -1 : 1) * event.units * unit[event.tensor];
      most[event.tier] = std::max(most[event.tier], of_tier);
    }
    peaks.push_back({0, {}});
    for (int tier = 0; tier < kTierCount; ++tier) {
      peaks[0].bytes[tier] = static_cast<double>(most[tier]);
    }
    return peaks;
  }
  peaks.reserve(sample.moments.size());
  for (const Moments& moments : sample.moments) {
    Measures::Peak& peak = peaks.emplace_back(Measures::Peak{moments.kind, {}});
    for (int tier = 0; tier < kTierCount; ++tier) {
      peak.bytes[tier] = peak_of(moments.of_tier[tier], unit);
    }
  }
  return peaks;
}

void measure_time(const SampledProgram& sample, const Timeline& timeline, Measures& m) {
  const auto begin_of = [&](int phase) {
    while (phase < phase_count && sample.opening[phase] < 0) ++phase;
    return phase == phase_count ? timeline.step_seconds
           : phase == 0         ? 0.0
                                : timeline.spans[sample.opening[phase]].start;
  };
  for (int phase = 0; phase < phase_count; ++phase) {
    for (int stream = 0; stream < kStreamCount; ++stream) {
      const auto& first = sample.first_chain[stream];
      double busy = 0;
      for (int32_t chain = first[phase]; chain < first[phase + 1]; ++chain) {
        busy += timeline.spans[chain].end - timeline.spans[chain].start;
      }
      m.busy[phase][stream] = busy;
    }
    m.seconds[phase] = begin_of(phase + 1) - begin_of(phase);
  }
}

// Whether inner layers differ in time, in forward or backward. A few layers are then no good
// measure of many.
bool layers_differ(const SampledProgram& sample, const Timeline& timeline) {
  struct Spread {
    double least = 1e300, most = 0, sum = 0;
    int64_t count = 0;
  };
  // Spreads of each run of layers, in forward and backward order.
  std::vector<std::array<Spread, 2>> spreads(static_cast<size_t>(sample.run_of_layer.back() + 1));
  const int64_t layers = sample.program.model.layers;
  const auto is_within = [&](int layer) {  // with both neighbours in its run
    if (layer <= 0 || layer >= layers - 1) return false;
    const int* const run = sample.run_of_layer.data() + layer;
    return run[-1] == run[0] && run[1] == run[0];
  };
  int layer = -1;
  double begin = 0;
  for (const Queued& chain : sample.chains.queues[static_cast<int>(Stream::compute)]) {
    const int next = sample.layer_of_chain[chain.op];
    if (next == layer || next < 0) continue;
    const double now = timeline.spans[chain.op].start;
    if (is_within(layer) && std::abs(next - layer) == 1) {
      const auto run = static_cast<size_t>(sample.run_of_layer[static_cast<size_t>(layer)]);
      Spread& spread = spreads[run][next < layer ? 1 : 0];
      spread.least = std::min(spread.least, now - begin);
      spread.most = std::max(spread.most, now - begin);
      spread.sum += now - begin;
      ++spread.count;
    }
    layer = next;
    begin = now;
  }
  double apart = 0, mean = 0;
  for (const std::array<Spread, 2>& of_run : spreads) {
    for (const Spread& spread : of_run) {
      if (spread.count == 0) continue;
      apart += spread.most - spread.least;
      mean += spread.sum / static_cast<double>(spread.count);
    }
  }
  return apart > kUneven * mean;
}

std::array<double, kStreamCount> busy_seconds(const Measures& m) {
  std::array<double, kStreamCount> busy{};
  for (int phase = 0; phase < phase_count; ++phase) {
    for (int stream = 0; stream < kStreamCount; ++stream) busy[stream] += m.busy[phase][stream];
  }
  return busy;
}

double step_seconds(const Measures& m) {
  const std::array<double, kStreamCount> by_stream = busy_seconds(m);
  const double total = std::accumulate(m.seconds.begin(), m.seconds.end(), 0.0);
  const double serial = std::accumulate(by_stream.begin(), by_stream.end(), 0.0);
  // A step takes at least its busiest stream, and at most the sum of all streams.
  return std::clamp(total, *std::max_element(by_stream.begin(), by_stream.end()), serial);
}

}  // namespace

struct SampledSimulation::State {
  explicit State(const CostModel& cost) : cost(cost) {}

  const CostModel& cost;
  using Cache = std::unordered_map<std::string, SampledPrograms>;
  Cache recent, older;
  int64_t recent_ops = 0;  // of all samples in `recent`
  int64_t evaluations = 0;
  int64_t work = 0;

  SampledPrograms& find(const StepRequest& request, Purpose purpose);
  /// Sets `uneven` if layers differ in time. With `whether_even`, the time of later samples is then
  /// left at 0, as it is not used.
  Measures measure(const StepRequest& request, Purpose purpose, bool& uneven,
                   bool whether_even = false);
  Evaluation evaluate(const StepRequest& request,
                      const std::function<bool(const Evaluation&)>& worth);
};

SampledPrograms& SampledSimulation::State::find(const StepRequest& request, Purpose purpose) {
  SampledPrograms wanted = dimensions_of(request, purpose);
  if (recent_ops > kOpsOfGeneration) {
    older = std::exchange(recent, {});
    recent_ops = 0;
  }
  const std::string key = key_of(request, wanted);
  Cache::node_type kept = older.extract(key);
  if (kept) {
    recent_ops += kept.mapped().ops;
    recent.insert(std::move(kept));
  }
  const auto [it, fresh] = recent.try_emplace(key);
  SampledPrograms& found = it->second;
  // Samples lowered for memory have no chains.
  if (fresh || (purpose != Purpose::memory && !found.has_chains)) {
    lower_samples(request, purpose, wanted);
    work += kLowerings * wanted.ops;
    recent_ops += wanted.ops;
    found = std::move(wanted);
  } else {
    found.layers = std::move(wanted.layers);
    found.repeats.extent = wanted.repeats.extent;
    found.batches.extent = wanted.batches.extent;
  }
  return found;
}

Measures SampledSimulation::State::measure(const StepRequest& request, Purpose purpose,
                                           bool& uneven, bool whether_even) {
  const bool with_time = purpose != Purpose::memory;
  SampledPrograms& t = find(request, purpose);
  // Durations of all shapes, by repeat sample, which determines a block's length unless blocks
  // repeat.
  std::array<std::vector<double>, 3> durations;
  Samples by_repeat{};
  std::vector<Measures> by_batch;
  auto sample = t.samples.begin();
  for (int b = 0; b < t.batches.count; ++b) {
    std::vector<Measures> by_layers;
    for (int l = 0; l < t.layers.samples(); ++l) {
      for (int r = 0; r < t.repeats.count; ++r, ++sample) {
        Program& program = sample->program;
        const int64_t layers = program.model.layers;
        program.model = request.model;
        program.model.layers = layers;
        program.lengths = sample_lengths(request, t, t.repeats.samples[r]);
        // Equal keys: the strategy differs only in sizes from the one that was lowered.
        program.strategy = request.strategy;
        program.strategy.block_tokens = program.lengths.block;
        program.bytes = tensor_bytes(program.model, program.lengths, program.strategy,
                                     program.dtype, program.compute_capability);
        Measures m;
        m.peaks = measure_peaks(*sample);
        if (with_time && !(uneven && whether_even)) {
          std::vector<double>& all = durations[t.repeats_blocks ? 0 : r];
          if (all.empty()) all = cost.durations(program, t.shapes);
          const Chains& chains = sample->chains;
          work += static_cast<int64_t>(chains.first_ops.size());
          const Timeline timeline =
              simulate(chains.queues, durations_of(chains, all), cost.interference());
          measure_time(*sample, timeline, m);
          uneven |= !t.layers.is_whole() && layers_differ(*sample, timeline);
        }
        by_repeat[r] = std::move(m);
      }
      by_layers.push_back(fold_repeats(t.repeats, by_repeat));
    }
    std::vector<Smaller> smaller;
    for (int l = 1; l < t.layers.samples(); ++l) {
      smaller.push_back({by_layers[static_cast<size_t>(l)], t.layers.beyond(l)});
    }
    by_batch.push_back(fold_alike(by_layers[0], smaller));
  }
  Measures result;
  if (t.batches.count == 1) {
    result = std::move(by_batch[0]);
  } else {
    result = fold_alike(by_batch[1], {{by_batch[0], t.batches.beyond()}});
    // Memory does not depend on the number of microbatches after the second.
    result.peaks = by_batch[1].peaks;
  }
  result.by_repeats = t.repeats.count > 1;
  return result;
}

namespace {

std::array<int64_t, kTierCount> peak_bytes_of(const Measures& m) {
  std::array<int64_t, kTierCount> bytes{};
  for (const Measures::Peak& peak : m.peaks) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      bytes[tier] = std::max(bytes[tier], static_cast<int64_t>(std::llround(peak.bytes[tier])));
    }
  }
  return bytes;
}

}  // namespace

SampledSimulation::SampledSimulation(const CostModel& cost)
    : state_(std::make_unique<State>(cost)) {}
SampledSimulation::~SampledSimulation() = default;

Evaluation SampledSimulation::State::evaluate(const StepRequest& request,
                                              const std::function<bool(const Evaluation&)>& worth) {
  ++evaluations;
  bool uneven = false;
  const Measures first = measure(request, Purpose::time, uneven, !worth);
  Evaluation evaluation{step_seconds(first), peak_bytes_of(first), first.seconds[forward_phase],
                        first.busy[forward_phase], busy_seconds(first)};
  evaluation.extrapolated = first.by_repeats;
  if (uneven && (!worth || worth(evaluation))) {
    const Measures more = measure(request, Purpose::uneven_time, uneven);
    evaluation.step_seconds = step_seconds(more);
    evaluation.forward_seconds = more.seconds[forward_phase];
    evaluation.forward_busy = more.busy[forward_phase];
    evaluation.busy_seconds = busy_seconds(more);
  }
  return evaluation;
}

Evaluation SampledSimulation::evaluate(const StepRequest& request) {
  return state_->evaluate(request, nullptr);
}

Evaluation SampledSimulation::evaluate(const StepRequest& request,
                                       const std::function<bool(const Evaluation&)>& worth) {
  return state_->evaluate(request, worth);
}

std::array<int64_t, kTierCount> SampledSimulation::peak_bytes(const StepRequest& request) {
  bool uneven = false;
  return peak_bytes_of(state_->measure(request, Purpose::memory, uneven));
}

int64_t SampledSimulation::evaluations() const { return state_->evaluations; }
int64_t SampledSimulation::work() const { return state_->work; }

}  // namespace longspan
