// The simulation against schedules timed by hand, and against a plain simulation that checks every
// action repeatedly.
#include <catch2/catch.hpp>
#include <random>

#include "planner/schedule/timing.h"
#include "tests/length.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// Starts by relaxation: every action as early as its dependencies and the action before it allow.
std::vector<double> plain_ends(const Schedule& s, const ScheduleCosts& costs) {
  const LinkedActions linked = link(s);
  std::vector<double> ends(linked.actions.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
      double free = 0, channel = 0;
      for (int32_t i = linked.first_of_rank[rank]; i < linked.first_of_rank[rank + 1]; ++i) {
        double start = free;
        for (const Wait& w : linked.waits_of(i)) {
          start = std::max(start, ends[w.action] + (w.delayed ? costs.communication : 0));
        }
        const Kind kind = linked.actions[i].kind;
        double& worker = kind == Kind::offload || kind == Kind::reload ? channel : free;
        start = std::max(start, worker);
        worker = start + duration_of(s, costs, linked.actions[i]);
        changed |= worker != ends[i];
        ends[i] = worker;
      }
    }
  }
  return ends;
}

}  // namespace

TEST_CASE("two stages and two microbatches, by hand") {
  // Rank 0: F0 0-1, F1 1-2, B0 5.5-7.5, B1 8.5-10.5; rank 1: F0 1.5-2.5, B0 2.5-4.5 (sent at 5),
  // F1 4.5-5.5, B1 5.5-7.5 (sent at 8).
  const ScheduleTiming t =
      testing::timing_of("1f1b", {.ranks = 2, .microbatches = 2, .communication = 0.5});
  CHECK(t.starts == std::vector<double>{0, 1, 5, 8, 1.5, 2.5, 4.5, 5.5});
  CHECK(t.ends == std::vector<double>{1, 2, 7, 10, 2.5, 4.5, 5.5, 7.5});
  CHECK(t.cost == 10);
  CHECK(t.makespan == 10);
  CHECK(t.bubble_rate == Approx(0.4));
  CHECK(t.ranks[1].span() == 6);
  CHECK(t.ranks[0].peak_memory == 2);
  CHECK(t.ranks[1].peak_memory == 1);
  CHECK(t.ranks[0].peak_action == 1);
}

TEST_CASE("ranks that begin a step together wait for their first action within it") {
  ScheduleRequest request = testing::request_of({.ranks = 3, .microbatches = 3});
  const Schedule s = make_schedule(schedule_family("zb-h2"), request);
  const ScheduleTiming apart = simulate(s, request.costs);
  request.costs.together = true;
  const ScheduleTiming t = simulate(s, request.costs);
  CHECK(t.starts == apart.starts);
  CHECK(t.makespan == apart.makespan);
  CHECK(t.cost == t.makespan);
  CHECK(t.cost > apart.cost);
  double busy = 0;
  for (const RankTiming& rank : t.ranks) busy += rank.busy;
  CHECK(t.bubble_rate == Approx(1 - busy / (3 * t.makespan)));
}

TEST_CASE("a rank stops behind what it sends, by hand") {
  // Rank 0: F0 0-1, F1 1.5-2.5, B0 5-7, B1 8.5-10.5; rank 1: F0 1.5-2.5, B0 2.5-4.5 (sent till 5),
  // F1 5-6, B1 6-8 (sent till 8.5, which is not of its span).
  ScheduleRequest request =
      testing::request_of({.ranks = 2, .microbatches = 2, .communication = 0.5});
  request.costs.sending = 0.5;
  const ScheduleTiming t = simulate(make_schedule(schedule_family("1f1b"), request), request.costs);
  CHECK(t.starts == std::vector<double>{0, 1.5, 5, 8.5, 1.5, 2.5, 5, 6});
  CHECK(t.ends == std::vector<double>{1, 2.5, 7, 10.5, 2.5, 4.5, 6, 8});
  CHECK(t.cost == 10.5);
  CHECK(t.ranks[1].span() == 6.5);
  CHECK(t.ranks[0].busy == 6);
}

