// longspan validate: published measurements against predictions, on the command line.
#include <catch2/catch.hpp>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

const std::string kCases = R"(table: small
source: made up for this test
defaults: {model: tiny-llama, hardware: h100-80g, gpus: 1, stack: fsdp, precision: bf16,
           micro_batch: 1, global_batch: 2}
cases:
  - {name: timed, sequence: 1024, measured: {step_time_s: 1000, peak_allocated: 1GiB},
     peer: {name: Other, step_time_s: 900, peak_memory: 2GiB}}
  - {name: failed, sequence: 2048, measured: {out_of_memory: true}}
  - {name: staged, sequence: 2048, gpus: 2, pipeline: 2, measured: {tokens_per_s: 10}}
  - {name: odd, sequence: 2048, left_out: it is odd, measured: {tokens_per_s: 10}}
)";

TEST_CASE("the complete example of the documentation is covered whole") {
  const TemporaryFolder folder;
  const std::string text = read_text(LONGSPAN_SOURCE "/docs/validation.md");
  const std::string fence = "```yaml\n";
  const size_t begin = text.find(fence, text.find("A complete example:")) + fence.size();
  const std::string example = text.substr(begin, text.find("```", begin) - begin);
  const Result result = longspan({"validate", folder.file("example.yaml", example), "--cases"});
  INFO(result.out << result.err);
  CHECK(result.status == 0);
  CHECK_THAT(result.out, Contains("3 of 3 cases") && !Contains("not covered"));
}

TEST_CASE("validate prints the errors of each table and why cases have none") {
  const TemporaryFolder folder;
  const Result result = longspan({"validate", folder.file("cases.yaml", kCases)});
  CHECK(result.status == 0);
  CHECK(result.err.empty());
  for (const char* text :
       {"2 of 4 cases in 1 table", "small", "step time", "memory", "against Other", "-100.0 %",
        "-10.0 %", "pipeline stages", "it is odd", "1 though predicted to fit"}) {
    CHECK_THAT(result.out, Contains(text));
  }
  CHECK_THAT(result.out, !Contains("timed"));
  const Result cases = longspan({"validate", folder.file("cases.yaml", kCases), "--cases"});
  for (const char* text : {"timed", "failed", "not covered: pipeline stages", "left out: it is odd",
                           "made up for this test", "1.00 GiB"}) {
    CHECK_THAT(cases.out, Contains(text));
  }
}

TEST_CASE("validate --json has the same figures") {
  const TemporaryFolder folder;
  const std::string path = folder.file("cases.yaml", kCases);
  const auto document = longspan_json({"validate", path, "--cases"});
  REQUIRE(document.at("tables").size() == 1);
  const auto& table = document.at("tables")[0];
  CHECK(table.at("table") == "small");
  CHECK(table.at("file") == path);
  CHECK(table.at("cases") == 4);
  CHECK(table.at("predicted") == 2);
  CHECK(table.at("step_time").at("count") == 1);
  CHECK(table.at("peers")[0].at("step_time").at("peer").at("bias").get<double>() == Approx(-0.1));
  CHECK(table.at("peers")[0].at("memory").at("peer").at("worst_error") == 1.0);
  CHECK(table.at("not_covered")[0].at("reason") == "pipeline stages");
  CHECK(table.at("left_out")[0].at("cases") == 1);
  CHECK(table.at("fits").at("failed_fits") == 1);
  const auto& timed = table.at("results")[0];
  CHECK(timed.at("line") == 6);
  CHECK(timed.at("measured_step_seconds") == 1000.0);
  CHECK(timed.at("step_error").get<double>() ==
        Approx(timed.at("predicted_step_seconds").get<double>() / 1000 - 1));
  CHECK(table.at("results")[2].at("not_covered") == "pipeline stages");
  CHECK(document.at("overall").at("cases") == 4);
  CHECK_FALSE(longspan_json({"validate", path}).at("tables")[0].contains("results"));
}

