// The simplex against brute force: all vertices of small random problems.
#include "planner/search/relaxation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>

namespace longspan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kExact = 1e-6;

// A random choice between values of a few groups, with demands on a few of the rows.
struct Problem {
  DemandRows base{};
  std::vector<std::vector<DemandRows>> values;
  std::vector<uint64_t> allowed;
  RelaxationGoal goal;
  std::vector<int> rows;  // those that are not zero

  Relaxation relaxation() const { return Relaxation(base, values); }
};

Problem random_problem(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(0, 1);
  Problem p;
  p.goal.part.fill(-1);
  p.goal.weight.fill(1);
  p.goal.at_most.fill(kInfinity);
  for (const int row : {0, 1, kBoundRows, kBoundRows + 1, kTimeRows, kTimeRows + 1, kRows - 1}) {
    p.rows.push_back(row);
    p.goal.part[row] = static_cast<int>(random() % 4) - 1;
    if (random() % 2 == 0) p.goal.weight[row] = 0.5 + unit(random);
  }
  const size_t groups = 1 + random() % 3;
  size_t free = 4;  // values besides the first, of all groups
  for (size_t g = 0; g < groups; ++g) {
    std::vector<DemandRows>& values = p.values.emplace_back(1);
    const size_t more = std::min(free, random() % 3);
    free -= more;
    for (size_t v = 0; v < more; ++v) {
      DemandRows& added = values.emplace_back();
      for (const int row : p.rows) added[row] = 2 * unit(random) - 1;
    }
    p.allowed.push_back(1 + random() % ((uint64_t{1} << values.size()) - 1));
  }
  for (const int row : p.rows) {
    p.base[row] = static_cast<double>(groups) + 2 * unit(random);  // no sum is negative
    if (random() % 3 == 0) p.goal.at_most[row] = p.base[row] * (0.7 + 0.6 * unit(random));
  }
  return p;
}

using Shares = std::vector<std::vector<double>>;

double at(const Problem& p, const Shares& shares, int row) {
  double sum = p.base[row];
  for (size_t g = 0; g < p.values.size(); ++g) {
    for (size_t v = 0; v < p.values[g].size(); ++v) sum += shares[g][v] * p.values[g][v][row];
  }
  return sum;
}

double objective_at(const Problem& p, const Shares& shares) {
  double parts[kPhases] = {};
  for (const int row : p.rows) {
    const int part = p.goal.part[row];
    if (part >= 0) parts[part] = std::max(parts[part], p.goal.weight[row] * at(p, shares, row));
  }
  return std::accumulate(std::begin(parts), std::end(parts), 0.0);
}

double overflow_at(const Problem& p, const Shares& shares) {
  double worst = 0;
  for (const int row : p.rows) {
    worst = std::max(worst, at(p, shares, row) / p.goal.at_most[row] - 1);
  }
  return worst;
}

// A plane in the space of shares: the coefficients, and their required sum.
struct Plane {
  std::vector<double> factors;
  double right = 0;
};

std::vector<double> solved(std::vector<Plane> planes) {
  const size_t n = planes.size();
  for (size_t i = 0; i < n; ++i) {
    size_t best = i;
    for (size_t r = i; r < n; ++r) {
      if (std::abs(planes[r].factors[i]) > std::abs(planes[best].factors[i])) best = r;
    }
    if (std::abs(planes[best].factors[i]) < 1e-10) return {};
    std::swap(planes[i], planes[best]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = planes[r].factors[i] / planes[i].factors[i];
      for (size_t c = 0; c < n; ++c) planes[r].factors[c] -= factor * planes[i].factors[c];
      planes[r].right -= factor * planes[i].right;
    }
  }
  std::vector<double> point;
  for (size_t i = 0; i < n; ++i) point.push_back(planes[i].right / planes[i].factors[i]);
  return point;
}

