// Slices that take equally long: against all ways to split, against the closed form, and the cost
// of unequal ones.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "planner/schedule/slice_split.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

// Twice the most that a slice of the cut costs.
int64_t longest(const std::vector<int64_t>& lengths, const TokenCost& cost) {
  int64_t begin = 0, most = 0;
  for (const int64_t length : lengths) {
    const int64_t end = begin + length;
    most = std::max(most, 2 * cost.linear * length + cost.attention * (end * end - begin * begin));
    begin = end;
  }
  return most;
}

// The longest slice of the best of all splits into multiples.
int64_t best_of_all(int64_t units, int32_t slices, int64_t multiple, const TokenCost& cost,
                    std::vector<int64_t>& lengths) {
  if (slices == 1) {
    lengths.push_back(units * multiple);
    const int64_t most = longest(lengths, cost);
    lengths.pop_back();
    return most;
  }
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int64_t first = 1; first <= units - slices + 1; ++first) {
    lengths.push_back(first * multiple);
    best = std::min(best, best_of_all(units - first, slices - 1, multiple, cost, lengths));
    lengths.pop_back();
  }
  return best;
}

double rate(int32_t slices, double attention, bool equal_times) {
  // `part` is attention's part of a forward: attention S^2 / 2 against linear S, for S tokens.
  const int64_t tokens = 65536;
  const TokenCost cost{tokens * std::llround(10000 * (1 - attention)),
                       std::llround(20000 * attention)};
  const std::vector<int64_t> lengths = equal_times ? equal_time_slices(tokens, slices, 1, cost)
                                                   : equal_token_slices(tokens, slices, 1);
  ScheduleRequest request = testing::request_of({.ranks = 8, .microbatches = 16, .slices = slices});
  // Gradients cost the same as forwards, slice by slice.
  request.costs.shares = slice_shares(lengths, cost, 1, 1);
  for (SliceShare& share : request.costs.shares) share.weight = share.forward;
  return simulate(make_schedule(schedule_family("seq1f1b"), request), request.costs).bubble_rate;
}

}  // namespace

TEST_CASE("no cut is better than the one that is found") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto slices = static_cast<int32_t>(1 + random() % 4);
    const auto units = static_cast<int64_t>(slices + random() % 14);
    const auto multiple = static_cast<int64_t>(1 + random() % 8);
    const TokenCost cost{static_cast<int64_t>(random() % 50), static_cast<int64_t>(random() % 5)};
    const std::vector<int64_t> found = equal_time_slices(units * multiple, slices, multiple, cost);
    REQUIRE(found.size() == static_cast<size_t>(slices));
    CHECK(std::accumulate(found.begin(), found.end(), int64_t{0}) == units * multiple);
    for (const int64_t length : found) CHECK((length > 0 && length % multiple == 0));
    std::vector<int64_t> lengths;
    CHECK(longest(found, cost) == best_of_all(units, slices, multiple, cost, lengths));
  }
}

TEST_CASE("attention alone is cut at square roots") {
  const std::vector<int64_t> lengths = equal_time_slices(1 << 20, 4, 1, {0, 1});
  int64_t end = 0;
  for (int i = 1; i <= 4; ++i) {
    end += lengths[i - 1];
    CHECK(std::abs(static_cast<double>(end) - std::sqrt(i / 4.0) * (1 << 20)) < 2);
  }
}

TEST_CASE("Seq1F1B's count of a 7B model at 64K tokens: later slices are shorter") {
  const TokenCost cost = token_cost(32, 4096, 32, 128, 11008, 4 * 4096 * int64_t{32000});
  CHECK(cost.linear == 32 * (8LL * 4096 * 4096 + 4LL * 4096 * 11008) + 4LL * 4096 * 32000);
  CHECK(cost.attention == 32 * 515 * 32);
  const std::vector<int64_t> lengths = equal_time_slices(65536, 4, 8, cost);
  CHECK(std::is_sorted(lengths.rbegin(), lengths.rend()));
  // All are equal within a unit of 8 tokens at the end, where tokens cost most.
  const auto shares = slice_shares(lengths, cost);
  for (const SliceShare& share : shares) CHECK(share.forward == Approx(0.25).epsilon(0.002));
}

// Seq1F1B of 8 ranks and 16 microbatches whose slices have equally many tokens, by the rules of the
// simulation; with equal times the bubble rate is (p-1) / (s m + p-1).
TEST_CASE("slices of equal tokens are badly unbalanced") {
  const auto to_three = [](double value) { return Approx(value).margin(0.0005).epsilon(0); };
  CHECK(rate(4, 0.1, false) == to_three(.158));
  CHECK(rate(4, 0.3, false) == Approx(.25646).margin(0.000005));
  CHECK(rate(4, 0.5, false) == to_three(.334));
  CHECK(rate(4, 0.5, true) == to_three(.099));
  CHECK(rate(8, 0.1, false) == to_three(.124));
  CHECK(rate(8, 0.3, false) == to_three(.240));
  CHECK(rate(8, 0.5, false) == to_three(.328));
  CHECK(rate(8, 0.5, true) == to_three(.052));
}

TEST_CASE("what cannot be cut is refused") {
  CHECK_THROWS_WITH(equal_time_slices(1000, 4, 16, {}), Catch::Contains("multiple of 16"));
  CHECK_THROWS_WITH(equal_time_slices(64, 5, 16, {}), Catch::Contains("5 slices"));
}

}  // namespace longspan
