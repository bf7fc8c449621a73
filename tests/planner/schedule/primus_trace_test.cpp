// Traces written from simulated schedules are read back as the same schedules, for any schedule.
#include "planner/schedule/io/primus_trace.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tests/base/temporary_folder.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

using Json = nlohmann::json;
using testing::Asked;
using testing::TemporaryFolder;

// As Primus writes it; `named` with microbatches (from `first` on) and chunks next to the times.
Json rank_json(const Schedule& s, const LinkedActions& linked, const ScheduleTiming& timing,
               int32_t rank, bool named, int first) {
  const auto ranks = static_cast<int32_t>(s.ranks.size());
  Json json = {{"total", timing.makespan + 50}, {"memory", 10.0 + rank}};
  for (int32_t i = linked.first_of_rank[rank]; i < linked.first_of_rank[rank + 1]; ++i) {
    const Action& a = linked.actions[i];
    const std::string kind = a.kind == ActionKind::forward           ? "fwd"
                             : a.kind == ActionKind::backward_weight ? "wgrad"
                                                                     : "bwd";
    json[kind + "_start"].push_back(timing.starts[i] + 1000);
    json[kind + "_end"].push_back(timing.ends[i] + 1000);
    if (!named) continue;
    json[kind + "_minibatch"].push_back(a.microbatch + first);
    json[kind + "_chunk"].push_back(a.stage / ranks);
  }
  return json;
}

void write_trace(const TemporaryFolder& folder, const Schedule& s, const ScheduleTiming& timing,
                 bool named, int first = 0) {
  const auto ranks = static_cast<int32_t>(s.ranks.size());
  const LinkedActions linked = link(s);
  const Json config = {{"world_size", ranks},
                       {"pp_size", ranks},
                       {"vp_size", s.stages / ranks},
                       {"num_mbs", s.microbatches},
                       {"train_iters", 20}};
  folder.file("config.json", config.dump());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const Json json = {{"12", rank_json(s, linked, timing, rank, named, first)}};
    folder.file(fmt::format("pp_rank_{}.json", rank), json.dump());
  }
}

}  // namespace

