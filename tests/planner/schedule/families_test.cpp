// Every family over random sizes: valid always, and the closed forms where they are known.
#include <catch2/catch.hpp>
#include <random>

#include "planner/schedule/check.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

using testing::Asked;
using testing::bubble_of;
using testing::timing_of;

std::mt19937_64& dice() {
  static std::mt19937_64 random(7);
  return random;
}

int32_t between(int32_t least, int32_t most) {
  return least + static_cast<int32_t>(dice()() % static_cast<uint64_t>(most - least + 1));
}

// Times of a kind that bubbles' formulas hold for: W no longer than F or I.
Asked random_asked(int32_t least_ranks = 2) {
  Asked asked;
  asked.ranks = between(least_ranks, 9);
  asked.micro_batches = asked.ranks * between(2, 5);
  asked.forward = between(8, 12);
  asked.input = between(8, 12);
  asked.weight = between(1, 8);
  return asked;
}

double all(const Asked& a) { return a.forward + a.input + a.weight; }

}  // namespace

TEST_CASE("every family gives valid schedules, whatever the sizes") {
  for (const ScheduleFamily& family : schedule_families()) {
    INFO(family.name);
    int made = 0;
    for (int round = 0; round < 300; ++round) {
      Asked asked;
      asked.ranks = between(1, 9);
      asked.micro_batches = between(1, 40);
      const int32_t most = family.most_virtual_stages == 0 ? 5 : family.most_virtual_stages;
      asked.virtual_stages = between(family.least_virtual_stages, most);
      if (family.sliced) asked.slices = between(1, 2) == 1 ? between(1, 6) : asked.ranks;
      if (family.grouped) asked.group = between(0, 12);
      asked.forward = between(1, 9);
      asked.input = between(1, 9);
      asked.weight = between(1, 9);
      asked.communication = between(0, 2);
      const ScheduleRequest request = testing::request_of(asked);
      CAPTURE(asked.ranks, asked.micro_batches, asked.virtual_stages, asked.slices, asked.group);
      Schedule schedule;
      try {
        schedule = make_schedule(family, request);
      } catch (const std::exception&) {
        continue;  // refused: not for every number of microbatches
      }
      ++made;
      CHECK(first_fault(schedule, request.costs).value_or("none") == "none");
    }
    CHECK(made >= 30);
  }
}

TEST_CASE("GPipe, 1F1B and kFkB: the bubble is (p-1)(F+B)") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    a.group = between(1, 4);
    CAPTURE(a.ranks, a.micro_batches, a.group);
    CHECK(bubble_of("kfkb", a) == Approx((a.ranks - 1) * all(a)));
    for (int32_t r = 0; r < a.ranks; ++r) {
      CHECK(timing_of("kfkb", a).ranks[r].peak_memory ==
            std::min(a.micro_batches, a.group * (a.ranks - r)));
    }
    a.group = 0;
    CHECK(bubble_of("gpipe", a) == Approx((a.ranks - 1) * all(a)));
    CHECK(bubble_of("1f1b", a) == Approx((a.ranks - 1) * all(a)));
    CHECK(timing_of("1f1b", a).bubble_rate ==
          Approx((a.ranks - 1.0) / (a.micro_batches + a.ranks - 1)));
    CHECK(timing_of("gpipe", a).peak_memory() == a.micro_batches);
    for (int32_t r = 0; r < a.ranks; ++r) {
      CHECK(timing_of("1f1b", a).ranks[r].peak_memory == a.ranks - r);
    }
  }
}

TEST_CASE("messages cost 1F1B and interleaved 1F1B what the closed forms say") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks;
    a.communication = 0.25;
    CAPTURE(p, a.micro_batches);
    CHECK(
        bubble_of("1f1b", a) ==
        Approx((p - 1) * all(a) + 2 * a.communication * ((p - 1) * (a.micro_batches / p + 1) - 1)));
    a.virtual_stages = between(2, 4);
    const double v = a.virtual_stages;
    CHECK(bubble_of("interleaved-1f1b", a) ==
          Approx((p - 1) * all(a) / v + (2 * p * v - 2) * a.communication));
  }
}

TEST_CASE("messages are hidden by groups of kFkB that are long enough") {
  // p = 8, m = 32, F = 1, B = 2: thresholds and bubbles by the rules.
  const auto bubble = [](int32_t k, double c) {
    return bubble_of("kfkb", {.ranks = 8, .micro_batches = 32, .group = k, .communication = c});
  };
  CHECK(bubble(1, 0.5) == Approx(55));
  CHECK(bubble(2, 0.5) == Approx(28));
  CHECK(bubble(4, 0.5) == Approx(28));
  CHECK(bubble(1, 1) == Approx(89));
  CHECK(bubble(2, 1) == Approx(35));
  CHECK(bubble(4, 1) == Approx(35));
  CHECK(bubble(1, 2) == Approx(157));
  CHECK(bubble(2, 2) == Approx(62));
  CHECK(bubble(4, 2) == Approx(49));
  for (const auto& [k, c] : {std::pair{2, 1.5}, {3, 3.0}, {4, 4.5}}) {
    CHECK(bubble(k, c) == Approx(7 * (3 + 2 * c)));
    CHECK(bubble(k, c + 0.25) > 7 * (3 + 2 * (c + 0.25)) + 0.01);
  }
}

