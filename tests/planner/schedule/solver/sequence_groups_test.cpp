// Groups of ranks and their sequences against all possible groupings.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "base/error.h"
#include "planner/schedule/solver/sequence_groups.h"

namespace longspan {
namespace {

// Time is no limit in tests: the answer may not depend on the machine.
constexpr SolverLimits kLimits{.nodes = 5000, .seconds = 1e6};

SequenceCosts random_costs(std::mt19937& random) {
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  SequenceCosts costs;
  costs.quadratic = number(0, 10) / 100.0;
  costs.linear = number(1, 10) / 10.0;
  costs.fixed = number(0, 3);
  costs.memory_limit = number(10, 20);
  costs.sizes = {{1, 0}, {2, number(0, 5) / 20.0}, {4, number(2, 8) / 20.0}};
  return costs;
}

// The least time of all ways to distribute the sequences over groups of all sizes that the ranks
// have.
double least_of_all(const std::vector<int64_t>& lengths, int32_t ranks,
                    const SequenceCosts& costs) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<SequenceGroup> groups;
  const auto deal = [&](const auto& self, size_t next) -> void {
    if (next == lengths.size()) {
      double slowest = 0;
      for (const SequenceGroup& group : groups) {
        if (group.sequences.empty()) continue;
        int64_t tokens = 0;
        for (const int64_t s : group.sequences) tokens += s;
        const double held = costs.memory_per_token * static_cast<double>(tokens) / group.ranks;
        if (held > costs.memory_limit) return;
        for (const GroupSize& size : costs.sizes) {
          if (size.ranks == group.ranks) {
            slowest = std::max(slowest, group_time(costs, size, group.sequences));
          }
        }
      }
      least = std::min(least, slowest);
      return;
    }
    for (SequenceGroup& group : groups) {
      group.sequences.push_back(lengths[next]);
      self(self, next + 1);
      group.sequences.pop_back();
    }
  };
  const auto form = [&](const auto& self, int32_t left, size_t size) -> void {
    if (!groups.empty()) deal(deal, 0);
    for (size_t i = size; i < costs.sizes.size(); ++i) {
      if (costs.sizes[i].ranks > left) continue;
      groups.push_back({.ranks = costs.sizes[i].ranks, .sequences = {}, .time = 0});
      self(self, left - costs.sizes[i].ranks, i);
      groups.pop_back();
    }
  };
  form(form, ranks, 0);
  return least;
}

void check_sound(const SequenceAssignment& made, std::vector<int64_t> lengths, int32_t ranks,
                 const SequenceCosts& costs) {
  std::vector<int64_t> dealt;
  double time = 0;
  for (const Microbatch& batch : made.microbatches) {
    int32_t taken = 0;
    double slowest = 0;
    for (const SequenceGroup& group : batch.groups) {
      taken += group.ranks;
      slowest = std::max(slowest, group.time);
      double held = 0;
      for (const int64_t s : group.sequences) {
        held += costs.memory_per_token * static_cast<double>(s) / group.ranks;
        dealt.push_back(s);
      }
      if (costs.memory_limit > 0) CHECK(held <= costs.memory_limit * (1 + 1e-9));
    }
    CHECK(taken <= ranks);
    CHECK(batch.time == slowest);
    CHECK(batch.bound <= batch.time);
    time += batch.time;
  }
  CHECK(made.time == Approx(time));
  std::sort(dealt.begin(), dealt.end());
  std::sort(lengths.begin(), lengths.end());
  CHECK(dealt == lengths);
}

}  // namespace

TEST_CASE("no grouping is faster, by trying all") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const SequenceCosts costs = random_costs(random);
    std::vector<int64_t> lengths;
    for (int i = 0; i < 5; ++i) {
      lengths.push_back(std::uniform_int_distribution<int>(1, i == 0 ? 30 : 9)(random));
    }
    const double least = least_of_all(lengths, 4, costs);
    try {
      const SequenceAssignment made =
          assign_sequences(lengths, 4, costs, {.buckets = 5, .microbatches = 1, .limits = kLimits});
      check_sound(made, lengths, 4, costs);
      REQUIRE(made.microbatches[0].stop == Stop::optimal);
      CHECK(made.time == Approx(least).epsilon(1e-5));
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::no_fit);
      CHECK(std::isinf(least));
    }
  }
}

