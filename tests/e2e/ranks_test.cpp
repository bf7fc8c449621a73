// Plans of several ranks, run as threads of one process: training, checkpoints, traces, and the
// messages where plan and ranks do not match.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

const std::vector<std::string> kMeshes[] = {
    {"--ulysses", "4"},
    {"--data", "4"},
    {"--ring", "2", "--ulysses", "2"},
    {"--tensor", "2", "--data", "2", "--zero", "2"},
    {"--data", "2", "--ulysses", "2", "--zero", "1"},
    {"--pipeline", "2", "--schedule", "1f1b", "--ulysses", "2"},
    {"--pipeline", "2", "--schedule", "1f1b", "--ring", "2"},
    {"--pipeline", "2", "--schedule", "gpipe", "--data", "2"},
    {"--pipeline", "2", "--schedule", "1f1b-vocab-1", "--ulysses", "2"},
    {"--pipeline", "2", "--schedule", "1f1b-vocab-2", "--data", "2"}};

}  // namespace

TEST_CASE("ranks train the numbers of one, in the memory and with the messages foretold") {
  const TemporaryFolder folder;
  // Sequences per step, 4 on every mesh.
  const auto sequences = [](const std::vector<std::string>& mesh) {
    const auto data = std::find(mesh.begin(), mesh.end(), "--data");
    return data == mesh.end() ? 4 : 4 / std::stoll(*(data + 1));
  };
  const std::string alone =
      make_ranks_plan(folder, 1, {"--micro-batches", "4", "--strategy", "checkpoint"});
  const std::vector<double> expected = losses(train(folder, alone, 1, {"--steps", "3"}));
  for (const std::vector<std::string>& mesh : kMeshes) {
    std::vector<std::string> flags = mesh;
    flags.insert(flags.end(), {"--micro-batches", std::to_string(sequences(mesh))});
    // Strategy "auto" plans pipelines.
    if (mesh.front() != "--pipeline") flags.insert(flags.end(), {"--strategy", "checkpoint"});
    CAPTURE(flags);
    const std::string plan = make_ranks_plan(folder, 4, flags);
    const json record = train(folder, plan, 4, {"--steps", "3"});
    const std::vector<double> actual = losses(record);
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < actual.size(); ++i)
      CHECK(actual[i] == Approx(expected[i]).epsilon(1e-5));
    CHECK(record.at("communicator") == "local");
    for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
      CHECK(record.at("measured").at(tier) == record.at("predicted").at(tier));
    }
    REQUIRE(record.at("measured").at("ranks").size() == 4);
    for (const json& rank : record.at("measured").at("ranks")) {
      CHECK(rank.at("sent_bytes") > 0);
      CHECK(rank.at("sent_bytes") == rank.at("predicted_sent_bytes"));
    }
  }
}

TEST_CASE("slices of equal work of the search's choice train the numbers of one rank") {
  const TemporaryFolder folder;
  // Ranks of one node would share its processor, and the others would be faster while one waits.
  const std::string machine =
      folder.file("two-nodes.yaml", replaced(read_text(kHardware), "nodes: 1", "nodes: 2"));
  const auto planned = [&](const std::string& name, std::vector<std::string> words) {
    const std::string plan = folder.path() / name;
    words.insert(words.begin(), {"plan", "--model", "tiny-llama", "--seq", "2K", "-o", plan});
    REQUIRE(longspan(words).status == 0);
    return plan;
  };
  const std::string whole = planned("whole.yaml", {"--hw", kHardware, "--strategy", "checkpoint"});
  const std::string sliced = planned("sliced.yaml", {"--hw", machine, "--pipeline", "2",
                                                     "--schedule", "seq1f1b", "--slices", "4"});
  CHECK_THAT(read_text(sliced), Contains("split: work"));
  const std::vector<double> expected = losses(train(folder, whole, 1, {"--steps", "2"}));
  const json record = train(folder, sliced, 2, {"--steps", "2"});
  const std::vector<double> actual = losses(record);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i] == Approx(expected[i]).epsilon(1e-5));
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(record.at("measured").at(tier) == record.at("predicted").at(tier));
  }
  const std::string file = folder.path() / "run.json";
  CHECK_THAT(longspan({"compare", sliced, file}).out, Contains("Memory: equal to the byte"));
}

