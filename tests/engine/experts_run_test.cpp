// Mixtures of experts run: on any mesh, in pipelines, slices and split backwards a step has the
// numbers of one rank, or of the reference, in exactly the predicted memory, whatever the routing.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "planner/strategy/validity.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

std::vector<ModelSpec> models_with_experts() {
  return {model_with_heads(small_mixtral(), 8, 2), model_with_heads(small_qwen_experts(), 8, 2),
          model_with_heads(small_glm(), 8, 2), model_with_heads(small_gpt_oss(), 8, 2)};
}

// The layers of a model, repeated until there are `layers`.
ModelSpec with_layers(ModelSpec model, int64_t layers) {
  std::vector<LayerRun> runs;
  int64_t left = layers;
  while (left > 0 && !model.uniform()) {
    for (LayerRun run : model.runs) {
      run.layers = std::min(left, run.layers);
      left -= run.layers;
      if (run.layers > 0) runs.push_back(run);
    }
  }
  model.layers = layers;
  model.runs = runs;
  return model;
}

}  // namespace

TEST_CASE("experts give the numbers of one rank on any mesh", "[experts]") {
  const std::vector<ModelSpec> models = models_with_experts();
  int64_t turn = 0;
  for (const ParallelLayout& mesh :
       {ParallelLayout{1, 1, 2}, ParallelLayout{1, 1, 4, 3}, ParallelLayout{1, 2, 1},
        ParallelLayout{1, 2, 2, 3}, ParallelLayout{2, 1, 1, 0}, ParallelLayout{2, 1, 1, 1},
        ParallelLayout{2, 1, 1, 2}, ParallelLayout{4, 1, 1, 3}, ParallelLayout{2, 1, 2, 2},
        ParallelLayout{1, 1, 2, 0, false}}) {
    const std::map<std::string, Strategy> plans = strategies(16);
    for (size_t i = 0; i < models.size(); ++i) {
      if (!in_turn(turn++, 2)) continue;
      auto plan = plans.begin();
      std::advance(plan, mesh.ring > 1 ? 2 : turn % 3);
      StepCase step;
      step.model = models[i];
      step.strategy = plan->second;
      step.strategy.parallel = mesh;
      step.sequence = mesh.ring > 1 ? 32 * mesh.ring : 64;
      if (mesh.ring > 1) step.strategy = plans.at("kept"), step.strategy.parallel = mesh;
      step.microbatches = 1 + turn % 2;
      step.threads = 1;
      if (turn / 2 % 2 == 0) step.model = balanced(step.model);
      INFO(step.model.name << ", " << describe(mesh) << ", " << plan->first);
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("a tensor group cuts experts", "[experts]") {
  const std::map<std::string, Strategy> plans = tensor_strategies(16, 64);
  int64_t turn = 0;
  for (const auto& [data, tensor, zero] :
       {std::array<int64_t, 3>{1, 2, 0}, {1, 4, 0}, {2, 2, 3}, {2, 2, 1}}) {
    for (const auto& [name, strategy] : plans) {
      StepCase step;
      const ModelSpec models[] = {small_mixtral(), small_qwen_experts(), small_glm()};
      step.model = model_with_heads(models[turn++ % 3], 8, 8);
      step.strategy = strategy;
      step.strategy.parallel = {.data = data, .zero = zero, .tensor = tensor};
      if (zero == 1) step.strategy.parameters = Tier::device;
      if (turn / 3 % 2 == 0) step.model = balanced(step.model);
      step.sequence = 64;
      step.threads = 1;
      INFO(step.model.name << ", " << describe(step.strategy.parallel) << ", " << name);
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("gradients of experts' weights may come later", "[experts]") {
  int64_t turn = 0;
  for (const ModelSpec& model : models_with_experts()) {
    for (const auto& [name, strategy] : strategies(16)) {
      StepCase step;
      step.model = model;
      step.strategy = strategy;
      step.sequence = 32;
      step.microbatches = 1 + turn % 2;
      if (turn++ % 3 == 1) step.strategy.mlp_tile = 5;
      step.splits_backward = true;
      INFO(step.model.name << ", " << name);
      check_against_reference(step, 1e-5);
    }
  }
}

TEST_CASE("pipelines and slices take experts", "[experts]") {
  struct Case {
    const char* schedule;
    int64_t stages, virtual_stages, microbatches, slices;
  };
  int64_t turn = 0;
  for (const Case& c :
       {Case{"1f1b", 2, 1, 3, 1}, Case{"gpipe", 4, 1, 4, 1}, Case{"interleaved-1f1b", 2, 2, 4, 1},
        Case{"zb-h1", 2, 1, 3, 1}, Case{"zb-v", 2, 2, 4, 1}, Case{"seq1f1b", 2, 1, 2, 2},
        Case{"v-half-vocab-1", 2, 2, 4, 1}, Case{"po-f", 2, 2, 4, 1}}) {
    for (const ParallelLayout& mesh :
         {ParallelLayout{}, ParallelLayout{1, 1, 2}, ParallelLayout{2, 1, 1, 3}}) {
      StepCase step;
      const std::vector<ModelSpec> models = models_with_experts();
      step.model = with_layers(models[turn % 4], c.stages * c.virtual_stages + turn % 2);
      ++turn;
      step.strategy = strategies(16).at("kept");
      step.strategy.parallel = mesh;
      step.strategy.parallel.pipeline = {c.stages, c.schedule, c.virtual_stages, c.slices};
      step.sequence = 16 * c.slices * 2;
      step.microbatches = c.microbatches;
      step.threads = 1;
      INFO(step.model.name << ", " << c.schedule << ", " << describe(mesh));
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("slices on one rank route again as before, and are balanced together", "[experts]") {
  for (const bool again : {false, true}) {
    std::vector<ModelSpec> models = models_with_experts();
    for (const ModelSpec& model : models_with_experts()) models.push_back(balanced(model));
    for (const ModelSpec& model : models) {
      if (again && !model.uniform()) continue;  // slices pass again through equal layers
      StepCase step;
      step.model = model;
      step.strategy = strategies(16).at("kept");
      step.strategy.parallel.pipeline.slices = 2;
      if (again) step.strategy.layer_input = {Saved::recompute, 1};
      step.sequence = 64;
      INFO(model.name << (again ? ", again" : ""));
      check_against_reference(step, 1e-5);
    }
  }
}

TEST_CASE("the auxiliary loss of a microbatch is that of all its layers and tokens", "[experts]") {
  for (const ModelSpec& plain :
       {small_mixtral(), small_qwen_experts(), small_gpt_oss(), in_windows(small_mixtral(), 9)}) {
    for (const auto& [name, strategy] : strategies(16)) {
      StepCase step;
      step.model = balanced(plain);
      step.strategy = strategy;
      step.strategy.mlp_tile = 7;
      step.sequence = 64;
      step.microbatches = 2;
      INFO(step.model.name << ", " << name);
      check_against_reference(step, 1e-5);
      // Its least is one active expert times the factor, as no load is more even than even.
      const double loss = run_step(step).loss;
      const auto active = static_cast<double>(step.model.experts->active);
      step.model.experts->auxiliary_loss = 0;
      const double tokens = run_step(step).loss;
      CHECK(loss > tokens + 0.7 * 0.5 * active);
      CHECK(loss < tokens + 0.7 * static_cast<double>(step.model.experts->count));
      // Frozen routers pass its gradients on, to adapters before them.
      step.model = balanced(adapted(plain, 3));
      check_against_reference(step, 1e-5);
    }
  }
}

TEST_CASE("an auxiliary loss is refused where it would be another", "[experts]") {
  const ModelSpec model = balanced(model_with_heads(small_mixtral(), 8, 2));
  Strategy s = strategies(16).at("kept");
  s.parallel.pipeline = {2, "1f1b"};
  REQUIRE(violation_of(s, model, 64));
  CHECK_THAT(to_string(*violation_of(s, model, 64)), Catch::Contains("auxiliary loss"));
  s.parallel.pipeline = {};
  CHECK(is_valid(s, model, 64));
  ModelSpec sigmoid = small_glm();
  sigmoid.experts->auxiliary_loss = 0.1;
  CHECK_THROWS_WITH(validate(sigmoid, "test"), Catch::Contains("softmax"));
}

// Rows that all go to the same experts, or are spread as far as they can be, need the same memory.
TEST_CASE("memory does not depend on the routing", "[experts]") {
  for (ModelSpec model : {small_mixtral(), small_glm()}) {
    for (const auto& [name, strategy] : strategies(16)) {
      StepCase step;
      step.model = model;
      step.strategy = strategy;
      step.sequence = 64;
      INFO(model.name << ", " << name);
      const StepOutcome spread = run_step(step);
      // A router of zeros sends every row to the first experts.
      step.equal_scores = true;
      const StepOutcome same = run_step(step);
      CHECK(same.loss != spread.loss);
      CHECK(same.arena_bytes == spread.arena_bytes);
      CHECK(same.high_water_bytes == same.arena_bytes);
      CHECK(spread.high_water_bytes == spread.arena_bytes);
      check_against_reference(step, 1e-5);
    }
  }
}

}  // namespace longspan::testing
