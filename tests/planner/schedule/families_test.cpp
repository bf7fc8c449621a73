// Every family over random sizes: valid always, and the closed forms where they are known.
#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "base/error.h"
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

// As many equal groups of `least` or more microbatches as there could be.
bool in_equal_groups(int32_t micro_batches, int32_t least) {
  return micro_batches % std::max(1, micro_batches / least) == 0;
}

// What families say of themselves, written down a second time: all others take any sizes within
// their row of the registry.
bool takes(std::string_view family, const Asked& a) {
  const int32_t p = a.ranks, m = a.micro_batches, half = (p + 1) / 2;
  if (family == "interleaved-1f1b") {
    const int32_t rest = a.group > 0 ? m % a.group : 0;
    return a.group > 0 ? a.group >= p && (rest == 0 || rest >= p) : in_equal_groups(m, p);
  }
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

// Whether there is the schedule; one that is refused is bad input and nothing else.
std::optional<Schedule> make_if_taken(const ScheduleFamily& family, const ScheduleRequest& request,
                                      std::string& refusal) {
  try {
    return make_schedule(family, request);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
    refusal = e.what();
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("every family gives valid schedules, whatever the sizes") {
  for (const ScheduleFamily& family : schedule_families()) {
    INFO(family.name);
    int made = 0;
    for (int round = 0; round < 300; ++round) {
      Asked asked;
      asked.ranks = between(1, 9);
      asked.micro_batches = between(0, 1) == 0 ? between(1, 40) : asked.ranks * between(1, 8);
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
      std::string refusal;
      const auto schedule = make_if_taken(family, request, refusal);
      INFO(refusal);
      CHECK(schedule.has_value() == takes(family.name, asked));
      if (!schedule) continue;
      ++made;
      CHECK(first_fault(*schedule, request.costs).value_or("none") == "none");
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

// SPPO, section 4: M_i = M_(i-1) + A_i - a A_(i-1) after the forward of slice i, where a is the
// part of a slice that leaves while the next is computed.
TEST_CASE("SPPO: the bubble of Seq1F1B however slow copies are, and its recurrence of memory") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, s = a.slices = between(3, 12);
    a.input = 2 * a.forward + between(0, 4);  // room for the first two reloads, one after another
    a.copy = between(1, 40);
    CAPTURE(p, s, a.micro_batches, a.copy);
    CHECK(bubble_of("sppo", a) == Approx((p - 1) * all(a) / s));
    CHECK(timing_of("sppo", a).peak_memory() <= timing_of("seq1f1b", a).peak_memory());

    a.micro_batches = 1;
    ScheduleRequest request = testing::request_of(a);
    const int64_t slice = 100000;
    request.costs.memory[0] = {slice * s, slice * s, 0, slice * s};
    const auto away = static_cast<int64_t>(slice * std::min(1.0, a.forward / a.copy));
    int64_t held = slice, most = slice;  // M_0
    for (int32_t i = 1; i < s; ++i) {
      most = std::max(most, held + slice);  // while slice i is computed
      held += slice - away;
    }
    const Schedule schedule = make_schedule(schedule_family("sppo"), request);
    const ScheduleTiming timing = simulate(schedule, request.costs);
    CHECK(std::abs(timing.ranks[0].peak_memory - most) <= s);
  }
}

// What is cut over ranks makes them busy unequally: of p ranks the middle one does most, left of it
// 1 - 1/(p-k) slices of every stage k to it, right of it 1 - 1/(k+1) of every stage k from it.
TEST_CASE("SPPO with multiplexed ends: less than two thirds of a slice of bubble, whatever p") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, n = a.slices = p + between(0, 20);
    a.micro_batches = between(1, 4);
    a.copy = 0;
    CAPTURE(p, n, a.micro_batches);
    double most = 0;
    for (int32_t r = 0; r < p; ++r) {
      double work = n - p + 1;
      for (int32_t k = 0; k <= r; ++k) work += 1 - 1.0 / (p - k);
      for (int32_t k = r; k < p; ++k) work += 1 - 1.0 / (k + 1);
      most = std::max(most, work);
    }
    CHECK(most - n < 2.0 / 3);
    CHECK(bubble_of("sppo-msp", a) ==
          Approx(a.micro_batches * (most - n) * all(a) / n).margin(1e-9));
    // Nothing is lost on the way to another rank: what ranks do adds up.
    double busy = 0;
    for (const RankTiming& rank : timing_of("sppo-msp", a).ranks) busy += rank.busy;
    CHECK(busy == Approx(p * a.micro_batches * all(a)));
  }
}

// The ranges of SPPO's text for 4 stages and 8 subsequences: which a stage does with those behind
// it, alone, and with those before it.
TEST_CASE("SPPO's multiplexed ends: its example of 4 stages and 8 subsequences") {
  const Schedule s =
      testing::schedule_of("sppo-msp", {.ranks = 4, .micro_batches = 1, .slices = 8});
  const int32_t left[] = {3, 2, 1, 0}, steady[] = {8, 7, 6, 5};  // the first that is not of it
  for (int32_t rank = 0; rank < 4; ++rank) {
    std::set<std::tuple<int32_t, int32_t, int32_t>> expected, found;  // stage, slice, ways
    for (int32_t stage = 0; stage < 4; ++stage) {
      for (int32_t slice = 0; slice < 8; ++slice) {
        if (slice < left[stage]) {
          if (rank >= stage) expected.insert({stage, slice, 4 - stage});
        } else if (slice >= steady[stage]) {
          if (rank <= stage) expected.insert({stage, slice, stage + 1});
        } else if (rank == stage) {
          expected.insert({stage, slice, 1});
        }
      }
    }
    for (const Action& a : s.ranks[rank]) {
      if (a.kind == ActionKind::forward) found.insert({a.stage, a.slice, a.ways});
    }
    CHECK(found == expected);
  }
}

TEST_CASE("HelixPipe: filling waits for what has parameters, not for attention") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, v = a.virtual_stages = between(1, 3);
    a.group = between(1, 2);
    a.micro_batches = p * a.group * between(1, 4);
    const double share = between(1, 9) / 10.0;
    ScheduleRequest request = testing::request_of(a);
    const StageTimes rank{a.forward, a.input, a.weight};
    request.costs = attention_apart_costs(p, v, rank, {340 * v, 340 * v}, 0, share);
    const Schedule s = make_schedule(schedule_family("helixpipe"), request);
    const ScheduleTiming timing = simulate(s, request.costs);
    CAPTURE(p, v, a.group, a.micro_batches, share);
    // Of one layer; attention's gradients take twice its forward, of as much as the rest together.
    const double in_gradients = 2 * share / (1 + share);
    const double parameters =
        (a.forward * (1 - share) + a.input * (1 - in_gradients) + a.weight) / v;
    const double bubble = timing.cost - a.micro_batches * all(a);
    if (a.group == 1) CHECK(bubble == Approx((p - 1) * parameters));
    // A fold waits for the other one, but for what attention fills.
    CHECK(bubble >= (p - 1) * parameters - 1e-6);
    CHECK(bubble <= 2 * (p - 1) * parameters + 1e-6);
    // All microbatches' activations, shared out evenly but for the ends of the model.
    for (const RankTiming& r : timing.ranks) {
      CHECK(r.busy <= a.micro_batches * all(a) + 1e-6);
      CHECK(r.peak_memory == 340 * v * a.micro_batches);
    }
  }
}

