#include "planner/search/pipelines.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "planner/search/descend.h"
#include "planner/search/longest_pipeline.h"
#include "planner/search/pipeline_space.h"

namespace longspan {
namespace {

// Bounds are a little low in memory: guesses are made with all of it, and with room for that.
constexpr double kRooms[] = {1, 0.95};
constexpr size_t kScored = 64, kOfOneKind = 4;  // by the fast path, shared among kinds of layers
constexpr size_t kDescents = 3;
constexpr size_t kPaired = 6;    // guesses that are looked around in pairs of knobs
constexpr int64_t kEnough = 80;  // scores, likewise, after which none is begun
constexpr size_t kExact = 4;
constexpr int kAttempts = 3;
constexpr double kHopeless = 0.3;  // by which part of a tier what is guessed best misses

// One grid and one way to cut the sequence, with the schedules and knobs there are for it.
struct Space {
  Shape shape;
  std::vector<Pipeline> schedules;
  std::vector<Knob> knobs;
};

// The ways to cut a sequence on a grid: whole, in chunks, in slices.
std::vector<Shape> shapes_of(Parallel grid, int64_t sequence, const SearchOptions& options) {
  std::vector<Shape> shapes;
  const int64_t asked = options.chunk_tokens, rings = grid.ring > 1 ? 2 * grid.ring : 1;
  const auto add = [&](int64_t chunk) {
    if (asked > 0 && chunk != asked) return;
    if (sequence % (chunk * rings) == 0 && chunk % (grid.ulysses * grid.tensor) == 0) {
      shapes.push_back({grid, sequence / grid.ring, chunk, options.deterministic});
    }
  };
  for (const int64_t slices : slice_counts(grid, options.micro_batches, options.parallel)) {
    if (sequence % slices != 0) continue;
    if (sequence / slices % (grid.ulysses * grid.tensor) != 0) continue;
    grid.pipeline.slices = slices;
    if (slices > 1) {
      add(grid.tensor > 1 ? sequence : sequence / slices);
    } else if (asked > 0) {
      if (sequence / rings <= asked * most_chunks(grid)) add(asked);
    } else {
      for (const int64_t chunks : chunk_counts(grid)) {
        if (sequence % (chunks * rings) == 0) add(sequence / (chunks * rings));
      }
    }
  }
  return shapes;
}

std::vector<Space> spaces_of(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                             bool with_nvme, const SearchOptions& options) {
  std::vector<Space> spaces;
  for (const Parallel& grid : stage_grids(model, hw, options.parallel)) {
    for (const Shape& shape : shapes_of(grid, sequence, options)) {
      std::vector<Pipeline> schedules = schedules_of(shape.grid.pipeline, model, options.parallel);
      if (schedules.empty()) continue;
      spaces.push_back(
          {shape, std::move(schedules), pipeline_knobs(model, shape, with_nvme, options.parallel)});
    }
  }
  return spaces;
}

// The one that a strategy was found in.
const Space& space_of(const std::vector<Space>& spaces, const Strategy& strategy) {
  Parallel grid = strategy.parallel;
  return *std::find_if(spaces.begin(), spaces.end(), [&](const Space& s) {
    if (s.shape.chunk != strategy.chunk_tokens) return false;
    const Pipeline &own = s.shape.grid.pipeline, &other = strategy.parallel.pipeline;
    if (own.stages != other.stages || own.slices != other.slices) return false;
    grid.zero = s.shape.grid.zero;
    grid.pipeline = own;
    return grid == s.shape.grid;
  });
}

// Whether two are worth one look: only their schedules' names differ, or less.
bool twins(const Candidate& a, const Candidate& b) {
  return a.score.seconds == b.score.seconds && a.score.bytes == b.score.bytes &&
         a.strategy.parallel.data == b.strategy.parallel.data;
}

bool same_kind(const Strategy& a, const Strategy& b) {
  const Parallel &p = a.parallel, &q = b.parallel;
  return p.pipeline == q.pipeline && p.tensor == q.tensor && p.data == q.data;
}

void sort_best_first(std::vector<Candidate>& candidates, Objective objective) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) {
                     return a.score.better_than(b.score, objective);
                   });
}

