// Converts a question's options to those of the space and of the evaluator. Internal to
// planner/search.
#pragma once

#include "planner/evaluate/candidate.h"
#include "planner/search/search.h"
#include "planner/search/space.h"

namespace longspan {

SpaceOptions space_of(const ModelSpec& model, const HardwareProfile& hw,
                      const QuestionOptions& options);

/// The longest sequence that the model has, or may be given, positions for.
int64_t most_positions(const ModelSpec& model, const QuestionOptions& options);
/// Throws bad_input if the sequence exceeds most_positions().
void check_positions(const ModelSpec& model, int64_t sequence, const QuestionOptions& options);

/// Bytes of every tier that a rank may use: the capacities minus the margin. Throws bad_input
/// unless the margin is in [0, 1).
TierBytes limits_of(const HardwareProfile& hw, const QuestionOptions& options);

/// The text to append to a memory shortfall about the margin; empty without one.
std::string margin_text(const QuestionOptions& options);

/// Whose time is compared with the limits: the fastest plan that was found, or a lower bound of all
/// plans.
enum class TimeOf { fastest_found, compute_alone };

/// Throws no_fit if the score exceeds a limit on time.
void check_time(const Score& score, int64_t sequence, const QuestionOptions& options,
                TimeOf of = TimeOf::fastest_found);

}  // namespace longspan
