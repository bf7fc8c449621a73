// The longest sequence of the whole space. Internal to planner/search.
//
// For every shape of frame (space.h) the relaxation says up to which length a candidate may fit:
// the fullest tier of its roomiest mixture grows with the length. From the largest of these down,
// best_first() looks for anything that fits a length; what fits is extended and pushed until no
// longer length is found to fit.
//
// Where the time of a step is limited and that sequence takes longer, the fastest plan is looked
// for at the length at which compute alone would take all of the time, and its knobs are followed
// to the longest that is in time. Deterministic.
#pragma once

#include <cstdint>
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
  int64_t granularity = 256;        ///< steps are multiples of this where a shape's unit is less
  int64_t most = int64_t{1} << 28;  ///< tokens: longer sequences are not looked for
  TimeLimits time;
};

LongestFound longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                     const SpaceOptions& options, const LongestWanted& wanted,
                     const Progress& progress = {});

/// The longest of those no longer than `beyond` that are within `time`, with its bound left at that
/// of `beyond`: the longest without limits on time, or within looser ones.
LongestFound longest_within(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                            const SpaceOptions& options, const LongestWanted& wanted,
                            const LongestFound& beyond);

/// The knobs of `c`, which is of `shape`, at a length that the shape may pad; none if it does not
/// take them there.
std::optional<Candidate> at_length(const Candidate& c, const FrameShape& shape, int64_t length,
                                   const ModelSpec& model, const SpaceOptions& options);

}  // namespace longspan
