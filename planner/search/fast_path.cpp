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

// What is read off one sample, and how each grows with the repeats: peaks linearly, busy time as a
// quadratic (pairs of chunks), and what a phase takes beyond its busiest stream linearly. Which
// stream is the busiest is decided at the real size, where it may be another one than in the
// sample.
struct Measures {
  std::array<std::array<double, kTierCount>, phase_count> peak{};
  std::array<std::array<double, kStreamCount>, phase_count> busy{};
  std::array<double, phase_count> excess{}, sample_excess{};
  std::array<int, phase_count> busiest{};  // stream, in the largest sample

  template <class Visit>
  static void each(Visit visit) {
    for (int phase = 0; phase < phase_count; ++phase) {
      for (int tier = 0; tier < kTierCount; ++tier) {
        visit(
            [=](auto& m) -> auto& { return m.peak[phase][tier]; }, 2);
      }
      for (int stream = 0; stream < kStreamCount; ++stream) {
        visit(
            [=](auto& m) -> auto& { return m.busy[phase][stream]; }, 3);
      }
      visit(
          [=](auto& m) -> auto& { return m.excess[phase]; }, 2);
    }
  }
};

// Folds the samples of one dimension into the values at its real extent.
Measures fold(const Dimension& dimension, const std::array<Measures, 3>& samples, bool linear) {
  if (dimension.count == 1) return samples[0];
  Measures result;
  result.busiest = samples[dimension.count - 1].busiest;
  Measures::each([&](auto field, int points) {
    std::array<double, 3> values{};
    for (int i = 0; i < dimension.count; ++i) values[i] = field(samples[i]);
    // Layers and microbatches repeat exactly: there everything is linear.
    field(result) = dimension.extrapolate(values, linear ? 2 : points);
  });
  return result;
}

double peak_of(const std::vector<LiveCounts>& moments, const TensorBytes& bytes) {
  int64_t peak = 0;
  for (const LiveCounts& moment : moments) {
    int64_t sum = 0;
    for (int i = 0; i < kTensorCount; ++i) {
      if (moment[i] != 0) sum += moment[i] * round_up(bytes.unit[i], kArenaAlignment);
    }
    peak = std::max(peak, sum);
  }
  return static_cast<double>(peak);
}

void measure_time(const ShrunkenProgram& sample, const Timeline& timeline, Measures& m) {
  std::array<double, phase_count + 1> begins{};
  begins[phase_count] = timeline.step_seconds;
  for (int phase = 1; phase < phase_count; ++phase) {
    begins[phase] = timeline.spans[sample.first_op[phase]].start;
  }
  for (int stream = 0; stream < kStreamCount; ++stream) {
    int phase = 0;
    for (const Queued& queued : sample.layout.streams[stream]) {
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

  ShrunkenPrograms& find(const StepRequest& request);
  Measures measure(const StepRequest& request, bool with_time);
};

ShrunkenPrograms& FastPath::State::find(const StepRequest& request) {
  ShrunkenPrograms wanted = dimensions_of(request);
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
  ShrunkenPrograms& t = find(request);
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
        for (int phase = 0; phase < phase_count; ++phase) {
          for (int tier = 0; tier < kTierCount; ++tier) {
            m.peak[phase][tier] = peak_of(sample->moments[phase][tier], program.bytes);
          }
        }
        if (with_time) {
          std::vector<double>& all = durations[t.repeats_blocks ? 0 : r];
          if (all.empty()) all = cost.durations(program, t.shapes);
          own_durations.resize(sample->shapes.size());
          for (size_t i = 0; i < own_durations.size(); ++i) {
            own_durations[i] = all[sample->shapes[i]];
          }
          measure_time(*sample,
                       simulate(program, sample->layout, own_durations, cost.interference(), true),
                       m);
        }
        by_repeat[r] = m;
      }
      by_layer[l] = fold(t.repeats, by_repeat, false);
    }
    by_batch[b] = fold(t.layers, by_layer, true);
  }
  Measures result = fold(t.batches, by_batch, true);
  // Memory does not depend on how many microbatches come after the second.
  if (t.batches.count > 1) result.peak = by_batch[t.batches.count - 1].peak;
  return result;
}

namespace {

std::array<int64_t, kTierCount> peak_bytes_of(const Measures& m) {
  std::array<int64_t, kTierCount> bytes{};
  for (const auto& phase : m.peak) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      bytes[tier] = std::max(bytes[tier], static_cast<int64_t>(std::llround(phase[tier])));
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