TEST_CASE("exchanges that are written out change nothing") {
  Schedule s = testing::schedule_of("1f1b", {.ranks = 2, .microbatches = 2});
  ScheduleCosts costs;
  costs.communication = 0.5;
  const double cost = simulate(s, costs).cost;
  s.ranks[0] = {{Kind::forward, 0, 0},       {Kind::send_forward, 0, 0},  {Kind::forward, 0, 1},
                {Kind::send_forward, 0, 1},  {Kind::recv_backward, 0, 0}, {Kind::backward, 0, 0},
                {Kind::recv_backward, 0, 1}, {Kind::backward, 0, 1}};
  s.ranks[1] = {{Kind::recv_forward, 1, 0}, {Kind::forward, 1, 0},       {Kind::recv_forward, 1, 1},
                {Kind::backward, 1, 0},     {Kind::send_backward, 1, 0}, {Kind::forward, 1, 1},
                {Kind::backward, 1, 1},     {Kind::send_backward, 1, 1}};
  const ScheduleTiming t = simulate(s, costs);
  CHECK(t.cost == cost);
}

TEST_CASE("actions that run as one start and end together, the shorter hidden") {
  Schedule s;
  s.microbatches = 2;
  s.ranks = {{{Kind::forward, 0, 0},
              {Kind::forward, 0, 1, 0, true},
              {Kind::backward, 0, 0},
              {Kind::backward, 0, 1}}};
  ScheduleCosts costs;
  CHECK(simulate(s, costs).cost == 6);
  costs.hidden = 0.5;
  const ScheduleTiming t = simulate(s, costs);
  CHECK(t.starts == std::vector<double>{0, 1, 1, 3.5});
  CHECK(t.ends == std::vector<double>{1, 3.5, 3.5, 5.5});
}

TEST_CASE("copies run during the list and take turns on a channel") {
  // One stage on each of two independent pipes; both ranks offload at 1 on the same channel.
  Schedule s;
  s.pipes = 2;
  for (int32_t rank = 0; rank < 2; ++rank) {
    s.ranks.push_back({{Kind::forward, rank, 0},
                       {Kind::offload, rank, 0},
                       {Kind::reload, rank, 0},
                       {Kind::backward, rank, 0}});
  }
  ScheduleCosts costs;
  costs.times[0] = {.forward = 1, .input = 1, .weight = 1, .offload = 2, .reload = 1};
  costs.memory[0] = {.activations = 10, .for_weights = 10, .offloaded = 8};
  SECTION("own channels") {
    const ScheduleTiming t = simulate(s, costs);
    CHECK(t.ends == std::vector<double>{1, 3, 4, 6, 1, 3, 4, 6});
  }
  SECTION("a shared one") {
    costs.ranks_per_channel = 2;
    const ScheduleTiming t = simulate(s, costs);
    // Both of rank 0's are requested first: a rank does not wait to request the second.
    CHECK(t.ends == std::vector<double>{1, 3, 4, 6, 1, 6, 7, 9});
    CHECK(t.ranks[0].peak_memory == 10);
  }
}

TEST_CASE("a channel of two ways offloads while it reloads, but nothing that has not left") {
  Schedule s;
  s.microbatches = 2;
  s.ranks = {{{Kind::forward, 0, 0},
              {Kind::offload, 0, 0},
              {Kind::forward, 0, 1},
              {Kind::offload, 0, 1},
              {Kind::reload, 0, 0},
              {Kind::backward, 0, 0},
              {Kind::reload, 0, 1},
              {Kind::backward, 0, 1}}};
  ScheduleCosts costs;
  costs.times[0] = {.forward = 1, .input = 1, .weight = 1, .offload = 4, .reload = 1};
  costs.memory[0] = {.activations = 10, .for_weights = 10, .offloaded = 8};
  CHECK(simulate(s, costs).ends == std::vector<double>{1, 5, 2, 9, 10, 12, 13, 15});
  costs.both_ways = true;
  // The first is back at 6, while the second is copied out until 9.
  CHECK(simulate(s, costs).ends == std::vector<double>{1, 5, 2, 9, 6, 8, 10, 12});
}

