// The verbs that train and compare: run and compare, also when they are stopped, when memory is
// short and when the disk is full.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

// Number of step lines that a run has printed: those that begin with a number.
int64_t steps_in(const std::string& out) {
  int64_t steps = 0;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(' ');
    steps += first != std::string::npos && line[first] >= '0' && line[first] <= '9';
  }
  return steps;
}

TEST_CASE("run of a forward alone prints the loss of each sequence and writes log-probabilities") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string record = folder.path() / "run.json", array = folder.path() / "p.npy";
  const Result result = longspan({"run", plan, "--forward-only", "--steps", "3", "-o", record,
                                  "--logprobs", array, "--threads", "1"});
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  CHECK_THAT(result.out, Contains("sequence 2: loss 5.") && !Contains("grad norm"));
  const json run = json::parse(read_text(record));
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(run.at("measured").at(tier) == run.at("predicted").at(tier));
  }
  const std::string values = read_text(array);
  REQUIRE(values.size() == 128 + 3 * 256 * 4);
  const std::string trained = folder.path() / "trained.json";
  REQUIRE(longspan({"run", plan, "--steps", "1", "-o", trained}).status == 0);
  CHECK(json::parse(read_text(trained)).at("steps")[0].at("loss") == run.at("steps")[0].at("loss"));
  for (int step = 0; step < 3; ++step) {
    double sum = 0;
    for (int i = 0; i < 256; ++i) {
      float value = 0;
      std::memcpy(&value, values.data() + 128 + 4 * (step * 256 + i), 4);
      sum -= static_cast<double>(value);
    }
    const json& loss = run.at("steps")[static_cast<size_t>(step)].at("sequence_losses")[0];
    CHECK(loss.get<double>() == Approx(sum / 256).epsilon(1e-12));
  }

  // A plan of its own says the same, and takes less memory than the training.
  const std::string own = folder.path() / "forward.yaml";
  REQUIRE(longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256",
                    "--forward-only", "-o", own})
              .status == 0);
  const json explained = longspan_json({"explain", own});
  CHECK(explained.at("predicted").at("device_bytes") <=
        longspan_json({"simulate", plan}).at("predicted").at("device_bytes"));
  CHECK(longspan_json({"simulate", own, "--forward-only"}).at("predicted") ==
        explained.at("predicted"));
  CHECK(longspan({"run", own, "--steps", "1"}).status == 0);
  check_refused(longspan({"run", own, "--checkpoint", folder.path() / "c.safetensors"}), 2,
                {"--checkpoint", "a forward alone changes nothing"});
  check_refused(longspan({"run", plan, "--logprobs", array}), 2, {"--logprobs", "--forward-only"});
}

TEST_CASE("run trains, and compare holds it against the prediction") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string record = folder.path() / "run.json", trace = folder.path() / "trace.json";
  const Result result = longspan({"run", plan, "--steps", "3", "--lr", "1e-2", "-o", record,
                                  "--trace", trace, "--threads", "1"});
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  CHECK_THAT(result.out, Contains("Predicted against measured"));

  const json run = json::parse(read_text(record));
  REQUIRE(run.at("steps").size() == 3);
  CHECK(run.at("stopped_early") == false);
  CHECK(run.at("steps")[0].at("loss").get<double>() == Approx(std::log(256)).epsilon(0.05));
  CHECK(run.at("steps")[2].at("loss") < run.at("steps")[0].at("loss"));
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(run.at("measured").at(tier) == run.at("predicted").at(tier));
  }
  CHECK(run.at("measured").at("process_peak_bytes") > run.at("measured").at("arena_memory_bytes"));

  std::set<std::string> tracks;
  std::map<int, std::vector<std::pair<double, double>>> spans;
  const json events = json::parse(read_text(trace)).at("traceEvents");
  for (const json& event : events) {
    if (event["name"] == "thread_name") tracks.insert(event["args"]["name"]);
    if (event["ph"] == "X") spans[event["tid"]].push_back({event["ts"], event["dur"]});
  }
  CHECK(tracks == std::set<std::string>{"compute", "h2d", "d2h", "io", "host"});
  CHECK(spans.size() >= 4);  // fpdt computes, loads, stores, and reads tokens
  for (auto& [track, list] : spans) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) {
      CHECK(list[i].first >= list[i - 1].first + list[i - 1].second - 1e-6);
    }
  }

  const json verdict = longspan_json({"compare", plan, record, "--tolerance", "1e12"});
  CHECK(verdict.at("memory_agrees") == true);
  double shares = 0;
  for (const json& kind : verdict.at("op_kinds")) {
    shares += kind.at("share_of_difference").get<double>();
  }
  CHECK(shares == Approx(1));
  CHECK(longspan_json({"compare", plan, record, "--tolerance", "0%"}, 1).at("time_agrees") ==
        false);
  CHECK_THAT(longspan({"compare", plan, record, "--tolerance", "1e12"}).out,
             Contains("attention_backward") && Contains("equal to the byte"));

  json edited = run;
  edited["measured"]["host_bytes"] = run.at("measured").at("host_bytes").get<int64_t>() + 1;
  const std::string other = folder.file("edited.json", edited.dump());
  const json disagreement = longspan_json({"compare", plan, other, "--tolerance", "1e12"}, 1);
  CHECK(disagreement.at("memory_agrees") == false);
  CHECK(disagreement.at("time_agrees") == true);
}

