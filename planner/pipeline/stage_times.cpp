#include "planner/pipeline/stage_times.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/pipeline/attention_exchange.h"
#include "planner/pipeline/slices.h"
#include "planner/program/saved_bytes.h"
#include "planner/schedule/registry.h"

namespace longspan {
namespace {

// Seconds of a slice among others on all layers of a kind's program, and of the rest of a step.
struct Phases {
  double forward = 0, backward = 0, rest = 0;
  OwnWork busy;
};

// The time of a slice among others is what a second slice adds to the first, and at least the busy
// time of each stream: alone, a slice may wait for copies that others hide.
Phases phases_of(StagePrograms& programs, size_t kind, StageBoundary boundary) {
  const Evaluation& one = programs.evaluation(kind, boundary, 1);
  const Evaluation& two = programs.evaluation(kind, boundary, 2);
  double each = two.step_seconds - one.step_seconds;
  for (size_t stream = 0; stream < one.busy_seconds.size(); ++stream) {
    each = std::max(each, two.busy_seconds[stream] - one.busy_seconds[stream]);
  }
  // The backward takes at least its compute time plus a part of the remaining time, in proportion
  // to its exchanges. So waits of the forward for copies do not reduce either.
  constexpr auto kCompute = static_cast<size_t>(Stream::compute);
  constexpr auto kComm = static_cast<size_t>(Stream::comm);
  const auto of_backward = [&](size_t stream) {
    return std::max(0.0,
                    two.busy_seconds[stream] - one.busy_seconds[stream] - one.forward_busy[stream]);
  };
  const double computes = of_backward(kCompute), exchanges = of_backward(kComm);
  const double spare = std::max(0.0, each - one.forward_busy[kCompute] - computes);
  const double all_exchanges = one.forward_busy[kComm] + exchanges;
  const double waits = all_exchanges > 0 ? exchanges * std::min(1.0, spare / all_exchanges) : 0.0;
  Phases phases;
  phases.forward = std::min(one.forward_seconds, std::max(0.0, each - computes - waits));
  phases.backward = each - phases.forward;
  phases.rest = std::max(0.0, two.step_seconds - 2 * each);
  for (size_t stream = 0; stream < one.busy_seconds.size(); ++stream) {
    phases.busy.forward[stream] = one.forward_busy[stream];
    phases.busy.backward[stream] = of_backward(stream);
  }
  phases.busy.forward[kCompute] = phases.forward;
  phases.busy.backward[kCompute] = phases.backward;
  return phases;
}

// Seconds of the gradients of weights of a slice, in one layer.
double weight_seconds(const StepRequest& slice, const CostModel& cost) {
  StepRequest whole_heads = slice;
  whole_heads.strategy.head_groups = 1;
  const Program program = empty_program(whole_heads);
  std::vector<OpShape> shapes(1);
  shapes[0].kind = OpKind::mlp_backward_weight;
  if (slice.model.attention) {
    shapes.resize(3);
    shapes[1].kind = OpKind::out_backward_weight;
    shapes[2].kind = OpKind::qkv_backward_weight;
  }
  for (OpShape& shape : shapes) shape.partial = slice.strategy.parallel.tensor > 1;
  const std::vector<double> seconds = cost.durations(program, shapes);
  const auto blocks = static_cast<double>(program.lengths.blocks());
  // Experts on several ranks have their gradients already.
  const bool has_mlp = !slice.model.experts || program.lengths.expert == 1;
  double sum = has_mlp ? blocks * seconds[0] : 0;
  if (slice.model.attention) {
    sum += blocks * seconds[1] + static_cast<double>(program.lengths.chunks()) * seconds[2];
  }
  return sum;
}

// Seconds of copies of all that a slice leaves on the device, there and back, in all layers of its
// program.
std::pair<double, double> copy_seconds(const StepRequest& slice, bool sliced,
                                       const CostModel& cost) {
  const std::vector<SavedUnits> all = movable_units(slice, sliced);
  std::vector<OpShape> shapes;
  for (const OpKind kind : {OpKind::copy_d2h, OpKind::copy_h2d}) {
    for (const SavedUnits& saved : all) {
      shapes.emplace_back();
      shapes.back().kind = kind;
      shapes.back().tensor = saved.tensor;
    }
  }
  const std::vector<double> seconds = cost.durations(empty_program(slice), shapes);
  std::pair<double, double> sum;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto units = static_cast<double>(all[i].units);
    sum.first += units * seconds[i];
    sum.second += units * seconds[all.size() + i];
  }
  return sum;
}

// Seconds of one op of each shape, all blocks of a microbatch together.
std::vector<double> block_seconds(const StepRequest& request, const CostModel& cost,
                                  const std::vector<OpShape>& shapes) {
  const Program program = empty_program(request);
  std::vector<double> seconds = cost.durations(program, shapes);
  for (double& of : seconds) of *= static_cast<double>(program.lengths.blocks());
  return seconds;
}

// The slices' parts of a microbatch, over all layers of the model: ScheduleCosts::shares.
std::vector<SliceShare> measured_shares(StagePrograms& programs,
                                        const std::vector<EarlierSlices>& earlier) {
  const std::vector<int64_t>& tokens = programs.slice_tokens();
  const size_t slices = tokens.size();
  const auto all = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
  const auto part_of = [&](size_t slice) { return static_cast<double>(tokens[slice]) / all; };
  const double again = attention_again(programs.slice(0).strategy);
  const size_t count = earlier.front().forward.size();  // as many for each kind
  std::vector<double> forward(count, 0), input(count, 0);
  for (size_t kind = 0; kind < programs.kinds(); ++kind) {
    const Phases middle = phases_of(programs, kind, kMiddle);
    const auto layers = static_cast<double>(programs.all_layers(kind));
    const double of_mean =
        static_cast<double>(slices) * layers / static_cast<double>(programs.layers(kind));
    // Gradients of weights do not depend on other slices.
    const double weight = std::min(middle.forward, middle.backward);
    for (size_t j = 0; j < forward.size(); ++j) {
      const EarlierSlices& e = earlier[kind];
      const double part = part_of(j % slices) * of_mean;
      forward[j] += part * middle.forward + layers * e.forward[j];
      input[j] += part * (middle.backward - weight) + layers * (e.backward[j] + again * e.again[j]);
    }
  }
  // The mean slice's work is subtracted where it was added, which may leave a rounding below zero.
  for (double& seconds : input) seconds = std::max(0.0, seconds);
  const double all_forward = earlier.front().all(forward), all_input = earlier.front().all(input);
  std::vector<SliceShare> shares;
  for (size_t j = 0; j < forward.size(); ++j) {
    const size_t slice = j % slices;
    shares.push_back({forward[j] / all_forward,
                      all_input > 0 ? input[j] / all_input : part_of(slice), part_of(slice),
                      tokens[slice]});
  }
  return shares;
}

}  // namespace

