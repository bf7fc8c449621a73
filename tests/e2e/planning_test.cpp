// The verbs that plan: max-seq, plan, explain, simulate.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <set>

#include "tests/e2e/command.h"
#include "tests/length.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

constexpr int64_t kDeviceBytes = int64_t{64} << 20;

TEST_CASE("models with latent attention are planned, and not run") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml";
  const json planned = longspan_json({"plan", "--model", "deepseek-v2-lite", "--hw", "8xh100-80g",
                                      "--seq", "64K", "--strategy", "fpdt", "-o", plan});
  CHECK(planned.at("predicted").at("mfu") > 0.1);
  CHECK(longspan_json({"simulate", plan}).at("predicted") == planned.at("predicted"));
  CHECK(longspan({"explain", plan}).status == 0);
  check_refused(longspan({"run", plan, "--local-ranks", "8"}), 2,
                {"deepseek-v2-lite", "does not run multi-head latent attention yet"});
  const std::vector<std::string> longest = {
      "max-seq", "--model", "deepseek-v2-lite", "--hw", "8xh100-80g", "--strategy", "fpdt"};
  CHECK(longspan_json(longest).at("results")[0].at("sequence_tokens") > 1 << 16);
}

TEST_CASE("max-seq: each strategy, and the whole space at the end") {
  const std::vector<std::string> question = {"max-seq", "--model", "tiny-llama", "--hw", kHardware};
  const json document = longspan_json(question);
  const json& results = document.at("results");
  REQUIRE(results.size() == 8);
  CHECK(results.back().at("strategy") == "auto");
  std::map<std::string, int64_t> lengths;
  for (const json& result : results) {
    CAPTURE(result.dump());
    lengths[result.at("strategy")] = result.at("sequence_tokens");
    CHECK(result.at("sequence_tokens") > 0);
    CHECK(result.at("predicted").at("device_bytes") <= kDeviceBytes);
    CHECK(result.at("limited_by") != "none");
    CHECK_FALSE(result.at("remedy").get<std::string>().empty());
    for (const auto& [now, before] : {std::pair{"remedy", "would_lift"},
                                      {"comparison", "beside"},
                                      {"granularity_tokens", "granule_tokens"}}) {
      CHECK(result.at(now) == result.at(before));
    }
  }
  CHECK(lengths["checkpoint"] > lengths["baseline"]);
  CHECK(lengths["mst"] > lengths["checkpoint"]);
  CHECK(lengths["upipe"] > lengths["alst"]);

  const Result text = longspan(question);
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Contains("device memory") && Contains("What would help"));
}

TEST_CASE("max-seq: more memory is a longer sequence, none is status 1") {
  const auto longest = [](const std::string& memory) {
    return longspan_json({"max-seq", "--model", "tiny-llama", "--hw", kHardware, "--strategy",
                          "baseline", "--device-memory", memory})
        .at("results")[0]
        .at("sequence_tokens")
        .get<int64_t>();
  };
  CHECK(longest("32MiB") > longest("16MiB"));
  for (const char* flag : {"--granularity", "--granule"}) {  // the second is the flag's former name
    const json rounded = longspan_json({"max-seq", "--model", "tiny-llama", "--hw", kHardware,
                                        "--strategy", "baseline", flag, "1K"});
    CHECK(rounded.at("results")[0].at("sequence_tokens").get<int64_t>() % 1024 == 0);
  }
  const json nothing = longspan_json({"max-seq", "--model", "tiny-llama", "--hw", kHardware,
                                      "--strategy", "baseline", "--device-memory", "64KiB"},
                                     1);
  CHECK(nothing.at("results")[0].at("sequence_tokens") == 0);
  CHECK(nothing.at("results")[0].at("shortfall_bytes") > 0);
}

TEST_CASE("--set replaces a figure of the hardware as the flag for it does") {
  const auto longest = [](const std::string& flag, const std::string& value) {
    return longspan_json({"max-seq", "--model", "tiny-llama", "--hw", kHardware, "--strategy",
                          "baseline", flag, value})
        .at("results")[0]
        .at("sequence_tokens")
        .get<int64_t>();
  };
  CHECK(longest("--set", "device.memory_bytes=16MiB") == longest("--device-memory", "16MiB"));
  CHECK(longest("--set", "nvme.capacity_bytes=0,device.memory_bytes=33554432") ==
        longest("--device-memory", "32MiB"));
}

