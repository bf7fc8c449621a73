// longspan schedule: one schedule, the comparison of all, and refusals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "base/file.h"
#include "planner/schedule/io/pytorch_csv.h"
#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

std::vector<std::string> schedule_command(const std::string& name,
                                          const std::vector<std::string>& more = {}) {
  return joined({"schedule", name, "--stages", "8", "--microbatches", "24"}, more);
}

}  // namespace

TEST_CASE("schedule: Zero Bubble's table 5, row 1") {
  const std::vector<std::string> times = {
      "--forward",         "18.522", "--backward-input", "18.086",
      "--backward-weight", "9.337",  "--comm",           "0.601"};
  const auto rate = [&](const std::string& name) {
    return longspan_json(schedule_command(name, times)).at("bubble_rate").get<double>();
  };
  CHECK(rate("1f1b") == Approx(.2431).margin(0.00005).epsilon(0));
  CHECK(rate("zb-h1") == Approx(.1585).margin(0.00005).epsilon(0));
  CHECK(rate("zb-h2") == Approx(.1083).margin(0.00005).epsilon(0));
}

TEST_CASE("schedule: the picture, the drawing and the CSV") {
  const TemporaryFolder folder;
  const std::string svg = (folder.path() / "p.svg").string();
  const std::string csv = (folder.path() / "p.csv").string();
  const Result result = longspan(
      schedule_command("zb-h1", {"--svg", svg, "--csv", csv, "--exchanges", "--width", "400"}));
  CHECK(result.status == 0);
  CHECK_THAT(result.out, Contains("zb-h1 of 8 ranks and 24 microbatches: bubble rate 0.0886"));
  CHECK_THAT(result.out, Contains("\n0  F0=F1=F2="));
  CHECK_THAT(result.out, Contains("F forward   I gradients of inputs   W gradients of weights"));
  CHECK_THAT(read_file(svg), Contains("time (a microbatch's forward on a rank takes 1)"));
  CHECK_THAT(read_file(svg), Contains("</svg>"));
  const PipelineCsv read = read_pipeline_csv(read_file(csv), csv);
  CHECK(read.schedule.ranks.size() == 8);
  CHECK(read.schedule.microbatches == 24);
  CHECK_THAT(read_file(csv), Contains("0SEND_F0"));
}

TEST_CASE("schedule: a file's schedule is timed as it was, and written as it was read") {
  const TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  const std::vector<std::string> costs = {"--comm", "0.3", "--backward-weight", "2"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), costs.begin(), costs.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (const char* name : {"zb-h1", "interleaved-zb", "dualpipe-v", "1f1b-vocab-2"}) {
    INFO(name);
    const auto made = longspan_json(with(schedule_command(name), {"--csv", path("a.csv")}));
    for (const char* flag : {"--exchanges", "--gathering", ""}) {
      std::vector<std::string> lower = {"--csv", path("b.csv")};
      if (*flag != 0) lower.emplace_back(flag);
      auto read = longspan_json(with({"schedule", path("a.csv")}, lower));
      for (const char* key : {"stages", "microbatches", "virtual_stages", "cost", "bubble_rate",
                              "peak_memory_microbatches", "messages"}) {
        INFO(key);
        CHECK(read.at(key) == made.at(key));
      }
      read = longspan_json(with({"schedule", path("b.csv")}, {"--csv", path("c.csv")}));
      CHECK(read.at("cost") == made.at("cost"));
      CHECK(read.at("messages") == made.at("messages"));
      CHECK(read_file(path("c.csv")) == read_file(path("b.csv")));
    }
    CHECK(read_file(path("b.csv")) == read_file(path("a.csv")));
  }
  const Result shown = longspan({"schedule", path("a.csv"), "--svg", path("a.svg")});
  CHECK_THAT(shown.out, Contains("a.csv of 8 ranks and 24 microbatches: bubble rate"));
  CHECK_THAT(read_file(path("a.svg")), Contains("</svg>"));

  CHECK(longspan(schedule_command("1f1b", {"--gathering", "--csv", path("w.csv")})).status == 0);
  CHECK_THAT(read_file(path("w.csv")), Contains("0WAIT_SEND_F0") && Contains("0WAIT_REDUCE_GRAD"));
  CHECK(longspan({"schedule", path("w.csv"), "--no-waits", "--csv", path("n.csv")}).status == 0);
  CHECK_THAT(read_file(path("n.csv")), Contains("0SEND_F0") && !Contains("WAIT"));
}

