// Every kind of bad input: status 2, one line that says what is wrong, where, and what to try.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using nlohmann::json;
using testing::TemporaryFolder;

const std::string kModel =
    "name: small\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 2\nffn: 128\nvocab: 256\n"
    "max_positions: 512\nnorm: rmsnorm\nactivation: swiglu\npositions: rope\nnorm_eps: 1e-5\n"
    "rope_theta: 10000\n";

// One bad input: the text to replace, the replacement, and what the message must contain.
struct Edit {
  std::string from, to;
  std::vector<std::string> says;
};

TEST_CASE("the model and the hardware must exist") {
  check_refused(longspan({"max-seq", "--model", "lama-3.1-8b", "--hw", kHardware}), 2,
                {"lama-3.1-8b", "llama-3.1-8b"});
  check_refused(longspan({"max-seq", "--model", "tiny-llama", "--hw", "h100-80x"}), 2,
                {"h100-80x", "h100-80g"});
  check_refused(
      longspan({"max-seq", "--model", "tiny-llama", "--hw", kHardware, "--strategy", "fpdtt"}), 2,
      {"fpdtt"});
}

TEST_CASE("a model file is checked field by field") {
  const std::vector<Edit> edits = {
      {"layers: 2", "layers: 2\n  hidden: [", {":3:"}},
      {"layers: 2\n", "", {"layers", "missing"}},
      {"layers: 2", "layers: -2", {":2:1", "layers", "-2"}},
      {"layers: 2", "layers: 0", {"layers", "0"}},
      {"ffn: 128", "ffn: 99999999999999999999", {"ffn"}},
      {"ffn: 128", "ffn: many", {"ffn", "many"}},
      {"ffn: 128", "ffn: 128\nffm: 1", {"ffm", "ffn"}},
      {"norm_eps: 1e-5", "norm_eps: nan", {"norm_eps", "nan"}},
      {"norm_eps: 1e-5", "norm_eps: 1e999", {"norm_eps"}},
      {"kv_heads: 2", "kv_heads: 3", {"kv_heads", "3"}},
      {"heads: 4\n", "heads: 7\n", {"head_dim"}},
  };
  const TemporaryFolder folder;
  for (const Edit& edit : edits) {
    CAPTURE(edit.to);
    const std::string path = folder.file("model.yaml", replaced(kModel, edit.from, edit.to));
    std::vector<std::string> says = edit.says;
    says.push_back("model.yaml");
    check_refused(longspan({"models", "show", path}), 2, says);
  }
}

TEST_CASE("a hardware file is checked figure by figure") {
  const std::vector<Edit> edits = {
      {"value: 67108864", "value: -1", {"memory_bytes"}},
      {"value: 67108864", "value: 0", {"memory_bytes"}},
      {"value: 67108864", "value: nan", {"value", "nan"}},
      {"value: 67108864", "value: 1e300", {"memory_bytes"}},
      {"  reserved_bytes:", "  reserved:", {"reserved_bytes", "missing"}},
      {"nodes: 1", "nodes: 1: 2", {":3:"}},
  };
  const TemporaryFolder folder;
  for (const Edit& edit : edits) {
    CAPTURE(edit.to);
    const std::string path =
        folder.file("hw.yaml", replaced(read_text(kHardware), edit.from, edit.to));
    std::vector<std::string> says = edit.says;
    says.push_back("hw.yaml");
    check_refused(longspan({"hw", "show", path}), 2, says);
  }
}

