#include "frameworks/model/partition.h"

#include <algorithm>

#include "planner/schedule/registry.h"

namespace longspan {

LayerShape layer_shape(const TrainingRun& c) {
  LayerShape shape;
  shape.sequence = c.sequence;
  shape.sequences = *c.microbatch;
  shape.tensor = c.degrees.tensor;
  shape.sequence_parallel = c.sequence_parallel;
  shape.context = c.degrees.ulysses * c.degrees.ring * c.degrees.all_gather;
  shape.ulysses = c.degrees.ulysses;
  shape.expert = c.degrees.expert;
  shape.expert_tensor = c.degrees.of_expert();
  shape.drops_tokens = c.expert_capacity > 0;
  shape.expert_load = c.expert_capacity > 0 ? c.expert_capacity : c.expert_imbalance;
  shape.node = c.gpus_per_node;
  shape.stored_scores = !c.flash_attention;
  shape.dropout = c.dropout;
  if (c.precision == "fp32") shape.element_bytes = 4;
  return shape;
}

double microbatches(const TrainingRun& c) {
  const int64_t at_once = c.degrees.data * *c.microbatch;
  if (c.degrees.pipeline > 1) return static_cast<double>(c.global_batch / at_once);
  return static_cast<double>(c.global_batch) / static_cast<double>(at_once);
}

double layers_of(const TrainingRun& c, const ModelSpec& model, int64_t stage) {
  const auto ranks = static_cast<size_t>(c.degrees.pipeline);
  if (!c.stage_layers.empty() && c.stage_layers.size() <= ranks)
    return static_cast<double>(c.stage_layers[stage]);
  return static_cast<double>(model.layers) / static_cast<double>(c.degrees.pipeline);
}

double recomputed_layers(const TrainingRun& c, const ModelSpec& model, int64_t stage) {
  const double layers = layers_of(c, model, stage);
  if (c.recompute_layers.empty()) return c.recompute == Recompute::full ? layers : 0;
  const size_t i = c.recompute_layers.size() == 1 ? 0 : static_cast<size_t>(stage);
  return std::min(layers, static_cast<double>(c.recompute_layers[i]));
}

bool cuts_vocabulary(const TrainingRun& c) {
  return !c.schedule.empty() && schedule_family(c.schedule).cuts_vocabulary;
}

ModelEnds ends_of(const TrainingRun& c, int64_t stage) {
  return {stage == 0, stage == c.degrees.pipeline - 1};
}

double rank_parameters(const TrainingRun& c, const ModelSpec& model, int64_t stage) {
  return rank_parameters(c, model, stage, ends_of(c, stage));
}

double rank_parameters(const TrainingRun& c, const ModelSpec& model, int64_t stage,
                       const ModelEnds& ends_here) {
  return parameters_of_rank(c, model, stage, ends_here).all();
}

RankParameters parameters_of_layer(const TrainingRun& c, const LayerGroup& kind) {
  const RunDegrees& d = c.degrees;
  return {kind.shared / static_cast<double>(d.tensor),
          kind.experts / static_cast<double>(d.expert * d.of_expert())};
}

RankParameters parameters_of_rank(const TrainingRun& c, const ModelSpec& model, int64_t stage,
                                  const ModelEnds& ends_here) {
  const LayerMix mix = layer_mix(model);
  const auto table = static_cast<double>(model.vocab * model.hidden);
  double head = mix.head;
  if (c.outputs > 0) {
    if (!model.tied_embeddings) head -= table;
    head += static_cast<double>(c.outputs * model.hidden);
  }
  const auto tensor = static_cast<double>(c.degrees.tensor);
  RankParameters own;
  const std::vector<double> layers = layers_by_kind(c, model, stage);
  for (size_t i = 0; i < layers.size(); ++i) {
    const RankParameters layer = parameters_of_layer(c, mix.kinds[i]);
    own.shared += layers[i] * layer.shared;
    own.experts += layers[i] * layer.experts;
  }
  const auto [first, last] = ends_here;
  double ends = first ? mix.embedding : 0;
  if (last) ends += head;
  if (last && !first && (model.tied_embeddings || model.next_token_layers > 0) && c.outputs == 0) {
    ends += table;
  }
  if (cuts_vocabulary(c)) {
    ends = (mix.embedding + head) / static_cast<double>(c.degrees.pipeline);
  }
  own.shared += ends / tensor;
  return own;
}

double shard_of(const TrainingRun& c, const RankParameters& parameters) {
  return parameters.shared / sharers(c) + parameters.experts / expert_sharers(c);
}

LayerShape shape_of(const LayerShape& shape, const LayerGroup& kind) {
  LayerShape own = shape;
  if (kind.tokens < 1) {
    own.sequence = static_cast<int64_t>(kind.tokens * static_cast<double>(shape.sequence));
  }
  return own;
}

int64_t output_columns(const TrainingRun& c, const ModelSpec& model) {
  return c.outputs > 0 ? c.outputs : model.vocab;
}

ModelSpec with_outputs(const TrainingRun& c, const ModelSpec& model) {
  ModelSpec other = model;
  other.vocab = output_columns(c, model);
  return other;
}

double bytes_of_parameter(const Stack& stack) {
  return std::min(stack.parameter_bytes.value, stack.parameter_state_bytes.value);
}

double optimizer_state_bytes(const TrainingRun& c, const Stack& stack) {
  return c.optimizer_state_bytes > 0 ? c.optimizer_state_bytes : stack.optimizer_state_bytes.value;
}

double replicas(const TrainingRun& c) {
  return static_cast<double>(c.degrees.data * c.degrees.ulysses * c.degrees.ring *
                             c.degrees.all_gather);
}

bool gradients_wait_whole(const TrainingRun& c) {
  return c.whole_gradients && microbatches(c) > 1 && sharers(c) > 1;
}

double sharers(const TrainingRun& c) { return replicas(c) / static_cast<double>(c.state_copies); }

double expert_replicas(const TrainingRun& c) {
  const RunDegrees& d = c.degrees;
  return replicas(c) * static_cast<double>(d.tensor) /
         static_cast<double>(d.expert * d.of_expert());
}

double expert_sharers(const TrainingRun& c) {
  return std::max(1.0, expert_replicas(c) / static_cast<double>(c.state_copies));
}

}  // namespace longspan
