// Closed forms of families that cut sequences, layers or the vocabulary, over random sizes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "planner/schedule/check.h"
#include "planner/schedule/share_passes.h"
#include "tests/planner/schedule/random_sizes.h"

namespace longspan {
namespace {

using testing::all;
using testing::Asked;
using testing::between;
using testing::bubble_of;
using testing::random_asked;
using testing::timing_of;

}  // namespace

TEST_CASE("Seq1F1B: bubble (p-1)(F+B)/s, memory (p-r+s-1)/s microbatches") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, s = a.slices = between(1, 6);
    CAPTURE(p, s, a.microbatches);
    CHECK(bubble_of("seq1f1b", a) == Approx((p - 1) * all(a) / s));
    CHECK(timing_of("seq1f1b", a).bubble_rate == Approx((p - 1.0) / (s * a.microbatches + p - 1)));
    for (int32_t r = 0; r < p; ++r) {
      CHECK(timing_of("seq1f1b", a).ranks[r].peak_memory == p - r + s - 1);
    }
    CHECK(bubble_of("terapipe", a) == Approx((p - 1) * all(a) / s));
    CHECK(timing_of("terapipe", a).peak_memory() == s * a.microbatches);
    // p units at a time, where that is whole microbatches.
    const int32_t v = a.virtual_stages = between(2, 4);
    while (p % a.slices != 0) --a.slices;
    CHECK(bubble_of("seq1f1b-i", a) == Approx((p - 1) * all(a) / (v * a.slices)));
    const ScheduleTiming interleaved = timing_of("seq1f1b-i", a);
    for (int32_t r = 0; r < p; ++r) {
      CHECK(interleaved.ranks[r].peak_memory == (v - 1) * p + 2 * (p - 1 - r) + a.slices);
    }
  }
}

TEST_CASE("Seq1F1B and SPPO of few microbatches: one sequence takes (p-1+s)/s of its time") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, s = a.slices = between(1, 6), m = a.microbatches = between(1, p);
    CAPTURE(p, s, m);
    const ScheduleTiming timing = timing_of("seq1f1b", a);
    CHECK(timing.cost - m * all(a) == Approx((p - 1) * all(a) / s));
    for (int32_t r = 0; r < p; ++r) {
      CHECK(timing.ranks[r].peak_memory == std::min(m * s, p - r + s - 1));
    }
    a.microbatches = 1;
    a.copy = 0;
    CHECK(timing_of("sppo", a).cost == Approx((p - 1 + s) * all(a) / s));
  }
}

// SPPO, section 4: M_i = M_(i-1) + A_i - a A_(i-1) after the forward of slice i, where a is the
// part of a slice that is offloaded while the next is computed.
TEST_CASE("SPPO: the bubble of Seq1F1B however slow copies are, and its recurrence of memory") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, s = a.slices = between(3, 12);
    a.input = 2 * a.forward + between(0, 4);  // room for the first two reloads, one after another
    a.copy = between(1, 40);
    CAPTURE(p, s, a.microbatches, a.copy);
    CHECK(bubble_of("sppo", a) == Approx((p - 1) * all(a) / s));
    CHECK(timing_of("sppo", a).peak_memory() <= timing_of("seq1f1b", a).peak_memory());

    a.microbatches = 1;
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