TEST_CASE("a plan is checked against itself") {
  const std::vector<Edit> edits = {
      {"sequence: 256", "sequence: 256: 1", {":3:"}},
      {"sequence: 256\n", "", {"sequence", "missing"}},
      {"sequence: 256", "sequence: -256", {"sequence", "-256"}},
      {"sequence: 256", "sequence: 9223372036854775807", {"sequence"}},
      {"sequence: 256", "sequence: 300", {"chunk_tokens", "64", "300", "60 or 75"}},
      {"chunk_tokens: 64", "chunk_tokens: 0", {"chunk_tokens", "0"}},
      {"chunk_tokens: 64", "chunk_tokens: 32", {"device_bytes", "lay out"}},
      {"microbatches: 1", "microbatches: 0", {"microbatches"}},
      {"longspan_plan: 1", "longspan_plan: 7", {"version 7", "version 1"}},
      {"longspan_plan: 1\n", "", {"longspan_plan"}},
      {"ranks: 1", "ranks: 8", {"ranks", "product of the degrees, 1"}},
      {"data: 1", "data: 0", {"data", "1"}},
      {"zero: 0", "zero: 4", {"zero", "3"}},
      {"overlap: true", "overlap: perhaps", {"overlap", "true, false"}},
      {"ranks: 1, stages: 1, data: 1", "ranks: 2, stages: 1, data: 2", {"2 ranks", "1 device"}},
      {"ring: 1, ulysses: 1", "ring: 1, ulysses: 3", {"ranks", "product"}},
      {"ranks: 1, stages: 1, data: 1, tensor: 1, ring: 1, ulysses: 1",
       "ranks: 3, stages: 1, data: 1, tensor: 1, ring: 1, ulysses: 3",
       {"ulysses", "4 heads", "1, 2, 4"}},
      {"dtype: float32", "dtype: bfloat16", {"dtype", "bfloat16"}},
      {"dtype: float32", "dtype: float16", {"float32, bfloat16", "float16"}},
      {"kv: host", "kv: tape", {"kv", "tape"}},
      {"layer_input: host", "layer_input: recompute", {"layer_input"}},
      {"layer_input: host", "layer_input: {where: host, fraction: 1.5}", {"layer_input", "1.5"}},
      {"optimizer: device", "optimizer: floppy", {"optimizer", "floppy"}},
      {"prefetch_depth:", "prefetch_dept:", {"prefetch_depth", "missing"}},
      {"host_bytes: ", "host_bytes: 1", {"host_bytes", "lay out"}},
      {"step_seconds: ", "step_seconds: -", {"step_seconds"}},
      {"  heads: 4", "  heads: 5", {"kv_heads"}},
  };
  const TemporaryFolder folder;
  const std::string text = read_text(make_plan(folder));
  for (const Edit& edit : edits) {
    CAPTURE(edit.from, edit.to);
    const std::string path = folder.file("edited.yaml", replaced(text, edit.from, edit.to));
    std::vector<std::string> says = edit.says;
    says.push_back("edited.yaml");
    check_refused(longspan({"explain", path}), 2, says);
  }
}

