#include "engine/train/trainer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "engine/train/safetensors.h"
#include "engine/train/states.h"
#include "tests/engine/training_fixture.h"

namespace longspan::testing {
namespace {

constexpr int64_t kSequence = 256;

std::vector<double> losses(const Strategy& strategy, int64_t steps, const TrainingConfig& config) {
  Trainer trainer(plan_for(byte_llama(), strategy, kSequence), config, example_text(kSequence),
                  {.nvme_directory = std::filesystem::temp_directory_path()});
  std::vector<double> curve;
  for (int64_t i = 0; i < steps; ++i) curve.push_back(trainer.step().loss);
  return curve;
}

TrainingConfig config_for(int64_t steps) {
  TrainingConfig config;
  config.steps = steps;
  config.warmup_steps = steps / 10;
  config.learning_rate = 1e-3;
  config.min_learning_rate = 1e-4;
  return config;
}

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::temp_directory_path() / ("longspan-trainer-test-" + name);
}

}  // namespace

TEST_CASE("200 steps on a real text learn, and chunked and offloaded learns the same curve",
          "[slow]") {
  const TrainingConfig config = config_for(200);
  const std::vector<double> whole = losses(whole_sequence(kSequence), 200, config);
  const std::vector<double> chunked = losses(chunked_and_offloaded(64), 200, config);
  CHECK(whole.front() == Approx(std::log(256.0)).margin(0.2));
  double last = 0;
  for (size_t i = 190; i < 200; ++i) last += whole[i] / 10;
  CHECK(last < 2.6);
  for (size_t i = 0; i < whole.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(std::abs(whole[i] - chunked[i]) <= 1e-3);
  }
}

TEST_CASE("stop and resume gives the same bits, under another plan too") {
  const TrainingConfig config = config_for(4);
  const auto data = example_text(kSequence);
  const TrainerOptions options{.nvme_directory = std::filesystem::temp_directory_path()};
  const auto path = scratch("resume.safetensors"), end = scratch("end.safetensors");
  const Plan plan = plan_for(byte_llama(), chunked_and_offloaded(64), kSequence, 2);

  Trainer through(plan, config, data, options);
  for (int i = 0; i < 4; ++i) {
    if (i == 2) through.save_checkpoint(path);
    through.step();
  }
  through.save_checkpoint(end);
  const std::string expected = read_file(end);

  Trainer resumed(plan, config, data, options);
  resumed.resume(path);
  CHECK(resumed.steps_done() == 2);
  for (int i = 2; i < 4; ++i) resumed.step();
  resumed.save_checkpoint(end);
  CHECK(read_file(end) == expected);

  // The file is the model's, not the plan's: another strategy reads it and goes on alike.
  Trainer other(plan_for(byte_llama(), whole_sequence(kSequence), kSequence, 2), config, data,
                options);
  other.resume(path);
  const double loss = other.step().loss;
  Trainer again(plan, config, data, options);
  again.resume(path);
  CHECK(loss == Approx(again.step().loss).margin(1e-4));
  std::filesystem::remove(path);
  std::filesystem::remove(end);
}

TEST_CASE("an early update clips by the norm of the step before, across a resume too") {
  const auto data = example_text(kSequence);
  const TrainerOptions options{.nvme_directory = std::filesystem::temp_directory_path()};
  const auto path = scratch("early.safetensors");
  const auto plan = [](bool early) {
    Strategy s = chunked_and_offloaded(64);
    s.early_update = early;
    return plan_for(byte_llama(), s, kSequence, 2);
  };
  const auto first_unit = [](const Trainer& trainer) {
    const Program& program = trainer.executor().program();
    std::vector<float> values(program.bytes_of(program.parameters[1]) / 4);
    trainer.executor().read(program.parameters[1], values.data());
    return values;
  };
  TrainingConfig config = config_for(4);
  config.clip_norm = 0;
  Trainer late(plan(false), config, data, options), early(plan(true), config, data, options);
  for (int i = 0; i < 2; ++i) CHECK(late.step().gradient_norm == early.step().gradient_norm);
  CHECK(first_unit(late) == first_unit(early));

  // The first step is not clipped. The second is, by the norm of the first: as an update after the
  // backward that clips to the same share.
  config.clip_norm = 0.01;
  Trainer clipped(plan(true), config, data, options);
  const double before = clipped.step().gradient_norm;
  REQUIRE(before > config.clip_norm);
  clipped.save_checkpoint(path);
  const double norm = clipped.step().gradient_norm;
  Trainer resumed(plan(true), config, data, options);
  resumed.resume(path);
  resumed.step();
  CHECK(first_unit(resumed) == first_unit(clipped));
  config.clip_norm *= norm / before;
  Trainer same(plan(false), config, data, options);
  same.resume(path);
  same.step();
  const std::vector<float> expected = first_unit(same), got = first_unit(clipped);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(got[i] == Approx(expected[i]).margin(1e-7));
  std::filesystem::remove(path);
}

