// Published cases, all at once: what is predicted of each, and how right that is.
#pragma once

#include <functional>
#include <vector>

#include "planner/reference/case.h"
#include "planner/reference/predict.h"
#include "planner/reference/report.h"

namespace longspan {

struct Validation {
  std::vector<ReferenceCase> cases;
  /// One for each case, in their order: as it is, and as if its own table had not been there. Of
  /// cases that their file leaves out both are empty.
  std::vector<CasePrediction> predictions, left_out;
  ValidationReport report;
};

/// Predicts every case; `progress`, if any, is called before each with the share that is done.
/// Throws nothing for cases that parse_cases() accepted.
Validation validate_cases(
    std::vector<ReferenceCase> cases,
    const std::function<void(const ReferenceCase&, double share)>& progress = {});

}  // namespace longspan