TEST_CASE("flags are checked") {
  const auto plan = [](const std::vector<std::string>& more) {
    return longspan(joined({"plan", "--model", "tiny-llama", "--hw", kHardware}, more));
  };
  check_refused(plan({"--seq", "4000", "--chunk", "512"}), 2, {"512", "4000", "500 or 800"});
  check_refused(plan({"--seq", "-4K"}), 2, {"--seq"});
  check_refused(plan({"--seq", "0"}), 2, {"--seq"});
  check_refused(plan({"--seq", "4q"}), 2, {"--seq", "4q"});
  check_refused(plan({"--seq", "99999999999999999999"}), 2, {"--seq", "too large"});
  check_refused(plan({"--seq", "1K,"}), 2, {"--seq"});
  check_refused(plan({}), 2, {"--seq", "--min-gpus-for"});
  check_refused(plan({"--seq", "1K", "--min-gpus-for", "2K"}), 2, {"--min-gpus-for", "--seq"});
  check_refused(plan({"--min-gpus-for", "long"}), 2, {"--min-gpus-for", "long"});
  check_refused(plan({"--min-gpus-for", "2K", "--gpus", "1"}), 2, {"--min-gpus-for", "--gpus"});
  check_refused(plan({"--seq", "1K", "--max-gpus", "1", "--gpus", "1"}), 2,
                {"--max-gpus", "--gpus"});
  check_refused(plan({"--seq", "1K", "--max-gpus", "2"}), 2, {"1 device", "got 2"});
  check_refused(plan({"--seq", "1K", "--max-gpus", "-1"}), 2, {"--max-gpus"});
  check_refused(plan({"--seq", "1K", "--device-memory", "0"}), 2, {"--device-memory"});
  check_refused(plan({"--seq", "1K", "--reserve", "999TiB"}), 2, {"--reserve", "leaves nothing"});
  check_refused(plan({"--seq", "1K", "--reserve", "much"}), 2, {"--reserve", "much"});
  check_refused(plan({"--seq", "1K", "--set", "link.latency_seconds"}), 2, {"--set", "KEY=VALUE"});
  check_refused(plan({"--seq", "1K", "--set", "link.latency=1e-5"}), 2,
                {"--set", "\"link.latency_seconds\""});
  check_refused(plan({"--seq", "1K", "--set", "link.duplex_factor=7"}), 2,
                {"--set", "link.duplex_factor", "(0, 1]"});
  check_refused(plan({"--seq", "1K", "--set", "link.latency_seconds=1us"}), 2,
                {"--set", "link.latency_seconds", "a number of s"});
  check_refused(plan({"--seq", "1K", "--host-memory", "-1GiB"}), 2, {"--host-memory"});
  check_refused(plan({"--seq", "1K", "--device-memory", "80GiBs"}), 2, {"--device-memory"});
  check_refused(plan({"--seq", "1K", "--microbatches", "0"}), 2, {"--microbatches"});
  check_refused(plan({"--seq", "1K", "--objective", "beauty"}), 2, {"--objective"});
  for (const char* margin : {"100%", "1", "-5%", "some", "nan"}) {
    check_refused(plan({"--seq", "1K", "--margin", margin}), 2, {"--margin", margin});
  }
  for (const char* time : {"10", "0s", "-1h", "10m", "inf"}) {
    check_refused(plan({"--seq", "1K", "--max-step-time", time}), 2, {"--max-step-time", "10min"});
  }
  for (const char* rate : {"0", "-1", "fast"}) {
    check_refused(plan({"--seq", "1K", "--min-tokens-per-second", rate}), 2,
                  {"--min-tokens-per-second", rate});
  }
  check_refused(plan({"--seq", "1K", "--global-batch", "4", "--microbatches", "2"}), 2,
                {"--global-batch", "--microbatches"});
  check_refused(plan({"--seq", "1K", "--global-batch", "0"}), 2, {"--global-batch"});
  check_refused(plan({"--seq", "1K", "--no-nvme", "--nvme-capacity", "1TiB"}), 2,
                {"--no-nvme", "--nvme-capacity"});
  check_refused(plan({"--seq", "1K", "--host-memory", "0"}), 2, {"--host-memory"});
  check_refused(plan({"--seq", "1K", "--strategy", "mst", "--chunk", "256"}), 2, {"--chunk"});
  check_refused(plan({"--seq", "1K", "-o", "no/such/folder/plan.yaml"}), 2, {"no folder"});
}

