// Models whose layers come in runs of several kinds, from a plan to a checkpoint.
#include <catch2/catch.hpp>
#include <map>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

// The catalog's small models, with layers that differ.
const std::map<std::string, std::string> kRuns = {
    {"no-attention", "  - {layers: 2}\n  - {layers: 1, attention: false}\n  - {layers: 1}\n"},
    {"fused",
     "  - {layers: 1}\n  - {layers: 2, attention: false, fused: true, ffn: 96}\n"
     "  - {layers: 1}\n"},
    {"half", "  - {layers: 1}\n  - {layers: 2, tokens: 0.5}\n  - {layers: 1}\n"},
    {"all",
     "  - {layers: 1}\n  - {layers: 1, tokens: 0.5}\n"
     "  - {layers: 1, attention: false, tokens: 0.5, ffn: 96}\n  - {layers: 1}\n"}};

std::string model_in_runs(const TemporaryFolder& folder, const std::string& name,
                          const std::string& runs) {
  std::string text = read_text(LONGSPAN_SOURCE "/models/catalog/" + name + ".yaml");
  const size_t layers = text.find("\nlayers: ") + 1;
  text.replace(layers, text.find('\n', layers) - layers, "layers: 4");
  return folder.file("model.yaml", text + "runs:\n" + kRuns.at(runs));
}

std::string plan_in_runs(const TemporaryFolder& folder, const std::string& model, int ranks,
                         const std::vector<std::string>& more) {
  const std::string plan = folder.path() / "plan.yaml";
  const Result result =
      longspan(joined({"plan", "--model", model, "--hw", write_machine(folder, ranks), "--seq",
                       "512", "--gap", "50%", "-o", plan},
                      more));
  INFO(result.err);
  REQUIRE(result.status == 0);
  return plan;
}

json train_in_runs(const TemporaryFolder& folder, const std::string& plan, int ranks,
                   const std::vector<std::string>& more) {
  const json run = train(folder, plan, ranks, joined({"--warmup", "1"}, more));
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(run.at("measured").at(tier) == run.at("predicted").at(tier));
  }
  const json verdict =
      longspan_json({"compare", plan, folder.path() / "run.json", "--tolerance", "1e12"});
  CHECK(verdict.at("memory_agrees") == true);
  return run;
}

}  // namespace

TEST_CASE("models in runs train on one rank and on two, in the memory foretold") {
  const TemporaryFolder folder;
  const struct {
    const char* microbatches;
    std::vector<std::string> flags;
  } meshes[] = {{"2", {"--ulysses", "2", "--pipeline", "1"}},
                {"2", {"--tensor", "2", "--pipeline", "1"}},
                {"1", {"--data", "2", "--pipeline", "1"}},
                {"2", {"--pipeline", "2", "--schedule", "1f1b"}},
                {"2", {"--pipeline", "2", "--schedule", "zb-v"}}};
  size_t turn = 0;
  for (const auto& [runs, text] : kRuns) {
    for (const char* name : {"tiny-llama", "tiny-gpt"}) {
      const std::string model = model_in_runs(folder, name, runs);
      INFO(name << ", " << runs);
      const std::string alone = plan_in_runs(folder, model, 1, {"--micro-batches", "2"});
      const std::vector<double> expected =
          losses(train_in_runs(folder, alone, 1, {"--steps", "3"}));
      CHECK(expected.back() < expected.front());
      for (int i = 0; i < 2; ++i) {
        const auto& mesh = meshes[turn++ % std::size(meshes)];
        CAPTURE(mesh.flags);
        const std::string plan = plan_in_runs(
            folder, model, 2, joined({"--micro-batches", mesh.microbatches}, mesh.flags));
        const std::vector<double> actual = losses(train_in_runs(folder, plan, 2, {"--steps", "3"}));
        REQUIRE(actual.size() == expected.size());
        for (size_t s = 0; s < actual.size(); ++s) {
          CHECK(actual[s] == Approx(expected[s]).epsilon(1e-5));
        }
      }
    }
  }
}

