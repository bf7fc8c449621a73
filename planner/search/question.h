// A question's options as those of the space and of the evaluator that answer it. Internal to
// planner/search.
#pragma once

#include "planner/evaluate/candidate.h"
#include "planner/search/search.h"
#include "planner/search/space.h"

namespace longspan {

SpaceOptions space_of(const QuestionOptions& options);

/// Bytes of every tier that a rank may use: the capacities less the margin. Throws bad_input for a
/// margin outside of [0, 1).
TierBytes limits_of(const HardwareProfile& hw, const QuestionOptions& options);

/// The longest step that a candidate of this length may take, by both limits on time.
double most_seconds_of(const QuestionOptions& options, int64_t sequence, int64_t sequences);

}  // namespace longspan
