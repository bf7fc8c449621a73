// What Longspan predicts of a published case.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/reference/case.h"

namespace longspan {

/// What could be predicted, or why nothing was.
struct CasePrediction {
  std::optional<double> step_seconds;
  std::optional<int64_t> peak_bytes;        // of the fullest GPU's memory
  std::optional<bool> fits;                 // into the GPU and its share of the host
  std::optional<int64_t> longest_sequence;  // tokens; of cases that ask for it
  std::string reason;  // not covered because of: "pipeline stages"; empty: it is
  bool operator==(const CasePrediction&) const = default;
};

/// Predicts a case as the source describes it, from model, hardware and degrees alone: nothing of
/// what was measured is read, except whether it is the longest sequence that is asked for. What
/// cannot be expressed is not approximated but comes back with its reason. Never throws for a case
/// that parse_cases() accepted.
CasePrediction predict_case(const ReferenceCase& reference);

}  // namespace longspan
