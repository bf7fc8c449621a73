// Layers that attend within spans run: with spans as long as a chunk, shorter, or longer than the
// sequence, in every order of the backward and on any mesh, with the numbers of the reference.
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

std::vector<ModelSpec> models_with_spans(int64_t span) {
  ModelSpec alike = small_qwen();
  alike.span = span;
  return {alike, in_spans(small_llama(), span), in_spans(small_gpt(), span),
          in_spans(small_mixtral(), span)};
}

}  // namespace

TEST_CASE("spans give the numbers of the reference", "[spans]") {
  int64_t turn = 0;
  for (const int64_t span : {2, 4, 8, 16, 64, 100}) {
    for (const ModelSpec& model : models_with_spans(span)) {
      for (const auto& [name, strategy] : strategies(16)) {
        if (!in_turn(turn++, 2)) continue;
        StepCase step;
        step.model = model;
        step.strategy = strategy;
        step.sequence = 64;
        step.microbatches = 1 + turn % 2;
        INFO(model.name << ", " << name << ", spans of " << span);
        if (span == 64) {  // the sequence
          CHECK(is_valid(strategy, model, 64));
        }
        check_against_reference(step, 1e-5);
      }
    }
  }
}

TEST_CASE("one chunk may end within a span", "[spans]") {
  for (const int64_t span : {5, 24, 47}) {
    for (const ModelSpec& model : models_with_spans(span)) {
      for (const auto& [name, strategy] : group_strategies(48)) {
        StepCase step;
        step.model = model;
        step.strategy = strategy;
        step.sequence = 48;
        INFO(model.name << ", " << name << ", spans of " << span);
        check_against_reference(step, 1e-5);
      }
    }
  }
}

TEST_CASE("spans go through slices and onto meshes of ranks", "[spans]") {
  int64_t turn = 0;
  for (const int64_t span : {4, 16}) {
    for (const ModelSpec& small : models_with_spans(span)) {
      for (const bool again : {false, true}) {
        if (again && !small.uniform()) continue;
        StepCase step;
        step.model = small;
        step.strategy = strategies(16).at(again ? "kept" : "away, q-outer");
        step.strategy.parallel.pipeline.slices = 2;
        if (again) step.strategy.layer_input = {Saved::recompute, 1};
        step.sequence = 64;
        INFO(step.model.name << ", slices, spans of " << span);
        check_against_reference(step, 1e-5);
      }
      const ModelSpec model = model_with_heads(small, 8, 4);
      for (const ParallelLayout& mesh : {ParallelLayout{.ulysses = 2}, ParallelLayout{.ring = 2},
                                         ParallelLayout{.ring = 2, .ulysses = 2, .zero = 3},
                                         ParallelLayout{.data = 2, .tensor = 2}}) {
        if (!in_turn(turn++, 2)) continue;
        StepCase step;
        step.model = model;
        step.strategy =
            mesh.tensor > 1 ? tensor_strategies(16, 64).at("kept") : strategies(16).at("kept");
        step.strategy.parallel = mesh;
        step.sequence = mesh.ring > 1 ? 128 : 64;
        step.threads = 1;
        INFO(model.name << ", " << describe(mesh) << ", spans of " << span);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("chunks that split spans are refused, and what does not go with spans", "[spans]") {
  const ModelSpec model = in_spans(small_llama(), 24);
  const Strategy s = strategies(16).at("kept");
  REQUIRE(violation_of(s, model, 64));
  CHECK_THAT(to_string(*violation_of(s, model, 64)), Catch::Contains("24 tokens"));
  CHECK(is_valid(s, in_spans(small_llama(), 8), 64));
  CHECK(is_valid(s, in_spans(small_llama(), 64), 64));
  ModelSpec both = model;
  both.runs[0].window = 3;
  CHECK_THROWS_WITH(validate(both, "test"), Catch::Contains("window"));
  both = model;
  both.documents = Documents(std::map<int64_t, int64_t>{{7, 1}});
  CHECK_THROWS_WITH(validate(both, "test"), Catch::Contains("documents"));
}

}  // namespace longspan::testing
