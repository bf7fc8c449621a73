// longspan check, --on and export: the configs of other software, on the command line.
#include <catch2/catch.hpp>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

const std::string kExample = LONGSPAN_SOURCE "/examples/axolotl/axolotl.yaml";
constexpr const char* kMachine = "8xh100-80g";

const std::string kFits = R"(base_model: meta-llama/Llama-3.1-8B
sequence_len: 16384
micro_batch_size: 1
gradient_accumulation_steps: 2
gradient_checkpointing: true
bf16: true
attn_implementation: flash_attention_2
cut_cross_entropy: true
deepspeed: zero3.json
)";
const std::string kZero3 =
    R"({"zero_optimization": {"stage": 3,}, /* all */ "bf16": {"enabled": true}})";

TEST_CASE("check answers the example of the README") {
  const Result result = longspan({"check", kExample, "--hw", kMachine});
  INFO(result.err);
  CHECK(result.status == 1);
  for (const char* text : {"axolotl", "out of memory", "short by", "at peak", "step", "longest",
                           "context_parallel_size: 8"}) {
    CHECK_THAT(result.out, Contains(text));
  }
}

TEST_CASE("check's answer as JSON has its figures and adds up") {
  const TemporaryFolder folder;
  const std::string config = folder.file("axolotl.yaml", kFits);
  folder.file("zero3.json", kZero3);
  const auto answer = longspan_json({"check", config, "--hw", kMachine});
  CHECK(answer.at("framework") == "axolotl");
  CHECK(answer.at("verdict") == "fits");
  CHECK(answer.at("knobs").at("zero") == "3");
  CHECK(answer.at("sequence_tokens") == 16384);
  CHECK(answer.at("global_batch_sequences") == 16);
  double sum = 0;
  for (const auto& [name, bytes] : answer.at("breakdown").items()) sum += bytes.get<double>();
  CHECK(sum == Approx(answer.at("peak_bytes").at("device").get<double>()));
  CHECK(answer.at("step_seconds_range")[0] < answer.at("step_seconds"));
  CHECK(answer.at("longest_sequence_tokens") > 16384);
}

TEST_CASE("check's longest sequence fits, and a longer one does not") {
  const TemporaryFolder folder;
  const std::string config = folder.file("axolotl.yaml", kFits);
  folder.file("zero3.json", kZero3);
  const auto at = [&](int64_t tokens) {
    const Result r = longspan({"check", config, "--hw", kMachine, "--seq", std::to_string(tokens)});
    return r.status;
  };
  const int64_t longest =
      longspan_json({"check", config, "--hw", kMachine}).at("longest_sequence_tokens");
  CHECK(at(longest) == 0);
  CHECK(at(longest + longest / 2) == 1);
}

TEST_CASE("a change that check proposes has the effect that it says") {
  const TemporaryFolder folder;
  folder.file("zero3.json", kZero3);
  const std::string base = replaced(kFits, "cut_cross_entropy: true\n", "");
  const std::string before = folder.file("before.yaml", replaced(base, "16384", "131072"));
  const auto answer = longspan_json({"check", before, "--hw", kMachine}, 1);
  bool tried = false;
  for (const auto& change : answer.at("changes")) {
    const auto& settings = change.at("settings");
    const std::string key = settings[0].at("key"), value = settings[0].at("value");
    const bool plain = settings.size() == 1 && key.find('.') == std::string::npos;
    if (!plain || base.find(key) != std::string::npos) continue;
    CAPTURE(key, value);
    tried = true;
    const std::string after =
        folder.file("after.yaml", read_text(before) + key + ": " + value + "\n");
    const Result result = longspan({"check", after, "--hw", kMachine, "--json"});
    const auto changed = nlohmann::json::parse(result.out);
    CHECK(changed.at("verdict") == change.at("verdict"));
    const auto bytes = [](const auto& a) {
      return a.at("peak_bytes").at("device").template get<double>();
    };
    CHECK(bytes(answer) - bytes(changed) == Approx(change.at("saved_bytes").get<double>()));
    // For the same tokens, where the step has another number of sequences.
    const auto seconds = [](const auto& a) {
      return a.at("step_seconds").template get<double>() /
             a.at("global_batch_sequences").template get<double>();
    };
    const double batch = answer.at("global_batch_sequences");
    CHECK(batch * (seconds(changed) - seconds(answer)) ==
          Approx(change.at("paid_seconds").get<double>()).margin(1e-6));
  }
  CHECK(tried);
}

