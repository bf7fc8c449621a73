// Each fault is found and described in one line.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "planner/schedule/io/pytorch_csv.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

using Kind = ActionKind;

std::string fault(const Schedule& s, int64_t memory_limit = 0) {
  return first_fault(s, {}, memory_limit).value_or("none");
}

}  // namespace

TEST_CASE("the first fault of a schedule is named") {
  Schedule s = testing::schedule_of("zb-h1", {.ranks = 2, .microbatches = 3});
  REQUIRE(fault(s) == "none");
  std::vector<Action>& list = s.ranks[1];  // 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
  SECTION("something is missing") {
    list.erase(list.begin() + 4);
    CHECK(fault(s) == "1W0 is missing");
    list.erase(list.begin() + 1);
    CHECK(fault(s) == "1B0 is missing (or I and W in its place)");
    list.erase(list.begin());
    CHECK(fault(s) == "1F0 is missing");
  }
  SECTION("something is there twice") {
    list.push_back({Kind::forward, 1, 2});
    CHECK(fault(s) == "1F2 on rank 1 is there already; expected each once");
  }
  SECTION("both B and I, or B and W") {
    list.push_back({Kind::backward, 1, 0});
    CHECK(fault(s) == "1W0 is there as well as 1B0, of which it is a part");
  }
  SECTION("of another stage") {
    list[0].stage = 2;
    CHECK(fault(s) ==
          "2F0 on rank 1 is outside the schedule's 2 stages, 3 microbatches and 1 slices");
    list[0].stage = 0;
    CHECK(fault(s) == "0F0 is on rank 1, but stage 0 is on rank 0");
  }
  SECTION("W before its I") {
    std::swap(list[1], list[4]);
    CHECK(fault(s) ==
          "the schedule never ends: rank 0 is at 0I0 and waits for 1I0 of rank 1, "
          "rank 1 is at 1W0 and waits for 1I0 of rank 1");
  }
  SECTION("ranks that wait for each other") {
    std::swap(s.ranks[0][0], s.ranks[0][2]);
    CHECK(fault(s).find("the schedule never ends: rank 0 is at ") == 0);
  }
  SECTION("what is sent and not received") {
    s.ranks[0].push_back({Kind::send_forward, 0, 1});
    CHECK(fault(s) == "0SEND_F1 is there without 1RECV_F1");
    list.insert(list.begin(), {Kind::recv_forward, 1, 1});
    s.ranks[0].pop_back();
    CHECK(fault(s) == "1RECV_F1 is there without 0SEND_F1");
  }
  SECTION("a wait for what is not sent, or cannot be received yet") {
    s.ranks[0].push_back({Kind::wait_send_forward, 0, 1});
    CHECK(fault(s) == "0WAIT_SEND_F1 on rank 0 needs 0SEND_F1, which is in no list");
    s = with_exchanges(testing::schedule_of("1f1b", {.ranks = 2, .microbatches = 2}));
    REQUIRE(fault(s) == "none");
    std::vector<Action>& sends = s.ranks[1];
    const auto sent = std::find(sends.begin(), sends.end(), Action{Kind::send_backward, 1, 0});
    REQUIRE(sent != sends.end());
    sends.erase(std::find(sends.begin(), sends.end(), Action{Kind::wait_send_backward, 1, 0}));
    sends.insert(sent + 1, {Kind::wait_send_backward, 1, 0});
    CHECK(fault(s) == "none");
    std::swap(*sent, *(sent + 1));
    CHECK(fault(s).find("the schedule never ends: ") == 0);
  }
  SECTION("a number far beyond what is there") {
    list[0].microbatch = 1 << 20;
    s.microbatches = (1 << 20) + 1;
    CHECK(fault(s) == "18 actions are too few for 2 stages, 1048577 microbatches and 1 slices");
  }
  SECTION("too much memory") {
    CHECK(fault(s, 2) == "none");
    CHECK(fault(s, 1) == "rank 0 holds 2 at 0F1; the limit is 1");
  }
}

TEST_CASE("what ranks share is there in as many parts as it says, backwards where its forward is") {
  Schedule s = testing::schedule_of("sppo-msp", {.ranks = 2, .microbatches = 1, .slices = 2});
  std::erase_if(s.ranks[0], [](const Action& a) { return !is_compute(a.kind); });
  std::erase_if(s.ranks[1], [](const Action& a) { return !is_compute(a.kind); });
  REQUIRE(to_string(s.ranks[1], 2) == "0.0F0/2 1.0F0 1.1F0/2 1.1B0/2 1.0B0 0.0B0/2");
  REQUIRE(fault(s) == "none");
  SECTION("a part is missing") {
    s.ranks[1].erase(s.ranks[1].begin());
    CHECK(fault(s) == "0.0F0 is in 1 lists; expected it in 2");
  }
  SECTION("of a stage of another rank") {
    s.moving_stages = false;
    CHECK(fault(s) == "0.0F0/2 is on rank 1, but stage 0 is on rank 0");
  }
  SECTION("a backward elsewhere") {
    std::swap(s.ranks[0][1], s.ranks[1][1]);
    CHECK(fault(s) == "0.1B0 on rank 0 needs 0.1F0 of the same rank, which is on another");
  }
}

TEST_CASE("families refuse numbers that they cannot do, and say which they can") {
  using testing::schedule_of;
  CHECK_THROWS_WITH(schedule_of("1f1", {}), Catch::Contains("did you mean \"1f1b\""));
  CHECK_THROWS_WITH(schedule_of("1f1b", {.virtual_stages = 2}),
                    "1f1b takes 1 virtual stage; got 2");
  CHECK_THROWS_WITH(schedule_of("interleaved-1f1b", {}),
                    "interleaved-1f1b takes 2 or more virtual stages; got 1");
  CHECK_THROWS_WITH(schedule_of("1f1b", {.microbatches = 0}),
                    "1f1b takes 1 or more microbatches; got 0");
  CHECK_THROWS_WITH(schedule_of("1f1b", {.slices = 2}), "1f1b takes 1 slice; got 2");
  CHECK_THROWS_WITH(schedule_of("1f1b", {.ranks = 4096, .microbatches = 1000000}),
                    Catch::Contains("4,096,000,000 forwards is too long"));
  CHECK_THROWS_WITH(schedule_of("zb-h1", {.ranks = 4096, .microbatches = 4096}),
                    Catch::Contains("16,777,216 forwards is too long"));
  CHECK_THROWS_WITH(schedule_of("optpipe", {}), Catch::Contains("made by a solver"));
  CHECK_THROWS_WITH(schedule_of("gpipe", {.group = 2}), Catch::Contains("no groups"));
  CHECK_THROWS_WITH(
      schedule_of("interleaved-1f1b", {.ranks = 4, .microbatches = 9, .virtual_stages = 2}),
      Catch::Contains("try a multiple of 4"));
}

}  // namespace longspan
