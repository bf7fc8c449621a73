// Closed forms of families that split backward or fold stages, over random sizes.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "planner/schedule/families/fill_gaps.h"
#include "tests/planner/schedule/random_sizes.h"

namespace longspan {
namespace {

using testing::Asked;
using testing::between;
using testing::bubble_of;
using testing::random_asked;
using testing::timing_of;

// Times that the formulas of most folded schedules require: I as long as F, W no longer.
Asked random_even(int32_t least_ranks = 2) {
  Asked asked = random_asked(least_ranks);
  asked.forward = asked.input = between(8, 12);
  return asked;
}

}  // namespace

TEST_CASE("ZB-H1 and ZB-H2: bubbles of (p-1)(F+I-W) and (p-1)(F+I-2W)") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks;
    CAPTURE(p, a.microbatches, a.forward, a.input, a.weight);
    CHECK(bubble_of("zb-h1", a) == Approx((p - 1) * (a.forward + a.input - a.weight)));
    CHECK(bubble_of("zb-h2", a) == Approx((p - 1) * (a.forward + a.input - 2 * a.weight)));
    Asked chunks = a;
    const int32_t v = chunks.virtual_stages = between(2, 4);
    CHECK(bubble_of("interleaved-zb", chunks) ==
          Approx((p - 1) * (a.forward + a.input - a.weight) / v));
    CHECK(timing_of("interleaved-zb", chunks).peak_memory() == p * v);
    // Memory with less of it held for W: device r (from 0) has (p-r) M_B + r M_W, and (2p-2r-1) M_B
    // + 2r M_W in ZB-H2.
    ScheduleRequest request = testing::request_of(a);
    const int64_t kept = between(0, 100);
    request.costs.memory[0] = {.activations = 100, .for_weights = kept};
    const auto peaks = [&](const char* name) {
      return simulate(make_schedule(schedule_family(name), request), request.costs).ranks;
    };
    const auto h1 = peaks("zb-h1"), h2 = peaks("zb-h2");
    for (int32_t r = 0; r < p; ++r) {
      CHECK(h1[r].peak_memory == (p - r) * 100 + r * kept);
      CHECK(h2[r].peak_memory == (2 * p - 2 * r - 1) * 100 + 2 * r * kept);
    }
  }
}

// Zero Bubble, table 12's setting: with m <= p 1F1B takes (m+p-1)(F+I+W), the others (m+p-1)(F+I)
// and one W.
TEST_CASE("few microbatches: all but one W is hidden") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks = between(2, 16), m = a.microbatches = between(1, p);
    CAPTURE(p, m, a.forward, a.input, a.weight);
    CHECK(timing_of("1f1b", a).cost == Approx((m + p - 1) * testing::all(a)));
    for (const char* name : {"zb-h1", "zb-h2", "zb-auto"}) {
      CHECK(timing_of(name, a).cost == Approx((m + p - 1) * (a.forward + a.input) + a.weight));
    }
  }
}

// The cost is every rank's own span: a parallelogram's ranks begin, and end, (p-1)(F+c) apart.
TEST_CASE("schedules without bubbles: the makespan is (p-1)(F+c) longer") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    a.microbatches = a.ranks * between(3, 5);
    a.input = a.weight = a.forward;
    CAPTURE(a.ranks, a.microbatches, a.forward);
    CHECK(bubble_of("zb-h2", a) == Approx(0).margin(1e-9));
    a.communication = 0.25 * between(0, 4);
    CHECK(timing_of("zb-h2", a).makespan - a.microbatches * testing::all(a) ==
          Approx((a.ranks - 1) * (a.forward + a.communication)));
    a.memory_limit = 2 * a.ranks;
    CHECK(timing_of("zb-auto", a).makespan - a.microbatches * testing::all(a) ==
          Approx((a.ranks - 1) * (a.forward + a.communication)));
  }
}

TEST_CASE(
    "ZB-V: no bubble of equal passes, (p-1)(F+I-2W) chunks of others, 2p chunks on all ranks") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_even();
    const int32_t p = a.ranks;
    a.virtual_stages = 2;
    CAPTURE(p, a.microbatches, a.forward, a.weight);
    CHECK(2 * bubble_of("zb-v-static", a) ==
          Approx((p - 1) * (a.forward + a.input - 2 * a.weight)).margin(1e-9));
    a.weight = a.forward;
    a.memory_limit = 2 * p;
    for (const char* name : {"zb-v", "zb-v-static"}) {
      const ScheduleTiming timing = timing_of(name, a);
      CHECK(timing.bubble_rate == Approx(0).margin(1e-12));
      for (const RankTiming& rank : timing.ranks) CHECK(rank.peak_memory == 2 * p);
    }
  }
}