TEST_CASE("flags that a pipeline schedule does not take are refused, with those that do") {
  const auto plan = [](const std::vector<std::string>& more) {
    return longspan(joined(
        {"plan", "--model", "gpt-125m", "--hw", "4xh100-80g", "--seq", "1K", "--pipeline", "4"},
        more));
  };
  for (const char* schedule : {"optpipe", "zb-h1"}) {
    CAPTURE(schedule);
    const auto of = [&](const char* flag, const char* value) {
      return plan({"--schedule", schedule, flag, value});
    };
    check_refused(of("--virtual", "3"), 2, {schedule, "--virtual 3", "bfs", "others of"});
    check_refused(of("--slices", "4"), 2,
                  {schedule, "whole sequences", "terapipe", "chunkflow", "sppo", "slimpipe"});
    check_refused(of("--in-flight", "2"), 2, {schedule, "zb-auto, zb-v, v-adaptive"});
    check_refused(longspan({"plan", "--model", "gpt-125m", "--hw", "4xh100-80g", "--seq", "1K",
                            "--pipeline", "1", "--schedule", schedule}),
                  2, {"one stage has no schedule"});
  }
  check_refused(plan({"--schedule", "lists"}), 2, {"lists", "plan file", "optpipe"});
  check_refused(plan({"--schedule", "stp"}), 2, {"stp", "schedule list", "not in plans"});
  check_refused(plan({"--schedule", "none"}), 2, {"unknown schedule \"none\"", "schedule list"});
  check_refused(plan({"--schedule", "seq1f1b", "--slices", "64"}), 2,
                {"1,024 tokens", "64 slices", "64 tokens or more"});
  check_refused(longspan({"plan", "--model", "gpt-125m", "--hw", "4xh100-80g", "--seq", "64",
                          "--pipeline", "4", "--schedule", "seq1f1b"}),
                2, {"seq1f1b passes slices", "64 tokens or more", "longer sequence"});
  const auto slices_of_one_stage = [](const std::vector<std::string>& more) {
    return longspan(joined({"plan", "--model", "llama-3.1-8b", "--hw", "8xh100-80g", "--seq",
                            "128K", "--pipeline", "1", "--slices", "4"},
                           more));
  };
  check_refused(slices_of_one_stage({"--tensor", "8"}), 2, {"without a pipeline", "--tensor 8"});
  check_refused(slices_of_one_stage({"--ring", "8"}), 2, {"without a pipeline", "--ring 8"});
}

TEST_CASE("one microbatch in flight is planned, also where stages differ") {
  for (const char* schedule : {"zb-auto", "zb-v", "v-adaptive"}) {
    CAPTURE(schedule);
    const Result result = longspan({"plan", "--model", "qwen2.5-7b", "--hw", "8xh100-80g", "--seq",
                                    "4K", "--pipeline", "8", "--schedule", schedule, "--in-flight",
                                    "1", "--microbatches", "4", "--gap", "90%"});
    INFO(result.err);
    REQUIRE(result.status == 0);
    CHECK_THAT(result.out, Catch::Matchers::Contains("at most 1 in flight"));
  }
}

TEST_CASE("max-seq shows a bound as a share where that says something, else in words") {
  using Catch::Matchers::Contains;
  const TemporaryFolder folder;
  const std::string two = write_machine(folder, 2);
  const std::string model = folder.file("m.yaml", replaced(kModel, "layers: 2", "layers: 4"));
  const Result far = longspan({"max-seq", "--model", model, "--hw", two, "--pipeline", "2",
                               "--schedule", "zb-h1", "--microbatches", "2"});
  CHECK_THAT(far.out, Contains("auto: how much longer a plan of the search space can be is not "
                               "known"));
  const Result none =
      longspan({"max-seq", "--model", "gpt2", "--hw", "h100-80g", "--strategy", "auto"});
  CHECK_THAT(none.out, Contains("auto: no plan of the search space exceeds this length\n"));
  const Result near =
      longspan({"max-seq", "--model", "tiny-llama", "--hw", "h100-80g", "--strategy", "upipe"});
  CHECK_THAT(near.out, Contains("no plan of the preset exceeds this length by more than "));
}

TEST_CASE("the flags of run are checked before anything runs") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const auto refused = [&](const std::vector<std::string>& more, const std::string& says) {
    CAPTURE(more);
    std::vector<std::string> words = {"run", plan};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = longspan(words);
    check_refused(result, 2, {says});
    CHECK(result.out.empty());
  };
  refused({"--steps", "0"}, "steps");
  refused({"--lr", "nan"}, "learning_rate");
  refused({"--lr", "-1"}, "learning_rate");
  refused({"--lr", "1e-4", "--min-lr", "1e-3"}, "min_learning_rate");
  refused({"--clip", "inf"}, "clip_norm");
  refused({"--weight-decay", "-0.1"}, "weight_decay");
  refused({"--checkpoint-every", "2"}, "--checkpoint");
  refused({"--weights", "a", "--resume", "b"}, "--resume");
  refused({"--format", "utf8"}, "utf8");
  refused({"--threads", "-1"}, "--threads");
  refused({"--checkpoint", "no/such/folder/c"}, "no folder");
}

