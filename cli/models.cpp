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

// "layers 20 to 24, without attention, ffn 53248, on 50.0 % of the tokens"
std::string describe(const LayerRun& run, int64_t first, const ModelSpec& model) {
  std::string text = run.layers == 1
                         ? fmt::format("layer {}", first)
                         : fmt::format("layers {} to {}", first, first + run.layers - 1);
  std::string what;
  if (!run.attention) what += ", without attention";
  if (run.ffn != model.ffn) what += fmt::format(", ffn {}", run.ffn);
  if (run.tokens < 1) what += fmt::format(", on {} of the tokens", percent(run.tokens));
  return text + (what.empty() ? ", plain" : what);
}

// The first layer of each run, which represents the run.
std::vector<int64_t> first_layers(const ModelSpec& model) {
  std::vector<int64_t> first;
  int64_t layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    first.push_back(layer);
    layer += run.layers;
  }
  return first;
}

bool stands_for_others(const ParameterUnit& unit, const std::vector<int64_t>& first) {
  return unit.kind != ParameterUnit::Kind::layer ||
         std::binary_search(first.begin(), first.end(), unit.layer);
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
                    {"tokens", run.tokens}});
  }
  Json units = Json::array();
  for (const ParameterUnit& unit : parameter_units(model)) {
    if (!stands_for_others(unit, first)) continue;
    Json tensors = Json::array();
    for (const ParameterTensor& tensor : unit.tensors) {
      tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
    }
    const char* kind = unit.kind == ParameterUnit::Kind::embedding ? "embedding"
                       : unit.kind == ParameterUnit::Kind::layer   ? "layer"
                                                                   : "head";
    units.push_back(
        {{"unit", kind},
         {"count",
          unit.kind == ParameterUnit::Kind::layer ? run_of_layer(model, unit.layer).layers : 1},
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
          {"activation", model.activation == Activation::swiglu ? "swiglu" : "gelu"},
          {"tied_embeddings", model.tied_embeddings},
          {"runs", std::move(runs)},
          {"only_planned", model.only_planned},
          {"parameters", parameter_count(model)},
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
      model.norm == Norm::rmsnorm ? "rmsnorm" : "layernorm",
      model.activation == Activation::swiglu ? "swiglu" : "gelu",
      model.tied_embeddings ? ", tied embeddings" : "");
  say("  {} parameters\n", grouped(parameter_count(model)));
  if (!model.only_planned.empty()) say("  only planned: {}\n", model.only_planned);
  const std::vector<int64_t> first = first_layers(model);
  for (size_t i = 0; !model.uniform() && i < first.size(); ++i) {
    say("  {}\n", describe(model.runs[i], first[i], model));
  }
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
    const std::string name =
        unit.kind == ParameterUnit::Kind::embedding ? "embedding"
        : unit.kind == ParameterUnit::Kind::layer
            ? fmt::format("layer (1 of {})", run_of_layer(model, unit.layer).layers)
            : "head";
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
