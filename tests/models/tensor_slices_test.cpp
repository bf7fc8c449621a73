#include "models/tensor_slices.h"

#include <catch2/catch.hpp>
#include <vector>

#include "models/catalog.h"

namespace longspan {
namespace {

ModelSpec model_of(bool gpt) {
  ModelSpec m;
  m.name = "sliced";
  m.layers = 2;
  m.hidden = 12;
  m.heads = m.kv_heads = 4;
  m.head_dim = 4;
  m.ffn = 20;
  m.vocab = 30;
  m.max_positions = 16;
  m.qkv_bias = m.attention_out_bias = true;
  if (gpt) {
    m.norm = Norm::layernorm;
    m.activation = Activation::gelu;
    m.positions = Positions::learned;
    m.mlp_bias = true;
  } else {
    m.heads = 8;
    m.qk_norm = true;
  }
  return m;
}

// The slice of rank `index` of a unit whose elements are numbered in order.
std::vector<int64_t> slice(const ModelSpec& model, const ParameterUnit& unit, int64_t degree,
                           int64_t index) {
  std::vector<int64_t> values;
  for (const SliceRun& run : slice_runs(model, unit, degree, index)) {
    REQUIRE(run.narrow == static_cast<int64_t>(values.size()));
    for (int64_t i = 0; i < run.count; ++i) values.push_back(run.whole + i);
  }
  return values;
}

const ParameterTensor& tensor_named(const ParameterUnit& unit, const std::string& part) {
  for (const ParameterTensor& tensor : unit.tensors) {
    if (tensor.name.find(part) != std::string::npos) return tensor;
  }
  FAIL("no tensor " << part);
  return unit.tensors.front();
}

}  // namespace

TEST_CASE("slices have the narrow model's extent and cover the whole unit") {
  for (const bool gpt : {true, false}) {
    const ModelSpec model = model_of(gpt);
    for (const int64_t degree : {1, 2, 4}) {
      const std::vector<ParameterUnit> whole = parameter_units(model);
      const std::vector<ParameterUnit> narrow = parameter_units(narrow_model(model, degree));
      for (size_t unit = 0; unit < whole.size(); ++unit) {
        INFO((gpt ? "gpt" : "llama") << " degree " << degree << " unit " << unit);
        std::vector<int64_t> holders(whole[unit].elements);
        std::vector<bool> replicated(whole[unit].elements);
        for (int64_t index = 0; index < degree; ++index) {
          int64_t count = 0;
          for (const SliceRun& run : slice_runs(model, whole[unit], degree, index)) {
            CHECK(run.narrow == count);
            count += run.count;
            REQUIRE(run.whole >= 0);
            REQUIRE(run.whole + run.count <= whole[unit].elements);
            for (int64_t i = run.whole; i < run.whole + run.count; ++i) {
              ++holders[i];
              replicated[i] = run.replicated;
            }
          }
          CHECK(count == narrow[unit].elements);
        }
        for (size_t i = 0; i < holders.size(); ++i) {
          REQUIRE(holders[i] == (replicated[i] ? degree : 1));
        }
      }
    }
  }
}

TEST_CASE("heads and inner rows go to the rank they belong to") {
  const ModelSpec model = model_of(true);
  const ParameterUnit whole = parameter_units(model)[1];
  const ParameterUnit narrow = parameter_units(narrow_model(model, 2))[1];
  const std::vector<int64_t> second = slice(model, whole, 2, 1);
  const auto at = [&](const std::string& part, int64_t row, int64_t column) {
    const ParameterTensor& t = tensor_named(narrow, part);
    return second[t.offset + (t.shape.size() > 1 ? row * t.shape[1] : row) + column];
  };
  const auto from = [&](const std::string& part, int64_t row, int64_t column) {
    const ParameterTensor& t = tensor_named(whole, part);
    return t.offset + (t.shape.size() > 1 ? row * t.shape[1] : row) + column;
  };
  // Joint q, k, v of 16 rows each, of which rank 1 has the last 8.
  CHECK(at("c_attn.weight", 0, 3) == from("c_attn.weight", 8, 3));
  CHECK(at("c_attn.weight", 7, 3) == from("c_attn.weight", 15, 3));
  CHECK(at("c_attn.weight", 8, 0) == from("c_attn.weight", 24, 0));
  CHECK(at("c_attn.weight", 23, 11) == from("c_attn.weight", 47, 11));
  CHECK(at("c_attn.bias", 16, 0) == from("c_attn.bias", 40, 0));
  CHECK(at("attn.c_proj.weight", 5, 0) == from("attn.c_proj.weight", 5, 8));
  CHECK(at("attn.c_proj.bias", 5, 0) == from("attn.c_proj.bias", 5, 0));
  CHECK(at("c_fc.weight", 0, 1) == from("c_fc.weight", 10, 1));
  CHECK(at("c_fc.bias", 9, 0) == from("c_fc.bias", 19, 0));
  CHECK(at("mlp.c_proj.weight", 11, 9) == from("mlp.c_proj.weight", 11, 19));
  CHECK(at("ln_2.weight", 4, 0) == from("ln_2.weight", 4, 0));
}

TEST_CASE("the replicated ranges of a layer are those of its runs") {
  for (const char* name : {"tiny-gpt", "tiny-llama", "qwen3-0.6b"}) {
    const ModelSpec model = load_model(name);
    const ParameterUnit layer = parameter_units(model)[1];
    std::vector<UnitRange> expected;
    for (const SliceRun& run : slice_runs(model, layer, 2, 1)) {
      if (!run.replicated) continue;
      if (!expected.empty() && expected.back().end == run.narrow) {
        expected.back().end += run.count;
      } else {
        expected.push_back({run.narrow, run.narrow + run.count});
      }
    }
    INFO(name);
    CHECK(replicated_in_layer(model, 2) == expected);
  }
}

TEST_CASE("every expert is cut like an MLP, and the router is replicated") {
  ModelSpec model = model_of(false);
  model.experts = Experts{.count = 3, .active = 2, .ffn = 4, .shared_ffn = 8, .shared_gate = true};
  const std::vector<ParameterUnit> whole = parameter_units(model);
  const std::vector<ParameterUnit> narrow = parameter_units(narrow_model(model, 2));
  REQUIRE(whole.size() == 6);
  for (const size_t unit : {1, 4}) {
    INFO("unit " << unit);
    std::vector<int> times(whole[unit].elements);
    for (const int64_t index : {0, 1}) {
      const std::vector<int64_t> own = slice(model, whole[unit], 2, index);
      CHECK(static_cast<int64_t>(own.size()) == narrow[unit].elements);
      for (const int64_t i : own) ++times[i];
    }
    int64_t replicated = 0;
    for (const int n : times) {
      REQUIRE(n >= 1);
      replicated += n == 2 ? 1 : 0;
    }
    int64_t expected = 0;
    for (const UnitRange& range :
         replicated_in_layer(model_of_run(model, layer_runs(model)[0]), 2)) {
      expected += range.end - range.begin;
    }
    CHECK(replicated == (unit == 1 ? expected : 0));
  }
  // Rank 1 has rows 2 and 3 of expert 1's gate and up, and columns 2 and 3 of its down.
  const std::vector<int64_t> own = slice(model, whole[4], 2, 1);
  const ParameterTensor &up = whole[4].tensors[0], &down = whole[4].tensors[1];
  const ParameterTensor &own_up = narrow[4].tensors[0], &own_down = narrow[4].tensors[1];
  const int64_t d = model.hidden;
  for (const int64_t part : {0, 1}) {
    CHECK(own[own_up.offset + (1 * 4 + part * 2) * d] == up.offset + (1 * 8 + part * 4 + 2) * d);
  }
  CHECK(own[own_down.offset + (1 * d + 5) * 2] == down.offset + (1 * d + 5) * 4 + 2);
}

}  // namespace longspan
