// Models whose layers come in runs of several kinds: loss and gradients are those of a reference
// that works on whole matrices in double precision, on one rank and on any number, with exactly the
// predicted memory and messages.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "planner/program/layer_kinds.h"
#include "planner/schedule/registry.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

using Catch::Matchers::Contains;

// Single precision over a few hundred terms.
constexpr double kReferenceTolerance = 1e-5;

// The last two norm the outputs of layers.
constexpr int64_t kModels = 5;
ModelSpec model_in_turn(int64_t turn, int64_t variant, int64_t of = kModels) {
  const ModelSpec models[kModels] = {
      model_with_heads(small_gpt(), 8, 8), model_with_heads(small_llama(), 8, 2),
      model_with_heads(small_qwen(), 8, 2), model_with_heads(small_gemma(), 8, 2),
      model_with_heads(small_olmo(), 8, 2)};
  return in_runs(models[turn % of], variant);
}

StepCase step_of(int64_t variant, int64_t turn, const Strategy& strategy,
                 const ParallelLayout& parallel, int64_t sequence) {
  StepCase step;
  step.model = model_in_turn(turn, variant);
  step.strategy = strategy;
  step.strategy.parallel = parallel;
  step.sequence = sequence;
  step.microbatches = 1 + turn % 2;
  step.threads = 1;
  return step;
}

}  // namespace

TEST_CASE("runs of layers give the numbers of the reference", "[runs]") {
  int64_t turn = 0;
  for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
    std::map<std::string, Strategy> plans = strategies(16);
    plans["whole"].chunk_tokens = plans["whole"].block_tokens = 96;
    plans["tiled, stored"] = tensor_strategies(16, 96).at("tiled, stored");
    for (const auto& [name, strategy] : plans) {
      for (int64_t model = 0; model < kModels; ++model) {
        const StepCase step = step_of(variant, turn++ % 2 + 2 * model, strategy, {}, 96);
        INFO(step.model.name << ", " << name);
        check_against_reference(step, kReferenceTolerance);
      }
    }
  }
}

TEST_CASE("runs of layers in random plans give the numbers of the reference", "[runs][property]") {
  const auto seeds = static_cast<uint64_t>(cases(24, 80));
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    StepCase step = random_case(seed);
    step.model.micro_batch = 1;
    const ModelSpec uniform = step.model;
    step.model = in_runs(uniform, static_cast<int64_t>(seed) % kLayerVariants);
    if (!divides_shares(step.model, step.strategy, step.sequence)) {
      step.model = in_runs(uniform, static_cast<int64_t>(seed) % 2);
    }
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    check_against_reference(step, kReferenceTolerance);
  }
}

TEST_CASE("gradients of weights of runs may come later", "[runs]") {
  int64_t turn = 0;
  for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
    for (const auto& [name, strategy] : strategies(16)) {
      StepCase step = step_of(variant, turn, strategy, {}, 32);
      step.model = model_in_turn(turn++, variant, kModels - 2);
      step.splits_backward = true;
      INFO(step.model.name << ", " << name);
      check_against_reference(step, kReferenceTolerance);
    }
  }
}

TEST_CASE("shares of the tokens other than powers of two", "[runs]") {
  for (const double share : {1.0 / 3, 2.0 / 3, 0.75, 0.4}) {
    for (const auto& [name, strategy] : strategies(60)) {
      StepCase step;
      step.model = small_llama();
      const int64_t f = step.model.ffn;
      step.model.runs = {{1, true, f, 1}, {1, true, f, share}, {1, true, f, 1}};
      step.strategy = strategy;
      step.sequence = 120;
      INFO(share << ", " << name);
      check_against_reference(step, kReferenceTolerance);
    }
  }
}