LayerAndEndTimes times_of(StagePrograms& programs, const CostModel& cost) {
  const Pipeline& pipeline = programs.pipeline();
  const int64_t count = pipeline.slices;
  const auto slices = static_cast<double>(count);
  const double again = attention_again(programs.slice(0).strategy);
  LayerAndEndTimes t;
  std::vector<EarlierSlices> earlier;
  for (size_t kind = 0; kind < programs.kinds(); ++kind) {
    const Phases middle = phases_of(programs, kind, kMiddle);
    const auto layers = static_cast<double>(programs.layers(kind));
    OwnWork own;
    for (size_t stream = 0; stream < own.forward.size(); ++stream) {
      own.forward[stream] = middle.busy.forward[stream] / layers;
      own.backward[stream] = middle.busy.backward[stream] / layers;
    }
    earlier.push_back(earlier_slices(programs.slice(kind), programs.slice_chunks(kind), cost, own));
    if (ranks_that_share(pipeline) > 0) {
      earlier.back() = exchanged(earlier.back(), programs.slice(kind), pipeline.stages, cost);
    }
    const EarlierSlices& e = earlier.back();
    const double backward =
        slices * middle.backward / layers + e.all_backward() + again * e.all_again();
    t.layer.push_back({slices * middle.forward / layers + e.all_forward(), backward,
                       middle.rest / layers,
                       std::min(backward, slices * weight_seconds(programs.slice(kind), cost))});
    if (!family_of(pipeline).offloads) continue;
    const auto [offload, reload] = copy_seconds(programs.slice(kind), programs.is_sliced(), cost);
    t.layer.back().offload = slices * offload / layers;
    t.layer.back().reload = slices * reload / layers;
  }
  if (count > 1) t.shares = measured_shares(programs, earlier);
  if (cuts_vocabulary(pipeline)) return t;
  const Phases middle = phases_of(programs, 0, kMiddle);
  const Phases first = phases_of(programs, 0, {true, false});
  const Phases last = phases_of(programs, 0, {false, true});
  t.embedding = slices * std::max(0.0, first.forward - middle.forward);
  t.embedding_backward = slices * std::max(0.0, first.backward - middle.backward);
  t.loss = slices * std::max(0.0, last.forward + last.backward - middle.forward - middle.backward);
  return t;
}