TEST_CASE("validate shows apart what is assumed, and what one case is to another") {
  const std::string more =
      "  - {name: faster, assumed: the batch, sequence: 1024, global_batch: 4,\n"
      "     measured: {step_time_s: 500, speedup: {over: timed, times: [1.5, 2.5]}}}\n";
  const TemporaryFolder folder;
  const std::string path = folder.file("cases.yaml", kCases + more);
  const Result result = longspan({"validate", path, "--cases"});
  CHECK(result.status == 0);
  for (const char* text :
       {"2 of 4 cases in 1 table", "small, assumed", "speed-up", "Fits, assumed: 1 trained",
        "1 of 1 cases are predicted of which something is assumed", "Assumed by the files",
        "times the speed of \"timed\" predicted, 1.5 to 2.5 measured: "}) {
    CHECK_THAT(result.out, Contains(text));
  }
  const auto document = longspan_json({"validate", path, "--cases"});
  CHECK(document.at("tables")[0].at("step_time").at("count") == 1);
  CHECK(document.at("overall").at("cases") == 4);
  const auto& assumed = document.at("assumed").at("overall");
  CHECK(assumed.at("step_time").at("count") == 1);
  CHECK(assumed.at("speedup").at("count") == 1);
  CHECK(assumed.at("assumed")[0].at("reason") == "the batch");
  CHECK(document.at("assumed").at("tables")[0].at("table") == "small");
  const auto& faster = document.at("tables")[0].at("results")[4];
  CHECK(faster.at("assumed") == "the batch");
  CHECK(faster.at("measured_speedup") == nlohmann::json::array({1.5, 2.5}));
  CHECK(faster.at("predicted_speedup").get<double>() > 0);
  check_refused(longspan({"validate", folder.file("odd.yaml", replaced(kCases + more, "over: timed",
                                                                       "over: times"))}),
                2, {"odd.yaml:", "speedup", "\"times\"", "did you mean \"timed\"?"});
}

TEST_CASE("validate takes a folder and one table of it") {
  const TemporaryFolder folder;
  folder.file("a.yaml", kCases);
  folder.file("b.yaml", replaced(kCases, "table: small", "table: large"));
  CHECK(longspan_json({"validate", folder.path()}).at("tables").size() == 2);
  const auto one = longspan_json({"validate", folder.path(), "--table", "large"});
  CHECK(one.at("tables").size() == 1);
  check_refused(longspan({"validate", folder.path(), "--table", "lrge"}), 2,
                {"--table", "\"lrge\"", "did you mean \"large\"?"});
}

TEST_CASE("validate refuses a malformed file with its line and the reason") {
  struct Edit {
    std::string from, to;
    std::vector<std::string> says;
  };
  const std::vector<Edit> edits = {
      {"sequence: 1024", "sequence: none", {"cases.yaml:6:", "cases[0].sequence", "\"none\""}},
      {"name: failed, ", "name: failed, sequenze: 1, ", {":8:", "unknown key", "\"sequence\""}},
      {"gpus: 2, ", "gpus: 3, ", {":9:", "take 2 GPUs", "got 3"}},
      {"stack: fsdp", "stack: sdp", {":3:", "defaults.stack", "fsdp"}},
      {"{out_of_memory: true}", "{}", {":8:", "measured", "at least one figure"}},
      {"cases:\n", "cases: {}\n#", {"not valid YAML"}},
  };
  const TemporaryFolder folder;
  for (const Edit& edit : edits) {
    CAPTURE(edit.to);
    const std::string path = folder.file("cases.yaml", replaced(kCases, edit.from, edit.to));
    check_refused(longspan({"validate", path}), 2, edit.says);
  }
  check_refused(longspan({"validate"}), 2, {"paths is required"});
  check_refused(longspan({"validate", "no-such-file.yaml"}), 2, {"no-such-file.yaml"});
  check_refused(longspan({"validate", folder.file("empty.yaml", "")}), 2,
                {"empty.yaml", "mapping"});
}

}  // namespace
}  // namespace longspan::e2e
