// Plans of presets: published strategies with their knobs, at any length. Internal to
// planner/search.
//
// What a preset leaves open is where states live, and the chunk of those that chunk attention: a
// part of the sequence, or so many tokens. A length that the preset's layout does not divide is
// padded; so is one whose arenas do not fit only because buffers pack badly at just this length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/best_first.h"
#include "planner/search/space.h"
#include "planner/strategy/presets.h"

namespace longspan {

class PresetPlans {
 public:
  /// Throws bad_input for an unknown preset, a chunk for one without, a layout it has none of.
  /// `evaluator` must outlive this object.
  PresetPlans(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
              const std::string& preset, const SpaceOptions& options);

  /// The fastest that fits, or what misses by least (overflow > 0).
  Scored best(int64_t sequence);

  struct Longest {
    Scored fits;        ///< sequence 0: none does
    Candidate refused;  ///< one step longer
    int64_t step = 0;
  };
  /// The longest that fits, up to `most` tokens, of lengths that are multiples of `granule`.
  /// A step of it takes at most `most_seconds`, a sequence's share of it what the rate allows.
  /// How buffers pack changes from length to length, so arenas are looked at from the longest that
  /// live bytes allow downwards; the last step is exact, steps of up to half a percent before it.
  Longest longest(int64_t granule, int64_t most, double most_seconds = 1e300,
                  double least_tokens_per_second = 0);

 private:
  struct Way {
    StatePlacement placement;
    int64_t chunks = 0;        // of a sequence
    int64_t chunk_tokens = 0;  // or this chunk; 0 both: the preset does not chunk
    bool same_states(const Way& other) const { return placement == other.placement; }
  };
  std::optional<Candidate> candidate(const Way& way, int64_t sequence) const;
  /// Those with states in one place after those with states in another, most on the device first.
  std::vector<Way> ways(int64_t sequence) const;
  int64_t unit(const Way& way) const;
  int64_t ops(const Candidate& c) const;
  /// Lengths from `sequence` on at which this way's arenas may fit, the nearest first.
  std::optional<Scored> fitting(const Way& way, int64_t sequence);
  /// What max-seq says: a sequence that does not fit is not padded to a longer one.
  int64_t most_padded();

  Evaluator& evaluator_;
  const ModelSpec& model_;
  std::string preset_;
  SpaceOptions options_;
  Parallel layout_;
  std::optional<int64_t> most_padded_;
};

}  // namespace longspan
