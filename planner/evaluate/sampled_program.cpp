#include "planner/evaluate/sampled_program.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/units.h"
#include "planner/program/builder.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/key_window.h"
#include "planner/program/layout_walk.h"
#include "planner/program/ops_estimate.h"
#include "planner/strategy/knobs.h"

namespace longspan {
namespace {

// Layers of the smaller sample: the first, the last, and one with a neighbour on both sides. More
// if layers are small, as the lag of copies accumulates from layer to layer.
constexpr int64_t kFewestLayers = 3;
constexpr int64_t kSampleOps = 2000;
// Distance of the samples; the model's layers are at a multiple of it from them, as layers can
// alternate. If layers differ, because ops wait for memory, periods are two, three or four, and a
// larger distance reduces the effect of single layers.
constexpr int64_t kLayersApart = 2;
constexpr int64_t kUnevenLayersApart = 12;
constexpr int64_t kUnevenPeriod = 6;
// Programs with fewer ops keep all layers, as sampling would gain nothing.
constexpr int64_t kExactOps = 12000;
constexpr int64_t kUnevenExactOps = 15000;
constexpr int kLayerSamples = 2;
constexpr int kRepeatSamples = 3;
// Up to this many repeats, samples for time keep all of them: a program of a few layers is small
// enough, and if copies and compute take similar time, only the real extent is accurate.
constexpr int64_t kExactRepeats = 64;
constexpr int64_t kExactPairedRepeats = 24;  // ops grow with pairs of chunks
constexpr int64_t kExactRepeatsForMemory = 6;
constexpr int64_t kExactBatches = 3;  // as many as two samples have in total

// The number of layers before the one from which on a knob with a fraction has another value; all
// layers if none has. Layers that a fraction does not cover have the first value.
int64_t before_change(const KnobRow& row, const Strategy& s, int64_t layers) {
  const KnobFraction& of = *row.at.fraction;
  if (row.at.get(s) == 0 || of.get(s) == 1) return layers;
  const auto count = static_cast<int64_t>(std::ceil(of.get(s) * static_cast<double>(layers)));
  const int64_t covered = std::min(layers, count);
  return of.of_last ? layers - covered : covered;
}

// The lengths of the runs of layers with equal values.
std::vector<int64_t> runs_of(const Strategy& s, int64_t layers) {
  std::vector<int64_t> ends = {layers};
  for (const KnobRow& row : knob_rows()) {
    if (row.at.fraction == nullptr) continue;
    const int64_t end = before_change(row, s, layers);
    if (end > 0) ends.push_back(end);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  for (size_t i = ends.size(); i-- > 1;) ends[i] -= ends[i - 1];
  return ends;
}

// The strategy for a model whose runs have lengths `lengths`.
Strategy with_runs(Strategy s, int64_t layers, const std::vector<int64_t>& lengths) {
  const std::vector<int64_t> runs = runs_of(s, layers);
  const auto all = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  for (const KnobRow& row : knob_rows()) {
    if (row.at.fraction == nullptr) continue;
    const KnobFraction& own = *row.at.fraction;
    const int64_t change = before_change(row, s, layers);
    double shorter = 0;
    int64_t end = 0;
    for (size_t i = 0; end < change; end += runs[i++]) shorter += static_cast<double>(lengths[i]);
    const double covers = own.of_last ? all - shorter : shorter;
    // Half a layer less than it covers, so that rounding does not add one.
    own.set(s, change == layers ? 1 : (covers - 0.5) / all);
  }
  return s;
}

// The number of live units of every tensor at a moment, padded to whole vectors, as comparisons of
// them dominated the time of lowering.
using LiveCounts = std::array<int16_t, (kTensorCount + 15) / 16 * 16>;

bool dominates(const LiveCounts& a, const LiveCounts& b) {
  int16_t less = 0;
  for (size_t t = 0; t < a.size(); ++t) less |= static_cast<int16_t>(a[t] < b[t]);
  return less == 0;
}

void add_moment(std::vector<LiveCounts>& moments, const LiveCounts& moment) {
  // Newest first, as loops return to recent moments.
  for (size_t i = moments.size(); i-- > 0;) {
    if (dominates(moments[i], moment)) return;
  }
  std::erase_if(moments, [&](const LiveCounts& known) { return dominates(moment, known); });
  moments.push_back(moment);
}

LiveSnapshot compressed(const LiveCounts& counts) {
  LiveSnapshot moment;
  for (int t = 0; t < kTensorCount; ++t) {
    if (counts[t] != 0) moment.push_back({static_cast<uint8_t>(t), counts[t]});
  }
  return moment;
}

int kind_of_moment(const Op& op, int phase, int run) {
  return (run * kOpKindCount + static_cast<int>(op.kind)) * phase_count + phase;
}

// Follows the phase during lowering.
class PhaseReader {
 public:
  explicit PhaseReader(const Strategy& strategy) : early_update_(strategy.early_update) {}

  /// The phase of the next op.
  Phase of(const Op& op, const OpShape& shape) {
    if (phase_ == forward_phase && first_backward_.is(op, shape)) phase_ = backward_phase;
    // An early update is part of the backward, except the embedding's, which is the last.
    if (op.kind == OpKind::adamw && (!early_update_ || op.layer < 0)) phase_ = update_phase;
    return phase_;
  }

 private:
  bool early_update_;
  FirstBackward first_backward_;
  Phase phase_ = forward_phase;
};

// Records what is live during lowering. For a sample it records the moments of every kind; for a
// whole program, which is not extrapolated, a list of lifetimes suffices.
class LifeReader final : public LifetimeWatcher {
 public:
  LifeReader(SampledProgram& sample, bool is_whole)
      : sample_(sample), is_whole_(is_whole), phases_(sample.program.strategy) {
    const int runs = sample.run_of_layer.back() + 1;
    if (!is_whole) found_.resize(static_cast<size_t>(phase_count * kOpKindCount * runs));
  }
  bool wants_ops() const override { return true; }
  void begins(BufferId, const Buffer& b) override { change(b, false); }
  void passes(const Op& op) override {
    if (is_whole_) return;
    const Phase phase = phases_.of(op, sample_.program.shapes[op.shape]);
    const auto layer = static_cast<size_t>(op.layer);  // huge if the op has no layer
    const int run = layer < sample_.run_of_layer.size() ? sample_.run_of_layer[layer] : 0;
    of_op_ = &found_[static_cast<size_t>(kind_of_moment(op, phase, run))];
    looked_.fill(false);
  }
  void ends(BufferId, const Buffer& b) override {
    // Peaks are right before an end: without one the next moment dominates.
    if (!is_whole_) look(static_cast<size_t>(b.tier));
    change(b, true);
  }
  /// Call after lowering. Adds the program's persistent buffers.
  void finish() {
    std::array<LiveCounts, kTierCount> persistent{};
    std::vector<LifeEvent> lives;
    for (const Buffer& b : sample_.program.buffers) {
      if (!b.persistent) continue;
      ++persistent[static_cast<size_t>(b.tier)][static_cast<size_t>(b.tensor)];  // of one unit
      lives.push_back(event(b, false));
    }
    if (is_whole_) {
      sample_.lives.insert(sample_.lives.begin(), lives.begin(), lives.end());
      return;
    }
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      if (persistent[tier] != LiveCounts{}) look(tier);
    }
    for (size_t kind = 0; kind < found_.size(); ++kind) {
      Moments moments{static_cast<int>(kind), {}};
      bool any = false;
      for (size_t tier = 0; tier < kTierCount; ++tier) {
        for (LiveCounts& counts : found_[kind].moments[tier]) {
          for (size_t t = 0; t < counts.size(); ++t) {
            counts[t] = static_cast<int16_t>(counts[t] + persistent[tier][t]);
          }
          moments.of_tier[tier].push_back(compressed(counts));
          any = true;
        }
      }
      if (any) sample_.moments.push_back(std::move(moments));
    }
  }

 private:
  struct OfKind {
    std::array<std::vector<LiveCounts>, kTierCount> moments;
    std::array<int64_t, kTierCount> seen{};  // changes_ at the last look at this kind
  };

  static LifeEvent event(const Buffer& b, bool ends) {
    return {static_cast<uint8_t>(b.tensor), static_cast<int8_t>(b.tier), ends, b.units};
  }
  void change(const Buffer& b, bool ends) {
    if (is_whole_) {
      sample_.lives.push_back(event(b, ends));
      return;
    }
    const auto tier = static_cast<size_t>(b.tier);
    live_[tier][static_cast<size_t>(b.tensor)] += static_cast<int16_t>(ends ? -b.units : b.units);
    ++changes_[tier];
  }
  // Records the current moment of the last op.
  void look(size_t tier) {
    if (std::exchange(looked_[tier], true)) return;
    if (std::exchange(of_op_->seen[tier], changes_[tier]) == changes_[tier]) return;
    add_moment(of_op_->moments[tier], live_[tier]);
  }

  SampledProgram& sample_;
  bool is_whole_;
  PhaseReader phases_;
  std::vector<OfKind> found_;
  OfKind* of_op_ = nullptr;
  std::array<bool, kTierCount> looked_{};
  std::array<LiveCounts, kTierCount> live_{};
  std::array<int64_t, kTierCount> changes_{1, 1, 1};  // counts changes of live_
};

// Lays a sample out during lowering, and divides its queues into chains.
class ChainReader final : public LifetimeWatcher {
 public:
  /// `lives` receives the same calls; it may be null.
  ChainReader(SampledProgram& sample, LifeReader* lives)
      : sample_(sample), lives_(lives), walk_(sample.program), phases_(sample.program.strategy) {
    first_op_.fill(INT32_MAX);
  }
  bool wants_ops() const override { return true; }
  void begins(BufferId id, const Buffer& b) override {  // LayoutWalk::run() begins it
    if (lives_ != nullptr) lives_->begins(id, b);
  }
  void passes(const Op& op) override {
    const auto number = static_cast<int32_t>(marks_.size());
    const Phase phase = phases_.of(op, sample_.program.shapes[op.shape]);
    first_op_[phase] = std::min(first_op_[phase], number);
    const LayoutWalk::Step step = walk_.run(op);
    queues_[static_cast<size_t>(op.stream)].push_back(
        {number, op.shape, step.wait_set, step.waits});
    marks_.push_back({op.layer, op.stream, phase});
    if (lives_ != nullptr) lives_->passes(op);
  }
  void ends(BufferId id, const Buffer& b) override {
    if (lives_ != nullptr) lives_->ends(id, b);
    walk_.end(id);
  }
  /// Call after lowering, when the sample's shapes are known.
  void finish() {
    for (std::vector<Queued>& queue : queues_) {
      for (Queued& op : queue) op.shape = sample_.shapes[static_cast<size_t>(op.shape)];
    }
    sample_.chains = chains_of(queues_, [&](int32_t before, int32_t after) {
      const Mark &a = mark(before), &b = mark(after);
      return a.phase != b.phase || (b.stream == Stream::compute && a.layer != b.layer);
    });
    const std::vector<int32_t>& first_ops = sample_.chains.first_ops;
    for (const int32_t op : first_ops) sample_.layer_of_chain.push_back(mark(op).layer);
    // Chains are numbered stream by stream, and no stream returns to an earlier phase.
    int32_t chain = 0, end = 0;
    for (size_t s = 0; s < kStreamCount; ++s) {
      end += static_cast<int32_t>(sample_.chains.queues[s].size());
      for (size_t p = 0; p < phase_count; ++p) {
        sample_.first_chain[s][p] = chain;
        for (; chain < end; ++chain) {
          const int32_t first = first_ops[static_cast<size_t>(chain)];
          if (mark(first).phase != static_cast<Phase>(p)) break;
          if (first == first_op_[p]) sample_.opening[p] = chain;
        }
      }
      sample_.first_chain[s][phase_count] = chain;
    }
  }