TEST_CASE("a checkpoint's size is known before it is written, and what is broken is not loaded") {
  const TrainerOptions options{.nvme_directory = std::filesystem::temp_directory_path()};
  const Plan plan = plan_for(byte_llama(), whole_sequence(kSequence), kSequence);
  const auto path = scratch("sized.safetensors");
  Trainer trainer(plan, config_for(8), example_text(kSequence), options);
  trainer.save_checkpoint(path);
  // Room is left for a larger number of steps.
  const auto written = static_cast<int64_t>(std::filesystem::file_size(path));
  CHECK(checkpoint_bytes(plan.model) >= written);
  CHECK(checkpoint_bytes(plan.model) <= written + 32);
  CHECK_NOTHROW(trainer.resume(path));

  // A NaN in a file without checksums, as earlier versions wrote them.
  const SafetensorsFile file(path);
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, entry] : file.entries()) {
    tensors.push_back({name, entry.shape, [&file, name = name](float* out) {
                         const SafetensorsEntry& e = file.entries().at(name);
                         file.read_float(name, out, (e.end - e.begin) / 4);
                         if (name == "adam_v.lm_head.weight") out[7] = std::nanf("");
                       }});
  }
  const auto spoilt = scratch("spoilt.safetensors");
  write_safetensors(spoilt, tensors, file.metadata());
  CHECK_THROWS_WITH(trainer.resume(spoilt), Catch::Contains("adam_v.lm_head.weight: holds nan"));
  std::filesystem::remove(path);
  std::filesystem::remove(spoilt);
}

TEST_CASE("a plan that does not fit is refused before anything is allocated") {
  for (const int tier : {0, 1, 2}) {
    Plan plan = plan_for(byte_llama(), chunked_and_offloaded(64), kSequence);
    Figure* const capacity[] = {&plan.hardware.device.memory_bytes,
                                &plan.hardware.host.memory_bytes,
                                &plan.hardware.nvme.capacity_bytes};
    Trainer fits(plan, config_for(1), example_text(kSequence),
                 {.nvme_directory = std::filesystem::temp_directory_path()});
    const int64_t peak = fits.executor().arena_bytes()[tier];
    const auto make = [&] {
      Trainer trainer(plan, config_for(1), example_text(kSequence),
                      {.nvme_directory = std::filesystem::temp_directory_path()});
    };
    capacity[tier]->value = static_cast<double>(peak);
    CHECK_NOTHROW(make());
    capacity[tier]->value = static_cast<double>(peak - 1);
    try {
      make();
      FAIL("one byte less was not refused");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::no_fit);
      CHECK_THAT(error.what(), Catch::Contains("short by 1 B"));
    }
  }
}

TEST_CASE("an op that fails ends the step with its error instead of hanging") {
  class Broken final : public TokenSource {
   public:
    void sample(int64_t, int64_t, int64_t, int64_t, int32_t*) const override {
      throw failed("the disk is gone");
    }
    int64_t tokens() const override { return 1 << 20; }
  };
  Trainer trainer(plan_for(byte_llama(), chunked_and_offloaded(64), kSequence), config_for(1),
                  std::make_shared<Broken>(),
                  {.nvme_directory = std::filesystem::temp_directory_path()});
  CHECK_THROWS_WITH(trainer.step(), "the disk is gone");
}

TEST_CASE("a plan for another backend or dtype is refused by name") {
  Plan plan = plan_for(byte_llama(), whole_sequence(kSequence), kSequence);
  plan.hardware.device.backend = "cuda";
  CHECK_THROWS_WITH(Trainer(plan, config_for(1), example_text(kSequence), {}),
                    Catch::Contains("cuda"));
  plan.hardware.device.backend = "cpu";
  plan.dtype = DType::bfloat16;
  CHECK_THROWS_WITH(Trainer(plan, config_for(1), example_text(kSequence), {}),
                    Catch::Contains("bfloat16"));
}

}  // namespace longspan::testing
