#include "planner/evaluate/by_period.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "base/units.h"
#include "planner/program/key_window.h"
#include "planner/program/ops_estimate.h"
#include "planner/program/outline.h"
#include "planner/simulate/simulate.h"

namespace longspan {
namespace {

// Limits on the ops left without repeats: of a whole program, and of each sample. Memory gets
// larger samples, as packing varies irregularly from sample to sample and decides what fits.
// Seconds are smooth, and known to 0.3 % from small samples.
struct Sizes {
  int64_t whole, samples;
};
constexpr Sizes kMemory = {40'000'000, 8'000'000}, kTime = {700'000, 700'000};
constexpr int64_t kFewestLayers = 4;  // in the larger sample
// Least chunks of the smallest of three samples, without those in flight.
constexpr int64_t kFewestRepeats = 6;

// The extents of a sample in the two dimensions.
struct Extents {
  int64_t layers = 1, repeats = 1;
};

// A request with smaller extents. Along the sequence slices repeat, or blocks, or the chunks of
// every block, whichever of the two are more.
class Shrunk {
 public:
  explicit Shrunk(const StepRequest& request) : request_(request) {
    const Strategy& s = request.strategy;
    const Lengths lengths = lengths_of(s, request.sequence);
    const int64_t chunks_of_block = lengths.block / lengths.chunk;
    by_slices_ = s.parallel.pipeline.slices > 1;
    by_blocks_ = lengths.blocks() > chunks_of_block;
    all_ = {request.model.layers, by_slices_   ? s.parallel.pipeline.slices
                                  : by_blocks_ ? lengths.blocks()
                                               : chunks_of_block};
    const KeyWindow window = key_window(request.model, lengths.chunk);
    const int64_t chunks_of_repeat = lengths.chunks() / all_.repeats;
    if (window.is_limited())
      before_ = ceil_div(window.farthest, std::max<int64_t>(1, chunks_of_repeat));
    // Ring positions have chunks in pairs, and a tensor group divides the tokens of a block.
    step_ = s.parallel.ring > 1 ? 2 : 1;
    if (!by_slices_ && !by_blocks_ && s.parallel.tensor > 1) {
      step_ = s.parallel.tensor / std::gcd(s.parallel.tensor, s.chunk_tokens);
    }
  }

  const Extents& all() const { return all_; }
  /// Sampled numbers of repeats are multiples of this.
  int64_t step() const { return step_; }
  /// Repeats before each of which later ones see as many keys.
  int64_t before() const { return before_; }
  StepRequest of(const Extents& extents) const {
    StepRequest small = request_;
    Strategy& s = small.strategy;
    small.model.layers = extents.layers;
    if (by_slices_) {
      small.sequence = request_.sequence / s.parallel.pipeline.slices * extents.repeats;
      s.parallel.pipeline.slices = extents.repeats;
    } else if (by_blocks_) {
      small.sequence = extents.repeats * s.block_tokens * s.parallel.ring;
    } else {
      const int64_t blocks = request_.sequence / s.parallel.ring / s.block_tokens;
      s.block_tokens = extents.repeats * s.chunk_tokens;
      small.sequence = blocks * s.block_tokens * s.parallel.ring;
    }
    return small;
  }
  bool fits(const Extents& extents, int64_t ops) const {
    return ops_without_repeats(of(extents)) <= ops;
  }

 private:
  const StepRequest& request_;
  bool by_slices_ = false, by_blocks_ = false;
  Extents all_;
  int64_t step_ = 1, before_ = 0;
};

// One dimension's samples.
struct Samples {
  int64_t real = 1;
  std::vector<int64_t> extents;

