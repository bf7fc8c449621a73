#include "planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/judge.h"
#include "planner/explain/neighbours.h"
#include "planner/search/descend.h"
#include "planner/search/front.h"
#include "planner/search/knobs.h"
#include "planner/search/pipelines.h"

namespace longspan {
namespace {

// The grids and chunks that deal the sequence out evenly.
std::vector<Shape> shapes_of(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                             const SearchOptions& options) {
  std::vector<Shape> shapes;
  const int64_t most = most_chunks(model.layers, true);
  const std::vector<Parallel> all = grids(model, hw, options.parallel);
  for (const Parallel& grid : all) {
    const auto add = [&](int64_t chunk) {
      const Shape shape{grid, sequence / grid.ring, chunk, options.deterministic};
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

// Of everything that fitted: those no other beats in time, host memory and device memory, the
// fastest first.
std::vector<Candidate> pareto_front(const std::vector<Candidate>& seen) {
  constexpr double kSlack = 0.02;  // a point that saves less is not worth a line
  std::vector<Costs> costs;
  for (const Candidate& c : seen) {
    costs.push_back({c.score.seconds, static_cast<double>(c.score.bytes[1]),
                     static_cast<double>(c.score.bytes[0])});
  }
  std::vector<Candidate> front;
  for (const size_t i : non_dominated(costs, kSlack)) front.push_back(seen[i]);
  return front;
}

constexpr int kAttempts = 4;
constexpr size_t kFinalists = 8;
constexpr int kPerShape = 2;  // finalists of one grid and chunk size, so that they differ
constexpr size_t kSimulatedGuesses = 64;
constexpr size_t kDescents = 24;
constexpr int64_t kEnough = 900;      // simulated, after which no further descent is begun
constexpr int64_t kEnoughLean = 100;  // likewise for each end of the front
constexpr size_t kLeanLooks = 60;     // layouts of what may need least memory
constexpr size_t kPromising = 10;     // neighbours of the best that are simulated whole ...
constexpr int64_t kLooks = 24;        // ... and all of them together

bool same_shape(const Shape& shape, const Strategy& s) {
  Parallel grid = s.parallel;
  grid.zero = shape.grid.zero;
  return grid == shape.grid && s.chunk_tokens == shape.chunk;
}

const Space& space_of(const std::vector<Space>& spaces, const Strategy& s) {
  return *std::find_if(spaces.begin(), spaces.end(),
                       [&](const Space& space) { return same_shape(space.shape, s); });
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

// The front that is shown: its ends and some between, measured the exact way, so that no line
// promises what the best plan beside it does not keep.
std::vector<Candidate> exact_front(Judge& judge, const Candidate& best,
                                   const std::vector<Candidate>& seen, size_t lines) {
  const std::vector<Candidate> front = pareto_front(seen);
  std::vector<size_t> shown;
  for (const int tier : {1, 0}) {
    const auto least =
        std::min_element(front.begin(), front.end(), [&](const Candidate& a, const Candidate& b) {
          return a.score.bytes[tier] < b.score.bytes[tier];
        });
    shown.push_back(static_cast<size_t>(least - front.begin()));
  }
  for (size_t i = 0; i + 2 < lines; ++i) shown.push_back(i * front.size() / (lines - 2));
  std::vector<Candidate> exact = {best};
  for (const size_t i : shown) {
    const Candidate c{front[i].strategy, judge.exact(front[i].strategy)};
    if (c.score.overflow == 0) exact.push_back(c);
  }
  return pareto_front(exact);
}

// `what`: "plan", "plan with a pipeline".
[[noreturn]] void refuse(const char* what, const TierBytes& limits, const HardwareProfile& hw,
                         int64_t sequence, const TierBytes& nearest) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (nearest[tier] <= limits[tier]) continue;
    throw no_fit("no {} for {} tokens fits {}; nearest: {}", what, format_tokens(sequence), hw.name,
                 describe_shortfall(static_cast<Tier>(tier), nearest[tier], limits[tier]));
  }
  throw no_fit("no {} for {} tokens fits {}", what, format_tokens(sequence), hw.name);
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
  for (const Candidate& start : starts) descend_from(start, space_of(spaces, start.strategy));
  for (const Candidate& start : starts) {
    const Space& space = space_of(spaces, start.strategy);
    Strategy kept = everything_kept(space.shape);
    Strategy away = everything_away(space.shape, start.strategy.parallel.zero);
    for (const Strategy& corner : {away, kept}) {
      if (judge.evaluations() < enough) descend_from({corner, score(corner)}, space);
    }
  }
}

// Nothing fits if not even what may need least memory does, in the arithmetic of bounds. Returns
// the nearest miss, or nothing if something may fit.
std::optional<Candidate> proven_miss(Judge& judge, const ModelSpec& model,
                                     const std::vector<Space>& spaces,
                                     const std::optional<int64_t>& zero) {
  Candidate nearest;
  nearest.score.overflow = 1e300;
  for (const Space& space : spaces) {
    for (const Strategy& s : lean_strategies(model, space.shape, judge.limits()[2] > 0, zero)) {
      const Score score = judge.bound(s);
      if (score.overflow == 0) return std::nullopt;
      if (score.overflow < nearest.score.overflow) nearest = {s, score};
    }
  }
  return nearest;
}

// What the search has not found may still be there where memory is short to the last percent, as
// packing is uneven. Of what may need least memory: the first that fits the exact way, those with
// most room by their bounds looked at first; or what misses by least.
Candidate leanest(Judge& judge, const ModelSpec& model, int64_t sequence,
                  const std::vector<Space>& spaces, const std::optional<int64_t>& zero) {
  struct Hope {
    Strategy strategy;
    double filled;  // of the tier with least room, at least
  };
  std::vector<Hope> hopes;
  for (const Space& space : spaces) {
    for (Strategy& s : lean_strategies(model, space.shape, judge.limits()[2] > 0, zero)) {
      const double filled = judge.filled(s);
      if (filled <= 1) hopes.push_back({std::move(s), filled});
    }
  }
  std::stable_sort(hopes.begin(), hopes.end(),
                   [](const Hope& a, const Hope& b) { return a.filled < b.filled; });
  Candidate best;
  best.score.overflow = 1e300;
  for (size_t i = 0; i < std::min(hopes.size(), kLeanLooks) && best.score.overflow > 0; ++i) {
    try {
      validate(hopes[i].strategy, model, sequence, "");
    } catch (const Error&) {
      continue;
    }
    const Candidate c{hopes[i].strategy, judge.exact(hopes[i].strategy)};
    if (c.score.overflow < best.score.overflow) best = c;
  }
  return best;
}

// From the best towards each end of the front: less memory, at whatever price in time.
void search_lean(Judge& judge, const std::vector<Knob>& space, const Candidate& best,
                 std::vector<Candidate>& seen) {
  for (const Objective objective : {Objective::host_memory, Objective::memory}) {
    const int64_t enough = judge.evaluations() + kEnoughLean;
    const auto score = [&](const Strategy& s) {
      const Score value = judge.score(s);
      if (value.overflow == 0) seen.push_back({s, value});
      return value;
    };
    const auto worth = [&](const Strategy& s, const Candidate& than) {
      return judge.evaluations() < enough && judge.bound(s).better_than(than.score, objective);
    };
    descend({best.strategy, score(best.strategy)}, space, objective, score, worth);
  }
}

bool admits(const SearchOptions& options, const Strategy& s, const ModelSpec& model,
            int64_t sequence) {
  const ParallelChoice& choice = options.parallel;
  const Parallel& p = s.parallel;
  for (const auto& [fixed, degree] :
       {std::pair{choice.data, p.data}, std::pair{choice.tensor, p.tensor},
        std::pair{choice.ring, p.ring}, std::pair{choice.ulysses, p.ulysses},
        std::pair{choice.zero, p.zero}}) {
    if (fixed && *fixed != degree) return false;
  }
  if (choice.overlap != p.overlap || options.deterministic != s.deterministic) return false;
  if (options.chunk_tokens > 0 && options.chunk_tokens != s.chunk_tokens) return false;
  if (sequence / p.ring / s.chunk_tokens > most_chunks(model.layers, true)) return false;
  try {
    validate(s, model, sequence, "");
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Goes on from the best to a neighbour of it as long as one is better, so that whoever looks around
// a plan (verdict.h) does not find what the search has missed. The fast path says which neighbours
// may be better, the exact way whether they are. What fits is added to `seen`.
Candidate polish(Judge& judge, const ModelSpec& model, int64_t sequence, Candidate best,
                 const SearchOptions& options, std::vector<Candidate>& seen) {
  int64_t looks = kLooks;
  for (bool improved = true; improved && looks > 0;) {
    improved = false;
    std::vector<Candidate> promising;
    for (const Neighbour& n : neighbours(best.strategy, sequence, judge.limits()[2] > 0)) {
      if (!admits(options, n.strategy, model, sequence)) continue;
      if (!judge.bound(n.strategy).better_than(best.score, options.objective)) continue;
      const Candidate c{n.strategy, judge.score(n.strategy)};
      if (c.score.overflow > 0) continue;
      promising.push_back(c);
      seen.push_back(c);
    }
    for (const Candidate& c : finalists(promising, options.objective, kPromising, kPromising)) {
      if (looks-- == 0) break;
      // Memory of all positions of a ring takes longer than time: that is looked at first.
      if (options.objective == Objective::throughput &&
          judge.exact_seconds(c.strategy) >= best.score.seconds) {
        continue;
      }
      const Candidate exact{c.strategy, judge.exact(c.strategy)};
      if (!exact.score.better_than(best.score, options.objective)) continue;
      best = exact;
      improved = true;
      break;
    }
  }
  return best;
}

}  // namespace

namespace {

// The whole knob space but for pipelines.
SearchResult search_flat(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                         const SearchOptions& options, const Progress& progress) {
  Judge judge(model, hw, sequence, options.micro_batches);
  const bool with_nvme = judge.limits()[2] > 0;
  const std::optional<int64_t> zero = options.parallel.zero;
  std::vector<Space> spaces;
  for (const Shape& shape : shapes_of(model, hw, sequence, options)) {
    spaces.push_back({shape, knobs(model, shape, with_nvme, zero)});
  }

  if (const std::optional<Candidate> miss = proven_miss(judge, model, spaces, zero)) {
    refuse("plan", judge.limits(), hw, sequence, judge.score(miss->strategy).bytes);
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
  if (best.score.overflow > 0) {
    best = leanest(judge, model, sequence, spaces, zero);
    if (best.score.overflow > 0) {
      const Candidate& miss = best.score.overflow < 1e300 ? best : nearest;
      refuse("plan", judge.limits(), hw, sequence, miss.score.bytes);
    }
    seen.push_back(best);
  }
  best = polish(judge, model, sequence, std::move(best), options, seen);
  const Parallel& grid = best.strategy.parallel;
  const Shape shape{grid, sequence / grid.ring, best.strategy.chunk_tokens, options.deterministic};
  search_lean(judge, knobs(model, shape, with_nvme, zero), best, seen);

  SearchResult result;
  const auto plan_of = [&](const Candidate& c) {
    Plan plan = judge.plan(c.strategy);
    plan.predicted = prediction_of(plan, c.score.step_seconds, c.score.bytes);
    return plan;
  };
  for (const Candidate& c : exact_front(judge, best, seen, options.front_lines)) {
    result.pareto.push_back(plan_of(c));
    // The fast path may have ranked a line of the front below the finalists.
    if (c.score.better_than(best.score, options.objective)) best = c;
  }
  result.best = plan_of(best);
  result.considered = judge.considered();
  result.evaluated = judge.evaluations();
  return result;
}

SearchResult search_piped(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                          const SearchOptions& options, const Progress& progress) {
  PipelineJudge judge(model, hw, options.micro_batches);
  const PipelinesFound found = search_pipelines(judge, model, hw, sequence, options, progress);
  if (found.fitting.empty()) {
    refuse(model.uniform() ? "plan with a pipeline" : "plan", judge.limits(), hw, sequence,
           found.nearest ? found.nearest->score.bytes : TierBytes{});
  }
  SearchResult result;
  const auto plan_of = [&](const Candidate& c) {
    Plan plan = judge.plan(c.strategy, sequence);
    plan.predicted = prediction_of(plan, c.score.step_seconds, c.score.bytes);
    return plan;
  };
  for (const Candidate& c : pareto_front(found.fitting)) result.pareto.push_back(plan_of(c));
  result.best = plan_of(found.fitting.front());
  result.considered = judge.considered();
  result.evaluated = judge.evaluations();
  return result;
}

Score score_of(const Plan& plan) {
  return {0, plan.predicted.step_seconds, seconds_per_sequence(plan), plan.predicted.peak_bytes};
}

// Both together: the better of them first, the other beside it.
SearchResult joined(std::optional<SearchResult> flat, std::optional<SearchResult> piped,
                    Objective objective) {
  if (!flat || !piped) return flat ? std::move(*flat) : std::move(*piped);
  const bool piped_wins = score_of(piped->best).better_than(score_of(flat->best), objective);
  SearchResult result = std::move(piped_wins ? *piped : *flat);
  SearchResult& other = piped_wins ? *flat : *piped;
  result.rival = other.best;
  result.considered += other.considered;
  result.evaluated += other.evaluated;
  std::vector<Plan> plans = std::move(result.pareto);
  plans.insert(plans.end(), other.pareto.begin(), other.pareto.end());
  std::vector<Costs> costs;
  for (const Plan& plan : plans) {
    costs.push_back({seconds_per_sequence(plan), static_cast<double>(plan.predicted.peak_bytes[1]),
                     static_cast<double>(plan.predicted.peak_bytes[0])});
  }
  result.pareto.clear();
  for (const size_t i : non_dominated(costs, 0.02)) result.pareto.push_back(plans[i]);
  return result;
}

}  // namespace

SearchResult search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                    const SearchOptions& options, const Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  check_choice(options.parallel);
  std::optional<SearchResult> flat, piped;
  std::optional<Error> refused;
  // Models whose layers differ are judged as pipelines are, of one stage and of more.
  const bool pipes = !model.uniform() || may_pipe(hw, options.parallel);
  if (options.parallel.admits_flat() && model.uniform()) {
    try {
      flat = search_flat(model, hw, sequence, options, progress);
    } catch (const Error& error) {
      if (!pipes) throw;
      refused = error;
    }
  }
  if (pipes) {
    try {
      piped = search_piped(model, hw, sequence, options, progress);
    } catch (const Error& error) {
      if (!flat) throw refused ? *refused : error;
      flat->no_rival = error.what();
    }
  } else if (!flat) {
    throw bad_input("--pipeline: {} has {} device{}; a pipeline needs two or more", hw.name,
                    hw.devices(), hw.devices() == 1 ? "" : "s");
  }
  SearchResult result = joined(std::move(flat), std::move(piped), options.objective);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Plan plan_preset(const ModelSpec& model, const HardwareProfile& hw, const std::string& preset,
                 int64_t sequence, const SearchOptions& options) {
  if (options.parallel.pipeline.value_or(1) > 1 || options.parallel.of_pipeline()) {
    throw bad_input("--pipeline: pipelines are planned by strategy auto; {} has none", preset);
  }
  if (!model.uniform()) {
    throw bad_input("--strategy: {}, whose layers differ, is planned by strategy auto; got {}",
                    model.name, preset);
  }
  Judge judge(model, hw, sequence, options.micro_batches);
  const Parallel grid = preset_grid(preset, model, hw, options.parallel);
  Strategy strategy = make_preset(preset, model, sequence, options.chunk_tokens, grid);
  strategy.deterministic = options.deterministic;
  validate(strategy, model, sequence, preset);
  const auto placements = preset_placements(preset, grid);
  TierBytes bytes{};
  for (const StatePlacement& placement : placements) {
    strategy.parameters = placement.parameters;
    strategy.gradients = placement.gradients;
    strategy.optimizer = placement.optimizer;
    const Score score = judge.exact(strategy);
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
