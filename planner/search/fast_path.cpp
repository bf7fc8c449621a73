#include "planner/search/fast_path.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/units.h"
#include "planner/program/layout.h"
#include "planner/simulate/simulate.h"

namespace longspan {
namespace {

// Programs are shrunk to these extents; smaller ones are used as they are.
constexpr int64_t kLayerSamples[] = {2, 3};
constexpr int64_t kRepeatSamples[] = {2, 3, 4};

// One dimension the program is periodic in: the real extent, and where it is sampled.
struct Dimension {
  int64_t extent = 1;
  int64_t samples[3] = {1, 1, 1};
  int count = 1;

  template <size_t N>
  static Dimension of(int64_t extent, const int64_t (&sampled)[N]) {
    Dimension dimension;
    dimension.extent = extent;
    if (extent <= sampled[N - 1]) {
      dimension.samples[0] = extent;
    } else {
      dimension.count = static_cast<int>(N);
      std::copy(sampled, sampled + N, dimension.samples);
    }
    return dimension;
  }
};

// The value at the real extent of the polynomial through the last `points` samples.
double extrapolate(const Dimension& dimension, const double* values, int points = 3) {
  const int64_t* x = dimension.samples;
  const int first = std::max(0, dimension.count - points);
  double sum = 0;
  for (int i = first; i < dimension.count; ++i) {
    double weight = 1;
    for (int j = first; j < dimension.count; ++j) {
      if (j != i) {
        weight *= static_cast<double>(dimension.extent - x[j]) / static_cast<double>(x[i] - x[j]);
      }
    }
    sum += weight * values[i];
  }
  return sum;
}

// Peaks differ in how they grow, so each phase of a step is extrapolated on its own.
enum Phase { forward, loss_and_backward, update, phase_count };

// How many units of every tensor are live at one moment, per tier.
using LiveCounts = std::array<int16_t, kTensorCount>;

// A shrunken program, with what is needed to measure it at any sizes.
struct Sample {
  Program program;
  Layout layout;
  std::vector<int> shapes;  // index of each of the program's shapes in the template's list
  // Moments that no other moment of the phase exceeds in every tensor: the peak is at one of them.
  std::array<std::array<std::vector<LiveCounts>, kTierCount>, phase_count> moments;
};

bool dominates(const LiveCounts& a, const LiveCounts& b) {
  for (int t = 0; t < kTensorCount; ++t) {
    if (a[t] < b[t]) return false;
  }
  return true;
}

void add_moment(std::vector<LiveCounts>& moments, const LiveCounts& moment) {
  for (const LiveCounts& known : moments) {
    if (dominates(known, moment)) return;
  }
  std::erase_if(moments, [&](const LiveCounts& known) { return dominates(moment, known); });
  moments.push_back(moment);
}

void find_moments(Sample& sample) {
  const Program& program = sample.program;
  std::array<LiveCounts, kTierCount> live{};
  std::vector<std::vector<BufferId>> begins(program.ops.size()), ends(program.ops.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    begins[b.first_op].push_back(static_cast<BufferId>(i));
    ends[std::max(b.first_op, b.last_op)].push_back(static_cast<BufferId>(i));
  }
  int phase = forward;
  std::array<bool, kTierCount> grown;
  grown.fill(true);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind == OpKind::loss && phase == forward) {
      phase = loss_and_backward;
      grown.fill(true);
    }
    if (program.ops[i].kind == OpKind::adamw && phase != update) {
      phase = update;
      grown.fill(true);
    }
    for (const BufferId id : begins[i]) {
      const Buffer& b = program.buffers[id];
      ++live[static_cast<int>(b.tier)][static_cast<int>(b.tensor)];
      grown[static_cast<int>(b.tier)] = true;
    }
    // A peak can only be where something begins and the next thing ends.
    for (int tier = 0; tier < kTierCount; ++tier) {
      if (grown[tier] && (!ends[i].empty() || i + 1 == program.ops.size())) {
        add_moment(sample.moments[phase][tier], live[tier]);
        grown[tier] = false;
      }
    }
    for (const BufferId id : ends[i]) {
      const Buffer& b = program.buffers[id];
      --live[static_cast<int>(b.tier)][static_cast<int>(b.tensor)];
    }
  }
}

// All shrunken programs of one strategy.
struct Template {
  Dimension layers, repeats, batches;
  std::vector<Sample> samples;  // batch-major, then layer, then repeat
  std::vector<OpShape> shapes;  // of all samples, each once

