// Ranges: quantiles by hand, the file and back, and that those in the library are of today's
// tables.
#include "planner/reference/range.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "planner/reference/report.h"

namespace longspan {
namespace {

std::vector<double> steps(double first, double last, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(first + (last - first) * static_cast<double>(i) / (count - 1));
  }
  return values;
}

TEST_CASE("a range leaves a twentieth out at either end") {
  CHECK(range_of({}) == Range{1, 1});
  CHECK(range_of({{"a", {1.3}}}) == Range{1.3, 1.3});
  const Ratios even = {{"a", steps(0, 1, 1001)}};
  CHECK(range_of(even).low == Approx(0.05).margin(0.001));
  CHECK(range_of(even).high == Approx(0.95).margin(0.001));
}

TEST_CASE("every table counts alike, however many rows it has") {
  const Ratios ratios = {{"few", steps(1, 2, 10)}, {"many", steps(10, 11, 1000)}, {"none", {}}};
  const Range range = range_of(ratios);
  CHECK(range.low == Approx(1.05).margin(0.01));  // a tenth of the small table
  CHECK(range.high == Approx(10.9).margin(0.01));
  const CalibratedRange calibrated = calibrate(ratios);
  CHECK(calibrated.cases == 1010);
  CHECK(calibrated.tables == 2);
  CHECK(calibrated.of("few").low == Approx(10.05).margin(0.01));
  CHECK(calibrated.of("many").high == Approx(2).margin(0.06));
  CHECK(calibrated.of("new") == range);
}

TEST_CASE("ranges are written and read, and odd ones refused") {
  Ranges ranges;
  ranges.step = calibrate({{"a", {0.5, 1.25}}, {"b", {2, 4}}});
  ranges.memory = calibrate({{"a", {0.875}}});
  const std::string text = write_ranges(ranges);
  CHECK(parse_ranges(text, "x") == ranges);
  CHECK_THROWS_WITH(
      parse_ranges("step_time: {low: 2, high: 1, cases: 1, tables: 1, without: {}}", "ranges.yaml"),
      Catch::Contains("ranges.yaml:1") && Catch::Contains("high"));
  CHECK_THROWS_AS(parse_ranges(text + "more: {}\n", "x"), Error);
}

// Everything that is published, predicted as it is and as if its own table had not been there.
TEST_CASE("nine of ten published measurements are in the ranges of the library") {
  const std::vector<ReferenceCase> cases = read_cases(LONGSPAN_SOURCE "/tests/published");
  CasePredictor predictor;
  std::vector<CasePrediction> predictions, left_out;
  for (const ReferenceCase& c : cases) {
    predictions.push_back(c.left_out.empty() ? predictor.predict(c) : CasePrediction{});
    left_out.push_back(c.left_out.empty() && predictor.fitted_to(c) ? predictor.predict_left_out(c)
                                                                    : predictions.back());
  }
  const ValidationReport report = make_report(cases, predictions, left_out);

  // The library's ranges are what the tables say today: else write them anew.
  CHECK(write_ranges(published_ranges()) == write_ranges(ranges_of(cases, report)));
  for (const LeftOut& figure : {report.overall.step_left_out, report.overall.peak_left_out}) {
    const double share =
        static_cast<double>(figure.in_range) / static_cast<double>(figure.errors.count);
    CHECK(share >= 0.85);
    CHECK(share <= 0.95);
  }
}

}  // namespace
}  // namespace longspan
