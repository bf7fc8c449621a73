// Optimizer states of some layers on the device, of others on the host or in a file: the bits of
// either alone, exactly the bytes of each, checkpoints that continue bit for bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "base/units.h"
#include "engine/train/trainer.h"
#include "planner/program/layout.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/training_fixture.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {
namespace {

constexpr double kFractions[] = {0.01, 0.4, 0.5, 0.9, 0.999, 1};

StepCase placed(const ModelSpec& model, Strategy strategy, Tier tier, double fraction) {
  StepCase step;
  step.model = model;
  step.strategy = std::move(strategy);
  step.strategy.optimizer = tier;
  step.strategy.optimizer_fraction = fraction;
  step.sequence = 64;
  return step;
}

// Bytes of the moments of the units whose first one is on a tier.
int64_t moments_on(const Program& p, Tier tier) {
  int64_t bytes = 0;
  for (const auto* moments : {&p.adam_m, &p.adam_v}) {
    for (const BufferId id : *moments) {
      if (id >= 0 && p.buffers[id].tier == tier) bytes += round_up(p.bytes_of(id), kArenaAlignment);
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("any fraction of the optimizer off the device gives the bits of none", "[place]") {
  for (const ModelSpec& model : {small_llama(), small_gpt(), small_mixtral(), small_glm()}) {
    for (const Tier tier : {Tier::host, Tier::nvme}) {
      for (const int variant : {0, 1, 2}) {
        const bool early = variant == 1;
        Strategy strategy = strategies(16)["kept"];
        strategy.early_update = early;
        const StepCase on_device = placed(model, strategy, Tier::device, 1);
        const StepOutcome here = run_step(on_device);
        const int64_t all = moments_on(program_of(on_device, 0), Tier::device);
        if (variant == 2) strategy.gradients = Tier::host;
        int64_t before = 0;
        for (const double fraction : kFractions) {
          INFO(model.name << ", " << name_of(tier) << ", " << fraction << ", variant " << variant);
          const StepCase step = placed(model, strategy, tier, fraction);
          check_against_reference(step, 1e-5);
          const StepOutcome outcome = run_step(step);
          CHECK(outcome.loss == here.loss);
          CHECK(outcome.gradient_norm == here.gradient_norm);
          CHECK(outcome.parameters == here.parameters);
          const Program p = program_of(step, 0);
          CHECK(moments_on(p, Tier::device) + moments_on(p, tier) == all);
          CHECK(moments_on(p, tier) >= before);
          before = moments_on(p, tier);
        }
        CHECK(before == all);
      }
    }
  }
}

TEST_CASE("the last layers' states are off the device, in whole layers of each kind", "[place]") {
  ModelSpec model = small_llama();
  model.layers = 5;
  const Program p =
      program_of(placed(model, strategies(16)["kept"], Tier::host, 0.5), 0);  // 3 of 5 layers
  const std::vector<Tier> expected = {Tier::device, Tier::device, Tier::device, Tier::host,
                                      Tier::host,   Tier::host,   Tier::host};
  for (size_t unit = 0; unit < expected.size(); ++unit) {
    INFO("unit " << unit);
    CHECK(p.buffers[p.adam_m[unit]].tier == expected[unit]);
    CHECK(p.buffers[p.adam_v[unit]].tier == expected[unit]);
    CHECK(p.buffers[p.parameters[unit]].tier == expected[unit]);
  }
}

TEST_CASE("ranks that share states have a fraction of them off the device", "[place]") {
  for (const int64_t zero : {0, 1, 2, 3}) {
    for (const double fraction : {0.01, 0.5, 0.9}) {
      StepCase step = placed(small_llama(), strategies(16)["kept"], Tier::host, fraction);
      step.strategy.parallel = {.data = 2, .zero = zero};
      step.strategy.early_update = zero % 2 == 1;
      if (fraction == 0.5) step.strategy.gradients = Tier::host;
      if (zero % 2 == 0) step.microbatches = 2;
      step.strategy.moments = zero == 2 ? MomentFormat::int8 : MomentFormat::float32;
      step.threads = 1;
      INFO("zero " << zero << ", " << fraction);
      check_against_one_rank(step);
    }
  }
}

TEST_CASE("training with a fraction of the optimizer off the device continues bit for bit",
          "[place]") {
  TrainingConfig config;
  config.steps = 8;
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "longspan-place.safetensors";
  const auto weights = [](const Trainer& trainer) {
    const Program& p = trainer.executor().program();
    std::vector<std::vector<std::byte>> states;
    for (const auto* buffers : {&p.parameters, &p.adam_m, &p.adam_v}) {
      for (const BufferId id : *buffers) {
        auto& bytes = states.emplace_back(static_cast<size_t>(p.bytes_of(id)));
        trainer.executor().read(id, bytes.data());
      }
    }
    return states;
  };
  std::vector<std::vector<std::byte>> expected;
  for (const auto& [tier, fraction] :
       {std::pair{Tier::device, 1.0}, {Tier::host, 0.5}, {Tier::nvme, 0.5}, {Tier::host, 1.0}}) {
    Strategy strategy = whole_sequence(128);
    strategy.optimizer = tier;
    strategy.optimizer_fraction = fraction;
    INFO(name_of(tier) << ", " << fraction);
    const Plan plan = plan_for(byte_llama(), strategy, 128);
    Trainer whole(plan, config, example_text(128), {}), begun(plan, config, example_text(128), {});
    for (int step = 0; step < 8; ++step) whole.step();
    if (expected.empty()) expected = weights(whole);
    CHECK(weights(whole) == expected);
    for (int step = 0; step < 3; ++step) begun.step();
    begun.save_checkpoint(path);
    Trainer continued(plan, config, example_text(128), {});
    continued.resume(path);
    for (int step = 3; step < 8; ++step) continued.step();
    CHECK(weights(continued) == expected);
  }
  std::filesystem::remove(path);
}

}  // namespace longspan::testing
