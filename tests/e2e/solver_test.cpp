// Results of solvers through the command line: optpipe, adaptis and assign.
#include <catch2/catch.hpp>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

}  // namespace

TEST_CASE("schedule optpipe and adaptis say where the solver began and how it ended") {
  const std::vector<std::string> small = {"--stages", "2", "--microbatches", "4"};
  const auto with = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"schedule", name};
    words.insert(words.end(), small.begin(), small.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const auto order = longspan_json(with("optpipe", {"--memory-limit", "2", "--comm", "0.1"}));
  CHECK(order.at("cost") <= order.at("solver").at("start_cost"));
  const double bound = order.at("solver").at("bound"), cost = order.at("cost");
  CHECK(bound <= cost);
  CHECK(order.at("solver").at("gap").get<double>() == Approx(cost / bound - 1).margin(1e-12));
  CHECK(order.at("peak_memory_microbatches") <= 2);
  const auto cut = longspan_json(with("adaptis", {"--layers", "6", "--head", "2"}));
  CHECK(cut.at("layers_end").back() == 7);
  CHECK(cut.at("cost") < cut.at("even_cost"));
  CHECK_THAT(longspan(with("optpipe", {})).out, Contains("proven the best order"));
  check_refused(longspan(with("optpipe", {"--slices", "2"})), 2, {"--slices"});
  check_refused(longspan(with("adaptis", {"--virtual", "2"})), 2, {"--virtual"});
}

TEST_CASE("plan --schedule optpipe writes lists that are no slower than a family's, and they run") {
  const TemporaryFolder folder;
  const std::string machine = write_machine(folder, 2);
  const std::string plan = folder.path() / "plan.yaml", record = folder.path() / "run.json";
  const std::vector<std::string> asked = {"plan",  "--model",        "tiny-llama", "--hw",
                                          machine, "--seq",          "256",        "--pipeline",
                                          "2",     "--microbatches", "4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), asked.begin(), asked.end());
    return more;
  };
  const auto made =
      longspan_json(with({"--schedule", "optpipe", "--time-limit", "20", "-o", plan}));
  const double step = made.at("predicted").at("step_seconds");
  for (const char* family : {"1f1b", "zb-h1"}) {
    const auto other = longspan_json(with({"--schedule", family}));
    CHECK(step <= other.at("predicted").at("step_seconds").get<double>() * (1 + 1e-9));
  }
  CHECK_THAT(read_text(plan), Contains("schedule: lists"));
  CHECK(longspan_json({"simulate", plan}).at("predicted").at("step_seconds") == step);
  REQUIRE(longspan({"run", plan, "--local-ranks", "2", "--steps", "2", "-o", record}).status == 0);
  CHECK(longspan_json({"compare", plan, record, "--tolerance", "1e12"}).at("memory_agrees") ==
        true);

  check_refused(longspan(with({"--time-limit", "5"})), 2, {"--time-limit", "optpipe"});
  check_refused(longspan(with({"--schedule", "optpipe", "--objective", "memory"})), 2,
                {"optpipe", "--objective"});
  check_refused(
      longspan({"max-seq", "--model", "tiny-llama", "--hw", machine, "--schedule", "optpipe"}), 2,
      {"optpipe", "made by a solver"});
}

TEST_CASE("plan --schedule optpipe has a plan where a family that it starts from has one") {
  const TemporaryFolder folder;
  const std::string model = write_model(folder, 8);
  const std::string machine = write_machine(folder, 4);
  for (const char* memory : {"24MiB", "10MiB"}) {
    const std::vector<std::string> asked = {"plan",  "--model",        model, "--hw",
                                            machine, "--seq",          "1K",  "--pipeline",
                                            "4",     "--microbatches", "8",   "--device-memory",
                                            memory};
    INFO(memory);
    const auto family = longspan_json(joined(asked, {"--schedule", "zb-h1"}));
    const auto order = longspan_json(joined(asked, {"--schedule", "optpipe", "--time-limit", "1"}));
    CHECK(order.at("predicted").at("step_seconds").get<double>() <=
          1.02 * family.at("predicted").at("step_seconds").get<double>());
  }
}

TEST_CASE("assign: every sequence once, within the ranks, or a line why not") {
  const auto made = longspan_json({"assign", "64K,16K*2,2K*8", "--ranks", "8", "--groups",
                                   "1,2:0.01,8:0.03", "--memory-limit", "16384"});
  int64_t tokens = 0;
  for (const auto& batch : made.at("microbatches")) {
    int64_t ranks = 0;
    for (const auto& group : batch.at("groups")) {
      ranks += group.at("ranks").get<int64_t>();
      for (const auto& length : group.at("sequences_tokens")) tokens += length.get<int64_t>();
    }
    CHECK(ranks <= 8);
  }
  CHECK(tokens == (64 + 2 * 16 + 8 * 2) * 1024);
  check_refused(longspan({"assign", "64K,x", "--ranks", "8"}), 2, {"lengths", "\"x\""});
  check_refused(longspan({"assign", "64K", "--ranks", "8", "--groups", "2:y"}), 2, {"--groups"});
  check_refused(longspan({"assign", "64K", "--ranks", "8", "--memory-limit", "100"}), 1,
                {"65536 tokens", "the limit is 100"});
}

}  // namespace longspan::e2e