TEST_CASE("check leaves the memory of --reserve to others") {
  const TemporaryFolder folder;
  const std::string config = folder.file("axolotl.yaml", kFits);
  folder.file("zero3.json", kZero3);
  const auto free = longspan_json({"check", config, "--hw", kMachine});
  const Result less = longspan({"check", config, "--hw", kMachine, "--reserve", "70GiB", "--json"});
  CHECK(less.status == 1);
  CHECK(nlohmann::json::parse(less.out).at("verdict") == "out of memory");
  CHECK(free.at("verdict") == "fits");
}

TEST_CASE("check lists keys that the framework does not have") {
  const TemporaryFolder folder;
  folder.file("zero3.json", kZero3);
  const std::string config = folder.file("a.yaml", kFits + "gradient_chekpointing: true\nlr: 1\n");
  const auto answer = longspan_json({"check", config, "--hw", kMachine});
  CHECK(answer.at("unknown_keys") == nlohmann::json({"gradient_chekpointing", "lr"}));
}

TEST_CASE("check refuses what it cannot read in one line") {
  const TemporaryFolder folder;
  const std::string axolotl = folder.file("axolotl.yaml", kFits);
  const std::string script = folder.file("train.sh",
                                         "torchrun pretrain_gpt.py --num-layers 32 --hidden-size "
                                         "4096 --tensor-model-parallel-size 2\n");
  const auto refuses = [&](const std::vector<std::string>& files,
                           const std::vector<std::string>& texts) {
    check_refused(longspan(joined(joined({"check"}, files), {"--hw", kMachine})), 2, texts);
  };
  refuses({axolotl, script}, {"two frameworks", "axolotl", "megatron-lm"});
  refuses({folder.file("empty.yaml", "")}, {"empty.yaml"});
  refuses({folder.file("odd.yaml", "colour: red\n")}, {"odd.yaml", "no framework"});
  refuses({folder.file("twice.yaml", kFits + "bf16: true\n")}, {"twice.yaml:10", "given twice"});
  refuses({folder.file("word.yaml", replaced(kFits, "16384", "long"))},
          {"word.yaml:2", "sequence_len", "long"});
  refuses({folder.file("program.sh",
                       "torchrun pretrain_gpt.py --num-layers $(nproc) --hidden-size 64 "
                       "--num-attention-heads 4 --seq-length 64\n")},
          {"program.sh:1", "num_layers", "nproc"});
  refuses({folder.file("heads.yaml", kFits + "tensor_parallel_size: 3\n")}, {"8 GPUs"});
  const std::string lora = folder.file("lora.yaml", kFits + "adapter: lora\n");
  refuses({lora}, {"LoRA"});
  refuses({axolotl, axolotl}, {"given twice"});
  refuses({folder.path() / "missing.yaml"}, {"missing.yaml"});
}