TEST_CASE("a rank waits where the list says so for memory that an offload gives back") {
  Schedule s;
  s.microbatches = 2;
  s.ranks = {{{Kind::forward, 0, 0},
              {Kind::offload, 0, 0},
              {Kind::await_offload, 0, 0},
              {Kind::forward, 0, 1},
              {Kind::reload, 0, 0},
              {Kind::backward, 0, 1},
              {Kind::backward, 0, 0}}};
  ScheduleCosts costs;
  costs.times[0].offload = 2;
  costs.memory[0] = {.activations = 10, .for_weights = 10, .offloaded = 8};
  const ScheduleTiming t = simulate(s, costs);
  CHECK(t.ends == std::vector<double>{1, 3, 3, 4, 5, 6, 8});
  CHECK(t.ranks[0].busy == 6);
  CHECK(t.ranks[0].peak_memory == 20);  // while it is back
  std::swap(s.ranks[0][0], s.ranks[0][2]);
  CHECK_THROWS_WITH(simulate(s, costs), Catch::Contains("never ends"));
}

TEST_CASE("recomputed forwards hold a checkpoint until they run again") {
  Schedule s;
  s.microbatches = 2;
  s.ranks = {{{Kind::forward, 0, 0},
              {Kind::forward, 0, 1},
              {Kind::recompute, 0, 0},
              {Kind::backward, 0, 0},
              {Kind::recompute, 0, 1},
              {Kind::backward, 0, 1}}};
  ScheduleCosts costs;
  costs.memory[0] = {.activations = 10, .for_weights = 10, .checkpoint = 1};
  const ScheduleTiming t = simulate(s, costs);
  CHECK(t.cost == 8);
  CHECK(t.ranks[0].peak_memory == 11);
  CHECK(t.ranks[0].peak_action == 2);
}

TEST_CASE("slices have their part of time, and parts of memory add up") {
  Schedule s;
  s.slices = 3;
  ScheduleCosts costs;
  costs.shares = {{0.2, 0.3, 0.4, 5}, {0.3, 0.3, 0.3, 4}, {0.5, 0.4, 0.3, 4}};
  int64_t all = 0;
  for (int32_t slice = 0; slice < 3; ++slice) {
    all += slice_of(s, costs, {Kind::forward, 0, 0, slice}, 1000);
  }
  CHECK(all == 1000);
  CHECK(slice_of(s, costs, {Kind::forward, 0, 0, 0}, 1000) == 384);
  CHECK(duration_of(s, costs, {Kind::backward, 0, 0, 2}) == Approx(0.7));
}

TEST_CASE("random schedules with random times: as a plain simulation has them") {
  std::mt19937_64 random(1);
  for (int64_t round = 0; round < testing::cases(40, 100); ++round) {
    for (const ScheduleFamily& family : schedule_families()) {
      const auto p = static_cast<int32_t>(2 + 2 * (random() % 3));
      testing::Asked asked{.ranks = p,
                           .microbatches = 2 * p * static_cast<int32_t>(2 + random() % 2)};
      asked.virtual_stages = family.least_virtual_stages;
      if (family.sliced) asked.slices = random() % 2 ? p : 2 * p;
      ScheduleRequest request = testing::request_of(asked);
      const Schedule s = make_schedule(family, request);
      request.costs.times.assign(s.stages, {});
      for (StageTimes& t : request.costs.times) {
        for (double* time : {&t.forward, &t.input, &t.weight}) {
          *time = static_cast<double>(1 + random() % 9);
        }
      }
      request.costs.communication = static_cast<double>(random() % 3);
      INFO(family.name);
      if (std::any_of(s.ranks.begin(), s.ranks.end(), [](const std::vector<Action>& list) {
            return std::any_of(list.begin(), list.end(),
                               [](const Action& a) { return a.with_next; });
          })) {
        continue;  // the plain simulation runs one action at a time
      }
      const ScheduleTiming timing = simulate(s, request.costs);  // ends, so the plain one does
      CHECK(timing.ends == plain_ends(s, request.costs));
    }
  }
}

TEST_CASE("ranks that share a machine, by hand") {
  // Alone a rank is twice as fast. F0 0-0.5 alone; F1 and F0 together 0.5-1.5; then B0 of rank 1
  // alone 1.5-2.5, B0 of rank 0 and F1 of rank 1 together 2.5-3.5, when B0 has half left, and B1 of
  // rank 1 begins: 3.5-4.5 together; it has half left: 4.5-5; B1 of rank 0 alone 5-6.
  const Schedule s = make_schedule(schedule_family("1f1b"), {.ranks = 2, .microbatches = 2});
  ScheduleCosts costs;
  costs.speeds = {2, 1};
  const ScheduleTiming t = simulate(s, costs);
  CHECK(t.starts == std::vector<double>{0, 0.5, 2.5, 5, 0.5, 1.5, 2.5, 3.5});
  CHECK(t.ends == std::vector<double>{0.5, 1.5, 4.5, 6, 1.5, 2.5, 3.5, 5});
  CHECK(t.cost == 6);
  CHECK(t.bubble_rate == Approx(1 - 9.0 / 12));
}