TEST_CASE("numbers beyond their type are refused as they were typed") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string many(20, '9');
  for (const char* flag : {"--steps", "--seed", "--warmup", "--stop-after", "--checkpoint-every",
                           "--threads", "--local-ranks"}) {
    CAPTURE(flag);
    check_refused(longspan({"run", plan, flag, many + many}), 2, {flag, "got " + many + many});
  }
  check_refused(longspan({"run", plan, "--seed", "-1"}), 2, {"--seed", "from 0", "got -1"});
  for (const char* flag : {"--gpus", "--ring"}) {
    check_refused(
        longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256", flag, many}),
        2, {flag, many});
  }
}

TEST_CASE("options that do not exist or have no value are named") {
  const std::vector<std::string> plan = {"plan", "--model", "tiny-llama", "--hw", kHardware};
  const auto ask = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = plan;
    words.insert(words.end(), more.begin(), more.end());
    return longspan(words);
  };
  check_refused(ask({"--sequence", "8K"}), 2,
                {"no option \"--sequence\"", "did you mean \"--seq\"", "plan --help"});
  check_refused(ask({"--sequence=8K"}), 2, {"no option \"--sequence\"", "\"--seq\""});
  check_refused(ask({"--seq", "8K", "16K"}), 2, {"\"16K\" is not expected"});
  check_refused(ask({"--seq"}), 2, {"--seq: expected a value", "plan --help"});
}

TEST_CASE("what says nothing is refused") {
  const auto plan = [](const std::vector<std::string>& more) {
    return longspan(joined({"plan", "--model", "tiny-llama", "--hw", kHardware}, more));
  };
  check_refused(plan({"--seq", "256", "-o", ""}), 2, {"--output", "empty"});
  check_refused(plan({"--seq", "256", "--device-memory", ""}), 2, {"--device-memory", "empty"});
  check_refused(plan({"--seq", "8K,4K,8K"}), 2, {"--seq", "8K is given twice"});
  check_refused(longspan({"assign", "4K*4", "--ranks", "4", "--groups", ""}), 2,
                {"--groups", "empty"});
  check_refused(longspan({"assign", "4K*4", "--ranks", "4", "--linear", "0", "--quadratic", "0"}),
                2, {"--linear", "--quadratic", "both are 0"});
}

TEST_CASE("devices, pipes and files without end are not read") {
  const TemporaryFolder folder;
  const std::string pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string large = folder.file("large.yaml", "");
  REQUIRE(::truncate(large.c_str(), off_t{1} << 40) == 0);  // takes no space
  const std::vector<std::pair<std::string, std::string>> files = {
      {"/dev/zero", "expected a regular file"},
      {pipe, "expected a regular file"},
      {large, "more than the 8.00 MiB"}};
  for (const auto& [path, says] : files) {
    CAPTURE(path);
    for (const std::vector<std::string>& verb : std::vector<std::vector<std::string>>{
             {"simulate"}, {"explain"}, {"run"}, {"models", "show"}, {"hw", "show"}}) {
      std::vector<std::string> words = verb;
      words.push_back(path);
      check_refused(longspan(words), 2, {path, says});
    }
  }
}

TEST_CASE("a model of absurd size is refused at once") {
  const TemporaryFolder folder;
  const std::string config =
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 176,
          "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
          "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 2048})";
  const auto show = [&](const std::string& text) {
    return longspan({"models", "show", folder.file("config.json", text)});
  };
  REQUIRE(show(config).status == 0);
  const std::vector<std::array<std::string, 3>> edits = {
      {"attention_heads\": 4", "attention_heads\": 4294967296", "heads"},
      {"key_value_heads\": 4", "key_value_heads\": 4294967296", "kv_heads"},
      {"hidden_size\": 64", "hidden_size\": 4294967296", "hidden"},
      {"layers\": 2", "layers\": 4294967296", "layers"},
      {"head_dim\": 16", "head_dim\": 4294967296", "head_dim"},
      {"vocab_size\": 256", "vocab_size\": 4294967296", "vocab"},
      {"intermediate_size\": 176", "intermediate_size\": 4294967298", "ffn"},
  };
  for (const auto& [from, to, field] : edits) {
    CAPTURE(to);
    check_refused(show(replaced(config, from, to)), 2, {"config.json", field, "42949672"});
  }
}

