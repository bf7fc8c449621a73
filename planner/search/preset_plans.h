// Plans of presets: published strategies with their knobs, at any length. Internal to
// planner/search.
//
// What a preset leaves open is where states live, and the chunk of those that chunk attention: a
// part of the sequence, or a number of tokens. A length that the preset's layout does not divide is
// padded; so is one whose arenas do not fit only because buffers pack badly at just this length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/longest.h"
#include "planner/search/space.h"
#include "planner/strategy/presets.h"

namespace longspan {

class PresetPlans {
 public:
  /// Throws bad_input for an unknown preset, a chunk for one without, a layout it has none of.
  /// `evaluator` must outlive this object.
  PresetPlans(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
              const std::string& preset, const SpaceOptions& options);

  /// The fastest that fits and is in time; where none is, the least late of those that fit; where
  /// none fits, what misses by least (overflow > 0).
  Scored best(int64_t sequence, const TimeLimits& time);

  /// The longest that fits, as LongestWanted says. How buffers pack changes from length to length,
  /// so arenas are looked at from the longest that live bytes allow downwards; the last step is
  /// exact, steps of up to half a percent before it. The bound is what live bytes allow.
  LongestFound longest(const LongestWanted& wanted);

 private:
  struct Way {
    StatePlacement placement;
    int64_t chunks = 0;        // of a sequence
    int64_t chunk_tokens = 0;  // or this chunk; 0 both: the preset does not chunk
    bool same_states(const Way& other) const { return placement == other.placement; }
  };
  /// A way, and the longest that it may have, as a multiple of its step.
  struct Hope {
    Way way;
    int64_t step = 0, count = 0, ops = 0;
    int64_t refused = 0;     // the last that was looked at
    bool estimated = false;  // `count` is what live bytes allow, else what bounds do
    int64_t stride = 1, looks = 0;
    double slower = 1;  // than its bound
    int64_t length() const { return count * step; }
  };
  bool seems_in_time(const Hope& hope, const Candidate& c, const TimeLimits& time);
  std::vector<Hope> bounded(const LongestWanted& wanted);
  void estimate(Hope& hope, const TimeLimits& time);
  std::optional<Candidate> candidate(const Way& way, int64_t sequence) const;
  /// Those with states in one place after those with states in another, most on the device first.
  std::vector<Way> ways(int64_t sequence) const;
  int64_t unit(const Way& way) const;
  int64_t ops(const Candidate& c) const;
  /// What misses by least of those that do not fit the length; none where no way takes it.
  std::optional<Scored> nearest(int64_t sequence);
  /// Lengths from `sequence` on at which this way's arenas may fit, the nearest first.
  std::optional<Scored> fitting(const Way& way, int64_t sequence);
  /// What max-seq says: a sequence that does not fit is not padded to a longer one.
  int64_t most_padded();

  Evaluator& evaluator_;
  const ModelSpec& model_;
  std::string preset_;
  SpaceOptions options_;
  ParallelLayout layout_;
  std::optional<int64_t> most_padded_;
};

}  // namespace longspan
