// Slices of a sequence that pass all layers of one stage, one after another: how far they reach
// where the host limits the length, and every verb on such a plan.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/file.h"
#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

// A model of small layers; `shape`: name, layers, hidden, heads, kv_heads, head_dim and ffn.
std::string model_of(const std::string& shape) {
  return shape + R"(vocab: 256
max_positions: 1048576
norm: rmsnorm
activation: swiglu
positions: rope
norm_eps: 1e-5
rope_theta: 10000
tied_embeddings: false
)";
}

// Many layers whose input is much wider than their keys and values: few tokens fill the host, and a
// step takes a minute.
const std::string kDeep = model_of(R"(name: deep-gqa
layers: 400
hidden: 192
heads: 2
kv_heads: 1
head_dim: 8
ffn: 16
)");

json longest(const std::string& model, const std::vector<std::string>& more) {
  const json all = longspan_json(joined({"max-seq", "--model", model, "--hw", kHardware,
                                         "--nvme-capacity", "0", "--strategy", "auto"},
                                        more));
  return all.at("results")[0];
}

}  // namespace

TEST_CASE("slices reach half as far again where the host limits whole sequences, and train there") {
  const TemporaryFolder folder;
  const std::string model = folder.path() / "deep.yaml", plan = folder.path() / "plan.yaml";
  write_file_atomically(model, kDeep);
  const json whole = longest(model, {"--slices", "1"});
  CHECK(whole.at("limited_by") == "host memory");
  const int64_t tokens = whole.at("sequence_tokens");
  const int64_t further = tokens + tokens / 2 + 1;
  CHECK(longest(model, {}).at("sequence_tokens") >= further);

  const std::vector<std::string> ask = {"plan", "--model", model,
                                        "--hw", kHardware, "--nvme-capacity",
                                        "0",    "--seq",   std::to_string(further)};
  check_refused(longspan(joined(ask, {"--slices", "1"})), 1, {"host memory"});
  const json found = longspan_json(joined(ask, {"-o", plan}));
  CHECK(found.at("strategy").at("saved").at("layer_input").at("where") == "recompute");
  const Result run = longspan({"run", plan, "--steps", "1"});
  INFO(run.out << run.err);
  CHECK(run.status == 0);
  CHECK_THAT(run.out, Contains("host bytes") && Contains("equal"));
}

TEST_CASE("a plan of slices is planned, read, simulated, explained, run and compared") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml", record = folder.path() / "run.json";
  const json planned = longspan_json({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq",
                                      "512", "--pipeline", "1", "--slices", "4", "-o", plan});
  const json pipeline = planned.at("strategy").at("parallel").at("pipeline");
  CHECK(pipeline == json{{"stages", 1}, {"slices", 4}});
  CHECK_THAT(read_text(plan), Contains("pipeline: {stages: 1, slices: 4}"));

  const json simulated = longspan_json({"simulate", plan});
  CHECK(simulated.at("predicted").at("step_seconds") == planned.at("predicted").at("step_seconds"));
  const Result explained = longspan({"explain", plan});
  CHECK(explained.status == 0);
  CHECK_THAT(explained.out, Contains("4 of 128 tokens, each passes all layers before the next"));
  const Result run = longspan({"run", plan, "--steps", "3", "--lr", "1e-2", "-o", record});
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
  const json steps = json::parse(read_text(record)).at("steps");
  CHECK(steps[2].at("loss") < steps[0].at("loss"));
  CHECK(longspan({"compare", plan, record, "--tolerance", "1e12"}).status == 0);
}

TEST_CASE("stages with keys and values of slices on the host train longer sequences") {
  const TemporaryFolder folder;
  // Keys and values are as wide as a layer's input, and the device is small.
  const std::string model = folder.file("model.yaml", model_of(R"(name: deep-mha
layers: 16
hidden: 64
heads: 8
kv_heads: 8
head_dim: 8
ffn: 176
)"));
  const std::string machine = folder.file(
      "machine.yaml", replaced(replaced(read_text(kHardware), "nodes: 1", "nodes: 2"),
                               "memory_bytes: {value: 67108864", "memory_bytes: {value: 12582912"));
  const std::string plan = folder.path() / "plan.yaml", there = folder.path() / "there.yaml";
  const std::string record = folder.path() / "run.json";
  const json planned =
      longspan_json({"plan", "--model", model, "--hw", machine, "--seq", "3K", "--pipeline", "2",
                     "--schedule", "seq1f1b", "--nvme-capacity", "0", "-o", plan});
  CHECK(planned.at("strategy").at("kv") == "host");
  CHECK(planned.at("strategy").at("parallel").at("pipeline").at("stages") == 2);
  const Result run = longspan({"run", plan, "--local-ranks", "2", "--steps", "2", "-o", record});
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
  CHECK_THAT(longspan({"compare", plan, record, "--tolerance", "1e12"}).out,
             Contains("Memory: equal to the byte"));
  // Nothing else that the search has makes them fit on the device.
  write_file_atomically(there,
                        without_record(replaced(read_text(plan), "  kv: host", "  kv: device")));
  check_refused(longspan({"run", there, "--local-ranks", "2", "--steps", "1"}), 1, {"device"});
}

TEST_CASE("max-seq tries keys and values of many slices on every tier, as plan does") {
  const TemporaryFolder folder;
  const std::string model = write_model(folder, 8);
  const std::string machine = write_machine(folder, 4);
  const json found = longspan_json({"max-seq", "--model", model, "--hw", machine, "--pipeline", "4",
                                    "--slices", "128", "--device-memory", "16MiB", "--microbatches",
                                    "2", "--strategy", "auto"});
  CHECK(found.at("results").at(0).at("sequence_tokens") >= 48 * 1024);  // 48K is planned
  CHECK(found.at("results").at(0).at("knobs").at("kv") != "device");
}

TEST_CASE("slices that cannot be are refused in one line") {
  const auto ask = [](const std::vector<std::string>& more) {
    return longspan(
        joined({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "512"}, more));
  };
  check_refused(ask({"--slices", "4", "--strategy", "fpdt"}), 2, {"--slices", "strategy auto"});
  check_refused(ask({"--slices", "4", "--pipeline", "1", "--schedule", "seq1f1b"}), 2,
                {"--pipeline", "one stage has no schedule"});
  check_refused(ask({"--slices", "512"}), 2,
                {"--slices: 512 tokens cannot be cut into 512 slices of 64 tokens or more"});
}

}  // namespace longspan::e2e
