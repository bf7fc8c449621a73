// Experts on several ranks: on any mesh, in pipelines, slices and split backwards a step has the
// numbers of one rank, in exactly the predicted memory, whatever the routing.
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/comm/local.h"
#include "planner/program/expert_tiles.h"
#include "planner/strategy/validity.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

ModelSpec with_experts(ModelSpec model, int64_t count) {
  model.experts->count = count;
  return model_with_heads(std::move(model), 8, 2);
}

std::vector<ModelSpec> models() {
  return {with_experts(small_mixtral(), 8), with_experts(small_qwen_experts(), 8),
          with_experts(small_glm(), 8), with_experts(small_gpt_oss(), 4)};
}

// The plans of other tests, with inner activations computed again.
std::map<std::string, Strategy> plans() {
  std::map<std::string, Strategy> all = strategies(16);
  for (auto& [name, strategy] : all) strategy.mlp_inner = {Saved::recompute};
  return all;
}

StepCase case_of(const ModelSpec& model, const Strategy& strategy, const ParallelLayout& mesh) {
  StepCase step;
  step.model = model;
  step.strategy = strategy;
  step.strategy.parallel = mesh;
  step.sequence = mesh.ring > 1 ? 32 * mesh.ring : 64;
  step.threads = 1;
  return step;
}

ModelSpec layers_in_turn(ModelSpec model, int64_t layers) {
  const std::vector<LayerRun> runs = model.runs;
  model.runs.clear();
  for (int64_t layer = 0; layer < layers && !runs.empty(); ++layer) {
    model.runs.push_back(runs[layer % runs.size()]);
    model.runs.back().layers = 1;
  }
  model.layers = layers;
  return model;
}

}  // namespace