TEST_CASE("a Hugging Face folder trains from its weights on a text") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml";
  const std::string model = kGolden + "/tiny_llama";
  const int64_t vocab = longspan_json({"models", "show", model}).at("vocab");
  std::string ids(2 * 200, '\0');
  for (size_t i = 0; i < 200; ++i)
    ids[2 * i] = static_cast<char>(i * 7 % std::min<int64_t>(vocab, 100));
  const std::string data = folder.file("ids.bin", ids);
  REQUIRE(
      longspan({"plan", "--model", model, "--hw", kHardware, "--seq", "64", "-o", plan}).status ==
      0);
  const json loaded =
      longspan_json({"run", plan, "--steps", "1", "--data", data, "--weights", model});
  const json fresh = longspan_json({"run", plan, "--steps", "1", "--data", data});
  CHECK(loaded.at("steps")[0].at("loss") != fresh.at("steps")[0].at("loss"));
}

TEST_CASE("stop and resume give the same bits as running through") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string through = folder.path() / "through", half = folder.path() / "half",
                    resumed = folder.path() / "resumed";
  const std::vector<std::string> run = {
      "run",      plan, "--steps", "5",
      "--warmup", "1",  "--data",  LONGSPAN_SOURCE "/examples/opticks.txt"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    const Result result = longspan(more);
    INFO(result.out << result.err);
    REQUIRE(result.status == 0);
    return result.out;
  };
  with({"--checkpoint", through});
  const std::string out = with({"--checkpoint", half, "--stop-after", "2"});
  CHECK_THAT(out, Contains("Stopped after step 2 of 5"));
  CHECK(steps_in(out) == 2);
  CHECK(steps_in(with({"--resume", half, "--checkpoint", resumed, "--checkpoint-every", "1"})) ==
        3);
  CHECK(read_text(through) == read_text(resumed));
  CHECK_FALSE(read_text(through) == read_text(half));
}

TEST_CASE("SIGINT and SIGTERM finish the step, save and say so") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    const std::string plan = make_plan(folder);
    const std::string record = folder.path() / "run.json";
    Command command({"run", plan, "--steps", "1000000", "-o", record});
    while (command.running() && steps_in(command.out_so_far()) < 2) ::usleep(1000);
    command.send(signal);
    const Result result = command.wait();
    INFO(result.out << result.err);
    REQUIRE(result.status == 0);
    CHECK_THAT(result.out, Contains("Stopped after step"));

    const json run = json::parse(read_text(record));
    CHECK(run.at("stopped_early") == true);
    const std::string checkpoint = run.at("checkpoint");
    CHECK(checkpoint == plan + ".checkpoint.safetensors");
    const int64_t done = run.at("steps").back().at("step");
    const json next =
        longspan_json({"run", plan, "--steps", std::to_string(done + 1), "--resume", checkpoint});
    CHECK(next.at("steps").size() == 1);
    CHECK(next.at("steps")[0].at("step") == done + 1);
  }
}

