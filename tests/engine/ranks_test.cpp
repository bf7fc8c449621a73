// Equal numbers on any number of ranks: loss and every gradient of one rank alone, the same bits
// from run to run, with exactly the predicted memory and messages.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "engine/comm/local.h"
#include "engine/cpu/backend.h"
#include "engine/runtime/executor.h"
#include "engine/train/optimizer.h"
#include "engine/train/states.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {

TEST_CASE("every kind of parallelism gives the numbers of one rank", "[ranks]") {
  const std::vector<ModelSpec> models = {
      model_with_heads(small_gpt(), 8, 8), model_with_heads(small_llama(), 8, 2),
      model_with_heads(small_gemma(), 8, 2), model_with_heads(small_olmo(), 8, 2)};
  int64_t turn = 0;
  for (const int64_t size : {2, 4, 8}) {
    for (int64_t zero = 0; zero <= 3; ++zero) {
      for (const ParallelLayout& parallel :
           {ParallelLayout{1, 1, size, zero}, ParallelLayout{size, 1, 1, zero},
            ParallelLayout{1, size, 1, zero}, ParallelLayout{2, 1, size / 2, zero},
            ParallelLayout{1, 2, size / 2, zero}, ParallelLayout{1, 1, size, zero, false}}) {
        for (const auto& [name, strategy] : strategies(16)) {
          if (parallel.ring > 1 && name != "kept") continue;
          if (!in_turn(turn++, 7)) continue;
          const ModelSpec& model = models[static_cast<size_t>(turn / 7 + size + zero) % 4];
          StepCase step;
          step.model = model;
          step.strategy = strategy;
          step.strategy.parallel = parallel;
          step.sequence = parallel.ring > 1 ? 16 * 2 * parallel.ring : 64;
          step.microbatches = 1 + zero % 2;
          step.threads = 1;
          INFO(model.name << ", " << describe(parallel) << ", " << name);
          check_against_one_rank(step);
        }
      }
    }
  }
}

TEST_CASE("a tensor group starts from the weights of one rank, bit for bit", "[ranks]") {
  StepCase step;
  step.model = model_with_heads(small_gpt(), 8, 8);
  step.strategy.chunk_tokens = step.strategy.block_tokens = step.sequence = 16;
  for (const int64_t zero : {0, 1, 3}) {
    step.strategy.parallel = {.data = 2, .zero = zero, .tensor = 4};
    WorldOutcome world;
    world.ranks.resize(8);
    run_local_ranks(8, [&](Communicator& comm) {
      Program program =
          build_program({step.model, step.strategy, step.sequence, 1, DType::float32, comm.rank()});
      const auto backend = cpu::make_backend(program, 1, &comm);
      Executor executor(std::move(program), *backend, {});
      initialize_states(executor, step.model, 5);
      const Program& p = executor.program();
      for (const BufferId id : p.parameters) {
        auto& values = world.ranks[comm.rank()].parameters.emplace_back(p.bytes_of(id) / 4);
        executor.read(id, values.data());
      }
    });
    const std::vector<ParameterUnit> units = parameter_units(step.model);
    for (size_t unit = 0; unit < units.size(); ++unit) {
      std::vector<float> expected(units[unit].elements);
      for (const ParameterTensor& tensor : units[unit].tensors) {
        initialize_tensor(step.model, tensor, 5, expected.data() + tensor.offset);
      }
      CHECK(gathered(step, world, unit, &StepOutcome::parameters) == expected);
    }
  }
}

TEST_CASE("a tensor group gives the numbers of one rank", "[ranks]") {
  ModelSpec qwen = model_with_heads(small_qwen(), 8, 8);
  qwen.layers = 2;
  ModelSpec olmo = model_with_heads(small_olmo(), 8, 8);
  olmo.qk_norm_of_token = false;
  ModelSpec biased = model_with_heads(small_gpt(), 8, 8);
  biased.norm_placement = NormPlacement::both;
  biased.qkv_bias = false;  // that of k has no gradient
  const std::vector<ModelSpec> models = {model_with_heads(small_gpt(), 8, 8),
                                         model_with_heads(small_llama(), 8, 8),
                                         qwen,
                                         model_with_heads(small_gemma(), 8, 8),
                                         olmo,
                                         biased};
  const std::map<std::string, Strategy> plans = tensor_strategies(16, 64);

  int64_t turn = -1;
  for (const auto& [data, tensor] :
       {std::pair<int64_t, int64_t>{1, 2}, {1, 4}, {1, 8}, {2, 2}, {2, 4}}) {
    for (int64_t zero = 0; zero <= 3; ++zero) {
      if (data == 1 && zero > 0) continue;  // nothing to shard
      for (const auto& [name, strategy] : plans) {
        if (!in_turn(++turn, 3)) continue;
        StepCase step;
        step.model = models[(turn / 3) % 6];
        step.strategy = strategy;
        step.strategy.parallel = {.data = data, .zero = zero, .tensor = tensor};
        step.strategy.parallel.overlap = turn % 5 != 0;
        // Parameters on the host are whole or gathered from shards.
        if (data > 1 && (zero == 1 || zero == 2)) step.strategy.parameters = Tier::device;
        step.sequence = 64;
        step.microbatches = 1 + zero % 2;
        step.threads = 1;
        INFO(step.model.name << ", " << describe(step.strategy.parallel) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("groups of heads give the numbers of one rank with all heads at once", "[ranks]") {
  int64_t turn = 0;
  for (const int64_t ulysses : {1, 2, 4, 8}) {
    for (const int64_t groups : {2, 4, 8}) {
      const int64_t shares = ulysses * groups, heads = shares > 16 ? shares : 2 * shares;
      // K,V heads: as many as queries; one for every two groups of all ranks; fewer than ranks.
      const ModelSpec models[] = {
          model_with_heads(small_gpt(), heads, heads),
          model_with_heads(small_llama(), heads, shares / 2),
          model_with_heads(small_qwen(), heads, std::max<int64_t>(1, ulysses / 2)),
          model_with_heads(small_gemma(), heads, shares / 2)};
      // Every strategy is combined with every model, every ZeRO stage, and with and without overlap
      // and replicas.
      for (const auto& [name, strategy] : group_strategies(16)) {
        StepCase step;
        step.model = models[(turn + turn / 4) % 4];
        step.model.layers = 2;
        step.model.head_dim = 8;
        step.strategy = strategy;
        step.strategy.head_groups = groups;
        const int64_t data = turn % 5 == 0 && ulysses < 8 ? 2 : 1;
        step.strategy.parallel = {data, 1, ulysses, turn % 4, turn % 8 < 5};
        ++turn;
        step.sequence = 16;
        step.threads = 1;
        INFO(step.model.name << ", " << step.model.kv_heads << " K,V heads, " << groups
                             << " groups, " << describe(step.strategy.parallel) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

}  // namespace longspan::testing
