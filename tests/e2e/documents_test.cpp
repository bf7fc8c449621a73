// Packed documents by the real binary: planned, trained, resumed, and refused where data and plan
// differ.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

// A plan of tiny-llama for 256 tokens of packed documents, with `more` arguments.
std::string packed_plan(const TemporaryFolder& folder, const std::string& documents,
                        const std::vector<std::string>& more = {}) {
  const std::string plan = folder.path() / "packed.yaml";
  const Result made = longspan(joined({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq",
                                       "256", "--documents", documents, "-o", plan},
                                      more));
  INFO(made.err);
  REQUIRE(made.status == 0);
  return plan;
}

std::string written(const TemporaryFolder& folder, const char* name, const std::string& text) {
  const std::string file = folder.path() / name;
  std::ofstream(file) << text;
  return file;
}

TEST_CASE("shorter documents are faster to train, and never need more memory") {
  double before = 1e300;
  std::optional<double> whole;
  for (const char* lengths : {"", "1M", "128K", "16K", "1K"}) {
    std::vector<std::string> words{
        "plan",       "--model", "llama-3.1-8b", "--hw", "8xh100-80g",    "--seq", "1M",
        "--strategy", "fpdt",    "--chunk",      "64K",  "--host-memory", "4TiB"};
    if (*lengths != 0) words = joined(words, {"--documents", lengths});
    const json plan = longspan_json(words);
    const double seconds = plan.at("predicted").at("step_seconds").get<double>();
    INFO(lengths);
    CHECK(seconds <= before * 1.001);
    before = seconds;
    if (!whole) whole = seconds;
  }
  CHECK(before < *whole / 2);
}

TEST_CASE("packed documents are trained, and continued with the same bits") {
  const TemporaryFolder folder;
  const std::string plan = packed_plan(folder, "10:5,100:2,256:1");
  const std::string text = written(folder, "text.txt", [] {
    std::string all;
    for (int i = 0; i < 400; ++i) all += "line " + std::to_string(i * i) + "\n";
    return all;
  }());
  const std::vector<std::string> data{"--data", text, "--separator", "10", "--steps", "4"};
  const json whole = train(folder, plan, 1, data);
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(whole.at("measured").at(tier) == whole.at("predicted").at(tier));
  }
  const std::string checkpoint = folder.path() / "c.safetensors";
  train(folder, plan, 1, joined(data, {"--stop-after", "2", "--checkpoint", checkpoint}));
  const json rest = train(folder, plan, 1, joined(data, {"--resume", checkpoint}));
  CHECK(losses(rest) == std::vector<double>{losses(whole)[2], losses(whole)[3]});
  // Other documents of the same tokens have other losses.
  const json other =
      train(folder, plan, 1, {"--data", text, "--documents", "100,30:2,7", "--steps", "4"});
  CHECK(losses(other) != losses(whole));
}

TEST_CASE("documents of data are refused before the first step if the plan does not have them") {
  const TemporaryFolder folder;
  const std::string plan = packed_plan(folder, "20");
  check_refused(longspan({"run", plan, "--documents", "20:2,21"}), 2,
                {"has 21 tokens", "for 20 at most"});
  const std::string lengths = written(folder, "lengths.txt", "# tokens, documents\n20 3\n5,x\n");
  check_refused(longspan({"run", plan, "--documents", lengths}), 2, {"line 3", "5,x"});
  check_refused(longspan({"run", plan, "--documents", "20", "--separator", "1"}), 2,
                {"leave one out"});
  check_refused(longspan({"run", plan, "--separator", "300"}), 2, {"--separator", "256"});
  check_refused(longspan({"run", make_plan(folder), "--documents", "20"}), 2,
                {"one document each", "--documents"});
  const auto refused = [&](const std::string& documents, const std::vector<std::string>& texts) {
    check_refused(longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256",
                            "--documents", documents}),
                  2, texts);
  };
  refused("0", {"--documents", "0"});
  refused("5:0", {"--documents", "a number of documents"});
  refused("no/file", {"no file no/file"});
  check_refused(
      longspan({"plan", "--model", "gpt2", "--hw", kHardware, "--seq", "256", "--documents", "20"}),
      2, {"gpt2", "table"});
}

}  // namespace
}  // namespace longspan::e2e