// Splitting over ranks makes them busy unequally: of p ranks the middle one does most: left of it 1
// - 1/(p-k) slices of every stage k up to it, right of it 1 - 1/(k+1) of every stage k from it.
TEST_CASE("SPPO with multiplexed ends: less than two thirds of a slice of bubble, whatever p") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked();
    const int32_t p = a.ranks, n = a.slices = p + between(0, 20);
    a.microbatches = between(1, 4);
    a.copy = 0;
    CAPTURE(p, n, a.microbatches);
    double most = 0;
    for (int32_t r = 0; r < p; ++r) {
      double work = n - p + 1;
      for (int32_t k = 0; k <= r; ++k) work += 1 - 1.0 / (p - k);
      for (int32_t k = r; k < p; ++k) work += 1 - 1.0 / (k + 1);
      most = std::max(most, work);
    }
    CHECK(most - n < 2.0 / 3);
    CHECK(bubble_of("sppo-msp", a) ==
          Approx(a.microbatches * (most - n) * all(a) / n).margin(1e-9));
    // Work moved to another rank is not lost: the ranks' busy times add up.
    double busy = 0;
    for (const RankTiming& rank : timing_of("sppo-msp", a).ranks) busy += rank.busy;
    CHECK(busy == Approx(p * a.microbatches * all(a)));
  }
}

// The ranges of SPPO's text for 4 stages and 8 subsequences: slices that a stage computes with the
// stages behind it, alone, and with those before it.
TEST_CASE("SPPO's multiplexed ends: its example of 4 stages and 8 subsequences") {
  const Schedule s = testing::schedule_of("sppo-msp", {.ranks = 4, .microbatches = 1, .slices = 8});
  const int32_t left[] = {3, 2, 1, 0}, steady[] = {8, 7, 6, 5};  // first slice outside it
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
    a.microbatches = p * a.group * between(1, 4);
    const double share = between(1, 9) / 10.0;
    ScheduleRequest request = testing::request_of(a);
    const StageTimes rank{a.forward, a.input, a.weight};
    request.costs = attention_apart_costs(p, v, rank, {340 * v, 340 * v}, 0, share);
    const Schedule s = make_schedule(schedule_family("helixpipe"), request);
    const ScheduleTiming timing = simulate(s, request.costs);
    CAPTURE(p, v, a.group, a.microbatches, share);
    // One layer; attention's gradients take twice its forward, of the same time as the rest
    // together.
    const double in_gradients = 2 * share / (1 + share);
    const double parameters =
        (a.forward * (1 - share) + a.input * (1 - in_gradients) + a.weight) / v;
    const double bubble = timing.cost - a.microbatches * all(a);
    if (a.group == 1) CHECK(bubble == Approx((p - 1) * parameters));
    // A fold waits for the other one, except for the time that attention fills.
    CHECK(bubble >= (p - 1) * parameters - 1e-6);
    CHECK(bubble <= 2 * (p - 1) * parameters + 1e-6);
    // All microbatches' activations, divided evenly except for the ends of the model.
    for (const RankTiming& r : timing.ranks) {
      CHECK(r.busy <= a.microbatches * all(a) + 1e-6);
      CHECK(r.peak_memory == 340 * v * a.microbatches);
    }
  }
}

TEST_CASE("HelixPipe: a second fold hides messages") {
  const auto cost = [](int32_t fold, double communication) {
    ScheduleRequest request =
        testing::request_of({.ranks = 4, .microbatches = 16, .virtual_stages = 4, .group = fold});
    request.costs = attention_apart_costs(4, 4, {}, {1360, 1360}, communication, 0.5);
    return simulate(make_schedule(schedule_family("helixpipe"), request), request.costs).cost;
  };
  CHECK(cost(2, 0.1) - cost(2, 0) < 0.5 * (cost(1, 0.1) - cost(1, 0)));
}

