// Ranges: quantiles by hand, writing and reading the file, and the library's ranges against the
// current tables.
#include "frameworks/prediction_interval.h"

#include <catch2/catch.hpp>
#include <iterator>
#include <set>

#include "base/error.h"
#include "frameworks/model/stack.h"
#include "validation/validation.h"

namespace longspan {
namespace {

std::vector<double> steps(double first, double last, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(first + (last - first) * static_cast<double>(i) / (count - 1));
  }
  return values;
}

std::vector<PublishedCase> all_cases() {
  std::vector<PublishedCase> cases = read_cases(LONGSPAN_SOURCE "/tests/published");
  std::vector<PublishedCase> of_users = read_cases(LONGSPAN_SOURCE "/tests/users");
  std::move(of_users.begin(), of_users.end(), std::back_inserter(cases));
  return cases;
}

TEST_CASE("a range leaves a twentieth out at either end") {
  CHECK(interval_of({}) == PredictionInterval{1, 1});
  CHECK(interval_of({{"a", {1.3}}}) == PredictionInterval{1.3, 1.3});
  const Ratios even = {{"a", steps(0, 1, 1001)}};
  CHECK(interval_of(even).low == Approx(0.05).margin(0.001));
  CHECK(interval_of(even).high == Approx(0.95).margin(0.001));
}

TEST_CASE("every table counts alike, however many rows it has") {
  const Ratios ratios = {{"few", steps(1, 2, 10)}, {"many", steps(10, 11, 1000)}, {"none", {}}};
  const PredictionInterval interval = interval_of(ratios);
  CHECK(interval.low == Approx(1.05).margin(0.01));  // a tenth of the small table
  CHECK(interval.high == Approx(10.9).margin(0.01));
}

TEST_CASE("each table has the range of the others") {
  const Ratios ratios = {{"a", steps(1, 2, 101)}, {"b", steps(1.1, 1.9, 11)}, {"none", {}}};
  const CalibratedInterval calibrated = calibrate(ratios);
  CHECK(calibrated.cases == 112);
  CHECK(calibrated.tables == 2);
  CHECK(calibrated.of("b") == interval_of({{"a", ratios.at("a")}}, 0));
  CHECK(calibrated.of("a") == interval_of({{"b", ratios.at("b")}}, 0));
  CHECK(calibrated.of("new") == calibrated.all);
}

// With 5 % outside at either end, the other tables' range would hold all of b, but only 65 % of a.
TEST_CASE("a range is wider where it would hold too little of what it is not made of") {
  const Ratios alike = {{"a", steps(1, 2, 1001)}, {"b", steps(1, 2, 1001)}};
  CHECK(calibrate(alike).all == interval_of(alike, 0.05));
  const Ratios apart = {{"a", steps(1, 2, 1001)}, {"b", steps(1.14, 1.86, 1001)}};
  const CalibratedInterval wider = calibrate(apart);
  const PredictionInterval& of_a = wider.of("a");
  CHECK(of_a.low < interval_of({{"b", apart.at("b")}}, 0.05).low);
  CHECK(of_a.low > 1.14);
  CHECK(wider.all.high < 2);
}

TEST_CASE("ranges are written and read, and odd ones refused") {
  PredictionIntervals ranges;
  ranges.step = calibrate({{"a", {0.5, 1.25}}, {"b", {2, 4}}});
  ranges.memory = calibrate({{"a", {0.875}}});
  ranges.families["fsdp"] = calibrate({{"b", {1, 1.5}}});
  const std::string text = write_intervals(ranges);
  CHECK(parse_intervals(text, "x") == ranges);
  CHECK_THROWS_WITH(
      parse_intervals("step_time: {low: 2, high: 1, cases: 1, tables: 1, without: {}}",
                      "ranges.yaml"),
      Catch::Contains("ranges.yaml:1") && Catch::Contains("high"));
  CHECK_THROWS_AS(parse_intervals(text + "more: {}\n", "x"), Error);
}

TEST_CASE("a family of stacks has an interval of its own where there are rows enough") {
  const Ratios few = {{"a", steps(1, 2, 100)}, {"b", steps(1, 2, 100)}, {"c", {1}}};
  CHECK(!enough(few));
  Ratios many = few;
  many["d"] = {1.5};
  CHECK(enough(many));
  CHECK(!enough({{"a", {1}}, {"b", {1}}, {"c", {1}}, {"d", {1}}}));

  const PredictionIntervals& published = published_intervals();
  CHECK(&published.step_under("no such family") == &published.step);
  for (const std::string& name : stack_names()) {
    const std::string family = load_stack(name).family;
    CAPTURE(name, family);
    REQUIRE(published.families.contains(family));
    CHECK(&published.step_under(family) == &published.families.at(family));
  }
}

// A misspelt table would leave nothing out without any message.
TEST_CASE("terms are fitted to tables that there are, and never stand in for themselves") {
  std::set<std::string> tables;
  for (const PublishedCase& c : all_cases()) tables.insert(c.table);
  int64_t crossed = 0;
  for (const std::string& name : stack_names()) {
    const Stack stack = load_stack(name);
    for (const std::string& key : term_keys()) {
      for (const auto& [table, without] : term_of(stack, key).without) {
        CAPTURE(name, key, table);
        CHECK(tables.contains(table));
        for (const std::string& other : without.fitted_to) {
          CHECK(tables.contains(other));
          CHECK(other != table);
          ++crossed;
        }
      }
    }
  }
  CHECK(crossed > 10);
}

// Every published case, predicted as it is and as if its own table were unknown.
TEST_CASE("90 % of published measurements are in the ranges of the library") {
  const std::vector<PublishedCase> cases = all_cases();
  const ValidationReport report = validate_cases(cases).report;

  // The library's ranges must follow from the current tables; otherwise write them again.
  CHECK(write_intervals(published_intervals()) == write_intervals(intervals_of(cases, report)));
  for (const HeldOut& figure : {report.overall.step_left_out, report.overall.peak_left_out,
                                report.overall.longest_left_out}) {
    const double share =
        static_cast<double>(figure.in_range) / static_cast<double>(figure.errors.count);
    CHECK(share >= 0.85);
    CHECK(share <= 0.95);
  }
}

}  // namespace
}  // namespace longspan