TEST_CASE("--reserve leaves less memory of each device") {
  const auto longest = [](std::vector<std::string> flags) {
    std::vector<std::string> arguments{"max-seq", "--model",    "tiny-llama", "--hw",
                                       kHardware, "--strategy", "baseline"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return longspan_json(arguments).at("results")[0].at("sequence_tokens").get<int64_t>();
  };
  CHECK(longest({"--device-memory", "48MiB", "--reserve", "16MiB"}) ==
        longest({"--device-memory", "32MiB"}));
  CHECK(longest({"--device-memory", "48MiB"}) > longest({"--device-memory", "32MiB"}));
}

// What `explain` says of a change is what `simulate` says of the plan with it.
void check_neighbours_of_pipeline(const std::string& file, const std::string& changed) {
  const json document = longspan_json({"explain", file});
  const double own = document.at("predicted").at("step_seconds");
  int simulated = 0, rules = 0;
  for (const json& n : document.at("neighbours")) {
    const std::string knob = n.at("knob"), by = n.at("by");
    CAPTURE(knob, by);
    if (n.at("limit") == "rules") {
      CHECK_THAT(by, Contains(": "));
      ++rules;
    }
    if (!knob.starts_with("saved.") || n.at("limit") == "rules" || simulated == 6) continue;
    // "    qkv: keep", or with a fraction of the layers.
    const std::string plan = without_record(read_text(file)), name = knob.substr(6);
    const json& saved = n.at("strategy").at("saved").at(name);
    const size_t at = plan.find("    " + name + ":"), end = plan.find('\n', at);
    std::ofstream(changed) << plan.substr(0, at) << "    " << name << ": " << saved.dump()
                           << plan.substr(end);
    const json predicted = longspan_json({"simulate", changed}).at("predicted");
    for (const char* bytes : {"device_bytes", "host_bytes", "nvme_bytes"}) {
      CHECK(n.at("peak_bytes").at(bytes) == predicted.at(bytes));
    }
    const bool fits = predicted.at("verdict") != "does not fit";
    CHECK(fits == n.contains("seconds_slower_per_step"));
    ++simulated;
    if (!fits) continue;
    const double slower = n.at("seconds_slower_per_step");
    const double exact = predicted.at("step_seconds").get<double>() - own;
    CHECK(slower == Approx(std::abs(exact) <= 0.005 * own ? 0 : exact));
    if (slower != 0) CHECK_THAT(by, Contains("by ") && Catch::Matchers::EndsWith(" a step"));
  }
  CHECK(simulated == 6);
  CHECK(rules > 3);
}

TEST_CASE("plan: a pipeline is planned, written, simulated and explained") {
  TemporaryFolder folder;
  const std::string file = folder.path() / "plan.yaml";
  const json planned =
      longspan_json({"plan", "--model", "llama-3.1-8b", "--hw", "8xh100-80g", "--seq", "64K",
                     "--pipeline", "4", "--schedule", "seq1f1b", "--gap", "50%", "-o", file});
  const json& pipeline = planned.at("strategy").at("parallel").at("pipeline");
  CHECK(pipeline.at("stages") == 4);
  CHECK(pipeline.at("schedule") == "seq1f1b");
  CHECK(pipeline.at("slices") > 1);
  CHECK(planned.at("strategy").at("parallel").at("ranks") == 8);

  const json simulated = longspan_json({"simulate", file});
  CHECK(simulated.at("predicted").at("step_seconds") == planned.at("predicted").at("step_seconds"));
  CHECK(simulated.at("pipeline").at("ranks").size() == 4);
  CHECK(simulated.at("pipeline") == planned.at("pipeline"));
  const Result explained = longspan({"explain", file});
  CHECK(explained.status == 0);
  CHECK_THAT(explained.out, Contains("microbatches held") && Contains("What limits it"));
  // A plan file's record may come from an older cost model and is not an input: `simulate` prints
  // its own prediction.
  const std::string edited = folder.path() / "edited.yaml";
  std::ofstream(edited) << replaced(read_text(file), "step_seconds: ", "step_seconds: 9");
  for (const char* verb : {"simulate", "explain"}) {
    CHECK(longspan_json({verb, edited}).at("predicted") == simulated.at("predicted"));
  }
  check_neighbours_of_pipeline(file, folder.path() / "changed.yaml");
  const std::string trace = folder.path() / "t.json";
  CHECK(longspan({"simulate", file, "--trace", trace}).status == 0);
  std::map<std::pair<int, int>, double> until;   // by rank and track: spans follow each other
  std::map<std::string, double> sent, received;  // arrows, by their ids
  int64_t actions = 0;
  double last = 0;
  const json traced = json::parse(std::ifstream(trace));
  for (const json& event : traced.at("traceEvents")) {
    if (event.at("ph") == "s") sent[event.at("id")] = event.at("ts");
    if (event.at("ph") == "f") received[event.at("id")] = event.at("ts");
    if (event.at("ph") != "X") continue;
    double& end = until[{event.at("pid"), event.at("tid")}];
    const double start = event.at("ts"), duration = event.at("dur");
    if (start < end - 0.002) FAIL_CHECK(event << " begins before " << end);
    end = start + duration;
    last = std::max(last, end);
    if (event.at("cat") == "action") ++actions;
  }
  const int64_t slices = pipeline.at("slices");
  CHECK(actions == 4 * (2 * slices + 1));  // F and B of every slice, and the update
  CHECK(last == Approx(1e6 * planned.at("predicted").at("step_seconds").get<double>()));
  CHECK(sent.size() == size_t(2 * 3 * slices));
  REQUIRE(received.size() == sent.size());
  for (const auto& [id, time] : sent) CHECK(received.at(id) >= time - 0.002);
}

TEST_CASE("models whose layers differ are shown, planned, simulated and explained") {
  TemporaryFolder folder;
  const std::string file = folder.path() / "plan.yaml";
  const std::string model = folder.file(
      "model.yaml",
      "name: fused\nlayers: 24\nhidden: 1024\nheads: 16\nkv_heads: 8\nffn: 3072\nvocab: 32000\n"
      "max_positions: 65536\nnorm: rmsnorm\nactivation: swiglu\npositions: rope\nnorm_eps: 1e-5\n"
      "rope_theta: 10000\nruns:\n  - {layers: 8}\n  - {layers: 6, attention: false, fused: true}\n"
      "  - {layers: 6, tokens: 0.5}\n  - {layers: 4}\n");
  const json shown = longspan_json({"models", "show", model});
  CHECK(shown.at("layers") == 20);
  CHECK(shown.at("runs").size() == 5);
  CHECK(shown.at("runs")[1].at("ffn") == 5 * 3072);
  CHECK(shown.at("units").size() == 6);  // both ends, and a layer of each kind
  CHECK_THAT(longspan({"models", "show", model}).out,
             Contains("layer 8, without attention, ffn 15360") &&
                 Contains("layers 10 to 15, on 50.0 % of the tokens"));
  for (const char* stages : {"2", "1"}) {
    if (*stages == '1' && !longspan::testing::whole_length()) break;
    const json planned =
        longspan_json({"plan", "--model", model, "--hw", "2xh100-80g", "--seq", "16K",
                       "--micro-batches", "2", "--pipeline", stages, "--gap", "50%", "-o", file});
    const json simulated = longspan_json({"simulate", file});
    CHECK(simulated.at("predicted").at("step_seconds") ==
          planned.at("predicted").at("step_seconds"));
    if (*stages == '2') {
      int64_t layers = 0;
      for (const json& rank : simulated.at("pipeline").at("ranks")) {
        layers += rank.at("layers").get<int64_t>();
      }
      CHECK(layers == 20);
    } else {
      CHECK(simulated.at("ops") > 0);  // one program
    }
    CHECK_THAT(longspan({"explain", file}).out, Contains("What limits it"));
    CHECK(longspan({"simulate", file, "--trace", folder.path() / "t.json"}).status == 0);
  }
  CHECK(longspan({"plan", "--model", model, "--hw", "2xh100-80g", "--seq", "16K", "--micro-batches",
                  "4", "--pipeline", "2", "--schedule", "1f1b-vocab-1", "--gap", "50%", "-o", file})
            .status == 0);
  check_refused(longspan({"run", file}), 2,
                {"1f1b-vocab-1 cuts the vocabulary", "does not run", "--schedule 1f1b"});
  const Result free =
      longspan({"plan", "--model", model, "--hw", "2xh100-80g", "--seq", "2K", "--gap", "50%"});
  CHECK(free.status == 0);
  CHECK_THAT(free.out, Contains("The best plan with"));
  const json longest = longspan_json({"max-seq", "--model", model, "--hw", "2xh100-80g"});
  REQUIRE(longest.at("results").size() == 1);
  CHECK(longest.at("results")[0].at("strategy") == "auto");
  CHECK(longest.at("results")[0].at("sequence_tokens") > 65536);
  check_refused(longspan({"plan", "--model", model, "--hw", "4xh100-80g", "--seq", "64K",
                          "--strategy", "fpdt"}),
                2, {"--strategy", "fused", "auto"});
}

TEST_CASE("plan and max-seq: with and without a pipeline") {
  const std::vector<std::string> question = {"--model", "qwen3-0.6b", "--hw", "4xh100-80g"};
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.end(), question.begin(), question.end());
    return words;
  };
  const Result both =
      longspan(ask({"plan", "--seq", "64K", "--micro-batches", "4", "--gap", "50%"}));
  CHECK(both.status == 0);
  CHECK_THAT(both.out, Contains("The best plan with"));
  const json flat = longspan_json(ask({"plan", "--seq", "64K", "--pipeline", "1", "--gap", "50%"}));
  CHECK(flat.at("with_and_without_a_pipeline") == "");
  CHECK_FALSE(flat.at("strategy").at("parallel").contains("pipeline"));
  const json longest = longspan_json(ask({"max-seq", "--strategy", "auto"}));
  CHECK_THAT(longest.at("results")[0].at("comparison").get<std::string>(), Contains("pipeline"));
  check_refused(longspan(ask({"plan", "--seq", "64K", "--pipeline", "3"})), 2,
                {"4 devices do not divide into 3 stages", "2 or 4"});
  check_refused(longspan(ask({"plan", "--seq", "64K", "--pipeline", "2", "--strategy", "fpdt"})), 2,
                {"--pipeline", "fpdt"});
}

