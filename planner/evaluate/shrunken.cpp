#include "planner/evaluate/shrunken.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/units.h"
#include "planner/program/ops_estimate.h"
#include "planner/strategy/knobs.h"

namespace longspan {
namespace {

// Layers of the smaller sample: the first, the last, and one with a neighbour on both sides. More
// where they are small, as what copies have fallen behind by builds up from layer to layer.
constexpr int64_t kFewestLayers = 3;
constexpr int64_t kSampleOps = 2000;
// Samples are this far apart, and the model's layers a multiple of it from them: layers can take
// turns. By twos, threes and fours where they differ from each other, as ops wait for a place in
// memory; and the farther apart, the less a single layer's luck matters.
constexpr int64_t kLayersApart = 2;
constexpr int64_t kUnevenLayersApart = 12;
constexpr int64_t kUnevenPeriod = 6;
// Programs of so few ops are not shrunk in their layers: it would gain nothing.
constexpr int64_t kExactOps = 12000;
constexpr int64_t kUnevenExactOps = 15000;
constexpr int kLayerSamples = 2;
constexpr int kRepeatSamples = 3;
// Up to this many repeats nothing is shrunk along the sequence where time is asked for: the program
// of a few layers is small enough, and where copies and compute are close to each other only the
// real extent tells.
constexpr int64_t kExactRepeats = 64;
constexpr int64_t kExactPairedRepeats = 24;  // ops grow with pairs of chunks
constexpr int64_t kExactRepeatsForMemory = 6;
constexpr int64_t kExactBatches = 3;  // as many as two samples have in all

// How many of the layers a policy covers; those are the first.
int64_t covered(const SavedPolicy& policy, int64_t layers) {
  if (policy.where == Saved::keep) return layers;
  const auto count = static_cast<int64_t>(std::ceil(policy.fraction * static_cast<double>(layers)));
  return std::min(layers, count);
}

// The lengths of the runs of layers that save alike.
std::vector<int64_t> runs_of(const Strategy& s, int64_t layers) {
  std::vector<int64_t> ends = {layers};
  for (const KnobRow& row : knob_rows()) {
    if (row.at.policy != nullptr) ends.push_back(covered(s.*row.at.policy, layers));
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  for (size_t i = ends.size(); i-- > 1;) ends[i] -= ends[i - 1];
  return ends;
}

// The strategy for a model whose runs have other lengths.
Strategy with_runs(Strategy s, int64_t layers, const std::vector<int64_t>& lengths) {
  const std::vector<int64_t> runs = runs_of(s, layers);
  const auto all = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  for (const KnobRow& row : knob_rows()) {
    if (row.at.policy == nullptr) continue;
    SavedPolicy& own = s.*row.at.policy;
    const int64_t covers = covered(own, layers);
    int64_t shorter = 0, end = 0;
    for (size_t i = 0; end < covers; end += runs[i++]) shorter += lengths[i];
    // Half a layer less than it covers, so that no rounding adds one.
    own.fraction = covers == layers ? 1 : (static_cast<double>(shorter) - 0.5) / all;
  }
  return s;
}

// How many units of every tensor are live at one moment. Whole vectors of them: comparing two is
// where lowering spent most of its time.
using LiveCounts = std::array<int16_t, (kTensorCount + 15) / 16 * 16>;

bool dominates(const LiveCounts& a, const LiveCounts& b) {
  int16_t less = 0;
  for (size_t t = 0; t < a.size(); ++t) less |= static_cast<int16_t>(a[t] < b[t]);
  return less == 0;
}

void add_moment(std::vector<LiveCounts>& moments, const LiveCounts& moment) {
  // Newest first: loops come back to what they had last.
  for (size_t i = moments.size(); i-- > 0;) {
    if (dominates(moments[i], moment)) return;
  }
  std::erase_if(moments, [&](const LiveCounts& known) { return dominates(moment, known); });
  moments.push_back(moment);
}

Moment compressed(const LiveCounts& counts) {
  Moment moment;
  for (int t = 0; t < kTensorCount; ++t) {
    if (counts[t] != 0) moment.push_back({static_cast<uint8_t>(t), counts[t]});
  }
  return moment;
}

// The buffers whose lifetimes begin at (or end with) each op: those of op i are
// ids[starts[i]] .. ids[starts[i + 1]].
struct ByOp {
  std::vector<int32_t> starts;
  std::vector<BufferId> ids;

  template <class OpOf>
  ByOp(const Program& program, OpOf op_of)
      : starts(program.ops.size() + 1), ids(program.buffers.size()) {
    for (const Buffer& b : program.buffers) ++starts[op_of(b)];
    int32_t sum = 0;
    for (int32_t& start : starts) start = sum += start;
    for (size_t i = program.buffers.size(); i-- > 0;) {
      ids[--starts[op_of(program.buffers[i])]] = static_cast<BufferId>(i);
    }
  }
};

int kind_of_moment(const Op& op, int phase, int run) {
  return (run * kOpKindCount + static_cast<int>(op.kind)) * phase_count + phase;
}

void find_phases(ShrunkenProgram& sample) {
  const std::vector<Op>& ops = sample.program.ops;
  sample.first_op[backward_phase] = static_cast<int32_t>(first_backward_op(sample.program));
  sample.first_op[update_phase] = static_cast<int32_t>(
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::adamw; }) -
      ops.begin());
}

void find_moments(ShrunkenProgram& sample) {
  const Program& program = sample.program;
  const ByOp begins(program, [](const Buffer& b) { return b.first_op; });
  const ByOp ends(program, [](const Buffer& b) { return std::max(b.first_op, b.last_op); });
  std::array<LiveCounts, kTierCount> live{};
  struct Found {
    std::array<std::vector<LiveCounts>, kTierCount> moments;
    std::array<int64_t, kTierCount> seen{};  // changes when this kind was last looked at
  };
  const int runs = sample.run_of_layer.back() + 1;
  std::vector<Found> found(static_cast<size_t>(phase_count * kOpKindCount * runs));
  std::array<int64_t, kTierCount> changes{1, 1, 1};  // of what is live
  int phase = forward_phase;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    while (phase + 1 < phase_count && static_cast<int32_t>(i) >= sample.first_op[phase + 1])
      ++phase;
    for (int32_t n = begins.starts[i]; n < begins.starts[i + 1]; ++n) {
      const Buffer& b = program.buffers[begins.ids[n]];
      ++live[static_cast<int>(b.tier)][static_cast<int>(b.tensor)];
      ++changes[static_cast<int>(b.tier)];
    }
    const auto layer = static_cast<size_t>(op.layer);  // huge where an op is of none
    const int run = layer < sample.run_of_layer.size() ? sample.run_of_layer[layer] : 0;
    Found& of_kind = found[static_cast<size_t>(kind_of_moment(op, phase, run))];
    std::array<bool, kTierCount> falls{};
    for (int32_t n = ends.starts[i]; n < ends.starts[i + 1]; ++n) {
      falls[static_cast<int>(program.buffers[ends.ids[n]].tier)] = true;
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      // Where nothing ends the next moment exceeds this one.
      if (!falls[tier] || of_kind.seen[tier] == changes[tier]) continue;
      of_kind.seen[tier] = changes[tier];
      add_moment(of_kind.moments[tier], live[tier]);
    }
    for (int32_t n = ends.starts[i]; n < ends.starts[i + 1]; ++n) {
      const Buffer& b = program.buffers[ends.ids[n]];
      --live[static_cast<int>(b.tier)][static_cast<int>(b.tensor)];
      ++changes[static_cast<int>(b.tier)];
    }
  }
  for (size_t kind = 0; kind < found.size(); ++kind) {
    Moments moments{static_cast<int>(kind), {}};
    bool any = false;
    for (int tier = 0; tier < kTierCount; ++tier) {
      for (const LiveCounts& counts : found[kind].moments[tier]) {
        moments.of_tier[tier].push_back(compressed(counts));
        any = true;
      }
    }
    if (any) sample.moments.push_back(std::move(moments));
  }
}

