#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/bound_facts.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/budget.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/fast_path.h"
#include "planner/explain/lift.h"
#include "planner/program/layout.h"
#include "planner/search/knobs.h"
#include "planner/search/longest_pipeline.h"
#include "planner/search/search.h"

namespace longspan {
namespace {

// A family of strategies over lengths, and the lengths it may take: multiples of `granule`.
struct Family {
  StrategyFor strategy;
  int64_t granule = 1;
  int64_t most = 1;  // granules, a cap that is not about memory
};

class Prober {
 public:
  Prober(const ModelSpec& model, const HardwareProfile& hw, int64_t micro_batches)
      : model_(model),
        hw_(hw),
        dtype_(default_dtype(hw)),
        cost_(hw, dtype_),
        fast_(cost_),
        budget_(hw),
        micro_batches_(micro_batches) {}

  /// Whether the bound leaves it possible that this many granules fit, with what packing loses.
  bool may_fit(const Budget& budget, const Family& family, int64_t granules) {
    if (granules > family.most) return false;
    const StepRequest asked = request(family, granules);
    const Lengths lengths = lengths_of(asked.strategy, asked.sequence);
    const TensorBytes& bytes = bytes_of(asked, lengths);
    return budget.overflow_of_live(
               least_bytes(asked, asked.strategy, lengths, bytes, tile_bytes(bytes))) == 0;
  }

  /// The most granules that may fit, or 0 if not even one more than `beyond`.
  int64_t longest_bound(const Budget& budget, const Family& family, int64_t beyond) {
    return longest(family, beyond,
                   [&](int64_t granules) { return may_fit(budget, family, granules); });
  }

  /// The most granules that the fast path says fit, leaving room for what packing loses; or 0 if
  /// not even one more than `beyond`.
  int64_t longest_fast(const Budget& budget, const Family& family, int64_t beyond = 0) {
    if (!may_fit(budget, family, beyond + 1) || !fits_fast(budget, family, beyond + 1)) return 0;
    const int64_t most = longest_bound(budget, family, beyond);
    int64_t low = beyond + 1, high = most + 1;
    // The bound is close: look right below it first, then further and further away.
    for (int64_t step = 1; high - low > 1; step *= 4) {
      const int64_t probe = std::max(low + 1, high - step);
      if (fits_fast(budget, family, probe)) {
        low = probe;
        break;
      }
      high = probe;
    }
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits_fast(budget, family, middle) ? low : high) = middle;
    }
    return low;
  }

