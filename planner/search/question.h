// Converts a question's options to those of the space and of the evaluator. Internal to
// planner/search.
#pragma once

#include "planner/evaluate/candidate.h"
#include "planner/search/search.h"
#include "planner/search/space.h"

namespace longspan {

SpaceOptions space_of(const ModelSpec& model, const HardwareProfile& hw,
                      const QuestionOptions& options);

/// The most tokens of a microbatch that the model has, or may be given, positions for.
int64_t most_positions(const ModelSpec& model, const QuestionOptions& options);
/// Throws bad_input if the tokens of a microbatch exceed most_positions().
void check_positions(const ModelSpec& model, int64_t tokens, const QuestionOptions& options);
/// The tokens of a microbatch of sequences of this length. Throws bad_input if there are too many.
int64_t tokens_of_batch(const ModelSpec& model, int64_t sequence);
/// The same as text: "32,768 tokens", or "4 sequences of 8,192 tokens".
std::string batch_text(const ModelSpec& model, int64_t tokens);

/// Bytes of every tier that a rank may use: the capacities minus the margin. Throws bad_input
/// unless the margin is in [0, 1).
TierBytes limits_of(const HardwareProfile& hw, const QuestionOptions& options);

/// The text to append to a memory shortfall about the margin; empty without one.
std::string margin_text(const QuestionOptions& options);

/// Whose time is compared with the limits: the fastest plan that was found, or a lower bound of all
/// plans.
enum class TimeOf { fastest_found, compute_alone };

/// Throws no_fit if the score of a microbatch of these tokens exceeds a limit on time.
void check_time(const ModelSpec& model, const Score& score, int64_t tokens,
                const QuestionOptions& options, TimeOf of = TimeOf::fastest_found);

}  // namespace longspan