TEST_CASE("schedules that offload or repeat forwards train the numbers of one rank") {
  const TemporaryFolder folder;
  const std::string model = write_model(folder, 8);
  const std::string machine = write_machine(folder, 4);
  const auto planned = [&](const std::string& name, std::vector<std::string> words) {
    const std::string plan = folder.path() / (name + ".yaml");
    words.insert(words.begin(), {"plan", "--model", model, "--seq", "512", "-o", plan});
    const Result result = longspan(words);
    INFO(result.out << result.err);
    REQUIRE(result.status == 0);
    return plan;
  };
  const auto on_ranks = [&](const std::string& schedule, std::vector<std::string> more) {
    more.insert(more.begin(), {"--hw", machine, "--pipeline", "2", "--ulysses", "2", "--schedule",
                               schedule, "--micro-batches", "4"});
    return planned(schedule, more);
  };
  const std::string alone =
      planned("alone", {"--hw", kHardware, "--micro-batches", "4", "--strategy", "checkpoint"});
  const std::vector<double> expected = losses(train(folder, alone, 1, {"--steps", "2"}));
  for (const auto& [schedule, more] :
       {std::pair{"po-h", std::vector<std::string>{"--virtual", "2"}},
        {"po-f", {"--virtual", "2"}},
        {"sppo", {"--slices", "4"}},
        {"chunkflow", {"--slices", "4"}},
        {"chronos-recomp", {"--virtual", "2"}}}) {
    INFO(schedule);
    const std::string plan = on_ranks(schedule, more);
    const json record = train(folder, plan, 4, {"--steps", "2"});
    const std::vector<double> actual = losses(record);
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < actual.size(); ++i)
      CHECK(actual[i] == Approx(expected[i]).epsilon(1e-5));
    for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
      CHECK(record.at("measured").at(tier) == record.at("predicted").at(tier));
    }
    const std::string file = folder.path() / "run.json", trace = folder.path() / "trace.json";
    CHECK_THAT(longspan({"compare", plan, file}).out, Contains("Memory: equal to the byte"));
    REQUIRE(longspan({"simulate", plan, "--trace", trace}).status == 0);
    const bool offloads =
        schedule != std::string("chunkflow") && schedule != std::string("chronos-recomp");
    const std::string text = read_text(trace);
    CHECK((text.find("copy_d2h") != std::string::npos) == offloads);
  }
}