// What is not extrapolated needs no kinds of moments: the peak is where it is in the program.
void find_lives(ShrunkenProgram& sample) {
  const Program& program = sample.program;
  const ByOp begins(program, [](const Buffer& b) { return b.first_op; });
  const ByOp ends(program, [](const Buffer& b) { return std::max(b.first_op, b.last_op); });
  sample.lives.reserve(2 * program.buffers.size());
  const auto add = [&](const ByOp& by_op, size_t op, bool end) {
    for (int32_t n = by_op.starts[op]; n < by_op.starts[op + 1]; ++n) {
      const Buffer& b = program.buffers[by_op.ids[n]];
      sample.lives.push_back({static_cast<uint8_t>(b.tensor), static_cast<int8_t>(b.tier), end});
    }
  };
  for (size_t i = 0; i < program.ops.size(); ++i) {
    add(begins, i, false);
    add(ends, i, true);
  }
}

}  // namespace

void drop_list(Program& program) {
  program.ops = {};
  program.buffers = {};
  program.releases = {};
}

Dimension Dimension::sampled(int64_t extent, int64_t first, int samples, int64_t stride) {
  if (extent < first + samples * stride) return exact(extent);
  Dimension dimension;
  dimension.extent = extent;
  dimension.count = samples;
  for (int i = 0; i < samples; ++i) dimension.samples[i] = first + i * stride;
  return dimension;
}