  // The weights of the samples' values in their extrapolation to the real extent, by the polynomial
  // through the last `points` samples.
  std::vector<double> weights(size_t points) const {
    const size_t first = extents.size() - std::min(points, extents.size());
    std::vector<double> result(extents.size());
    for (size_t i = first; i < extents.size(); ++i) {
      result[i] = 1;
      for (size_t j = first; j < extents.size(); ++j) {
        if (j == i) continue;
        result[i] *=
            static_cast<double>(real - extents[j]) / static_cast<double>(extents[i] - extents[j]);
      }
    }
    return result;
  }
};

// If layers differ, samples keep all of them.
bool layers_are_alike(const Strategy& s) {
  return std::min({s.layer_input.fraction, s.qkv.fraction, s.attention_out.fraction,
                   s.mlp_input.fraction, s.mlp_inner.fraction, s.optimizer_fraction}) >= 1;
}

// The most layers with which all repeats are within `ops`, and half of them.
Samples sampled_layers(const Shrunk& shrunk, const Strategy& s, int64_t ops) {
  Extents extents = shrunk.all();
  const int64_t real = extents.layers;
  if (real <= kFewestLayers || !layers_are_alike(s)) return {real, {real}};
  int64_t more = kFewestLayers;
  for (extents.layers = more + 1; extents.layers < real && shrunk.fits(extents, ops);
       ++extents.layers) {
    more = extents.layers;
  }
  return {real, {more / 2, more}};
}

// Numbers of repeats: few, doubled while the largest of three samples is within `ops`; the smaller
// ones are a quarter and half of it.
Samples sampled_repeats(const Shrunk& shrunk, const Strategy& s, int64_t layers, int64_t ops) {
  const int64_t real = shrunk.all().repeats, step = shrunk.step();
  const auto fits = [&](int64_t repeats) { return shrunk.fits({layers, repeats}, ops); };
  const int64_t in_flight = std::max(s.prefetch_depth, s.offload_window);
  int64_t few = round_up(kFewestRepeats + in_flight + shrunk.before(), step);
  if (fits(real) || real <= 4 * few) return {real, {real}};
  while (8 * few < real && fits(8 * few)) few *= 2;
  return {real, {few, 2 * few, 4 * few}};
}

// A sample, and its weights in the extrapolation of quantities that grow with pairs of chunks, and
// with chunks.
struct Sample {
  StepRequest request;
  double of_pairs = 1, of_chunks = 1;
};

// The samples of a request; only the whole if it is small enough.
std::vector<Sample> samples_of(const StepRequest& request, const Sizes& sizes) {
  const Shrunk shrunk(request);
  if (shrunk.fits(shrunk.all(), sizes.whole)) return {{request}};
  const Samples layers = sampled_layers(shrunk, request.strategy, sizes.samples);
  const Samples repeats =
      sampled_repeats(shrunk, request.strategy, layers.extents.back(), sizes.samples);
  const std::vector<double> by_layer = layers.weights(2), by_parabola = repeats.weights(3),
                            by_line = repeats.weights(2);
  std::vector<Sample> samples;
  for (size_t l = 0; l < layers.extents.size(); ++l) {
    for (size_t r = 0; r < repeats.extents.size(); ++r) {
      samples.push_back({shrunk.of({layers.extents[l], repeats.extents[r]}),
                         by_layer[l] * by_parabola[r], by_layer[l] * by_line[r]});
    }
  }
  return samples;
}

}  // namespace

Evaluation time_by_period(const StepRequest& request, const CostModel& cost) {
  Evaluation evaluation;
  for (const Sample& sample : samples_of(request, kTime)) {
    const Outline outline = outline_without_repeats(sample.request);
    const StepSeconds seconds =
        simulate(outline, cost.durations(outline.program), cost.interference());
    evaluation.step_seconds += sample.of_pairs * seconds.step;
    evaluation.forward_seconds += sample.of_pairs * seconds.forward;
    for (int s = 0; s < kStreamCount; ++s) {
      evaluation.forward_busy[s] += sample.of_pairs * seconds.forward_busy[s];
      evaluation.busy_seconds[s] += sample.of_pairs * seconds.busy[s];
    }
  }
  evaluation.extrapolated = true;
  return evaluation;
}

Evaluation evaluate_by_period(const StepRequest& request, const CostModel& cost) {
  Evaluation evaluation = time_by_period(request, cost);
  evaluation.peak_bytes = arenas_by_period(request).bytes;
  return evaluation;
}

Arenas arenas_by_period(const StepRequest& request) {
  Arenas result;
  std::array<double, kTierCount> bytes{};
  for (const Sample& sample : samples_of(request, kMemory)) {
    const Arenas arenas = arenas_without_repeats(sample.request);
    result.largest = arenas.largest;
    result.ops += arenas.ops;
    for (int tier = 0; tier < kTierCount; ++tier) {
      bytes[tier] += sample.of_chunks * static_cast<double>(arenas.bytes[tier]);
      // Packing may make a larger sample need less memory, and the extrapolation fall.
      result.bytes[tier] = std::max(result.bytes[tier], arenas.bytes[tier]);
    }
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    const auto extrapolated = static_cast<int64_t>(std::ceil(bytes[tier]));
    result.bytes[tier] = round_up(std::max(result.bytes[tier], extrapolated), kArenaAlignment);
  }
  return result;
}

}  // namespace longspan