// PipeOffload, table 1, and its groups of g: extra bubbles of (p-g)(v-1) chunks.
TEST_CASE("GIS: bubble (p-1)(F+I)/v, p v chunks; in groups of g less memory and more bubble") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, v = a.virtual_stages = between(2, 4);
    CAPTURE(p, v, a.microbatches, a.forward, a.input, a.weight);
    CHECK(bubble_of("gis", a) == Approx((p - 1) * (a.forward + a.input) / v));
    CHECK(timing_of("gis", a).peak_memory() == p * v);
    a.input = a.weight = a.forward;
    const int32_t half = (p + 1) / 2, g = a.group = between(half, p);
    a.microbatches = g * between(4, 9);
    CAPTURE(g);
    CHECK(timing_of("gis", a).peak_memory() == g * (v - 1) + p);
    CHECK(bubble_of("gis", a) == Approx(((p - 1) * 2 + (v - 1) * (p - g)) * a.forward / v));
  }
}

TEST_CASE("GIS-H: ((p-1)(F+I) + (v-1)p/2 (F+I-W))/v, and half the ranks' groups in memory") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_even();
    const int32_t p = a.ranks, v = a.virtual_stages = between(2, 4), g = (p + 1) / 2;
    a.microbatches = g * between(4, 9);
    CAPTURE(p, v, a.microbatches, a.forward, a.weight);
    CHECK(timing_of("gis-h", a).peak_memory() == g * (v - 1) + p);
    const double both = a.forward + a.input;
    if (p % 2 == 0) {
      CHECK(bubble_of("gis-h", a) ==
            Approx(((p - 1) * both + (v - 1) * (p / 2) * (both - a.weight)) / v));
    }
    a.weight = a.forward;
    CHECK(bubble_of("gis-h", a) == Approx(((p - 1) * 2 + (v - 1) * (p - g)) * a.forward / v));
  }
}

// DualPipe's README: (s/2-1)(F&B + B - 3W) with s stages in the way of a microbatch, where nothing
// of F&B is hidden; s + 1 stages' activations on every rank.
TEST_CASE("DualPipe and DualPipeV: bubble of (s/2-1)(F + 2I - W), s + 1 stages in memory") {
  for (int round = 0; round < 30; ++round) {
    Asked a = random_even();
    const auto bubble = [&](int32_t stages) {
      return (stages / 2 - 1) * (a.forward + 2 * a.input - a.weight);
    };
    const auto check_memory = [](const ScheduleTiming& timing, int64_t most) {
      for (const RankTiming& rank : timing.ranks) CHECK(rank.peak_memory == most);
    };
    a.ranks = 2 * between(1, 6);
    a.microbatches = 2 * a.ranks + 2 * between(0, 10);
    CAPTURE(a.ranks, a.microbatches, a.forward, a.weight);
    CHECK(bubble_of("dualpipe", a) == Approx(bubble(a.ranks)).margin(1e-9));
    check_memory(timing_of("dualpipe", a), a.ranks + 1);
    a.virtual_stages = 2;
    CHECK(2 * bubble_of("dualpipe-v", a) == Approx(bubble(2 * a.ranks)).margin(1e-9));
    check_memory(timing_of("dualpipe-v", a), 2 * a.ranks + 1);
  }
}

// Its authors' (p-1)(F+I-W) holds where W is as long as F: a shorter one leaves a braided block of
// F and W that much emptier, twice. Their 3p chunks count what waits for I; what stays for W comes
// on top, and one chunk more, since a forward takes its memory before the backward that it is
// braided with gives back its own.
TEST_CASE("STP: bubble (p-1)(F+I-W + 2(F-W)) chunks, 3p chunks on a rank") {
  for (int round = 0; round < 20; ++round) {
    Asked a = random_even();
    a.virtual_stages = 2;
    a.microbatches = 3 * a.ranks + between(0, 20);
    CAPTURE(a.ranks, a.microbatches, a.forward, a.weight);
    CHECK(2 * bubble_of("stp", a) ==
          Approx((a.ranks - 1) * (a.forward + a.input - a.weight + 2 * (a.forward - a.weight))));
    ScheduleRequest request = testing::request_of(a);
    request.costs.memory[0].for_weights = 0;
    const Schedule schedule = make_schedule(schedule_family("stp"), request);
    CHECK(simulate(schedule, request.costs).peak_memory() == 3 * a.ranks + 1);
  }
}

