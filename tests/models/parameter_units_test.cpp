#include <catch2/catch.hpp>
#include <set>

#include "models/catalog.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

using Init = ParameterTensor::Init;
using Shape = std::vector<int64_t>;

struct Expected {
  std::string name;
  Shape shape;
  Init init;
  bool decays;
  bool transposed = false;
};

void check_unit(const ParameterUnit& unit, const std::vector<Expected>& expected) {
  REQUIRE(unit.tensors.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].name);
    const ParameterTensor& tensor = unit.tensors[i];
    CHECK(tensor.name == expected[i].name);
    CHECK(tensor.shape == expected[i].shape);
    CHECK(tensor.init == expected[i].init);
    CHECK(tensor.decays == expected[i].decays);
    CHECK(tensor.transposed_in_file == expected[i].transposed);
  }
}

TEST_CASE("a Llama layer has the order the kernels rely on") {
  const auto units = parameter_units(load_model("tiny-llama"));
  REQUIRE(units.size() == 4);
  CHECK(units[0].kind == ParameterUnit::Kind::embedding);
  CHECK(units[0].layer == -1);
  CHECK(units[2].kind == ParameterUnit::Kind::layer);
  CHECK(units[2].layer == 1);
  CHECK(units[3].kind == ParameterUnit::Kind::head);
  check_unit(units[0], {{"model.embed_tokens.weight", {256, 64}, Init::normal, true}});
  const std::string p = "model.layers.1.";
  check_unit(units[2], {{p + "input_layernorm.weight", {64}, Init::ones, false},
                        {p + "self_attn.q_proj.weight", {64, 64}, Init::normal, true},
                        {p + "self_attn.k_proj.weight", {32, 64}, Init::normal, true},
                        {p + "self_attn.v_proj.weight", {32, 64}, Init::normal, true},
                        {p + "self_attn.o_proj.weight", {64, 64}, Init::residual_normal, true},
                        {p + "post_attention_layernorm.weight", {64}, Init::ones, false},
                        {p + "mlp.gate_proj.weight", {176, 64}, Init::normal, true},
                        {p + "mlp.up_proj.weight", {176, 64}, Init::normal, true},
                        {p + "mlp.down_proj.weight", {64, 176}, Init::residual_normal, true}});
  check_unit(units[3], {{"model.norm.weight", {64}, Init::ones, false},
                        {"lm_head.weight", {256, 64}, Init::normal, true}});
}

TEST_CASE("a GPT-2 layer has fused q, k, v and matrices transposed in its files") {
  const auto units = parameter_units(load_model("tiny-gpt"));
  REQUIRE(units.size() == 4);
  check_unit(units[0], {{"transformer.wte.weight", {256, 64}, Init::normal, true},
                        {"transformer.wpe.weight", {512, 64}, Init::normal, true}});
  const std::string p = "transformer.h.0.";
  check_unit(units[1], {{p + "ln_1.weight", {64}, Init::ones, false},
                        {p + "ln_1.bias", {64}, Init::zeros, false},
                        {p + "attn.c_attn.weight", {192, 64}, Init::normal, true, true},
                        {p + "attn.c_attn.bias", {192}, Init::zeros, false},
                        {p + "attn.c_proj.weight", {64, 64}, Init::residual_normal, true, true},
                        {p + "attn.c_proj.bias", {64}, Init::zeros, false},
                        {p + "ln_2.weight", {64}, Init::ones, false},
                        {p + "ln_2.bias", {64}, Init::zeros, false},
                        {p + "mlp.c_fc.weight", {256, 64}, Init::normal, true, true},
                        {p + "mlp.c_fc.bias", {256}, Init::zeros, false},
                        {p + "mlp.c_proj.weight", {64, 256}, Init::residual_normal, true, true},
                        {p + "mlp.c_proj.bias", {64}, Init::zeros, false}});
  check_unit(units[3], {{"transformer.ln_f.weight", {64}, Init::ones, false},
                        {"transformer.ln_f.bias", {64}, Init::zeros, false}});
}

TEST_CASE("biases and q/k norms stand between the projections and the output matrix") {
  ModelSpec model = load_model("tiny-llama");
  model.qkv_bias = model.attention_out_bias = model.qk_norm = true;
  const ParameterUnit layer = parameter_units(model)[1];
  std::vector<std::string> names;
  for (const ParameterTensor& tensor : layer.tensors) {
    names.push_back(tensor.name.substr(std::string("model.layers.0.").size()));
  }
  CHECK(std::vector<std::string>(names.begin() + 1, names.begin() + 11) ==
        std::vector<std::string>{"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                 "self_attn.v_proj.weight", "self_attn.q_proj.bias",
                                 "self_attn.k_proj.bias", "self_attn.v_proj.bias",
                                 "self_attn.q_norm.weight", "self_attn.k_norm.weight",
                                 "self_attn.o_proj.weight", "self_attn.o_proj.bias"});
  CHECK(layer.tensors[4].shape == Shape{64});
  CHECK(layer.tensors[5].shape == Shape{32});
  CHECK(layer.tensors[7].shape == Shape{16});
  CHECK(layer.tensors[7].init == Init::ones);
  CHECK(layer.tensors[10].init == Init::zeros);
}

TEST_CASE("tensors lie back to back, names are unique and the sums agree") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const ModelSpec model = load_model(name);
    int64_t trained = 0;
    std::set<std::string> names;
    for (const ParameterUnit& unit : parameter_units(model)) {
      int64_t next = 0;
      for (const ParameterTensor& tensor : unit.tensors) {
        int64_t elements = 1;
        for (const int64_t extent : tensor.shape) elements *= extent;
        CHECK(tensor.offset == next);
        CHECK(tensor.elements == elements);
        CHECK(names.insert(tensor.name).second);
        const bool bias = tensor.name.ends_with("bias");
        CHECK(tensor.decays == (tensor.shape.size() >= 2 && !bias));
        next += elements;
        if (tensor.trained) trained += elements;
      }
      CHECK(unit.elements == next);
    }
    CHECK(trained == parameter_count(model));
  }
}

}  // namespace
}  // namespace longspan