TEST_CASE("mixed lengths do better in groups of several sizes than in any one") {
  SequenceCosts costs;
  costs.quadratic = 0.01;
  costs.memory_limit = 16;
  costs.sizes = {{1, 0}, {2, 0.2}, {4, 0.3}, {8, 0.4}};
  std::vector<int64_t> lengths(12, 4);
  lengths.push_back(60);
  const SequenceAssignment made =
      assign_sequences(lengths, 8, costs, {.microbatches = 1, .limits = kLimits});
  check_sound(made, lengths, 8, costs);
  // Only a group of all eight ranks holds the long sequence.
  CHECK(made.time < group_time(costs, costs.sizes[3], lengths));
  CHECK(made.microbatches[0].groups.size() > 1);
}

TEST_CASE("a batch beyond memory is split, into as few microbatches as fit or a few more") {
  std::mt19937 random(5);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 24; ++i) lengths.push_back(std::uniform_int_distribution<int>(1, 20)(random));
  SequenceCosts costs;
  costs.quadratic = 0.05;
  costs.memory_limit = 20;
  costs.sizes = {{1, 0}, {2, 0.1}, {4, 0.2}};
  AssignOptions options{.buckets = 6, .microbatches = 0, .limits = {.nodes = 20, .seconds = 1e6}};
  const SequenceAssignment made = assign_sequences(lengths, 4, costs, options);
  check_sound(made, lengths, 4, costs);
  CHECK(made.microbatches.size() > 1);
  const SequenceAssignment again = assign_sequences(lengths, 4, costs, options);
  CHECK(again.time == made.time);
  CHECK(again.nodes == made.nodes);
  const auto fewest = static_cast<int64_t>(made.microbatches.size());
  for (int64_t k = fewest; k <= fewest + 1; ++k) {
    options.microbatches = k;
    try {
      const SequenceAssignment fixed = assign_sequences(lengths, 4, costs, options);
      CHECK(fixed.time >= made.time * (1 - 1e-9));
      CHECK(static_cast<int64_t>(fixed.microbatches.size()) == k);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::no_fit);
    }
  }
}

TEST_CASE("buckets of lengths: the least padding, by trying all") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 9; ++i)
      lengths.push_back(std::uniform_int_distribution<int>(1, 50)(random));
    std::sort(lengths.begin(), lengths.end());
    const auto padding = [&](const std::vector<int64_t>& uppers) {
      int64_t sum = 0;
      for (const int64_t s : lengths) {
        sum += *std::lower_bound(uppers.begin(), uppers.end(), s) - s;
      }
      return sum;
    };
    int64_t least = std::numeric_limits<int64_t>::max();
    for (unsigned subset = 0; subset < 1U << 8; ++subset) {
      std::vector<int64_t> uppers;
      for (int i = 0; i < 8; ++i) {
        if (subset >> i & 1) uppers.push_back(lengths[i]);
      }
      uppers.push_back(lengths[8]);
      if (uppers.size() <= 3) least = std::min(least, padding(uppers));
    }
    const std::vector<int64_t> uppers = length_buckets(lengths, 3);
    CHECK(uppers.size() <= 3);
    CHECK(padding(uppers) == least);
  }
  CHECK(length_buckets({7, 7, 3}, 9) == std::vector<int64_t>{3, 7});
}

TEST_CASE("the cost of a group, by the constants of FlexSP's repository") {
  // A100s, a 7B model: quadratic 5.128e-6 ms, linear 0.18396 ms, fixed 629.36 ms; on a group of 8
  // an exchange of 4 * 2 * 32 layers * 4096 wide * 2 bytes per token at 121 GB/s-like MiB/ms, per
  // rank.
  SequenceCosts costs;
  costs.quadratic = 5.128e-6;
  costs.linear = 0.18396;
  costs.fixed = 629.36;
  const double mebibytes = 4.0 * 2 * 32 * 4096 * 2 / (1 << 20);
  const GroupSize eight{8, mebibytes / 8 / 121};
  const double s = 65536;
  CHECK(group_time(costs, eight, {65536}) ==
        Approx((5.128e-6 * s * s + 0.18396 * s) / 8 + 629.36 + 2 * s / 8 / 121));
}

TEST_CASE("what cannot be assigned is refused in one line") {
  SequenceCosts costs;
  costs.memory_limit = 10;
  costs.sizes = {{1, 0}, {2, 0}};
  CHECK_THROWS_WITH(assign_sequences({30}, 4, costs),
                    "30 tokens take 15 on each rank of the largest group, of 2; the limit is 10");
  CHECK_THROWS_AS(assign_sequences({}, 4, costs), Error);
  CHECK_THROWS_AS(assign_sequences({5, 0}, 4, costs), Error);
  costs.sizes = {{8, 0}};
  CHECK_THROWS_AS(assign_sequences({5}, 4, costs), Error);
}

}  // namespace longspan
