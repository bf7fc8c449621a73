// Forwards alone: the loss of the training step, bit for bit, and the log-probabilities of the
// plain double-precision reference, on one rank and on several, in exactly the predicted memory.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/engine/world_runner.h"
#include "tests/length.h"
#include "tests/reference/reference.h"

namespace longspan::testing {
namespace {

StepCase forward_of(StepCase step) {
  step.strategy = for_forward(std::move(step.strategy));
  return step;
}

std::vector<std::vector<double>> weights_of(const StepCase& step) {
  std::vector<std::vector<double>> weights;
  for (const std::vector<float>& unit : case_weights(step)) {
    weights.emplace_back(unit.begin(), unit.end());
  }
  return weights;
}

// Later tokens do not change the loss of earlier ones, so the sum over some first tokens is the
// loss of these alone.
void check_log_probs(const StepCase& step, int64_t sequence, const std::vector<float>& log_probs) {
  const std::vector<std::vector<double>> weights = weights_of(step);
  const std::vector<int32_t> tokens = case_tokens(step, sequence);
  REQUIRE(log_probs.size() + 1 == tokens.size());
  for (const size_t count : {size_t{1}, log_probs.size() / 3 + 1, log_probs.size()}) {
    const std::vector<int32_t> first(tokens.begin(),
                                     tokens.begin() + static_cast<int64_t>(count) + 1);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum -= static_cast<double>(log_probs[i]);
    CAPTURE(sequence, count);
    CHECK(sum / static_cast<double>(count) ==
          Approx(reference::forward(step.model, weights, first)).epsilon(1e-5));
  }
}

void check_forward(const StepCase& training) {
  const StepCase step = forward_of(training);
  const StepOutcome trained = run_step(training), alone = run_step(step);
  CHECK(alone.loss == trained.loss);
  CHECK(alone.high_water_bytes == alone.arena_bytes);
  CHECK(alone.arena_bytes[0] < trained.arena_bytes[0]);
  for (int64_t i = 0; i < case_sequences(step); ++i) check_log_probs(step, i, alone.log_probs[i]);
  // Nothing has changed.
  const std::vector<std::vector<float>> weights = case_weights(step);
  CHECK(alone.parameters == weights);
}

}  // namespace

TEST_CASE("a forward alone has the loss of its training step, bit for bit") {
  const int64_t plans = cases(12, 80);
  for (int64_t seed = 1; seed <= plans; ++seed) {
    StepCase step = random_case(static_cast<uint64_t>(seed));
    // Layers on a share of the tokens see other tokens than those before them.
    if (seed % 4 == 0) step.model = in_windows(small_llama(), 5 + seed);
    step.random_order.reset();
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    check_forward(step);
    StepCase experts = random_case_with_experts(static_cast<uint64_t>(seed));
    INFO(experts.model.name << ", " << experts.sequence << " tokens");
    check_forward(experts);
    // The auxiliary loss is a part of the loss, and not of the log-probabilities.
    experts.model = balanced(experts.model);
    if (seed % 3 == 0) CHECK(run_step(forward_of(experts)).loss == run_step(experts).loss);
  }
}

TEST_CASE("forwards alone give the same bits in any legal order") {
  for (uint64_t seed = 31; seed <= 38; ++seed) {
    StepCase step = forward_of(random_case(seed));
    INFO("seed " << seed);
    const StepOutcome in_order = run_step(step);
    step.random_order = seed;
    const StepOutcome shuffled = run_step(step);
    CHECK(shuffled.loss == in_order.loss);
    CHECK(shuffled.log_probs == in_order.log_probs);
  }
}

TEST_CASE("slices of a forward alone pass once, and free keys and values as the last one passes") {
  for (const Tier kv : {Tier::device, Tier::host, Tier::nvme}) {
    for (const int64_t per_slice : {1, 2}) {
      StepCase step;
      step.model = per_slice == 1 ? small_llama() : in_windows(small_llama(), 20);
      step.model.runs.clear();
      step.model.window = per_slice == 1 ? 0 : 20;
      step.sequence = 64;
      step.microbatches = 2;
      Strategy& s = step.strategy;
      s.chunk_tokens = 16 / per_slice;
      s.block_tokens = 16;
      s.kv = kv;
      s.parallel.pipeline.slices = 4;  // slices that pass again sum their losses in another order
      INFO(name_of(kv) << ", " << per_slice << " chunks a slice");
      check_forward(step);
    }
  }
}

TEST_CASE("a forward alone of packed documents has no log-probability where there is no label") {
  for (const int64_t ring : {1, 2}) {
    StepCase step;
    step.model = model_with_heads(small_llama(), 8, 4);
    step.model.documents = Documents(std::map<int64_t, int64_t>{{5, 3}, {20, 2}, {40, 1}});
    step.sequence = 64;
    step.threads = 1;
    step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
    step.strategy.parallel.ring = ring;
    const WorldOutcome trained = run_world(step), world = run_world(forward_of(step));
    int64_t labels = 0, expected = 0;
    double sum = 0;
    for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
      CHECK(world.ranks[rank].loss == trained.ranks[rank].loss);
      for (const float value : world.ranks[rank].log_probs[0]) {
        if (std::isnan(value)) continue;
        ++labels;
        sum -= static_cast<double>(value);
      }
    }
    const std::vector<int32_t> begins = case_documents(step, 0);
    for (size_t i = 1; i < begins.size(); ++i) expected += begins[i] == begins[i - 1] ? 1 : 0;
    CHECK(labels == expected);
    CHECK(sum / static_cast<double>(labels) == Approx(trained.ranks[0].loss).epsilon(1e-6));
  }
}

