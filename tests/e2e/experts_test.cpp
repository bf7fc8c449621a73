// Experts on several ranks: planned, run as threads of one process, and a step that would need more
// memory for their rows than a plan states.
#include <catch2/catch.hpp>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

std::string experts_model(const TemporaryFolder& folder) {
  return folder.file("experts.yaml",
                     "name: tiny-experts\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 2\n"
                     "head_dim: 16\nffn: 48\nvocab: 256\nmax_positions: 4096\nnorm: rmsnorm\n"
                     "activation: swiglu\npositions: rope\nnorm_eps: 1e-5\nrope_theta: 10000\n"
                     "experts: {count: 8, active: 2, ffn: 48, shared_ffn: 32}\n");
}

// A plan of 4 ranks in `folder`.
std::string planned(const TemporaryFolder& folder, const std::string& name,
                    const std::vector<std::string>& more) {
  const std::string plan = folder.path() / (name + ".yaml");
  const Result result = longspan(
      joined({"plan", "--model", experts_model(folder), "--hw", write_machine(folder, 4), "--seq",
              "256", "--strategy", "checkpoint", "--ulysses", "2", "--data", "2", "-o", plan},
             more));
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  return plan;
}

}  // namespace

TEST_CASE("experts on several ranks train the numbers of those on each, in the memory foretold") {
  const TemporaryFolder folder;
  const std::string each =
      planned(folder, "each", {"--expert", "1", "--zero", "0", "--auxiliary-loss", "0.5"});
  const std::vector<double> expected = losses(train(folder, each, 4, {"--steps", "3"}));
  const std::string plain = planned(folder, "plain", {"--expert", "1", "--zero", "0"});
  // Two active experts of an even load, times the factor.
  CHECK(expected[0] - losses(train(folder, plain, 4, {"--steps", "1"}))[0] ==
        Approx(1).epsilon(0.1));
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{"--expert", "2", "--zero", "3"},
        {"--expert", "4", "--zero", "1"},
        {"--expert", "4", "--zero", "0", "--expert-capacity", "4"}}) {
    CAPTURE(mesh);
    const std::string plan = planned(folder, "several", joined(mesh, {"--auxiliary-loss", "0.5"}));
    CHECK_THAT(read_text(plan), Contains("expert: " + mesh[1]));
    const json record = train(folder, plan, 4, {"--steps", "3"});
    const std::vector<double> actual = losses(record);
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      CHECK(actual[i] == Approx(expected[i]).epsilon(1e-5));
    }
    for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
      CHECK(record.at("measured").at(tier) == record.at("predicted").at(tier));
    }
  }
  const std::string plan = folder.path() / "several.yaml";
  const Result explained = longspan({"explain", plan});
  CHECK_THAT(explained.out, Contains("2 of 8 experts of 2 layers on this rank"));
  CHECK_THAT(explained.out, Contains("4 times the mean"));
  CHECK(longspan_json({"explain", plan}).at("experts").at("exchange_seconds") > 0);
}

TEST_CASE("a step with more rows than the stated capacity ends with a line and loses nothing") {
  const TemporaryFolder folder;
  const std::string worst = planned(folder, "worst", {"--expert", "4", "--zero", "1"});
  const std::string even =
      planned(folder, "even", {"--expert", "4", "--zero", "1", "--expert-capacity", "1"});
  const std::string checkpoint = folder.path() / "checkpoint.safetensors";
  const auto run = [&](const std::string& plan, const std::vector<std::string>& more) {
    return longspan(joined({"run", plan, "--local-ranks", "4", "--threads", "1", "--checkpoint",
                            checkpoint, "--checkpoint-every", "1"},
                           more));
  };
  const Result all = run(worst, {"--steps", "3", "--json"});
  REQUIRE(all.status == 0);
  std::filesystem::remove(checkpoint);
  REQUIRE(run(worst, {"--steps", "3", "--stop-after", "1"}).status == 0);
  const std::string before = read_text(checkpoint);

  // Routing is hardly ever as even as this.
  const Result failed = run(even, {"--steps", "3", "--resume", checkpoint});
  CHECK(failed.status == 3);
  CHECK_THAT(failed.err, Contains("experts: a rank gets ") && Contains("--expert-capacity") &&
                             Contains("no parameter has changed"));
  CHECK(std::count(failed.err.begin(), failed.err.end(), '\n') == 1);
  CHECK(read_text(checkpoint) == before);

  const Result resumed = run(worst, {"--steps", "3", "--resume", checkpoint, "--json"});
  REQUIRE(resumed.status == 0);
  const auto last_loss = [](const Result& result) {
    return json::parse(result.out).at("steps").back().at("loss").get<double>();
  };
  CHECK(last_loss(resumed) == last_loss(all));
}

TEST_CASE("what experts on several ranks cannot be is refused in one line") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& model, const std::vector<std::string>& more,
                           const std::vector<std::string>& texts) {
    check_refused(
        longspan(joined(
            {"plan", "--model", model, "--hw", write_machine(folder, 4), "--seq", "256"}, more)),
        2, texts);
  };
  const std::string model = experts_model(folder);
  refused("tiny-llama", {"--expert", "2"}, {"--expert", "tiny-llama has no experts"});
  refused(model, {"--expert", "3"}, {"expert 3"});
  refused(model, {"--expert-capacity", "0.5"}, {"--expert-capacity", "worst or a factor"});
  refused(model, {"--expert-imbalance", "worst"}, {"--expert-imbalance", "a factor from 1"});
  refused("tiny-llama", {"--auxiliary-loss", "0.1"}, {"no experts to balance"});
  refused(model, {"--auxiliary-loss", "-1"}, {"--auxiliary-loss", "from 0"});
  refused(model, {"--auxiliary-loss", "0.1", "--pipeline", "2"}, {"auxiliary loss", "stages"});
}

}  // namespace longspan::e2e