TEST_CASE("plan: any numbers of virtual stages and slices that are asked for") {
  const auto pipeline_of = [](const std::vector<std::string>& more) {
    return longspan_json(joined({"plan", "--model", "qwen3-0.6b", "--hw", "4xh100-80g",
                                 "--pipeline", "4", "--gap", "50%"},
                                more))
        .at("strategy")
        .at("parallel")
        .at("pipeline");
  };
  CHECK(pipeline_of({"--seq", "24K", "--slices", "6"}).at("slices") == 6);
  CHECK(pipeline_of({"--seq", "16K", "--virtual", "3", "--micro-batches", "4"})
            .at("virtual_stages") == 3);
}

TEST_CASE("max-seq: schedules that split the backward fit, and what plan refuses it refuses") {
  const auto ask = [](const std::vector<std::string>& more) {
    return joined({"max-seq", "--model", "qwen3-0.6b", "--hw", "4xh100-80g", "--micro-batches", "8",
                   "--pipeline", "4"},
                  more);
  };
  std::vector<const char*> schedules = {"gis", "zb-h1", "v-half", "zb-v"};
  schedules.resize(static_cast<size_t>(longspan::testing::cases(1, 4)));
  for (const char* schedule : schedules) {
    CAPTURE(schedule);
    const json longest = longspan_json(ask({"--schedule", schedule}));
    CHECK(longest.at("results").back().at("sequence_tokens") >= 128 * 1024);
  }
  check_refused(longspan(ask({"--schedule", "sppo-msp"})), 2, {"--schedule"});
  check_refused(longspan({"max-seq", "--model", "llama-3.1-8b", "--hw", "8xh100-80g",
                          "--micro-batches", "3", "--schedule", "dualpipe-v"}),
                2, {"takes 3 microbatches"});
}

