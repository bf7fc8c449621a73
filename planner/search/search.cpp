#include "planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/units.h"
#include "planner/search/bounds.h"
#include "planner/search/budget.h"
#include "planner/search/evaluate.h"
#include "planner/search/fast_path.h"
#include "planner/search/knobs.h"

namespace longspan {
namespace {

// What is needed to judge configurations of one question.
class Judge {
 public:
  Judge(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence, int64_t micro_batches)
      : hw_(hw), dtype_(default_dtype(hw)), cost_(hw, dtype_), fast_(cost_), budget_(hw) {
    request_.model = fit_positions(model, sequence);
    request_.sequence = sequence;
    request_.micro_batches = micro_batches;
    request_.dtype = dtype_;
    bounds_.emplace(request_, cost_);
  }

  struct Score {
    double overflow = 0;  // how far beyond the capacities, relative; 0: fits
    double step_seconds = 0;
    double seconds = 0;  // per sequence: data replicas train several at once
    TierBytes bytes{};
    bool better_than(const Score& other, Objective objective) const {
      if (overflow > 0 || other.overflow > 0) return overflow < other.overflow;
      if (objective == Objective::memory && bytes[0] != other.bytes[0]) {
        return bytes[0] < other.bytes[0];
      }
      return seconds < other.seconds;
    }
  };

  /// At least this, in plain arithmetic.
  Score bound(const Strategy& strategy) {
    const Bound b = bounds_->of(strategy);
    return score_of(strategy, budget_.overflow_of_live(b.peak_bytes),
                    {b.step_seconds, b.peak_bytes});
  }

  /// A guess that ranks what has not been simulated: streams never overlap to the last.
  Score guess(const Strategy& strategy) {
    const Bound b = bounds_->of(strategy);
    const double seconds = b.step_seconds + kUnhidden * (b.busy_seconds - b.step_seconds);
    return score_of(strategy, budget_.overflow_of_live(b.peak_bytes), {seconds, b.peak_bytes});
  }

  Score score(const Strategy& strategy) {
    request_.strategy = strategy;
    const Evaluation e = fast_.evaluate(request_);
    return score_of(strategy, budget_.overflow_of_live(e.peak_bytes), e);
  }

  /// The exact way. Where that does not fit although the fast path said so, the loss in packing is
  /// remembered, so that the next round leaves room for it.
  Score exact(const Strategy& strategy) {
    const auto known = std::find_if(exact_.begin(), exact_.end(),
                                    [&](const auto& entry) { return entry.first == strategy; });
    if (known != exact_.end()) {
      return score_of(strategy, budget_.overflow(known->second.peak_bytes), known->second);
    }
    request_.strategy = strategy;
    const Evaluation e = evaluate(request_, cost_);
    exact_.emplace_back(strategy, e);
    budget_.learn(fast_.peak_bytes(request_), e.peak_bytes);
    return score_of(strategy, budget_.overflow(e.peak_bytes), e);
  }
  Plan plan(const Strategy& strategy) const {
    Plan plan;
    plan.model = request_.model;
    plan.hardware = hw_;
    plan.sequence = request_.sequence;
    plan.micro_batches = request_.micro_batches;
    plan.dtype = dtype_;
    plan.strategy = strategy;
    plan.created_by = "longspan " LONGSPAN_VERSION;
    return plan;
  }
  const TierBytes& limits() const { return budget_.limits(); }
  int64_t considered() const { return bounds_->considered(); }
  int64_t evaluations() const { return fast_.evaluations(); }

 private:
  static constexpr double kUnhidden = 0.03;

  static Score score_of(const Strategy& strategy, double overflow, const Evaluation& e) {
    const auto replicas = static_cast<double>(strategy.parallel.data);
    return {overflow, e.step_seconds, e.step_seconds / replicas, e.peak_bytes};
  }