VocabularyTimes vocabulary_times(const StepRequest& request, bool gradient_in_t, int64_t rank,
                                 const CostModel& cost) {
  const int64_t ranks = request.strategy.parallel.pipeline.stages;
  StepRequest own = slice_request(request, layer_runs(request.model).front());
  own.model = share_model(own.model, rank, ranks);
  enum { kNorm, kForward, kMerge, kCombine, kBackward, kNormBackward, kRows, kRowsBackward, kAdd };
  std::vector<OpShape> shapes(kAdd + 1);
  const OpKind kinds[] = {
      OpKind::final_norm_forward, OpKind::vocabulary_forward,  OpKind::vocabulary_merge,
      OpKind::vocabulary_combine, OpKind::vocabulary_backward, OpKind::final_norm_backward,
      OpKind::embed_forward,      OpKind::embed_backward,      OpKind::add};
  for (size_t i = 0; i < shapes.size(); ++i) shapes[i].kind = kinds[i];
  shapes[kForward].for_input = !gradient_in_t;
  shapes[kBackward].for_input = gradient_in_t;
  shapes[kAdd].tensor = Tensor::sum_own;
  const std::vector<double> seconds = block_seconds(own, cost, shapes);
  const auto others = static_cast<double>(ranks - 1);
  const double merges = static_cast<double>(ranks) * seconds[kMerge];
  VocabularyTimes times;
  times.forward = seconds[kForward];
  times.backward = merges + seconds[kBackward];
  times.embedding = seconds[kRows];
  times.embedding_backward = seconds[kRowsBackward];
  times.first_stage = others * seconds[kAdd];
  times.last_stage = seconds[kNorm];
  times.last_stage_backward =
      seconds[kNormBackward] +
      (gradient_in_t ? others * seconds[kAdd] : static_cast<double>(ranks) * seconds[kCombine]);
  return times;
}

double rest_of_ends(StagePrograms& programs, const std::vector<int32_t>& ranks) {
  const auto rest = [&](StageBoundary boundary) { return phases_of(programs, 0, boundary).rest; };
  // With a cut vocabulary every rank has a share of both ends.
  const double with = cuts_vocabulary(programs.pipeline()) || ranks.front() == ranks.back()
                          ? rest({true, true})
                          : std::max(rest({true, false}), rest({false, true}));
  return std::max(0.0, with - rest(kMiddle));
}

}  // namespace longspan
