// Same numbers on any number of ranks: loss and every gradient of one rank alone, the same bits
// from run to run, in exactly the memory and with exactly the messages that were predicted.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "engine/comm/local.h"
#include "engine/cpu/backend.h"
#include "engine/runtime/executor.h"
#include "engine/train/optimizer.h"
#include "engine/train/states.h"
#include "models/tensor_slices.h"
#include "planner/program/layout.h"
#include "tests/engine/plan_runner.h"
#include "tests/reference/fp.h"

namespace longspan::testing {
namespace {

constexpr double kTolerance = 1e-5;  // relative, norm-wise

struct WorldOutcome {
  std::vector<StepOutcome> ranks;
  std::vector<int64_t> sent, predicted_sent;
};

WorldOutcome run_world(const StepCase& step) {
  const int size = static_cast<int>(step.strategy.parallel.ranks());
  WorldOutcome world;
  world.ranks.resize(size);
  world.sent.resize(size);
  world.predicted_sent.resize(size);
  run_local_ranks(size, [&](Communicator& comm) {
    const int rank = comm.rank();
    world.ranks[rank] = run_step(step, &comm);
    world.sent[rank] = comm.bytes_sent();
    const Program program = build_program(
        {step.model, step.strategy, step.sequence, step.micro_batches, DType::float32, rank});
    for (const Op& op : program.ops) world.predicted_sent[rank] += sent_bytes(program, op);
  });
  return world;
}

// What the holders of one slice of a unit have of it: whole on each, or their shards one after
// another.
std::vector<float> slice_held(const WorldOutcome& world, const std::vector<int>& holders,
                              size_t unit, size_t elements,
                              std::vector<std::vector<float>> StepOutcome::*values) {
  std::vector<float> all;
  for (size_t i = 0; i < holders.size() && all.size() < elements; ++i) {
    const std::vector<float>& part = (world.ranks[holders[i]].*values)[unit];
    all.insert(all.end(), part.begin(), part.end());
  }
  REQUIRE(all.size() >= elements);
  return all;
}

// A unit of the model, put together from the slices of a tensor group, which must agree on what
// they hold alike.
std::vector<float> gathered(const StepCase& step, const WorldOutcome& world, size_t unit,
                            std::vector<std::vector<float>> StepOutcome::*values) {
  const Parallel& parallel = step.strategy.parallel;
  const ParameterUnit model_unit = parameter_units(step.model)[unit];
  std::vector<float> all(model_unit.elements);
  for (int64_t index = 0; index < parallel.tensor; ++index) {
    const auto runs = slice_runs(step.model, model_unit, parallel.tensor, index);
    const auto holders = ranks_of(replica_group(parallel, place_of(parallel, index)));
    const std::vector<float> slice =
        slice_held(world, holders, unit, runs.back().narrow + runs.back().count, values);
    bool alike = true;
    for (const SliceRun& run : runs) {
      const float* from = slice.data() + run.narrow;
      float* to = all.data() + run.whole;
      if (run.replicated && index > 0) alike &= std::equal(from, from + run.count, to);
      std::copy_n(from, run.count, to);
    }
    CHECK(alike);
  }
  return all;
}

void check_against_one_rank(const StepCase& step) {
  StepCase alone = step;
  alone.strategy.parallel = {};
  alone.strategy.block_tokens = alone.strategy.chunk_tokens;
  alone.strategy.head_groups = 1;
  alone.micro_batches *= step.strategy.parallel.data;
  const StepOutcome expected = run_step(alone);
  const WorldOutcome world = run_world(step);
  CHECK(world.sent == world.predicted_sent);
  for (const StepOutcome& rank : world.ranks) {
    CHECK(rank.loss == Approx(expected.loss).epsilon(kTolerance));
    CHECK(rank.gradient_norm == Approx(expected.gradient_norm).epsilon(kTolerance));
    CHECK(rank.high_water_bytes == rank.arena_bytes);
    // Positions of a ring see different parts of each other's keys, so they pack differently.
    if (step.strategy.parallel.ring == 1) CHECK(rank.arena_bytes == world.ranks[0].arena_bytes);
  }
  const std::vector<ParameterUnit> units = parameter_units(step.model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const std::vector<float> gradients = gathered(step, world, unit, &StepOutcome::gradients);
    gathered(step, world, unit, &StepOutcome::parameters);
    for (const ParameterTensor& tensor : units[unit].tensors) {
      INFO(tensor.name);
      const std::vector<double> reference(
          expected.gradients[unit].begin() + tensor.offset,
          expected.gradients[unit].begin() + tensor.offset + tensor.elements);
      CHECK(reference::relative_error(gradients.data() + tensor.offset, reference.data(),
                                      tensor.elements) <= kTolerance);
    }
  }
  const WorldOutcome again = run_world(step);
  for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
    CHECK(again.ranks[rank].gradients == world.ranks[rank].gradients);
    CHECK(again.ranks[rank].parameters == world.ranks[rank].parameters);
  }
}

ModelSpec model_with_heads(ModelSpec model, int64_t heads, int64_t kv_heads) {
  model.heads = heads;
  model.kv_heads = kv_heads;
  return model;
}

// Everything on the device, everything away, and the FPDT order of backward.
std::map<std::string, Strategy> strategies(int64_t chunk) {
  Strategy kept;
  kept.chunk_tokens = kept.block_tokens = chunk;
  Strategy away = kept;
  away.kv = away.idle = Tier::host;
  away.layer_input.where = Saved::host;
  away.qkv.where = away.attention_out.where = away.mlp_input.where = away.mlp_inner.where =
      Saved::recompute;
  Strategy outer = away;
  outer.backward_order = BackwardOrder::kv_outer;
  outer.block_tokens = 2 * chunk;
  outer.optimizer = outer.gradients = Tier::host;
  return {{"kept", kept}, {"away, q-outer", away}, {"away, kv-outer", outer}};
}

// What a head group leaves for its backward: all of it, nothing but the layer's input, or queries
// and K,V on the host, from which attention runs again.
std::map<std::string, Strategy> group_strategies(int64_t sequence) {
  Strategy kept;
  kept.chunk_tokens = kept.block_tokens = sequence;
  Strategy recomputed = kept;
  recomputed.layer_input.where = Saved::host;
  recomputed.qkv.where = recomputed.attention_out.where = recomputed.mlp_input.where =
      recomputed.mlp_inner.where = Saved::recompute;
  recomputed.projection_tile = 3;
  Strategy parked = recomputed;
  parked.qkv.where = Saved::host;
  parked.optimizer = Tier::host;
  return {{"kept", kept}, {"recomputed", recomputed}, {"parked", parked}};
}

}  // namespace