TEST_CASE("more memory never makes v-adaptive slower, and it reaches V-Min and ZB-V") {
  for (const int32_t ranks : {4, 6, 8}) {
    Asked asked{.ranks = ranks, .microbatches = 4 * ranks, .virtual_stages = 2};
    double before = timing_of("v-min", asked).cost;
    for (asked.memory_limit = timing_of("v-min", asked).peak_memory();
         asked.memory_limit <= 2 * ranks; ++asked.memory_limit) {
      const double cost = timing_of("v-adaptive", asked).cost;
      CHECK(cost <= before);
      before = cost;
    }
    CHECK(before == 3 * asked.microbatches);
  }
}

// Memory limits are arbitrary: limits at which a family itself searches would test nothing.
TEST_CASE("more memory never makes a schedule slower that arranges itself within it") {
  for (int round = 0; round < 15; ++round) {
    const char* name = std::array{"zb-v", "v-adaptive", "zb-auto"}[round % 3];
    const bool folded = schedule_family(name).least_virtual_stages == 2;
    Asked asked{.ranks = between(3, 7), .virtual_stages = folded ? 2 : 1};
    asked.microbatches = asked.ranks + between(0, asked.ranks);
    asked.forward = 0.001 * between(800, 1500);
    asked.input = 0.001 * between(800, 2000);
    asked.weight = 0.001 * between(400, 1200);
    ScheduleRequest request = testing::request_of(asked);
    request.costs.communication = 0.01 * between(0, 6);
    constexpr int64_t kUnits = 1000;  // of a stage
    request.costs.memory = {{.activations = kUnits, .for_weights = between(300, kUnits)}};
    const int64_t whole = kUnits * asked.virtual_stages * asked.ranks;
    std::vector<int64_t> limits;
    for (int i = 0; i < 8; ++i) limits.push_back(whole * between(150, 2600) / 1000);
    std::sort(limits.begin(), limits.end());
    limits.push_back(0);
    double before = 1e300;
    for (const int64_t limit : limits) {
      CAPTURE(name, asked.ranks, asked.microbatches, asked.forward, asked.input, asked.weight,
              request.costs.communication, request.costs.memory[0].for_weights, limit);
      request.memory_limit = limit;
      try {
        const Schedule schedule = make_schedule(schedule_family(name), request);
        const ScheduleTiming timing = simulate(schedule, request.costs);
        CHECK(timing.cost <= before);
        CHECK((limit == 0 || timing.peak_memory() <= limit));
        before = timing.cost;
      } catch (const Error& e) {
        CHECK(before == 1e300);  // a schedule that fits a limit also fits a larger one
      }
    }
  }
}

// Stages take memory as their layers happen to. A limit on microbatches knows nothing of that.
TEST_CASE("a rank holds no more microbatches than it may, whatever each takes") {
  for (int round = 0; round < 24; ++round) {
    const char* name = std::array{"zb-v", "v-adaptive", "zb-auto"}[round % 3];
    const int32_t chunks = schedule_family(name).least_virtual_stages;
    Asked asked{.ranks = between(1, 6), .virtual_stages = chunks};
    asked.microbatches = between(1, 3 * asked.ranks);
    asked.forward = 0.001 * between(300, 1500);
    asked.input = 0.001 * between(300, 2000);
    asked.weight = 0.001 * between(0, 1200);
    ScheduleRequest request = testing::request_of(asked);
    request.costs.memory.clear();
    for (int32_t stage = 0; stage < chunks * asked.ranks; ++stage) {
      const int64_t kept = between(1, 1000);
      request.costs.memory.push_back({.activations = kept, .for_weights = kept});
    }
    for (request.in_flight = 1; request.in_flight <= asked.ranks; ++request.in_flight) {
      CAPTURE(name, asked.ranks, asked.microbatches, asked.forward, asked.input, asked.weight,
              request.in_flight);
      const Schedule schedule = make_schedule(schedule_family(name), request);
      CHECK_FALSE(first_fault(schedule, request.costs));
      ScheduleCosts counted = request.costs;
      counted.memory = {{.activations = 1, .for_weights = 1}};
      CHECK(simulate(schedule, counted).peak_memory() <= request.in_flight * chunks);
    }
  }
  ScheduleRequest request = testing::request_of({});
  request.in_flight = 2;
  CHECK_THROWS_WITH(make_schedule(schedule_family("1f1b"), request),
                    Catch::Contains("as its list says"));
}

