// Pipelines run: on any number of stages, under any schedule, within any mesh of a stage, a step
// has the numbers of one rank, with exactly the predicted memory and messages.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

struct Case {
  const char* schedule;
  int64_t stages, virtual_stages, microbatches;
};

// Families of whole sequences and undivided backwards.
const std::vector<Case> kWhole = {
    {"gpipe", 2, 1, 3},
    {"gpipe", 4, 1, 4},
    {"1f1b", 2, 1, 2},
    {"1f1b", 3, 1, 5},
    {"1f1b", 4, 1, 6},
    {"1f1b", 8, 1, 8},
    {"bfs", 2, 2, 4},
    {"bfs", 4, 2, 4},
    {"bfs", 2, 3, 3},
    {"chronos", 2, 2, 4},
    {"chronos", 4, 2, 8},
    {"interleaved-1f1b", 2, 2, 4},
    {"interleaved-1f1b", 4, 2, 8},
    {"interleaved-1f1b", 2, 4, 6},
    {"interleaved-1f1b", 3, 2, 6},
};

std::vector<ParallelLayout> meshes() {
  return {ParallelLayout{},
          ParallelLayout{1, 1, 2},
          ParallelLayout{1, 2, 1},
          ParallelLayout{.data = 1, .zero = 0, .tensor = 2},
          ParallelLayout{2, 1, 1, 1},
          ParallelLayout{2, 1, 1, 2},
          ParallelLayout{1, 1, 1, 0, false}};
}

}  // namespace

TEST_CASE("a pipeline gives the numbers of one rank") {
  int64_t turn = 0;
  for (const Case& c : kWhole) {
    for (const ParallelLayout& mesh : meshes()) {
      const std::map<std::string, Strategy> plans =
          mesh.tensor > 1 ? tensor_strategies(16, 32) : strategies(16);
      StepCase step;
      step.model = turn % 3 == 0   ? model_with_heads(small_gpt(), 8, 8)
                   : turn % 3 == 1 ? model_with_heads(small_llama(), 8, 2)
                                   : model_with_heads(small_qwen(), 8, 2);
      step.model.layers = c.stages * c.virtual_stages + turn % 2;
      auto plan = plans.begin();
      std::advance(plan, mesh.ring > 1 ? 2 : turn % static_cast<int64_t>(plans.size()));
      ++turn;
      step.strategy = plan->second;
      step.strategy.parallel = mesh;
      Pipeline& pipeline = step.strategy.parallel.pipeline;
      pipeline = {c.stages, c.schedule, c.virtual_stages};
      step.sequence = mesh.ring > 1 ? 64 : 32;
      step.microbatches = c.microbatches;
      step.threads = 1;
      INFO(step.model.name << ", " << step.model.layers << " layers, "
                           << describe(step.strategy.parallel) << ", " << plan->first << ", "
                           << c.microbatches << " microbatches");
      check_against_one_rank(step);
    }
  }
}

}  // namespace longspan::testing