TEST_CASE("experts on several ranks give the numbers of one", "[experts]") {
  int64_t turn = 0;
  const std::array<int64_t, 4> tiles{0, 5, 8, 3};
  for (const ParallelLayout& mesh :
       {ParallelLayout{.ulysses = 2, .expert = 2}, ParallelLayout{.ulysses = 4, .expert = 4},
        ParallelLayout{.ulysses = 4, .zero = 3, .expert = 2},
        ParallelLayout{.ring = 2, .expert = 2},
        ParallelLayout{.ring = 2, .ulysses = 2, .zero = 2, .expert = 4},
        ParallelLayout{.data = 2, .expert = 2}, ParallelLayout{.data = 4, .zero = 1, .expert = 2},
        ParallelLayout{.data = 4, .zero = 2, .expert = 2},
        ParallelLayout{.data = 4, .zero = 3, .expert = 4},
        ParallelLayout{.data = 2, .ulysses = 2, .zero = 1, .expert = 4},
        ParallelLayout{.data = 2, .ulysses = 2, .expert = 2},
        ParallelLayout{.ulysses = 2, .overlap = false, .expert = 2}}) {
    for (const ModelSpec& model : models()) {
      if (!in_turn(turn++, 2)) continue;
      const std::map<std::string, Strategy> all = plans();
      auto plan = all.begin();
      std::advance(plan, mesh.ring > 1 ? 2 : turn % 3);
      StepCase step = case_of(model, plan->second, mesh);
      if (mesh.zero > 0 && mesh.zero < 3) step.strategy.parameters = Tier::device;
      step.strategy.mlp_tile = tiles[turn % 4];
      step.microbatches = 1 + turn % 2;
      step.strategy.early_update = turn % 5 == 0;
      if (turn / 2 % 2 == 0) step.model = balanced(step.model);
      INFO(step.model.name << ", " << describe(mesh) << ", " << plan->first << ", tile "
                           << step.strategy.mlp_tile);
      validate(step.strategy, step.model, step.sequence, "test");
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("experts on several ranks are cut by a tensor group", "[experts]") {
  int64_t turn = 0;
  for (const int64_t zero : {0, 1, 2, 3}) {
    for (auto& [name, strategy] : tensor_strategies(16, 64)) {
      const ModelSpec all[] = {small_mixtral(), small_qwen_experts(), small_glm()};
      ModelSpec model = model_with_heads(all[turn++ % 3], 8, 8);
      model.experts->count = 4;
      model.experts->groups = model.experts->active_groups = 1;
      StepCase step = case_of(model, strategy, {.data = 2, .zero = zero, .tensor = 2, .expert = 2});
      step.strategy.mlp_inner = {Saved::recompute};
      if (zero == 1 || zero == 2) step.strategy.parameters = Tier::device;
      if (turn / 3 % 2 == 0) step.model = balanced(step.model);
      INFO(step.model.name << ", " << describe(step.strategy.parallel) << ", " << name);
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("experts on several ranks go through pipelines and slices", "[experts]") {
  struct Case {
    const char* schedule;
    int64_t stages, virtual_stages, microbatches, slices;
  };
  int64_t turn = 0;
  for (const Case& c :
       {Case{"1f1b", 2, 1, 3, 1}, Case{"interleaved-1f1b", 2, 2, 4, 1}, Case{"zb-h1", 2, 1, 3, 1},
        Case{"zb-v", 2, 2, 4, 1}, Case{"seq1f1b", 2, 1, 2, 2}, Case{"v-half-vocab-1", 2, 2, 4, 1},
        Case{"po-f", 2, 2, 4, 1}}) {
    for (const ParallelLayout& mesh :
         {ParallelLayout{.ulysses = 2, .expert = 2}, ParallelLayout{.data = 2, .expert = 2},
          ParallelLayout{.data = 2, .zero = 1, .expert = 2}}) {
      if (!in_turn(turn++, 2)) continue;
      StepCase step = case_of(layers_in_turn(models()[turn % 4], c.stages * c.virtual_stages),
                              plans().at("kept"), mesh);
      step.strategy.parallel.pipeline = {c.stages, c.schedule, c.virtual_stages, c.slices};
      step.strategy.mlp_tile = 12;
      step.sequence = 16 * c.slices * 2;
      step.microbatches = c.microbatches;
      INFO(step.model.name << ", " << c.schedule << ", " << describe(mesh));
      check_against_one_rank(step);
    }
  }
}

// Rows that all go to one rank need the same memory as others.
TEST_CASE("memory of experts on several ranks does not depend on the routing", "[experts]") {
  for (const ModelSpec& model : models()) {
    for (const int64_t expert : {2, 4}) {
      for (const int64_t tile : {0, 6}) {
        StepCase step = case_of(model, plans().at("away, q-outer"),
                                {.ulysses = 4, .zero = 1, .expert = expert});
        step.strategy.parameters = Tier::device;
        step.strategy.mlp_tile = tile;
        INFO(model.name << ", expert " << expert << ", tile " << tile);
        const WorldOutcome spread = run_world(step);
        // A router of zeros sends every row to the first experts.
        step.equal_scores = true;
        check_against_one_rank(step);
        const WorldOutcome same = run_world(step);
        CHECK(same.ranks[0].loss != spread.ranks[0].loss);
        for (size_t rank = 0; rank < same.ranks.size(); ++rank) {
          CHECK(same.ranks[rank].arena_bytes == spread.ranks[rank].arena_bytes);
          CHECK(same.ranks[rank].high_water_bytes == same.ranks[rank].arena_bytes);
          CHECK(spread.ranks[rank].high_water_bytes == spread.ranks[rank].arena_bytes);
        }
      }
    }
  }
}

TEST_CASE("a step with more rows than the stated capacity fails on all ranks", "[experts]") {
  for (const ModelSpec& model : models()) {
    StepCase step = case_of(model, plans().at("kept"), {.ulysses = 2, .expert = 2});
    step.strategy.mlp_tile = 8;
    step.strategy.parallel.expert_capacity = 130;
    step.equal_scores = true;
    INFO(model.name);
    const Lengths lengths = lengths_of(step.strategy, step.sequence);
    const int64_t rows = most_received_rows(*model.experts, step.strategy, lengths);
    CHECK(rows == (8 * model.experts->active * 130 + 99) / 100);
    int updates = 0;
    step.before_op = [&](int, const Op& op) { updates += op.kind == OpKind::adamw ? 1 : 0; };
    CHECK_THROWS_WITH(run_world(step),
                      Catch::Contains("and the plan has memory for " + std::to_string(rows)));
    CHECK(updates == 0);
    // The worst case is as many rows as there can be: no capacity above it needs more memory.
    step.strategy.parallel.expert_capacity = 100 * step.strategy.parallel.expert;
    check_against_one_rank(step);
  }
}

}  // namespace longspan::testing