  void index_shapes(Sample& sample) {
    for (const OpShape& shape : sample.program.shapes) {
      const auto it = std::find(shapes.begin(), shapes.end(), shape);
      sample.shapes.push_back(static_cast<int>(it - shapes.begin()));
      if (it == shapes.end()) shapes.push_back(shape);
    }
  }
};

bool is_fractional(const Strategy& s) {
  for (const SavedPolicy* p :
       {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    if (p->fraction < 1) return true;
  }
  return false;
}

// What repeats along the sequence: blocks where there are several, else chunks of the one block.
struct Extents {
  int64_t blocks, chunks_per_block;
  bool repeats_blocks() const { return blocks > 1; }
  int64_t repeats() const { return repeats_blocks() ? blocks : chunks_per_block; }
};

Extents extents_of(const StepRequest& r) {
  return {r.sequence / r.strategy.block_tokens, r.strategy.block_tokens / r.strategy.chunk_tokens};
}

Lengths shrunken_lengths(const StepRequest& request, int64_t repeats) {
  const Strategy& s = request.strategy;
  if (extents_of(request).repeats_blocks()) {
    return {repeats * s.block_tokens, s.block_tokens, s.chunk_tokens};
  }
  return {repeats * s.chunk_tokens, repeats * s.chunk_tokens, s.chunk_tokens};
}

// Everything a shrunken program's list depends on, and nothing else.
std::string key_of(const StepRequest& r, const Template& t) {
  std::string key;
  const auto put = [&](int64_t value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const Strategy& s = r.strategy;
  const Extents extents = extents_of(r);
  int64_t choices = 0;
  const auto pack = [&](int64_t value, int bits) { choices = choices << bits | value; };
  pack(static_cast<int>(s.kv), 2);
  pack(static_cast<int>(s.idle), 2);
  pack(s.prefetch_depth, 7);
  pack(s.offload_window, 7);
  pack(static_cast<int>(s.backward_order), 1);
  for (const SavedPolicy* p :
       {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    pack(static_cast<int>(p->where), 2);
  }
  for (const Tier tier : {s.parameters, s.gradients, s.optimizer}) pack(static_cast<int>(tier), 2);
  pack(r.model.tied_embeddings, 1);
  pack(static_cast<int>(r.dtype), 1);
  pack(extents.repeats_blocks(), 1);
  put(choices);
  put(extents.repeats_blocks() ? extents.chunks_per_block : 0);
  for (const Dimension* d : {&t.layers, &t.repeats, &t.batches}) put(d->samples[d->count - 1]);
  if (is_fractional(s)) {
    for (const SavedPolicy* p :
         {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
      put(static_cast<int64_t>(p->fraction * 1e9));
    }
  }
  return key;
}

}  // namespace

struct FastPath::State {
  explicit State(const CostModel& cost) : cost(cost) {}

  const CostModel& cost;
  std::unordered_map<std::string, Template> templates;
  int64_t evaluations = 0;

  Template& find(const StepRequest& request);
  Evaluation measure(const StepRequest& request, bool with_time);
};

Template& FastPath::State::find(const StepRequest& request) {
  Template t;
  t.layers = is_fractional(request.strategy)  // layers then differ: keep them all
                 ? Dimension{request.model.layers, {request.model.layers, 0, 0}, 1}
                 : Dimension::of(request.model.layers, kLayerSamples);
  t.repeats = Dimension::of(extents_of(request).repeats(), kRepeatSamples);
  t.batches = Dimension::of(request.micro_batches, {1, 2});
  const auto [it, fresh] = templates.try_emplace(key_of(request, t));
  if (!fresh) {
    // Same samples; only the real extents are this request's.
    it->second.layers.extent = t.layers.extent;
    it->second.repeats.extent = t.repeats.extent;
    it->second.batches.extent = t.batches.extent;
    return it->second;
  }
  for (int b = 0; b < t.batches.count; ++b) {
    for (int l = 0; l < t.layers.count; ++l) {
      for (int r = 0; r < t.repeats.count; ++r) {
        StepRequest small = request;
        small.model.layers = t.layers.samples[l];
        small.micro_batches = t.batches.samples[b];
        const Lengths lengths = shrunken_lengths(request, t.repeats.samples[r]);
        small.sequence = lengths.sequence;
        small.strategy.block_tokens = lengths.block;
        Sample& sample = t.samples.emplace_back();
        sample.program = build_program(small);
        sample.layout = lay_out(sample.program);
        find_moments(sample);
        t.index_shapes(sample);
      }
    }
  }
  it->second = std::move(t);
  return it->second;
}

Evaluation FastPath::State::measure(const StepRequest& request, bool with_time) {
  Template& t = find(request);
  double seconds_by_batch[2] = {}, seconds_by_layer[3] = {}, seconds_by_repeat[3] = {};
  std::array<std::array<double, kTierCount>, phase_count> peaks{};
  size_t next = 0;
  // Durations of the template's shapes, by repeat sample: a block's length follows from it unless
  // blocks are what repeats.
  std::array<std::vector<double>, 3> durations;
  std::vector<double> own_durations;
  for (int b = 0; b < t.batches.count; ++b) {
    double layer_values[3][phase_count][kTierCount] = {};
    for (int l = 0; l < t.layers.count; ++l) {
      double repeat_values[3][phase_count][kTierCount] = {};
      for (int r = 0; r < t.repeats.count; ++r) {
        Sample& sample = t.samples[next++];
        Program& program = sample.program;
        program.lengths = shrunken_lengths(request, t.repeats.samples[r]);
        program.strategy.projection_tile = request.strategy.projection_tile;
        program.strategy.mlp_tile = request.strategy.mlp_tile;
        program.strategy.loss_tile = request.strategy.loss_tile;
        const int64_t layers = program.model.layers;
        program.model = request.model;
        program.model.layers = layers;
        program.bytes =
            tensor_bytes(program.model, program.lengths, program.strategy, program.dtype);

        for (int phase = 0; phase < phase_count; ++phase) {
          for (int tier = 0; tier < kTierCount; ++tier) {
            int64_t peak = 0;
            for (const LiveCounts& moment : sample.moments[phase][tier]) {
              int64_t sum = 0;
              for (int i = 0; i < kTensorCount; ++i) {
                if (moment[i] != 0) {
                  sum += moment[i] * round_up(program.bytes.unit[i], kArenaAlignment);
                }
              }
              peak = std::max(peak, sum);
            }
            repeat_values[r][phase][tier] = static_cast<double>(peak);
          }
        }
        if (with_time) {
          std::vector<double>& all = durations[extents_of(request).repeats_blocks() ? 0 : r];
          if (all.empty()) all = cost.durations(program, t.shapes);
          own_durations.resize(sample.shapes.size());
          for (size_t i = 0; i < own_durations.size(); ++i)
            own_durations[i] = all[sample.shapes[i]];
          seconds_by_repeat[r] =
              simulate(program, sample.layout, own_durations, cost.interference(), false)
                  .step_seconds;
        }
      }
      seconds_by_layer[l] = extrapolate(t.repeats, seconds_by_repeat);
      for (int phase = 0; phase < phase_count; ++phase) {
        for (int tier = 0; tier < kTierCount; ++tier) {
          double values[3];
          for (int r = 0; r < t.repeats.count; ++r) values[r] = repeat_values[r][phase][tier];
          layer_values[l][phase][tier] = extrapolate(t.repeats, values, 2);
        }
      }
    }
    seconds_by_batch[b] = extrapolate(t.layers, seconds_by_layer);
    for (int phase = 0; phase < phase_count; ++phase) {
      for (int tier = 0; tier < kTierCount; ++tier) {
        double values[3];
        for (int l = 0; l < t.layers.count; ++l) values[l] = layer_values[l][phase][tier];
        // Memory does not depend on how many microbatches come after the second.
        peaks[phase][tier] = std::max(peaks[phase][tier], extrapolate(t.layers, values));
      }
    }
  }
  Evaluation result;
  if (with_time) {
    ++evaluations;
    result.step_seconds = extrapolate(t.batches, seconds_by_batch);
  }
  for (const auto& phase : peaks) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      result.peak_bytes[tier] =
          std::max(result.peak_bytes[tier], static_cast<int64_t>(std::llround(phase[tier])));
    }
  }
  return result;
}

FastPath::FastPath(const CostModel& cost) : state_(std::make_unique<State>(cost)) {}
FastPath::~FastPath() = default;

Evaluation FastPath::evaluate(const StepRequest& request) { return state_->measure(request, true); }

std::array<int64_t, kTierCount> FastPath::peak_bytes(const StepRequest& request) {
  return state_->measure(request, false).peak_bytes;
}

int64_t FastPath::evaluations() const { return state_->evaluations; }

}  // namespace longspan
