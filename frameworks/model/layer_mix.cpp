#include "frameworks/model/layer_mix.h"

#include <algorithm>

#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"

namespace longspan {
namespace {

using Kind = ParameterUnit::Kind;

double elements_of(const std::vector<ParameterUnit>& units, Kind kind) {
  double sum = 0;
  for (const ParameterUnit& unit : units) {
    if (unit.kind == kind) sum += number(unit.elements);
  }
  return sum;
}

// Layers of a pipeline's parts, as positions from the first layer on.
struct Part {
  double begin = 0, end = 0;
};

// The parts of a rank, first to last.
std::vector<Part> parts_of(const TrainingRun& c, const ModelSpec& model, int64_t stage) {
  const int64_t ranks = c.degrees.pipeline, virtual_stages = std::max<int64_t>(1, c.virtual_stages);
  std::vector<Part> parts;
  double begin = 0;
  for (int64_t part = 0; part < virtual_stages; ++part) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const double layers = layers_of(c, model, rank) / number(virtual_stages);
      if (rank == stage) parts.push_back({begin, begin + layers});
      begin += layers;
    }
  }
  return parts;
}

// By kind of layer_kinds(): the layers of these parts.
std::vector<double> layers_in(const ModelSpec& model, const std::vector<Part>& parts) {
  const std::vector<LayerRun> kinds = layer_kinds(model);
  std::vector<double> layers(kinds.size());
  double begin = 0;
  for (const LayerRun& run : layer_runs(model)) {
    const double end = begin + number(run.layers);
    const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const LayerRun& known) { return known.like(run); });
    for (const Part& part : parts) {
      layers[static_cast<size_t>(kind - kinds.begin())] +=
          std::max(0.0, std::min(end, part.end) - std::max(begin, part.begin));
    }
    begin = end;
  }
  return layers;
}

size_t kind_at(const ModelSpec& model, double position) {
  const auto layer = std::clamp(static_cast<int64_t>(position), int64_t{0}, model.layers - 1);
  const LayerRun run = run_of_layer(model, layer);
  const std::vector<LayerRun> kinds = layer_kinds(model);
  const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const LayerRun& known) { return known.like(run); });
  return static_cast<size_t>(kind - kinds.begin());
}

}  // namespace

LayerMix layer_mix(const ModelSpec& model) {
  LayerMix mix;
  for (LayerRun run : layer_kinds(model)) {
    run.layers = 1;
    LayerGroup kind;
    kind.model = model_of_run(model, run);
    const std::vector<ParameterUnit> units = parameter_units(kind.model);
    kind.shared = elements_of(units, Kind::layer);
    kind.experts = elements_of(units, Kind::experts);
    kind.tokens = run.tokens;
    mix.embedding = elements_of(units, Kind::embedding);
    mix.head = elements_of(units, Kind::head);
    mix.kinds.push_back(std::move(kind));
  }
  if (model.next_token_layers > 0) {
    ModelSpec one = model;
    one.next_token_layers = 1;
    const std::vector<ParameterUnit> units = next_token_units(one);
    LayerGroup kind;
    kind.model = model_of_run(model, layer_runs(model).back());
    kind.model.layers = kind.model.next_token_layers = 1;
    kind.shared = elements_of(units, Kind::layer);
    kind.experts = elements_of(units, Kind::experts);
    mix.kinds.push_back(std::move(kind));
  }
  return mix;
}

std::vector<double> layers_by_kind(const TrainingRun& c, const ModelSpec& model, int64_t stage) {
  std::vector<double> layers = model.uniform() ? std::vector<double>{layers_of(c, model, stage)}
                                               : layers_in(model, parts_of(c, model, stage));
  if (model.next_token_layers > 0) {
    const bool last = stage == c.degrees.pipeline - 1;
    layers.push_back(last ? number(model.next_token_layers) : 0);
  }
  return layers;
}

EndKinds end_kinds(const TrainingRun& c, const ModelSpec& model, int64_t stage) {
  const std::vector<Part> parts = parts_of(c, model, stage);
  EndKinds ends{kind_at(model, parts.front().begin), kind_at(model, parts.back().end - 0.5)};
  if (model.next_token_layers > 0 && stage == c.degrees.pipeline - 1) {
    ends.last = layer_kinds(model).size();
  }
  return ends;
}

}  // namespace longspan