TEST_CASE("where nothing can be written is said before the work begins") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder), dir = folder.path();
  const std::string long_name = folder.path() / std::string(300, 'x');
  const std::vector<std::pair<std::string, std::string>> places = {
      {dir, "it is a folder"},
      {dir + "/new/", "it is a folder"},
      {dir + "/none/file", "there is no folder"},
      {plan + "/file", "is a file, not a folder"},
      {long_name, "File name too long"}};
  for (const auto& [place, says] : places) {
    CAPTURE(place);
    for (const char* flag : {"--checkpoint", "--trace", "-o"}) {
      // This run would not end if it began.
      const Result run = longspan({"run", plan, "--steps", "1000000000", flag, place});
      check_refused(run, 2, {flag, says});
      CHECK(run.out.empty());
    }
    check_refused(longspan({"simulate", plan, "--trace", place}), 2, {"--trace", says});
    // The file is refused first, also where nothing fits.
    check_refused(longspan({"plan", "--model", "llama-3.1-405b", "--hw", kHardware, "--seq", "1M",
                            "-o", place}),
                  2, {"-o", says});
    check_refused(
        longspan({"schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--svg", place}), 2,
        {"--svg", says});
    check_refused(longspan({"profile", "--seconds", "1000000", "-o", place}), 2, {says});
  }
  CHECK(names_in(dir).size() == 1);
  const std::string file = dir + "/file";
  check_refused(longspan({"run", plan, "-o", file, "--trace", file}), 2,
                {"--trace and -o: expected two files"});
  check_refused(longspan({"run", plan, "--checkpoint",
                          dir + "/./" + std::filesystem::path(plan).filename().string()}),
                2, {"the plan and --checkpoint: expected two files"});
}

TEST_CASE("a plan that no engine can run is refused as such") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml";
  REQUIRE(longspan({"plan", "--model", "tiny-llama", "--hw", "mi300x", "--seq", "4K", "-o", plan})
              .status == 0);
  check_refused(longspan({"run", plan}), 2, {"no backend", "planned for only"});
}

TEST_CASE("token files are checked when they are opened") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const auto with = [&](const std::string& path) {
    return longspan({"run", plan, "--data", path});
  };
  check_refused(with(folder.path() / "missing.txt"), 2, {"missing.txt"});
  check_refused(with(folder.file("short.txt", std::string(256, 'a'))), 2,
                {"short.txt", "256 tokens", "257"});
  check_refused(with(folder.file("odd.bin", std::string(1001, '\0'))), 2, {"odd.bin", "1001"});
  std::string ids(2000, '\0');
  ids[1235] = 1;  // id 617 is 0x0100
  check_refused(with(folder.file("beyond.bin", ids)), 2, {"beyond.bin", "token 617 is 256"});
}

TEST_CASE("weights and checkpoints are checked before training") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string checkpoint = folder.path() / "good.safetensors";
  REQUIRE(longspan({"run", plan, "--steps", "1", "--checkpoint", checkpoint}).status == 0);
  const std::string good = read_text(checkpoint);
  std::string garbled = good;
  garbled[0] = '\xff';
  garbled[6] = '\x7f';
  const std::vector<std::pair<std::string, std::string>> files = {
      {"truncated", good.substr(0, good.size() - 100)},
      {"garbled", garbled},
      {"tiny", "abc"},
      {"other", replaced(good, "\"F32\"", "\"I64\"")},
      {"flipped", good.substr(0, good.size() - 4) + '\x01' + good.substr(good.size() - 3)},
  };
  for (const auto& [name, bytes] : files) {
    CAPTURE(name);
    const std::string path = folder.file(name + ".safetensors", bytes);
    check_refused(longspan({"run", plan, "--steps", "2", "--resume", path}), 2, {name});
    // The last tensor is a moment, which weights do not read.
    if (name == "flipped") continue;
    check_refused(longspan({"run", plan, "--steps", "2", "--weights", path}), 2, {name});
  }
  check_refused(longspan({"run", plan, "--resume", folder.path() / "none"}), 2, {"none"});
  check_refused(longspan({"run", plan, "--steps", "1", "--resume", checkpoint}), 2,
                {"step 1 already"});
  check_refused(longspan({"run", plan, "--weights", kGolden + "/tiny_gpt2"}), 2, {"tiny_gpt2"});
}

