#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "planner/program/layout.h"
#include "planner/search/budget.h"
#include "planner/search/evaluate.h"
#include "planner/search/fast_path.h"
#include "planner/search/knobs.h"
#include "planner/search/search.h"
#include "planner/simulate/analysis.h"

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

  /// The most granules that the fast path says fit, leaving room for what packing loses.
  int64_t longest_fast(const Family& family) {
    int64_t low = 0, high = 1;
    while (high <= family.most && fits_fast(family, high)) {
      low = high;
      high *= 2;
    }
    high = std::min(high, family.most + 1);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits_fast(family, middle) ? low : high) = middle;
    }
    return low;
  }

  /// The exact boundary near `guess`: the returned count fits, one more does not (or is the cap).
  int64_t longest_exact(const Family& family, int64_t guess) {
    int64_t low = 0, high = family.most + 1;  // invariant: low fits (0: vacuous), high does not
    int64_t probe = std::clamp<int64_t>(guess, 1, family.most);
    int64_t stride = 1;
    while (high - low > 1) {
      const TierBytes bytes = exact(family, probe);
      if (budget_.overflow(bytes) == 0) {
        low = probe;
        probe = high <= family.most ? low + (high - low) / 2 : low + stride;
      } else {
        // Ask the fast path again, now that the loss is known: it lands close by.
        budget_.learn(fast_.peak_bytes(request(family, probe)), bytes);
        high = probe;
        probe = std::max(longest_fast(family), low + 1);
        if (probe >= high) probe = high - stride;
      }
      stride *= 2;
      probe = std::clamp(probe, low + 1, std::max(low + 1, high - 1));
    }
    return low;
  }

  StepRequest request(const Family& family, int64_t granules) const {
    StepRequest r;
    r.sequence = granules * family.granule;
    r.model = fit_positions(model_, r.sequence);
    r.strategy = family.strategy(r.sequence);
    r.micro_batches = micro_batches_;
    r.dtype = dtype_;
    return r;
  }
  TierBytes exact(const Family& family, int64_t granules) const {
    return exact_peak_bytes(request(family, granules));
  }
  double seconds(const Family& family, int64_t granules) {
    return fast_.evaluate(request(family, granules)).step_seconds;
  }
  const TierBytes& limits() const { return budget_.limits(); }
  DType dtype() const { return dtype_; }

 private:
  bool fits_fast(const Family& family, int64_t granules) {
    return budget_.overflow_of_live(fast_.peak_bytes(request(family, granules))) == 0;
  }

  const ModelSpec& model_;
  const HardwareProfile& hw_;
  DType dtype_;
  CostModel cost_;
  FastPath fast_;
  Budget budget_;
  int64_t micro_batches_;
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
    const auto strategy = [model, preset, grid, placement](int64_t sequence, int64_t chunk) {
      Strategy s = make_preset(preset, model, sequence, chunk, grid);
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

// Of what the fast path found: the longest the exact way. One that packs badly may fall behind the
// next, so as many are tried as could be longer than the best so far.
Found exactly_longest(Prober& prober, std::vector<Found> found) {
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.sequence() > b.sequence(); });
  Found best = found.front();
  best.granules = prober.longest_exact(best.family, best.granules);
  for (size_t i = 1; i < found.size() && found[i].sequence() > best.sequence(); ++i) {
    // The loss in packing is better known by now.
    Found next = found[i];
    next.granules = prober.longest_fast(next.family);
    if (next.sequence() <= best.sequence()) continue;
    next.granules = prober.longest_exact(next.family, next.granules);
    if (next.sequence() > best.sequence()) best = next;
  }
  return best;
}

// The longest over all knobs in one grid: they are improved one at a time at one chunk size, then
// carried to the others, then improved again at the best.
Found longest_in(const Parallel& grid, Prober& prober, const ModelSpec& model,
                 const MaxSequenceOptions& options) {
  const bool with_nvme = prober.limits()[2] > 0;
  const std::optional<int64_t> zero = options.parallel.zero;
  const std::vector<int64_t> sizes = chunk_sizes(options, grid);
  // Any length above one chunk stands for "chunked" when asking which knobs there are.
  const auto shape_at = [&](int64_t chunk) { return Shape{grid, 2 * chunk, chunk}; };
  struct Point {
    Strategy strategy;
    bool one_block = false;
    int64_t chunk = 0;
    Found found;
  };
  const auto probe = [&](const Strategy& s, bool one_block, int64_t chunk) {
    Point p{s, one_block, chunk, {with_knobs(s, one_block, chunk, model.layers, options), 0}};
    p.found.granules = prober.longest_fast(p.found.family);
    return p;
  };
  const auto best_size = [&](const Point& from) {
    Point best = from;
    for (const int64_t chunk : sizes) {
      const Point p = probe(from.strategy, from.one_block, chunk);
      if (p.found.sequence() > best.found.sequence()) best = p;
    }
    return best;
  };
  const auto improve = [&](Point best) {
    for (bool improved = true; improved;) {
      improved = false;
      for (const Knob& knob : knobs(model, shape_at(best.chunk), with_nvme, zero)) {
        for (const auto& set : knob.values) {
          Strategy changed = best.strategy;
          changed.chunk_tokens = best.chunk;
          changed.block_tokens = best.one_block ? 2 * best.chunk : best.chunk;
          set(changed);
          const Point p = probe(changed, changed.block_tokens != best.chunk, best.chunk);
          if (p.found.sequence() > best.found.sequence()) {
            best = p;
            improved = true;
          }
        }
      }
    }
    return best;
  };
  const bool one_block = grid.tensor > 1;
  Point best = best_size(probe(everything_away(shape_at(sizes[0]), zero), one_block, sizes[0]));
  for (int round = 0; round < 2; ++round) {
    const int64_t before = best.found.sequence();
    best = best_size(improve(best));
    if (best.found.sequence() == before) break;
  }
  return best.found;
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
  // Where packing loses much of what was hoped for, other knobs may be better: again, with room.
  constexpr int kAttempts = 3;
  constexpr double kHoped = 0.9;
  Found best;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::vector<Found> found;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (progress) progress(static_cast<int64_t>(i), static_cast<int64_t>(candidates.size()));
      found.push_back(longest_in(candidates[i], prober, model, options));
    }
    double hoped = 0;
    for (const Found& f : found) hoped = std::max(hoped, static_cast<double>(f.sequence()));
    const Found exact = exactly_longest(prober, std::move(found));
    if (attempt == 0 || exact.sequence() > best.sequence()) best = exact;
    if (static_cast<double>(best.sequence()) >= kHoped * hoped) break;
  }
  return best;
}