TEST_CASE("max-seq uses all devices of a machine, or as many as it is told to") {
  const auto ask = [](const char* devices) {
    return longspan_json({"max-seq", "--model", "tiny-llama", "--hw", "8xh100-80g", "--strategy",
                          "ulysses", "--device-memory", "2GiB", "--gpus", devices});
  };
  const json all = ask("0"), two = ask("2");
  CHECK(all.at("devices") == 8);
  CHECK(two.at("devices") == 2);
  CHECK(two.at("hardware") == "2 of 8xh100-80g");
  // Its 4 heads allow a sequence on at most 4 ranks.
  CHECK(all.at("results")[0].at("knobs").at("parallel").at("ulysses") == 4);
  CHECK(all.at("results")[0].at("knobs").at("parallel").at("data") == 2);
  CHECK(two.at("results")[0].at("knobs").at("parallel").at("ulysses") == 2);
  CHECK(all.at("results")[0].at("sequence_tokens") > two.at("results")[0].at("sequence_tokens"));
  const auto refused = [](std::vector<std::string> flags, std::vector<std::string> words) {
    std::vector<std::string> command = {"max-seq", "--model", "tiny-llama", "--hw", "8xh100-80g"};
    command.insert(command.end(), flags.begin(), flags.end());
    check_refused(longspan(command), 2, words);
  };
  refused({"--gpus", "9"}, {"8xh100-80g has 8 devices", "expected 1 to 8"});
  refused({"--ulysses", "8"}, {"--ulysses 8", "does not divide the 4 heads"});
  refused({"--zero", "4"}, {"--zero"});
}

