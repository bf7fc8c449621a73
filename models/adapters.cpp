#include "models/adapters.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "models/training.h"

namespace longspan {
namespace {

constexpr const char* kNames[kProjections] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};

bool is_present(const ModelSpec& model, Projection projection) {
  if (projection < Projection::gate) return model.attention;
  return !model.experts && (projection != Projection::gate || model.gated());
}

}  // namespace

const char* name_of(Projection projection) { return kNames[static_cast<size_t>(projection)]; }

std::vector<AdapterShape> adapter_shapes(const ModelSpec& model) {
  if (!model.adapters) return {};
  const int64_t d = model.hidden, a = model.attention_width(), g = model.kv_width();
  const std::pair<int64_t, int64_t> sizes[kProjections] = {
      {d, a}, {d, g}, {d, g}, {a, d}, {d, model.ffn}, {d, model.ffn}, {model.ffn, d}};
  std::vector<AdapterShape> shapes;
  int64_t next = 0;
  for (int i = 0; i < kProjections; ++i) {
    const auto projection = static_cast<Projection>(i);
    if (!model.adapters->has(projection) || !is_present(model, projection)) continue;
    const auto [in, out] = sizes[i];
    AdapterShape shape{projection, in, out, next, 0};
    shape.b = checked_add(next, checked_mul(model.adapters->rank, in, "adapters"), "adapters");
    next = checked_add(shape.b, checked_mul(model.adapters->rank, out, "adapters"), "adapters");
    shapes.push_back(shape);
  }
  return shapes;
}

int64_t adapter_elements(const ModelSpec& model) {
  if (!model.adapters) return 0;
  const std::vector<AdapterShape> shapes = adapter_shapes(model);
  if (shapes.empty()) return 0;
  return shapes.back().b + model.adapters->rank * shapes.back().out;
}

int64_t adapter_count(const ModelSpec& model, std::initializer_list<Projection> projections) {
  if (!model.adapters) return 0;
  return std::count_if(projections.begin(), projections.end(), [&](Projection projection) {
    return model.adapters->has(projection) && is_present(model, projection);
  });
}

bool has_adapter(const ModelSpec& model, std::initializer_list<Projection> projections) {
  return adapter_count(model, projections) > 0;
}

std::array<bool, kProjections> parse_projections(const std::string& text) {
  std::array<bool, kProjections> on{};
  if (text == "all") {
    on.fill(true);
    return on;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, comma - begin);
    begin = comma + 1;
    const auto* known = std::find(std::begin(kNames), std::end(kNames), name);
    if (known == std::end(kNames)) {
      throw bad_input(
          "adapters: \"{}\": expected all, or names of q_proj, k_proj, v_proj, o_proj, gate_proj, "
          "up_proj, down_proj",
          name);
    }
    on[static_cast<size_t>(known - std::begin(kNames))] = true;
  }
  return on;
}

std::string projections_text(const Adapters& adapters) {
  std::string text;
  for (int i = 0; i < kProjections; ++i) {
    if (!adapters.on[static_cast<size_t>(i)]) continue;
    text += (text.empty() ? "" : ", ") + std::string(kNames[i]);
  }
  return text;
}

ModelSpec with_adapters(const ModelSpec& model, const Adapters& adapters) {
  if (model.latent) {
    throw bad_input(
        "adapters: the projections of {} are those of latent attention, which have none",
        model.name);
  }
  ModelSpec adapted = model;
  adapted.adapters = adapters;
  adapted.frozen_embedding = adapted.frozen_head = true;
  adapted.backward = model.uniform() ? LayerBackward::inputs : LayerBackward::weights;
  for (LayerRun& run : adapted.runs) run.backward = LayerBackward::inputs;
  validate(adapted, model.name);
  return adapted;
}

}  // namespace longspan
