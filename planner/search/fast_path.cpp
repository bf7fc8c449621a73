#include "planner/search/fast_path.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/units.h"
#include "planner/search/shrunken.h"
#include "planner/simulate/simulate.h"

namespace longspan {
namespace {

// What is read off one sample, and how each grows with the repeats: the peak of every kind of
// moment linearly, busy time as a quadratic (pairs of chunks), and what a phase takes beyond its
// busiest stream linearly. Which stream is the busiest, and which kind of moment is the peak, is
// decided at the real size, where it may be another one than in the sample.
struct Measures {
  struct Peak {
    int kind;
    std::array<double, kTierCount> bytes;
  };
  std::vector<Peak> peaks;  // by kind
  std::array<std::array<double, kStreamCount>, phase_count> busy{};
  std::array<double, phase_count> excess{}, sample_excess{};
  std::array<int, phase_count> busiest{};  // stream, in the largest sample

  template <class Visit>
  static void each_time(Visit visit) {
    for (int phase = 0; phase < phase_count; ++phase) {
      for (int stream = 0; stream < kStreamCount; ++stream) {
        visit(
            [=](auto& m) -> auto& { return m.busy[phase][stream]; }, 3);
      }
      visit(
          [=](auto& m) -> auto& { return m.excess[phase]; }, 2);
    }
  }
};

// Kinds that only some samples have (the ends of what is long enough to have a middle) are lines
// through those that do.
std::vector<Measures::Peak> fold_peaks(const Dimension& dimension,
                                       const std::array<Measures, 3>& samples) {
  const int last = dimension.count - 1;
  std::vector<Measures::Peak> result = samples[last].peaks;
  const std::vector<Measures::Peak>& before = samples[last - 1].peaks;
  const double beyond = static_cast<double>(dimension.extent - dimension.samples[last]) /
                        static_cast<double>(dimension.samples[last] - dimension.samples[last - 1]);
  auto other = before.begin();
  for (Measures::Peak& peak : result) {
    while (other != before.end() && other->kind < peak.kind) ++other;
    if (other == before.end() || other->kind != peak.kind) continue;
    for (int tier = 0; tier < kTierCount; ++tier) {
      peak.bytes[tier] += beyond * (peak.bytes[tier] - other->bytes[tier]);
    }
  }
  return result;
}

// Folds the samples of one dimension into the values at its real extent.
Measures fold(const Dimension& dimension, std::array<Measures, 3>& samples, bool linear) {
  if (dimension.count == 1) return std::move(samples[0]);
  Measures result;
  result.peaks = fold_peaks(dimension, samples);
  result.busiest = samples[dimension.count - 1].busiest;
  result.sample_excess = samples[dimension.count - 1].sample_excess;
  Measures::each_time([&](auto field, int points) {
    std::array<double, 3> values{};
    for (int i = 0; i < dimension.count; ++i) values[i] = field(samples[i]);
    // Layers and microbatches repeat exactly: there everything is linear.
    field(result) = dimension.extrapolate(values, linear ? 2 : points);
  });
  return result;
}

double peak_of(const std::vector<Moment>& moments, const std::array<int64_t, kTensorCount>& unit) {
  int64_t peak = 0;
  for (const Moment& moment : moments) {
    int64_t sum = 0;
    for (const LiveUnits& live : moment) sum += live.units * unit[live.tensor];
    peak = std::max(peak, sum);
  }
  return static_cast<double>(peak);
}

std::vector<Measures::Peak> measure_peaks(const ShrunkenProgram& sample) {
  std::array<int64_t, kTensorCount> unit;
  for (int i = 0; i < kTensorCount; ++i) {
    unit[i] = round_up(sample.program.bytes.unit[i], kArenaAlignment);
  }
  std::vector<Measures::Peak> peaks;
  peaks.reserve(sample.moments.size());
  for (const Moments& moments : sample.moments) {
    Measures::Peak& peak = peaks.emplace_back(Measures::Peak{moments.kind, {}});
    for (int tier = 0; tier < kTierCount; ++tier) {
      peak.bytes[tier] = peak_of(moments.of_tier[tier], unit);
    }
  }
  return peaks;
}

const Layout& layout_of(ShrunkenProgram& sample) {
  if (!sample.layout) {
    sample.layout = lay_out(sample.program);
    sample.program.buffers = {};
    sample.program.releases = {};
  }
  return *sample.layout;
}

void measure_time(const ShrunkenProgram& sample, const Timeline& timeline, Measures& m) {
  std::array<double, phase_count + 1> begins{};
  begins[phase_count] = timeline.step_seconds;
  for (int phase = 1; phase < phase_count; ++phase) {
    begins[phase] = timeline.spans[sample.first_op[phase]].start;
  }
  for (int stream = 0; stream < kStreamCount; ++stream) {
    int phase = 0;
    for (const Queued& queued : sample.layout->streams[stream]) {
      while (phase + 1 < phase_count && queued.op >= sample.first_op[phase + 1]) ++phase;
      const Span& span = timeline.spans[queued.op];
      m.busy[phase][stream] += span.end - span.start;
    }
  }
  for (int phase = 0; phase < phase_count; ++phase) {
    const auto& busy = m.busy[phase];
    const auto most = std::max_element(busy.begin(), busy.end());
    m.busiest[phase] = static_cast<int>(most - busy.begin());
    m.excess[phase] = m.sample_excess[phase] = begins[phase + 1] - begins[phase] - *most;
  }
}

double step_seconds(const Measures& m) {
  double total = 0, serial = 0;
  std::array<double, kStreamCount> by_stream{};
  for (int phase = 0; phase < phase_count; ++phase) {
    const auto& busy = m.busy[phase];
    const auto most = std::max_element(busy.begin(), busy.end());
    const bool same = static_cast<int>(most - busy.begin()) == m.busiest[phase];
    total += *most + (same ? m.excess[phase] : m.sample_excess[phase]);
    for (int stream = 0; stream < kStreamCount; ++stream) {
      by_stream[stream] += busy[stream];
      serial += busy[stream];
    }
  }
  // No step is shorter than its busiest stream or longer than all streams one after another.
  return std::clamp(total, *std::max_element(by_stream.begin(), by_stream.end()), serial);
}

}  // namespace

struct FastPath::State {
  explicit State(const CostModel& cost) : cost(cost) {}