TEST_CASE("plan: the search's answer fits, and is the same every time") {
  const TemporaryFolder folder;
  const std::string first = folder.path() / "a.yaml", second = folder.path() / "b.yaml";
  const auto make = [](const std::string& path) {
    return longspan_json({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "2K",
                          "--micro-batches", "2", "-o", path});
  };
  const json document = make(first);
  CHECK(document.at("sequence_tokens") == 2048);
  CHECK(document.at("microbatches") == 2);
  CHECK(document.at("micro_batches") == 2);  // the key's former name
  const json& strategy = document.at("strategy");
  CHECK(strategy.at("idle") == strategy.at("between_uses"));
  CHECK(document.at("predicted").at("device_bytes") <= kDeviceBytes);
  CHECK(document.at("evaluated") > 1);
  CHECK(document.at("considered") >= document.at("evaluated"));
  CHECK_FALSE(document.at("pareto").empty());
  make(second);
  CHECK(read_text(first) == read_text(second));
  CHECK_THAT(read_text(first), Catch::Matchers::StartsWith("longspan_plan: 1\n"));

  const Result text =
      longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "1K", "--verbose"});
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Contains("Pareto front") && Contains("configurations considered"));
}

TEST_CASE("plan: a margin, no storage, and limits on time") {
  const bool whole = longspan::testing::whole_length();
  const auto ask = [&](std::vector<std::string> more) {
    return joined({"plan", "--model", whole ? "llama-3.1-8b" : "qwen3-0.6b", "--hw",
                   whole ? "h100-80g" : "rtx-4090", "--seq", whole ? "128K" : "32K"},
                  more);
  };
  const json free = longspan_json(ask({"--gap", "30%"}));
  const json margin = longspan_json(ask({"--margin", "20%", "--gap", "30%"}));
  for (const char* tier : {"device_bytes", "host_bytes"}) {
    CHECK(margin.at("predicted").at(tier).get<double>() <=
          0.8 * free.at("capacity").at(tier).get<double>());
  }
  if (whole) {
    json same = longspan_json(ask({"--margin", "0.2", "--gap", "30%"}));
    same["search_seconds"] = margin.at("search_seconds");
    CHECK(margin == same);
  }
  std::vector<std::vector<std::string>> ways = {{"--no-nvme"}, {"--nvme-capacity", "0"}};
  if (!whole) ways.resize(1);
  for (const auto& without : ways) {
    const json plan = longspan_json(joined(ask(without), {"--gap", "30%"}));
    CHECK(plan.at("capacity").at("nvme_bytes") == 0);
    CHECK(plan.at("predicted").at("nvme_bytes") == 0);
  }
  const double fastest = free.at("predicted").at("step_seconds");
  const json slim = longspan_json(
      ask({"--objective", "memory", "--max-step-time", fmt::format("{}s", 1.1 * fastest)}));
  CHECK(slim.at("predicted").at("step_seconds") <= 1.1 * fastest);
  CHECK(slim.at("predicted").at("device_bytes") < free.at("predicted").at("device_bytes"));
  // A limit that the fastest plan keeps to changes nothing.
  const json within = longspan_json(
      ask({"--max-step-time", fmt::format("{:.6f}s", fastest + 1e-3), "--gap", "30%"}));
  CHECK(within.at("strategy") == free.at("strategy"));
  CHECK(within.at("predicted") == free.at("predicted"));
  const std::string too_short = fmt::format("{:.6f}s", 0.2 * fastest);
  check_refused(longspan(ask({"--max-step-time", too_short})), 1,
                {"step of at most", "compute alone takes"});
  check_refused(longspan(ask({"--max-step-time", too_short, "--strategy", "fpdt"})), 1,
                {"step of at most", "fastest"});
  if (!whole) return;
  check_refused(longspan(ask({"--max-step-time", fmt::format("{:.6f}s", 0.995 * fastest)})), 1,
                {"step of at most", "the fastest found takes"});
  // Within 0.4 % of the fastest that is found without a limit.
  CHECK(longspan({"plan", "--model", "llama-3.1-8b", "--hw", "8xh100-80g", "--seq", "64K",
                  "--global-batch", "8", "--min-tokens-per-second", "43000"})
            .status == 0);
  check_refused(longspan(ask({"--min-tokens-per-second", "1e6"})), 1,
                {"tokens/s", "compute alone"});
}