Found longest_of_preset(Prober& prober, const ModelSpec& model, const HardwareProfile& hw,
                        const std::string& preset, const MaxSequenceOptions& options,
                        const Progress& progress) {
  const std::vector<Family> families = preset_families(model, hw, preset, options);
  std::vector<Found> found;
  for (size_t i = 0; i < families.size(); ++i) {
    if (progress) progress(static_cast<int64_t>(i), static_cast<int64_t>(families.size()));
    found.push_back({families[i], prober.longest_fast(families[i])});
  }
  return exactly_longest(prober, std::move(found));
}

std::string lift_for(const Program& program, const Layout& layout, Tier tier) {
  Tensor largest = Tensor::count;
  for (const PeakMemory& memory : memory_at_peak(program, layout)) {
    if (memory.tier == tier) largest = memory.tensors.front().tensor;
  }
  const Strategy& s = program.strategy;
  if (tier == Tier::nvme) return "a larger nvme capacity";
  const bool is_state = largest <= Tensor::adam_v_head;
  if (tier == Tier::host) {
    if (is_state && s.optimizer == Tier::host)
      return "optimizer state on nvme, or more host memory";
    if (s.layer_input.where == Saved::host) return "layer inputs on nvme, or more host memory";
    return "more host memory";
  }
  if (is_state) {
    return s.parameters == Tier::host ? "a smaller model unit or a larger device"
                                      : "parameters and optimizer on the host";
  }
  switch (largest) {
    case Tensor::ws_loss:
      return "tiles for logits+loss";
    case Tensor::ws_mlp_forward:
    case Tensor::ws_mlp_forward_saving:
    case Tensor::ws_mlp_backward:
    case Tensor::ws_mlp_backward_saved:
      return "tiles for the MLP";
    case Tensor::inner:
      return "recomputing the MLP inner, or its offload";
    case Tensor::ws_attention_forward:
    case Tensor::ws_attention_backward:
    case Tensor::ws_qkv_forward:
    case Tensor::ws_qkv_backward:
      return "tiles for the projections";
    default:
      break;
  }
  if (s.layer_input.where == Saved::keep) return "layer inputs offloaded to the host";
  if (s.block_tokens == program.lengths.sequence) {
    return "blocks for norms, residuals and projections (auto)";
  }
  return s.kv == Tier::device ? "keys and values streamed from the host" : "a smaller chunk";
}

}  // namespace

std::string_view name_of(Limit limit) {
  constexpr std::string_view names[] = {"none", "device memory", "host memory", "nvme capacity",
                                        "positions"};
  return names[static_cast<int>(limit)];
}

MaxSequence max_sequence(const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& strategy, const MaxSequenceOptions& options,
                         const Progress& progress) {
  if (options.granule <= 0)
    throw bad_input("granule: expected tokens > 0, got {}", options.granule);
  Prober prober(model, hw, options.micro_batches);
  const Found best = strategy == "auto"
                         ? longest_auto(prober, model, hw, options, progress)
                         : longest_of_preset(prober, model, hw, strategy, options, progress);

  MaxSequence result;
  result.strategy = strategy;
  result.sequence = best.sequence();
  result.granule = best.family.granule;

  const StepRequest next = prober.request(best.family, best.granules + 1);
  const TierBytes needed = exact_peak_bytes(next);
  result.refused = next.strategy;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (needed[tier] <= prober.limits()[tier]) continue;
    result.limit = static_cast<Limit>(tier + 1);
    result.shortfall_bytes = needed[tier] - prober.limits()[tier];
    const Program refused = build_program(next);
    result.would_lift = lift_for(refused, lay_out(refused), static_cast<Tier>(tier));
    break;
  }
  if (result.sequence == 0) return result;

  const StepRequest at = prober.request(best.family, best.granules);
  Plan& plan = result.plan;
  plan.model = at.model;
  plan.hardware = hw;
  plan.sequence = at.sequence;
  plan.micro_batches = at.micro_batches;
  plan.dtype = at.dtype;
  plan.strategy = at.strategy;
  plan.created_by = "longspan " LONGSPAN_VERSION;
  plan.predicted =
      prediction_of(plan, prober.seconds(best.family, best.granules), exact_peak_bytes(at));
  return result;
}

}  // namespace longspan