 private:
  struct Mark {
    int32_t layer;
    Stream stream;
    Phase phase;
  };
  const Mark& mark(int32_t op) const { return marks_[static_cast<size_t>(op)]; }

  SampledProgram& sample_;
  LifeReader* lives_;
  LayoutWalk walk_;
  PhaseReader phases_;
  Queues queues_;
  std::vector<Mark> marks_;  // by op
  std::array<int32_t, phase_count> first_op_{};
};

}  // namespace

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

// Extrapolation along chunks amplifies noise in the small differences between samples of few
// chunks: with several runs, all layers are then in the sample.
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

// Repeats after which a query chunk sees as many keys as all later ones.
int64_t repeats_of_window(const ModelSpec& model, const Strategy& s, int64_t chunks_of_repeat) {
  const KeyWindow window = key_window(model, s.chunk_tokens);
  return window.is_limited() ? ceil_div(window.farthest, chunks_of_repeat) : 0;
}

}  // namespace

SampledPrograms dimensions_of(const StepRequest& request, Purpose purpose) {
  const bool with_time = purpose != Purpose::memory;
  const Strategy& s = request.strategy;
  SampledPrograms sampled;
  const Lengths lengths = lengths_of(s, request.sequence);
  const int64_t blocks = lengths.blocks();
  sampled.repeats_blocks = blocks > 1;
  sampled.repeats_slices = s.parallel.pipeline.slices > 1;
  // Buffers in flight are in the steady state once repeats exceed the prefetch depth and the
  // offload window; exchanges that overlap hold one more chunk on either side.
  const int64_t exchanged = s.parallel.ulysses > 1 && s.parallel.overlap ? 2 : 0;
  const int64_t slices = s.parallel.pipeline.slices;
  const int64_t of_repeat = lengths.chunks() / (slices > 1   ? slices
                                                : blocks > 1 ? blocks
                                                             : lengths.chunks());
  const int64_t first = 2 + exchanged + std::max({int64_t{1}, s.prefetch_depth, s.offload_window}) +
                        repeats_of_window(request.model, s, of_repeat);
  const int64_t repeats = slices > 1 ? slices : blocks > 1 ? blocks : lengths.chunks();
  const bool pairs = s.kv != Tier::device || s.backward_order == BackwardOrder::kv_outer ||
                     s.parallel.pipeline.slices > 1;
  const int64_t exact = !with_time ? kExactRepeatsForMemory
                        : pairs    ? kExactPairedRepeats
                                   : kExactRepeats;
  const bool small = repeats <= exact;
  // A ring's ops depend on the relative order of its positions' chunks, and each position has an
  // even number. Some numbers of chunks, but not every one, divide among a tensor group.
  const ParallelLayout& p = s.parallel;
  const bool ring = p.ring > 1;
  // More chunks of the one block are more tiles of rows for experts, too.
  const bool tiled = p.expert > 1 && blocks == 1;
  const bool whole =
      small || tiled || (ring && (with_time || blocks > 1)) || s.chunk_tokens % p.tensor != 0;
  const int64_t from = with_time ? first : first + 3;  // two samples give a line, three a parabola
  sampled.repeats = whole ? Dimension::exact(repeats)
                          : Dimension::sampled(repeats, ring ? round_up(from, 2) : from,
                                               with_time ? kRepeatSamples : 2, ring ? 2 : 1);
  sampled.layers = layers_of(request, purpose, sampled.repeats);
  // The second microbatch adds to gradients of the first, as all later ones do.
  sampled.batches = request.microbatches <= kExactBatches
                        ? Dimension::exact(request.microbatches)
                        : Dimension::sampled(request.microbatches, 1, 2);
  return sampled;
}

