// What the longest sequence of a pipeline is looked for among: ways to cut sequences of any length,
// with all other knobs. Internal to planner/search.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/search/search.h"

namespace longspan {

/// Lengths are multiples of `granule`.
struct Hope {
  Strategy strategy;                     // chunk and block are set by at_length()
  int64_t chunks = 1, chunk_tokens = 0;  // as many chunks, or of this size
  bool one_block = false;
  int64_t granule = 1, most = 1;  // granules, a cap that is not about memory
  int64_t sequence = 0;           // the longest that is guessed to fit
};

/// REQUIRES: the hope's cut divides the length.
Strategy at_length(const Hope& hope, int64_t sequence);

/// What may need least memory on all grids that the choice admits, where a sequence is shared by as
/// many ranks as there are: every combination of the knobs that decide how much is held; and
/// nothing done again, for schedules that split the backward.
std::vector<Hope> pipeline_hopes(const ModelSpec& model, const HardwareProfile& hw, bool with_nvme,
                                 const MaxSequenceOptions& options);

}  // namespace longspan