TEST_CASE("figures that the user gives are not called assumed") {
  const std::vector<std::string> ask = {"plan",     "--model", "gpt2", "--hw",
                                        "rtx-4090", "--seq",   "1K"};
  CHECK_THAT(longspan(ask).out, Contains("assumed"));
  std::vector<std::string> given = ask;
  given.insert(given.end(), {"--host-memory", "512GiB", "--nvme-capacity", "1TiB"});
  CHECK_THAT(longspan(given).out, !Contains("assumed"));
}

TEST_CASE("max-seq: a length that memory does not limit has the fastest plan") {
  const json longest =
      longspan_json({"max-seq", "--model", "gpt2", "--hw", "h100-80g", "--strategy", "auto"})
          .at("results")[0];
  CHECK(longest.at("limited_by") == "positions");
  const json plan = longspan_json({"plan", "--model", "gpt2", "--hw", "h100-80g", "--seq", "1K"});
  CHECK(longest.at("predicted").at("step_seconds") == plan.at("predicted").at("step_seconds"));
}

TEST_CASE("plan: the batch, the gap and what is padded are said") {
  const auto ask = [](std::vector<std::string> more) {
    return joined({"plan", "--model", "qwen3-0.6b", "--hw", "4xh100-80g", "--gap", "50%"}, more);
  };
  const json padded = longspan_json(ask({"--seq", "100003", "--ulysses", "4"}));
  CHECK(padded.at("asked_tokens") == 100003);
  CHECK(padded.at("sequence_tokens") > 100003);
  CHECK(padded.at("gap") >= 0);
  CHECK(padded.at("gap") < 1);
  CHECK_THAT(longspan(ask({"--seq", "100003", "--ulysses", "4"})).out,
             Contains("100003 tokens are padded to") &&
                 Contains("no plan of the search space takes more than"));
  const json batch = longspan_json(ask({"--seq", "16K", "--global-batch", "8"}));
  CHECK(batch.at("sequences_per_step") == 8);
  const Result replicas = longspan(ask({"--seq", "16K", "--data", "4"}));
  CHECK_THAT(replicas.out, Contains("4 sequences a step: 1 on each of 4 data replicas"));
  check_refused(longspan(ask({"--seq", "16K", "--data", "4", "--global-batch", "6"})), 2,
                {"--global-batch", "6"});
}

TEST_CASE("max-seq: its plan is written, and what is longest within a time is shown") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "longest.yaml";
  const json found = longspan_json({"max-seq", "--model", "llama-3.1-8b", "--hw", "h100-80g",
                                    "--strategy", "upipe", "-o", file});
  const json& result = found.at("results")[0];
  const json simulated = longspan_json({"simulate", file});
  CHECK(simulated.at("sequence_tokens") == result.at("sequence_tokens"));
  CHECK(simulated.at("predicted").at("step_seconds") == result.at("predicted").at("step_seconds"));
  longspan_json({"plan", "--model", "llama-3.1-8b", "--hw", "h100-80g", "--strategy", "upipe",
                 "--seq", result.at("sequence_tokens").dump()});
  const json& within = result.at("longest_within");
  REQUIRE(within.size() == 2);
  CHECK(within[0].at("sequence_tokens") < within[1].at("sequence_tokens"));
  CHECK(within[1].at("sequence_tokens") < result.at("sequence_tokens"));
  for (const json& entry : within) {
    CHECK(entry.at("predicted").at("step_seconds").get<double>() <=
          1.01 * entry.at("most_step_seconds").get<double>());
  }
}

