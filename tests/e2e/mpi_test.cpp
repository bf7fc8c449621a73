// Plans run by mpirun: the same bits as from threads of one process, one process that prints, and
// an end in bounded time whatever happens to a rank.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <thread>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

constexpr std::chrono::seconds kBound{60};  // for the end of a job that lost a rank

std::vector<std::string> mpirun(int ranks) {
  return {LONGSPAN_MPIEXEC, "-n", std::to_string(ranks), "--oversubscribe"};
}

// The processes of the job that are ranks of longspan, started by mpirun.
std::vector<pid_t> ranks_of(pid_t launcher) {
  std::vector<pid_t> ranks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    pid_t process = 0, parent = 0;
    std::string name, state;
    if (file >> process >> name >> state >> parent && parent == launcher) ranks.push_back(process);
  }
  return ranks;
}

template <class Condition>
bool becomes_true(Condition&& condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    if (std::chrono::steady_clock::now() - begin > kBound) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

std::string ulysses_plan(const TemporaryFolder& folder) {
  return make_ranks_plan(folder, 4, {"--strategy", "fpdt", "--chunk", "64"});
}

std::string pipeline_plan(const TemporaryFolder& folder) {
  return make_ranks_plan(
      folder, 4,
      {"--pipeline", "2", "--ulysses", "2", "--micro-batches", "4", "--schedule", "1f1b"});
}

std::string offloading_plan(const TemporaryFolder& folder) {
  return make_ranks_plan(folder, 4,
                         {"--pipeline", "2", "--ulysses", "2", "--micro-batches", "2", "--schedule",
                          "sppo", "--slices", "4"},
                         "512");
}

std::string sharing_plan(const TemporaryFolder& folder) {
  return make_ranks_plan(folder, 4,
                         {"--pipeline", "2", "--ulysses", "2", "--slices", "4", "--micro-batches",
                          "2", "--schedule", "slimpipe"},
                         "512");
}

}  // namespace

TEST_CASE("mpirun trains the same bits as threads, and one process prints") {
  const auto plan_in = GENERATE(ulysses_plan, pipeline_plan, offloading_plan, sharing_plan);
  const TemporaryFolder folder;
  const std::string plan = plan_in(folder);
  INFO(plan);
  const auto file = [&](const std::string& name) { return (folder.path() / name).string(); };
  const Result threads =
      longspan({"run", plan, "--steps", "2", "--local-ranks", "4", "--checkpoint", file("local")});
  REQUIRE(threads.status == 0);
  const Result processes = Command({"run", plan, "--steps", "2", "--checkpoint", file("mpi"), "-o",
                                    file("run.json"), "--trace", file("trace.json")},
                                   0, mpirun(4))
                               .wait();
  INFO(processes.out << processes.err);
  REQUIRE(processes.status == 0);
  CHECK(read_text(file("mpi")) == read_text(file("local")));
  const std::string heading = "Predicted against measured";
  CHECK(processes.out.find(heading) != std::string::npos);
  CHECK(processes.out.find(heading) == processes.out.rfind(heading));
  const json record = json::parse(read_text(file("run.json")));
  CHECK(record.at("communicator") == "mpi");
  for (const char* tier : {"device_bytes", "host_bytes", "nvme_bytes"}) {
    CHECK(record.at("measured").at(tier) == record.at("predicted").at(tier));
  }
  for (const json& rank : record.at("measured").at("ranks")) {
    CHECK(rank.at("sent_bytes") == rank.at("predicted_sent_bytes"));
  }
  CHECK_THAT(read_text(file("trace.json")), Contains("measured rank 3"));
}

TEST_CASE("mpirun: a mistake is said once") {
  const TemporaryFolder folder;
  const Result wrong_size = Command({"run", ulysses_plan(folder)}, 0, mpirun(2)).wait();
  CHECK(wrong_size.status == 2);
  const std::string text = "the plan is for 4 ranks, and 2 are started";
  CHECK_THAT(wrong_size.err, Contains(text));
  CHECK(wrong_size.err.find(text) == wrong_size.err.rfind(text));
}

TEST_CASE("mpirun: ranks with other plans or flags do not begin") {
  const TemporaryFolder folder;
  const std::string plan = pipeline_plan(folder);
  const TemporaryFolder elsewhere;
  const std::string other = make_ranks_plan(
      elsewhere, 4,
      {"--pipeline", "2", "--ulysses", "2", "--micro-batches", "4", "--schedule", "gpipe"});
  const auto started_with = [&](const std::vector<std::string>& others) {
    std::vector<std::string> second = {":", "-n", "2", LONGSPAN_BINARY, "run"};
    second.insert(second.end(), others.begin(), others.end());
    return Command(joined({"run", plan, "--steps", "2"}, second), 0, mpirun(2)).wait();
  };
  const Result steps = started_with({plan, "--steps", "3"});
  CHECK(steps.status == 2);
  CHECK_THAT(steps.err, Contains("rank 2: --steps: rank 0 has another value"));
  const Result plans = started_with({other, "--steps", "2"});
  CHECK(plans.status == 2);
  CHECK_THAT(plans.err, Contains("rank 2") && Contains("rank 0 has another plan"));
}

TEST_CASE("a rank that is killed or stopped ends the job, and the last checkpoint is intact") {
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  const auto plan_in = GENERATE(ulysses_plan, pipeline_plan);
  CAPTURE(signal);
  const TemporaryFolder folder;
  const std::string plan = plan_in(folder), checkpoint = folder.path() / "checkpoint";
  INFO(plan);
  Command job(
      {"run", plan, "--steps", "1000000", "--checkpoint", checkpoint, "--checkpoint-every", "1"}, 0,
      mpirun(4));
  REQUIRE(becomes_true([&] { return std::filesystem::exists(checkpoint); }));
  const std::vector<pid_t> ranks = ranks_of(job.process());
  REQUIRE(ranks.size() == 4);
  ::kill(ranks[2], signal);
  const bool ended = becomes_true([&] { return !job.running(); });
  if (signal == SIGSTOP) ::kill(ranks[2], SIGKILL);
  REQUIRE(ended);
  const Result result = job.wait();
  INFO(result.err);
  CHECK(result.status != 0);
  CHECK_THAT(result.err, Contains("rank 2"));

  const int64_t done =
      longspan_json({"run", plan, "--local-ranks", "4", "--resume", checkpoint, "--steps",
                     "1000000", "--stop-after", "1", "--checkpoint", folder.path() / "after"})
          .at("steps")[0]
          .at("step");
  CHECK(done >= 2);
}

TEST_CASE("a rank that cannot allocate ends the job with its line") {
  const TemporaryFolder folder;
  // About 1 GiB on each rank, which is more than the address space of the fourth.
  const std::string plan = make_ranks_plan(
      folder, 4, {"--strategy", "baseline", "--ulysses", "4", "--device-memory", "4GiB"}, "512K");
  std::vector<std::string> launcher = mpirun(3);
  launcher.insert(launcher.end(), {LONGSPAN_BINARY, "run", plan, ":", "-n", "1", "sh", "-c",
                                   "ulimit -v 900000; exec \"$@\"", "sh"});
  Command job({"run", plan}, 0, launcher);
  REQUIRE(becomes_true([&] { return !job.running(); }));
  const Result result = job.wait();
  INFO(result.out << result.err);
  CHECK(result.status != 0);
  CHECK_THAT(result.err, Contains("longspan: rank 3: "));
}

}  // namespace longspan::e2e
