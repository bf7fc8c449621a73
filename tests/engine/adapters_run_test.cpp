// Adapters run: the numbers of the reference and of one rank, on any mesh, with exactly the
// predicted memory; files in peft's format.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "engine/train/adapter_files.h"
#include "engine/train/safetensors.h"
#include "engine/train/states.h"
#include "engine/train/trainer.h"
#include "models/adapters.h"
#include "models/training.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/training_fixture.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

namespace fs = std::filesystem;

ModelSpec with(const ModelSpec& model, const std::string& projections, int64_t rank = 3) {
  return with_adapters(model, {rank, 8, parse_projections(projections)});
}

std::vector<float> values_of(const Trainer& trainer, BufferId id) {
  std::vector<float> values(static_cast<size_t>(trainer.executor().program().bytes_of(id)) / 4);
  trainer.executor().read(id, values.data());
  return values;
}

std::vector<std::vector<float>> states_of(const Trainer& trainer) {
  const Program& p = trainer.executor().program();
  std::vector<std::vector<float>> states;
  for (const auto* buffers : {&p.parameters, &p.adam_m, &p.adam_v}) {
    for (const BufferId id : *buffers) {
      if (id >= 0) states.push_back(values_of(trainer, id));
    }
  }
  return states;
}

TrainingConfig short_training() {
  TrainingConfig config;
  config.steps = 20;
  config.learning_rate = 1e-2;
  return config;
}

}  // namespace

TEST_CASE("adapters of any projections give the numbers of the reference", "[adapters]") {
  int64_t turn = 0;
  for (const ModelSpec& model :
       {small_llama(), small_qwen(), small_gemma(), small_olmo(), in_windows(small_llama(), 12)}) {
    for (const char* projections : {"q_proj,v_proj", "all", "o_proj,down_proj", "k_proj,gate_proj",
                                    "up_proj", "v_proj,o_proj,up_proj"}) {
      for (const auto& [name, strategy] : strategies(16)) {
        if (!in_turn(turn++, 4)) continue;
        StepCase step;
        step.model = with(model, projections, 1 + turn % 5);
        step.strategy = strategy;
        step.strategy.projection_tile = turn % 3 == 0 ? 7 : 0;
        step.strategy.mlp_tile = turn % 5 == 0 ? 9 : 0;
        step.sequence = 64;
        step.microbatches = 1 + turn % 2;
        INFO(step.model.name << ", " << projections << ", " << name);
        check_against_reference(step, 1e-5);
      }
    }
  }
}

TEST_CASE("every kind of parallelism takes adapters", "[adapters]") {
  const std::vector<ParallelLayout> meshes = {
      ParallelLayout{1, 1, 2, 0}, ParallelLayout{2, 1, 1, 1}, ParallelLayout{2, 1, 1, 2},
      ParallelLayout{2, 1, 2, 3}, ParallelLayout{1, 2, 1, 0}, ParallelLayout{1, 2, 2, 3}};
  int64_t turn = 0;
  for (const ParallelLayout& mesh : meshes) {
    for (const char* projections : {"all", "q_proj,v_proj", "o_proj,gate_proj"}) {
      for (const auto& [name, strategy] : strategies(16)) {
        if (mesh.ring > 1 && name != "kept") continue;
        if (!in_turn(turn++, 3)) continue;
        const ModelSpec models[] = {model_with_heads(small_llama(), 8, 4),
                                    model_with_heads(small_gemma(), 8, 8)};
        StepCase step;
        step.model = with(models[turn / 3 % 2], projections);
        step.strategy = strategy;
        step.strategy.parallel = mesh;
        step.sequence = 64;
        step.microbatches = 1 + turn % 2;
        step.threads = 1;
        INFO(step.model.name << ", " << projections << ", " << describe(mesh) << ", " << name);
        check_against_one_rank(step);
      }
    }
  }
}

TEST_CASE("groups of heads, pipelines and slices take adapters", "[adapters]") {
  for (const auto& [name, strategy] : group_strategies(16)) {
    StepCase step;
    step.model = with(model_with_heads(small_llama(), 8, 2), "all");
    step.strategy = strategy;
    step.strategy.head_groups = 4;
    step.sequence = 16;
    INFO("groups, " << name);
    check_against_reference(step, 1e-5);
  }
  struct Case {
    const char* schedule;
    int64_t stages, virtual_stages, microbatches, slices;
  };
  for (const Case& c : {Case{"1f1b", 2, 1, 3, 1},
                        {"interleaved-1f1b", 2, 2, 4, 1},
                        {"seq1f1b", 2, 1, 2, 2},
                        {"1f1b-vocab-1", 2, 1, 4, 1}}) {
    StepCase step;
    step.model = small_llama();
    step.model.layers = 4;
    step.model = with(step.model, "q_proj,v_proj,down_proj");
    step.strategy = strategies(16)["kept"];
    step.strategy.parallel.pipeline = {c.stages, c.schedule, c.virtual_stages, c.slices};
    step.sequence = 64;
    step.microbatches = c.microbatches;
    step.threads = 1;
    INFO(c.schedule);
    check_against_one_rank(step);
  }
}