TEST_CASE("capacity: to the byte, and refused before the first op") {
  const TemporaryFolder folder;
  // Optimizer state in a file, so that all three tiers hold something.
  std::string text = without_record(read_text(make_plan(folder)));
  text = replaced(text, "optimizer: device", "optimizer: nvme");
  const json predicted =
      longspan_json({"simulate", folder.file("plan.yaml", text)}).at("predicted");
  const std::vector<std::array<std::string, 3>> tiers = {
      {"device", "device_bytes", "  memory_bytes: {value: 67108864"},
      {"host", "host_bytes", "  memory_bytes: {value: 1073741824"},
      {"nvme", "nvme_bytes", "  capacity_bytes: {value: 1073741824"}};
  for (const auto& [tier, key, line] : tiers) {
    CAPTURE(tier);
    const int64_t peak = predicted.at(key);
    REQUIRE(peak > 0);
    const auto with_capacity = [&](int64_t bytes) {
      const std::string start = line.substr(0, line.find("value: "));
      return folder.file("plan.yaml",
                         replaced(text, line, start + "value: " + std::to_string(bytes)));
    };
    const std::vector<std::string> flags = {"--steps", "1", "--nvme-dir", folder.path()};
    const auto run = [&](const std::string& plan) {
      return longspan({"run", plan, flags[0], flags[1], flags[2], flags[3]});
    };
    CHECK(run(with_capacity(peak)).status == 0);
    const Result refused = run(with_capacity(peak - 1));
    check_refused(refused, 1, {tier, std::to_string(peak), "short by 1 B"});
    CHECK(refused.out.empty());
  }
  CHECK(names_in(folder.path()).size() == 2);  // the two plans; the file tier leaves nothing
}

TEST_CASE("what was measured is written although the checkpoint cannot be") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const std::string record = folder.path() / "run.json", trace = folder.path() / "trace.json";
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",     plan,  "--steps",      "3",        "-o", record,
                                      "--trace", trace, "--checkpoint", "/dev/full"};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = longspan(words);
    check_refused(result, 3, {"/dev/full", "No space left", "what was measured is in"});
    const json written = json::parse(read_text(record));
    CHECK(written.at("checkpoint").is_null());
    CHECK_THAT(written.at("checkpoint_error").get<std::string>(), Contains("No space left"));
    CHECK(json::parse(read_text(trace)).contains("traceEvents"));
    std::filesystem::remove(record);
    std::filesystem::remove(trace);
    return written.at("steps").size();
  };
  CHECK(run({}) == 3);
  CHECK(run({"--checkpoint-every", "2"}) == 2);
  CHECK(run({"--stop-after", "1"}) == 1);
}

TEST_CASE("a full disk is status 3 and leaves nothing half-written") {
  const TemporaryFolder folder;
  const std::string plan = make_plan(folder);
  const auto before = names_in(folder.path());
  check_refused(longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "256",
                          "--strategy", "mst", "-o", "/dev/full"}),
                3, {"/dev/full", "No space left"});
  check_refused(longspan({"simulate", plan, "--trace", "/dev/full"}), 3, {"No space left"});
  check_refused(longspan({"run", plan, "--steps", "1", "-o", "/dev/full"}), 3, {"No space left"});
  check_refused(longspan({"run", plan, "--steps", "1", "--checkpoint", "/dev/full"}), 3,
                {"No space left"});

  // Files that may not grow beyond 2000 bytes fail half-way.
  constexpr int64_t kLimit = 2000;
  check_refused(longspan({"plan", "--model", "tiny-llama", "--hw", kHardware, "--seq", "512",
                          "--strategy", "mst", "-o", folder.path() / "new.yaml"},
                         kLimit),
                3, {"new.yaml"});
  check_refused(longspan({"simulate", plan, "--trace", folder.path() / "trace.json"}, kLimit), 3,
                {"trace.json"});
  check_refused(
      longspan({"run", plan, "--steps", "1", "--checkpoint", folder.path() / "c"}, kLimit), 3,
      {"/c"});
  CHECK(names_in(folder.path()) == before);

  const std::string kept = folder.file("kept.json", "as it was");
  check_refused(longspan({"run", plan, "--steps", "1", "-o", kept}, kLimit), 3, {"kept.json"});
  CHECK(read_text(kept) == "as it was");
}

}  // namespace
}  // namespace longspan::e2e