  /// The exact boundary above `low` granules, which fit, and below `high`, which do not: the
  /// returned count fits, one more does not. Packing is uneven, so there can be more than one: some
  /// lengths on the way to `hoped`, the nearest last, are looked at too.
  int64_t longest_exact(const Family& family, int64_t low, int64_t high, int64_t hoped) {
    const auto fits = [&](int64_t n) {
      return budget_.overflow(laid_out(family, n, &budget_.limits()).bytes) == 0;
    };
    const auto bisect = [&] {
      while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (fits(middle) ? low : high) = middle;
      }
    };
    bisect();
    for (int64_t gap = (hoped - high) / 2; gap > 0; gap /= 2) {
      if (gap < (hoped - high) / kLooks || !fits(high + gap)) continue;
      low = high + gap;
      high = std::min(high + 2 * gap, family.most + 1);
      bisect();
      break;
    }
    return low;
  }

  bool fits_exactly(const TierBytes& bytes) const { return budget_.overflow(bytes) == 0; }
  TierBytes live(const Family& family, int64_t granules) {
    return fast_.peak_bytes(request(family, granules));
  }
  /// What packing lost where a layout was larger than hoped, for all questions to come.
  void learn(const TierBytes& live, const TierBytes& arenas) { budget_.learn(live, arenas); }

  StepRequest request(const Family& family, int64_t granules) const {
    StepRequest r;
    r.sequence = granules * family.granule;
    r.model = fit_positions(model_, r.sequence);
    r.strategy = family.strategy(r.sequence);
    r.micro_batches = micro_batches_;
    r.dtype = dtype_;
    return r;
  }
  Arenas exact(const Family& family, int64_t granules) {
    return laid_out(family, granules, nullptr);
  }
  double seconds(const Family& family, int64_t granules) {
    return fast_.evaluate(request(family, granules)).step_seconds;
  }
  const TierBytes& limits() const { return budget_.limits(); }
  /// With what packing has lost anywhere so far.
  const Budget& budget() const { return budget_; }
  DType dtype() const { return dtype_; }

 private:
  static constexpr int64_t kLooks = 16;

  struct Exact {
    int64_t sequence;
    Strategy strategy;
    Arenas arenas;
    bool whole;  // over all ranks, not only up to one that does not fit
  };
  struct Sizes {
    StepRequest request;
    TensorBytes bytes;
  };

  // With limits, only so far that it is known whether the answer is within them.
  Arenas laid_out(const Family& family, int64_t granules, const TierBytes* limits) {
    const StepRequest asked = request(family, granules);
    for (const Exact& known : exact_) {
      if (known.sequence != asked.sequence || known.strategy != asked.strategy) continue;
      if (known.whole || limits != nullptr) return known.arenas;
    }
    const Arenas arenas = exact_arenas(asked, limits);
    const bool whole =
        limits == nullptr || asked.strategy.parallel.ring == 1 || fits_exactly(arenas.bytes);
    exact_.push_back({asked.sequence, asked.strategy, arenas, whole});
    return arenas;
  }

  // Strategies of one shape are asked about one after another, and have the same sizes.
  const TensorBytes& bytes_of(const StepRequest& asked, const Lengths& lengths) {
    const auto same = [&](const Sizes& known) {
      const Strategy &a = known.request.strategy, &b = asked.strategy;
      return known.request.sequence == asked.sequence && a.parallel == b.parallel &&
             a.block_tokens == b.block_tokens && a.chunk_tokens == b.chunk_tokens &&
             a.head_groups == b.head_groups && a.projection_tile == b.projection_tile &&
             a.mlp_tile == b.mlp_tile && a.loss_tile == b.loss_tile;
    };
    for (const Sizes& known : sizes_) {
      if (same(known)) return known.bytes;
    }
    Sizes& oldest = sizes_[next_size_++ % sizes_.size()];
    oldest = {asked, tensor_bytes(asked.model, lengths, asked.strategy, asked.dtype)};
    return oldest.bytes;
  }

  template <class Fits>
  static int64_t longest(const Family& family, int64_t beyond, const Fits& fits) {
    int64_t low = beyond, high = beyond + 1;
    for (int64_t stride = 1; high <= family.most && fits(high); stride *= 2) {
      low = high;
      high += stride;
    }
    if (low == beyond) return 0;
    high = std::min(high, family.most + 1);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }

  bool fits_fast(const Budget& budget, const Family& family, int64_t granules) {
    return budget.overflow_of_live(fast_.peak_bytes(request(family, granules))) == 0;
  }

  const ModelSpec& model_;
  const HardwareProfile& hw_;
  DType dtype_;
  CostModel cost_;
  FastPath fast_;
  Budget budget_;
  int64_t micro_batches_;
  std::vector<Exact> exact_;  // laid out so far
  std::array<Sizes, 4> sizes_;
  size_t next_size_ = 0;
};

struct Found {
  Family family;
  int64_t granules = 0;
  int64_t sequence() const { return granules * family.granule; }
};

// What a chunked sequence grows by: a chunk, or two for each position of a ring.
int64_t granule_of(int64_t chunk, int64_t ring) { return chunk * (ring > 1 ? 2 * ring : 1); }

// Chunks that can be dealt out to a Ulysses group.
std::vector<int64_t> chunk_sizes(const MaxSequenceOptions& options, const Parallel& grid) {
  if (options.chunk_tokens > 0) return {options.chunk_tokens};
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t chunk) {
    const int64_t dealt = round_up(chunk, grid.ulysses * grid.tensor);
    if (sizes.empty() || sizes.back() != dealt) sizes.push_back(dealt);
  };
  for (int64_t chunk = 64; granule_of(chunk, grid.ring) <= options.longest; chunk *= 2) {
    add(chunk);
    if (chunk >= 256) add(chunk + chunk / 2);
  }
  return sizes;
}

Family whole(StrategyFor strategy, const Parallel& grid, const MaxSequenceOptions& options) {
  const int64_t granule = round_up(options.granule, whole_granule(grid));
  return {std::move(strategy), granule, std::max<int64_t>(1, options.longest / granule)};
}

Family chunked(StrategyFor strategy, int64_t chunk, int64_t ring, int64_t most_chunks,
               const MaxSequenceOptions& options) {
  const int64_t granule = granule_of(chunk, ring);
  const int64_t most = ring > 1 ? std::max<int64_t>(1, most_chunks / 2) : most_chunks;
  return {std::move(strategy), granule, std::clamp<int64_t>(options.longest / granule, 1, most)};
}