// Every mixture at which a linear program of the problem may have its optimum: points where as many
// of these conditions as there are variables hold: a share is zero, a row is at its bound, two rows
// of a part are equal, two rows exceed their bounds by the same amount.
void at_vertices(const Problem& p, const std::function<void(const Shares&)>& tell) {
  std::vector<std::pair<size_t, size_t>> variables;
  for (size_t g = 0; g < p.values.size(); ++g) {
    for (size_t v = 0; v < p.values[g].size(); ++v) {
      if (p.allowed[g] >> v & 1) variables.push_back({g, v});
    }
  }
  const size_t n = variables.size(), groups = p.values.size();
  std::vector<Plane> always, planes;
  for (size_t g = 0; g < groups; ++g) {
    Plane& plane = always.emplace_back();
    for (const auto& [group, value] : variables) plane.factors.push_back(group == g ? 1 : 0);
    plane.right = 1;
  }
  for (size_t i = 0; i < n; ++i) {
    Plane& plane = planes.emplace_back();
    plane.factors.assign(n, 0);
    plane.factors[i] = 1;
  }
  const auto equal = [&](int a, double scale_a, int b, double scale_b, double right) {
    Plane& plane = planes.emplace_back();
    for (const auto& [g, v] : variables) {
      plane.factors.push_back(scale_a * p.values[g][v][a] - scale_b * p.values[g][v][b]);
    }
    plane.right = right - scale_a * p.base[a] + scale_b * p.base[b];
  };
  for (size_t i = 0; i < p.rows.size(); ++i) {
    const int a = p.rows[i];
    const bool bounded = p.goal.at_most[a] < kInfinity;
    if (bounded) equal(a, 1, a, 0, p.goal.at_most[a]);
    for (size_t j = i + 1; j < p.rows.size(); ++j) {
      const int b = p.rows[j];
      if (p.goal.part[a] >= 0 && p.goal.part[a] == p.goal.part[b])
        equal(a, p.goal.weight[a], b, p.goal.weight[b], 0);
      if (bounded && p.goal.at_most[b] < kInfinity) {
        equal(a, 1 / p.goal.at_most[a], b, 1 / p.goal.at_most[b], 0);
      }
    }
  }
  std::vector<Plane> chosen = always;
  const std::function<void(size_t)> choose = [&](size_t from) {
    if (chosen.size() < n) {
      for (size_t i = from; i < planes.size(); ++i) {
        chosen.push_back(planes[i]);
        choose(i + 1);
        chosen.pop_back();
      }
      return;
    }
    const std::vector<double> point = solved(chosen);
    if (point.empty()) return;
    Shares shares;
    for (const auto& group : p.values) shares.emplace_back(group.size(), 0.0);
    for (size_t i = 0; i < n; ++i) {
      if (point[i] < -1e-9) return;
      shares[variables[i].first][variables[i].second] = point[i];
    }
    tell(shares);
  };
  choose(0);
}

}  // namespace

TEST_CASE("the best mixture is the best of all vertices, and overflow means that none fits") {
  int fitting = 0, refused = 0, mixed = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    const Problem p = random_problem(seed);
    double best = kInfinity, least_overflow = kInfinity;
    at_vertices(p, [&](const Shares& shares) {
      const double overflow = overflow_at(p, shares);
      least_overflow = std::min(least_overflow, overflow);
      if (overflow <= 1e-9) best = std::min(best, objective_at(p, shares));
    });
    const Mixture found = p.relaxation().solve(p.goal, p.allowed);
    REQUIRE(found.optimal);
    // The mixture is valid, uses allowed values only, and its reported sums are true.
    for (size_t g = 0; g < p.values.size(); ++g) {
      double sum = 0;
      for (size_t v = 0; v < p.values[g].size(); ++v) {
        const double share = found.shares[g][v];
        CHECK(share >= 0);
        CHECK((share == 0 || (p.allowed[g] >> v & 1) != 0));
        sum += share;
        mixed += share > 0.01 && share < 0.99;
      }
      CHECK(sum == Approx(1).margin(kExact));
    }
    CHECK(objective_at(p, found.shares) == Approx(found.objective).epsilon(kExact));
    CHECK(overflow_at(p, found.shares) == Approx(found.overflow).margin(kExact));
    if (least_overflow > 1e-9) {
      ++refused;
      CHECK(found.overflow == Approx(least_overflow).margin(kExact));
    } else {
      ++fitting;
      CHECK(found.overflow == 0);
      CHECK(found.objective == Approx(best).epsilon(kExact));
    }
  }
  // Enough of everything.
  CHECK(fitting > 100);
  CHECK(refused > 50);
  CHECK(mixed > 100);
}

