// Finds the longest sequence of the whole space. Internal to planner/search. Deterministic.
//
// For every shape of frame (space.h) the relaxation gives an upper bound on the length: the fullest
// tier of the roomiest mixture grows with the length. From the largest bound down, best_first()
// searches for any candidate that fits a length. What fits is extended, and longer lengths are
// tried until none is found to fit.
//
// If the step time is limited and that sequence exceeds the limit, the search starts from the
// fastest plan at the length at which compute alone would take all of the time. Its knobs are then
// extended to the longest length within the limit.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/search/best_first.h"

namespace longspan {

struct LongestFound {
  Scored fits;        ///< sequence 0: nothing fits
  Candidate refused;  ///< the next length of its shape; if nothing fits, the candidate that is
                      ///< short by least
  int64_t step = 0;   ///< tokens between them
  int64_t bound = 0;  ///< upper bound on the length in the space
};

struct LongestWanted {
  int64_t granularity = 256;        ///< steps are multiples of this if a shape's unit is less
  int64_t most = int64_t{1} << 28;  ///< tokens; longer sequences are not tried
  TimeLimits time;
};

LongestFound longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                     const SpaceOptions& options, const LongestWanted& wanted,
                     const Progress& progress = {});

/// The longest sequence within `wanted.time` that is no longer than `beyond`, the longest without
/// limits on time, or within looser ones. The bound stays that of `beyond`.
LongestFound longest_within(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                            const SpaceOptions& options, const LongestWanted& wanted,
                            const LongestFound& beyond);

/// `found` with the knobs of `longer`, which fits and is longer, extended to the longest length
/// that they fit within `wanted.time`.
LongestFound longest_from(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                          const SpaceOptions& options, const LongestWanted& wanted,
                          const LongestFound& found, const Candidate& longer);

/// A candidate with the knobs of `c`, whose shape is `shape`, at a length, which may be padded.
/// None if the knobs are not valid there.
std::optional<Candidate> at_length(const Candidate& c, const FrameShape& shape, int64_t length,
                                   const ModelSpec& model, const SpaceOptions& options);

}  // namespace longspan