std::vector<Family> preset_families(const ModelSpec& model, const HardwareProfile& hw,
                                    const std::string& preset, const MaxSequenceOptions& options) {
  std::vector<Family> families;
  const Parallel grid = preset_grid(preset, model, hw, options.parallel);
  for (const StatePlacement& placement : preset_placements(preset, grid)) {
    const auto strategy = [model, preset, grid, placement, deterministic = options.deterministic](
                              int64_t sequence, int64_t chunk) {
      Strategy s = make_preset(preset, model, sequence, chunk, grid);
      s.deterministic = deterministic;
      s.parameters = placement.parameters;
      s.gradients = placement.gradients;
      s.optimizer = placement.optimizer;
      return s;
    };
    if (!is_chunked_preset(preset)) {
      families.push_back(whole([strategy](int64_t s) { return strategy(s, 0); }, grid, options));
      continue;
    }
    for (const int64_t chunk : chunk_sizes(options, grid)) {
      families.push_back(chunked([strategy, chunk](int64_t s) { return strategy(s, chunk); }, chunk,
                                 grid.ring, most_chunks(model.layers, true), options));
    }
  }
  return families;
}

// Keeps the knobs of `s` that do not depend on the length.
Family with_knobs(const Strategy& s, bool one_block, int64_t chunk, int64_t layers,
                  const MaxSequenceOptions& options) {
  const auto at = [s, one_block, chunk](int64_t sequence) {
    Strategy t = s;
    t.chunk_tokens = chunk;
    t.block_tokens = one_block ? sequence / t.parallel.ring : chunk;
    return t;
  };
  return chunked(at, chunk, s.parallel.ring, most_chunks(layers, s.kv == Tier::host), options);
}

// Granules of a family that are not longer than what was found.
int64_t granules_in(const Found& found, const Family& family) {
  return found.sequence() / family.granule;
}

// Of what may be as long as this: the longest the exact way. What is hoped to be longest is laid
// out first; where that does not fit, it takes its place again with what its packing turned out to
// lose.
Found exactly_longest(Prober& prober, const HardwareProfile& hw, const std::vector<Found>& found) {
  struct Hope {
    Found found;
    Budget budget;    // with this family's packing
    int64_t hoped;    // granules, without any
    int64_t refused;  // fewest granules known not to fit
  };
  std::vector<Hope> hopes;
  for (const Found& f : found) {
    hopes.push_back({{f.family, prober.longest_fast(Budget(hw), f.family)}, Budget(hw), 0, 0});
    hopes.back().hoped = hopes.back().found.granules;
    hopes.back().refused = f.family.most + 1;
  }
  Found best = found.front();
  best.granules = 0;
  while (true) {
    const auto next = std::max_element(
        hopes.begin(), hopes.end(),
        [](const Hope& a, const Hope& b) { return a.found.sequence() < b.found.sequence(); });
    if (next->found.sequence() <= best.sequence()) break;
    const Family& family = next->found.family;
    const int64_t granules = std::exchange(next->found.granules, 0);
    const TierBytes bytes = prober.exact(family, granules).bytes;
    if (prober.fits_exactly(bytes)) {
      best = {family, prober.longest_exact(family, granules, next->refused, next->hoped)};
      continue;
    }
    const TierBytes live = prober.live(family, granules);
    next->budget.learn(live, bytes);
    prober.learn(live, bytes);
    next->refused = granules;
    const int64_t beyond = granules_in(best, family);
    const int64_t fast = prober.longest_fast(next->budget, family, beyond);
    // Halfway where the fast path has given up, which it does for the worst packing it has seen.
    next->found.granules = fast > 0 ? std::min(fast, granules - 1) : (beyond + granules) / 2;
  }
  return best;
}

// One configuration of every length, and the longest of it.
struct Point {
  Strategy strategy;
  bool one_block = false;
  int64_t chunk = 0;
  Found found;
};

// What may need least memory, in a grid that deals a sequence out.
std::vector<Point> long_points(const Parallel& grid, const ModelSpec& model, bool with_nvme,
                               const MaxSequenceOptions& options) {
  std::vector<Point> points;
  for (const int64_t chunk : chunk_sizes(options, grid)) {
    // Any length above one chunk stands for "chunked" when asking which knobs there are.
    const Shape shape{grid, 2 * chunk, chunk, options.deterministic};
    for (const Strategy& s : lean_strategies(model, shape, with_nvme, options.parallel.zero)) {
      const bool one_block = s.block_tokens != chunk;
      points.push_back(
          {s, one_block, chunk, {with_knobs(s, one_block, chunk, model.layers, options), 0}});
    }
  }
  return points;
}

