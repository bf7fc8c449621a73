// Packed documents: any plan gives the loss and the gradients of the documents trained one by one.
#include <catch2/catch.hpp>
#include <random>

#include "planner/strategy/validity.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

constexpr double kTolerance = 1e-5;

// Documents shorter than a chunk, of several, of one token, and longer than the sequence.
Documents random_documents(uint64_t seed, int64_t sequence, int64_t chunk) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n) + 1; };
  std::map<int64_t, int64_t> counts;
  for (int64_t i = pick(3); i > 0; --i) {
    const int64_t most[] = {1, chunk, 3 * chunk, sequence, 2 * sequence};
    counts[pick(most[random() % 5])] += pick(3);
  }
  return Documents(counts);
}

// Without positions, the gradients of a bias of keys are rounding.
void without_table(ModelSpec& model) {
  if (model.positions != Positions::learned) return;
  model.positions = Positions::none;
  model.qkv_bias = false;
}

// Packs the case with documents, of which some have several tokens with a label: the gradients of
// queries and keys of others are rounding, as they are with a window of one key.
void pack(StepCase& step, uint64_t seed) {
  if (step.model.window == 1) step.model.window = 2;
  for (LayerRun& run : step.model.runs) run.window += run.window == 1 ? 1 : 0;
  const auto has_several = [&] {
    for (int64_t index = 0; index < case_sequences(step); ++index) {
      const std::vector<int32_t> begins = case_documents(step, index);
      for (size_t i = 4; i < begins.size(); ++i) {
        if (begins[i] == begins[i - 4]) return true;
      }
    }
    return false;
  };
  do {
    step.model.documents = random_documents(seed, step.model.of_sequence(step.sequence),
                                            step.model.of_sequence(step.strategy.chunk_tokens));
    seed += 1000;
  } while (!has_several());
}

ModelSpec packed(ModelSpec model, const Documents& documents) {
  model.documents = documents;
  return model;
}

}  // namespace

TEST_CASE("packed documents have the numbers of documents trained one by one", "[documents]") {
  const auto seeds = static_cast<uint64_t>(cases(200, 400));
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    StepCase step = seed % 3 == 0 ? random_case_with_experts(seed) : random_case(seed);
    without_table(step.model);
    pack(step, seed);
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    check_against_reference(step, kTolerance);
  }
}

TEST_CASE("ranks give the numbers of one rank with packed documents", "[documents]") {
  const std::vector<ModelSpec> models = {model_with_heads(small_llama(), 8, 2),
                                         model_with_heads(small_gemma(), 8, 2),
                                         model_with_heads(in_windows(small_llama(), 20), 8, 2)};
  int64_t turn = 0;
  for (const int64_t size : {2, 4}) {
    for (const ParallelLayout& parallel :
         {ParallelLayout{1, 1, size, 1}, ParallelLayout{size, 1, 1, 3},
          ParallelLayout{1, size, 1, 0}, ParallelLayout{2, 1, size / 2, 2},
          ParallelLayout{1, 2, size / 2, 1}}) {
      for (const auto& [name, strategy] : strategies(16)) {
        if (parallel.ring > 1 && name != "kept") continue;
        if (!in_turn(turn++, 3)) continue;
        StepCase step;
        step.strategy = strategy;
        step.strategy.parallel = parallel;
        step.sequence = parallel.ring > 1 ? 16 * 2 * parallel.ring : 64;
        step.model = packed(models[static_cast<size_t>(turn) % models.size()],
                            random_documents(static_cast<uint64_t>(turn), step.sequence, 16));
        step.microbatches = 1 + turn % 2;
        step.threads = 1;
        INFO(step.model.name << ", " << describe(parallel) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("stages and tensor groups give the numbers of one rank with packed documents",
          "[documents]") {
  for (int64_t turn = 0; turn < 6; ++turn) {
    StepCase step;
    step.strategy.chunk_tokens = 16;
    step.strategy.block_tokens = turn % 2 == 0 ? 16 : 64;
    step.sequence = 64;
    step.microbatches = 4;
    step.threads = 1;
    step.model = packed(model_with_heads(small_llama(), 8, 8),
                        random_documents(static_cast<uint64_t>(100 + turn), 64, 16));
    step.model.layers = 4;
    ParallelLayout& parallel = step.strategy.parallel;
    if (turn < 2) {
      step.strategy.block_tokens = 64;
      parallel.tensor = 2;
    } else {
      parallel.pipeline = {.stages = 2, .schedule = turn < 4 ? "seq1f1b" : "zb-h1"};
      if (turn < 4) parallel.pipeline.slices = 2;
      if (turn < 4) step.strategy.block_tokens = 16;
    }
    INFO("turn " << turn << ", " << describe(parallel));
    check_against_one_rank(step);
  }
}

TEST_CASE("one document of everything has the bits of a sequence without documents",
          "[documents]") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    StepCase step = seed % 2 == 0 ? random_case_with_experts(seed) : random_case(seed);
    without_table(step.model);
    INFO("seed " << seed << ", " << step.model.name);
    const StepOutcome without = run_step(step);
    step.model.documents = Documents({{step.sequence + 1, 1}});
    const StepOutcome packed = run_step(step);
    CHECK(packed.loss == without.loss);
    CHECK(packed.gradients == without.gradients);
    CHECK(packed.parameters == without.parameters);
  }
}

TEST_CASE("documents are weighted by their labels, and not one by one", "[documents]") {
  // The mean of the documents' means is another number.
  StepCase step;
  step.model = packed(small_llama(), Documents({{3, 1}, {40, 1}}));
  step.sequence = step.strategy.chunk_tokens = step.strategy.block_tokens = 60;
  step.microbatches = 3;
  check_against_reference(step, kTolerance);
}

}  // namespace longspan::testing
