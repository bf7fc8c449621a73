#include "models/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

using Kind = ParameterUnit::Kind;

constexpr const char* kFrozenForm = "expected embedding, head, layers, or layers FIRST-LAST";

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// A layer's number at the start of `text`, which it consumes; -1 if there is none.
int64_t take_layer(std::string_view& text) {
  int64_t layer = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (problem != std::errc()) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return layer;
}

LayerRange parse_layers(const std::string& part, const ModelSpec& model) {
  std::string_view rest = part;
  const int64_t first = take_layer(rest);
  int64_t last = first;
  if (rest.starts_with("-")) {
    rest.remove_prefix(1);
    last = take_layer(rest);
  }
  if (!rest.empty() || first < 0 || last < first) {
    throw bad_input("frozen: layers {}: {}", part, kFrozenForm);
  }
  if (last >= model.layers) {
    throw bad_input("frozen: layers {}: {} has layers 0-{}", part, model.name, model.layers - 1);
  }
  return {first, last + 1};
}

bool contains(const std::vector<LayerRange>& ranges, int64_t layer) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const LayerRange& range) {
    return range.first <= layer && layer < range.end;
  });
}

// The layers one by one.
std::vector<LayerRun> single_layers(const ModelSpec& model) {
  std::vector<LayerRun> layers;
  for (LayerRun run : layer_runs(model)) {
    const int64_t count = std::exchange(run.layers, 1);
    layers.insert(layers.end(), static_cast<size_t>(count), run);
  }
  return layers;
}

// The model with these layers, as one uniform model if it can be, or in runs.
ModelSpec with_layers(ModelSpec model, const std::vector<LayerRun>& layers) {
  model.runs.clear();
  for (const LayerRun& layer : layers) {
    if (!model.runs.empty() && model.runs.back().like(layer)) {
      ++model.runs.back().layers;
    } else {
      model.runs.push_back(layer);
    }
  }
  ModelSpec uniform = model;
  uniform.backward = model.runs.front().backward;
  uniform.runs.clear();
  model.backward = LayerBackward::weights;
  const bool alike = model.runs.size() == 1 && layer_runs(uniform) == model.runs;
  return alike ? uniform : model;
}

}  // namespace

Frozen parse_frozen(const std::string& text, const ModelSpec& model) {
  Frozen frozen;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part = trimmed(text.substr(begin, comma - begin));
    begin = comma + 1;
    if (part == "embedding") {
      frozen.embedding = true;
    } else if (part == "head") {
      frozen.head = true;
    } else if (part == "layers") {
      frozen.layers.push_back({0, model.layers});
    } else if (part.starts_with("layers ")) {
      frozen.layers.push_back(parse_layers(trimmed(part.substr(7)), model));
    } else {
      throw bad_input("frozen: \"{}\": {}", part, kFrozenForm);
    }
  }
  return frozen;
}

ModelSpec freeze(const ModelSpec& model, const Frozen& frozen) {
  ModelSpec result = model;
  result.frozen_embedding = model.frozen_embedding || frozen.embedding;
  result.frozen_head = model.frozen_head || frozen.head;
  std::vector<LayerRun> layers = single_layers(model);
  bool before = !result.frozen_embedding || !model.works_on_all_tokens();
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    LayerBackward& backward = layers[layer].backward;
    if (backward == LayerBackward::weights &&
        contains(frozen.layers, static_cast<int64_t>(layer))) {
      backward = LayerBackward::inputs;
    }
    before = before || backward == LayerBackward::weights || result.adapters;
    if (!before) backward = LayerBackward::none;
  }
  result = with_layers(std::move(result), layers);
  validate(result, model.name);
  return result;
}

ModelSpec wholly_trained(const ModelSpec& model) {
  if (!is_frozen(model)) return model;
  ModelSpec whole = model;
  whole.frozen_embedding = whole.frozen_head = false;
  whole.adapters.reset();
  whole.nf4 = false;
  std::vector<LayerRun> layers = single_layers(model);
  for (LayerRun& layer : layers) layer.backward = LayerBackward::weights;
  return with_layers(std::move(whole), layers);
}

bool is_frozen(const ModelSpec& model) {
  const std::vector<LayerRun> runs = layer_runs(model);
  return model.frozen_embedding || model.frozen_head ||
         std::any_of(runs.begin(), runs.end(),
                     [](const LayerRun& run) { return run.backward != LayerBackward::weights; });
}

bool trains_output(const ModelSpec& model) {
  return !(model.tied_embeddings ? model.frozen_embedding : model.frozen_head);
}

bool trains(const ModelSpec& model, ParameterUnit::Kind kind) {
  switch (kind) {
    case Kind::embedding:
      return !model.frozen_embedding;
    case Kind::head:
      return !model.frozen_head;
    case Kind::adapters:
      return true;
    default:
      return model.backward == LayerBackward::weights;
  }
}

int64_t trained_parameter_count(const ModelSpec& model) {
  int64_t count = 0;
  for (const ParameterUnit& unit : parameter_units(model)) {
    if (!unit.trained) continue;
    for (const ParameterTensor& tensor : unit.tensors) {
      if (tensor.trained) count = checked_add(count, tensor.elements, "parameters");
    }
  }
  return count;
}

std::string frozen_text(const ModelSpec& model) {
  std::vector<std::string> parts;
  if (model.frozen_embedding) parts.emplace_back("embedding");
  if (model.frozen_head) parts.emplace_back("head");
  int64_t layer = 0;
  std::vector<LayerRange> ranges;
  for (const LayerRun& run : layer_runs(model)) {
    if (run.backward != LayerBackward::weights) {
      if (!ranges.empty() && ranges.back().end == layer) {
        ranges.back().end += run.layers;
      } else {
        ranges.push_back({layer, layer + run.layers});
      }
    }
    layer += run.layers;
  }
  for (const LayerRange& range : ranges) {
    if (range == LayerRange{0, model.layers}) {
      parts.emplace_back("layers");
    } else if (range.end == range.first + 1) {
      parts.push_back(fmt::format("layers {}", range.first));
    } else {
      parts.push_back(fmt::format("layers {}-{}", range.first, range.end - 1));
    }
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace longspan
