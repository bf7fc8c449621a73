// Frozen parts run: the gradients of what is trained are those of the whole model's backward, on
// any mesh; what is frozen does not change, and has no states.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "engine/train/trainer.h"
#include "models/training.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/training_fixture.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

const char* const kFrozen[] = {"embedding",
                               "head",
                               "layers",
                               "layers 0",
                               "embedding,layers 0-1",
                               "embedding,head,layers 0",
                               "embedding,layers",
                               "layers 1,head"};

ModelSpec frozen_model(const ModelSpec& model, const std::string& parts) {
  return freeze(model, parse_frozen(parts, model));
}

std::vector<float> parameters_of(const Trainer& trainer, int unit) {
  const Program& p = trainer.executor().program();
  const BufferId id = p.parameters[static_cast<size_t>(unit)];
  std::vector<float> values(static_cast<size_t>(p.bytes_of(id)) / 4);
  trainer.executor().read(id, values.data());
  return values;
}

}  // namespace

TEST_CASE("what is trained has the gradients of the whole model", "[frozen]") {
  int64_t turn = 0;
  for (const ModelSpec& model : {small_gpt(), small_llama(), small_gemma(), small_olmo(),
                                 small_qwen_experts(), in_windows(small_llama(), 12)}) {
    for (const char* parts : kFrozen) {
      for (const auto& [name, strategy] : strategies(16)) {
        if (!in_turn(turn++, 3)) continue;
        StepCase step;
        step.model = frozen_model(model, parts);
        step.strategy = strategy;
        step.sequence = 64;
        step.microbatches = 1 + turn % 2;
        INFO(step.model.name << ", frozen " << parts << ", " << name);
        check_against_reference(step, 1e-5);
      }
    }
  }
}

TEST_CASE("every kind of parallelism takes frozen parts", "[frozen]") {
  const std::vector<ParallelLayout> meshes = {
      ParallelLayout{1, 1, 2, 0}, ParallelLayout{2, 1, 1, 1},
      ParallelLayout{2, 1, 1, 2}, ParallelLayout{2, 1, 2, 3},
      ParallelLayout{1, 2, 1, 0}, ParallelLayout{.data = 2, .zero = 3, .tensor = 2}};
  int64_t turn = 0;
  for (const ParallelLayout& mesh : meshes) {
    for (const char* parts : kFrozen) {
      for (const auto& [name, strategy] : strategies(16)) {
        if (mesh.ring > 1 && name != "kept") continue;
        if (!in_turn(turn++, 4)) continue;
        const ModelSpec models[] = {model_with_heads(small_gpt(), 8, 8),
                                    model_with_heads(small_llama(), 8, 4),
                                    model_with_heads(small_gemma(), 8, 8)};
        StepCase step;
        step.model = frozen_model(models[turn / 4 % 3], parts);
        step.strategy = strategy;
        step.strategy.parallel = mesh;
        step.sequence = 64;
        step.microbatches = 1 + turn % 2;
        step.threads = 1;
        INFO(step.model.name << ", frozen " << parts << ", " << describe(mesh) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("pipelines and slices take frozen parts that pass gradients on", "[frozen]") {
  struct Case {
    const char* schedule;
    int64_t stages, virtual_stages, microbatches, slices;
    const char* frozen;
  };
  for (const Case& c : {Case{"1f1b", 2, 1, 3, 1, "layers"},
                        {"1f1b", 3, 1, 3, 1, "head,layers 1"},
                        {"interleaved-1f1b", 2, 2, 4, 1, "layers 0-2"},
                        {"seq1f1b", 2, 1, 2, 2, "layers 1,head"},
                        {"1f1b-vocab-1", 2, 1, 4, 1, "embedding,layers 1"},
                        {"1f1b-vocab-2", 2, 1, 4, 1, "head"},
                        {"zb-h1", 2, 1, 4, 1, "embedding,head"}}) {
    StepCase step;
    step.model = small_llama();
    step.model.layers = 4;
    step.model = frozen_model(step.model, c.frozen);
    step.strategy = strategies(16)["kept"];
    step.strategy.parallel.pipeline = {c.stages, c.schedule, c.virtual_stages, c.slices};
    step.sequence = 64;
    step.microbatches = c.microbatches;
    step.threads = 1;
    INFO(c.schedule << ", frozen " << c.frozen);
    check_against_one_rank(step);
  }
}

TEST_CASE("frozen bytes are those of the start after twenty steps", "[frozen]") {
  for (const char* parts : {"embedding,layers 0", "layers", "head"}) {
    const ModelSpec model = frozen_model(byte_llama(), parts);
    TrainingConfig config;
    config.steps = 20;
    Trainer trainer(plan_for(model, whole_sequence(128), 128), config, example_text(128), {});
    const std::vector<ParameterUnit> units = parameter_units(model);
    std::vector<std::vector<float>> before;
    for (size_t unit = 0; unit < units.size(); ++unit) {
      before.push_back(parameters_of(trainer, static_cast<int>(unit)));
    }
    for (int step = 0; step < 20; ++step) trainer.step();
    const Program& p = trainer.executor().program();
    for (size_t unit = 0; unit < units.size(); ++unit) {
      INFO(parts << ", unit " << unit);
      CHECK((parameters_of(trainer, static_cast<int>(unit)) == before[unit]) ==
            !units[unit].trained);
      CHECK((p.adam_m[unit] < 0) == !units[unit].trained);
    }
  }
}

TEST_CASE("layers before the first trained one have no backward and save nothing", "[frozen]") {
  StepCase step;
  step.model = frozen_model(small_llama(), "embedding,layers 0-1");
  step.strategy = strategies(16)["kept"];
  step.sequence = 64;
  const Program program = program_of(step, 0);
  for (const Op& op : program.ops) {
    const bool backward = op.kind == OpKind::mlp_backward || op.kind == OpKind::qkv_backward;
    if (backward) CHECK(op.layer == 2);
    CHECK(op.kind != OpKind::embed_backward);
  }
  StepCase whole = step;
  whole.model = small_llama();
  int64_t elements = 0;
  for (const ParameterUnit& unit : parameter_units(step.model)) {
    if (!unit.trained) elements += unit.elements;
  }
  // Besides the moments, what the frozen layers would have saved.
  const int64_t saved = run_step(whole).arena_bytes[0] - run_step(step).arena_bytes[0];
  CHECK(saved > 8 * elements + 64 * 4 * 2 * step.model.inner_width());
}

}  // namespace longspan::testing
