// The longest sequence of the whole space. Internal to planner/search.
//
// For every shape of frame (space.h) the relaxation says up to which length a candidate may fit:
// the fullest tier of its roomiest mixture grows with the length. From the largest of these down,
// best_first() looks for anything that fits a length; what fits is extended and pushed until no
// longer length is found to fit. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/search/best_first.h"

namespace longspan {

struct LongestFound {
  Scored fits;        ///< sequence 0: none does
  Candidate refused;  ///< the next length of its shape, or the least of all where nothing fits
  int64_t step = 0;   ///< tokens between the two
  int64_t bound = 0;  ///< no candidate of the space is longer
};

struct LongestWanted {
  int64_t granule = 256;               ///< steps are multiples of this where a shape's unit is less
  int64_t most = int64_t{1} << 28;     ///< tokens: longer sequences are not looked for
  double most_seconds = 1e300;         ///< of a step
  double least_tokens_per_second = 0;  ///< of all ranks together
};

LongestFound longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                     const SpaceOptions& options, const LongestWanted& wanted,
                     const std::function<void(int64_t, int64_t)>& progress = {});

/// The knobs of `c`, which is of `shape`, at a length that the shape may pad; none if it does not
/// take them there.
std::optional<Candidate> at_length(const Candidate& c, const FrameShape& shape, int64_t length,
                                   const ModelSpec& model, const SpaceOptions& options);

}  // namespace longspan