TEST_CASE("adapters are trained alone, and continue bit for bit", "[adapters]") {
  const ModelSpec model = with(byte_llama(), "all", 4);
  const Plan plan = plan_for(model, chunked_and_offloaded(32), 128);
  Trainer whole(plan, short_training(), example_text(128), {});
  const Program& p = whole.executor().program();
  std::vector<std::vector<float>> before;
  for (const BufferId id : p.parameters) before.push_back(values_of(whole, id));
  const double first = whole.step().loss;
  double last = first;
  for (int step = 1; step < 20; ++step) last = whole.step().loss;
  CHECK(last < first);
  const std::vector<ParameterUnit> units = parameter_units(model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    INFO("unit " << unit);
    CHECK((values_of(whole, p.parameters[unit]) == before[unit]) == !units[unit].trained);
  }

  const fs::path path = fs::temp_directory_path() / "longspan-adapters.safetensors";
  Trainer begun(plan, short_training(), example_text(128), {});
  for (int step = 0; step < 9; ++step) begun.step();
  begun.save_checkpoint(path);
  Trainer continued(plan, short_training(), example_text(128), {});
  continued.resume(path);
  for (int step = 9; step < 20; ++step) continued.step();
  CHECK(states_of(continued) == states_of(whole));
  CHECK(static_cast<int64_t>(fs::file_size(path)) == Approx(checkpoint_bytes(model)).margin(64));
  fs::remove(path);
}

TEST_CASE("adapters are written and read in peft's format", "[adapters]") {
  const ModelSpec model = with(byte_llama(), "q_proj,down_proj", 4);
  const Plan plan = plan_for(model, whole_sequence(128), 128);
  Trainer trainer(plan, short_training(), example_text(128), {});
  for (int step = 0; step < 3; ++step) trainer.step();
  const fs::path folder = fs::temp_directory_path() / "longspan-adapters";
  trainer.save_adapters(folder);
  const std::string config = read_file(folder / "adapter_config.json");
  CHECK(config.find("\"r\": 4") != std::string::npos);
  CHECK(config.find("\"peft_type\": \"LORA\"") != std::string::npos);
  SafetensorsFile file(folder / "adapter_model.safetensors");
  CHECK(file.entries().size() == 2 * 2 * static_cast<size_t>(model.layers));
  const auto entry =
      file.entries().find("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight");
  REQUIRE(entry != file.entries().end());
  CHECK(entry->second.shape == std::vector<int64_t>{4, model.ffn});

  Trainer other(plan, short_training(), example_text(128), {});
  other.load_adapters(folder);
  const Program& p = trainer.executor().program();
  for (const BufferId id : p.parameters) CHECK(values_of(other, id) == values_of(trainer, id));

  const auto refuses = [&](const ModelSpec& wanted, const char* what) {
    CHECK_THROWS_WITH(check_adapters(wanted, folder), Catch::Contains(what));
  };
  refuses(byte_llama(), "has none");
  refuses(with(byte_llama(), "q_proj,down_proj", 8), "r is 4");
  refuses(with(byte_llama(), "q_proj", 4), "target_modules");
  write_file_atomically(folder / "adapter_config.json",
                        R"({"r": 4, "lora_alpha": 8, "target_modules": "all-linear",
                            "use_rslora": true})");
  refuses(model, "use_rslora");
  fs::remove_all(folder);
}

TEST_CASE("models that cannot have adapters are refused by name", "[adapters]") {
  CHECK_THROWS_WITH(with(small_gpt(), "q_proj"), Catch::Contains("matrices of their own"));
  CHECK_THROWS_WITH(with(small_mixtral(), "up_proj"), Catch::Contains("experts"));
  CHECK_THROWS_WITH(parse_projections("q_proj,query"), Catch::Contains("query"));
  CHECK_NOTHROW(with(small_mixtral(), "q_proj,o_proj"));
}

}  // namespace longspan::testing