TEST_CASE("learned positions are lengthened only where that is asked for") {
  const std::vector<std::string> model = {"--model", "gpt2", "--hw", "h100-80g"};
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.end(), model.begin(), model.end());
    return words;
  };
  for (const char* strategy : {"auto", "checkpoint"}) {
    check_refused(longspan(ask({"plan", "--seq", "2K", "--strategy", strategy})), 2,
                  {"max_positions", "1024", "--extend-positions"});
    const json longest = longspan_json(ask({"max-seq", "--strategy", strategy}));
    CHECK(longest.at("results")[0].at("sequence_tokens") == 1024);
    CHECK(longest.at("results")[0].at("limited_by") == "positions");
  }
  const Result extended = longspan(ask({"plan", "--seq", "2K", "--extend-positions"}));
  CHECK_THAT(extended.out, Contains("extended from 1024 to 2048"));
}

TEST_CASE("plan: a preset at a length, and one that does not fit") {
  const TemporaryFolder folder;
  const json plan = longspan_json({"simulate", make_plan(folder)});
  CHECK(plan.at("strategy").at("preset") == "fpdt");
  CHECK(plan.at("strategy").at("chunk_tokens") == 64);
  const std::string path = folder.path() / "large.yaml";
  check_refused(longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "1M",
                          "--strategy", "baseline", "-o", path}),
                1, {"device memory", "short by"});
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("plan: --gap ends the search early, with a plan known to be that near the fastest") {
  const auto ask = [](std::vector<std::string> more) {
    return joined({"plan", "--model", "qwen3-0.6b", "--hw", "2xrtx-4090", "--seq", "32K"}, more);
  };
  const json whole = longspan_json(ask({}));
  const json early = longspan_json(ask({"--gap", "40%"}));
  CHECK(early.at("gap") <= 0.4);
  CHECK(early.at("evaluated").get<double>() < 0.5 * whole.at("evaluated").get<double>());
  const auto seconds = [](const json& plan) {
    return plan.at("predicted").at("step_seconds").get<double>();
  };
  CHECK(seconds(early) <= seconds(whole) / (1 - 0.4));
  check_refused(longspan(ask({"--gap", "40%", "--objective", "memory"})), 2, {"--gap"});
  check_refused(longspan(ask({"--gap", "40%", "--strategy", "fpdt"})), 2, {"--gap"});
  check_refused(longspan(ask({"--gap", "-1"})), 2, {"--gap"});
}

TEST_CASE("plan: at most a number of devices, the fewest for a length, and several lengths") {
  const std::vector<std::string> question = {
      "plan", "--model", "tiny-llama", "--hw", "2x4xh100-80g", "--device-memory", "2GiB"};
  const auto ask = [&](std::vector<std::string> more, int status = 0) {
    more.insert(more.begin(), question.begin(), question.end());
    more.insert(more.end(), {"--gap", "30%"});
    return longspan_json(more, status);
  };
  const json most = ask({"--seq", "64K", "--max-gpus", "4"});
  CHECK(most.at("devices") == 4);
  REQUIRE(most.at("answers").size() == 3);
  double rate = 0;
  for (const json& answer : most.at("answers")) {
    CAPTURE(answer.dump());
    const double next = answer.at("predicted").at("tokens_per_second");
    CHECK(next > rate);
    CHECK(answer.at("tokens_per_second_per_device").get<double>() *
              answer.at("devices").get<double>() ==
          Approx(next));
    rate = next;
  }
  CHECK(most.at("predicted").at("tokens_per_second") == rate);
  CHECK_THAT(most.at("why_so_many_devices").get<std::string>(), Contains("4 devices; 2 give"));
  std::set<int64_t> counts;
  for (const json& point : most.at("pareto")) {
    counts.insert(point.at("devices").get<int64_t>());
    CHECK_FALSE(point.at("because").get<std::string>().empty());
  }
  CHECK(counts == std::set<int64_t>{1, 2, 4});

  std::vector<std::string> fewest = {"--min-gpus-for",  "1M",  "--host-memory", "64MiB",
                                     "--nvme-capacity", "1MiB"};
  const json found = ask(fewest);
  const int64_t devices = found.at("devices");
  CHECK(devices > 1);
  // The length may be padded where that is faster: here by less than a 256th.
  CHECK(found.at("sequence_tokens") >= 1048576);
  CHECK(found.at("sequence_tokens") < 1048576 + 1048576 / 256);
  const json& answers = found.at("answers");
  CHECK(answers.back().at("devices") == devices);
  for (size_t i = 0; i + 1 < answers.size(); ++i) {
    CHECK_THAT(answers[i].at("refusal").get<std::string>(), Contains("short by"));
  }
  fewest.insert(fewest.end(), {"--max-gpus", answers[answers.size() - 2].at("devices").dump()});
  CHECK_THAT(ask(fewest, 1).at("error").get<std::string>(), Contains("short by"));

  const json lengths = ask({"--seq", "16K,4K", "--gpus", "2"});
  CHECK(lengths.at("sequence_tokens") == 16384);
  CHECK(lengths.at("answers").size() == 2);
  CHECK(lengths.at("answers")[0].at("sequence_tokens") == 4096);

  // A preset's one answer has no front, and no heading of one.
  std::vector<std::string> preset = question;
  preset.insert(preset.end(), {"--min-gpus-for", "1K", "--strategy", "checkpoint", "--verbose"});
  const Result text = longspan(preset);
  CHECK(text.status == 0);
  CHECK_THAT(text.out, !Contains("Pareto front"));
}

