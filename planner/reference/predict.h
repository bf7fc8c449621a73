// What Longspan predicts of a published case.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "hwprofiles/hardware_profile.h"
#include "planner/evaluate/fit.h"
#include "planner/reference/case.h"
#include "planner/reference/stack.h"

namespace longspan {

/// Tokens.
struct LengthRange {
  int64_t low = 0, high = 0;
  bool operator==(const LengthRange&) const = default;
};

/// What could be predicted, or why nothing was.
struct CasePrediction {
  std::optional<double> step_seconds;
  std::optional<int64_t> peak_bytes;  // of the fullest GPU's memory
  std::optional<bool> fits;           // into the GPU and its share of the host
  /// At risk: some of the memories that the range allows fit, and some do not
  /// (prediction_interval.h).
  std::optional<Fit> verdict;
  std::optional<int64_t> longest_sequence;  // tokens; of cases that ask for it
  /// The longest at the ends of the memory that the range allows.
  std::optional<LengthRange> longest_range;
  std::string reason;  // not covered because of: "pipeline stages"; empty: it is
  bool operator==(const CasePrediction&) const = default;
};

/// Predicts cases, each as its source describes it, from model, hardware and degrees alone: nothing
/// of what was measured is read, except whether it is the longest sequence that is asked for. What
/// cannot be expressed is not approximated but comes back with its reason. Never throws for a case
/// that parse_cases() accepted. Keeps the hardware and the stacks that it has read, for the next
/// case; used from one thread.
class CasePredictor {
 public:
  CasePrediction predict(const ReferenceCase& reference);

  /// Takes a stack of this name for the one of the catalog.
  void use(const Stack& stack) { stacks_[stack.name] = stack; }

  /// As if the case's own table had not been there: with what the terms that were fitted to it are
  /// without it.
  CasePrediction predict_left_out(const ReferenceCase& reference);
  /// Whether any term was fitted to it; otherwise the two predictions are one.
  bool fitted_to(const ReferenceCase& reference);

 private:
  /// Without a stack: as a plan.
  CasePrediction predict(const ReferenceCase& reference, const Stack* stack);
  const HardwareProfile& hardware(const std::string& name);
  const Stack* stack(const std::string& name);

  std::map<std::string, HardwareProfile> hardware_;
  std::map<std::string, Stack> stacks_;
};

/// One case alone.
CasePrediction predict_case(const ReferenceCase& reference);

}  // namespace longspan