TEST_CASE("zb-v and v-adaptive are as fast as any list for a V that fits") {
  for (int round = 0; round < 12; ++round) {
    Asked asked{.ranks = between(3, 8), .virtual_stages = 2};
    asked.microbatches = asked.ranks + between(0, asked.ranks);
    asked.input = 0.001 * between(800, 2000);
    asked.weight = 0.001 * between(400, 1200);
    const auto cost_of = [&](const char* name) { return timing_of(name, asked).cost; };
    CAPTURE(asked.ranks, asked.microbatches, asked.input, asked.weight);
    const double fixed = cost_of("zb-v-static"), half = cost_of("v-half"), least = cost_of("v-min");
    asked.memory_limit = timing_of("zb-v-static", asked).peak_memory();
    CHECK(cost_of("zb-v") <= fixed);
    CHECK(cost_of("v-adaptive") <= fixed);
    asked.memory_limit = timing_of("v-half", asked).peak_memory();
    CHECK(cost_of("v-adaptive") <= half);
    asked.memory_limit = timing_of("v-min", asked).peak_memory();
    CHECK(cost_of("v-adaptive") <= least);
  }
}

TEST_CASE("filled gaps keep every action and take no more memory") {
  int faster = 0;
  for (int round = 0; round < 40; ++round) {
    Asked asked{.ranks = between(2, 7), .virtual_stages = 2};
    asked.microbatches = between(1, 3 * asked.ranks);
    asked.forward = 0.001 * between(300, 1500);
    asked.input = 0.001 * between(300, 2000);
    asked.weight = 0.001 * between(0, 1200);
    ScheduleRequest request = testing::request_of(asked);
    request.costs.communication = 0.01 * between(0, 20);
    request.costs.memory = {{.activations = 10, .for_weights = between(0, 10)}};
    const Schedule start = make_schedule(
        schedule_family(std::array{"v-min", "v-half", "zb-v-static"}[round % 3]), request);
    const ScheduleTiming before = simulate(start, request.costs);
    CAPTURE(asked.ranks, asked.microbatches, asked.forward, asked.input, asked.weight);
    for (const bool may_delay : {false, true}) {
      const Schedule made = fill_gaps(start, request.costs, may_delay);
      CHECK(!first_fault(made, request.costs));
      const ScheduleTiming after = simulate(made, request.costs);
      for (size_t rank = 0; rank < made.ranks.size(); ++rank) {
        CHECK(after.ranks[rank].peak_memory <= before.ranks[rank].peak_memory);
      }
      faster += after.cost < before.cost * (1 - 1e-9);
    }
  }
  CHECK(faster > 0);
}

// A limit between the memory of two building blocks. The authors' open search reaches 2485.6 and 39
// here.
TEST_CASE("v-adaptive uses memory that no building block of equal steps just fills") {
  Asked asked{.ranks = 4, .microbatches = 23, .virtual_stages = 2};
  asked.forward = 23.99;
  asked.input = 38.77;
  asked.weight = 22.094;
  asked.memory_limit = 5;  // chunks, of which 1F1B holds eight
  CHECK(timing_of("v-adaptive", asked).cost <= 2485.6);
  asked = {.ranks = 3, .microbatches = 6, .virtual_stages = 2};
  asked.forward = asked.input = asked.weight = 2;
  asked.memory_limit = 5;
  CHECK(timing_of("v-adaptive", asked).cost <= 39);
  // Three eighths of 1F1B's memory. Room that is reserved for every way up would take 148.
  asked = {.ranks = 8, .microbatches = 32, .virtual_stages = 2, .memory_limit = 6};
  CHECK(timing_of("v-adaptive", asked).cost <= 128.5);
}

// A case where the greedy choice is optimal: one microbatch at a time leaves no choice.
TEST_CASE("v-adaptive works with memory for a single microbatch") {
  Asked asked{.ranks = 4, .microbatches = 5, .virtual_stages = 2};
  asked.memory_limit = 2;
  // Down, up, down and up again, with W of the last chunks behind; the next does not overlap.
  const ScheduleTiming timing = timing_of("v-adaptive", asked);
  CHECK(timing.peak_memory() <= 2);
  CHECK(timing.cost <= 5 * 0.5 * (4 * asked.ranks + 2));
  asked.memory_limit = 1;
  CHECK_THROWS_WITH(timing_of("v-adaptive", asked), Catch::Contains("v-adaptive cannot keep"));
}

TEST_CASE("zb-auto in little memory is no slower than batches of GPipe that fill it") {
  for (const auto& [ranks, microbatches, limit] :
       {std::tuple{16, 128, 12}, {8, 32, 3}, {4, 16, 2}, {4, 9, 4}}) {
    CAPTURE(ranks, microbatches, limit);
    Asked asked{.ranks = ranks, .microbatches = microbatches};
    asked.memory_limit = limit;
    // A batch goes down and up again before the next is done.
    const int batches = (microbatches + limit - 1) / limit;
    const double flushed = 3.0 * (microbatches + batches * (ranks - 1));
    const ScheduleTiming timing = timing_of("zb-auto", asked);
    CHECK(timing.cost <= flushed);
    CHECK(timing.peak_memory() <= limit);
  }
}

}  // namespace longspan
