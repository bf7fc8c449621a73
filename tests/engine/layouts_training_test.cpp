// Training over many layouts, pipelines included: a checkpoint is the model's and not the layout's,
// and the curve is that of one rank.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "engine/comm/local.h"
#include "engine/train/trainer.h"
#include "tests/engine/training_fixture.h"

namespace longspan::testing {
namespace {

constexpr int64_t kLength = 128, kSequences = 4;  // of a step

ModelSpec four_layers(bool tied) {
  ModelSpec m = byte_llama();
  m.layers = 4;
  m.hidden = 64;
  m.head_dim = 16;
  m.ffn = 128;
  m.tied_embeddings = tied;
  return m;
}

Plan plan_over(const ModelSpec& model, const ParallelLayout& parallel) {
  Strategy s;
  s.chunk_tokens = 16;
  s.block_tokens = parallel.tensor > 1 ? kLength : 32;
  s.layer_input.where = Saved::host;
  s.qkv.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
  s.parallel = parallel;
  return plan_for(model, s, kLength, kSequences / parallel.data);
}

// Calls `body` with the trainer of each rank. The communicator is null for one rank.
void on_ranks(const Plan& plan, int64_t steps,
              const std::function<void(Trainer&, const Communicator*)>& body) {
  TrainingConfig config;
  config.steps = steps;
  config.warmup_steps = steps / 10;
  config.learning_rate = 3e-3;
  config.min_learning_rate = 3e-4;
  const auto data = example_text(kLength);
  const auto run = [&](Communicator* comm) {
    Trainer trainer(plan, config, data,
                    {.compute_threads = 1,
                     .nvme_directory = std::filesystem::temp_directory_path(),
                     .poison = true,
                     .comm = comm});
    body(trainer, comm);
  };
  const auto ranks = static_cast<int>(plan.strategy.parallel.ranks());
  if (ranks == 1) {
    run(nullptr);
  } else {
    run_local_ranks(ranks, [&](Communicator& comm) { run(&comm); });
  }
}

std::vector<double> curve_of(const Plan& plan, int64_t steps) {
  std::vector<double> curve;
  on_ranks(plan, steps, [&](Trainer& trainer, const Communicator* comm) {
    for (int64_t i = 0; i < steps; ++i) {
      const double loss = trainer.step().loss;
      if (comm == nullptr || comm->rank() == 0) curve.push_back(loss);
    }
  });
  return curve;
}

std::filesystem::path scratch_file(const std::string& name) {
  return std::filesystem::temp_directory_path() /
         fmt::format("longspan-layouts-test-{}.safetensors", name);
}

std::vector<ParallelLayout> layouts() {
  return {{},
          {.ulysses = 2, .pipeline = {2, "1f1b"}},
          {.pipeline = {4, "seq1f1b", 1, 4}},
          {.pipeline = {4, "slimpipe", 1, 4}},
          {.data = 2, .zero = 2},
          {.data = 2, .zero = 2, .pipeline = {2, "interleaved-1f1b", 2}},
          {.ulysses = 2, .zero = 1, .pipeline = {2, "bfs", 2}},
          {.tensor = 2, .pipeline = {2, "gpipe"}},
          {.ulysses = 2, .zero = 3},
          {.pipeline = {3, "1f1b"}},
          {.pipeline = {4, "1f1b-vocab-1"}},
          {.ulysses = 2, .zero = 1, .pipeline = {2, "1f1b-vocab-2"}},
          {.data = 2, .zero = 2, .pipeline = {2, "1f1b-vocab-1"}}};
}

}  // namespace

TEST_CASE("every layout writes the same bytes of the same states, and continues from another's") {
  const bool tied = GENERATE(false, true);
  CAPTURE(tied);
  constexpr int64_t kSteps = 6;
  const ModelSpec model = four_layers(tied);
  const auto begin = scratch_file("begin"), half = scratch_file("half"),
             saved = scratch_file("saved"), next = scratch_file("next");
  std::vector<double> expected;  // of one rank
  on_ranks(plan_over(model, {}), kSteps, [&](Trainer& trainer, const Communicator*) {
    trainer.save_checkpoint(begin);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == 2) trainer.save_checkpoint(half);
      expected.push_back(trainer.step().loss);
    }
  });
  const std::string first = read_file(begin), middle = read_file(half);
  REQUIRE((first != middle));

  const std::vector<ParallelLayout> all = layouts();
  for (size_t i = 0; i < all.size(); ++i) {
    INFO(describe(all[i]));
    // Each rank writes to its own; Catch's checks are for one thread.
    std::vector<std::vector<double>> losses(all[i].ranks());
    std::string of_start, of_half, of_later;
    on_ranks(plan_over(model, all[i]), kSteps, [&](Trainer& trainer, const Communicator* comm) {
      const int rank = comm == nullptr ? 0 : comm->rank();
      const auto save = [&](std::string& bytes) {
        trainer.save_checkpoint(saved);
        if (rank == 0) bytes = read_file(saved);
      };
      save(of_start);
      trainer.resume(half);
      save(of_half);
      for (int64_t step = 2; step < 4; ++step) losses[rank].push_back(trainer.step().loss);
      save(of_later);
    });
    // In parentheses, as Catch would print megabytes.
    CHECK((of_start == first));
    CHECK((of_half == middle));

    // The next layout goes on.
    const ParallelLayout& other = all[(i + 1) % all.size()];
    INFO("then " << describe(other));
    std::vector<std::vector<double>> rest(other.ranks());
    std::string of_other;
    on_ranks(plan_over(model, other), kSteps, [&](Trainer& trainer, const Communicator* comm) {
      const int rank = comm == nullptr ? 0 : comm->rank();
      trainer.resume(saved);
      trainer.save_checkpoint(next);
      if (rank == 0) of_other = read_file(next);
      for (int64_t step = 4; step < kSteps; ++step) rest[rank].push_back(trainer.step().loss);
    });
    CHECK((of_other == of_later));
    for (const std::vector<double>& of_rank : losses) {
      for (int64_t step = 2; step < 4; ++step) {
        CHECK(of_rank.at(step - 2) == Approx(expected[step]).epsilon(1e-5));
      }
    }
    for (const std::vector<double>& of_rank : rest) {
      for (int64_t step = 4; step < kSteps; ++step) {
        CHECK(of_rank.at(step - 4) == Approx(expected[step]).epsilon(1e-5));
      }
    }
  }
  for (const auto& path : {begin, half, saved, next}) std::filesystem::remove(path);
}

