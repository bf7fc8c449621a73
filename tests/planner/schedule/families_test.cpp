// Every family over random sizes: schedules are always valid, and follow the closed forms where
// these are known.
#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "tests/length.h"
#include "tests/planner/schedule/random_sizes.h"

namespace longspan {
namespace {

using testing::all;
using testing::Asked;
using testing::between;
using testing::bubble_of;
using testing::random_asked;
using testing::timing_of;

// Whether `microbatches` divide into equal groups of at least `least`.
bool in_equal_groups(int32_t microbatches, int32_t least) {
  return microbatches % std::max(1, microbatches / least) == 0;
}

// The sizes that families take, written down independently: all others take any sizes within their
// row of the registry.
bool takes(std::string_view family, const Asked& a) {
  const int32_t p = a.ranks, m = a.microbatches, half = (p + 1) / 2;
  if (family == "interleaved-1f1b") {
    const int32_t rest = a.group > 0 ? m % a.group : 0;
    return a.group > 0 ? a.group >= p && (rest == 0 || rest >= p) : in_equal_groups(m, p);
  }
  if (family == "interleaved-zb") return in_equal_groups(m, p);
  if (family == "gis") {
    return a.group > 0 ? a.group >= half && m % a.group == 0 : in_equal_groups(m, p);
  }
  if (family == "gis-h") return in_equal_groups(m, half);
  if (family == "dualpipe") return p % 2 == 0 && m % 2 == 0 && m >= 2 * p;
  if (family == "dualpipe-v") return m >= 2 * p;
  if (family == "stp") return m >= 3 * p;
  if (family == "slimpipe") return a.slices % p == 0;
  if (family == "sppo-msp") return a.slices >= p;
  if (family == "helixpipe") return m % (p * std::max(1, a.group)) == 0;
  if (family == "seq1f1b-i") return in_equal_groups(m, (p + a.slices - 1) / a.slices);
  return true;
}

// The schedule, if there is one; a refusal is bad input, or a limit that leaves no room.
std::optional<Schedule> make_if_taken(const ScheduleFamily& family, const ScheduleRequest& request,
                                      std::string& refusal) {
  try {
    return make_schedule(family, request);
  } catch (const Error& e) {
    refusal = e.what();
    const bool no_room = refusal.find("memory limit") != std::string::npos;
    CHECK(e.kind() == (no_room ? ErrorKind::no_fit : ErrorKind::bad_input));
    return std::nullopt;
  }
}

Asked random_sizes(const ScheduleFamily& family) {
  Asked asked;
  asked.ranks = between(1, 9);
  asked.microbatches = between(0, 1) == 0 ? between(1, 40) : asked.ranks * between(1, 8);
  const int32_t most = family.most_virtual_stages == 0 ? 5 : family.most_virtual_stages;
  asked.virtual_stages = between(family.least_virtual_stages, most);
  if (family.sliced) asked.slices = between(1, 2) == 1 ? between(1, 6) : asked.ranks;
  if (family.grouped) asked.group = between(0, 12);
  return asked;
}

// Unequal times and memory of every stage and slice, from zero to many times those of another.
ScheduleCosts unlike_costs(int32_t stages, int32_t slices) {
  const auto time = [] { return between(0, 4) == 0 ? between(0, 200) : between(10, 20); };
  ScheduleCosts costs;
  costs.times.clear();
  costs.memory.clear();
  costs.communication = 0.5 * between(0, 20);
  for (int32_t stage = 0; stage < stages; ++stage) {
    StageTimes t;
    for (double* each : {&t.forward, &t.input, &t.weight, &t.recompute, &t.vocabulary_forward,
                         &t.vocabulary_backward, &t.offload, &t.reload}) {
      *each = time();
    }
    costs.times.push_back(t);
    const int64_t held = between(1, 20);
    costs.memory.push_back({held, between(0, static_cast<int32_t>(held)), 0, held});
  }
  for (int32_t slice = 0; slice < slices; ++slice) {
    costs.shares.push_back({0.1 * between(0, 9), 0.1 * between(0, 9), 0.1, between(1, 9)});
  }
  return costs;
}

}  // namespace

TEST_CASE("every family gives valid schedules, whatever the sizes") {
  for (const ScheduleFamily& family : schedule_families()) {
    INFO(family.name);
    const int64_t rounds = testing::cases(30, 300);
    int made = 0;
    bool splits = false;
    for (int64_t round = 0; round < rounds; ++round) {
      Asked asked = random_sizes(family);
      asked.forward = between(1, 9);
      asked.input = between(1, 9);
      asked.weight = between(1, 9);
      asked.communication = between(0, 2);
      const ScheduleRequest request = testing::request_of(asked);
      CAPTURE(asked.ranks, asked.microbatches, asked.virtual_stages, asked.slices, asked.group);
      std::string refusal;
      const auto schedule = make_if_taken(family, request, refusal);
      INFO(refusal);
      CHECK(schedule.has_value() == takes(family.name, asked));
      if (!schedule) continue;
      ++made;
      splits |= schedule->has(ActionKind::backward_weight);
      CHECK(first_fault(*schedule, request.costs).value_or("none") == "none");
    }
    CHECK(made >= rounds / 10);
    CHECK(splits == family.splits_backward);
  }
}

// Stages of a model are not alike: the first has the embedding, the last the loss, and layers may
// be cut unevenly.
TEST_CASE("every family gives valid schedules, however unlike the stages") {
  for (const ScheduleFamily& family : schedule_families()) {
    INFO(family.name);
    const int64_t rounds = testing::cases(30, 300);
    int made = 0;
    for (int64_t round = 0; round < rounds; ++round) {
      const Asked asked = random_sizes(family);
      ScheduleRequest request = testing::request_of(asked);
      const int32_t chunks = asked.ranks * asked.virtual_stages;
      request.costs = unlike_costs(family.attention_apart ? 2 * chunks + 1 : chunks, asked.slices);
      if (family.takes_memory_limit)
        request.memory_limit = between(0, 1) * between(1, 100 * asked.ranks);
      CAPTURE(asked.ranks, asked.microbatches, asked.virtual_stages, asked.slices, asked.group,
              request.memory_limit);
      std::string refusal;
      const auto schedule = make_if_taken(family, request, refusal);
      INFO(refusal);
      if (!schedule) {
        if (!takes(family.name, asked)) continue;
        int64_t most = 0;
        for (const StageMemory& m : request.costs.memory) most = std::max(most, m.activations);
        CHECK(request.memory_limit > 0);
        CHECK(request.memory_limit < chunks * most);  // what is enough for 1F1B
        CHECK_THAT(refusal, Catch::Contains("memory limit"));
        continue;
      }
      ++made;
      const auto fault = first_fault(*schedule, request.costs, request.memory_limit);
      CHECK(fault.value_or("none") == "none");
    }
    CHECK(made >= rounds / 10);
  }
}

TEST_CASE("GPipe, 1F1B and kFkB: the bubble is (p-1)(F+B)") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    a.group = between(1, 4);
    CAPTURE(a.ranks, a.microbatches, a.group);
    CHECK(bubble_of("kfkb", a) == Approx((a.ranks - 1) * all(a)));
    for (int32_t r = 0; r < a.ranks; ++r) {
      CHECK(timing_of("kfkb", a).ranks[r].peak_memory ==
            std::min(a.microbatches, a.group * (a.ranks - r)));
    }
    a.group = 0;
    CHECK(bubble_of("gpipe", a) == Approx((a.ranks - 1) * all(a)));
    CHECK(bubble_of("1f1b", a) == Approx((a.ranks - 1) * all(a)));
    CHECK(timing_of("1f1b", a).bubble_rate ==
          Approx((a.ranks - 1.0) / (a.microbatches + a.ranks - 1)));
    CHECK(timing_of("gpipe", a).peak_memory() == a.microbatches);
    for (int32_t r = 0; r < a.ranks; ++r) {
      CHECK(timing_of("1f1b", a).ranks[r].peak_memory == a.ranks - r);
    }
  }
}

