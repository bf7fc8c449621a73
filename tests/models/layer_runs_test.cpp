// Models whose layers differ: runs, kinds, fusing, and their parameters and FLOPs.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/yaml.h"
#include "models/catalog.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

ModelSpec with_runs(std::vector<LayerRun> runs) {
  ModelSpec model = load_model("llama-3.1-8b");
  model.layers = 0;
  for (const LayerRun& run : runs) model.layers += run.layers;
  model.runs = std::move(runs);
  return model;
}

ModelSpec parsed(const std::string& text) { return read_model(YamlMap::parse(text, "model.yaml")); }

std::string text_of(const ModelSpec& model) {
  YAML::Emitter out;
  write_model(out, model);
  return out.c_str();
}

TEST_CASE("runs that are all plain are the model itself") {
  const ModelSpec plain = load_model("llama-3.1-8b");
  const ModelSpec cut = with_runs({{5, true, plain.ffn, 1}, {27, true, plain.ffn, 1}});
  CHECK_NOTHROW(validate(cut, "test"));
  CHECK(parameter_count(cut) == parameter_count(plain));
  CHECK(parameter_units(cut).size() == parameter_units(plain).size());
  for (const int64_t sequence : {1, 4096, 1 << 20}) {
    const ModelFlops a = model_flops(cut, sequence), b = model_flops(plain, sequence);
    CHECK(a.dense_forward == Approx(b.dense_forward).epsilon(1e-12));
    CHECK(a.attention_forward == Approx(b.attention_forward).epsilon(1e-12));
  }
  REQUIRE(layer_kinds(cut).size() == 1);
  CHECK(layer_kinds(cut)[0].layers == 32);
}

TEST_CASE("fused layers do the same products in fewer steps") {
  // Two runs without attention in a row are fused into one; the last layer stays as it is.
  const std::vector<LayerRun> fused =
      fuse({{3, true, 100, 1}, {2, false, 100, 1}, {3, false, 70, 1}, {1, true, 100, 1}});
  const std::vector<LayerRun> expected = {
      {3, true, 100, 1}, {1, false, 2 * 100 + 2 * 70, 1}, {1, false, 70, 1}, {1, true, 100, 1}};
  CHECK(fused == expected);
  // A single run is unchanged; runs on different tokens are not fused.
  CHECK(fuse({{1, false, 100, 1}}) == std::vector<LayerRun>{{1, false, 100, 1}});
  CHECK(fuse({{1, false, 9, 1}, {1, false, 9, 0.5}}).size() == 2);

  const int64_t ffn = load_model("llama-3.1-8b").ffn;
  const std::vector<LayerRun> runs = {{12, true, ffn, 1}, {8, false, ffn, 1}, {12, true, ffn, 1}};
  const ModelSpec before = with_runs(runs), after = with_runs(fuse(runs));
  CHECK(after.layers == 26);
  CHECK(model_flops(after, 8192).step() == Approx(model_flops(before, 8192).step()).epsilon(1e-12));
  // Six layers have lost their norm.
  CHECK(parameter_count(before) - parameter_count(after) == 6 * before.hidden);
}

TEST_CASE("a layer without attention has a norm and the MLP") {
  const ModelSpec model = with_runs({{1, true, 14336, 1}, {1, false, 28672, 1}});
  const std::vector<ParameterUnit> units = parameter_units(model);
  REQUIRE(units.size() == 4);
  CHECK(units[2].layer == 1);
  CHECK(units[2].elements == 4096 + 3 * 4096 * 28672);
  REQUIRE(units[2].tensors.size() == 4);
  CHECK(units[2].tensors[0].name == "model.layers.1.post_attention_layernorm.weight");
  int64_t sum = 0;
  for (const ParameterUnit& unit : units) sum += unit.elements;
  CHECK(parameter_count(model) == sum);
}

TEST_CASE("fewer tokens are less work, attention's by the square") {
  const int64_t ffn = 14336;
  const ModelSpec full = with_runs({{1, true, ffn, 1}, {2, true, ffn, 1}, {1, true, ffn, 1}});
  const ModelSpec half = with_runs({{1, true, ffn, 1}, {2, true, ffn, 0.5}, {1, true, ffn, 1}});
  CHECK(parameter_count(full) == parameter_count(half));
  const int64_t sequence = 1 << 16;
  const ModelFlops a = model_flops(full, sequence), b = model_flops(half, sequence);
  CHECK(b.attention_forward / a.attention_forward == Approx((2 + 2 * 0.25) / 4).epsilon(1e-4));
  CHECK(b.dense_forward < a.dense_forward);
  CHECK(run_of_layer(half, 0).tokens == 1);
  CHECK(run_of_layer(half, 2).tokens == 0.5);
  CHECK(run_of_layer(half, 3).tokens == 1);
}