TEST_CASE("ranks that share a forward alone have the loss of their training step") {
  const ModelSpec models[] = {model_with_heads(small_llama(), 8, 4),
                              model_with_heads(small_gpt(), 8, 8),
                              model_with_heads(small_mixtral(), 8, 4)};
  int turn = 0;
  for (const ParallelLayout& parallel :
       {ParallelLayout{.data = 2, .zero = 3}, ParallelLayout{.data = 2, .zero = 0},
        ParallelLayout{.ulysses = 2, .zero = 3}, ParallelLayout{.ulysses = 4, .zero = 1},
        ParallelLayout{.ring = 2, .zero = 3}, ParallelLayout{.ring = 2, .ulysses = 2, .zero = 2},
        ParallelLayout{.data = 2, .ulysses = 2, .zero = 3}, ParallelLayout{.tensor = 2},
        ParallelLayout{.data = 2, .zero = 3, .tensor = 2}}) {
    for (const bool on_host : {false, true}) {
      StepCase step;
      step.model = models[turn++ % 3];
      step.sequence = 64;
      step.microbatches = 2;
      step.threads = 1;
      Strategy& s = step.strategy;
      s.chunk_tokens = 16;
      s.block_tokens = parallel.tensor > 1 ? 64 : 16;
      s.parallel = parallel;
      if (on_host && parallel.zero % 3 == 0) s.parameters = s.gradients = s.optimizer = Tier::host;
      if (on_host && parallel.ring == 1) s.kv = s.between_uses = Tier::host;
      INFO(step.model.name << ", " << describe(parallel) << ", on host " << on_host);
      const StepCase alone = forward_of(step);
      const WorldOutcome trained = run_world(step), world = run_world(alone);
      std::vector<std::vector<float>> all(step.microbatches * parallel.data);
      for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
        const StepOutcome& own = world.ranks[rank];
        CHECK(own.loss == trained.ranks[rank].loss);
        CHECK(own.high_water_bytes == own.arena_bytes);
        CHECK(world.sent[rank] == world.predicted_sent[rank]);
        const int64_t replica = place_of(alone.strategy.parallel, static_cast<int64_t>(rank)).data;
        for (int64_t m = 0; m < step.microbatches; ++m) {
          std::vector<float>& of_sequence = all[m * parallel.data + replica];
          of_sequence.resize(step.sequence, std::nanf(""));
          for (int64_t i = 0; i < step.sequence; ++i) {
            if (!std::isnan(own.log_probs[m][i])) of_sequence[i] = own.log_probs[m][i];
          }
        }
      }
      for (size_t i = 0; i < all.size(); ++i) {
        check_log_probs(alone, static_cast<int64_t>(i), all[i]);
      }
    }
  }
}

}  // namespace longspan::testing