TEST_CASE("a schedule's trace is read as the schedule, its times and its rates") {
  struct Case {
    const char* name;
    int32_t virtual_stages;
    bool named;
    int first;
  };
  for (const Case& c : {Case{"1f1b", 1, false, 0},
                        {"interleaved-1f1b", 2, false, 0},
                        {"interleaved-1f1b", 3, true, 1},
                        {"zb-h1", 1, true, 0},
                        {"v-half", 2, true, 0},
                        {"zb-v", 2, true, 1},
                        {"gpipe", 1, false, 0}}) {
    INFO(c.name << " of " << c.virtual_stages);
    const Asked asked{.ranks = 4,
                      .microbatches = 12,
                      .virtual_stages = c.virtual_stages,
                      .forward = 6,
                      .input = 7,
                      .weight = 5,
                      .communication = 0.25};
    const Schedule s = testing::schedule_of(c.name, asked);
    const ScheduleTiming timing = testing::timing_of(c.name, asked);
    const TemporaryFolder folder;
    write_trace(folder, s, timing, c.named, c.first);
    const MeasuredPipeline pipeline = read_primus_trace(folder.path());
    const MeasuredStep& step = pipeline.step(std::nullopt);
    CHECK(step.iteration == 12);
    CHECK(step.schedule.ranks == s.ranks);
    CHECK(step.timing.cost == Approx(timing.cost));
    CHECK(step.timing.bubble_rate == Approx(timing.bubble_rate));
    CHECK(step.timing.ranks[3].peak_memory == 13'000'000'000);
    // Medians of equal times are those times.
    const Resimulated again =
        resimulate(pipeline, step, schedule_family(c.name), asked.communication);
    CHECK(again.timing.cost == Approx(timing.cost));
    // Under another schedule, a rank's work stays the same.
    const Resimulated other = resimulate(pipeline, step, schedule_family("zb-v"), 0);
    CHECK(other.timing.ranks[1].busy == Approx(timing.ranks[1].busy));
  }
}

TEST_CASE("the step whose span is the median, and the median of a stage's times") {
  MeasuredPipeline pipeline;
  for (const double cost : {30.0, 10.0, 20.0, 90.0}) {
    MeasuredStep step;
    step.iteration = static_cast<int64_t>(cost);
    step.timing.cost = cost;
    pipeline.steps.push_back(step);
  }
  CHECK(pipeline.step(std::nullopt).iteration == 20);
  CHECK(pipeline.step(90).timing.cost == 90);
  CHECK_THROWS_WITH(pipeline.step(5), "iteration 5 is not in the trace, which has 30, 10, 20, 90");

  // One rank, three microbatches of which one is slow: the median forward is 2, backward 3.
  const TemporaryFolder folder;
  folder.file("config.json", R"({"pp_size": 1, "num_mbs": 3})");
  folder.file(
      "pp_rank_0.json",
      R"({"0": {"total": 40, "memory": 1, "fwd_start": [0, 10, 20], "fwd_end": [2, 12, 29],)"
      R"( "bwd_start": [2, 12, 30], "bwd_end": [5, 15, 31]}})");
  const MeasuredPipeline one = read_primus_trace(folder.path());
  CHECK(one.steps[0].timing.ranks[0].busy == 20);
  CHECK(one.steps[0].timing.bubble_rate == Approx(11.0 / 31));
  CHECK(resimulate(one, one.steps[0], schedule_family("1f1b"), 0).timing.cost == 15);
  CHECK_THROWS_WITH(resimulate(one, one.steps[0], schedule_family("helixpipe"), 0),
                    Catch::Contains("stages on several ranks"));
}

TEST_CASE("what is no trace is refused in one line") {
  const Asked asked{.ranks = 2, .microbatches = 4};
  const Schedule s = testing::schedule_of("1f1b", asked);
  const ScheduleTiming timing = testing::timing_of("1f1b", asked);
  const LinkedActions linked = link(s);
  const TemporaryFolder folder;
  write_trace(folder, s, timing, true);
  REQUIRE(read_primus_trace(folder.path()).steps.size() == 1);
  const auto refused = [&](const std::string& file, const std::string& text, const char* why) {
    const std::string before = read_file(folder.path() / file);
    folder.file(file, text);
    CHECK_THROWS_WITH(read_primus_trace(folder.path()), Catch::Contains(why));
    folder.file(file, before);
  };
  refused("config.json", "{", "no JSON");
  refused("config.json", "[]", "expected an object");
  refused("config.json", R"({"num_mbs": 4})", "pp_size: missing");
  refused("config.json", R"({"pp_size": 2.5, "num_mbs": 4})", "pp_size: expected a whole number");
  refused("config.json", R"({"pp_size": 2, "num_mbs": 5})", "expected a list of 5 numbers");
  refused("config.json", R"({"pp_size": 3, "num_mbs": 4})", "pp_rank_2.json");
  refused("pp_rank_0.json", "{}", "no iterations");
  refused("pp_rank_1.json", "{}", "iteration 12 is missing");
  refused("pp_rank_1.json", R"({"12": 3})", "expected an object");
  const auto changed = [&](const std::function<void(Json & own)>& change, const char* why) {
    Json own = rank_json(s, linked, timing, 1, true, 0);
    change(own);
    refused("pp_rank_1.json", Json{{"12", own}}.dump(), why);
  };
  changed([](Json& own) { own.erase("bwd_end"); }, "bwd_end: missing");
  changed([](Json& own) { own["fwd_end"][2] = 0; }, "fwd_end: number 2 is before its start");
  changed([](Json& own) { own["fwd_end"][2] = "x"; }, "fwd_end: expected numbers only");
  changed([](Json& own) { own["memory"] = -1; }, "memory: expected a number, 0 or more");
  changed([](Json& own) { own["fwd_chunk"][0] = 1; }, "fwd_chunk: expected whole numbers");
  changed([](Json& own) { own["fwd_minibatch"][1] = 0; }, "is there already");
  changed([](Json& own) { own["bwd_minibatch"][1] = 7; }, "bwd_minibatch: expected whole numbers");
  // Which microbatch goes through which chunk is known only for whole groups.
  const TemporaryFolder odd;
  odd.file("config.json", R"({"pp_size": 2, "vp_size": 2, "num_mbs": 3})");
  for (int rank = 0; rank < 2; ++rank) {
    Json own = {{"total", 1}, {"memory", 1}};
    for (const char* key : {"fwd_start", "fwd_end", "bwd_start", "bwd_end"}) {
      own[key] = std::vector<double>(6, 1);
    }
    odd.file(fmt::format("pp_rank_{}.json", rank), Json{{"1", own}}.dump());
  }
  CHECK_THROWS_WITH(read_primus_trace(odd.path()), Catch::Contains("2 ranks divide them"));
}

}  // namespace longspan
