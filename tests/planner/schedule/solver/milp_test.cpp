// Mixed integer programmes against answers known by other means, and the solver's limits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "planner/schedule/solver/milp.h"

namespace longspan {
namespace {

// The most value within a weight, by trying all subsets.
struct Knapsack {
  std::vector<double> values, weights;
  double room = 0;

  static Knapsack random(unsigned seed, int things) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> number(1, 40);
    Knapsack made;
    double all = 0;
    for (int i = 0; i < things; ++i) {
      made.values.push_back(number(random));
      made.weights.push_back(number(random));
      all += made.weights.back();
    }
    made.room = static_cast<double>(static_cast<int>(all / 2));
    return made;
  }

  double best() const {
    double most = 0;
    for (unsigned subset = 0; subset < 1U << values.size(); ++subset) {
      double value = 0, weight = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        if ((subset >> i & 1) == 0) continue;
        value += values[i];
        weight += weights[i];
      }
      if (weight <= room) most = std::max(most, value);
    }
    return most;
  }

  Milp milp() const {
    Milp made;
    std::vector<Term> weight;
    for (size_t i = 0; i < values.size(); ++i) {
      const int32_t column = made.add_whole(0, 1, -values[i]);
      // The coefficient in two terms, which must be added up.
      weight.push_back({column, weights[i] - 1});
      weight.push_back({column, 1});
    }
    made.at_most(room, weight);
    return made;
  }
};

}  // namespace

TEST_CASE("a knapsack's best filling, by the solver and by trying all") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    const Knapsack knapsack = Knapsack::random(seed, 12);
    const MilpSolution solution = solve(knapsack.milp(), {});
    REQUIRE(solution.stop == Stop::optimal);
    CHECK(solution.objective == Approx(-knapsack.best()));
    CHECK(solution.bound == Approx(solution.objective));
    double weight = 0;
    for (size_t i = 0; i < solution.values.size(); ++i) {
      weight += knapsack.weights[i] * solution.values[i];
    }
    CHECK(weight <= knapsack.room + 1e-6);
  }
}

TEST_CASE("numbers besides whole numbers, equalities, and bounds below zero") {
  // Least x + y where x + 2 y = 3, y whole and at most 1, x at least -5: x = 1, y = 1.
  Milp milp;
  const int32_t x = milp.add_number(-5, 5, 1), y = milp.add_whole(-9, 1, 1);
  milp.equal(3, {{x, 1}, {y, 2}});
  const MilpSolution solution = solve(milp, {});
  REQUIRE(solution.stop == Stop::optimal);
  CHECK(solution.values[x] == Approx(1));
  CHECK(solution.values[y] == Approx(1));
  CHECK(milp.whole_columns() == 1);
}

TEST_CASE("what cannot be is infeasible") {
  Milp milp;
  const int32_t x = milp.add_whole(0, 1), y = milp.add_whole(0, 1);
  milp.at_least(1.5, {{x, 1}, {y, 2}});
  milp.at_most(0.5, {{y, 1}});
  const MilpSolution solution = solve(milp, {});
  CHECK(solution.stop == Stop::infeasible);
  CHECK(solution.values.empty());
}

TEST_CASE("a limit of nodes ends the search with the start or better, and says so") {
  // No subset of the weights fills the room exactly: a parity argument that branching cannot see.
  Milp milp;
  std::vector<Term> sum;
  for (int i = 0; i < 31; ++i) sum.push_back({milp.add_binary(), 2});
  const int32_t rest = milp.add_number(0, 31, 1);
  sum.push_back({rest, 1});
  milp.equal(31, sum);
  std::vector<Term> start;
  for (int i = 0; i < 31; ++i) start.push_back({i, 0});
  const MilpSolution stopped = solve(milp, {.nodes = 0}, start);
  REQUIRE(!stopped.values.empty());
  CHECK(stopped.objective >= 1 - 1e-6);
  CHECK(stopped.bound <= stopped.objective + 1e-9);
  CHECK((stopped.stop == Stop::nodes || stopped.stop == Stop::optimal));
}

TEST_CASE("the same programme has the same answer, to the bit") {
  const Knapsack knapsack = Knapsack::random(7, 14);
  const MilpSolution once = solve(knapsack.milp(), {}), again = solve(knapsack.milp(), {});
  CHECK(once.values == again.values);
  CHECK(once.nodes == again.nodes);
}

}  // namespace longspan
