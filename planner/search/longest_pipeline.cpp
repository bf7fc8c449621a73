#include "planner/search/longest_pipeline.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/pipeline_hopes.h"
#include "planner/search/pipeline_space.h"

namespace longspan {
namespace {

constexpr size_t kImproved = 4;  // hopes that are gone on from
constexpr size_t kLooks = 16;    // at hopes, the exact way
// Ops that are laid out for looks at hopes, and as many at what lies beside the longest, after
// which none is begun: a few seconds.
constexpr int64_t kEnoughOps = 10'000'000;
constexpr int64_t kOpsOfLook = 100'000;  // at least, as what goes before one takes time, too
constexpr int64_t kStep = 100;           // that part of it more is what a climb is worth
constexpr int kRounds = 6;               // of one, until its packing is known
constexpr double kNear = 0.3;            // too much of a tier, of what may yet be made to fit
// Bounds are low in memory, so what they say fits may not; but not by more than this.
constexpr double kGuessed = 0.9;

// Granules that fit, `step` or less below some that do not, from `low` on, which fits, and below
// `high`, which does not.
template <class Fits>
int64_t boundary(int64_t low, int64_t high, int64_t step, const Fits& fits) {
  while (high - low > step) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

class Longest {
 public:
  Longest(PipelineJudge& judge, const ModelSpec& model, const HardwareProfile& hw,
          const MaxSequenceOptions& options, const Progress& progress)
      : judge_(judge), model_(model), hw_(hw), options_(options), progress_(progress) {}

  /// Sets hope.sequence if more than `beyond` is guessed to fit; whether it is.
  bool guess(Hope& hope, int64_t beyond) {
    const auto overflow = [&](int64_t granules) {
      const int64_t sequence = granules * hope.granule;
      return judge_.guess(at_length(hope, sequence), sequence).overflow;
    };
    const int64_t low = beyond / hope.granule;
    if (low + 1 > hope.most) return false;
    const double of_next = overflow(low + 1);
    possible_ |= of_next < PipelineJudge::kImpossible;
    if (of_next > 0) return false;
    hope.sequence = hope.granule * boundary(low + 1, hope.most + 1, 1, [&](int64_t granules) {
                      return overflow(granules) == 0;
                    });
    return true;
  }

  /// Changes one knob at a time for as long as more is guessed to fit.
  void improve(Hope& best) {
    for (bool improved = true; improved;) {
      improved = false;
      for (Hope& changed : beside(best)) {
        if (!guess(changed, best.sequence)) continue;
        best = std::move(changed);
        improved = true;
      }
    }
  }

  /// The same the exact way: packing is uneven, and what guesses say is alike need not be.
  void climb(LongestPipeline& found) {
    const int64_t enough = laid_out_ + kEnoughOps;
    for (bool improved = true; improved && laid_out_ < enough;) {
      improved = false;
      for (Hope& changed : beside(found_)) {
        const int64_t more = std::max<int64_t>(1, found.sequence / kStep / changed.granule);
        const int64_t granules = found.sequence / changed.granule + more;
        const int64_t sequence = granules * changed.granule;
        if (granules > changed.most || laid_out_ >= enough) continue;
        if (!may_fit(changed, sequence) || !fits(changed, granules)) continue;
        found_ = std::move(changed);
        found.sequence = found_.granule * beyond_exactly(granules, found_.most + 1, more);
        improved = true;
        break;
      }
    }
  }

  /// What of a hope fits the exact way, if that is more than `found`, to within a part of it.
  void look(const Hope& hope, LongestPipeline& found) {
    const int64_t beyond = found.sequence / hope.granule;
    int64_t low = beyond, high = hope.most + 1;
    // By the fast path, with what this one's packing has turned out to lose.
    Budget budget(hw_);
    for (int round = 0; round < kRounds && high - low > 1; ++round) {
      const auto live = [&](int64_t granules) {
        const int64_t sequence = granules * hope.granule;
        return judge_.score(at_length(hope, sequence), sequence).bytes;
      };
      int64_t granules = boundary(
          low, high, 1, [&](int64_t middle) { return budget.overflow_of_live(live(middle)) == 0; });
      // Halfway where packing has lost more once than it may here.
      if (granules == low) granules = low + (high - low) / 2;
      const TierBytes arenas = exact_bytes(hope, granules);
      if (fits(hope, granules)) {
        low = granules;
        break;
      }
      high = granules;
      budget.learn(live(granules), arenas);
    }
    if (low == beyond) return;
    found_ = hope;
    found.sequence = hope.granule * beyond_exactly(low, high, std::max<int64_t>(1, low / kStep));
  }

  /// The exact boundary of what was found, where one granule more does not fit.
  void finish(LongestPipeline& found) {
    const int64_t low = found.sequence / found_.granule;
    const int64_t granules = beyond_exactly(low, found_.most + 1, 1);
    found.sequence = granules * found_.granule;
    found.granule = found_.granule;
    found.strategy = at_length(found_, found.sequence);
    found.score = judge_.exact(found.strategy, found.sequence);
    found.refused = found.strategy;
    if (granules == found_.most) return;  // no more was asked about
    found.refused = at_length(found_, found.sequence + found.granule);
    found.refused_bytes = exact_bytes(found_, granules + 1);
  }

  /// The longest of all hopes, if longer than `beyond`.
  LongestPipeline of(std::vector<Hope>& hopes, int64_t beyond) {
    int64_t best = beyond;
    for (Hope& hope : hopes) {
      if (guess(hope, static_cast<int64_t>(kGuessed * static_cast<double>(best)))) {
        best = std::max(best, hope.sequence);
      }
    }
    const auto longest_first = [&] {
      std::stable_sort(hopes.begin(), hopes.end(),
                       [](const Hope& a, const Hope& b) { return a.sequence > b.sequence; });
    };
    longest_first();
    for (size_t i = 0; i < std::min(kImproved, hopes.size()); ++i) {
      if (hopes[i].sequence > 0) improve(hopes[i]);
    }
    longest_first();
    LongestPipeline found;
    found.sequence = beyond;
    const int64_t enough = laid_out_ + kEnoughOps;
    for (size_t i = 0; i < std::min(kLooks, hopes.size()) && laid_out_ < enough; ++i) {
      if (hopes[i].sequence > found.sequence) look(hopes[i], found);
    }
    if (found.sequence == beyond) return {};
    climb(found);
    finish(found);
    return found;
  }

  /// Approaches from what was found last, where it can be cut to a length.
  std::optional<Strategy> approach_from_found(int64_t sequence) {
    if (!cuts(found_, sequence)) return std::nullopt;
    return approach(found_, sequence);
  }

  /// How far the exact memory of a strategy exceeds the capacities.
  double missing(const Strategy& strategy, int64_t sequence) {
    return judge_.budget().overflow(exact_bytes(strategy, sequence));
  }

  /// What fits a length the exact way, of the hopes with most room and what lies beside them; or
  /// what misses by least, none where nothing is guessed to fit.
  std::optional<Strategy> nearest(const std::vector<Hope>& hopes, int64_t sequence) {
    struct Room {
      const Hope* hope;
      double filled;  // of the tier with least room
    };
    std::vector<Room> rooms;
    for (const Hope& hope : hopes) {
      if (!cuts(hope, sequence)) continue;
      const Score guess = judge_.guess(at_length(hope, sequence), sequence);
      if (guess.overflow > 0) continue;
      double filled = 0;
      for (int tier = 0; tier < kTierCount; ++tier) {
        const auto limit = static_cast<double>(std::max<int64_t>(1, judge_.limits()[tier]));
        filled = std::max(filled, static_cast<double>(guess.bytes[tier]) / limit);
      }
      rooms.push_back({&hope, filled});
    }
    std::stable_sort(rooms.begin(), rooms.end(),
                     [](const Room& a, const Room& b) { return a.filled < b.filled; });
    const Hope* best = nullptr;
    double least = 0;
    for (size_t i = 0; i < std::min(kLooks, rooms.size()); ++i) {
      const double missed = missing(at_length(*rooms[i].hope, sequence), sequence);
      if (best != nullptr && missed >= least) continue;
      best = rooms[i].hope;
      least = missed;
      if (missed == 0) break;
    }
    if (best == nullptr) return std::nullopt;
    return approach(*best, sequence);
  }

  /// Changes one knob at a time for as long as less is missing at a length.
  Strategy approach(Hope best, int64_t sequence) {
    double least = missing(at_length(best, sequence), sequence);
    const int64_t enough = laid_out_ + kEnoughOps;
    for (bool improved = true; improved && least > 0 && laid_out_ < enough;) {
      improved = false;
      for (Hope& changed : beside(best)) {
        const Strategy s = at_length(changed, sequence);
        if (!may_fit(changed, sequence)) continue;
        if (laid_out_ >= enough) break;
        const double missed = missing(s, sequence);
        if (missed >= least) continue;
        least = missed;
        best = std::move(changed);
        improved = true;
        break;
      }
    }
    return at_length(best, sequence);
  }

  /// Whether any schedule takes the numbers that were asked for.
  bool possible() const { return possible_; }

 private:
  // With one knob changed.
  std::vector<Hope> beside(const Hope& hope) const {
    const int64_t length = 2 * hope.granule;
    const Strategy at = at_length(hope, length);
    const Shape shape{at.parallel, length / at.parallel.ring, at.chunk_tokens,
                      options_.deterministic};
    std::vector<Hope> all;
    for (const Knob& knob :
         pipeline_knobs(model_, shape, judge_.limits()[2] > 0, options_.parallel)) {
      for (const auto& set : knob.values) {
        Hope changed = hope;
        changed.strategy = at;
        set(changed.strategy);
        if (changed.strategy == at) continue;
        const bool whole = changed.strategy.parallel.pipeline.slices == 1;
        changed.one_block = whole && changed.strategy.block_tokens > at.chunk_tokens;
        all.push_back(std::move(changed));
      }
    }
    return all;
  }

  // Of what was found: from `low` granules on, which fit, in steps that grow, and back again.
  int64_t beyond_exactly(int64_t low, int64_t high, int64_t step) {
    for (int64_t stride = step; low + stride < high; stride *= 2) {
      if (!fits(found_, low + stride)) {
        high = low + stride;
        break;
      }
      low += stride;
    }
    return boundary(low, high, step, [&](int64_t granules) { return fits(found_, granules); });
  }

  bool fits(const Hope& hope, int64_t granules) {
    const int64_t sequence = granules * hope.granule;
    return missing(at_length(hope, sequence), sequence) == 0;
  }

  bool may_fit(const Hope& hope, int64_t sequence) {
    return judge_.guess(at_length(hope, sequence), sequence).overflow == 0;
  }

  // Whether a length can be cut so.
  bool cuts(const Hope& hope, int64_t sequence) const {
    const Parallel& p = hope.strategy.parallel;
    if (sequence % (p.ring * p.pipeline.slices * hope.chunks) != 0) return false;
    try {
      validate(at_length(hope, sequence), model_, sequence, "");
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  TierBytes exact_bytes(const Hope& hope, int64_t granules) {
    const int64_t sequence = granules * hope.granule;
    return exact_bytes(at_length(hope, sequence), sequence);
  }
  TierBytes exact_bytes(const Strategy& s, int64_t sequence) {
    for (const auto& [known, length, bytes] : exact_) {
      if (length == sequence && known == s) return bytes;
    }
    validate(s, model_, sequence, "max-seq");
    StepRequest request = request_of(model_, hw_, sequence, options_.micro_batches);
    request.strategy = s;
    laid_out_ += std::max(kOpsOfLook, ops_estimate(request));
    if (progress_) progress_(std::min(laid_out_, 2 * kEnoughOps), 2 * kEnoughOps);
    return std::get<TierBytes>(exact_.emplace_back(s, sequence, judge_.exact_bytes(s, sequence)));
  }

  PipelineJudge& judge_;
  const ModelSpec& model_;
  const HardwareProfile& hw_;
  const MaxSequenceOptions& options_;
  const Progress& progress_;
  std::vector<std::tuple<Strategy, int64_t, TierBytes>> exact_;
  Hope found_;            // whose boundary was found last
  int64_t laid_out_ = 0;  // ops, about
  bool possible_ = false;
};

}  // namespace

std::optional<Strategy> leanest_pipeline(PipelineJudge& judge, const ModelSpec& model,
                                         const HardwareProfile& hw, int64_t sequence,
                                         const SearchOptions& options) {
  MaxSequenceOptions of_length;
  of_length.chunk_tokens = options.chunk_tokens;
  of_length.longest = 2 * sequence;
  of_length.micro_batches = options.micro_batches;
  of_length.deterministic = options.deterministic;
  of_length.parallel = options.parallel;
  std::vector<Hope> hopes = pipeline_hopes(model, hw, judge.limits()[2] > 0, of_length);
  const Progress untold;
  Longest longest(judge, model, hw, of_length, untold);
  std::optional<Strategy> nearest = longest.nearest(hopes, sequence);
  // What fits no length but a longer one may fit this one.
  if (!nearest || longest.missing(*nearest, sequence) == 0) return nearest;
  if (longest.missing(*nearest, sequence) > kNear) return nearest;
  const LongestPipeline found = longest.of(hopes, 0);
  if (found.sequence < sequence) return nearest;
  const std::optional<Strategy> shorter = longest.approach_from_found(sequence);
  return shorter && longest.missing(*shorter, sequence) == 0 ? shorter : nearest;
}

LongestPipeline longest_pipeline(PipelineJudge& judge, const ModelSpec& model,
                                 const HardwareProfile& hw, const MaxSequenceOptions& options,
                                 int64_t beyond, const Progress& progress) {
  std::vector<Hope> hopes = pipeline_hopes(model, hw, judge.limits()[2] > 0, options);
  const bool asked = !options.parallel.admits_flat();
  if (asked && hopes.empty()) throw none_suits("", model, hw);
  Longest longest(judge, model, hw, options, progress);
  const LongestPipeline found = longest.of(hopes, beyond);
  if (asked && !longest.possible()) throw none_takes(options.micro_batches);
  return found;
}

}  // namespace longspan
