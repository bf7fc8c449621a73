// longspan models: lists the catalog and describes a model.
#include "cli/table.h"
#include "cli/text.h"
#include "models/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/terminal.h"

namespace longspan::cli {
namespace {

constexpr int64_t kShownLengths[] = {4096, 131072, 1048576};

double flops_per_token(const ModelSpec& model, int64_t sequence) {
  return model_flops(model, sequence).step() / static_cast<double>(sequence);
}

constexpr size_t kShownRuns = 8;  // a model with more is described by its kinds of layers

// ", without attention, ffn 53248, on 50.0 % of the tokens"
std::string differences(const LayerRun& run, const ModelSpec& model) {
  std::string what;
  if (!run.attention) what += ", without attention";
  if (run.window != model.window) {
    what += run.window > 0 ? fmt::format(", a window of {} tokens", run.window) : ", no window";
  }
  if (run.positions == LayerPositions::local) {
    what += fmt::format(", RoPE of base {}", model.local_rope_theta);
  }
  if (run.positions == LayerPositions::none) what += ", no RoPE";
  if (run.experts != model.experts.has_value()) what += ", no experts";
  if (run.ffn != model.ffn) what += fmt::format(", ffn {}", run.ffn);
  if (run.tokens < 1) what += fmt::format(", on {} of the tokens", percent(run.tokens));
  return what.empty() ? ", plain" : what;
}

void say_runs(const ModelSpec& model) {
  if (model.uniform()) return;
  if (model.runs.size() > kShownRuns) {
    for (const LayerRun& kind : layer_kinds(model)) {
      say("  {} {}{}\n", kind.layers, kind.layers == 1 ? "layer" : "layers",
          differences(kind, model));
    }
    return;
  }
  int64_t first = 0;
  for (const LayerRun& run : model.runs) {
    const std::string name = run.layers == 1
                                 ? fmt::format("layer {}", first)
                                 : fmt::format("layers {} to {}", first, first + run.layers - 1);
    say("  {}{}\n", name, differences(run, model));
    first += run.layers;
  }
}

const char* kind_of(const ParameterUnit& unit) {
  switch (unit.kind) {
    case ParameterUnit::Kind::embedding:
      return "embedding";
    case ParameterUnit::Kind::layer:
      return "layer";
    case ParameterUnit::Kind::experts:
      return "experts";
    default:
      return "head";
  }
}

// The first layer of each kind, which represents the kind.
std::vector<int64_t> first_layers(const ModelSpec& model) {
  std::vector<int64_t> first;
  std::vector<LayerRun> kinds;
  int64_t layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    const bool known = std::any_of(kinds.begin(), kinds.end(),
                                   [&](const LayerRun& kind) { return kind.like(run); });
    if (!known) {
      kinds.push_back(run);
      first.push_back(layer);
    }
    layer += run.layers;
  }
  return first;
}

// The number of layers of the same kind.
int64_t layers_like(const ModelSpec& model, int64_t layer) {
  const LayerRun run = run_of_layer(model, layer);
  for (const LayerRun& kind : layer_kinds(model)) {
    if (kind.like(run)) return kind.layers;
  }
  return run.layers;
}

bool stands_for_others(const ParameterUnit& unit, const std::vector<int64_t>& first) {
  return unit.layer < 0 || std::binary_search(first.begin(), first.end(), unit.layer);
}

Json model_json(const ModelSpec& model) {
  Json lengths = Json::array();
  for (const int64_t length : kShownLengths) {
    lengths.push_back(
        {{"sequence_tokens", length}, {"step_flops_per_token", flops_per_token(model, length)}});
  }
  const std::vector<int64_t> first = first_layers(model);
  Json runs = Json::array();
  for (const LayerRun& run : layer_runs(model)) {
    runs.push_back({{"layers", run.layers},
                    {"attention", run.attention},
                    {"ffn", run.ffn},
                    {"window", run.window},
                    {"experts", run.experts},
                    {"tokens", run.tokens}});
  }
  Json units = Json::array();
  for (const ParameterUnit& unit : parameter_units(model)) {
    if (!stands_for_others(unit, first)) continue;
    Json tensors = Json::array();
    for (const ParameterTensor& tensor : unit.tensors) {
      tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
    }
    units.push_back({{"unit", kind_of(unit)},
                     {"count", unit.layer >= 0 ? layers_like(model, unit.layer) : 1},
                     {"parameters", unit.elements},
                     {"tensors", std::move(tensors)}});
  }
  return {{"name", model.name},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"ffn", model.ffn},
          {"vocab", model.vocab},
          {"max_positions", model.max_positions},
          {"positions", model.positions == Positions::rope ? "rope" : "learned"},
          {"norm", model.norm == Norm::rmsnorm ? "rmsnorm" : "layernorm"},
          {"activation", name_of(model.activation)},
          {"tied_embeddings", model.tied_embeddings},
          {"runs", std::move(runs)},
          {"only_planned", model.only_planned},
          {"parameters", parameter_count(model)},
          {"active_parameters", active_parameter_count(model)},
          {"lengths", std::move(lengths)},
          {"units", std::move(units)}};
}