TEST_CASE("chunks divide the bubble") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, v = a.virtual_stages = between(2, 4);
    CAPTURE(p, v, a.micro_batches);
    CHECK(bubble_of("interleaved-1f1b", a) == Approx((p - 1) * all(a) / v));
    for (int32_t r = 0; r < p; ++r) {
      CHECK(timing_of("interleaved-1f1b", a).ranks[r].peak_memory ==
            (v - 1) * p + 2 * (p - 1 - r) + 1);
    }
    a.micro_batches = a.ranks + between(0, 20);
    CHECK(bubble_of("bfs", a) == Approx((p - 1) * all(a) / v));
    CHECK(timing_of("bfs", a).peak_memory() == a.micro_batches * v);
  }
}

TEST_CASE("ZB-H1 and ZB-H2: bubbles of (p-1)(F+I-W) and (p-1)(F+I-2W)") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    a.forward = a.input = between(8, 12);
    const int32_t p = a.ranks;
    CAPTURE(p, a.micro_batches, a.forward, a.weight);
    CHECK(bubble_of("zb-h1", a) == Approx((p - 1) * (a.forward + a.input - a.weight)));
    CHECK(bubble_of("zb-h2", a) == Approx((p - 1) * (a.forward + a.input - 2 * a.weight)));
    CHECK(timing_of("zb-h1", a).peak_memory() == p);
    CHECK(timing_of("zb-h2", a).peak_memory() == std::min(2 * p - 1, a.micro_batches));
  }
  // Memory with less of it held for W: device r (from 0) has (p-r) M_B + r M_W, and (2p-2r-1) M_B +
  // 2r M_W in ZB-H2.
  ScheduleRequest request = testing::request_of({.ranks = 6, .micro_batches = 24});
  request.costs.memory[0] = {.activations = 100, .for_weights = 37};
  const ScheduleTiming h1 =
      simulate(make_schedule(schedule_family("zb-h1"), request), request.costs);
  const ScheduleTiming h2 =
      simulate(make_schedule(schedule_family("zb-h2"), request), request.costs);
  for (int32_t r = 0; r < 6; ++r) {
    CHECK(h1.ranks[r].peak_memory == (6 - r) * 100 + r * 37);
    CHECK(h2.ranks[r].peak_memory == (2 * 6 - 2 * r - 1) * 100 + 2 * r * 37);
  }
}

TEST_CASE("Seq1F1B: bubble (p-1)(F+B)/s, memory (p-r+s-1)/s microbatches") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, s = a.slices = between(1, 6);
    CAPTURE(p, s, a.micro_batches);
    CHECK(bubble_of("seq1f1b", a) == Approx((p - 1) * all(a) / s));
    CHECK(timing_of("seq1f1b", a).bubble_rate == Approx((p - 1.0) / (s * a.micro_batches + p - 1)));
    for (int32_t r = 0; r < p; ++r) {
      CHECK(timing_of("seq1f1b", a).ranks[r].peak_memory == p - r + s - 1);
    }
    CHECK(bubble_of("terapipe", a) == Approx((p - 1) * all(a) / s));
    CHECK(timing_of("terapipe", a).peak_memory() == s * a.micro_batches);
    // p units at a time, where that is whole microbatches.
    const int32_t v = a.virtual_stages = between(2, 4);
    while (p % a.slices != 0) --a.slices;
    CHECK(bubble_of("seq1f1b-i", a) == Approx((p - 1) * all(a) / (v * a.slices)));
    CHECK(timing_of("seq1f1b-i", a).ranks[0].peak_memory == (v - 1) * p + 2 * (p - 1) + a.slices);
  }
}

TEST_CASE("SlimPipe: a microbatch's share and 2(p-1) slices, bubble (p-1)(F+B)/(nv)") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, v = a.virtual_stages = between(1, 3);
    const int32_t n = a.slices = p * between(1, 2);
    CAPTURE(p, v, n, a.micro_batches);
    CHECK(bubble_of("slimpipe", a) == Approx((p - 1) * all(a) / (n * v)));
    CHECK(timing_of("slimpipe", a).peak_memory() == n * v + 2 * (p - 1));
  }
}

TEST_CASE("GIS: bubble (p-1)(F+I)/v, p v chunks; GIS-H: (g(v-1)+p) chunks") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    a.forward = a.input = a.weight = between(1, 9);
    const int32_t p = a.ranks, v = a.virtual_stages = between(2, 4);
    CAPTURE(p, v, a.micro_batches);
    CHECK(bubble_of("gis", a) == Approx((p - 1) * 2 * a.forward / v));
    CHECK(timing_of("gis", a).peak_memory() == p * v);
    const int32_t g = (p + 1) / 2;
    a.micro_batches = g * between(4, 9);
    CHECK(timing_of("gis-h", a).peak_memory() == g * (v - 1) + p);
    CHECK(bubble_of("gis-h", a) == Approx(((p - 1) * 2 + (v - 1) * (p - g)) * a.forward / v));
  }
}

