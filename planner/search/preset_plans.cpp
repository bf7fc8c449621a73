#include "planner/search/preset_plans.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/grids.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr int64_t kPaddings = 24;     // lengths tried for one that packs badly ...
constexpr int64_t kMostPadding = 24;  // ... up to this part of it more
constexpr int64_t kLooks = 48;  // lengths between the last that surely fits and the last that may
constexpr int64_t kFewestLooks = 4;
constexpr int64_t kLookOps = 2'000'000;  // laid out in all
constexpr int64_t kMostChunks = 256;
constexpr int64_t kLeastChunk = 1024;    // tokens of a rank
constexpr int64_t kMostOps = 1'000'000;  // of programs that a longest sequence is looked for among

}  // namespace

PresetPlans::PresetPlans(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& preset, const SpaceOptions& options)
    : evaluator_(evaluator), model_(model), preset_(preset), options_(options) {
  if (options.parallel.pipeline.value_or(1) > 1 || options.parallel.of_pipeline()) {
    throw bad_input("--pipeline: pipelines are planned by strategy auto; {} has none", preset);
  }
  if (!model.uniform()) {
    throw bad_input("--strategy: {}, whose layers differ, is planned by strategy auto; got {}",
                    model.name, preset);
  }
  make_preset(preset, model, whole_granule({}) * 1024);  // throws for an unknown name
  layout_ = preset_grid(preset, model, hw, options.parallel);
}

int64_t PresetPlans::unit(const Way& way) const {
  if (options_.chunk_tokens > 0 && is_chunked_preset(preset_)) {
    return options_.chunk_tokens * (layout_.ring > 1 ? 2 * layout_.ring : 1);
  }
  return whole_granule(layout_) * std::max<int64_t>(1, way.chunks);
}

std::optional<Candidate> PresetPlans::candidate(const Way& way, int64_t sequence) const {
  Candidate c;
  c.sequence = sequence;
  c.micro_batches = options_.micro_batches;
  if (options_.global_batch > 0) c.micro_batches = options_.global_batch / layout_.data;
  const int64_t chunk = options_.chunk_tokens > 0 ? options_.chunk_tokens
                        : way.chunks > 0          ? sequence / way.chunks
                                                  : 0;
  c.strategy = make_preset(preset_, model_, sequence, chunk, layout_);
  c.strategy.deterministic = options_.deterministic;
  c.strategy.parameters = way.placement.parameters;
  c.strategy.gradients = way.placement.gradients;
  c.strategy.optimizer = way.placement.optimizer;
  if (sequence > options_.most_tokens) return std::nullopt;
  if (!is_valid(c.strategy, model_, sequence)) return std::nullopt;
  // Of the chunks that a preset leaves open, those that make moderate programs.
  if (way.chunks > 1 && ops_estimate(evaluator_.request(c)) > kMostOps) return std::nullopt;
  return c;
}

std::vector<PresetPlans::Way> PresetPlans::ways(int64_t sequence) const {
  std::vector<int64_t> counts = {0};
  if (is_chunked_preset(preset_) && options_.chunk_tokens == 0) {
    counts = {1};
    for (int64_t n = 2; n <= kMostChunks && sequence / n >= kLeastChunk * layout_.ulysses; n *= 2) {
      counts.push_back(n);
      if (n + n / 2 <= kMostChunks) counts.push_back(n + n / 2);
    }
  }
  std::vector<Way> all;
  for (const StatePlacement& placement : preset_placements(preset_, layout_)) {
    for (const int64_t chunks : counts) all.push_back({placement, chunks});
  }
  return all;
}

std::optional<Scored> PresetPlans::fitting(const Way& way, int64_t sequence) {
  const int64_t step = unit(way);
  const int64_t first = round_up(sequence, step);
  const int64_t most = std::max<int64_t>(1, first / kMostPadding / step);
  std::set<int64_t> tried;
  for (int64_t i = 0; i <= kPaddings; ++i) {
    const int64_t length = first + most * i / kPaddings * step;
    if (!tried.insert(length).second) continue;
    const std::optional<Candidate> c = candidate(way, length);
    if (!c) return std::nullopt;
    // More than live bytes is needed, and more by every longer length.
    if (evaluator_.overflow(evaluator_.live(*c)) > 0) return std::nullopt;
    if (evaluator_.overflow(evaluator_.arenas(*c)) == 0) return Scored{*c, {}, false};
  }
  return std::nullopt;
}

