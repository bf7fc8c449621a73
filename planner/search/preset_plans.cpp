#include "planner/search/preset_plans.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/meshes.h"
#include "planner/search/search.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr int64_t kPaddings = 24;          // padded lengths tried if one packs badly ...
constexpr int64_t kMostPadding = 24;       // ... up to 1 / kMostPadding longer
constexpr int64_t kMostPresetChunks = 24;  // for more, chunks have a round number of tokens
constexpr int64_t kLeastChunk = 1024;      // tokens of a rank
constexpr int64_t kMostOps = 1'000'000;    // limit on programs with a free chunk
// Arenas are laid out at lengths 1 / kLengths apart, or further apart for large programs.
constexpr int64_t kLengths = 512;
constexpr int64_t kFewestLooks = 16;
constexpr int64_t kLookOps = 500'000;      // ops of layouts per way ...
constexpr int64_t kEffortOps = 3'000'000;  // ... and in total
constexpr int64_t kRefusedPart = 4;        // a refused layout stops after 1 / this of its ops

double most_seconds(const Candidate& c, const TimeLimits& time) {
  return time.most_seconds(c.sequence, micro_batches_of_step(c));
}

/// The last that fits, by bisection between one that does and one that does not.
template <class Fits>
int64_t boundary(int64_t low, int64_t high, const Fits& fits) {
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

PresetPlans::PresetPlans(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& preset, const SpaceOptions& options)
    : evaluator_(evaluator), model_(model), preset_(preset), options_(options) {
  const bool stages = options.parallel.pipeline.value_or(1) > 1;
  if (stages || options.parallel.fixes_pipeline()) {
    throw bad_input("{}: pipelines are planned by strategy auto; {} has none",
                    stages ? "--pipeline" : "--schedule, --virtual and --in-flight", preset);
  }
  if (!options.parallel.admits_whole_sequences()) {
    throw bad_input("--slices: slices of sequences are planned by strategy auto; {} has none",
                    preset);
  }
  if (!model.works_on_all_tokens()) {
    throw bad_input(
        "--strategy: {}, of which layers work on a share of the tokens, is planned by strategy "
        "auto; "
        "got {}",
        model.name, preset);
  }
  make_preset(preset, model, whole_granularity({}) * 1024);  // throws for an unknown name
  layout_ = preset_mesh(preset, model, hw, options.parallel);
}

int64_t PresetPlans::ops(const Candidate& c) const {
  return std::max<int64_t>(1, ops_estimate(evaluator_.request(c)));
}

int64_t PresetPlans::unit(const Way& way) const {
  if (way.chunk_tokens > 0) return way.chunk_tokens * (layout_.ring > 1 ? 2 * layout_.ring : 1);
  return whole_granularity(layout_) * options_.of_shares * std::max<int64_t>(1, way.chunks);
}

std::optional<Candidate> PresetPlans::candidate(const Way& way, int64_t sequence) const {
  Candidate c;
  c.sequence = sequence;
  c.microbatches = options_.microbatches;
  if (options_.global_batch > 0) c.microbatches = options_.global_batch / layout_.data;
  // make_preset() refuses a chunk for a preset that does not chunk.
  const int64_t chunk = way.chunks > 0         ? sequence / way.chunks
                        : way.chunk_tokens > 0 ? way.chunk_tokens
                                               : options_.chunk_tokens;
  c.strategy = make_preset(preset_, model_, sequence, chunk, layout_);
  c.strategy.parameters = way.placement.parameters;
  c.strategy.gradients = way.placement.gradients;
  c.strategy.optimizer = way.placement.optimizer;
  fix_knobs(options_, c.strategy);
  if (sequence > options_.most_tokens) return std::nullopt;
  if (!is_valid(c.strategy, model_, sequence)) return std::nullopt;
  // A free chunk must give a moderate program.
  if (is_chunked_preset(preset_) && options_.chunk_tokens == 0 && ops(c) > kMostOps) {
    return std::nullopt;
  }
  return c;
}

std::vector<PresetPlans::Way> PresetPlans::ways(int64_t sequence) const {
  struct Chunk {
    int64_t count, tokens;
  };
  std::vector<Chunk> chunkings = {{0, 0}};
  if (is_chunked_preset(preset_) && options_.chunk_tokens > 0) {
    chunkings = {{0, options_.chunk_tokens}};
  } else if (is_chunked_preset(preset_)) {
    const int64_t least = kLeastChunk * layout_.ulysses;
    chunkings = {{1, 0}};
    for (int64_t n = 2; n <= kMostPresetChunks && sequence / n >= least; n *= 2) {
      for (const int64_t count : {n, n + n / 2}) {
        if (count <= kMostPresetChunks) chunkings.push_back({count, 0});
      }
    }
    for (int64_t n = round_up(kLeastChunk, layout_.ulysses); n < sequence / 4; n *= 2) {
      for (const int64_t tokens : {n, n + n / 2}) {
        if (tokens >= least) chunkings.push_back({0, tokens});
      }
    }
  }
  std::vector<Way> all;
  for (const StatePlacement& placement : preset_placements(preset_, layout_)) {
    for (const Chunk& chunk : chunkings) all.push_back({placement, chunk.count, chunk.tokens});
  }
  return all;
}

// Live bytes of layers of several kinds are sums of the kinds' peaks, which may exceed arenas.
bool PresetPlans::seems_to_fit(const Candidate& c) {
  const TierBytes bytes =
      model_.uniform() ? evaluator_.live(c) : evaluator_.demand(c, DemandOf::bytes).peak_bytes();
  return evaluator_.overflow(bytes) == 0;
}

std::optional<Scored> PresetPlans::fitting(const Way& way, int64_t sequence) {
  const int64_t step = unit(way);
  const int64_t first = round_up(sequence, step);
  const int64_t most = std::max<int64_t>(1, first / kMostPadding / step);
  std::set<int64_t> tried;
  for (int64_t i = 0; i <= kPaddings; ++i) {
    const int64_t length = first + most * i / kPaddings * step;
    if (!tried.insert(length).second) continue;
    if (i > 0 && length > most_padded()) return std::nullopt;
    const std::optional<Candidate> c = candidate(way, length);
    if (!c) return std::nullopt;
    // Arenas exceed these bytes, and grow with the length.
    if (!seems_to_fit(*c)) return std::nullopt;
    if (evaluator_.fits(*c)) return Scored{*c, {}, false};
  }
  return std::nullopt;
}

int64_t PresetPlans::most_padded() {
  if (!most_padded_) {
    most_padded_ = longest(LongestWanted{}).fits.candidate.sequence;
  }
  return *most_padded_;
}

Scored PresetPlans::best(int64_t sequence, const TimeLimits& time) {
  std::optional<Scored> best, late;
  std::optional<Way> way_of_best;
  for (const Way& way : ways(sequence)) {
    // States leave the device only if nothing fits with them there.
    if (way_of_best && !way_of_best->same_states(way)) break;
    const std::optional<Candidate> c = candidate(way, round_up(sequence, unit(way)));
    if (c && best && evaluator_.fast(*c).seconds >= best->score.seconds) continue;
    if (std::optional<Scored> found = fitting(way, sequence)) {
      found->score =
          time.any() ? evaluator_.exact(found->candidate) : evaluator_.fast(found->candidate);
      const double most = time.most_seconds(sequence, micro_batches_of_step(found->candidate));
      if (found->score.step_seconds > most) {
        if (!late || found->score.step_seconds < late->score.step_seconds) late = found;
        continue;
      }
      if (best && found->score.seconds >= best->score.seconds) continue;
      best = found;
      way_of_best = way;
    }
  }
  if (!best) best = late;
  if (best) {
    best->score = evaluator_.exact(best->candidate);
    best->exact = true;
    return *best;
  }
  if (std::optional<Scored> short_by_least = nearest(sequence)) {
    if (short_by_least->score.overflow == 0) {
      short_by_least->score = evaluator_.exact(short_by_least->candidate);
    }
    return *short_by_least;
  }
  // No layout of the preset suits the length: validate() throws the reason.
  Strategy probe = make_preset(preset_, model_, sequence, options_.chunk_tokens, layout_);
  probe.products = options_.products;
  validate(probe, model_, sequence, preset_);
  throw bad_input("{}: {} tokens do not divide among {} ranks", preset_, sequence, layout_.ranks());
}

std::optional<Scored> PresetPlans::nearest(int64_t sequence) {
  std::optional<Scored> nearest;
  for (const Way& way : ways(sequence)) {
    const std::optional<Candidate> c = candidate(way, round_up(sequence, unit(way)));
    if (!c) continue;
    const TierBytes bytes = evaluator_.arenas(*c);
    const Score score{evaluator_.overflow(bytes), 0, 0, bytes};
    if (!nearest || score.overflow < nearest->score.overflow) nearest = Scored{*c, score, true};
  }
  return nearest;
}

// Whether a step seems to be within the time, by its bound times the ratio of an earlier step to
// its bound.
bool PresetPlans::seems_in_time(const LengthCandidate& entry, const Candidate& c,
                                const TimeLimits& time) {
  return !time.any() || entry.slower * evaluator_.demand(c).step_seconds() <= most_seconds(c, time);
}

// Limits the length of every way by bounds, which take a microsecond each.
std::vector<PresetPlans::LengthCandidate> PresetPlans::bounded(const LongestWanted& wanted) {
  std::vector<LengthCandidate> entries;
  for (const Way& way : ways(wanted.most)) {
    LengthCandidate entry{.way = way, .step = round_up(wanted.granularity, unit(way))};
    const auto may_fit = [&](int64_t count) {
      const std::optional<Candidate> c = candidate(way, count * entry.step);
      return c && evaluator_.overflow(evaluator_.demand(*c, DemandOf::bytes).peak_bytes()) == 0 &&
             seems_in_time(entry, *c, wanted.time);
    };
    if (entry.step > wanted.most || !may_fit(1)) continue;
    int64_t high = 2;
    while (high <= wanted.most / entry.step && may_fit(high)) high *= 2;
    entry.count = boundary(high / 2, std::min(high, wanted.most / entry.step + 1), may_fit);
    entry.refused = entry.count + 1;
    while (entry.stride * kLengths < entry.count) entry.stride *= 2;
    entries.push_back(entry);
  }
  return entries;
}

// Limits the length by live bytes, and by bounds on time scaled to the sampled simulation.
void PresetPlans::estimate(LengthCandidate& entry, const TimeLimits& time) {
  entry.estimated = true;
  if (time.any()) {
    const Candidate c = *candidate(entry.way, entry.length());
    entry.slower = evaluator_.fast(c).step_seconds / evaluator_.demand(c).step_seconds();
  }
  const auto may_fit = [&](int64_t count) {
    const std::optional<Candidate> c = candidate(entry.way, count * entry.step);
    return c && seems_in_time(entry, *c, time) && seems_to_fit(*c);
  };
  int64_t low = entry.count, apart = entry.stride;
  for (; low > 0 && !may_fit(low); apart *= 2) {
    entry.refused = low;
    low = std::max<int64_t>(0, low - apart);
  }
  entry.count = boundary(low, entry.refused, may_fit);
  entry.refused = entry.count + 1;
  if (entry.count > 0) entry.ops = ops(*candidate(entry.way, entry.length()));
}

// Looks right above the longest length found for ways of small programs that skipped lengths there.
void PresetPlans::extend(const std::vector<LengthCandidate>& entries, LengthCandidate& of,
                         int64_t& found) {
  for (const LengthCandidate& entry : entries) {
    if (!entry.estimated || entry.ops * kLengths > kEffortOps) continue;
    const auto fits = [&](int64_t count) {
      const std::optional<Candidate> c = candidate(entry.way, count * entry.step);
      return c && evaluator_.fits(*c);
    };
    const int64_t reached = found * of.step / entry.step;
    for (int64_t more = 1; reached + more < entry.refused; more *= 2) {
      if (!fits(reached + more)) continue;
      found = boundary(reached + more, entry.refused, fits);
      of = entry;
      break;
    }
  }
}

LongestFound PresetPlans::longest(const LongestWanted& wanted) {
  std::vector<LengthCandidate> entries = bounded(wanted);
  // Starts from the longest of all ways, so that nothing shorter than the answer is laid out.
  LongestFound best;
  int64_t bound = 0;
  if (wanted.time.any()) {
    // Bounds only: an estimate from scaled bounds proves nothing.
    for (const LengthCandidate& entry : entries) bound = std::max(bound, entry.length());
  }
  int64_t effort = kEffortOps;
  while (!entries.empty()) {
    // With limits on time most ways reach about as far, so ways that promise hardly more are
    // skipped.
    const double more = wanted.time.any() ? 1 + 1.0 / kLengths : 1;
    const auto reach = [&](const LengthCandidate& h) {
      return static_cast<double>(h.length()) * (h.estimated ? more : 1);
    };
    const auto next = std::max_element(
        entries.begin(), entries.end(), [&](const LengthCandidate& a, const LengthCandidate& b) {
          return reach(a) != reach(b) ? reach(a) < reach(b) : a.ops > b.ops;
        });
    LengthCandidate& entry = *next;
    if (!entry.estimated) {
      estimate(entry, wanted.time);
      if (!wanted.time.any()) bound = std::max(bound, entry.length());
      if (entry.count == 0) entries.erase(next);
      continue;
    }
    bool late = false;
    const auto fits = [&](int64_t count) {
      const Candidate c = *candidate(entry.way, count * entry.step);
      late = false;
      if (!evaluator_.fits(c)) return false;
      if (!wanted.time.any()) return true;
      const double seconds = evaluator_.exact(c).step_seconds;
      late = seconds > most_seconds(c, wanted.time);
      if (late) entry.slower = seconds / evaluator_.demand(c).step_seconds();
      return !late;
    };
    if (fits(entry.count)) {
      int64_t found = boundary(entry.count, entry.refused, fits);
      LengthCandidate of = entry;
      if (!wanted.time.any()) extend(entries, of, found);
      best.fits.candidate = *candidate(of.way, found * of.step);
      best.refused = candidate(of.way, (found + 1) * of.step).value_or(best.fits.candidate);
      // As best() of that length, so that both are short by the same. Of chunked presets there are
      // too many ways to lay out all.
      if (!wanted.time.any() && !is_chunked_preset(preset_)) {
        const std::optional<Scored> refused = nearest((found + 1) * of.step);
        if (refused && refused->score.overflow > 0) best.refused = refused->candidate;
      }
      best.step = of.step;
      break;
    }
    effort -= entry.ops / kRefusedPart;
    entry.refused = entry.count;
    if (late) {
      entry.count = boundary(0, entry.count, [&](int64_t count) {
        const std::optional<Candidate> c = candidate(entry.way, count * entry.step);
        return c && seems_in_time(entry, *c, wanted.time);
      });
    } else {
      // The lengths right below first, then increasingly far apart.
      if (++entry.looks * entry.ops > kRefusedPart * kLookOps && entry.looks >= kFewestLooks) {
        entry.looks = 0;
        entry.stride *= 2;
      }
      const int64_t stride = effort > 0 ? entry.stride : std::max(entry.stride, entry.count / 8);
      entry.count = (entry.count - 1) / stride * stride;
      if (entry.count == 0 && entry.refused > 1) entry.count = 1;
    }
    if (entry.count == 0) entries.erase(next);
  }
  if (best.step == 0) {
    // Not even one step fits.
    int64_t least = INT64_MAX;
    for (const Way& way : ways(wanted.most)) least = std::min(least, unit(way));
    best.step = round_up(wanted.granularity, least);
    if (const std::optional<Scored> shortest = nearest(best.step)) {
      best.refused = shortest->candidate;
    }
    return best;
  }
  best.fits.score = evaluator_.exact(best.fits.candidate);
  best.fits.exact = true;
  best.bound = std::max(bound, best.fits.candidate.sequence);
  return best;
}

}  // namespace longspan
