// Plans of presets at any length: published strategies with their knobs. Internal to
// planner/search.
//
// A preset leaves open where states live and, if it chunks attention, the chunk: a part of the
// sequence, or a number of tokens. A length that the preset's layout does not divide is padded, and
// so is a length whose arenas do not fit only because buffers pack badly.
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
  /// Throws bad_input for an unknown preset, a chunk for a preset without one, or a layout that the
  /// preset does not have. `evaluator` must outlive this object.
  PresetPlans(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
              const std::string& preset, const SpaceOptions& options);

  /// The fastest candidate that fits within the time limits. If none does: of those that fit, the
  /// one that exceeds the limits by least. If none fits: the one with the least overflow (> 0).
  Scored best(int64_t sequence, const TimeLimits& time);

  /// The longest sequence that fits, within `wanted`. Packing changes from length to length, so
  /// arenas are laid out from the longest length that live bytes allow downwards, in steps of up to
  /// half a percent; the last step is exact. The bound is the length that live bytes allow.
  LongestFound longest(const LongestWanted& wanted);

 private:
  struct Way {
    StatePlacement placement;
    int64_t chunks = 0;        // per sequence
    int64_t chunk_tokens = 0;  // or tokens of a chunk; both 0: the preset does not chunk
    bool same_states(const Way& other) const { return placement == other.placement; }
  };
  /// A way, and an upper bound on its length as a multiple of its step.
  struct LengthCandidate {
    Way way;
    int64_t step = 0, count = 0, ops = 0;
    int64_t refused = 0;     // the last count refused
    bool estimated = false;  // `count` is from live bytes, else from bounds
    int64_t stride = 1, looks = 0;
    double slower = 1;  // step time over its bound
    int64_t length() const { return count * step; }
  };
  void extend(const std::vector<LengthCandidate>& entries, LengthCandidate& of, int64_t& found);
  bool seems_in_time(const LengthCandidate& entry, const Candidate& c, const TimeLimits& time);
  std::vector<LengthCandidate> bounded(const LongestWanted& wanted);
  void estimate(LengthCandidate& entry, const TimeLimits& time);
  std::optional<Candidate> candidate(const Way& way, int64_t sequence) const;
  /// All ways, grouped by where states live, most on the device first.
  std::vector<Way> ways(int64_t sequence) const;
  int64_t unit(const Way& way) const;
  int64_t ops(const Candidate& c) const;
  /// The candidate with the least overflow at the length; none if no way takes the length.
  std::optional<Scored> nearest(int64_t sequence);
  /// The shortest length from `sequence` on, within the padding allowed, at which this way's arenas
  /// fit.
  std::optional<Scored> fitting(const Way& way, int64_t sequence);
  /// Whether bytes that arenas exceed fit.
  bool seems_to_fit(const Candidate& c);
  /// The longest sequence that max-seq finds. Padding does not exceed it.
  int64_t most_padded();

  Evaluator& evaluator_;
  const ModelSpec& model_;
  std::string preset_;
  SpaceOptions options_;
  ParallelLayout layout_;
  std::optional<int64_t> most_padded_;
};

}  // namespace longspan