Scored PresetPlans::best(int64_t sequence) {
  std::optional<Scored> best, nearest;
  std::optional<Way> way_of_best;
  for (const Way& way : ways(sequence)) {
    // States leave the device only where nothing fits with them there.
    if (way_of_best && !way_of_best->same_states(way)) break;
    if (std::optional<Scored> found = fitting(way, sequence)) {
      found->score = evaluator_.fast(found->candidate);
      if (best && found->score.seconds >= best->score.seconds) continue;
      best = found;
      way_of_best = way;
      continue;
    }
    const std::optional<Candidate> c = candidate(way, round_up(sequence, unit(way)));
    if (!c || best) continue;
    const TierBytes bytes = evaluator_.arenas(*c);
    const Score score{evaluator_.overflow(bytes), 0, 0, bytes};
    if (!nearest || score.overflow < nearest->score.overflow) nearest = Scored{*c, score, true};
  }
  if (best) {
    best->score = evaluator_.exact(best->candidate);
    best->exact = true;
    return *best;
  }
  if (nearest) return *nearest;
  // No layout of the preset suits the length: its own check says why.
  Strategy probe = make_preset(preset_, model_, sequence, options_.chunk_tokens, layout_);
  validate(probe, model_, sequence, preset_);
  throw bad_input("{}: {} tokens cannot be dealt out to {} ranks", preset_, sequence,
                  layout_.ranks());
}

PresetPlans::Longest PresetPlans::longest(int64_t granule, int64_t most, double most_seconds,
                                          double least_tokens_per_second) {
  const bool timed = most_seconds < 1e300 || least_tokens_per_second > 0;
  const auto in_time = [&](const Candidate& c) {
    if (!timed) return true;
    const Score score = evaluator_.fast(c);
    return score.step_seconds <= most_seconds &&
           score.seconds * least_tokens_per_second <= static_cast<double>(c.sequence);
  };
  Longest best;
  for (const Way& way : ways(most)) {
    const int64_t step = round_up(granule, unit(way));
    const auto fits = [&](int64_t count, bool exactly) {
      const std::optional<Candidate> c = candidate(way, count * step);
      if (!c) return false;
      if (!exactly) return evaluator_.overflow(evaluator_.live(*c)) == 0 && in_time(*c);
      return evaluator_.overflow(evaluator_.arenas(*c)) == 0;
    };
    const auto boundary = [&](int64_t low, int64_t high, bool exactly) {
      while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (fits(middle, exactly) ? low : high) = middle;
      }
      return low;
    };
    const int64_t beyond = best.fits.candidate.sequence / step;
    if (!fits(beyond + 1, false)) continue;
    int64_t high = beyond + 2;
    while (high <= most / step && fits(high, false)) high *= 2;
    const int64_t may = boundary(beyond + 1, std::min(high, most / step + 1), false);
    // Packing is uneven: the longest of some lengths that fit, from the longest down.
    int64_t found = 0, refused = may + 1;
    const std::optional<Candidate> longest_hoped = candidate(way, may * step);
    const int64_t ops = longest_hoped ? ops_estimate(evaluator_.request(*longest_hoped)) : 1;
    const int64_t looks = std::clamp(kLookOps / std::max<int64_t>(1, ops), kFewestLooks, kLooks);
    for (int64_t i = 0; i <= looks && found == 0; ++i) {
      const int64_t count = may - (may - beyond) * i / looks / 4;
      if (count <= beyond || count >= refused) continue;
      (fits(count, true) ? found : refused) = count;
    }
    if (found == 0) {
      if (!fits(beyond + 1, true)) continue;
      found = beyond + 1;
    }
    found = boundary(found, refused, true);
    best.fits.candidate = *candidate(way, found * step);
    best.refused = candidate(way, (found + 1) * step).value_or(best.fits.candidate);
    best.step = step;
  }
  if (best.step == 0) {
    // Not even one step: what the last way needs for it.
    const Way way = ways(most).back();
    best.step = round_up(granule, unit(way));
    if (const std::optional<Candidate> c = candidate(way, best.step)) best.refused = *c;
    return best;
  }
  best.fits.score = evaluator_.exact(best.fits.candidate);
  best.fits.exact = true;
  return best;
}

}  // namespace longspan