double Dimension::beyond() const {
  const int64_t largest = samples[count - 1];
  return static_cast<double>(extent - largest) / static_cast<double>(largest - samples[count - 2]);
}

int LayerRuns::samples() const {
  int count = 1;
  for (const Dimension& run : runs) count += run.count - 1;
  return count;
}

const Dimension& LayerRuns::shortened(int sample) const {
  auto run = runs.begin();
  while (run->count == 1 || --sample > 0) ++run;
  return *run;
}

std::vector<int64_t> LayerRuns::lengths(int sample) const {
  const Dimension* const shorter = sample == 0 ? nullptr : &shortened(sample);
  std::vector<int64_t> lengths;
  for (const Dimension& run : runs) {
    lengths.push_back(run.samples[&run == shorter ? 0 : run.count - 1]);
  }
  return lengths;
}

double LayerRuns::beyond(int sample) const { return shortened(sample).beyond(); }

double Dimension::extrapolate(const std::array<double, 3>& values, int points) const {
  const int first = std::max(0, count - points);
  double sum = 0;
  for (int i = first; i < count; ++i) {
    double weight = 1;
    for (int j = first; j < count; ++j) {
      if (j == i) continue;
      weight *=
          static_cast<double>(extent - samples[j]) / static_cast<double>(samples[i] - samples[j]);
    }
    sum += weight * values[i];
  }
  return sum;
}

namespace {

// Differences between samples of a few chunks are small, and what makes many chunks of them makes
// noise of them: with runs that differ, all layers are then in the sample.
LayerRuns layers_of(const StepRequest& request, Purpose purpose, const Dimension& repeats) {
  const bool with_time = purpose != Purpose::memory, uneven = purpose == Purpose::uneven_time;
  const int64_t extent = request.model.layers;
  const int64_t of_layer = ops_estimate(request) / extent + 1;
  LayerRuns whole, layers;
  int64_t in_samples = 0;
  for (const int64_t run : runs_of(request.strategy, extent)) {
    whole.runs.push_back(Dimension::exact(run));
    if (with_time) {
      const int64_t period = uneven ? kUnevenPeriod : kLayersApart;
      const int64_t many = kSampleOps / of_layer / 2;
      const int64_t fewest = std::max(kFewestLayers, many);
      const int64_t apart =
          round_up(std::max(uneven ? kUnevenLayersApart : kLayersApart, many), period);
      const int64_t first = fewest + std::max<int64_t>(0, run - fewest) % period;
      layers.runs.push_back(Dimension::sampled(run, first, kLayerSamples, apart));
    } else {
      layers.runs.push_back(Dimension::sampled(run, kFewestLayers, kLayerSamples));
    }
  }
  for (int sample = 0; sample < layers.samples(); ++sample) {
    for (const int64_t run : layers.lengths(sample)) in_samples += run;
  }
  const int64_t exact_ops = uneven ? kUnevenExactOps : kExactOps;
  if (with_time && extent * of_layer <= exact_ops) return whole;
  const bool noisy = with_time && repeats.count > 1;
  return layers.runs.size() > 1 && (noisy || in_samples > extent) ? whole : layers;
}

}  // namespace