int list(bool json) {
  Json models = Json::array();
  Table table({{"model", false},
               {"parameters"},
               {"layers"},
               {"hidden"},
               {"heads"},
               {"kv heads"},
               {"ffn"},
               {"vocabulary"},
               {"positions", false}});
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    models.push_back({{"name", name}, {"parameters", parameter_count(model)}});
    table.add({name, grouped(parameter_count(model)), fmt::format("{}", model.layers),
               fmt::format("{}", model.hidden), fmt::format("{}", model.heads),
               fmt::format("{}", model.kv_heads), fmt::format("{}", model.ffn),
               fmt::format("{}", model.vocab),
               model.positions == Positions::rope ? "rope" : "learned"});
  }
  if (json) {
    print_json({{"models", std::move(models)}});
  } else {
    table.print();
  }
  return 0;
}

int show(const std::string& reference, bool json) {
  const ModelSpec model = load_model(reference);
  if (json) {
    print_json(model_json(model));
    return 0;
  }
  say("{}\n", bold(model.name));
  say("  {} layers, hidden {}, {} query heads over {} key/value heads of {}, ffn {}, "
      "vocabulary {}\n",
      model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn,
      model.vocab);
  say("  {} positions, {}, {}{}\n", model.positions == Positions::rope ? "rope" : "learned",
      model.norm == Norm::rmsnorm ? "rmsnorm" : "layernorm", name_of(model.activation),
      model.tied_embeddings ? ", tied embeddings" : "");
  if (model.window > 0) say("  a window of {} tokens\n", model.window);
  if (const auto& e = model.experts) {
    say("  {} experts of width {}, {} active{}\n", e->count, e->ffn, e->active,
        e->shared_ffn > 0 ? fmt::format(", and a shared width of {}", e->shared_ffn) : "");
  }
  say("  {} parameters{}\n", grouped(parameter_count(model)),
      model.experts ? fmt::format(", {} active", grouped(active_parameter_count(model))) : "");
  if (!model.only_planned.empty()) say("  only planned: {}\n", model.only_planned);
  say_runs(model);
  const std::vector<int64_t> first = first_layers(model);
  say("{}\n", bold("FLOPs of a training step per token (causal, no recomputation)"));
  Table flops({{"length"}, {"FLOP/token"}});
  for (const int64_t length : kShownLengths) {
    flops.add({format_tokens(length), format_rate(flops_per_token(model, length), "FLOP")});
  }
  flops.print();
  say("{}\n", bold("Parameters, by the units they move in"));
  Table units({{"unit", false}, {"tensor", false}, {"shape"}, {"elements"}});
  for (const ParameterUnit& unit : parameter_units(model)) {
    if (!stands_for_others(unit, first)) continue;
    std::string name = kind_of(unit);
    if (unit.layer >= 0) {
      name += fmt::format(" (1 of {})", layers_like(model, unit.layer));
    }
    for (const ParameterTensor& tensor : unit.tensors) {
      units.add({name, tensor.name, fmt::format("{}", fmt::join(tensor.shape, "x")),
                 grouped(tensor.elements)});
    }
  }
  units.print();
  return 0;
}

}  // namespace

void add_models(Verb& program) {
  auto reference = std::make_shared<std::string>();
  Verb group =
      program.add_group("models", "The catalog of models", "longspan models show llama-3.1-8b");
  group.add_verb("list", "Names and sizes of the built-in models", "longspan models list")
      .runs(list);
  Verb showing = group.add_verb("show", "One model: shape, parameters, FLOPs",
                                "longspan models show llama-3.1-8b");
  showing.add_option("model", *reference, "A catalog name, a YAML file, or a config.json")
      .required();
  showing.runs([reference](bool json) { return show(*reference, json); });
}

}  // namespace longspan::cli
