// Predictions of published cases.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "frameworks/model/stack.h"
#include "hwprofiles/hardware_profile.h"
#include "planner/evaluate/fit.h"
#include "validation/case.h"

namespace longspan {

/// Tokens.
struct LengthRange {
  int64_t low = 0, high = 0;
  bool operator==(const LengthRange&) const = default;
};

/// The predictions of a case, or the reason why there are none.
struct CasePrediction {
  std::optional<double> step_seconds;
  std::optional<int64_t> peak_bytes;  // on the fullest GPU
  std::optional<bool> fits;           // into the GPU and its share of the host
  /// At risk: some of the memories that the range allows fit, and some do not
  /// (prediction_interval.h).
  std::optional<Fit> verdict;
  std::optional<int64_t> longest_sequence;  // tokens; of cases that ask for it
  /// The longest sequences at the two ends of the memory range.
  std::optional<LengthRange> longest_range;
  std::string reason;    // why the case is not covered: "pipeline stages"; empty: it is
  bool as_plan = false;  // by simulation of a plan's program, not by a stack
  bool operator==(const CasePrediction&) const = default;
};

/// Predicts cases, each as its source describes it, from model, hardware and degrees alone. Reads
/// nothing that was measured, except whether the case asks for the longest sequence. A case that
/// cannot be expressed is not approximated but returned with its reason. Never throws for a case
/// that parse_cases() accepted. Keeps the hardware and the stacks that it has read, for the next
/// case; used from one thread.
class CasePredictor {
 public:
  CasePrediction predict(const PublishedCase& reference);

  /// Replaces the catalog's stack of the same name.
  void use(const Stack& stack) { stacks_[stack.name] = stack; }

  /// Predicts without the case's own table: terms that were fitted to it have the values that they
  /// have without it.
  CasePrediction predict_left_out(const PublishedCase& reference);
  /// Predicts a run of other software as Longspan's plan of the same knobs, with the software's
  /// attention kernel: by simulation of its program, not by its stack. Time and memory only.
  CasePrediction predict_as_plan(const PublishedCase& reference);
  /// Whether any term was fitted to the case's table; otherwise the two predictions are equal.
  bool fitted_to(const PublishedCase& reference);

 private:
  /// `predict_one` predicts the case with its model and hardware.
  template <class PredictOne>
  CasePrediction with_inputs(const PublishedCase& reference, const PredictOne& predict_one);
  /// `stack` null: predicts the case as a plan.
  CasePrediction predict(const PublishedCase& reference, const Stack* stack);
  const HardwareProfile& hardware(const std::string& name);
  const Stack* stack(const std::string& name);
  const Stack* stack_of(const PublishedCase& reference);

  std::map<std::string, HardwareProfile> hardware_;
  std::map<std::string, Stack> stacks_;
};

/// Predicts one case.
CasePrediction predict_case(const PublishedCase& reference);

}  // namespace longspan