TEST_CASE("HelixPipe: a second fold hides messages") {
  const auto cost = [](int32_t fold, double communication) {
    ScheduleRequest request =
        testing::request_of({.ranks = 4, .micro_batches = 16, .virtual_stages = 4, .group = fold});
    request.costs = attention_apart_costs(4, 4, {}, {1360, 1360}, communication, 0.5);
    return simulate(make_schedule(schedule_family("helixpipe"), request), request.costs).cost;
  };
  CHECK(cost(2, 0.1) - cost(2, 0) < 0.5 * (cost(1, 0.1) - cost(1, 0)));
}

TEST_CASE("Chronos: 1F1B's bubble; of its memory 3/4, and 1/4 with the shallow half recomputed") {
  for (const int32_t p : {4, 8, 16}) {
    for (const int32_t rounds : {3, 6, 12}) {
      const Asked a{.ranks = p, .micro_batches = p * rounds, .virtual_stages = 2};
      CAPTURE(p, rounds);
      CHECK(bubble_of("chronos", a) == Approx((p - 1) * all(a)));
      CHECK(timing_of("chronos", a).peak_memory() == 3 * 2 * p / 4 + 1);
      const ScheduleTiming again = timing_of("chronos-recomp", a);
      CHECK(again.peak_memory() == 2 * p / 4 + 1);
      for (const RankTiming& rank : again.ranks) {
        CHECK(rank.busy == Approx(a.micro_batches * (all(a) + a.forward / 2)));
      }
      // A little of every round is lost, since chunks take unequally long.
      CHECK(again.cost - again.ranks[0].busy < (p - 1 + rounds) * all(a));
    }
  }
}