TEST_CASE("a run's tokens are whole multiples, and never none") {
  const LayerRun run{1, true, 1, 0.7};
  CHECK(tokens_of_run(run, 1000) == 700);
  CHECK(tokens_of_run(run, 1000, 64) == 640);
  CHECK(tokens_of_run(run, 64, 64) == 64);
  CHECK(tokens_of_run({1, true, 1, 1}, 1000, 10) == 1000);
}

TEST_CASE("what passes a run by is what those around it worked on") {
  const auto run = [](double tokens) { return LayerRun{1, true, 1, tokens}; };
  const std::vector<double> nested =
      passing_shares({run(1), run(0.5), run(0.25), run(0.5), run(1)});
  CHECK(nested == std::vector<double>{0, 1, 1.5, 1, 0});
  // One run grows by half a step: the other tokens continue to bypass.
  CHECK(passing_shares({run(1), run(0.25), run(0.5), run(1)}) == std::vector<double>{0, 1, 1, 0});
}

TEST_CASE("shares are selected from what is there, and rejoin it") {
  CHECK(shares_in({1}, 0.5) == TokenShares{1, 0.5});
  CHECK(shares_in({1, 0.5}, 0.25) == TokenShares{1, 0.5, 0.25});
  CHECK(shares_in({1, 0.5, 0.25}, 0.5) == TokenShares{1, 0.5});
  CHECK(shares_in({1, 0.25}, 0.5) == TokenShares{1, 0.5});
  CHECK(shares_in({1, 0.5, 0.25}, 1) == TokenShares{1});

  ModelSpec model = load_model("tiny-llama");
  const auto run = [&](int64_t layers, double tokens) {
    return LayerRun{layers, true, model.ffn, tokens};
  };
  model.runs = {run(1, 1), run(2, 0.25), run(1, 0.5), run(1, 1)};
  model.layers = 5;
  const std::vector<TokenShares> before = {{1}, {1}, {1, 0.25}, {1}, {1}, {1}};
  for (int64_t layer = 0; layer <= 5; ++layer) {
    INFO("layer " << layer);
    CHECK(shares_before(model, layer) == before[static_cast<size_t>(layer)]);
  }
  CHECK(runs_between(model, 2, 5) == std::vector<LayerRun>{run(1, 0.25), run(1, 0.5), run(1, 1)});
  CHECK(runs_between(model, 0, 2) == std::vector<LayerRun>{run(1, 1), run(1, 0.25)});
}

TEST_CASE("runs are read, fused, written and read again") {
  const std::string head = [] {
    ModelSpec model = load_model("tiny-llama");
    model.layers = 9;
    return text_of(model);
  }();
  const ModelSpec model = parsed(head +
                                 "\nruns:\n  - {layers: 3}\n  - {layers: 4, attention: false, "
                                 "fused: true}\n  - {layers: 1, tokens: 0.5, ffn: 64}\n"
                                 "  - {layers: 1}\n");
  const std::vector<LayerRun> expected = {{3, true, 176, 1},
                                          {1, false, 3 * 176, 1},
                                          {1, false, 176, 1},
                                          {1, true, 64, 0.5},
                                          {1, true, 176, 1}};
  CHECK(model.runs == expected);
  CHECK(model.layers == 7);
  CHECK(parsed(text_of(model)) == model);

  const auto refused = [&](const std::string& runs, const std::string& says) {
    CHECK_THROWS_WITH(parsed(head + "\nruns:\n" + runs), Contains(says));
  };
  refused("  - {layers: 8}\n", "expected 9 layers in all");
  refused("  - {layers: 9, fused: true}\n", "only layers without attention can be fused");
  refused("  - {layers: 9, tokens: 1.5}\n", "tokens");
  refused("  - {layers: 1, tokens: 0.5}\n  - {layers: 8}\n", "work on all tokens");
  refused("  - {layers: 9, attend: false}\n", "attend");
  refused("  - {layers: 99}\n", "layers");
}

}  // namespace
}  // namespace longspan