TEST_CASE("every kind of parallelism gives the numbers of one rank", "[ranks]") {
  const std::vector<ModelSpec> models = {model_with_heads(small_gpt(), 8, 8),
                                         model_with_heads(small_llama(), 8, 2)};
  for (const int64_t size : {2, 4, 8}) {
    for (int64_t zero = 0; zero <= 3; ++zero) {
      for (const Parallel& parallel :
           {Parallel{1, 1, size, zero}, Parallel{size, 1, 1, zero}, Parallel{1, size, 1, zero},
            Parallel{2, 1, size / 2, zero}, Parallel{1, 2, size / 2, zero},
            Parallel{1, 1, size, zero, false}}) {
        const ModelSpec& model = models[(size + zero + parallel.ring) % 2];
        for (const auto& [name, strategy] : strategies(16)) {
          if (parallel.ring > 1 && name != "kept") continue;
          StepCase step;
          step.model = model;
          step.strategy = strategy;
          step.strategy.parallel = parallel;
          step.sequence = parallel.ring > 1 ? 16 * 2 * parallel.ring : 64;
          step.micro_batches = 1 + zero % 2;
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
  const std::vector<ModelSpec> models = {model_with_heads(small_gpt(), 8, 8),
                                         model_with_heads(small_llama(), 8, 8), qwen};
  std::map<std::string, Strategy> plans = strategies(16);
  for (auto& [name, strategy] : plans) strategy.block_tokens = 64;
  Strategy tiled = plans["kept"];
  tiled.chunk_tokens = 64;
  tiled.projection_tile = 24;
  tiled.mlp_tile = 10;
  tiled.loss_tile = 3;
  tiled.layer_input.where = tiled.attention_out.where = Saved::nvme;
  tiled.qkv.where = tiled.mlp_input.where = tiled.mlp_inner.where = Saved::host;
  tiled.parameters = tiled.gradients = tiled.optimizer = Tier::host;
  plans["tiled, stored"] = tiled;

  size_t turn = 0;
  for (const auto& [data, tensor] :
       {std::pair<int64_t, int64_t>{1, 2}, {1, 4}, {1, 8}, {2, 2}, {2, 4}}) {
    for (int64_t zero = 0; zero <= 3; ++zero) {
      if (data == 1 && zero > 0) continue;  // nothing to shard
      for (const auto& [name, strategy] : plans) {
        StepCase step;
        step.model = models[turn++ % models.size()];
        step.strategy = strategy;
        step.strategy.parallel = {.data = data, .zero = zero, .tensor = tensor};
        step.strategy.parallel.overlap = turn % 5 != 0;
        // Parameters on the host are whole or gathered from shards.
        if (data > 1 && (zero == 1 || zero == 2)) step.strategy.parameters = Tier::device;
        step.sequence = 64;
        step.micro_batches = 1 + zero % 2;
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
      // As many K,V heads as queries; one for every two groups of all ranks; fewer than ranks.
      const ModelSpec models[] = {
          model_with_heads(small_gpt(), heads, heads),
          model_with_heads(small_llama(), heads, shares / 2),
          model_with_heads(small_qwen(), heads, std::max<int64_t>(1, ulysses / 2))};
      // Every strategy meets every model, every stage of ZeRO, overlap and none, replicas and none.
      for (const auto& [name, strategy] : group_strategies(16)) {
        StepCase step;
        step.model = models[(turn + turn / 3) % 3];
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
