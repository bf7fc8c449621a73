// All published cases at once: their predictions, and the errors of these.
#pragma once

#include <functional>
#include <vector>

#include "validation/case.h"
#include "validation/predict.h"
#include "validation/report.h"

namespace longspan {

struct Validation {
  std::vector<PublishedCase> cases;
  /// One prediction for each case, in their order: with the case's own table, and without it. Both
  /// are empty for cases that their file leaves out.
  std::vector<CasePrediction> predictions, left_out;
  /// Each case as Longspan's plan of the same knobs; with a reason where no plan has these knobs.
  std::vector<CasePrediction> as_plans;
  ValidationReport report;
};

/// Predicts every case; `progress`, if any, is called before each with the share that is done.
/// Throws nothing for cases that parse_cases() accepted.
Validation validate_cases(
    std::vector<PublishedCase> cases,
    const std::function<void(const PublishedCase&, double share)>& progress = {});

}  // namespace longspan
