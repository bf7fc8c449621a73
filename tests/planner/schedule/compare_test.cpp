// One schedule of a family with the family's own choices, and the ranking of all.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>

#include "base/error.h"
#include "planner/schedule/compare.h"
#include "tests/length.h"

namespace longspan {
namespace {

// The number behind `words` in the text of an error.
double number_behind(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  INFO(text);
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + words.size()));
}

}  // namespace

TEST_CASE("a family's schedule, its memory and its messages in microbatches") {
  PipelineTask task{.ranks = 4, .microbatches = 8};
  const TimedSchedule plain = time_schedule(schedule_family("1f1b"), task, {});
  CHECK(plain.timing.bubble_rate == Approx(3.0 / 11));
  CHECK(plain.most_microbatches_held() == 4);
  CHECK(plain.microbatches_held(3) == 1);
  CHECK(plain.messages == Approx(2 * 3 * 8 / 4.0));  // three boundaries, both ways
  const TimedSchedule sliced = time_schedule(schedule_family("seq1f1b"), task, {.slices = 4});
  CHECK(sliced.most_microbatches_held() == Approx(7.0 / 4));
  CHECK(sliced.messages == Approx(plain.messages));
  const TimedSchedule chunks =
      time_schedule(schedule_family("interleaved-1f1b"), task, {.virtual_stages = 2});
  CHECK(chunks.messages == Approx(2 * 7 * 8 / 4.0));
  const TimedSchedule folded = time_schedule(schedule_family("v-half"), task, {});
  CHECK(folded.messages == Approx(2 * 6 * 8 / 4.0));  // none where the V turns
  // W keeps half of what F has made.
  task.kept_for_weights = 0.5;
  CHECK(time_schedule(schedule_family("zb-h1"), task, {}).microbatches_held(3) == Approx(2.5));
}

TEST_CASE("slices of equal tokens wait for the last one, slices of equal work do not") {
  PipelineTask task{.ranks = 8, .microbatches = 16};
  task.attention = 0.5;
  task.sequence_tokens = 65536;
  const ScheduleChoice choice{.slices = 4};
  const auto timed = [&](SliceSplit split) {
    task.split = split;
    return time_schedule(schedule_family("seq1f1b"), task, choice);
  };
  const TimedSchedule ideal = timed(SliceSplit::equal_times), work = timed(SliceSplit::equal_work);
  const TimedSchedule tokens = timed(SliceSplit::equal_tokens);
  CHECK(ideal.timing.bubble_rate == Approx(7.0 / 71));
  CHECK(tokens.timing.bubble_rate > 0.2);
  // Forwards take equal time; gradients have twice the attention, and those of weights none.
  CHECK(work.timing.bubble_rate > ideal.timing.bubble_rate);
  CHECK(work.timing.bubble_rate < (ideal.timing.bubble_rate + tokens.timing.bubble_rate) / 2);
  // With attention as long as the rest, S slices up to b take (b/S + b^2/S^2) / 2: the first of
  // four is (sqrt(3) - 1) / 2 of all.
  const SliceShare& first = work.request.costs.shares[0];
  CHECK(static_cast<double>(first.tokens) / 65536 == Approx((std::sqrt(3.0) - 1) / 2).margin(1e-3));
  CHECK(first.forward == Approx(0.25).margin(1e-3));
  // The first slices are held longest, and are the largest.
  CHECK(work.most_microbatches_held() > ideal.most_microbatches_held());
  task.sequence_tokens = 0;
  CHECK_THROWS_WITH(timed(SliceSplit::equal_work), Catch::Contains("how many tokens"));
}

TEST_CASE("what does not fit into memory is a no") {
  const PipelineTask task{.ranks = 4, .microbatches = 8, .memory_limit = 3.9};
  try {
    time_schedule(schedule_family("1f1b"), task, {});
    FAIL("it does not fit");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::no_fit);
    CHECK(std::string(e.what()) ==
          "1f1b of 4 ranks holds 4 microbatches at its peak; the limit is 3.9");
  }
}

TEST_CASE("the memory that a refusal names is the least that the schedule takes") {
  std::mt19937_64 random(3);
  const auto between = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<uint64_t>(most - least + 1));
  };
  int asked = 0;
  for (int round = 0; round < testing::cases(2, 60); ++round) {
    PipelineTask task{.ranks = 2 * between(1, 4)};
    task.microbatches = task.ranks * between(1, 2) + (round % 3 == 0 ? between(0, 3) : 0);
    task.times = {.forward = 0.001 * between(500, 1500),
                  .input = 0.001 * between(500, 2000),
                  .weight = 0.001 * between(0, 1500)};
    task.kept_for_weights = 0.01 * between(0, 100);
    task.communication = 0.01 * between(0, 20);
    for (const ScheduleFamily& family : schedule_families()) {
      CAPTURE(family.name, round, task.ranks, task.microbatches, task.kept_for_weights);
      const auto refusal = [&](double limit) -> std::string {
        task.memory_limit = limit;
        try {
          time_schedule(family, task, {});
        } catch (const Error& e) {
          if (e.kind() == ErrorKind::bad_input) return "not these numbers";
          CHECK(e.kind() == ErrorKind::no_fit);
          return e.what();
        }
        return "";
      };
      const std::string text = refusal(0.001);
      if (text == "not these numbers" || text.empty()) continue;  // SPPO may offload all
      const double least =
          number_behind(text, family.takes_memory_limit ? "; it takes " : " holds ");
      CHECK(refusal(least).empty());
      CHECK_FALSE(refusal(least * 0.9985).empty());  // numbers have four digits
      ++asked;
    }
  }
  CHECK(asked > 40);
}

TEST_CASE("compared: every family once, the fastest first, what there is not last") {
  PipelineTask task{.ranks = 4, .microbatches = 12};
  task.communication = 0.05;
  for (const double limit : {0.0, 4.0, 2.0}) {
    task.memory_limit = limit;
    const std::vector<Compared> all = compare_schedules(task);
    CHECK(all.size() == schedule_families().size());
    for (size_t i = 0; i < all.size(); ++i) {
      INFO(all[i].family->name << " within " << limit);
      if (!all[i].refusal.empty()) {
        CHECK((i + 1 == all.size() || !all[i + 1].refusal.empty()));
        continue;
      }
      if (i > 0) CHECK(all[i].cost >= all[i - 1].cost);
      if (limit > 0) CHECK(all[i].microbatches_held <= limit);
      const TimedSchedule again = time_schedule(*all[i].family, task, all[i].choice);
      CHECK(again.timing.cost == all[i].cost);
    }
    const auto of = [&](std::string_view name) {
      return *std::find_if(all.begin(), all.end(),
                           [&](const Compared& c) { return c.family->name == name; });
    };
    CHECK(of("gpipe").refusal.empty() == (limit == 0));
    CHECK(of("1f1b").refusal.empty() == (limit != 2));
    CHECK(of("v-half").refusal.empty() == (limit != 2));
    CHECK(of("v-min").refusal.empty());
  }
}

TEST_CASE("compared: what would take long is left to be asked for by name") {
  const std::vector<Compared> all = compare_schedules({.ranks = 16, .microbatches = 100});
  for (const Compared& c : all) {
    if (c.family->name == "sppo-msp") CHECK_THAT(c.refusal, Catch::Contains("ask for it by name"));
    if (c.family->name == "seq1f1b") CHECK(c.refusal.empty());
  }
}

}  // namespace longspan