TEST_CASE("ranks that share a machine without effect have the times of ranks that do not") {
  for (const char* family : {"gpipe", "1f1b", "zb-h1", "seq1f1b"}) {
    ScheduleRequest wanted{.ranks = 4, .microbatches = 7};
    if (std::string_view(family) == "seq1f1b") wanted.slices = 3;
    const Schedule s = make_schedule(schedule_family(family), wanted);
    ScheduleCosts costs;
    costs.communication = 0.25;
    const ScheduleTiming apart = simulate(s, costs);
    costs.speeds = {1, 1, 1, 1};
    const ScheduleTiming shared = simulate(s, costs);
    INFO(family);
    for (size_t i = 0; i < apart.ends.size(); ++i) {
      CHECK(shared.ends[i] == Approx(apart.ends[i]));
    }
    CHECK(shared.bubble_rate == Approx(apart.bubble_rate));
    // With the speed of an idle machine, the machine is never idle before the end.
    costs.communication = 0;
    costs.speeds = {4, 2, 4.0 / 3, 1};
    CHECK(simulate(s, costs).makespan == Approx(4 * 7 * 3 / 4.0));
  }
}

TEST_CASE("copies that slow nothing down have the times of copies of ranks that do not share") {
  for (const char* family : {"po-h", "po-f", "sppo"}) {
    for (const double copy : {0.0, 0.3, 1.0, 2.7}) {
      for (const bool both_ways : {false, true}) {
        ScheduleRequest wanted{.ranks = 4, .virtual_stages = 2, .microbatches = 7};
        if (std::string_view(family) == "sppo") {
          wanted.virtual_stages = 1;
          wanted.slices = 3;
        }
        wanted.costs.communication = 0.25;
        wanted.costs.both_ways = both_ways;
        wanted.costs.times[0].offload = copy;
        wanted.costs.times[0].reload = 0.8 * copy;
        const Schedule s = make_schedule(schedule_family(family), wanted);
        const ScheduleTiming apart = simulate(s, wanted.costs);
        wanted.costs.speeds = {1, 1, 1, 1};
        const ScheduleTiming shared = simulate(s, wanted.costs);
        INFO(family << ", copies of " << copy << (both_ways ? ", both ways" : ""));
        for (size_t i = 0; i < apart.ends.size(); ++i) {
          CHECK(shared.starts[i] == Approx(apart.starts[i]).margin(1e-9));
          CHECK(shared.ends[i] == Approx(apart.ends[i]).margin(1e-9));
        }
        for (size_t rank = 0; rank < apart.ranks.size(); ++rank) {
          CHECK(shared.ranks[rank].busy == Approx(apart.ranks[rank].busy));
          CHECK(shared.ranks[rank].peak_memory == apart.ranks[rank].peak_memory);
        }
      }
    }
  }
}

TEST_CASE("copies and computation of a rank slow each other down, by hand") {
  Schedule s;
  s.microbatches = 2;
  using enum ActionKind;
  s.ranks = {{{forward, 0, 0},
              {offload, 0, 0},
              {forward, 0, 1},
              {reload, 0, 0},
              {backward, 0, 1},
              {backward, 0, 0}}};
  ScheduleCosts costs;
  costs.times[0] = {.forward = 1, .input = 1, .weight = 1, .offload = 1, .reload = 0.5};
  costs.copy_speeds = {.compute = 0.5, .copy = 0.4};
  // The offload begins at 1, with the second forward, which ends at 3: 0.8 of the copy is done by
  // then, and 0.2 / 0.4 later all. The reload takes 0.5 / 0.4 from 3.5 to 4.75. So the backward
  // has done 0.875 by then, and ends 1.125 later.
  const ScheduleTiming t = simulate(s, costs);
  CHECK(t.ends[2] == Approx(3));
  CHECK(t.ends[1] == Approx(3.5));
  CHECK(t.ends[3] == Approx(4.75));
  CHECK(t.ends[4] == Approx(5.875));
  CHECK(t.ends[5] == Approx(7.875));
}

}  // namespace longspan
