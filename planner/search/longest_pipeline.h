// The longest sequence that a plan with a pipeline fits: the part of max_sequence() that is about
// pipelines, and about models whose layers differ. Internal to planner/search.
#pragma once

#include <optional>

#include "planner/evaluate/pipeline_judge.h"
#include "planner/search/search.h"

namespace longspan {

/// The strategy fits `sequence` the exact way, and with the same way to cut `sequence + granule`
/// is refused, where that may be asked for.
struct LongestPipeline {
  int64_t sequence = 0;  // 0: none is
  int64_t granule = 0;
  Strategy strategy, refused;
  Score score;
  TierBytes refused_bytes{};
};

/// The longest of any pipeline, if it is longer than `beyond`. Throws bad_input where only
/// pipelines are asked for and the choice admits none on this hardware.
LongestPipeline longest_pipeline(PipelineJudge& judge, const ModelSpec& model,
                                 const HardwareProfile& hw, const MaxSequenceOptions& options,
                                 int64_t beyond, const Progress& progress);

/// What needs least memory at a length, as far as guesses say: a strategy that fits the exact way
/// where one is found, or misses by little. None where nothing is guessed to fit.
std::optional<Strategy> leanest_pipeline(PipelineJudge& judge, const ModelSpec& model,
                                         const HardwareProfile& hw, int64_t sequence,
                                         const SearchOptions& options);

}  // namespace longspan