ShrunkenPrograms dimensions_of(const StepRequest& request, Purpose purpose) {
  const bool with_time = purpose != Purpose::memory;
  const Strategy& s = request.strategy;
  ShrunkenPrograms shrunken;
  const Lengths lengths = lengths_of(s, request.sequence);
  const int64_t blocks = lengths.blocks();
  shrunken.repeats_blocks = blocks > 1;
  // Buffers in flight are in the steady state once there are more repeats than the program looks
  // ahead and stores behind; exchanges that overlap hold a chunk more on either side.
  const int64_t exchanged = s.parallel.ulysses > 1 && s.parallel.overlap ? 2 : 0;
  const int64_t first = 2 + exchanged + std::max({int64_t{1}, s.prefetch_depth, s.offload_window});
  const int64_t repeats = blocks > 1 ? blocks : lengths.chunks();
  const bool pairs = s.kv == Tier::host || s.backward_order == BackwardOrder::kv_outer;
  const int64_t exact = !with_time ? kExactRepeatsForMemory
                        : pairs    ? kExactPairedRepeats
                                   : kExactRepeats;
  const bool small = repeats <= exact;
  // A ring's ops depend on how its positions' chunks lie to each other, of which each has an even
  // number; and some chunks can be dealt out to a tensor group, but not every chunk.
  const Parallel& p = s.parallel;
  const bool ring = p.ring > 1;
  const bool whole = small || (ring && (with_time || blocks > 1)) || s.chunk_tokens % p.tensor != 0;
  const int64_t from = with_time ? first : first + 3;  // two make a line, three a parabola
  shrunken.repeats = whole ? Dimension::exact(repeats)
                           : Dimension::sampled(repeats, ring ? round_up(from, 2) : from,
                                                with_time ? kRepeatSamples : 2, ring ? 2 : 1);
  shrunken.layers = layers_of(request, purpose, shrunken.repeats);
  // The second is like all that follow: it adds to the gradients of the first.
  shrunken.batches = request.micro_batches <= kExactBatches
                         ? Dimension::exact(request.micro_batches)
                         : Dimension::sampled(request.micro_batches, 1, 2);
  return shrunken;
}

Lengths sample_lengths(const StepRequest& request, const ShrunkenPrograms& shrunken,
                       int64_t repeats) {
  const Strategy& s = request.strategy;
  const int64_t rows = repeats * (shrunken.repeats_blocks ? s.block_tokens : s.chunk_tokens);
  return {rows,
          shrunken.repeats_blocks ? s.block_tokens : rows,
          s.chunk_tokens,
          s.parallel.ulysses,
          s.parallel.tensor,
          s.head_groups};
}

void lower_samples(const StepRequest& request, Purpose purpose, ShrunkenPrograms& t) {
  t.has_lists = purpose != Purpose::memory;
  for (int b = 0; b < t.batches.count; ++b) {
    for (int l = 0; l < t.layers.samples(); ++l) {
      const std::vector<int64_t> runs = t.layers.lengths(l);
      for (int r = 0; r < t.repeats.count; ++r) {
        StepRequest small = request;
        small.strategy = with_runs(request.strategy, request.model.layers, runs);
        small.model.layers = std::accumulate(runs.begin(), runs.end(), int64_t{0});
        small.micro_batches = t.batches.samples[b];
        const Lengths lengths = sample_lengths(request, t, t.repeats.samples[r]);
        small.sequence = lengths.sequence * request.strategy.parallel.ring;
        small.strategy.block_tokens = lengths.block;
        ShrunkenProgram& sample = t.samples.emplace_back();
        sample.program = build_program(small);
        for (size_t run = 0; run < runs.size(); ++run) {
          sample.run_of_layer.resize(sample.run_of_layer.size() + static_cast<size_t>(runs[run]),
                                     static_cast<int>(run));
        }
        find_phases(sample);
        if (t.is_whole()) {
          find_lives(sample);
        } else if (purpose != Purpose::uneven_time) {
          find_moments(sample);
        }
        t.ops += static_cast<int64_t>(sample.program.ops.size());
        for (const OpShape& shape : sample.program.shapes) {
          const auto it = std::find(t.shapes.begin(), t.shapes.end(), shape);
          sample.shapes.push_back(static_cast<int>(it - t.shapes.begin()));
          if (it == t.shapes.end()) t.shapes.push_back(shape);
        }
        if (purpose == Purpose::memory) drop_list(sample.program);
      }
    }
  }
}

std::string key_of(const StepRequest& r, const ShrunkenPrograms& t) {
  const Strategy& s = r.strategy;
  std::string key;
  append_list_key(with_runs(s, r.model.layers, t.layers.lengths(0)), key);
  const auto put = [&](int64_t value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  int64_t flags = 0;
  for (const bool flag :
       {r.model.tied_embeddings, r.model.attention, t.repeats_blocks, r.ends.first, r.ends.last}) {
    flags = flags << 1 | static_cast<int64_t>(flag);
  }
  put(flags);
  put(static_cast<int64_t>(r.dtype));
  put(t.repeats_blocks ? s.block_tokens / s.chunk_tokens : 0);
  put(kv_groups(r.model, lengths_of(s, r.sequence)));
  std::vector<Dimension> all = t.layers.runs;
  all.insert(all.end(), {t.repeats, t.batches});
  for (const Dimension& d : all) put(10 * d.samples[d.count - 1] + d.count);
  return key;
}

}  // namespace longspan