TEST_CASE("a checkpoint of ranks is whole, and another number of ranks resumes from it") {
  const TemporaryFolder folder;
  const std::string four = make_ranks_plan(folder, 4, {"--strategy", "fpdt", "--chunk", "64"});
  const std::string two = make_ranks_plan(folder, 2, {"--strategy", "ring", "--zero", "0"});
  const std::string cut = make_ranks_plan(folder, 2, {"--strategy", "megatron-sp"});
  const std::string staged =
      make_ranks_plan(folder, 4, {"--pipeline", "2", "--schedule", "1f1b", "--ulysses", "2"});
  const std::string one = make_ranks_plan(folder, 1, {"--strategy", "baseline"});
  const auto file = [&](const std::string& name) { return (folder.path() / name).string(); };
  const std::vector<double> through =
      losses(train(folder, four, 4, {"--steps", "6", "--checkpoint", file("end")}));
  train(folder, four, 4, {"--steps", "6", "--stop-after", "3", "--checkpoint", file("half")});

  SECTION("the same ranks: bit for bit") {
    const std::vector<double> rest =
        losses(train(folder, four, 4,
                     {"--steps", "6", "--resume", file("half"), "--checkpoint", file("again")}));
    CHECK(rest == std::vector<double>(through.begin() + 3, through.end()));
    CHECK(read_text(file("again")) == read_text(file("end")));
  }
  SECTION("others: the same training, and they write such checkpoints too") {
    for (const auto& [plan, ranks] :
         {std::pair{two, 2}, std::pair{cut, 2}, std::pair{staged, 4}, std::pair{one, 1}}) {
      const std::vector<double> rest =
          losses(train(folder, plan, ranks, {"--steps", "6", "--resume", file("half")}));
      REQUIRE(rest.size() == 3);
      for (size_t i = 0; i < 3; ++i) CHECK(rest[i] == Approx(through[i + 3]).epsilon(1e-5));
    }
    // A checkpoint of sharded layers, or of stages, is a file like any other.
    for (const auto& [plan, ranks] : {std::pair{cut, 2}, std::pair{staged, 4}}) {
      train(folder, plan, ranks,
            {"--steps", "6", "--resume", file("half"), "--stop-after", "1", "--checkpoint",
             file("cut")});
      const std::vector<double> rest =
          losses(train(folder, one, 1, {"--steps", "6", "--resume", file("cut")}));
      REQUIRE(rest.size() == 2);
      for (size_t i = 0; i < 2; ++i) CHECK(rest[i] == Approx(through[i + 4]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a trace has a group of tracks per rank") {
  const TemporaryFolder folder;
  const std::string plan = make_ranks_plan(folder, 4, {"--strategy", "fpdt", "--chunk", "64"});
  const std::string trace = folder.path() / "trace.json";
  train(folder, plan, 4, {"--steps", "1", "--trace", trace});
  std::set<std::string> groups;
  std::map<int, std::set<std::string>> tracks;
  std::map<int, int64_t> exchanges;
  const json document = json::parse(read_text(trace));
  for (const json& event : document.at("traceEvents")) {
    if (event["name"] == "process_name") groups.insert(event["args"]["name"]);
    if (event["name"] == "thread_name") tracks[event["pid"]].insert(event["args"]["name"]);
    if (event["ph"] == "X" && event["cat"] == "all_to_all") ++exchanges[event["pid"]];
  }
  CHECK(groups == std::set<std::string>{"measured rank 0", "measured rank 1", "measured rank 2",
                                        "measured rank 3"});
  REQUIRE(tracks.size() == 4);
  REQUIRE(exchanges.size() == 4);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(tracks[rank].count("comm") == 1);
    CHECK(exchanges[rank] == exchanges[0]);
  }
}

TEST_CASE("ranks that do not match the plan are refused, with what would") {
  const TemporaryFolder folder;
  const std::string four = make_ranks_plan(folder, 4, {"--strategy", "ulysses"});
  const std::string one = make_ranks_plan(folder, 1, {"--strategy", "baseline"});
  check_refused(longspan({"run", four}), 2, {"4 ranks", "--local-ranks 4", "mpirun -n 4"});
  check_refused(longspan({"run", four, "--local-ranks", "2"}), 2, {"4 ranks", "2 are started"});
  check_refused(longspan({"run", one, "--local-ranks", "2"}), 2, {"1 rank,", "2 are started"});
  check_refused(longspan({"run", four, "--local-ranks", "-1"}), 2, {"--local-ranks"});
  check_refused(longspan({"run", four, "--local-ranks", "65536"}), 2, {"--local-ranks", "1024"});
  // An error that all ranks meet is reported once.
  check_refused(longspan({"run", four, "--local-ranks", "4", "--data", "no-such-file"}), 2,
                {"no-such-file"});
  check_refused(longspan({"run", "no-such-plan", "--local-ranks", "4"}), 2, {"no-such-plan"});
}

TEST_CASE("ranks whose checkpoint cannot be written leave the record of their steps") {
  const TemporaryFolder folder;
  const std::string plan = make_ranks_plan(folder, 2, {"--ulysses", "2"});
  const std::string record = folder.path() / "run.json";
  for (const auto& [every, steps] :
       std::vector<std::pair<std::string, size_t>>{{"0", 3}, {"2", 2}}) {
    CAPTURE(every);
    check_refused(longspan({"run", plan, "--steps", "3", "--local-ranks", "2", "--checkpoint",
                            "/dev/full", "--checkpoint-every", every, "-o", record}),
                  3, {"/dev/full", "No space left", "what was measured is in"});
    const json written = json::parse(read_text(record));
    CHECK(written.at("steps").size() == steps);
    CHECK(written.at("checkpoint").is_null());
    std::filesystem::remove(record);
  }
}

}  // namespace longspan::e2e
