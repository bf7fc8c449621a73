#include "tests/engine/world_runner.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/comm/local.h"
#include "models/tensor_slices.h"
#include "models/vocabulary_share.h"
#include "planner/program/layout.h"
#include "planner/schedule/registry.h"
#include "tests/reference/fp.h"

namespace longspan::testing {
namespace {

// The holders' part of one slice of a unit: whole on each, or their shards concatenated.
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

// Writes the shares of a cut vocabulary into the embedding or head unit. All ranks
// have a copy of the final norm; the one in use is that of the last stage, whose gradient is not
// zero.
void gather_shares(const StepCase& step, const WorldOutcome& world, size_t unit,
                   std::vector<std::vector<float>> StepOutcome::*values, std::vector<float>& all) {
  const ParallelLayout& parallel = step.strategy.parallel;
  const UnitKind kind = unit == 0 ? UnitKind::embedding : UnitKind::head;
  const int64_t meshes = parallel.pipeline.stages;
  const int64_t last = parallel.pipeline.virtual_stages == 2 ? 0 : meshes - 1;  // in a V
  for (int64_t mesh = 0; mesh < meshes; ++mesh) {
    if ((world.ranks[mesh * parallel.stage_ranks()].*values)[unit].empty()) continue;
    const ModelSpec own = share_model(step.model, mesh, meshes);
    const auto runs = share_runs(own, vocabulary_share(step.model, mesh, meshes), kind);
    for (int64_t index = 0; index < parallel.tensor; ++index) {
      Place place = place_of(parallel, index * parallel.sequence_ranks());
      place.mesh = mesh;
      const std::vector<float> held =
          slice_held(world, ranks_of(replica_group(parallel, place)), unit,
                     runs.back().narrow + runs.back().count, values);
      for (const SliceRun& run : runs) {
        if (run.replicated && mesh != last) continue;
        std::copy_n(held.begin() + run.narrow, run.count, all.begin() + run.whole);
      }
    }
  }
}

}  // namespace

WorldOutcome run_world(const StepCase& step) {
  const int size = static_cast<int>(step.strategy.parallel.ranks());
  WorldOutcome world;
  world.ranks.resize(size);
  world.sent.resize(size);
  world.predicted_sent.resize(size);
  run_local_ranks(size, [&](Communicator& comm) {
    const int rank = comm.rank();
    world.ranks[rank] = run_step(step, &comm);
    world.sent[rank] = world.ranks[rank].sent_bytes;
    const Program program = program_of(step, rank);
    for (const Op& op : program.ops) world.predicted_sent[rank] += sent_bytes(program, op);
  });
  return world;
}

std::vector<float> gathered(const StepCase& step, const WorldOutcome& world, size_t unit,
                            std::vector<std::vector<float>> StepOutcome::*values) {
  const ParallelLayout& parallel = step.strategy.parallel;
  const ParameterUnit model_unit = parameter_units(step.model)[unit];
  std::vector<float> all(model_unit.elements);
  const bool cut = family_of(parallel.pipeline).cuts_vocabulary;
  const bool of_ends = model_unit.kind == ParameterUnit::Kind::embedding ||
                       model_unit.kind == ParameterUnit::Kind::head;
  if (cut && of_ends) {
    gather_shares(step, world, unit, values, all);
    return all;
  }
  int64_t mesh = 0;  // the first that has the unit
  while ((world.ranks[mesh * parallel.stage_ranks()].*values)[unit].empty()) ++mesh;
  for (int64_t rank = 0; rank < parallel.stage_ranks(); ++rank) {
    Place place = place_of(parallel, rank);
    place.mesh = mesh;
    const RankGroup group = replica_group(parallel, place, model_unit.kind);
    if (group.index != 0) continue;
    const auto runs = slice_runs(step.model, model_unit, parallel.tensor, place.tensor,
                                 {parallel.expert, expert_group(parallel, place).index});
    const std::vector<float> slice =
        slice_held(world, ranks_of(group), unit, runs.back().narrow + runs.back().count, values);
    bool alike = true;
    for (const SliceRun& run : runs) {
      const float* from = slice.data() + run.narrow;
      float* to = all.data() + run.whole;
      if (run.replicated && place.tensor > 0) alike &= std::equal(from, from + run.count, to);
      std::copy_n(from, run.count, to);
    }
    CHECK(alike);
  }
  return all;
}

void check_against_one_rank(const StepCase& step, double tolerance) {
  StepCase alone = step;
  alone.strategy.parallel = {};
  alone.strategy.block_tokens = alone.strategy.chunk_tokens;
  alone.strategy.head_groups = 1;
  if (alone.strategy.layer_input.where == Saved::recompute) alone.strategy.layer_input = {};
  alone.microbatches *= step.strategy.parallel.data;
  const StepOutcome expected = run_step(alone);
  const WorldOutcome world = run_world(step);
  // Rows go where the routing sends them.
  if (step.strategy.parallel.expert == 1) CHECK(world.sent == world.predicted_sent);
  for (const StepOutcome& rank : world.ranks) {
    CHECK(rank.loss == Approx(expected.loss).epsilon(tolerance));
    CHECK(rank.gradient_norm == Approx(expected.gradient_norm).epsilon(tolerance));
    CHECK(rank.high_water_bytes == rank.arena_bytes);
    // Positions of a ring see different parts of the others' keys, so they pack differently.
    if (!step.strategy.parallel.has_pipeline() && step.strategy.parallel.ring == 1) {
      CHECK(rank.arena_bytes == world.ranks[0].arena_bytes);
    }
  }
  const std::vector<ParameterUnit> units = parameter_units(step.model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].trained) {
      INFO("frozen unit " << unit);
      const std::vector<float> values = gathered(step, world, unit, &StepOutcome::parameters);
      CHECK(values == case_weights(step)[unit]);
      continue;
    }
    const std::vector<float> gradients = gathered(step, world, unit, &StepOutcome::gradients);
    gathered(step, world, unit, &StepOutcome::parameters);
    const std::vector<double> reference(expected.gradients[unit].begin(),
                                        expected.gradients[unit].end());
    const auto check = [&](int64_t first, int64_t count) {
      CHECK(reference::relative_error(gradients.data() + first, reference.data() + first, count) <=
            tolerance);
    };
    if (step.dtype != DType::float32) {
      INFO("unit " << unit);
      check(0, units[unit].elements);
      continue;
    }
    for (const ParameterTensor& tensor : units[unit].tensors) {
      INFO(tensor.name);
      check(tensor.offset, tensor.elements);
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

std::map<std::string, Strategy> strategies(int64_t chunk) {
  Strategy kept;
  kept.chunk_tokens = kept.block_tokens = chunk;
  Strategy away = kept;
  away.kv = away.between_uses = Tier::host;
  away.layer_input.where = Saved::host;
  away.qkv.where = away.attention_out.where = away.mlp_input.where = away.mlp_inner.where =
      Saved::recompute;
  Strategy outer = away;
  outer.backward_order = BackwardOrder::kv_outer;
  outer.block_tokens = 2 * chunk;
  outer.optimizer = outer.gradients = Tier::host;
  return {{"kept", kept}, {"away, q-outer", away}, {"away, kv-outer", outer}};
}

std::map<std::string, Strategy> tensor_strategies(int64_t chunk, int64_t sequence) {
  std::map<std::string, Strategy> plans = strategies(chunk);
  for (auto& [name, strategy] : plans) strategy.block_tokens = sequence;
  Strategy tiled = plans["kept"];
  plans["in blocks"] = strategies(chunk).at("away, q-outer");
  tiled.chunk_tokens = sequence;
  tiled.projection_tile = 24;
  tiled.mlp_tile = 10;
  tiled.loss_tile = 3;
  tiled.layer_input.where = tiled.attention_out.where = Saved::nvme;
  tiled.qkv.where = tiled.mlp_input.where = tiled.mlp_inner.where = Saved::host;
  tiled.parameters = tiled.gradients = tiled.optimizer = Tier::host;
  plans["tiled, stored"] = tiled;
  return plans;
}

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

}  // namespace longspan::testing