TEST_CASE("no choice that fits is better than the relaxation's objective") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    const Problem p = random_problem(seed);
    const Mixture all = p.relaxation().solve(p.goal);
    const Mixture some = p.relaxation().solve(p.goal, p.allowed);
    if (all.overflow > 0) CHECK(some.overflow > 0);
    if (some.overflow == 0) CHECK(all.objective <= some.objective * (1 + kExact));
    std::vector<size_t> choice(p.values.size(), 0);
    for (bool more = true; more;) {
      Shares shares;
      bool admitted = true;
      for (size_t g = 0; g < choice.size(); ++g) {
        shares.emplace_back(p.values[g].size(), 0.0)[choice[g]] = 1;
        admitted &= (p.allowed[g] >> choice[g] & 1) != 0;
      }
      if (overflow_at(p, shares) == 0) {
        const double objective = objective_at(p, shares) * (1 + kExact);
        CHECK(all.overflow == 0);
        CHECK(all.objective <= objective);
        if (admitted) CHECK(some.overflow == 0);
        if (admitted) CHECK(some.objective <= objective);
      }
      more = false;
      for (size_t g = 0; g < choice.size() && !more; ++g) {
        choice[g] = (choice[g] + 1) % p.values[g].size();
        more = choice[g] != 0;
      }
    }
  }
}

TEST_CASE("rows of a demand are its seconds, its phases and its shares of the limits") {
  Demand d;
  const int compute = static_cast<int>(Stream::compute), comm = static_cast<int>(Stream::comm);
  d.forward[compute] = 3;
  d.backward[compute] = 5;
  d.update[compute] = 1;
  d.forward[comm] = 7;
  d.once[comm] = 2;
  d.update[comm] = 4;
  d.waited_forward = 0.5;
  d.bytes[2][1] = 50;
  const TierBytes limits = {100, 200, 0};
  const DemandRows rows = rows_of(d, 0.5, limits);
  const double busiest = *std::max_element(rows.begin(), rows.begin() + kBoundRows);
  CHECK(busiest == Approx(0.5 * d.step_seconds()));
  CHECK(rows[comm] == Approx(0.5 * 13));
  CHECK(rows[kStreamCount + comm] == Approx(0.5 * (8 + 4)));
  // Forward: the exchange is longest, and part of the compute meanwhile is not hidden.
  const auto longest_of = [](const DemandRows& of, int phase) {
    const auto first = of.begin() + kBoundRows + phase * kStreamCount;
    return *std::max_element(first, first + kStreamCount);
  };
  const double forward = longest_of(rows, 0) + longest_of(rows, 1);
  CHECK(forward > 0.5 * 7);
  CHECK(forward < 0.5 * (7 + 3.5));
  // In the first half alone it takes the whole time, and nothing is left for the second.
  const DemandRows first = in_first_half(rows);
  CHECK(longest_of(first, 0) == Approx(forward));
  CHECK(longest_of(first, 1) == 0);
  CHECK(longest_of(first, 2) == Approx(longest_of(rows, 2) + longest_of(rows, 3)));
  CHECK(longest_of(first, 4) == longest_of(rows, 4));
  CHECK(rows[kTimeRows + 2 * kTierCount + 1] == Approx(0.25));
  CHECK(tier_of_row(kTimeRows + 2 * kTierCount + 1) == 1);
}

}  // namespace longspan
