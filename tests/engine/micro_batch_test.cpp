// Several sequences a microbatch: what as many microbatches of one sequence compute, on any ranks.
// numerics_test compares random plans with the reference.
#include <catch2/catch.hpp>

#include "planner/strategy/validity.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {
namespace {

StepCase batches_of(int64_t sequences, int64_t tokens, int64_t chunk) {
  StepCase step;
  step.model = model_with_heads(small_llama(), 8, 4);
  step.model.micro_batch = sequences;
  step.sequence = sequences * tokens;
  step.strategy.chunk_tokens = step.strategy.block_tokens = sequences * chunk;
  step.threads = 1;
  return step;
}

}  // namespace

TEST_CASE("a microbatch of sequences has the numbers of a microbatch for each", "[micro_batch]") {
  for (const int64_t chunk : {8, 16, 32}) {
    StepCase step = batches_of(4, 32, chunk);
    StepCase each = batches_of(1, 32, chunk);
    each.microbatches = 4;
    const StepOutcome together = run_step(step), apart = run_step(each);
    CHECK(together.loss == Approx(apart.loss).epsilon(1e-6));
    CHECK(together.gradient_norm == Approx(apart.gradient_norm).epsilon(1e-5));
  }
}

TEST_CASE("ranks give the numbers of one rank with several sequences a microbatch",
          "[micro_batch]") {
  // Runs of a rank's tokens are parts of a sequence, or several sequences.
  for (const int64_t sequences : {2, 3, 8}) {
    for (const ParallelLayout& parallel :
         {ParallelLayout{.ulysses = 4}, ParallelLayout{.data = 2, .ulysses = 2, .zero = 3},
          ParallelLayout{.ring = 2}, ParallelLayout{.ring = 2, .ulysses = 2},
          ParallelLayout{.tensor = 2}}) {
      StepCase step = batches_of(sequences, 64, 16);
      step.microbatches = 2;
      step.strategy.parallel = parallel;
      if (parallel.tensor > 1) step.strategy.block_tokens = step.sequence;
      INFO(sequences << " sequences, " << describe(parallel));
      REQUIRE(is_valid(step.strategy, step.model, step.sequence));
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("stages give the numbers of one rank with several sequences a microbatch",
          "[micro_batch]") {
  for (const char* schedule : {"1f1b", "seq1f1b", "zb-h1", "slimpipe"}) {
    StepCase step = batches_of(3, 64, 16);
    step.model.layers = 4;
    step.microbatches = 4;
    Pipeline& pipeline = step.strategy.parallel.pipeline;
    pipeline = {.stages = 2, .schedule = schedule};
    const bool sliced = pipeline.schedule == "seq1f1b" || pipeline.schedule == "slimpipe";
    if (sliced) pipeline.slices = 4;
    if (!sliced) step.strategy.block_tokens = step.sequence;
    INFO(schedule);
    REQUIRE(is_valid(step.strategy, step.model, step.sequence));
    check_against_one_rank(step);
  }
}

TEST_CASE("packed documents and windows are those of each sequence", "[micro_batch]") {
  for (const int64_t ring : {1, 2}) {
    StepCase step = batches_of(2, 64, 16);
    step.model.documents = Documents({{3, 2}, {30, 1}, {80, 1}});
    if (ring == 1) step.model.window = 20;
    step.strategy.parallel.ring = ring;
    step.strategy.parallel.ulysses = 2;
    INFO("ring " << ring);
    check_against_one_rank(step);
  }
}

}  // namespace longspan::testing