  const CostModel& cost;
  std::unordered_map<std::string, ShrunkenPrograms> known;
  int64_t evaluations = 0;

  ShrunkenPrograms& find(const StepRequest& request, bool with_time);
  Measures measure(const StepRequest& request, bool with_time);
};

ShrunkenPrograms& FastPath::State::find(const StepRequest& request, bool with_time) {
  ShrunkenPrograms wanted = dimensions_of(request, with_time);
  const auto [it, fresh] = known.try_emplace(key_of(request, wanted));
  ShrunkenPrograms& found = it->second;
  if (fresh) {
    lower_samples(request, wanted);
    found = std::move(wanted);
  } else {
    found.layers.extent = wanted.layers.extent;
    found.repeats.extent = wanted.repeats.extent;
    found.batches.extent = wanted.batches.extent;
  }
  return found;
}

Measures FastPath::State::measure(const StepRequest& request, bool with_time) {
  ShrunkenPrograms& t = find(request, with_time);
  // Durations of all shapes, by repeat sample: a block's length follows from it unless blocks are
  // what repeats.
  std::array<std::vector<double>, 3> durations;
  std::vector<double> own_durations;
  std::array<Measures, 3> by_batch{}, by_layer{}, by_repeat{};
  auto sample = t.samples.begin();
  for (int b = 0; b < t.batches.count; ++b) {
    for (int l = 0; l < t.layers.count; ++l) {
      for (int r = 0; r < t.repeats.count; ++r, ++sample) {
        Program& program = sample->program;
        const int64_t layers = program.model.layers;
        program.model = request.model;
        program.model.layers = layers;
        program.strategy.parallel = request.strategy.parallel;
        program.lengths = sample_lengths(request, t, t.repeats.samples[r]);
        program.strategy.projection_tile = request.strategy.projection_tile;
        program.strategy.mlp_tile = request.strategy.mlp_tile;
        program.strategy.loss_tile = request.strategy.loss_tile;
        program.bytes =
            tensor_bytes(program.model, program.lengths, program.strategy, program.dtype);
        Measures m;
        m.peaks = measure_peaks(*sample);
        if (with_time) {
          std::vector<double>& all = durations[t.repeats_blocks ? 0 : r];
          if (all.empty()) all = cost.durations(program, t.shapes);
          own_durations.resize(sample->shapes.size());
          for (size_t i = 0; i < own_durations.size(); ++i) {
            own_durations[i] = all[sample->shapes[i]];
          }
          measure_time(
              *sample,
              simulate(program, layout_of(*sample), own_durations, cost.interference(), true), m);
        }
        by_repeat[r] = std::move(m);
      }
      by_layer[l] = fold(t.repeats, by_repeat, false);
    }
    by_batch[b] = fold(t.layers, by_layer, true);
  }
  // Memory does not depend on how many microbatches come after the second.
  std::vector<Measures::Peak> peaks = by_batch[t.batches.count - 1].peaks;
  Measures result = fold(t.batches, by_batch, true);
  result.peaks = std::move(peaks);
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

FastPath::FastPath(const CostModel& cost) : state_(std::make_unique<State>(cost)) {}
FastPath::~FastPath() = default;

Evaluation FastPath::evaluate(const StepRequest& request) {
  const Measures m = state_->measure(request, true);
  ++state_->evaluations;
  return {step_seconds(m), peak_bytes_of(m)};
}

std::array<int64_t, kTierCount> FastPath::peak_bytes(const StepRequest& request) {
  return peak_bytes_of(state_->measure(request, false));
}

int64_t FastPath::evaluations() const { return state_->evaluations; }

}  // namespace longspan