TEST_CASE("ChunkFlow: K slices on one rank whatever the length, the others' forwards twice") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked(1);
    const int32_t n = a.slices = between(1, 9), kept = a.group = between(1, 9);
    CAPTURE(a.ranks, a.micro_batches, n, kept);
    const ScheduleTiming timing = timing_of("chunkflow", a);
    const double twice = std::max(0, n - kept) * a.forward / n;
    for (const RankTiming& rank : timing.ranks) {
      CHECK(rank.busy == Approx(a.micro_batches * (all(a) + twice)));
    }
    Asked plain = a;
    plain.group = 0;
    if (kept >= n) {
      CHECK(timing.cost == timing_of("seq1f1b", plain).cost);
      CHECK(timing.peak_memory() == timing_of("seq1f1b", plain).peak_memory());
    }
    CHECK(timing.peak_memory() <= timing_of("seq1f1b", plain).peak_memory());
    plain.ranks = a.ranks = 1;
    CHECK(timing_of("chunkflow", a).peak_memory() == std::min(n, kept));
    // What stays of the others.
    ScheduleRequest request = testing::request_of(a);
    request.costs.memory[0].activations = request.costs.memory[0].for_weights = 100 * n;
    request.costs.memory[0].checkpoint = 7 * n;
    const Schedule s = make_schedule(schedule_family("chunkflow"), request);
    CHECK(simulate(s, request.costs).peak_memory() ==
          100 * std::min(n, kept) + 7 * std::max(0, n - kept));
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

// PipeOffload's table 1: (v+2)/8v and O(1/vd) of the whole model's activations, which are p v
// chunks; bubbles less than 1F1B's. Its chunks' copies are discrete: three on their way, three not
// worth it.
TEST_CASE("PO-H: (v+2) p / 8 chunks and a few; PO-F: a few, whatever the sizes") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks = 2 * between(1, 6), v = a.virtual_stages = 2 * between(1, 4);
    a.micro_batches = p * between(2, 5);
    a.forward = a.input = a.weight = 3;
    a.copy = between(1, 4);  // there and back in no more than F + I + W
    CAPTURE(p, v, a.micro_batches, a.copy);
    CHECK(timing_of("po-h", a).peak_memory() <= (v + 2) * p / 8 + 5);
    CHECK(timing_of("po-f", a).peak_memory() <= 6);
    for (const char* name : {"po-h", "po-f"}) {
      CHECK(bubble_of(name, a) < (p - 1) * all(a));
    }
  }
  // Copies that take longer than computation hold it up: by k where all leaves, k/2 and more where
  // half does.
  for (const int32_t ranks_per_channel : {1, 2}) {
    Asked a{.ranks = 8, .micro_batches = 64, .virtual_stages = 4};
    a.copy = 4.5;
    const auto per_microbatch = [&](const char* name) {
      const auto cost = [&](int32_t micro_batches) {
        a.micro_batches = micro_batches;
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
  for (const int32_t p : {2, 4, 8, 16}) {
    const Asked asked{.ranks = p, .micro_batches = 6 * p, .communication = 0.01};
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

TEST_CASE("a cut vocabulary in V-Half: two microbatches and one more, no bubble once it is full") {
  for (const int32_t p : {2, 3, 4, 5, 8}) {
    for (const auto& [name, more] : {std::pair{"v-half-vocab-1", 2}, {"v-half-vocab-2", 1}}) {
      for (const double part : {0.1, 0.5, 1.5}) {
        INFO(name << " of " << p << ", S and T " << part);
        const auto timing = [&, name = name](const char* of, int32_t micro_batches) {
          ScheduleRequest request = testing::request_of({.ranks = p,
                                                         .micro_batches = micro_batches,
                                                         .virtual_stages = 2,
                                                         .communication = 0.01});
          request.costs.times[0].vocabulary_forward = part;
          request.costs.times[0].vocabulary_backward = part;
          const Schedule s = make_schedule(schedule_family(of), request);
          CHECK(first_fault(s, request.costs).value_or("none") == "none");
          return simulate(s, request.costs);
        };
        // Chunks, of which a rank's microbatch has two.
        CHECK(timing(name, 16 * p).peak_memory() ==
              timing("v-half", 16 * p).peak_memory() + 2 * more);
        CHECK(timing(name, 16 * p).cost - timing(name, 12 * p).cost ==
              Approx(4 * p * (3 + 2 * part)).epsilon(1e-6));
      }
    }
  }
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
      std::string refusal;
      const auto schedule = make_if_taken(family, request, refusal);
      if (schedule) {
        ++made;
        const auto fault = first_fault(*schedule, request.costs, asked.memory_limit);
        CHECK(fault.value_or("none") == "none");
      } else {
        // What 1F1B holds on its first rank is enough for all of them.
        CHECK(asked.memory_limit <
              asked.virtual_stages * std::min(asked.ranks, asked.micro_batches));
        CHECK_THAT(refusal, Catch::Contains("memory limit"));
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
