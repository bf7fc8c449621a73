// Products below 16 bits through the command line: planned, explained, and refused by run.
#include <catch2/catch.hpp>
#include <string>

#include "tests/e2e/command.h"

namespace longspan::e2e {

using Catch::Matchers::Contains;

TEST_CASE("a plan with products in FP8 is written, explained and simulated, but not run") {
  const testing::TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml";
  const std::vector<std::string> ask = {"plan",  "--model", "llama-3.2-1b", "--hw",      "h100-80g",
                                        "--seq", "16K",     "--strategy",   "checkpoint"};
  const nlohmann::json whole = longspan_json(ask);
  const nlohmann::json narrow = longspan_json(joined(ask, {"--products", "fp8", "-o", plan}));
  CHECK(whole.at("strategy").at("products") == "dtype");
  CHECK(whole.at("not_run").is_null());
  CHECK(narrow.at("strategy").at("products") == "fp8");
  CHECK_THAT(narrow.at("not_run").get<std::string>(), Contains("fp8"));
  CHECK(narrow.at("predicted").at("step_seconds") < whole.at("predicted").at("step_seconds"));
  CHECK_THAT(read_text(plan), Contains("products: fp8"));

  const nlohmann::json explained = longspan_json({"explain", plan});
  CHECK(explained.at("products").at("format") == "fp8");
  CHECK(explained.at("products").at("cast_seconds") > 0);
  const Result text = longspan({"explain", plan});
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Contains("Products in fp8") && Contains("of the peak in fp8"));
  CHECK(longspan({"simulate", plan}).status == 0);
  check_refused(longspan({"run", plan, "--steps", "1"}), 2, {"products in fp8", "plan.yaml"});
}

TEST_CASE("formats that a device or the model's widths do not have are refused in a line") {
  const auto asked = [](const char* hw, const char* format) {
    return longspan(
        {"plan", "--model", "llama-3.2-1b", "--hw", hw, "--seq", "16K", "--products", format});
  };
  check_refused(asked("a100-80g", "fp8"), 2, {"--products", "A100", "fp8"});
  check_refused(asked("h100-80g", "mxfp8"), 2, {"--products", "mxfp8", "fp8-blockwise"});
  check_refused(asked("cpu-example", "fp8"), 2, {"--products", "float32"});
  check_refused(asked("h100-80g", "fp6"), 2, {"--products", "fp6", "nvfp4"});
  check_refused(
      longspan({"max-seq", "--model", "llama-3.2-1b", "--hw", "rtx-3090", "--products", "fp8"}), 2,
      {"--products", "fp8"});
}

}  // namespace longspan::e2e