TEST_CASE("a folder of weights is held to the plan by its config and its tensors") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml", golden = kGolden + "/tiny_qwen3";
  const std::string config = read_text(golden + "/config.json");
  folder.file("weights/model.safetensors", read_text(golden + "/model.safetensors"));
  const std::string weights = folder.path() / "weights", named = weights + "/config.json";
  const auto write_plan = [&](const std::string& text) {
    folder.file("weights/config.json", text);
    const Result result =
        longspan({"plan", "--model", weights, "--hw", kHardware, "--seq", "64", "-o", plan});
    INFO(result.err);
    REQUIRE(result.status == 0);
  };
  const auto check = [&](const std::vector<std::string>& says) {
    check_refused(longspan({"run", plan, "--weights", weights}), 2, says);
  };
  write_plan(config);
  const std::vector<std::pair<std::string, std::string>> contradictions = {
      {"rope_theta", "10000.0"}, {"rms_norm_eps", "0.01"}, {"head_dim", "8"}};
  for (const auto& [key, value] : contradictions) {
    CAPTURE(key);
    json edited = json::parse(config);
    edited[key] = json::parse(value);
    folder.file("weights/config.json", edited.dump());
    check({named, key + " is " + value + ", not "});
  }
  folder.file("weights/config.json", replaced(config, "Qwen3ForCausalLM", "LlamaForCausalLM"));
  check({named, "model_type: expected llama", "qwen3"});

  // The label of another architecture, for which some tensors have no use.
  json llama = json::parse(config);
  llama["architectures"] = {"LlamaForCausalLM"};
  llama["model_type"] = "llama";
  write_plan(llama.dump());
  check({weights, "self_attn.k_norm.weight (and 3 others)"});
}

TEST_CASE("compare refuses what is not a run of the plan") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string run = folder.path() / "run.json";
  REQUIRE(longspan({"run", plan, "--steps", "1", "-o", run}).status == 0);
  const std::string text = read_text(run);
  const auto compare = [&](const std::string& record) {
    return longspan({"compare", plan, folder.file("edited.json", record)});
  };
  check_refused(compare("{"), 2, {"edited.json", "not a run's record"});
  check_refused(compare("[]"), 2, {"edited.json"});
  check_refused(compare("{}"), 2, {"edited.json", "longspan_run"});
  check_refused(compare(replaced(text, "\"longspan_run\": 1", "\"longspan_run\": 9")), 2,
                {"version 9"});
  check_refused(compare(replaced(text, "\"sequence_tokens\": 256", "\"sequence_tokens\": 512")), 2,
                {"another plan"});
  check_refused(longspan({"compare",
                          folder.file("other.yaml", replaced(read_text(plan), "rope_theta: 10000",
                                                             "rope_theta: 20000")),
                          run}),
                2, {"another plan"});
  check_refused(
      compare(replaced(text, "\"overlapped_copy_seconds\": ", "\"overlapped_copy_seconds\": -1")),
      2, {"overlapped_copy_seconds"});
  check_refused(longspan({"compare", plan, run, "--tolerance", "some"}), 2, {"--tolerance"});
  check_refused(longspan({"compare", plan, run, "--tolerance", "-5%"}), 2, {"--tolerance"});
}

}  // namespace
}  // namespace longspan::e2e
