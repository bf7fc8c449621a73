// The accuracy of the predictions of published cases.
//
// Errors are signed shares, predicted / measured - 1: below zero the prediction is too fast, too
// small or too short. The longest sequence that trained only bounds the true one, which is below
// the next length tried: the error is taken to the nearest length in between, and a case is in
// range if its range has such a length. The error of a speed-up printed as a range is its distance
// from the range. Every case is in the report: compared, left out by its file, or not covered by
// the predictor, each with its reason. Cases with an assumption are summed up apart, so that errors
// of guessed runs do not mix with errors of described runs. Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/prediction_interval.h"
#include "validation/case.h"
#include "validation/predict.h"

namespace longspan {

struct ErrorSummary {
  int64_t count = 0;
  double median = 0;  // of |error|; the mean of the middle two if the number is even
  double mean = 0;    // of |error|
  double worst = 0;   // the signed error of the largest magnitude
  double bias = 0;    // mean of the signed errors
  bool operator==(const ErrorSummary&) const = default;
};
ErrorSummary summarize(const std::vector<double>& errors);

/// The errors of one case; a figure is set where prediction and measurement both have it.
struct CaseErrors {
  std::optional<double> measured_step_seconds;
  std::optional<int64_t> measured_peak_bytes;
  std::optional<double> step, peak, longest;
  /// The same errors, predicted with nothing fitted to the case's table.
  std::optional<double> step_left_out, peak_left_out, longest_left_out;
  /// Whether the range of the longest sequence, predicted without the case's table, has a length
  /// that the source allows.
  std::optional<bool> longest_in_range;
  std::optional<double> mfu;  // predicted - measured: 0.01 is a percentage point
  std::optional<double> predicted_speedup, speedup;  // over another case; its error
  std::optional<double> peer_step, peer_peak;
  /// The errors of the case as Longspan's plan of the same knobs.
  std::optional<double> plan_step, plan_peak;
};

/// Whether runs train, as measured and as predicted.
struct FitCounts {
  int64_t trained_fits = 0, trained_refused = 0;  // measured: it trained
  int64_t failed_fits = 0, failed_refused = 0;    // measured: out of memory
  int64_t at_risk = 0;                            // of all of these
  int64_t total() const { return trained_fits + trained_refused + failed_fits + failed_refused; }
  bool operator==(const FitCounts&) const = default;
};

/// Longspan's errors and a peer's, over the cases that both predict.
struct PeerErrors {
  std::string name;
  ErrorSummary ours_step, peer_step, ours_peak, peer_peak;
};

/// Errors of predictions with nothing fitted to the table, and how many measurements lie in the
/// range that the other tables give such a prediction.
struct HeldOut {
  ErrorSummary errors;
  int64_t in_range = 0;
};

struct TableReport {
  std::string table, file, source;
  int64_t cases = 0;
  int64_t predicted = 0;  // with a prediction of anything
  ErrorSummary step, peak, longest, mfu, speedup;
  HeldOut step_left_out, peak_left_out, longest_left_out;
  FitCounts fit;
  std::vector<PeerErrors> peers;               // by name
  std::map<std::string, int64_t> left_out;     // by the file: reason, cases
  std::map<std::string, int64_t> assumed;      // by the file: what, cases
  std::map<std::string, int64_t> not_covered;  // by the predictor: reason, cases
};

struct ValidationReport {
  std::vector<CaseErrors> cases;    // as given
  std::vector<TableReport> tables;  // in the order of their first case
  TableReport overall;              // of all tables; table, file and source are empty
  /// The same for the cases with an assumption, which are not among those above; only tables that
  /// have such cases.
  std::vector<TableReport> assumed_tables;
  TableReport assumed_overall;
};

/// Where a case is predicted by a stack, its prediction as a plan is compared as that of a peer
/// called "plan". REQUIRES: `predictions` and `left_out` have one entry for each case, `as_plans`,
/// too, or none. Entries of cases that are left out are not read.
ValidationReport make_report(const std::vector<PublishedCase>& cases,
                             const std::vector<CasePrediction>& predictions,
                             const std::vector<CasePrediction>& left_out,
                             const std::vector<CasePrediction>& as_plans = {},
                             const PredictionIntervals& ranges = published_intervals());

/// The family of the case's stack (Stack::family); empty if it is predicted as a plan.
std::string family_of(const PublishedCase& reference);

/// The ranges that a report of published tables gives; cases with assumptions have no part in them.
PredictionIntervals intervals_of(const std::vector<PublishedCase>& cases,
                                 const ValidationReport& report);

}  // namespace longspan
