// Attention shared out among ranks: who gives what to whom, and that those who meet can meet.
#include "planner/schedule/attention_shares.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>

#include "tests/length.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan::testing {

TEST_CASE("rectangles are evened out as by hand") {
  CHECK(evened_out({3, 2, 1, 0}) == std::vector<AttentionLot>{{0, 3, 0, 1}});
  CHECK(evened_out({0, 7, 6, 5}) ==
        std::vector<AttentionLot>{{1, 0, 0, 2}, {2, 0, 0, 1}, {3, 0, 0, 1}});
  CHECK(evened_out({0, 5}) == std::vector<AttentionLot>{{1, 0, 0, 2}});
  CHECK(evened_out({1, 0}).empty());
  CHECK(evened_out({4}).empty());
}

TEST_CASE("after sharing, members have as many rectangles as in all, none more than one more") {
  const auto count = static_cast<uint64_t>(cases(200, 2000));
  for (uint64_t seed = 1; seed <= count; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> before(1 + random() % 12);
    for (int32_t& member : before) member = static_cast<int32_t>(random() % 20);
    const std::vector<AttentionLot> lots = evened_out(before);
    const std::vector<int32_t> after = rectangles_after(before, lots);
    CHECK(std::accumulate(after.begin(), after.end(), 0) ==
          std::accumulate(before.begin(), before.end(), 0));
    const auto [least, most] = std::minmax_element(after.begin(), after.end());
    CHECK(*most - *least <= 1);
    CHECK(lots.size() < before.size());
    std::map<size_t, int32_t> given;
    for (const AttentionLot& lot : lots) {
      CHECK(lot.slices > 0);
      CHECK(lot.first == given[lot.from]);  // each slice once
      given[lot.from] += lot.slices;
    }
    for (const AttentionLot& lot : lots) CHECK(given.count(lot.to) == 0);
    for (const auto& [from, slices] : given) CHECK(slices <= before[from]);
  }
}

// So ranks that go from meeting to meeting, and wait for all of one, never wait in a circle.
TEST_CASE(
    "meetings are in the order of every list, and all that is waited for is of earlier ones") {
  const auto count = static_cast<uint64_t>(cases(60, 600));
  for (uint64_t seed = 1; seed <= count; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t n) { return static_cast<int32_t>(random() % n); };
    Asked asked;
    asked.ranks = 2 + pick(7);
    asked.virtual_stages = 1 + pick(4);
    asked.microbatches = 1 + pick(6);
    asked.slices = asked.ranks * (1 + pick(3));
    CAPTURE(seed, asked.ranks, asked.virtual_stages, asked.microbatches, asked.slices);
    const Schedule schedule = schedule_of("slimpipe", asked);
    const std::vector<std::vector<double>> times = meeting_times(schedule);
    std::vector<double> of_action;
    for (size_t rank = 0; rank < times.size(); ++rank) {
      REQUIRE(times[rank].size() == schedule.ranks[rank].size());
      for (size_t i = 1; i < times[rank].size(); ++i) {
        if (!is_compute(schedule.ranks[rank][i].kind)) continue;
        REQUIRE(times[rank][i - 1] < times[rank][i]);
      }
      of_action.insert(of_action.end(), times[rank].begin(), times[rank].end());
    }
    const LinkedActions linked = link(schedule);
    for (size_t i = 0; i < linked.actions.size(); ++i) {
      if (!is_compute(linked.actions[i].kind)) continue;
      for (int32_t w = linked.first_wait[i]; w < linked.first_wait[i + 1]; ++w) {
        REQUIRE(of_action[linked.waits[static_cast<size_t>(w)].action] < of_action[i]);
      }
    }
    // Between the first p-1 meetings and the last, all ranks meet, in one kind of action. Meetings
    // one after another take as long as the step without them.
    std::map<double, std::vector<Action>> meetings;
    for (size_t i = 0; i < linked.actions.size(); ++i) {
      if (is_compute(linked.actions[i].kind)) meetings[of_action[i]].push_back(linked.actions[i]);
    }
    int32_t whole = 0;
    for (const auto& [time, actions] : meetings) {
      const bool all_meet = static_cast<int32_t>(actions.size()) == asked.ranks;
      for (const Action& action : actions) {
        CHECK(action.kind == actions.front().kind);
        CHECK(meets_few(schedule, action, asked.ranks) == !all_meet);
      }
      whole += all_meet ? 1 : 0;
    }
    const int32_t passes = 2 * asked.microbatches * asked.slices * asked.virtual_stages;
    CHECK(whole == passes - 2 * (asked.ranks - 1));
    CHECK(static_cast<int32_t>(meetings.size()) == passes + 2 * (asked.ranks - 1));
    const double one_by_one =
        3.0 * static_cast<double>(meetings.size()) / 2 / (asked.virtual_stages * asked.slices);
    CHECK(timing_of("slimpipe", asked).cost == Approx(one_by_one));
  }
}

TEST_CASE("lots are of ranks that meet, and of slices that the giver has attended to") {
  Asked asked;
  asked.slices = 8;
  asked.virtual_stages = 2;
  asked.microbatches = 3;
  const Schedule schedule = schedule_of("slimpipe", asked);
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  int forwards = 0;
  const std::vector<AttentionShare> shares = attention_shares(schedule);
  for (const AttentionShare& share : shares) {
    CHECK(share.from_rank != share.to_rank);
    CHECK(ranks[share.from.stage] == share.from_rank);
    CHECK(ranks[share.to.stage] == share.to_rank);
    CHECK(share.from.kind == share.to.kind);
    CHECK(share.first + share.slices <= share.from.slice);
    forwards += share.from.kind == ActionKind::forward;
  }
  CHECK(2 * forwards == static_cast<int>(shares.size()));
  CHECK(forwards > 0);
}

}  // namespace longspan::testing
