// Reading files of published cases: what is read, and what is refused with line and reason.
#include "validation/case.h"

#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "tests/replaced.h"

namespace longspan {
namespace {

using testing::replaced;

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

const std::string kFile = R"YAML(table: two-rows
source: "a paper, table 1 (CC BY 4.0)"
model_defaults: {vocab: 1000, max_positions: 128, norm: layernorm, activation: gelu, norm_eps: 1e-5}
models:
  - {name: small, layers: 4, hidden: 64, heads: 4, ffn: 256, positions: learned, mlp_bias: true}
defaults:
  model: small
  hardware: a100-80g
  gpus: 8
  stack: megatron-core
  precision: bf16
  sequence: 4096
  global_batch: 16
  flops: {dense: products, attention: full, recomputed: none, peak_tflops: 312}
cases:
  - {name: plain, micro_batch: 2, measured: {mfu: 0.5, peak_allocated: 70.5GiB}}
  - name: everything
    layers: 2
    gpus: 16
    gpus_per_node: 4
    stack: mist
    precision: fp16
    sequence: 8192
    micro_batch: 1
    tensor: 2
    pipeline: 2
    virtual_stages: 3
    ulysses: 2
    expert: 2
    sequence_parallel: true
    zero: 1
    stage_layers: [3, 1]
    recompute: full
    recompute_layers: [2, 0]
    offload: {checkpoints: [1], optimizer: [0.125, 0.5]}
    flash_attention: false
    overlap: false
    chunk: 1024
    tiled_mlp: true
    tiled_loss: true
    flops: {attention: causal}
    measured: {step_time_s: 2.5, tokens_per_s: 52428.8, peak_reserved: 80GB, longest: true,
               longest_below: 16384}
    peer: {name: Other, step_time_s: 2, peak_memory: 60GiB}
    left_out: because
    note: a remark
)YAML";

std::string refusal(const std::string& text) {
  try {
    parse_cases(text, "cases.yaml");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
    return e.what();
  }
  return "(accepted)";
}

TEST_CASE("a case has its own keys and the defaults of its file") {
  const std::vector<PublishedCase> cases = parse_cases(kFile, "cases.yaml");
  REQUIRE(cases.size() == 2);
  const PublishedCase& plain = cases[0];
  CHECK(plain.table == "two-rows");
  CHECK(plain.source == "a paper, table 1 (CC BY 4.0)");
  CHECK(place_of(plain) == "cases.yaml:16");
  CHECK(plain.name == "plain");
  CHECK(plain.hardware == "a100-80g");
  CHECK(plain.gpus == 8);
  CHECK(plain.gpus_per_node == 8);
  CHECK(plain.degrees.data == 8);  // what is left of the GPUs
  CHECK(plain.microbatch == 2);
  CHECK(plain.recompute == Recompute::none);
  CHECK(plain.flash_attention);
  CHECK(plain.convention.attention == AttentionFlops::full);
  CHECK(plain.convention.peak_flops == 312e12);
  CHECK(plain.measured.mfu == 0.5);
  CHECK(plain.measured.peak_allocated_bytes == 141 * (int64_t{1} << 29));
  CHECK(!plain.measured.step_seconds);
  CHECK(!plain.peer);
  REQUIRE(plain.shape);
  CHECK(plain.shape->layers == 4);
  CHECK(plain.shape->vocab == 1000);
  CHECK(plain.shape->mlp_bias);
}

TEST_CASE("every key of a case is read") {
  const PublishedCase c = parse_cases(kFile, "cases.yaml").at(1);
  CHECK(c.layers == 2);
  CHECK(c.gpus_per_node == 4);
  CHECK(c.stack == "mist");
  CHECK(c.precision == "fp16");
  CHECK(c.degrees == RunDegrees{2, 2, 2, 2, 1, 1, 2});
  CHECK(c.virtual_stages == 3);
  CHECK(c.sequence_parallel);
  CHECK(c.zero == 1);
  CHECK(c.stage_layers == std::vector<int64_t>{3, 1});
  CHECK(c.recompute == Recompute::full);
  CHECK(c.recompute_layers == std::vector<int64_t>{2, 0});
  CHECK(c.offload == RunOffload{{1}, {}, {}, {0.125, 0.5}, {}});
  CHECK(!c.flash_attention);
  CHECK(!c.overlap);
  CHECK(c.chunk_tokens == 1024);
  CHECK(c.tiled_mlp);
  CHECK(c.tiled_loss);
  // One key of the mapping is the case's, the others are the defaults'.
  CHECK(c.convention == FlopConvention{DenseFlops::products, AttentionFlops::causal,
                                       RecomputedFlops::none, 312e12});
  CHECK(c.measured.step_seconds == 2.5);
  CHECK(c.measured.tokens_per_second == 52428.8);
  CHECK(c.measured.peak_reserved_bytes == 80'000'000'000);
  CHECK(c.measured.longest);
  CHECK(c.measured.longest_below == 16384);
  CHECK(c.peer == CasePeer{"Other", 2.0, int64_t{60} << 30});
  CHECK(c.left_out == "because");
  CHECK(c.note == "a remark");
}

TEST_CASE("a malformed file is refused with the line and the reason") {
  struct Edit {
    std::string from, to;
    std::string at;  // what the message begins with
    std::vector<std::string> says;
  };
  const std::string plain = "{name: plain, micro_batch: 2, ";
  const std::vector<Edit> edits = {
      {"table: two-rows\n", "", "cases.yaml", {"table", "missing"}},
      {"source: \"a paper", "sauce: \"a paper", "cases.yaml", {"source", "missing"}},
      {"cases:\n", "cases: nothing\n#", "cases.yaml:", {"not valid YAML"}},
      {"defaults:\n", "default:\n", "cases.yaml:", {"missing"}},
      {"stack: megatron-core",
       "stack: megatron",
       "cases.yaml:10:",
       {"defaults.stack", "expected", "\"megatron-lm\""}},
      {"precision: bf16", "precision: bf17", "cases.yaml:11:", {"bf17", "did you mean \"bf16\""}},
      {"sequence: 4096", "sequence: -1", "cases.yaml:12:", {"sequence", "-1"}},
      {"sequence: 4096", "sequense: 4096", "cases.yaml:16:", {"cases[0].sequence", "missing"}},
      {"  gpus: 8\n",
       "  gpus: 8\n  gpu: 8\n",
       "cases.yaml:10:",
       {"defaults.gpu", "unknown key", "\"gpus\""}},
      {"attention: full", "attention: half", "cases.yaml:14:", {"flops.attention", "causal, full"}},
      {plain,
       "{name: plain, micro_batch: 3, ",
       "cases.yaml:13:",
       {"global_batch", "multiple of 24", "got 16"}},
      {plain, plain + "data: 4, ", "cases.yaml:9:", {"gpus", "take 4 GPUs", "got 8"}},
      {plain, plain + "tensor: 16, ", "cases.yaml:9:", {"gpus", "take 16 GPUs", "got 8"}},
      {plain,
       plain + "tensor: 1048576, pipeline: 1048576, ring: 1048576, ulysses: 1048576, ",
       "cases.yaml:9:",
       {"gpus", "got 8"}},
      {plain, plain + "tensor: 0, ", "cases.yaml:16:", {"tensor", "0"}},
      {plain, plain + "tensr: 2, ", "cases.yaml:16:", {"tensr", "unknown key", "\"tensor\""}},
      {plain, plain + "zero: 4, ", "cases.yaml:16:", {"zero", "from 0 to 3"}},
      {plain, plain + "recompute: some, ", "cases.yaml:16:", {"recompute", "some"}},
      {plain, plain + "recompute_layers: [1], ", "cases.yaml:16:", {"recompute: full"}},
      {plain, plain + "offload: {optimizer: [1.5]}, ", "cases.yaml:16:", {"optimizer", "1.5"}},
      {plain, plain + "offload: {optimizer: [1, 1]}, ", "cases.yaml:16:", {"1 pipeline stages"}},
      {"gpus: 16\n", "gpus: 18\n", "cases.yaml:19:", {"whole nodes of 4", "18"}},
      {"mfu: 0.5", "mfu: 50", "cases.yaml:16:", {"share such as 0.55"}},
      {"mfu: 0.5, peak_allocated: 70.5GiB", "", "cases.yaml:16:", {"at least one figure"}},
      {"mfu: 0.5, ", "mfu: 0.5, out_of_memory: true, ", "cases.yaml:16:", {"out of memory"}},
      {"mfu: 0.5, ", "mfu: 0.5, longest_below: 9000, ", "cases.yaml:16:", {"longest: true"}},
      {"mfu: 0.5, ",
       "mfu: 0.5, longest: true, longest_below: 4096, ",
       "cases.yaml:16:",
       {"longest_below", "4096"}},
      {"70.5GiB", "70.5 gigs", "cases.yaml:16:", {"peak_allocated", "70.5 gigs"}},
      {", peak_tflops: 312", "", "cases.yaml:14:", {"flops", "peak_tflops"}},
      {"name: everything", "name: plain", "cases.yaml:17:", {"\"plain\"", "twice"}},
      {"step_time_s: 2, peak_memory: 60GiB", "", "cases.yaml:44:", {"peer", "peak_memory"}},
      {"positions: learned", "positions: known", "cases.yaml:5:", {"positions", "known"}},
  };
  for (const Edit& edit : edits) {
    CAPTURE(edit.from, edit.to);
    const std::string message = refusal(replaced(kFile, edit.from, edit.to));
    CHECK_THAT(message, StartsWith(edit.at));
    for (const std::string& text : edit.says) CHECK_THAT(message, Contains(text));
    CHECK_THAT(message, !Contains("\n"));
  }
}

TEST_CASE("a speed-up is over another case, by one number or two") {
  const auto with = [](const std::string& speedup) {
    return kFile +
           "  - {name: faster, micro_batch: 2, assumed: the batch, measured: {speedup: " + speedup +
           "}}\n";
  };
  const PublishedCase c = parse_cases(with("{over: plain, times: [1.5]}"), "cases.yaml").at(2);
  CHECK(c.measured.speedup == CaseSpeedup{"plain", 1.5, 1.5});
  CHECK(c.assumed == "the batch");
  CHECK(parse_cases(with("{over: plain, times: [1.5, 2]}"), "cases.yaml").at(2).measured.speedup ==
        CaseSpeedup{"plain", 1.5, 2});
  CHECK_THAT(refusal(with("{over: plan, times: [1.5]}")),
             StartsWith("cases.yaml:47") && Contains("did you mean \"plain\"?"));
  // Not on as many GPUs, left out, itself.
  CHECK_THAT(refusal(with("{over: everything, times: [1.5]}")), Contains("8 GPUs"));
  CHECK_THAT(refusal(with("{over: faster, times: [1.5]}")), Contains("another case"));
  CHECK_THAT(refusal(with("{over: plain, times: [2, 1.5]}")), Contains("the least and the most"));
  CHECK_THAT(refusal(with("{over: plain, times: [0]}")), Contains("times"));
  // More than a guess counts as one.
  const std::string guessed = replaced(with("{over: plain, times: [1.5]}"), "{name: plain,",
                                       "{name: plain, assumed: the batch,");
  CHECK(refusal(guessed) == "(accepted)");
  CHECK_THAT(refusal(replaced(guessed, "micro_batch: 2, assumed: the batch,", "micro_batch: 2,")),
             Contains("`assumed`"));
}

TEST_CASE("that a run trained can be all that is said of it") {
  const std::string measured = "measured: {mfu: 0.5, peak_allocated: 70.5GiB}";
  const std::string text = replaced(kFile, measured, "measured: {trained: true}");
  CHECK(parse_cases(text, "cases.yaml").at(0).measured.trained);
  CHECK_THAT(refusal(replaced(kFile, measured, "measured: {trained: true, out_of_memory: true}")),
             Contains("out of memory"));
}

TEST_CASE("a case that is left out may contradict itself") {
  const std::string plain = "{name: plain, micro_batch: 2, ";
  const std::string text = replaced(kFile, plain, "{name: plain, micro_batch: 3, left_out: odd, ");
  CHECK(parse_cases(text, "cases.yaml").at(0).left_out == "odd");
}

TEST_CASE("a folder is all its files, by name") {
  const std::filesystem::path folder =
      std::filesystem::path(std::string("/tmp/longspan_cases_") + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "ops");
  const auto message = [&] {
    try {
      read_cases(folder);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("(accepted)");
  };
  CHECK_THAT(message(), Contains("*.yaml"));
  write_file_atomically(folder / "b.yaml", kFile);
  write_file_atomically(folder / "ops" / "other.yaml", "not: cases");
  write_file_atomically(folder / "readme.md", "neither");
  CHECK(read_cases(folder).size() == 2);
  write_file_atomically(folder / "a.yaml", replaced(kFile, "two-rows", "first"));
  const std::vector<PublishedCase> cases = read_cases(folder);
  REQUIRE(cases.size() == 4);
  CHECK(cases[0].table == "first");
  CHECK(cases[0].file == (folder / "a.yaml").string());
  write_file_atomically(folder / "c.yaml", kFile);
  CHECK_THAT(message(), Contains("c.yaml") && Contains("\"two-rows\"") && Contains("b.yaml"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace longspan
