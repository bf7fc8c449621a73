// A question's options as those of the space and of the evaluator that answer it. Internal to
// planner/search.
#pragma once

#include "planner/evaluate/candidate.h"
#include "planner/search/search.h"
#include "planner/search/space.h"

namespace longspan {

SpaceOptions space_of(const ModelSpec& model, const QuestionOptions& options);

/// The longest sequence that the model has positions for, or that it may be given.
int64_t most_positions(const ModelSpec& model, const QuestionOptions& options);
/// Throws bad_input for a sequence that is longer.
void check_positions(const ModelSpec& model, int64_t sequence, const QuestionOptions& options);

/// Bytes of every tier that a rank may use: the capacities less the margin. Throws bad_input for a
/// margin outside of [0, 1).
TierBytes limits_of(const HardwareProfile& hw, const QuestionOptions& options);

/// What a shortage of memory is added where a margin is part of it; empty without one.
std::string margin_text(const QuestionOptions& options);

/// Throws no_fit, saying that a plan with this score breaks a limit on time, if it does.
void check_time(const Score& score, int64_t sequence, const QuestionOptions& options);

}  // namespace longspan
