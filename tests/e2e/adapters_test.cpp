// Frozen parts, adapters, weights in 4 bits and narrow moments through the command line.
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "engine/train/safetensors.h"
#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

std::string plan_of(const TemporaryFolder& folder, const std::vector<std::string>& more) {
  const std::string plan = folder.path() / "plan.yaml";
  const Result result = longspan(joined(
      {"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256", "-o", plan}, more));
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  CHECK_THAT(result.out, Contains("trained"));
  return plan;
}

json trained(const std::vector<std::string>& words, const std::string& record) {
  const Result result =
      longspan(joined(joined({"run"}, words), {"--lr", "1e-2", "--threads", "1", "-o", record}));
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  const json run = json::parse(read_text(record));
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(run.at("measured").at(tier) == run.at("predicted").at(tier));
  }
  return run;
}

// Every tensor of a checkpoint.
std::map<std::string, std::vector<float>> tensors_of(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, entry] : file.entries()) {
    int64_t elements = 1;
    for (const int64_t n : entry.shape) elements *= n;
    auto& values = tensors[name];
    values.resize(static_cast<size_t>(elements));
    file.read_float(name, values.data(), elements);
  }
  return tensors;
}

TEST_CASE("a plan with adapters trains them alone, stops, continues and writes them") {
  const TemporaryFolder folder;
  const std::string record = folder.path() / "run.json", end = folder.path() / "end";
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--lora", "4", "--strategy", "fpdt", "--chunk", "64"},
                                             {"--lora", "4", "--nf4"},
                                             {"--lora", "4", "--moments", "int8"},
                                             {"--lora", "4", "--optimizer", "host:0.5"}}) {
    const std::string plan = plan_of(folder, more);
    const std::string first = folder.path() / "first.safetensors",
                      last = folder.path() / "last.safetensors",
                      again = folder.path() / "again.safetensors";
    trained({plan, "--steps", "6", "--stop-after", "3", "--checkpoint", first}, record);
    trained({plan, "--steps", "6", "--checkpoint", last}, record);
    trained(
        {plan, "--steps", "6", "--resume", first, "--checkpoint", again, "--save-adapters", end},
        record);
    const auto then = tensors_of(first), whole = tensors_of(last);
    CHECK(tensors_of(again) == whole);
    for (const auto& [name, values] : whole) {
      INFO(name);
      const bool adapter = name.find("lora_") != std::string::npos;
      const bool moment = name.rfind("adam_", 0) == 0;
      CHECK((values == then.at(name)) == !adapter);
      CHECK((!moment || adapter));
    }
    const auto written = tensors_of(end + "/adapter_model.safetensors");
    const std::string name = "model.layers.0.self_attn.q_proj.lora_B.weight";
    CHECK(written.at("base_model.model." + name) == whole.at(name));
    trained({plan, "--steps", "1", "--adapters", end}, record);
  }
}

TEST_CASE("frozen parts keep their weights") {
  const TemporaryFolder folder;
  const std::string record = folder.path() / "run.json";
  const std::string first = folder.path() / "first.safetensors",
                    last = folder.path() / "last.safetensors";
  const std::string plan = plan_of(folder, {"--freeze", "embedding,layers 0"});
  trained({plan, "--steps", "20", "--stop-after", "1", "--checkpoint", first}, record);
  trained({plan, "--steps", "20", "--checkpoint", last}, record);
  const auto then = tensors_of(first), whole = tensors_of(last);
  for (const auto& [name, values] : whole) {
    INFO(name);
    const bool frozen = name.find("embed_tokens") != std::string::npos ||
                        name.find("layers.0.") != std::string::npos;
    CHECK((values == then.at(name)) == frozen);
    CHECK((name.rfind("adam_", 0) != 0 || !frozen));
  }
}

TEST_CASE("what cannot be trained is refused in one line") {
  const auto plan = [](const std::vector<std::string>& more) {
    return longspan(
        joined({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256"}, more));
  };
  check_refused(plan({"--freeze", "tail"}), 2, {"tail", "embedding, head, layers"});
  check_refused(plan({"--freeze", "layers 1-9"}), 2, {"layers 0-"});
  check_refused(plan({"--freeze", "embedding,head,layers"}), 2, {"nothing is left to train"});
  check_refused(plan({"--lora", "4", "--freeze", "head"}), 2, {"--freeze"});
  check_refused(plan({"--lora-alpha", "4"}), 2, {"--lora"});
  check_refused(plan({"--lora", "4", "--lora-targets", "qkv"}), 2, {"qkv", "q_proj"});
  check_refused(plan({"--nf4"}), 2, {"freeze"});
  check_refused(plan({"--masters", "bfloat16"}), 2, {"--masters", "computes in float32"});
  for (const char* place : {"gpu", "host:0", "host:1.5", "host:", "device:0.5", "host:0.5x"}) {
    check_refused(plan({"--optimizer", place}), 2, {"--optimizer", place, "fraction F in (0, 1]"});
  }
  check_refused(plan({"--optimizer", "host:0.5", "--pipeline", "2"}), 2, {"--optimizer", "stages"});
  check_refused(plan({"--optimizer", "host", "--forward-only"}), 2, {"leave --optimizer out"});
  check_refused(
      longspan({"plan", "--model", "tiny-gpt", "--hw", kHardware, "--seq", "256", "--lora", "4"}),
      2, {"matrices of their own"});
  const TemporaryFolder folder;
  const std::string usual = folder.path() / "plan.yaml";
  REQUIRE(
      longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256", "-o", usual})
          .status == 0);
  check_refused(longspan({"run", usual, "--save-adapters", folder.path()}), 2, {"--lora"});
}

}  // namespace
}  // namespace longspan::e2e