  const HardwareProfile& hw_;
  DType dtype_;
  CostModel cost_;
  FastPath fast_;
  Budget budget_;
  StepRequest request_;
  std::optional<Bounds> bounds_;
  std::vector<std::pair<Strategy, Evaluation>> exact_;  // known so far
};

struct Candidate {
  Strategy strategy;
  Judge::Score score;
};

// Changes one knob at a time, for the better, until no single change helps. `worth` says whether a
// changed strategy may be better than the best so far, `score` how good it is.
template <class Score, class Worth>
Candidate descend(Candidate best, const std::vector<Knob>& space, Objective objective,
                  const Score& score, const Worth& worth) {
  for (bool improved = true; improved;) {
    improved = false;
    for (const Knob& knob : space) {
      const Strategy from = best.strategy;
      for (const auto& set : knob.values) {
        Strategy changed = from;
        set(changed);
        if (changed == from || !worth(changed, best)) continue;
        const Judge::Score value = score(changed);
        if (!value.better_than(best.score, objective)) continue;
        best = {std::move(changed), value};
        improved = true;
      }
    }
  }
  return best;
}

// The grids and chunks that deal the sequence out evenly.
std::vector<Shape> shapes_of(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                             const SearchOptions& options) {
  std::vector<Shape> shapes;
  const int64_t most = most_chunks(model.layers, true);
  const std::vector<Parallel> all = grids(model, hw, options.parallel);
  for (const Parallel& grid : all) {
    const auto add = [&](int64_t chunk) {
      const Shape shape{grid, sequence / grid.ring, chunk};
      const int64_t unit = chunk * (grid.ring > 1 ? 2 * grid.ring : 1);
      if (sequence % unit != 0 || chunk % grid.ulysses != 0) return;
      if (sequence % grid.tensor == 0) shapes.push_back(shape);
    };
    if (options.chunk_tokens > 0) {
      add(options.chunk_tokens);
      continue;
    }
    for (const int64_t count : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      const int64_t chunks = count * grid.ring;
      if (count > most || sequence % chunks != 0) continue;
      if (count == 1 || sequence / chunks >= 64) add(sequence / chunks);
    }
  }
  if (!shapes.empty()) return shapes;
  // Nothing divides: let the strategy's own check of one of them say what would.
  const int64_t chunk = options.chunk_tokens > 0 ? options.chunk_tokens : sequence / all[0].ring;
  validate(everything_kept({all[0], sequence / all[0].ring, chunk}), model, sequence, "plan");
  throw bad_input("plan: {} tokens cannot be dealt out evenly to {} ranks; try a multiple of {}",
                  sequence, hw.devices(), 2 * hw.devices());
}

struct Space {
  Shape shape;
  std::vector<Knob> knobs;
};

// Of everything that fitted: those no other beats in both time and device memory.
std::vector<Candidate> pareto_front(std::vector<Candidate> seen) {
  std::sort(seen.begin(), seen.end(), [](const Candidate& a, const Candidate& b) {
    if (a.score.seconds != b.score.seconds) return a.score.seconds < b.score.seconds;
    return a.score.bytes[0] < b.score.bytes[0];
  });
  std::vector<Candidate> front;
  for (const Candidate& c : seen) {
    // A point that saves less than 2% of memory is not worth a line.
    if (front.empty() || static_cast<double>(c.score.bytes[0]) <
                             0.98 * static_cast<double>(front.back().score.bytes[0])) {
      front.push_back(c);
    }
  }
  return front;
}

constexpr size_t kFrontLines = 10;
constexpr int kAttempts = 4;
constexpr size_t kFinalists = 8;
constexpr int kPerShape = 2;  // finalists of one grid and chunk size, so that they differ
constexpr size_t kSimulatedGuesses = 64;
constexpr size_t kDescents = 24;
constexpr int64_t kEnough = 800;  // simulated, after which no further descent is begun

bool same_shape(const Shape& shape, const Strategy& s) {
  Parallel grid = s.parallel;
  grid.zero = shape.grid.zero;
  return grid == shape.grid && s.chunk_tokens == shape.chunk;
}

// The best of what was seen, a few of each shape: the fast path ranks them nearly right, and the
// exact way decides among them.
std::vector<Candidate> finalists(std::vector<Candidate> seen, Objective objective,
                                 size_t most = kFinalists, int per_shape_most = kPerShape) {
  std::stable_sort(seen.begin(), seen.end(), [&](const Candidate& a, const Candidate& b) {
    return a.score.better_than(b.score, objective);
  });
  std::vector<Candidate> chosen;
  std::vector<std::pair<Shape, int>> per_shape;
  for (const Candidate& c : seen) {
    if (chosen.size() == most) break;
    Parallel grid = c.strategy.parallel;
    grid.zero = 0;
    const Shape shape{grid, 0, c.strategy.chunk_tokens};
    auto count = std::find_if(per_shape.begin(), per_shape.end(),
                              [&](const auto& entry) { return entry.first == shape; });
    if (count == per_shape.end()) count = per_shape.insert(count, {shape, 0});
    if (count->second == per_shape_most) continue;
    const bool known = std::any_of(chosen.begin(), chosen.end(), [&](const Candidate& other) {
      return other.strategy == c.strategy;
    });
    if (known) continue;
    ++count->second;
    chosen.push_back(c);
  }
  return chosen;
}

// The front that is shown: evenly thinned, and measured the exact way, so that no line promises
// what the best plan beside it does not keep.
std::vector<Candidate> exact_front(Judge& judge, const Candidate& best,
                                   std::vector<Candidate> seen) {
  std::vector<Candidate> front = pareto_front(std::move(seen));
  std::vector<Candidate> exact = {best};
  const size_t lines = std::min(kFrontLines, front.size());
  for (size_t i = 0; i < lines; ++i) {
    const Strategy& strategy = front[i * front.size() / lines].strategy;
    const Candidate c{strategy, judge.exact(strategy)};
    if (c.score.overflow == 0) exact.push_back(c);
  }
  return pareto_front(std::move(exact));
}

[[noreturn]] void refuse(const Judge& judge, const HardwareProfile& hw, int64_t sequence,
                         const Candidate& nearest) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (nearest.score.bytes[tier] <= judge.limits()[tier]) continue;
    throw no_fit("no plan for {} tokens fits {}; nearest: {}", format_tokens(sequence), hw.name,
                 describe_shortfall(static_cast<Tier>(tier), nearest.score.bytes[tier],
                                    judge.limits()[tier]));
  }
  throw no_fit("no plan for {} tokens fits {}", format_tokens(sequence), hw.name);
}