TEST_CASE(
    "1F1B of any number of microbatches, interleaved 1F1B of as many as ranks and in groups") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, m = a.microbatches = between(1, 3 * p);
    CAPTURE(p, m);
    const ScheduleTiming plain = timing_of("1f1b", a);
    CHECK(plain.bubble_rate == Approx((p - 1.0) / (m + p - 1)));
    for (int32_t r = 0; r < p; ++r) {
      CHECK(plain.ranks[r].peak_memory == std::min(m, p - r));
    }
    const int32_t v = a.virtual_stages = between(2, 4);
    a.microbatches = p;
    CHECK(bubble_of("interleaved-1f1b", a) == Approx((p - 1) * all(a) / v));
    // Megatron's schedule table: warm-up of 2 (p-1-r) + (v-1) N.
    const int32_t n = a.group = p + between(0, 4);
    a.microbatches = n * between(2, 4);
    const ScheduleTiming grouped = timing_of("interleaved-1f1b", a);
    for (int32_t r = 0; r < p; ++r) {
      CHECK(grouped.ranks[r].peak_memory ==
            std::min(a.microbatches * v, (v - 1) * n + 2 * (p - 1 - r) + 1));
    }
  }
}

TEST_CASE("messages cost 1F1B and interleaved 1F1B what the closed forms say") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks;
    a.communication = 0.25;
    CAPTURE(p, a.microbatches);
    CHECK(
        bubble_of("1f1b", a) ==
        Approx((p - 1) * all(a) + 2 * a.communication * ((p - 1) * (a.microbatches / p + 1) - 1)));
    a.virtual_stages = between(2, 4);
    const double v = a.virtual_stages;
    CHECK(bubble_of("interleaved-1f1b", a) ==
          Approx((p - 1) * all(a) / v + (2 * p * v - 2) * a.communication));
  }
}

