// The arithmetic of the report, by hand.
#include "validation/report.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "validation/measure.h"

namespace longspan {
namespace {

PublishedCase timed(const std::string& table, double step_seconds) {
  PublishedCase c;
  c.table = table;
  c.model = "tiny-llama";
  c.gpus = c.global_batch = 1;
  c.sequence = 1000;
  c.measured.step_seconds = step_seconds;
  return c;
}

CasePrediction predicted(double step_seconds) {
  CasePrediction p;
  p.step_seconds = step_seconds;
  return p;
}

// Nothing is fitted to these tables.
ValidationReport report_of(const std::vector<PublishedCase>& cases,
                           const std::vector<CasePrediction>& predictions) {
  return make_report(cases, predictions, predictions);
}

TEST_CASE("errors are summed up with and without their signs") {
  CHECK(summarize({}) == ErrorSummary{});
  const ErrorSummary even = summarize({0.1, -0.4, 0.2, -0.1});
  CHECK(even.count == 4);
  CHECK(even.median == Approx(0.15));
  CHECK(even.mean == Approx(0.2));
  CHECK(even.worst == Approx(-0.4));
  CHECK(even.bias == Approx(-0.05));
  CHECK(summarize({0.3, -0.1, 0.2}).median == Approx(0.2));
}

TEST_CASE("each table has its errors, and all of them together") {
  const std::vector<PublishedCase> cases = {timed("a", 2), timed("b", 10), timed("a", 4)};
  const ValidationReport report = report_of(cases, {predicted(3), predicted(9), predicted(3)});
  REQUIRE(report.tables.size() == 2);
  CHECK(report.tables[0].table == "a");
  CHECK(*report.cases[0].step == Approx(0.5));
  CHECK(*report.cases[1].step == Approx(-0.1));
  CHECK(*report.cases[2].step == Approx(-0.25));
  CHECK(report.tables[0].step.count == 2);
  CHECK(report.tables[0].step.bias == Approx(0.125));
  CHECK(report.tables[1].step.median == Approx(0.1));
  CHECK(report.overall.step.count == 3);
  CHECK(report.overall.step.worst == Approx(0.5));
  CHECK(report.overall.cases == 3);
  CHECK(report.overall.predicted == 3);
}

TEST_CASE("the error of an MFU is its difference") {
  PublishedCase c = timed("a", 4);
  c.convention.peak_flops = 1e12;
  c.measured.mfu = restated(c, 4).mfu;
  const ValidationReport report = report_of({c}, {predicted(2)});
  CHECK(*report.cases[0].mfu == Approx(*c.measured.mfu));
  CHECK(report.tables[0].mfu.count == 1);
  CHECK(report.tables[0].mfu.bias == Approx(*c.measured.mfu));
  CHECK(report_of({timed("a", 4)}, {predicted(2)}).overall.mfu.count == 0);
}

TEST_CASE("memory and longest sequences have errors of their own") {
  PublishedCase c = timed("a", 1);
  c.measured.peak_reserved_bytes = 1000;
  c.measured.peak_allocated_bytes = 800;
  CasePrediction p;
  p.peak_bytes = 600;
  p.longest_sequence = 1500;
  CHECK(!report_of({c}, {p}).cases[0].longest);  // not said to be the longest
  c.measured.longest = true;
  const ValidationReport report = report_of({c}, {p});
  CHECK(!report.cases[0].step);
  CHECK(*report.cases[0].peak == Approx(-0.25));
  CHECK(*report.cases[0].longest == Approx(0.5));
  CHECK(report.overall.peak.count == 1);
  CHECK(report.overall.longest.worst == Approx(0.5));
}

// 2000 trained, and the next length tried did not: the true longest is between them.
TEST_CASE("the error of a longest sequence is its distance from what it may be") {
  PublishedCase c = timed("a", 1);
  c.sequence = 2000;
  c.measured.longest = true;
  CasePrediction p;
  const auto error = [&](int64_t longest) {
    p.longest_sequence = longest;
    return *report_of({c}, {p}).cases[0].longest;
  };
  CHECK(error(2500) == Approx(0.25));
  c.measured.longest_below = 4001;
  CHECK(error(1500) == Approx(-0.25));
  CHECK(error(2000) == 0);
  CHECK(error(4000) == 0);
  CHECK(error(5000) == Approx(0.25));
}

TEST_CASE("a range of lengths holds a longest sequence that it may be") {
  PublishedCase c = timed("a", 1);
  c.sequence = 2000;
  c.measured.longest = true;
  CasePrediction p;
  p.longest_sequence = 3000;
  const auto in_range = [&](std::optional<LengthRange> range) {
    p.longest_range = range;
    return report_of({c}, {p}).overall.longest_left_out.in_range == 1;
  };
  CHECK(!in_range(std::nullopt));
  CHECK(in_range(LengthRange{1000, 2000}));
  CHECK(!in_range(LengthRange{1000, 1999}));
  CHECK(!in_range(LengthRange{2001, 9000}));
  c.measured.longest_below = 4000;
  CHECK(in_range(LengthRange{2001, 9000}));
  CHECK(in_range(LengthRange{3999, 9000}));
  CHECK(!in_range(LengthRange{4000, 9000}));
}

TEST_CASE("what was measured is in the range of a prediction without its table, or not") {
  PredictionIntervals ranges;
  ranges.step.all = {0.9, 1.2};
  ranges.step.without["b"] = {0.5, 2};
  const std::vector<PublishedCase> cases = {timed("a", 1), timed("a", 1), timed("a", 1),
                                            timed("b", 1)};
  const std::vector<CasePrediction> fitted(4, predicted(1));
  const ValidationReport report = make_report(
      cases, fitted, {predicted(0.8), predicted(0.9), predicted(1.2), predicted(0.8)}, {}, ranges);
  CHECK(report.overall.step.mean == 0);
  CHECK(report.tables[0].step_left_out.errors.mean == Approx(0.5 / 3));
  CHECK(report.tables[0].step_left_out.in_range == 1);  // 1 / 0.9; not 1.25, not 1 / 1.2
  CHECK(report.tables[1].step_left_out.in_range == 1);
  CHECK(report.overall.step_left_out.in_range == 2);
  const PredictionIntervals learned = intervals_of(cases, report);
  CHECK(learned.step.cases == 4);
  CHECK(learned.step.tables == 2);
  CHECK(learned.step.without.at("a") == PredictionInterval{1.25, 1.25});
}

TEST_CASE("a speed-up is predicted by two predictions, and off by its distance from a range") {
  PublishedCase base = timed("a", 1), fast = timed("a", 1);
  base.name = "base";
  fast.name = "fast";
  base.measured = {};
  fast.measured = {};
  fast.global_batch = 2;  // twice the tokens
  const auto error = [&](double low, double high) {
    fast.measured.speedup = {"base", low, high};
    return report_of({fast, base}, {predicted(4), predicted(3)});  // 1.5 times as fast
  };
  CHECK(*error(1.2, 1.2).cases[0].predicted_speedup == Approx(1.5));
  CHECK(*error(1.2, 1.2).cases[0].speedup == Approx(0.25));
  CHECK(*error(2, 3).cases[0].speedup == Approx(-0.25));
  CHECK(*error(1, 1.25).cases[0].speedup == Approx(0.2));
  CHECK(error(1, 2).overall.speedup.count == 1);
  CHECK(error(1, 2).overall.speedup.worst == 0);
  CHECK(!error(1, 2).cases[1].speedup);
}

TEST_CASE("cases of which something is assumed are summed up apart, and make no ranges") {
  std::vector<PublishedCase> cases = {timed("a", 1), timed("a", 1), timed("b", 1), timed("b", 1)};
  cases[1].assumed = cases[2].assumed = cases[3].assumed = "the batch";
  cases[3].left_out = "odd";
  const ValidationReport report =
      report_of(cases, {predicted(1.1), predicted(3), predicted(2), predicted(1)});
  REQUIRE(report.tables.size() == 2);
  CHECK(report.overall.cases == 2);
  CHECK(report.overall.step.count == 1);
  CHECK(report.overall.step.worst == Approx(0.1));
  CHECK(report.overall.left_out.at("odd") == 1);  // reported once, with all others
  CHECK(report.tables[1].step.count == 0);
  REQUIRE(report.assumed_tables.size() == 2);
  CHECK(report.assumed_tables[0].step.worst == Approx(2));
  CHECK(report.assumed_overall.cases == 2);
  CHECK(report.assumed_overall.step.mean == Approx(1.5));
  CHECK(report.assumed_overall.assumed.at("the batch") == 2);
  CHECK(*report.cases[1].step == Approx(2));
  CHECK(intervals_of(cases, report).step.cases == 1);
}

TEST_CASE("what trained and what was to fit are counted against each other") {
  PublishedCase trained = timed("a", 1), failed = timed("a", 1);
  failed.measured = {};
  failed.measured.out_of_memory = true;
  CasePrediction fits = predicted(1), refused = predicted(1);
  fits.fits = true;
  refused.fits = false;
  const ValidationReport report =
      report_of({trained, trained, trained, trained, failed, failed, failed, trained},
                {fits, fits, fits, refused, fits, fits, refused, predicted(1)});
  CHECK(report.overall.fit == FitCounts{3, 1, 2, 1});
  CHECK(report.overall.fit.total() == 7);
  CHECK(report.overall.step.count == 5);  // a failed run has no time
}

TEST_CASE("cases left out and not covered are counted by their reasons") {
  PublishedCase left_out = timed("a", 1);
  left_out.left_out = "odd";
  CasePrediction none;
  none.reason = "pipeline stages";
  // The file's statement decides: the prediction of a case that is left out is not read.
  const ValidationReport report = report_of({left_out, left_out, timed("a", 1), timed("b", 1)},
                                            {predicted(2), none, none, none});
  CHECK(report.tables[0].left_out == std::map<std::string, int64_t>{{"odd", 2}});
  CHECK(report.tables[0].not_covered == std::map<std::string, int64_t>{{"pipeline stages", 1}});
  CHECK(report.overall.not_covered == std::map<std::string, int64_t>{{"pipeline stages", 2}});
  CHECK(report.overall.step.count == 0);
  CHECK(report.overall.predicted == 0);
  CHECK(!report.cases[0].step);
}

TEST_CASE("a peer is compared over the cases that both predict") {
  PublishedCase one = timed("a", 10), two = timed("a", 10), three = timed("a", 10);
  one.peer = CasePeer{"Other", 9.0, std::nullopt};
  two.peer = CasePeer{"Other", 12.0, std::nullopt};
  three.measured.peak_allocated_bytes = 100;
  three.peer = CasePeer{"Other", std::nullopt, 110};
  CasePrediction none;
  none.reason = "pipeline stages";
  CasePrediction memory;
  memory.peak_bytes = 95;
  const ValidationReport report = report_of({one, two, three}, {predicted(10.5), none, memory});
  CHECK(*report.cases[1].peer_step == Approx(0.2));  // shown, but not in the comparison
  REQUIRE(report.overall.peers.size() == 1);
  const PeerErrors& peer = report.overall.peers[0];
  CHECK(peer.name == "Other");
  CHECK(peer.ours_step.count == 1);
  CHECK(peer.ours_step.bias == Approx(0.05));
  CHECK(peer.peer_step.bias == Approx(-0.1));
  CHECK(peer.ours_peak.bias == Approx(-0.05));
  CHECK(peer.peer_peak.bias == Approx(0.1));
}

TEST_CASE("a run of other software is compared as a plan, too") {
  const std::vector<PublishedCase> cases = {timed("a", 10), timed("a", 10), timed("a", 10)};
  const std::vector<CasePrediction> stack = {predicted(11), predicted(9), predicted(10)};
  CasePrediction none;
  none.reason = "pipeline stages";
  const ValidationReport report =
      make_report(cases, stack, stack, {predicted(8), none, predicted(5)});
  CHECK(*report.cases[0].plan_step == Approx(-0.2));
  CHECK(!report.cases[1].plan_step);
  REQUIRE(report.overall.peers.size() == 1);
  const PeerErrors& plan = report.overall.peers[0];
  CHECK(plan.name == "plan");
  CHECK(plan.ours_step.count == 2);
  CHECK(plan.ours_step.bias == Approx(0.05));
  CHECK(plan.peer_step.bias == Approx(-0.35));
  // Measured over predicted, for the range of plans.
  const PredictionIntervals ranges = intervals_of(cases, report);
  CHECK(ranges.plan_step.cases == 2);
  CHECK(ranges.plan_step.all.low >= 1.25);
  CHECK(ranges.plan_step.all.high <= 2);
}

TEST_CASE("a case that is predicted as a plan has no other plan to compare with") {
  CasePrediction plan = predicted(9);
  plan.as_plan = true;
  const ValidationReport report = make_report({timed("a", 10)}, {plan}, {plan}, {plan});
  CHECK(report.overall.peers.empty());
  CHECK(*report.cases[0].plan_step == Approx(-0.1));
}

// A row of SimuMax's published B200 table, which states its own errors: -9.27 % and -0.39 %.
TEST_CASE("a peer's errors are those it publishes") {
  PublishedCase c = timed("simumax", 1.758);
  c.measured.peak_allocated_bytes = static_cast<int64_t>(68.43 * (1 << 30));
  c.peer = CasePeer{"SimuMax", 1.595, static_cast<int64_t>(68.16 * (1 << 30))};
  const ValidationReport report = report_of({c}, {CasePrediction{}});
  CHECK(std::abs(*report.cases[0].peer_step + 0.0927) < 0.00005);
  CHECK(std::abs(*report.cases[0].peer_peak + 0.0039) < 0.00005);
}

}  // namespace
}  // namespace longspan