TEST_CASE("runs of layers give the numbers of one rank on any mesh", "[runs]") {
  int64_t turn = 0;
  for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
    for (const ParallelLayout& mesh :
         {ParallelLayout{1, 1, 2}, ParallelLayout{1, 1, 4, 3}, ParallelLayout{1, 2, 1},
          ParallelLayout{1, 4, 1}, ParallelLayout{1, 2, 2, 3}, ParallelLayout{2, 1, 1, 1},
          ParallelLayout{2, 1, 1, 2}, ParallelLayout{4, 1, 1, 3}, ParallelLayout{2, 1, 2, 2},
          ParallelLayout{1, 1, 2, 0, false}}) {
      const std::map<std::string, Strategy> plans = strategies(16);
      auto plan = plans.begin();
      std::advance(plan, mesh.ring > 1 ? 2 : turn % 3);
      StepCase step =
          step_of(variant, turn++, plan->second, mesh, mesh.ring > 1 ? 32 * mesh.ring : 64);
      INFO(step.model.name << ", " << describe(mesh) << ", " << plan->first);
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("a tensor group takes runs of layers", "[runs]") {
  const std::map<std::string, Strategy> plans = tensor_strategies(16, 64);
  int64_t turn = 0;
  for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
    for (const auto& [data, tensor, zero] :
         {std::array<int64_t, 3>{1, 2, 0}, {1, 4, 0}, {2, 2, 3}, {2, 2, 1}}) {
      for (const auto& [name, strategy] : plans) {
        if (!in_turn(turn++, 2)) continue;
        StepCase step = step_of(variant, turn, strategy, {}, 64);
        step.model = in_runs(model_with_heads(turn % 3 == 0   ? small_gpt()
                                              : turn % 3 == 1 ? small_llama()
                                                              : small_gemma(),
                                              8, 8),
                             variant);
        step.strategy.parallel = {.data = data, .zero = zero, .tensor = tensor};
        if (zero == 1) step.strategy.parameters = Tier::device;
        INFO(step.model.name << ", " << describe(step.strategy.parallel) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("groups of heads take runs of layers", "[runs]") {
  int64_t turn = 0;
  for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
    for (const int64_t ulysses : {1, 2}) {
      for (const auto& [name, strategy] : group_strategies(16)) {
        StepCase step = step_of(variant, turn, strategy, {1, 1, ulysses}, 16);
        step.model = model_in_turn(3 * (turn++ % 2), variant);
        step.strategy.head_groups = 2;
        INFO(step.model.name << ", " << describe(step.strategy.parallel) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("pipelines are cut within and between runs of layers", "[runs]") {
  struct Case {
    const char* schedule;
    int64_t stages, virtual_stages, microbatches, slices = 1;
    bool equal_work = false;
  };
  int64_t turn = 0;
  for (const Case& c :
       {Case{"1f1b", 2, 1, 3}, Case{"1f1b", 4, 1, 4}, Case{"zb-v", 2, 2, 4},
        Case{"interleaved-1f1b", 2, 2, 4}, Case{"zb-h1", 4, 1, 5}, Case{"dualpipe-v", 2, 2, 4},
        Case{"seq1f1b", 2, 1, 2, 2}, Case{"seq1f1b", 4, 1, 2, 4, true}}) {
    for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
      for (const ParallelLayout& mesh :
           {ParallelLayout{}, ParallelLayout{1, 1, 2}, ParallelLayout{1, 2, 1},
            ParallelLayout{.tensor = 2}, ParallelLayout{2, 1, 1, 2}}) {
        if (c.slices > 1 && mesh.ring > 1) continue;
        if (!in_turn(turn++, 2)) continue;
        const std::map<std::string, Strategy> plans = strategies(16);
        auto plan = plans.begin();
        // Slices take no kv-outer order, which comes first.
        std::advance(plan, mesh.ring > 1 ? 2 : c.slices > 1 ? 1 + turn % 2 : turn % 3);
        const int64_t sequence = c.slices > 1    ? 16 * c.slices * (c.equal_work ? 3 : 1)
                                 : mesh.ring > 1 ? 64
                                                 : 32;
        StepCase step = step_of(variant, turn, plan->second, mesh, sequence);
        if (schedule_family(c.schedule).splits_backward) {
          step.model = model_in_turn(turn, variant, kModels - 2);
        }
        if (mesh.tensor > 1) step.model = in_runs(model_with_heads(small_gpt(), 8, 8), variant);
        step.microbatches = c.microbatches;
        step.strategy.parallel.pipeline = {c.stages, c.schedule, c.virtual_stages, c.slices,
                                           c.equal_work};
        INFO(step.model.name << ", " << describe(step.strategy.parallel) << ", " << plan->first);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("one rank passes slices through runs of layers", "[runs]") {
  int64_t turn = 0;
  for (int64_t variant = 0; variant < kLayerVariants; ++variant) {
    for (const auto& [name, strategy] : strategies(16)) {
      if (strategy.backward_order == BackwardOrder::kv_outer) continue;
      StepCase step = step_of(variant, turn++, strategy, {}, 128);
      step.strategy.parallel.pipeline = {.slices = 4};
      INFO(step.model.name << ", " << name);
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("any legal order of the ops of runs gives the same bits", "[runs]") {
  for (const auto& [name, strategy] : strategies(16)) {
    StepCase step = step_of(kLayerVariants - 1, 1, strategy, {}, 64);
    const StepOutcome in_order = run_step(step);
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      step.random_order = seed;
      const StepOutcome other = run_step(step);
      INFO(name << ", seed " << seed);
      CHECK(other.gradients == in_order.gradients);
      CHECK(other.parameters == in_order.parameters);
    }
  }
}

TEST_CASE("shares that do not divide are refused in one line", "[runs]") {
  StepCase step;
  step.model = small_llama();
  const int64_t f = step.model.ffn;
  step.model.runs = {{1, true, f, 1}, {1, true, f, 0.3}, {1, true, f, 1}};
  step.strategy.chunk_tokens = step.strategy.block_tokens = step.sequence = 32;
  CHECK_FALSE(divides_shares(step.model, step.strategy, step.sequence));
  CHECK_THROWS_WITH(program_of(step, 0), Contains("multiples of 10 tokens"));
  step.model.layers = 5;
  step.model.runs = {{1, true, f, 1},
                     {1, true, f, 0.75},
                     {1, true, f, 0.625},
                     {1, true, f, 0.75},
                     {1, true, f, 1}};
  CHECK_FALSE(divides_shares(step.model, step.strategy, step.sequence));
  CHECK_THROWS_WITH(program_of(step, 0), Contains("not among the 0.75"));
}

}  // namespace longspan::testing