TEST_CASE("messages are hidden by groups of kFkB that are long enough") {
  // p = 8, m = 32, F = 1, B = 2: thresholds and bubbles by the rules.
  const auto bubble = [](int32_t k, double c) {
    return bubble_of("kfkb", {.ranks = 8, .microbatches = 32, .group = k, .communication = c});
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
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    a.group = between(2, 5);
    a.microbatches = a.group * between(2 * a.ranks, 4 * a.ranks);
    a.communication = (a.group - 1) * all(a) / 2 * 0.25 * between(0, 4);
    CAPTURE(a.ranks, a.microbatches, a.group, a.communication);
    CHECK(bubble_of("kfkb", a) == Approx((a.ranks - 1) * (all(a) + 2 * a.communication)));
  }
}

TEST_CASE("chunks divide the bubble") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, v = a.virtual_stages = between(2, 4);
    CAPTURE(p, v, a.microbatches);
    CHECK(bubble_of("interleaved-1f1b", a) == Approx((p - 1) * all(a) / v));
    for (int32_t r = 0; r < p; ++r) {
      CHECK(timing_of("interleaved-1f1b", a).ranks[r].peak_memory ==
            (v - 1) * p + 2 * (p - 1 - r) + 1);
    }
    a.microbatches = a.ranks + between(0, 20);
    CHECK(bubble_of("bfs", a) == Approx((p - 1) * all(a) / v));
    CHECK(timing_of("bfs", a).peak_memory() == a.microbatches * v);
  }
}

