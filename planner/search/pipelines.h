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

#include "planner/search/pipeline_judge.h"
#include "planner/search/search.h"

namespace longspan {

struct PipelinesFound {
  std::vector<Candidate> fitting;    // exact; the best first
  std::optional<Candidate> nearest;  // what misses by least, where nothing fits
};

/// Throws bad_input where the choice admits no pipeline on this hardware.
PipelinesFound search_pipelines(PipelineJudge& judge, const ModelSpec& model,
                                const HardwareProfile& hw, int64_t sequence,
                                const SearchOptions& options);

/// The longest sequence of any pipeline, if it is longer than `beyond`.
struct LongestPipeline {
  int64_t sequence = 0;  // 0: none is
  int64_t granule = 0;   // sequence + granule does not fit
  Strategy strategy, refused;
  Score score, refused_score;
};
/// Throws bad_input where only pipelines are asked for and the choice admits none on this hardware.
LongestPipeline longest_pipeline(PipelineJudge& judge, const ModelSpec& model,
                                 const HardwareProfile& hw, const MaxSequenceOptions& options,
                                 int64_t beyond);

}  // namespace longspan
