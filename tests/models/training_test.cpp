// The parts of a model that are trained: their text, the backward of layers, adapters.
#include "models/training.h"

#include <catch2/catch.hpp>

#include "base/yaml.h"
#include "models/adapters.h"
#include "models/catalog.h"
#include "models/nf4.h"

namespace longspan {
namespace {

ModelSpec six_layers() {
  ModelSpec model = load_model("tiny-llama");
  model.layers = 6;
  return model;
}

ModelSpec frozen(const std::string& text) {
  const ModelSpec model = six_layers();
  return freeze(model, parse_frozen(text, model));
}

std::string backwards_of(const ModelSpec& model) {
  std::string text;
  for (const LayerRun& run : layer_runs(model)) {
    const char of = run.backward == LayerBackward::weights  ? 'w'
                    : run.backward == LayerBackward::inputs ? 'i'
                                                            : '-';
    text += std::string(static_cast<size_t>(run.layers), of);
  }
  return text;
}

ModelSpec read_again(const ModelSpec& model) {
  YAML::Emitter out;
  write_model(out, model);
  return read_model(YamlMap::parse(out.c_str(), "model"));
}

TEST_CASE("layers below the lowest trained part have no backward") {
  CHECK(backwards_of(frozen("head")) == "wwwwww");
  CHECK(backwards_of(frozen("layers 0-2")) == "iiiwww");  // gradients go to the embedding
  CHECK(backwards_of(frozen("embedding,layers 0-2")) == "---www");
  CHECK(backwards_of(frozen("embedding, layers 0-1, layers 4")) == "--wwiw");
  CHECK(backwards_of(frozen("embedding,layers")) == "------");
  CHECK(backwards_of(frozen("layers")) == "iiiiii");
  CHECK(frozen("embedding,layers").uniform());
  CHECK(frozen("layers 5").runs.size() == 2);
  CHECK(frozen("embedding").frozen_embedding);
  for (const char* text : {"head", "embedding, layers 0-1, layers 4", "embedding, layers"}) {
    CHECK(frozen_text(frozen(text)) == std::string(text));
    CHECK(read_again(frozen(text)) == frozen(text));
    CHECK(wholly_trained(frozen(text)) == six_layers());
  }
  CHECK(frozen_text(six_layers()).empty());
}

TEST_CASE("units say what is trained, and the count follows") {
  const ModelSpec model = frozen("embedding,layers 0-1,layers 4");
  int64_t trained = 0;
  for (const ParameterUnit& unit : parameter_units(model)) {
    const bool layer = unit.kind == ParameterUnit::Kind::layer;
    const bool expected = layer ? unit.layer == 2 || unit.layer == 3 || unit.layer == 5
                                : unit.layer == -1 && unit.kind == ParameterUnit::Kind::head;
    CHECK(unit.trained == expected);
    if (unit.trained) trained += unit.elements;
  }
  CHECK(trained_parameter_count(model) == trained);
  CHECK(parameter_count(model) == parameter_count(six_layers()));
}

TEST_CASE("frozen weights have no products for their gradients") {
  const ModelFlops whole = model_flops(six_layers(), 128);
  CHECK(whole.dense_backward == 2 * whole.dense_forward);
  CHECK(whole.attention_backward == 2 * whole.attention_forward);
  const ModelSpec model = six_layers();
  const double logits = 2.0 * 128 * static_cast<double>(model.hidden * model.vocab);
  const ModelFlops passing = model_flops(frozen("layers"), 128);
  CHECK(passing.dense_backward == Approx(whole.dense_forward + logits));
  CHECK(passing.attention_backward == whole.attention_backward);
  const ModelFlops head = model_flops(frozen("embedding,layers"), 128);
  CHECK(head.dense_backward == Approx(2 * logits));
  CHECK(head.attention_backward == 0);
}

TEST_CASE("parts that cannot be frozen are refused") {
  const auto refused = [](const char* text, const char* what) {
    CHECK_THROWS_WITH(frozen(text), Catch::Contains(what));
  };
  refused("layer 1", "expected embedding, head");
  refused("layers 1-", "expected embedding, head");
  refused("layers 3-2", "expected embedding, head");
  refused("layers 2-6", "layers 0-5");
  refused("embedding,head,layers", "nothing is left to train");
  refused("", "expected embedding, head");
}

TEST_CASE("adapters have the shapes and names of peft") {
  const ModelSpec base = six_layers();
  const ModelSpec model = with_adapters(base, {4, 8, parse_projections("k_proj,down_proj")});
  const std::vector<ParameterUnit> units = parameter_units(model);
  REQUIRE(units.size() == parameter_units(base).size() + 6);
  const ParameterUnit& unit = units[units.size() - 5];  // of layer 1
  CHECK(unit.kind == ParameterUnit::Kind::adapters);
  CHECK(unit.layer == 1);
  REQUIRE(unit.tensors.size() == 4);
  CHECK(unit.tensors[0].name == "model.layers.1.self_attn.k_proj.lora_A.weight");
  CHECK(unit.tensors[0].shape == std::vector<int64_t>{4, model.hidden});
  CHECK(unit.tensors[1].shape == std::vector<int64_t>{model.kv_width(), 4});
  CHECK(unit.tensors[2].name == "model.layers.1.mlp.down_proj.lora_A.weight");
  CHECK(unit.tensors[2].shape == std::vector<int64_t>{4, model.ffn});
  CHECK(unit.tensors[3].shape == std::vector<int64_t>{model.hidden, 4});
  CHECK(unit.elements == adapter_elements(model));
  CHECK(trained_parameter_count(model) == 6 * unit.elements);
  CHECK(parameter_count(model) == parameter_count(base) + 6 * unit.elements);
  for (const ParameterUnit& other : units) {
    CHECK(other.trained == (other.kind == ParameterUnit::Kind::adapters));
  }
  CHECK(read_again(model) == model);
  CHECK(wholly_trained(model) == base);
  CHECK(projections_text(*model.adapters) == "k_proj, down_proj");

  // peft counts 6,815,744 for Llama 3.1 8B with rank 16 of q_proj and v_proj.
  const ModelSpec llama =
      with_adapters(load_model("llama-3.1-8b"), {16, 32, parse_projections("q_proj,v_proj")});
  CHECK(trained_parameter_count(llama) == 6815744);
}

TEST_CASE("weights in 4 bits need frozen layers, and have the bytes of QLoRA") {
  ModelSpec model = six_layers();
  model.nf4 = true;
  CHECK_THROWS_WITH(validate(model, "test"), Catch::Contains("trained layers"));
  model = with_adapters(six_layers(), {4, 8, parse_projections("all")});
  model.nf4 = true;
  CHECK_NOTHROW(validate(model, "test"));
  CHECK(read_again(model) == model);
  CHECK(nf4_bytes(640, 10, 2) == 4 * 10 + 20 + 320);
  CHECK(nf4_bytes(65, 0, 4) == 4 * 2 + 33);
  // Every level is its own nearest one; the middle of two belongs to the lower.
  for (int code = 0; code < 16; ++code)
    CHECK(nf4_code(kNf4Levels[static_cast<size_t>(code)]) == code);
  CHECK(nf4_code(0.03F) == 7);
  CHECK(nf4_code(0.05F) == 8);
  CHECK(nf4_code(-2) == 0);
  CHECK(nf4_code(2) == 15);
}

}  // namespace
}  // namespace longspan