// Goes on from a point by changing one knob at a time, or the chunk.
void improve(Point& best, Prober& prober, const ModelSpec& model,
             const MaxSequenceOptions& options) {
  const bool with_nvme = prober.limits()[2] > 0;
  const auto try_point = [&](const Strategy& s, bool one_block, int64_t chunk) {
    Point p{s, one_block, chunk, {with_knobs(s, one_block, chunk, model.layers, options), 0}};
    p.found.granules = prober.longest_fast(prober.budget(), p.found.family,
                                           granules_in(best.found, p.found.family));
    if (p.found.sequence() <= best.found.sequence()) return false;
    best = p;
    return true;
  };
  for (bool improved = true; improved;) {
    improved = false;
    const Shape shape{best.strategy.parallel, 2 * best.chunk, best.chunk, options.deterministic};
    for (const Knob& knob : knobs(model, shape, with_nvme, options.parallel.zero)) {
      for (const auto& set : knob.values) {
        Strategy changed = best.strategy;
        changed.chunk_tokens = best.chunk;
        changed.block_tokens = best.one_block ? 2 * best.chunk : best.chunk;
        set(changed);
        improved |= try_point(changed, changed.block_tokens != best.chunk, best.chunk);
      }
    }
    for (const int64_t chunk : chunk_sizes(options, best.strategy.parallel)) {
      improved |= try_point(best.strategy, best.one_block, chunk);
    }
  }
}

// The longest over the grids that deal a sequence out to as many ranks as the heads allow (fewer
// would hold more of it each): of those with a ring, which cannot stream keys and values, of those
// that cut up the layers, and of the others.
Found longest_auto(Prober& prober, const ModelSpec& model, const HardwareProfile& hw,
                   const MaxSequenceOptions& options, const Progress& progress) {
  std::vector<Parallel> candidates = grids(model, hw, options.parallel);
  const auto kind = [](const Parallel& grid) {
    return grid.tensor > 1 ? 2 : grid.ring > 1 ? 1 : 0;
  };
  int64_t fewest[3] = {INT64_MAX, INT64_MAX, INT64_MAX};  // replicas
  for (const Parallel& grid : candidates) {
    int64_t& of_kind = fewest[kind(grid)];
    of_kind = std::min(of_kind, grid.data);
  }
  std::erase_if(candidates, [&](const Parallel& grid) { return grid.data > fewest[kind(grid)]; });
  std::vector<Point> points;
  for (const Parallel& grid : candidates) {
    for (Point& point : long_points(grid, model, prober.limits()[2] > 0, options)) {
      points.push_back(std::move(point));
    }
  }
  // Where packing loses much of what was hoped for, other knobs may be better: again, with room.
  constexpr int kAttempts = 3;
  constexpr double kHoped = 0.9;
  Found longest;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // First by the bound alone, which says where to begin.
    std::vector<Point> leaders;
    Found by_bound = points.front().found;
    by_bound.granules = 0;
    for (const Point& point : points) {
      const Family& family = point.found.family;
      const int64_t beyond = granules_in(by_bound, family);
      if (!prober.may_fit(prober.budget(), family, beyond + 1)) continue;
      leaders.push_back(point);
      by_bound = {family, prober.longest_bound(prober.budget(), family, beyond)};
    }
    Point best = points.front();
    best.found.granules = prober.longest_fast(prober.budget(), best.found.family);
    std::vector<Found> found = {best.found};
    const auto visit = [&](const Point& point) {
      const Family& family = point.found.family;
      const int64_t granules =
          prober.longest_fast(prober.budget(), family, granules_in(best.found, family));
      if (granules * family.granule <= best.found.sequence()) return;
      best = point;
      best.found.granules = granules;
      found.push_back(best.found);
    };
    for (size_t i = leaders.size(); i-- > 0;) visit(leaders[i]);
    for (size_t i = 0; i < points.size(); ++i) {
      if (progress && i % 1024 == 0)
        progress(static_cast<int64_t>(i), static_cast<int64_t>(points.size()));
      visit(points[i]);
    }
    improve(best, prober, model, options);
    found.push_back(best.found);
    const auto hoped = static_cast<double>(best.found.sequence());
    const Found exact = exactly_longest(prober, hw, found);
    if (attempt == 0 || exact.sequence() > longest.sequence()) longest = exact;
    if (static_cast<double>(longest.sequence()) >= kHoped * hoped) break;
  }
  return longest;
}

Found longest_of_preset(Prober& prober, const ModelSpec& model, const HardwareProfile& hw,
                        const std::string& preset, const MaxSequenceOptions& options) {
  const std::vector<Family> families = preset_families(model, hw, preset, options);
  std::vector<Found> found;
  for (const Family& family : families) found.push_back({family, 0});
  return exactly_longest(prober, hw, found);
}

}  // namespace