TEST_CASE("schedule refuses a file that is no schedule") {
  const TemporaryFolder folder;
  folder.file("word.csv", "0F0,0B0\n1F0,1Q0\n");
  folder.file("order.csv", "0F0,0B0\n1B0,1F0\n");
  folder.file("half.csv", "0F0,0B0\n1F0\n");
  folder.file("far.csv", "0F0,0B1048576\n");
  folder.file("odd.csv", "0F0,2F0,2B0,0B0\n1F0,1B0\n");
  folder.file("lowered.csv", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  const auto refused = [&](const std::string& name, const std::vector<std::string>& texts,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"schedule", (folder.path() / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    check_refused(longspan(words), 2, texts);
  };
  refused("none.csv", {"none.csv"});
  refused("word.csv", {"word.csv: line 2, cell 2: \"1Q0\" is no action"});
  refused("order.csv", {"order.csv: the schedule never ends"});
  refused("half.csv", {"half.csv: 1B0 is missing"});
  refused("far.csv", {"far.csv: 2 actions are too few"});
  refused("odd.csv", {"odd.csv: rank 1 has 1 stages and rank 0 2"});
  refused("lowered.csv", {"written out already"},
          {"--exchanges", "--csv", (folder.path() / "x.csv").string()});
  refused("lowered.csv", {"leave out --stages"}, {"--microbatches", "8"});
}

TEST_CASE("schedule compare and schedule list have every family") {
  const auto list = longspan_json({"schedule", "list"}).at("schedules");
  const auto compared =
      longspan_json(schedule_command("compare", {"--memory-limit", "8"})).at("schedules");
  CHECK(list.size() == compared.size());
  CHECK(compared[0].at("peak_memory_microbatches") <= 8);
  CHECK(compared.back().contains("refused"));
  CHECK(longspan({"schedule", "list"}).status == 0);
  CHECK_THAT(longspan(schedule_command("compare")).out, Contains("seq1f1b-i"));
}

TEST_CASE("schedule: where a sequence is cut") {
  const auto cut = [](const std::string& split) {
    return longspan_json(schedule_command(
        "seq1f1b", {"--slices", "4", "--attention", "0.5", "--split", split, "--sequence", "64K"}));
  };
  CHECK(cut("equal").at("slice_tokens") == std::vector<int64_t>(4, 16384));
  const std::vector<int64_t> lengths = cut("equal-flop").at("slice_tokens");
  CHECK(std::is_sorted(lengths.rbegin(), lengths.rend()));
  CHECK(cut("equal-flop").at("bubble_rate") < cut("equal").at("bubble_rate"));
  check_refused(longspan(schedule_command("seq1f1b", {"--split", "equal"})), 2, {"--sequence"});
  check_refused(longspan(schedule_command("seq1f1b", {"--split", "half"})), 2, {"--split"});
}

TEST_CASE("schedule measured: a trace and the schedule that it shows") {
  // Two ranks and two microbatches of 1F1B, F 10 ms and B 20 ms.
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  folder.file("config.json", R"({"pp_size": 2, "vp_size": 1, "num_mbs": 2, "train_iters": 8})");
  folder.file("pp_rank_0.json",
              R"({"7": {"total": 100, "memory": 20.5, "fwd_start": [1, 11], "fwd_end": [11, 21],)"
              R"( "bwd_start": [41, 71], "bwd_end": [61, 91]}})");
  folder.file("pp_rank_1.json",
              R"({"7": {"total": 100, "memory": 12, "fwd_start": [11, 41], "fwd_end": [21, 51],)"
              R"( "bwd_start": [21, 51], "bwd_end": [41, 71]}})");
  const auto json = longspan_json({"schedule", "measured", path, "--against", "1f1b"});
  CHECK(json.at("cost_ms") == 90);
  CHECK(json.at("bubble_rate").get<double>() == Approx(1.0 / 3));
  CHECK(json.at("ranks")[0].at("memory_bytes") == 20500000000);
  CHECK(json.at("ranks")[1].at("idle_of_total").get<double>() == Approx(0.4));
  CHECK(json.at("simulated").at("cost_error").get<double>() == Approx(0).margin(1e-12));
  const std::string svg = (folder.path() / "p.svg").string();
  const Result result =
      longspan({"schedule", "measured", path, "--iteration", "7", "--svg", svg, "--width", "60"});
  CHECK(result.status == 0);
  CHECK_THAT(result.out, Contains("iteration 7 of 2 ranks and 2 microbatches, measured"));
  CHECK_THAT(result.out, Contains("20.5 12.0 GB by rank"));
  CHECK_THAT(read_file(svg), Contains(">time (ms)<") && Contains("</svg>"));
  check_refused(longspan({"schedule", "measured", path, "--iteration", "8"}), 2,
                {"iteration 8 is not in the trace", "7"});
  check_refused(longspan({"schedule", "measured"}), 2,
                {"folder is required", "schedule measured --help"});
  check_refused(longspan({"schedule", "1f1b", path}), 2, {"not expected", path});
}

// docs/schedules.md shows the command's output, indented. If this fails, copy the current output to
// the page.
TEST_CASE("schedule compare: the page of schedules has what it prints, and every family") {
  const std::string page = read_file(std::filesystem::path(LONGSPAN_SOURCE) / "docs/schedules.md");
  const std::string command = "schedule compare --stages 8 --microbatches 32 --comm 0.02";
  CHECK_THAT(page, Contains("`longspan " + command + "`"));
  std::istringstream words(command);
  const Result result = longspan({std::istream_iterator<std::string>(words), {}});
  std::istringstream lines(result.out);
  std::string indented;
  for (std::string line; std::getline(lines, line);) indented += "    " + line + "\n";
  INFO(indented);
  CHECK(page.find("\n\n" + indented + "\n") != std::string::npos);
  for (const auto& family : longspan_json({"schedule", "list"}).at("schedules")) {
    CHECK_THAT(page, Contains("`" + family.at("name").get<std::string>() + "`"));
  }
}

TEST_CASE("schedule refuses in one line") {
  check_refused(longspan(schedule_command("1f1")), 2, {"unknown schedule \"1f1\"", "1f1b"});
  check_refused(longspan({"schedule", "1f1b"}), 2, {"--stages", "--microbatches"});
  check_refused(longspan(schedule_command("1f1b", {"--virtual", "2"})), 2,
                {"1f1b takes 1 virtual stage;"});
  check_refused(longspan(schedule_command("1f1b", {"--memory-limit", "7.5"})), 1,
                {"holds 8 microbatches", "7.5"});
  check_refused(longspan(schedule_command("dualpipe", {"--csv", "/dev/null"})), 2, {"one copy"});
  for (const char* word : {"nan", "1e300", "-1", "x"}) {
    check_refused(longspan(schedule_command("1f1b", {"--forward", word})), 2, {"--forward", word});
  }
  // A limit counts however small or large it is.
  check_refused(longspan(schedule_command("1f1b", {"--memory-limit", "1e-9"})), 1,
                {"holds 8 microbatches"});
  CHECK(longspan(schedule_command("1f1b", {"--memory-limit", "1e15"})).status == 0);
  CHECK(longspan(schedule_command("compare", {"--memory-limit", "0.001"})).status == 1);
  check_refused(longspan(schedule_command("compare", {"--svg", "x.svg"})), 2, {"--svg"});
  check_refused(longspan(schedule_command("1f1b", {"--svg", "x", "--csv", "x"})), 2, {"two files"});
  check_refused(longspan(schedule_command("1f1b", {"--exchanges"})), 2, {"--csv FILE"});
}

TEST_CASE("schedule refuses flags that would change nothing") {
  struct Ignored {
    const char* name;
    std::vector<std::string> flag;
  };
  for (const Ignored& ignored : std::vector<Ignored>{{"1f1b", {"--hidden", "0.5"}},
                                                     {"1f1b", {"--offload", "3"}},
                                                     {"1f1b", {"--vocabulary-forward", "1"}},
                                                     {"1f1b", {"--weight-memory", "0.5"}},
                                                     {"1f1b", {"--attention", "0.5"}},
                                                     {"1f1b", {"--layers", "16"}},
                                                     {"1f1b", {"--time-limit", "5"}},
                                                     {"1f1b", {"--against", "gpipe"}},
                                                     {"1f1b", {"--iteration", "1"}},
                                                     {"zb-h1", {"--reload", "2"}},
                                                     {"zb-h1", {"--split", "equal"}},
                                                     {"adaptis", {"--offload", "2"}},
                                                     {"optpipe", {"--head", "2"}},
                                                     {"compare", {"--virtual", "2"}},
                                                     {"compare", {"--width", "80"}}}) {
    std::vector<std::string> more = ignored.flag;
    if (more[0] == "--split") more.insert(more.end(), {"--sequence", "64K"});
    check_refused(longspan(schedule_command(ignored.name, more)), 2, {ignored.flag[0]});
  }
  check_refused(longspan({"schedule", "list", "--stages", "4"}), 2,
                {"--stages", "schedule list --help"});
  check_refused(longspan({"schedule", "list", "extra"}), 2, {"extra"});
  // The same flags are accepted by schedules where they have a meaning.
  CHECK(longspan(schedule_command("dualpipe", {"--hidden", "0.5"})).status == 0);
  CHECK(longspan(schedule_command("po-h", {"--virtual", "2", "--offload", "0.1"})).status == 0);
  CHECK(longspan(schedule_command("1f1b-vocab-1", {"--vocabulary-forward", "0.1"})).status == 0);
  CHECK(longspan(schedule_command("zb-h1", {"--weight-memory", "0.5"})).status == 0);
  CHECK(longspan(schedule_command("helixpipe", {"--attention", "0.4"})).status == 0);
}

TEST_CASE("schedule: limits, sizes and names that cannot be meant") {
  check_refused(longspan(schedule_command("zb-h1", {"--memory-limit", "0"})), 2,
                {"--memory-limit"});
  check_refused(longspan({"schedule", "zb-h1", "--stages", "4096", "--microbatches", "4096"}), 2,
                {"too long"});
  TemporaryFolder folder;
  const std::string file = folder.path() / "rand.bin";
  write_file_atomically(file, "no schedule");
  check_refused(longspan({"schedule", file}), 2, {file, ".csv"});
  check_refused(longspan({"schedule", folder.path()}), 2, {"folder", "schedule measured"});
  CHECK_THAT(longspan({"schedule", "gpipe", "--stages", "1", "--microbatches", "1"}).out,
             Contains("1 rank and 1 microbatch:"));
  check_refused(longspan({"plan", "--model", "llama-3.1-8b", "--hw", "8xh100-80g", "--seq", "32K",
                          "--schedule", "adaptis"}),
                2, {"adaptis", "made by a solver", "schedule adaptis --help"});
}

}  // namespace longspan::e2e