TEST_CASE("Chronos: 1F1B's bubble; of its memory 3/4, and 1/4 with the shallow half recomputed") {
  for (const int32_t p : {4, 8, 16}) {
    for (const int32_t rounds : {3, 6, 12}) {
      const Asked a{.ranks = p, .microbatches = p * rounds, .virtual_stages = 2};
      CAPTURE(p, rounds);
      CHECK(bubble_of("chronos", a) == Approx((p - 1) * all(a)));
      CHECK(timing_of("chronos", a).peak_memory() == 3 * 2 * p / 4 + 1);
      const ScheduleTiming again = timing_of("chronos-recomp", a);
      CHECK(again.peak_memory() == 2 * p / 4 + 1);
      for (const RankTiming& rank : again.ranks) {
        CHECK(rank.busy == Approx(a.microbatches * (all(a) + a.forward / 2)));
      }
      // A part of every round is lost, since chunks take unequal times.
      CHECK(again.cost - again.ranks[0].busy < (p - 1 + rounds) * all(a));
    }
  }
}

// PipeOffload's table 1: (v+2)/8v and O(1/vd) of the whole model's activations, which are p v
// chunks; bubbles less than 1F1B's. Copies of its chunks are discrete: three are under way, and
// three are too short to be worth it.
TEST_CASE("PO-H: (v+2) p / 8 chunks and a few; PO-F: a few, whatever the sizes") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks = 2 * between(1, 6), v = a.virtual_stages = 2 * between(1, 4);
    a.microbatches = p * between(2, 5);
    a.forward = a.input = a.weight = 3;
    a.copy = between(1, 4);  // there and back in no more than F + I + W
    CAPTURE(p, v, a.microbatches, a.copy);
    CHECK(timing_of("po-h", a).peak_memory() <= (v + 2) * p / 8 + 5);
    CHECK(timing_of("po-f", a).peak_memory() <= 6);
    for (const char* name : {"po-h", "po-f"}) {
      CHECK(bubble_of(name, a) < (p - 1) * all(a));
    }
  }
  // Copies that take longer than computation delay it: by k if everything is offloaded, k/2 and
  // more if half is.
  for (const int32_t ranks_per_channel : {1, 2}) {
    Asked a{.ranks = 8, .microbatches = 64, .virtual_stages = 4};
    a.copy = 4.5;
    const auto per_microbatch = [&](const char* name) {
      const auto cost = [&](int32_t microbatches) {
        a.microbatches = microbatches;
        ScheduleRequest request = testing::request_of(a);
        request.costs.ranks_per_channel = ranks_per_channel;
        return simulate(make_schedule(schedule_family(name), request), request.costs).cost;
      };
      return (cost(256) - cost(128)) / 128;
    };
    CHECK(per_microbatch("po-f") == Approx(9 * ranks_per_channel).epsilon(0.01));
    CHECK(per_microbatch("po-h") >= 4.5 * ranks_per_channel);
    CHECK(per_microbatch("po-h") < 0.7 * per_microbatch("po-f"));
  }
}

TEST_CASE("families that arrange themselves under a memory limit stay below it") {
  for (const ScheduleFamily& family : schedule_families()) {
    if (!family.takes_memory_limit) continue;
    INFO(family.name);
    int made = 0;
    for (int round = 0; round < 60; ++round) {
      Asked asked;
      asked.ranks = between(2, 8);
      asked.microbatches = between(1, 30);
      asked.virtual_stages = family.least_virtual_stages;
      asked.forward = between(1, 9);
      asked.input = between(1, 9);
      asked.weight = between(1, 9);
      asked.memory_limit = asked.virtual_stages * between(1, 2 * asked.ranks);
      const ScheduleRequest request = testing::request_of(asked);
      CAPTURE(asked.ranks, asked.microbatches, asked.memory_limit);
      std::string refusal;
      const auto schedule = make_if_taken(family, request, refusal);
      if (schedule) {
        ++made;
        const auto fault = first_fault(*schedule, request.costs, asked.memory_limit);
        CHECK(fault.value_or("none") == "none");
      } else {
        // The memory of 1F1B's first rank is enough for all of them.
        CHECK(asked.memory_limit <
              asked.virtual_stages * std::min(asked.ranks, asked.microbatches));
        CHECK_THAT(refusal, Catch::Contains("memory limit"));
      }
    }
    CHECK(made >= 20);
  }
}

}  // namespace longspan