std::string_view name_of(Limit limit) {
  constexpr std::string_view names[] = {"none", "device memory", "host memory", "nvme capacity",
                                        "positions"};
  return names[static_cast<int>(limit)];
}

namespace {

// Sequence 0 if none is longer than `beyond`.
MaxSequence longest_with_pipeline(const ModelSpec& model, const HardwareProfile& hw,
                                  const MaxSequenceOptions& options, int64_t beyond,
                                  const Progress& progress) {
  PipelineJudge judge(model, hw, options.micro_batches);
  const LongestPipeline longest = longest_pipeline(judge, model, hw, options, beyond, progress);
  MaxSequence result;
  result.strategy = "auto";
  result.sequence = longest.sequence;
  result.granule = longest.granule;
  result.refused = longest.refused;
  if (longest.sequence == 0) return result;
  for (int tier = 0; tier < kTierCount; ++tier) {
    const int64_t missing = longest.refused_bytes[tier] - judge.limits()[tier];
    if (missing <= 0) continue;
    result.limit = static_cast<Limit>(tier + 1);
    result.shortfall_bytes = missing;
    break;
  }
  result.plan = judge.plan(longest.strategy, longest.sequence);
  result.plan.predicted =
      prediction_of(result.plan, longest.score.step_seconds, longest.score.bytes);
  return result;
}

// "longest with pipeline 8 (...): 10 of 80 layers on a rank; without a pipeline 2.1M tokens fit"
std::string why_longer(const MaxSequence& piped, const MaxSequence& flat) {
  const Pipeline& pipeline = piped.plan.strategy.parallel.pipeline;
  const int64_t layers = piped.plan.model.layers;
  return fmt::format("longest with {}: {} of {} layers on a rank; without a pipeline {} tokens fit",
                     describe(pipeline), (layers + pipeline.stages - 1) / pipeline.stages, layers,
                     flat.sequence == 0 ? "no" : format_tokens(flat.sequence));
}

}  // namespace

MaxSequence max_sequence(const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& strategy, const MaxSequenceOptions& options,
                         const Progress& progress) {
  if (options.granule <= 0)
    throw bad_input("granule: expected tokens > 0, got {}", options.granule);
  const ParallelChoice& choice = options.parallel;
  check_choice(choice);
  if (!model.uniform()) {
    if (strategy == "auto") return longest_with_pipeline(model, hw, options, 0, progress);
    throw bad_input("--strategy: {}, whose layers differ, is planned by strategy auto; got {}",
                    model.name, strategy);
  }
  const bool pipes = strategy == "auto" && may_pipe(hw, choice);
  if (!choice.admits_flat()) {
    if (pipes) return longest_with_pipeline(model, hw, options, 0, progress);
    throw bad_input("--pipeline: pipelines are for strategy auto, on two devices or more");
  }
  Prober prober(model, hw, options.micro_batches);
  const Found best = strategy == "auto" ? longest_auto(prober, model, hw, options, progress)
                                        : longest_of_preset(prober, model, hw, strategy, options);

  MaxSequence result;
  result.strategy = strategy;
  result.sequence = best.sequence();
  result.granule = best.family.granule;

  const StepRequest next = prober.request(best.family, best.granules + 1);
  result.refused = next.strategy;
  if (best.granules < best.family.most) {  // else it is not memory that stops the next
    const Arenas needed = prober.exact(best.family, best.granules + 1);
    for (int tier = 0; tier < kTierCount; ++tier) {
      if (needed.bytes[tier] <= prober.limits()[tier]) continue;
      result.limit = static_cast<Limit>(tier + 1);
      result.shortfall_bytes = needed.bytes[tier] - prober.limits()[tier];
      result.would_lift = lift_for(next, needed.largest[tier], static_cast<Tier>(tier));
      break;
    }
  }
  if (pipes) {
    MaxSequence piped = longest_with_pipeline(model, hw, options, result.sequence, progress);
    if (piped.sequence > result.sequence) {
      piped.beside = why_longer(piped, result);
      return piped;
    }
    result.beside = "longest without a pipeline: with none more fits";
  }
  if (result.sequence == 0) return result;

  Plan& plan = result.plan;
  plan = plan_of(prober.request(best.family, best.granules), hw);
  plan.predicted = prediction_of(plan, prober.seconds(best.family, best.granules),
                                 prober.exact(best.family, best.granules).bytes);
  return result;
}

}  // namespace longspan