TEST_CASE("ChunkFlow: K slices on one rank whatever the length, the others' forwards twice") {
  for (int round = 0; round < 50; ++round) {
    Asked a = random_asked(1);
    const int32_t n = a.slices = between(1, 9), kept = a.group = between(1, 9);
    CAPTURE(a.ranks, a.microbatches, n, kept);
    const ScheduleTiming timing = timing_of("chunkflow", a);
    const double twice = std::max(0, n - kept) * a.forward / n;
    for (const RankTiming& rank : timing.ranks) {
      CHECK(rank.busy == Approx(a.microbatches * (all(a) + twice)));
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
    // The memory that the other chunks keep: their checkpoints.
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
    CAPTURE(p, v, n, a.microbatches);
    CHECK(bubble_of("slimpipe", a) == Approx((p - 1) * all(a) / (n * v)));
    CHECK(timing_of("slimpipe", a).peak_memory() == n * v + 2 * (p - 1));
  }
}

TEST_CASE("a cut vocabulary: p+2 and p+1 microbatches in flight, and no bubble once it is full") {
  for (const int32_t p : {2, 4, 8}) {
    for (const auto& [name, more] : {std::pair{"1f1b-vocab-1", 2}, {"1f1b-vocab-2", 1}}) {
      INFO(name << " of " << p);
      const auto cost = [&, name = name, more = more](int32_t microbatches) {
        ScheduleRequest request =
            testing::request_of({.ranks = p, .microbatches = microbatches, .communication = 0.01});
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
    const Asked asked{.ranks = p, .microbatches = 6 * p, .communication = 0.01};
    CHECK(timing_of("1f1b-vocab-1", asked).cost <= timing_of("1f1b", asked).cost + 1e-9);
    CHECK(timing_of("1f1b-vocab-2", asked).cost <= timing_of("1f1b", asked).cost + 1e-9);
  }
  // The message for a list without them.
  const ScheduleRequest request = testing::request_of({.ranks = 2, .microbatches = 2});
  Schedule s = make_schedule(schedule_family("1f1b-vocab-2"), request);
  std::erase_if(s.ranks[1], [](const Action& a) {
    return a.kind == ActionKind::vocabulary_backward && a.microbatch == 1;
  });
  CHECK(first_fault(s, request.costs).value_or("none") ==
        "rank 1 does 2 S and 1 T of the vocabulary; expected 2 of each");
}

TEST_CASE("a cut vocabulary in V-Half: two microbatches and one more, no bubble once it is full") {
  for (const int32_t p : {2, 3, 4, 5, 8}) {
    for (const auto& [name, more] : {std::pair{"v-half-vocab-1", 2}, {"v-half-vocab-2", 1}}) {
      for (const double part : {0.1, 0.5, 1.5}) {
        INFO(name << " of " << p << ", S and T " << part);
        const auto timing = [&, name = name](const char* of, int32_t microbatches) {
          ScheduleRequest request = testing::request_of({.ranks = p,
                                                         .microbatches = microbatches,
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

TEST_CASE("the short passes of a cut vocabulary are in the lists once, without a fault") {
  for (const ScheduleFamily& family : schedule_families()) {
    if (!family.cuts_vocabulary) continue;
    for (const int32_t p : {2, 3, 4, 8}) {
      const int32_t microbatches = 2 * p, v = family.least_virtual_stages;
      INFO(family.name << " of " << p);
      const ScheduleRequest request =
          testing::request_of({.ranks = p, .microbatches = microbatches, .virtual_stages = v});
      const Schedule made = make_schedule(family, request);
      const Schedule full = with_share_passes(made);
      CHECK(first_fault(full, unit_costs()).value_or("none") == "none");
      CHECK(with_share_passes(full).ranks == full.ranks);
      CHECK(made.input_gradient_in_t == family.gradient_in_t);
      for (int32_t rank = 0; rank < p; ++rank) {
        const auto count = [&](ActionKind kind) {
          return std::count_if(full.ranks[rank].begin(), full.ranks[rank].end(),
                               [&](const Action& a) { return a.kind == kind; });
        };
        CHECK(count(ActionKind::embedding_forward) == (rank == 0 ? 0 : microbatches));
        CHECK(count(ActionKind::embedding_backward) == (rank == 0 ? 0 : microbatches));
        // All else is there in the same order.
        std::vector<Action> rest = full.ranks[rank];
        std::erase_if(rest, [](const Action& a) {
          return a.kind == ActionKind::embedding_forward ||
                 a.kind == ActionKind::embedding_backward;
        });
        CHECK(rest == made.ranks[rank]);
      }
    }
  }
}

}  // namespace longspan