// The best guesses of every shape, from the best on: in arithmetic alone, from both corners.
std::vector<Candidate> guess_all(Judge& judge, const std::vector<Space>& spaces,
                                 const SearchOptions& options, const Progress& progress) {
  std::vector<Candidate> found;
  const auto score = [&](const Strategy& s) { return judge.guess(s); };
  const auto worth = [](const Strategy&, const Candidate&) { return true; };
  for (size_t i = 0; i < spaces.size(); ++i) {
    if (progress) progress(static_cast<int64_t>(i), static_cast<int64_t>(2 * spaces.size()));
    const Shape& shape = spaces[i].shape;
    for (const Strategy& start :
         {everything_away(shape, options.parallel.zero), everything_kept(shape)}) {
      for (const Objective objective : {options.objective, Objective::memory}) {
        const Candidate from{start, judge.guess(start)};
        found.push_back(descend(from, spaces[i].knobs, objective, score, worth));
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [&](const Candidate& a, const Candidate& b) {
    return a.score.better_than(b.score, options.objective);
  });
  return found;
}

// Simulates what was guessed to be best, and goes on from the best of that. What fits is added to
// `seen`; `nearest` becomes what misses by least.
void simulate_best(Judge& judge, const std::vector<Space>& spaces,
                   const std::vector<Candidate>& promising, Objective objective,
                   std::vector<Candidate>& seen, Candidate& nearest) {
  const auto score = [&](const Strategy& s) {
    const Candidate c{s, judge.score(s)};
    if (c.score.overflow == 0) seen.push_back(c);
    if (c.score.overflow < nearest.score.overflow) nearest = c;
    return c.score;
  };
  const auto worth = [&](const Strategy& s, const Candidate& than) {
    return judge.bound(s).better_than(than.score, objective);
  };
  std::vector<Candidate> simulated;
  Candidate best;
  best.score.overflow = 1e300;
  for (const Candidate& c : promising) {
    if (simulated.size() == kSimulatedGuesses) break;
    if (!worth(c.strategy, best)) continue;
    simulated.push_back({c.strategy, score(c.strategy)});
    if (simulated.back().score.better_than(best.score, objective)) best = simulated.back();
  }
  const std::vector<Candidate> starts = finalists(simulated, objective, kDescents, 1);
  // Where one guess leads is not where the corners of its shape do: those too, as far as there is
  // time for them.
  const int64_t enough = judge.evaluations() + kEnough;
  const auto descend_from = [&](const Candidate& start, const Space& space) {
    if (judge.evaluations() < enough) {
      descend(start, space.knobs, objective, score, worth);
    }
  };
  const auto space_of = [&](const Strategy& s) -> const Space& {
    return *std::find_if(spaces.begin(), spaces.end(),
                         [&](const Space& space) { return same_shape(space.shape, s); });
  };
  for (const Candidate& start : starts) descend_from(start, space_of(start.strategy));
  for (const Candidate& start : starts) {
    const Space& space = space_of(start.strategy);
    Strategy kept = everything_kept(space.shape);
    Strategy away = everything_away(space.shape, start.strategy.parallel.zero);
    for (const Strategy& corner : {away, kept}) {
      if (judge.evaluations() < enough) descend_from({corner, score(corner)}, space);
    }
  }
}

}  // namespace

SearchResult search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                    const SearchOptions& options, const Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  Judge judge(model, hw, sequence, options.micro_batches);
  const bool with_nvme = judge.limits()[2] > 0;
  const std::optional<int64_t> zero = options.parallel.zero;
  std::vector<Space> spaces;
  for (const Shape& shape : shapes_of(model, hw, sequence, options)) {
    spaces.push_back({shape, knobs(model, shape, with_nvme, zero)});
  }

  std::vector<Candidate> seen;
  Candidate best, nearest;
  best.score.overflow = nearest.score.overflow = 1e300;
  // Exact memory can exceed the fast path's sum by what packing loses; then search again with room.
  for (int attempt = 0; attempt < kAttempts && best.score.overflow > 0; ++attempt) {
    seen.clear();
    const std::vector<Candidate> promising = guess_all(judge, spaces, options, progress);
    simulate_best(judge, spaces, promising, options.objective, seen, nearest);
    if (seen.empty()) break;
    for (const Candidate& c : finalists(seen, options.objective)) {
      if (!judge.bound(c.strategy).better_than(best.score, options.objective)) continue;
      const Candidate exact{c.strategy, judge.exact(c.strategy)};
      if (exact.score.better_than(best.score, options.objective)) best = exact;
    }
  }
  if (best.score.overflow > 0) refuse(judge, hw, sequence, seen.empty() ? nearest : best);

  SearchResult result;
  const auto plan_of = [&](const Candidate& c) {
    Plan plan = judge.plan(c.strategy);
    plan.predicted = prediction_of(plan, c.score.step_seconds, c.score.bytes);
    return plan;
  };
  for (const Candidate& c : exact_front(judge, best, std::move(seen))) {
    result.pareto.push_back(plan_of(c));
    // The fast path may have ranked a line of the front below the finalists.
    if (c.score.better_than(best.score, options.objective)) best = c;
  }
  result.best = plan_of(best);
  result.considered = judge.considered();
  result.evaluated = judge.evaluations();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Plan plan_preset(const ModelSpec& model, const HardwareProfile& hw, const std::string& preset,
                 int64_t sequence, const SearchOptions& options) {
  Judge judge(model, hw, sequence, options.micro_batches);
  const Parallel grid = preset_grid(preset, model, hw, options.parallel);
  Strategy strategy = make_preset(preset, model, sequence, options.chunk_tokens, grid);
  validate(strategy, model, sequence, preset);
  const auto placements = preset_placements(preset, grid);
  TierBytes bytes{};
  for (const StatePlacement& placement : placements) {
    strategy.parameters = placement.parameters;
    strategy.gradients = placement.gradients;
    strategy.optimizer = placement.optimizer;
    const Judge::Score score = judge.exact(strategy);
    bytes = score.bytes;
    if (score.overflow > 0) continue;
    Plan plan = judge.plan(strategy);
    plan.predicted = predict(plan);
    return plan;
  }
  Plan plan = judge.plan(strategy);
  check_fits(plan, bytes);
  return plan;  // not reached: check_fits throws
}

}  // namespace longspan