// Its authors' 3p counts what waits for I; what stays for W comes on top, and one chunk more, since
// a forward takes its memory before the backward that it is braided with gives back its own.
TEST_CASE("STP: bubble (p-1)(F+I-W) chunks, 3p chunks on a rank") {
  for (int round = 0; round < 20; ++round) {
    Asked a = random_asked();
    a.virtual_stages = 2;
    a.micro_batches = 3 * a.ranks + between(0, 20);
    a.forward = a.input = a.weight = between(1, 5);
    CAPTURE(a.ranks, a.micro_batches);
    CHECK(2 * bubble_of("stp", a) == Approx((a.ranks - 1) * a.forward));
    ScheduleRequest request = testing::request_of(a);
    request.costs.memory[0].for_weights = 0;
    const Schedule schedule = make_schedule(schedule_family("stp"), request);
    CHECK(simulate(schedule, request.costs).peak_memory() == 3 * a.ranks + 1);
  }
}

TEST_CASE("a cut vocabulary: p+2 and p+1 microbatches in flight, and no bubble once it is full") {
  for (const int32_t p : {2, 4, 8}) {
    for (const auto& [name, more] : {std::pair{"1f1b-vocab-1", 2}, {"1f1b-vocab-2", 1}}) {
      INFO(name << " of " << p);
      const auto cost = [&, name = name, more = more](int32_t micro_batches) {
        ScheduleRequest request = testing::request_of(
            {.ranks = p, .micro_batches = micro_batches, .communication = 0.01});
        request.costs.times[0].vocabulary_forward = 0.5;
        request.costs.times[0].vocabulary_backward = 0.5;
        const Schedule s = make_schedule(schedule_family(name), request);
        CHECK(first_fault(s, request.costs).value_or("none") == "none");
        const ScheduleTiming timing = simulate(s, request.costs);
        for (int32_t rank = 0; rank < p; ++rank) {
          CHECK(timing.ranks[rank].peak_memory <= p - rank + more);
        }
        CHECK(timing.peak_memory() == p + more);
        return timing.cost;
      };
      // A microbatch takes F + I + W + S + T of every rank, and no more.
      CHECK(cost(16 * p) - cost(12 * p) == Approx(4 * p * 4.0).epsilon(0.01));
    }
  }
  // Where S and T take no time it is 1F1B.
  for (const int32_t p : {2, 4, 8}) {
    const Asked asked{.ranks = p, .micro_batches = 6 * p};
    CHECK(timing_of("1f1b-vocab-1", asked).cost <= timing_of("1f1b", asked).cost + 1e-9);
    CHECK(timing_of("1f1b-vocab-2", asked).cost <= timing_of("1f1b", asked).cost + 1e-9);
  }
  // What the check says of a list without them.
  const ScheduleRequest request = testing::request_of({.ranks = 2, .micro_batches = 2});
  Schedule s = make_schedule(schedule_family("1f1b-vocab-2"), request);
  std::erase_if(s.ranks[1], [](const Action& a) {
    return a.kind == ActionKind::vocabulary_backward && a.micro_batch == 1;
  });
  CHECK(first_fault(s, request.costs).value_or("none") ==
        "rank 1 does 2 S and 1 T of the vocabulary; expected 2 of each");
}

TEST_CASE("families that arrange themselves under a memory limit stay below it") {
  for (const ScheduleFamily& family : schedule_families()) {
    if (!family.limited) continue;
    INFO(family.name);
    int made = 0;
    for (int round = 0; round < 60; ++round) {
      Asked asked;
      asked.ranks = between(2, 8);
      asked.micro_batches = between(1, 30);
      asked.virtual_stages = family.least_virtual_stages;
      asked.forward = between(1, 9);
      asked.input = between(1, 9);
      asked.weight = between(1, 9);
      asked.memory_limit = asked.virtual_stages * between(1, 2 * asked.ranks);
      const ScheduleRequest request = testing::request_of(asked);
      CAPTURE(asked.ranks, asked.micro_batches, asked.memory_limit);
      try {
        const Schedule schedule = make_schedule(family, request);
        ++made;
        const auto fault = first_fault(schedule, request.costs, asked.memory_limit);
        CHECK(fault.value_or("none") == "none");
      } catch (const std::exception& e) {
        CHECK_THAT(e.what(), Catch::Contains("memory limit"));
      }
    }
    CHECK(made >= 20);
  }
}

TEST_CASE("more memory never makes v-adaptive slower, and it reaches V-Min and ZB-V") {
  for (const int32_t ranks : {4, 6, 8}) {
    Asked asked{.ranks = ranks, .micro_batches = 4 * ranks, .virtual_stages = 2};
    double before = timing_of("v-min", asked).cost;
    for (asked.memory_limit = timing_of("v-min", asked).peak_memory();
         asked.memory_limit <= 2 * ranks; ++asked.memory_limit) {
      const double cost = timing_of("v-adaptive", asked).cost;
      CHECK(cost <= before);
      before = cost;
    }
    CHECK(before == 3 * asked.micro_batches);
  }
}

}  // namespace longspan