Lengths sample_lengths(const StepRequest& request, const SampledPrograms& sampled,
                       int64_t repeats) {
  const Strategy& s = request.strategy;
  const int64_t of_slice = request.sequence / s.parallel.pipeline.slices;
  const int64_t rows = repeats * (s.parallel.pipeline.slices > 1 ? of_slice
                                  : sampled.repeats_blocks       ? s.block_tokens
                                                                 : s.chunk_tokens);
  return {rows,
          sampled.repeats_blocks ? s.block_tokens : rows,
          s.chunk_tokens,
          s.parallel.ulysses,
          s.parallel.tensor,
          s.head_groups,
          s.parallel.expert};
}

void lower_samples(const StepRequest& request, Purpose purpose, SampledPrograms& t) {
  t.has_chains = purpose != Purpose::memory;
  for (int b = 0; b < t.batches.count; ++b) {
    for (int l = 0; l < t.layers.samples(); ++l) {
      const std::vector<int64_t> runs = t.layers.lengths(l);
      for (int r = 0; r < t.repeats.count; ++r) {
        StepRequest small = request;
        small.strategy = with_runs(request.strategy, request.model.layers, runs);
        small.model.layers = std::accumulate(runs.begin(), runs.end(), int64_t{0});
        small.microbatches = t.batches.samples[b];
        const Lengths lengths = sample_lengths(request, t, t.repeats.samples[r]);
        small.sequence = lengths.local_sequence * request.strategy.parallel.ring;
        small.strategy.block_tokens = lengths.block;
        if (t.repeats_slices) small.strategy.parallel.pipeline.slices = t.repeats.samples[r];
        SampledProgram& sample = t.samples.emplace_back();
        for (size_t run = 0; run < runs.size(); ++run) {
          sample.run_of_layer.resize(sample.run_of_layer.size() + static_cast<size_t>(runs[run]),
                                     static_cast<int>(run));
        }
        sample.program = empty_program(small);
        LifeReader lives(sample, t.is_whole());
        const bool with_lives = t.is_whole() || purpose != Purpose::uneven_time;
        ChainReader chains(sample, with_lives ? &lives : nullptr);
        LifetimeWatcher& reader = t.has_chains ? static_cast<LifetimeWatcher&>(chains)
                                               : static_cast<LifetimeWatcher&>(lives);
        t.ops += watch_program(small, sample.program, reader);
        for (const OpShape& shape : sample.program.shapes) {
          const auto it = std::find(t.shapes.begin(), t.shapes.end(), shape);
          sample.shapes.push_back(static_cast<int>(it - t.shapes.begin()));
          if (it == t.shapes.end()) t.shapes.push_back(shape);
        }
        if (with_lives) lives.finish();
        if (t.has_chains) chains.finish();
        sample.program.buffers = {};
      }
    }
  }
}

