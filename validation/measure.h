// Converts a source's reported figures to a step time, and back, in the source's convention.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "validation/case.h"

namespace longspan {

/// The model of a case: its file's or the catalog's, cut to the layers the case says, its position
/// table extended to the sequence. Throws bad_input if neither has it.
ModelSpec model_of(const PublishedCase& reference);

/// The step time that one reported figure stands for.
struct ImpliedStep {
  std::string figure;  // its key in the file: "step_time_s", "mfu", ...
  double seconds = 0;
};

/// One step time for each figure of speed, the most direct first: a time, tokens/s, FLOP/s, MFU.
/// They agree as far as the source rounds. Figures that count FLOPs need the model: throws as
/// model_of().
std::vector<ImpliedStep> implied_steps(const PublishedCase& reference);

/// The first of implied_steps(); nothing where the case has no figure of speed. Throws as
/// model_of(), but only if every figure is in FLOPs.
std::optional<double> measured_step_seconds(const PublishedCase& reference);

/// The memory that a prediction is compared with: what was allocated, else reserved, else in use.
std::optional<int64_t> measured_peak_bytes(const PublishedCase& reference);

/// The figures of speed that the source would have reported for this step time: those that its
/// convention defines (no MFU without a peak). REQUIRES: step_seconds > 0. Throws as model_of().
CaseMeasured restated(const PublishedCase& reference, double step_seconds);

}  // namespace longspan