TEST_CASE("explain: what one knob would do, and that the search's plan is not beaten") {
  const TemporaryFolder folder;
  const std::string best = folder.path() / "best.yaml";
  longspan_json({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "4K", "-o", best});
  const json of_best = longspan_json({"explain", best});
  CHECK_THAT(of_best.at("neighbours_say").get<std::string>(), Contains("No neighbour is faster"));
  const json document = longspan_json({"explain", make_plan(folder)});
  int rejected = 0;
  for (const json& n : document.at("neighbours")) {
    CAPTURE(n.dump());
    const std::string verdict = n.at("verdict"), limit = n.at("limit");
    CHECK((verdict == "rejected") == (limit != "none" && limit != "program size"));
    CHECK_FALSE(n.at("by").get<std::string>().empty());
    rejected += verdict == "rejected";
    if (limit == "device memory") CHECK(n.at("short_bytes").at("device_bytes") > 0);
  }
  CHECK(rejected > 0);
  const Result few = longspan({"explain", make_plan(folder)});
  const Result all = longspan({"explain", make_plan(folder), "--all"});
  CHECK_THAT(few.out, Contains("One knob turned") && Contains("--all shows the others"));
  CHECK_THAT(all.out, Contains("One knob turned") && !Contains("--all shows"));
  CHECK(all.out.size() > few.out.size());
}

TEST_CASE("explain: times add up to the streams, tensors to the peak") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const json document = longspan_json({"explain", plan});
  double kinds = 0, streams = 0;
  for (const json& kind : document.at("op_kinds")) kinds += kind.at("seconds").get<double>();
  for (const json& stream : document.at("streams")) {
    streams += stream.at("busy_seconds").get<double>();
  }
  CHECK(kinds == Approx(streams));
  for (const json& tier : document.at("memory")) {
    int64_t sum = 0;
    for (const json& tensor : tier.at("tensors")) sum += tensor.at("bytes").get<int64_t>();
    CHECK(sum == tier.at("live_bytes"));
    CHECK(tier.at("live_bytes") <= tier.at("arena_bytes"));
  }
  CHECK_FALSE(document.at("limit").get<std::string>().empty());
  const Result text = longspan({"explain", plan});
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Contains("Time by op kind") && Contains("What limits it"));
}

TEST_CASE("simulate writes a trace with a track per stream") {
  const TemporaryFolder folder;
  const std::string trace = folder.path() / "trace.json";
  const json document = longspan_json({"simulate", make_plan(folder), "--trace", trace});
  std::set<std::string> tracks;
  int64_t spans = 0;
  const json events = json::parse(read_text(trace)).at("traceEvents");
  for (const json& event : events) {
    if (event["name"] == "thread_name") tracks.insert(event["args"]["name"]);
    spans += event["ph"] == "X";
  }
  CHECK(tracks == std::set<std::string>{"compute", "h2d", "d2h", "io", "host"});
  CHECK(spans == document.at("ops"));
}

}  // namespace
}  // namespace longspan::e2e