std::string key_of(const StepRequest& r, const SampledPrograms& t) {
  const Strategy& s = r.strategy;
  std::string key;
  append_list_key(with_runs(s, r.model.layers, t.layers.lengths(0)), key);
  const auto put = [&](int64_t value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  int64_t flags = 0;
  for (const bool flag : {r.model.tied_embeddings, r.model.attention, r.model.experts.has_value(),
                          r.model.documents.empty(), t.repeats_blocks, r.boundary.has_embedding,
                          r.boundary.has_loss}) {
    flags = flags << 1 | static_cast<int64_t>(flag);
  }
  put(flags);
  put(static_cast<int64_t>(r.dtype));
  put(t.repeats_blocks ? s.block_tokens / s.chunk_tokens : 0);
  put(t.repeats_slices ? r.sequence / s.parallel.pipeline.slices / s.block_tokens : 0);
  put(kv_groups(r.model, lengths_of(s, r.sequence)));
  const KeyWindow window = key_window(r.model, s.chunk_tokens);
  put(window.farthest);
  put(window.hides_from);
  put(r.model.attention_sinks ? 1 : 0);
  if (s.parallel.expert > 1) {
    const ExpertTiles tiles = expert_tiles(s, lengths_of(s, r.sequence));
    put(tiles.count);
    put(tiles.last < tiles.tokens ? 1 : 0);
    put(r.model.experts && r.model.experts->shared_ffn > 0 ? 1 : 0);
  }
  std::vector<Dimension> all = t.layers.runs;
  all.insert(all.end(), {t.repeats, t.batches});
  for (const Dimension& d : all) put(10 * d.samples[d.count - 1] + d.count);
  return key;
}

}  // namespace longspan
