// Plans with a pipeline: the space of stages, schedules and slices around that of the other knobs.
// Of a model whose layers differ one stage is among them.
//
// For every number of stages, grid of a stage and number of slices the knobs of knobs.h and the
// schedule are descended through by guesses; what is guessed best is evaluated by the fast path,
// and the best of that the exact way. Internal to planner/search.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/evaluate/pipeline_judge.h"
#include "planner/search/search.h"

namespace longspan {

struct PipelinesFound {
  std::vector<Candidate> fitting;    // exact; the best first
  std::optional<Candidate> nearest;  // what misses by least, where nothing fits
};

/// Throws bad_input where the choice admits no pipeline on this hardware.
PipelinesFound search_pipelines(PipelineJudge& judge, const ModelSpec& model,
                                const HardwareProfile& hw, int64_t sequence,
                                const SearchOptions& options, const Progress& progress);

}  // namespace longspan