std::vector<Candidate> guess_all(PipelineJudge& judge, const std::vector<Space>& spaces,
                                 int64_t sequence, const SearchOptions& options,
                                 const Progress& progress) {
  std::vector<Candidate> found;
  const auto worth = [](const Strategy&, const Candidate&) { return true; };
  for (const double room : kRooms) {
    const auto guess = [&](const Strategy& s) { return judge.guess(s, sequence, room); };
    const size_t first = found.size();
    for (const Space& space : spaces) {
      if (progress) {
        // After what there is without a pipeline.
        const auto all = static_cast<int64_t>(spaces.size());
        progress(all + (&space - spaces.data() + (room < 1 ? all : 0)) / 2, 2 * all);
      }
      for (const Pipeline& schedule : space.schedules) {
        for (const Corner corner : kCorners) {
          Candidate from{corner_of(space.shape, options.parallel.zero, corner), {}};
          from.strategy.parallel.pipeline = schedule;
          from.score = guess(from.strategy);
          if (from.score.overflow >= PipelineJudge::kImpossible) continue;
          found.push_back(descend(from, space.knobs, options.objective, guess, worth));
        }
      }
    }
    std::vector<Candidate> best(found.begin() + static_cast<int64_t>(first), found.end());
    sort_best_first(best, options.objective);
    if (best.size() > kPaired) best.resize(kPaired);
    for (Candidate& c : best) {
      const std::vector<Knob>& knobs = space_of(spaces, c.strategy).knobs;
      for (bool improved = true; improved;) {
        const Candidate next = improve_by_pairs(c, knobs, options.objective, guess);
        improved = next.score.better_than(c.score, options.objective);
        if (improved) c = descend(next, knobs, options.objective, guess, worth);
      }
      // Beside what it began with: guesses are guesses.
      found.push_back(c);
    }
  }
  sort_best_first(found, options.objective);
  return found;
}

// By the fast path: the best guesses, a few of each kind, and what descents from the best find.
std::vector<Candidate> score_best(PipelineJudge& judge, const std::vector<Space>& spaces,
                                  const std::vector<Candidate>& guessed, int64_t sequence,
                                  const SearchOptions& options) {
  std::vector<Candidate> scored;
  const auto score = [&](const Strategy& s) {
    scored.push_back({s, judge.score(s, sequence)});
    return scored.back().score;
  };
  std::vector<const Candidate*> looked_at;
  for (const Candidate& c : guessed) {
    if (looked_at.size() >= kScored / judge.kinds()) break;
    const auto alike = [&](const Candidate* other) {
      return same_kind(c.strategy, other->strategy);
    };
    const auto known = [&](const Candidate* other) { return twins(c, *other); };
    if (std::any_of(looked_at.begin(), looked_at.end(), known) ||
        std::count_if(looked_at.begin(), looked_at.end(), alike) >=
            static_cast<int64_t>(kOfOneKind)) {
      continue;
    }
    looked_at.push_back(&c);
    score(c.strategy);
  }
  sort_best_first(scored, options.objective);
  const std::vector<Candidate> starts(
      scored.begin(), scored.begin() + static_cast<int64_t>(std::min(kDescents, scored.size())));
  const int64_t enough = judge.evaluations() + kEnough / static_cast<int64_t>(judge.kinds());
  for (const Candidate& start : starts) {
    const double ratio = start.score.seconds / judge.guess(start.strategy, sequence).seconds;
    const auto worth = [&](const Strategy& s, const Candidate& than) {
      if (judge.evaluations() >= enough) return false;
      Score guess = judge.guess(s, sequence);
      if (guess.overflow > 0) return false;
      guess.seconds *= ratio;
      return guess.better_than(than.score, options.objective);
    };
    descend(start, space_of(spaces, start.strategy).knobs, options.objective, score, worth);
  }
  sort_best_first(scored, options.objective);
  return scored;
}

}  // namespace

PipelinesFound search_pipelines(PipelineJudge& judge, const ModelSpec& model,
                                const HardwareProfile& hw, int64_t sequence,
                                const SearchOptions& options, const Progress& progress) {
  const std::vector<Space> spaces = spaces_of(model, hw, sequence, judge.limits()[2] > 0, options);
  if (spaces.empty()) throw none_suits(fmt::format("{} tokens of ", sequence), model, hw);
  PipelinesFound result;
  const auto look = [&](const Strategy& strategy) {
    const Candidate exact{strategy, judge.exact(strategy, sequence)};
    if (exact.score.overflow == 0) {
      result.fitting.push_back(exact);
    } else if (!result.nearest || exact.score.overflow < result.nearest->score.overflow) {
      result.nearest = exact;
    }
  };
  // As in search(): exact memory can exceed the sums by what packing loses.
  for (int attempt = 0; attempt < kAttempts && result.fitting.empty(); ++attempt) {
    const std::vector<Candidate> guessed = guess_all(judge, spaces, sequence, options, progress);
    if (guessed.empty()) throw none_takes(options.micro_batches);
    if (attempt > 0 && guessed.front().score.overflow > 0) break;
    if (guessed.front().score.overflow > kHopeless) {
      look(guessed.front().strategy);
      return result;
    }
    size_t looked = 0;
    for (const Candidate& c : score_best(judge, spaces, guessed, sequence, options)) {
      if (looked == kExact) break;
      if (c.score.overflow > 0 && looked > 0) break;
      try {
        validate(c.strategy, model, sequence, "");
      } catch (const Error&) {
        continue;
      }
      ++looked;
      look(c.strategy);
    }
  }
  if (result.fitting.empty()) {
    const std::optional<Strategy> lean = leanest_pipeline(judge, model, hw, sequence, options);
    if (lean) look(*lean);
  }
  sort_best_first(result.fitting, options.objective);
  return result;
}

}  // namespace longspan