TEST_CASE("50 steps on a real text learn the same curve on one rank and in pipelines", "[slow]") {
  constexpr int64_t kSteps = 50;
  ModelSpec model = four_layers(false);
  model.layers = 8;
  const std::vector<double> alone = curve_of(plan_over(model, {}), kSteps);
  CHECK(alone.front() == Approx(std::log(256.0)).margin(0.2));
  CHECK(alone.back() < 3.5);
  for (const ParallelLayout& parallel :
       {ParallelLayout{.pipeline = {4, "seq1f1b", 1, 4}},
        ParallelLayout{.pipeline = {4, "slimpipe", 2, 4}},
        ParallelLayout{.ulysses = 2, .pipeline = {2, "1f1b"}},
        ParallelLayout{.ulysses = 2, .pipeline = {4, "zb-v", 2}}}) {
    INFO(describe(parallel));
    Plan plan = plan_over(model, parallel);
    if (parallel.pipeline.schedule == "zb-v") {
      for (SavedPolicy* policy :
           {&plan.strategy.qkv, &plan.strategy.mlp_input, &plan.strategy.mlp_inner}) {
        policy->where = Saved::host;
      }
    }
    const std::vector<double> curve = curve_of(plan, kSteps);
    REQUIRE(curve.size() == alone.size());
    for (size_t i = 0; i < curve.size(); ++i) {
      INFO("step " << i + 1);
      CHECK(std::abs(curve[i] - alone[i]) <= 1e-3);
    }
  }
}

}  // namespace longspan::testing