TEST_CASE("a framework's longest sequence is one that check accepts") {
  const TemporaryFolder folder;
  for (const std::string framework : {"arctic-training", "trl", "megatron-lm"}) {
    CAPTURE(framework);
    const std::vector<std::string> question = {"--model", "llama-3.1-8b", "--hw",
                                               kMachine,  "--on",         framework};
    const auto longest = longspan_json(joined({"max-seq"}, question)).at("results")[0];
    const int64_t tokens = longest.at("sequence_tokens");
    REQUIRE(tokens > 65536);
    const std::string run = (folder.path() / framework).string();
    const Result plan = longspan(
        joined(joined({"plan"}, question), {"--seq", std::to_string(tokens), "--export", run}));
    INFO(plan.out << plan.err);
    REQUIRE(plan.status == 0);
    std::vector<std::string> files;
    for (const std::string& name : names_in(run)) {
      if (name != "README.md") files.push_back(run + "/" + name);
    }
    const Result check = longspan(
        joined(joined({"check"}, files), {"--hw", kMachine, "--model", "llama-3.1-8b", "--json"}));
    INFO(check.err);
    const auto answer = nlohmann::json::parse(check.out);
    CHECK(answer.at("framework") == framework);
    CHECK(answer.at("sequence_tokens") == tokens);
    CHECK(answer.at("verdict") != "out of memory");
  }
}

TEST_CASE("max-seq --on all has every framework, Longspan first") {
  const auto answer =
      longspan_json({"max-seq", "--model", "llama-3.1-8b", "--hw", kMachine, "--on", "all"});
  const auto& results = answer.at("results");
  CHECK(results.size() > 15);
  CHECK(results[0].at("framework") == "longspan");
  for (const auto& result : results) {
    CHECK(result.at("sequence_tokens") <= results[0].at("sequence_tokens"));
  }
}

TEST_CASE("settings given by --with stay") {
  const std::vector<std::string> question = {"max-seq", "--model", "llama-3.1-8b",   "--hw",
                                             kMachine,  "--on",    "arctic-training"};
  const auto free = longspan_json(question).at("results")[0];
  const auto fixed =
      longspan_json(joined(question, {"--with", "tiled_mlp_compute=false"})).at("results")[0];
  CHECK(fixed.at("predicted").at("knobs").at("mlp") == "whole");
  CHECK(fixed.at("sequence_tokens") < free.at("sequence_tokens"));
  check_refused(longspan(joined(question, {"--with", "tiled_mlp=false"})), 2,
                {"tiled_mlp", "tiled_mlp_compute"});
  check_refused(longspan(joined(question, {"--with", "tiled_mlp_compute"})), 2, {"KEY=VALUE"});
}

TEST_CASE("export writes a plan and says what cannot be said") {
  const TemporaryFolder folder;
  const std::string plan = (folder.path() / "plan.yaml").string();
  REQUIRE(
      longspan({"plan", "--model", "llama-3.1-8b", "--hw", kMachine, "--seq", "64K", "-o", plan})
          .status == 0);
  const std::string run = (folder.path() / "run").string();
  const Result result = longspan({"export", plan, "--to", "arctic-training", "-o", run});
  INFO(result.out << result.err);
  CHECK(result.status == 0);
  CHECK(names_in(run) == std::vector<std::string>{"README.md", "launch.sh", "train.yaml"});
  CHECK_THAT(read_text(run + "/train.yaml"), Contains("arctic-training"));
  CHECK_THAT(read_text(run + "/README.md"), Contains("cannot say"));
  check_refused(longspan({"export", plan, "--to", "arctic-training", "-o", plan}), 2,
                {"plan.yaml"});
}

TEST_CASE("export names what is trained otherwise in a plan") {
  const TemporaryFolder folder;
  const std::string plan = (folder.path() / "plan.yaml").string();
  REQUIRE(longspan({"plan", "--model", "llama-3.2-1b", "--hw", "h100-80g", "--seq", "8K", "--lora",
                    "16", "--nf4", "--strategy", "checkpoint", "-o", plan})
              .status == 0);
  const std::string run = (folder.path() / "run").string();
  REQUIRE(longspan({"export", plan, "--to", "trl", "-o", run}).status == 0);
  CHECK_THAT(read_text(run + "/README.md"), Contains("adapters") && Contains("nf4"));
}

}  // namespace
}  // namespace longspan::e2e
