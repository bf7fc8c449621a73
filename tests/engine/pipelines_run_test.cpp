// Pipelines run: on any number of stages, under any schedule, within any mesh of a stage, a step
// has the numbers of one rank, with exactly the predicted memory and messages.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "planner/program/layout.h"
#include "planner/strategy/slice_lengths.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

struct Case {
  const char* schedule;
  int64_t stages, virtual_stages, microbatches, slices = 1;
  bool equal_work = false;
};

// Families of whole sequences and undivided backwards.
const std::vector<Case> kWhole = {
    {"gpipe", 2, 1, 3},
    {"gpipe", 4, 1, 4},
    {"1f1b", 2, 1, 2},
    {"1f1b", 3, 1, 5},
    {"1f1b", 4, 1, 6},
    {"1f1b", 8, 1, 8},
    {"kfkb", 2, 1, 5},
    {"kfkb", 4, 1, 8},
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

const std::vector<Case> kSliced = {
    {"seq1f1b", 2, 1, 2, 2},   {"seq1f1b", 2, 1, 2, 4},   {"seq1f1b", 3, 1, 3, 2},
    {"seq1f1b", 4, 1, 4, 4},   {"seq1f1b", 8, 1, 4, 4},   {"seq1f1b-i", 2, 2, 2, 2},
    {"seq1f1b-i", 4, 2, 4, 4}, {"seq1f1b-i", 2, 3, 4, 2}, {"terapipe", 2, 1, 2, 4},
    {"terapipe", 4, 1, 1, 8},
};

// Families whose ranks share the attention of their slices.
const std::vector<Case> kShared = {
    {"slimpipe", 2, 1, 2, 2}, {"slimpipe", 2, 1, 2, 4}, {"slimpipe", 2, 2, 2, 4},
    {"slimpipe", 3, 1, 3, 6}, {"slimpipe", 4, 1, 2, 4}, {"slimpipe", 4, 1, 1, 8},
    {"slimpipe", 4, 2, 2, 4}, {"slimpipe", 4, 2, 1, 8},
};

// Families that do the gradients of weights later.
const std::vector<Case> kSplit = {
    {"zb-h1", 2, 1, 3},
    {"zb-h1", 4, 1, 6},
    {"zb-h1", 8, 1, 8},
    {"zb-h2", 2, 1, 4},
    {"zb-h2", 3, 1, 5},
    {"zb-auto", 4, 1, 5},
    {"interleaved-zb", 2, 2, 4},
    {"zb-v", 2, 2, 4},
    {"zb-v", 4, 2, 8},
    {"zb-v-static", 2, 2, 4},
    {"zb-v-static", 3, 2, 6},
    {"v-half", 2, 2, 4},
    {"v-half", 4, 2, 6},
    {"v-min", 2, 2, 4},
    {"v-min", 3, 2, 5},
    {"v-adaptive", 2, 2, 3},
    {"v-adaptive", 4, 2, 6},
    {"gis", 2, 2, 4},
    {"gis", 4, 2, 8},
    {"gis-h", 4, 2, 4},
    {"dualpipe-v", 2, 2, 4},
};

// Families that offload by themselves, of whole sequences with split backwards, and of slices.
const std::vector<Case> kOffloading = {
    {"po-f", 2, 2, 4}, {"po-h", 2, 2, 4}, {"po-f", 4, 2, 8},
    {"po-h", 4, 2, 8}, {"po-f", 2, 4, 5}, {"po-h", 3, 3, 6},
};
const std::vector<Case> kOffloadingSlices = {
    {"sppo", 2, 1, 2, 2},
    {"sppo", 2, 1, 3, 4},
    {"sppo", 4, 1, 2, 4},
    {"sppo", 4, 1, 3, 3},
};

// Families that repeat forwards before their backward.
const std::vector<Case> kRepeating = {
    {"chronos-recomp", 2, 2, 4}, {"chronos-recomp", 4, 2, 8}, {"chronos-recomp", 2, 3, 3}};
const std::vector<Case> kRepeatingSlices = {
    {"chunkflow", 2, 1, 2, 2}, {"chunkflow", 3, 1, 3, 4}, {"chunkflow", 4, 1, 4, 3}};

// Families that cut the vocabulary.
const std::vector<Case> kCut = {
    {"1f1b-vocab-1", 2, 1, 2},   {"1f1b-vocab-1", 3, 1, 5},   {"1f1b-vocab-1", 4, 1, 6},
    {"1f1b-vocab-1", 8, 1, 8},   {"1f1b-vocab-2", 2, 1, 3},   {"1f1b-vocab-2", 3, 1, 4},
    {"1f1b-vocab-2", 4, 1, 6},   {"v-half-vocab-1", 2, 2, 4}, {"v-half-vocab-1", 4, 2, 6},
    {"v-half-vocab-2", 2, 2, 4}, {"v-half-vocab-2", 3, 2, 5},
};

StepCase step_of(const Case& c, const ParallelLayout& mesh, int64_t turn) {
  StepCase step;
  const ModelSpec models[] = {
      model_with_heads(small_gpt(), 8, 8), model_with_heads(small_llama(), 8, 2),
      model_with_heads(small_qwen(), 8, 2), model_with_heads(small_gemma(), 8, 2),
      model_with_heads(small_olmo(), 8, 2)};
  // A split backward takes no norms of outputs, and tensor groups no norms over all heads.
  step.model = models[turn % (schedule_family(c.schedule).splits_backward ? 3 : 5)];
  if (mesh.tensor > 1) step.model.qk_norm_of_token = false;
  step.model.layers = c.stages * c.virtual_stages + turn % 2;
  step.strategy.parallel = mesh;
  step.strategy.parallel.pipeline = {c.stages, c.schedule, c.virtual_stages, c.slices,
                                     c.equal_work};
  step.microbatches = c.microbatches;
  step.threads = 1;
  return step;
}

std::string text_of(const StepCase& step) {
  return step.model.name + ", " + std::to_string(step.model.layers) + " layers, " +
         describe(step.strategy.parallel) + ", " + std::to_string(step.microbatches) +
         " microbatches";
}

// Leaves for the backward little more than inputs of layers.
void recompute_most(Strategy& s, int64_t turn) {
  for (SavedPolicy* policy : {&s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    policy->where = Saved::recompute;
  }
  s.layer_input.where = turn % 3 == 0 ? Saved::host : Saved::keep;
}

// Every case on every mesh, with the plans in turn.
void check_whole_sequences(const std::vector<Case>& cases) {
  int64_t turn = 0;
  for (const Case& c : cases) {
    for (const ParallelLayout& mesh : meshes()) {
      const std::map<std::string, Strategy> plans =
          mesh.tensor > 1 ? tensor_strategies(16, 32) : strategies(16);
      StepCase step = step_of(c, mesh, turn);
      const ParallelLayout parallel = step.strategy.parallel;
      auto plan = plans.begin();
      std::advance(plan, mesh.ring > 1 ? 2 : turn % static_cast<int64_t>(plans.size()));
      ++turn;
      step.strategy = plan->second;
      step.strategy.parallel = parallel;
      step.sequence = mesh.ring > 1 ? 64 : 32;
      INFO(text_of(step) << ", " << plan->first);
      check_against_one_rank(step);
    }
  }
}

// Every case on every mesh that takes slices. `set(step, turn)` chooses the strategy.
template <class Set>
void for_slices(const std::vector<Case>& cases, Set set) {
  int64_t turn = 0;
  for (const Case& c : cases) {
    for (const ParallelLayout& mesh : meshes()) {
      if (mesh.ring > 1) continue;
      StepCase step = step_of(c, mesh, turn);
      set(step, turn);
      ++turn;
      INFO(text_of(step));
      check_against_one_rank(step);
    }
  }
}

int64_t slices_of(const StepCase& step) { return step.strategy.parallel.pipeline.slices; }

// With or without recomputation.
void check_slices(const std::vector<Case>& cases) {
  for_slices(cases, [](StepCase& step, int64_t turn) {
    step.sequence = 16 * slices_of(step);
    step.strategy.chunk_tokens = turn % 2 == 0 ? 16 : 8;
    step.strategy.block_tokens = step.strategy.parallel.tensor > 1 ? step.sequence : 16;
    if (turn % 4 > 1) recompute_most(step.strategy, turn);
    // Offloaded are all of a slice, a half, and a third.
    step.copy_units = 1 + static_cast<double>(turn % 3);
  });
}

// Runs the ops in four random legal orders.
void check_random_orders(StepCase step) {
  const WorldOutcome in_order = run_world(step);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    step.random_order = seed;
    const WorldOutcome other = run_world(step);
    INFO(text_of(step) << ", seed " << seed);
    for (size_t rank = 0; rank < in_order.ranks.size(); ++rank) {
      CHECK(other.ranks[rank].gradients == in_order.ranks[rank].gradients);
      CHECK(other.ranks[rank].parameters == in_order.ranks[rank].parameters);
    }
  }
}

// The bytes that a rank's program copies in each direction as actions of its list.
std::array<int64_t, 2> copied(const Program& program) {
  std::array<int64_t, 2> bytes{};
  for (const Op& op : program.ops) {
    const ActionKind kind = program.actions[static_cast<size_t>(std::max(0, op.action))].kind;
    if (kind == ActionKind::offload && op.kind == OpKind::copy_d2h) {
      bytes[0] += program.bytes_of(op.operands[0]);
    }
    if (kind == ActionKind::reload && op.kind == OpKind::copy_h2d) {
      bytes[1] += program.bytes_of(op.operands[0]);
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("slices give the numbers of one rank") { check_slices(kSliced); }

TEST_CASE("ranks that share attention have the numbers of one rank") {
  int64_t lots = 0;
  for_slices(kShared, [&](StepCase& step, int64_t turn) {
    Strategy& s = step.strategy;
    step.sequence = 16 * slices_of(step);
    s.chunk_tokens = turn % 2 == 0 ? 16 : 8;
    s.block_tokens = s.parallel.tensor > 1 ? step.sequence : turn % 3 == 0 ? 8 : 16;
    s.block_tokens = std::max(s.block_tokens, s.chunk_tokens);
    if (turn % 4 > 1) recompute_most(s, turn);
    if (turn % 4 == 1) s.qkv.where = Saved::host;
    if (turn % 8 == 6) s.attention_out.fraction = 0.5;
    for (const Op& op : program_of(step, 0).ops) lots += op.kind == OpKind::merge_outputs;
  });
  CHECK(lots > 100);
}

TEST_CASE("slices of equal work give the numbers of one rank") {
  for_slices(kSliced, [](StepCase& step, int64_t turn) {
    step.strategy.parallel.pipeline.equal_work = true;
    step.sequence = 48 * slices_of(step);
    step.strategy.chunk_tokens = turn % 2 == 0 ? 8 : 4;
    step.strategy.block_tokens = 8;
    if (turn % 4 > 1) recompute_most(step.strategy, turn);
    const auto lengths = slice_lengths(step.model, step.strategy, step.sequence);
    CHECK(lengths.front() > lengths.back());
  });
}

TEST_CASE("slices of several stages have keys and values on the host or in a file") {
  const auto elsewhere = [](StepCase& step, int64_t turn) {
    Strategy& s = step.strategy;
    s.parallel.pipeline.equal_work =
        turn % 5 == 4 && s.parallel.tensor == 1 && family_of(s.parallel.pipeline).uneven_slices;
    step.sequence = (s.parallel.pipeline.equal_work ? 48 : 16) * slices_of(step);
    s.block_tokens = s.parallel.pipeline.equal_work ? 8 : 16;
    s.chunk_tokens = turn % 2 == 0 ? s.block_tokens : 8;
    s.kv = turn % 3 == 2 ? Tier::nvme : Tier::host;
    s.prefetch_depth = turn % 4;
    s.offload_window = turn % 3;
    if (turn % 4 > 1) recompute_most(s, turn);
    if (turn % 8 == 1) s.qkv.where = Saved::host;
  };
  for_slices(kSliced, elsewhere);
  for_slices(kOffloadingSlices, elsewhere);
  for_slices(kRepeatingSlices, elsewhere);
}

TEST_CASE("keys and values elsewhere take no device memory for more slices") {
  const auto bytes = [](Tier kv, int64_t slices) {
    StepCase step = step_of({"seq1f1b", 2, 1, 1, slices}, {}, 1);
    step.strategy.kv = kv;
    step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
    step.sequence = 16 * slices;
    recompute_most(step.strategy, 0);
    return lay_out(program_of(step, 0)).arena_bytes;
  };
  constexpr auto kDevice = static_cast<size_t>(Tier::device);
  for (const Tier kv : {Tier::host, Tier::nvme}) {
    const auto tier = static_cast<size_t>(kv);
    CHECK(bytes(Tier::device, 32)[kDevice] > 1.3 * bytes(Tier::device, 8)[kDevice]);
    CHECK(bytes(kv, 32)[kDevice] < 1.02 * bytes(kv, 8)[kDevice]);
    CHECK(bytes(kv, 32)[tier] > 3 * bytes(kv, 8)[tier]);
  }
}

TEST_CASE("a pipeline gives the numbers of one rank") { check_whole_sequences(kWhole); }

TEST_CASE("gradients of weights that come later are those of one rank") {
  check_whole_sequences(kSplit);
}

TEST_CASE("what schedules copy to the host comes back, with the numbers of one rank") {
  check_whole_sequences(kOffloading);
  check_slices(kOffloadingSlices);
}

TEST_CASE("schedules that repeat forwards give the numbers of one rank, in less memory") {
  check_whole_sequences(kRepeating);
  check_slices(kRepeatingSlices);
  const auto device_bytes = [](const Case& c) {
    StepCase step = step_of(c, {}, 1);
    step.model.layers = 16;
    step.sequence = 64;
    step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
    int64_t most = 0;
    for (int rank = 0; rank < c.stages; ++rank) {
      most = std::max(most, lay_out(program_of(step, rank)).arena_bytes[0]);
    }
    return most;
  };
  CHECK(device_bytes({"chronos-recomp", 4, 4, 8}) < device_bytes({"chronos", 4, 4, 8}));
  CHECK(device_bytes({"chunkflow", 4, 1, 4, 4}) < device_bytes({"seq1f1b", 4, 1, 4, 4}));
}

TEST_CASE("slices copy the share of their tensors that their schedule says") {
  StepCase step = step_of(kOffloadingSlices[1], {}, 1);
  step.model.layers = 8;
  step.sequence = 64;
  step.strategy.chunk_tokens = step.strategy.block_tokens = 8;
  std::array<double, 4> moved{};
  for (const int copies : {1, 2, 4}) {
    step.copy_units = copies;
    const std::array<int64_t, 2> bytes = copied(program_of(step, 0));
    CHECK(bytes[0] > 0);
    CHECK(bytes[0] == bytes[1]);
    if (copies == 1) moved[0] = static_cast<double>(bytes[0]);
    // A slice has 2 blocks of 4 layers, each with 7 tensors: half a tensor is little of it.
    CHECK(static_cast<double>(bytes[0]) == Approx(moved[0] / copies).epsilon(0.05));
  }
}

TEST_CASE("schedules that offload need less of the device") {
  const auto device_bytes = [](const Case& c) {
    StepCase step = step_of(c, {}, 1);
    step.model.layers = 16;
    step.sequence = 64;
    step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
    int64_t most = 0, host = 0;
    for (int rank = 0; rank < c.stages; ++rank) {
      const Layout layout = lay_out(program_of(step, rank));
      most = std::max(most, layout.arena_bytes[0]);
      host = std::max(host, layout.arena_bytes[1]);
    }
    return std::pair{most, host};
  };
  for (const auto& [stages, virtual_stages] : {std::pair{int64_t{2}, int64_t{4}}, {4, 4}}) {
    INFO(stages << " stages, " << virtual_stages << " virtual stages");
    const int64_t microbatches = 4 * stages;
    const auto of = [&](const char* schedule) {
      return device_bytes({schedule, stages, virtual_stages, microbatches});
    };
    const auto [interleaved, none] = of("interleaved-1f1b");
    const auto [half, half_away] = of("po-h");
    const auto [full, all_away] = of("po-f");
    CHECK(full < half);
    CHECK(half < interleaved);
    CHECK(none < half_away);
    CHECK(half_away <= all_away);
  }
  const auto [kept, none] = device_bytes({"seq1f1b", 4, 1, 4, 4});
  const auto [left, away] = device_bytes({"sppo", 4, 1, 4, 4});
  CHECK(left < kept);
  CHECK(none < away);
}

TEST_CASE("a vocabulary that is cut over the ranks gives the numbers of one rank") {
  check_whole_sequences(kCut);
}

TEST_CASE("one rank does all layers of a slice before the next slice") {
  int64_t turn = 0;
  for (const int64_t slices : {2, 4}) {
    for (ParallelLayout mesh : {ParallelLayout{}, ParallelLayout{1, 1, 2, 3},
                                ParallelLayout{2, 1, 1, 2}, ParallelLayout{.tensor = 2}}) {
      const std::map<std::string, Strategy> plans =
          mesh.tensor > 1 ? tensor_strategies(16, 16) : strategies(16);
      for (const auto& [name, strategy] : plans) {
        if (strategy.backward_order == BackwardOrder::kv_outer) continue;
        for (const bool again : {false, true}) {
          const bool equal_work = turn % 4 > 1;
          StepCase step = step_of({"1f1b", 1, 2, 2}, mesh, turn++);
          step.strategy = strategy;
          if (strategy.kv == Tier::host && turn % 4 > 1) step.strategy.kv = Tier::nvme;
          if (again) step.strategy.layer_input = {Saved::recompute, 1};
          step.strategy.parallel = mesh;
          step.strategy.parallel.pipeline = {.slices = slices, .equal_work = equal_work};
          step.sequence = 16 * slices * (equal_work ? 4 : mesh.tensor > 1 ? 1 : 2);
          INFO(text_of(step) << ", " << slices << " slices" << (again ? " again, " : ", ") << name);
          check_against_one_rank(step);
        }
      }
    }
  }
}

TEST_CASE("any legal order of the ops of slices that pass again gives the same bits") {
  for (const auto& [name, strategy] : strategies(8)) {
    if (strategy.backward_order == BackwardOrder::kv_outer) continue;
    StepCase step = step_of({"1f1b", 1, 2, 2}, {}, 1);
    step.strategy = strategy;
    step.strategy.layer_input = {Saved::recompute, 1};
    step.strategy.parallel.pipeline.slices = 4;
    step.strategy.block_tokens = 16;
    step.sequence = 128;
    const WorldOutcome in_order = run_world(step);
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      step.random_order = seed;
      const WorldOutcome other = run_world(step);
      INFO(name << ", seed " << seed);
      CHECK(other.ranks[0].gradients == in_order.ranks[0].gradients);
      CHECK(other.ranks[0].parameters == in_order.ranks[0].parameters);
    }
  }
}

TEST_CASE("any legal order of the ops of a pipeline gives the same bits") {
  for (const Case& c :
       {Case{"1f1b", 3, 1, 4}, Case{"interleaved-1f1b", 2, 2, 4}, Case{"seq1f1b", 3, 1, 2, 2},
        Case{"seq1f1b", 2, 1, 2, 4, true}, Case{"slimpipe", 4, 1, 2, 4}, Case{"bfs", 2, 2, 4},
        Case{"zb-h1", 3, 1, 4}, Case{"zb-v", 2, 2, 4}, Case{"po-f", 2, 3, 4}, Case{"po-h", 3, 2, 4},
        Case{"sppo", 3, 1, 2, 3}, Case{"chunkflow", 3, 1, 2, 3}, Case{"chronos-recomp", 2, 2, 4},
        Case{"1f1b-vocab-1", 3, 1, 4}, Case{"1f1b-vocab-2", 3, 1, 4},
        Case{"v-half-vocab-1", 2, 2, 4}}) {
    StepCase step = step_of(c, ParallelLayout{1, 1, 2, 1}, 1);
    step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
    step.sequence = (c.equal_work ? 64 : 16) * c.slices;
    check_random_orders(step);
  }
}

TEST_CASE("any legal order of the ops of slices gives the same bits if keys are elsewhere") {
  for (const Case& c : {Case{"seq1f1b", 3, 1, 2, 3}, Case{"seq1f1b", 2, 1, 2, 4, true},
                        Case{"seq1f1b-i", 2, 2, 2, 4}, Case{"chunkflow", 3, 1, 2, 3}}) {
    for (const Tier kv : {Tier::host, Tier::nvme}) {
      StepCase step = step_of(c, ParallelLayout{1, 1, 2, 1}, 1);
      step.strategy.kv = kv;
      step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
      step.sequence = (c.equal_work ? 64 : 16) * c.slices;
      check_random_orders(step);
    }
  }
}

}  // namespace longspan::testing