TEST_CASE("a checkpoint of a model in runs resumes, also on other ranks") {
  const TemporaryFolder folder;
  const std::string model = model_in_runs(folder, "tiny-llama", "all");
  const std::string through = folder.path() / "through", half = folder.path() / "half",
                    resumed = folder.path() / "resumed";
  const std::string one = plan_in_runs(folder, model, 1, {"--micro-batches", "2"});
  const std::vector<double> expected =
      losses(train_in_runs(folder, one, 1, {"--steps", "4", "--checkpoint", through}));
  train_in_runs(folder, one, 1, {"--steps", "4", "--stop-after", "2", "--checkpoint", half});
  train_in_runs(folder, one, 1, {"--steps", "4", "--resume", half, "--checkpoint", resumed});
  CHECK(read_text(through) == read_text(resumed));
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{"--pipeline", "2", "--schedule", "1f1b"},
        {"--tensor", "2", "--pipeline", "1"},
        {"--ulysses", "2", "--pipeline", "1"}}) {
    CAPTURE(mesh);
    const std::string two = plan_in_runs(folder, model, 2, joined({"--micro-batches", "2"}, mesh));
    const json record =
        train_in_runs(folder, two, 2,
                      {"--steps", "4", "--resume", half, "--checkpoint", folder.path() / "other"});
    const std::vector<double> rest = losses(record);
    REQUIRE(rest.size() == 2);
    for (size_t s = 0; s < 2; ++s) CHECK(rest[s] == Approx(expected[2 + s]).epsilon(1e-5));
  }
  // A uniform model has other tensors.
  const std::string uniform = plan_in_runs(folder, "tiny-llama", 1, {});
  check_refused(longspan({"run", uniform, "--steps", "9", "--resume", half}), 2,
                {"not in the plan's model"});
}

TEST_CASE("a length of which runs have no whole share is padded, or refused") {
  const TemporaryFolder folder;
  const std::string text = read_text(model_in_runs(folder, "tiny-llama", "half"));
  const std::string plan = folder.path() / "plan.yaml";
  const auto planned = [&](const std::string& share, const std::vector<std::string>& more) {
    const std::string model = folder.file("model.yaml", replaced(text, "0.5", share));
    return longspan(
        joined({"plan", "--model", model, "--hw", kHardware, "--gap", "50%", "-o", plan}, more));
  };
  for (const auto& [length, padded] : {std::pair("513", "514"), {"1001", "1004"}, {"77", "78"}}) {
    CAPTURE(length);
    const Result result = planned("0.5", {"--seq", length});
    REQUIRE(result.status == 0);
    CHECK_THAT(result.out, Contains(length + std::string(" tokens are padded to ") + padded));
    REQUIRE(longspan({"run", plan, "--steps", "1"}).status == 0);
  }
  check_refused(planned("0.5", {"--seq", "3"}), 2, {"--seq", "multiple of 2 tokens", "ask for 4"});
  check_refused(planned("0.37", {"--seq", "512"}), 2, {"multiple of 100 tokens", "ask for 600"});
  check_refused(planned("0.3333333", {"--seq", "512"}), 2, {"0.3333333", "rounder share"});
  REQUIRE(planned("0.37", {"--seq", "500"}).status == 0);
  REQUIRE(longspan({"run", plan, "--steps", "1"}).status == 0);
  check_refused(planned("0.5", {"--seq", "510", "--chunk", "51"}), 2,
                {"0.5 of the tokens", "chunk_tokens"});
  // A file that was edited is checked when it runs.
  REQUIRE(planned("0.5", {"--seq", "500"}).status == 0);
  std::string edited = read_text(plan);
  const size_t record = edited.find("predicted:");
  edited.erase(record, edited.find("model:") - record);
  const std::string odd = folder.file("odd.yaml", replaced(edited, "tokens: 0.5", "tokens: 0.3"));
  check_refused(longspan({"run", folder.file("odd.yaml", replaced(read_text(odd), "500", "501"))}),
                2, {"odd.yaml"});
}

TEST_CASE("a plan says that its schedule does not run where layers differ, as run does") {
  const TemporaryFolder folder;
  const std::string model = model_in_runs(folder, "tiny-llama", "half");
  for (const auto& [schedule, what] : {std::pair("po-h", "offloads by itself"),
                                       {"chronos-recomp", "recomputes by itself"},
                                       {"slimpipe", "shares attention"},
                                       {"1f1b-vocab-1", "cuts the vocabulary"}}) {
    CAPTURE(schedule);
    const std::string plan = folder.path() / "plan.yaml";
    const Result result = longspan({"plan", "--model", model, "--hw", write_machine(folder, 2),
                                    "--seq", "512", "--gap", "50%", "-o", plan, "--pipeline", "2",
                                    "--micro-batches", "2", "--schedule", schedule});
    INFO(result.err);
    REQUIRE(result.status == 0);
    CHECK_THAT(result.out, Contains("not run") && Contains(what));
    check_refused(longspan({"run", plan, "--local-ranks", "2"}), 2, {"plan.yaml", what});
  }
  const std::string plan =
      plan_in_runs(folder, model, 2, {"--pipeline", "2", "--schedule", "zb-h1"});
  CHECK(longspan({"run", plan, "--local-ranks", "2", "--steps", "1"}).status == 0);
}

}  // namespace longspan::e2e
