#include "planner/search/pipelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "planner/schedule/registry.h"
#include "planner/search/descend.h"

namespace longspan {
namespace {

constexpr std::array<int64_t, 8> kSlices = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr std::array<int64_t, 4> kChunks = {1, 4, 16, 64};  // of a sequence that is not sliced
constexpr int64_t kMostPipedChunks = 16;                    // stages are another way to less memory
constexpr int64_t kMostPasses = 512;                        // of slices through a stage in a step
constexpr size_t kScored = 48, kOfOneKind = 4;              // by the fast path
constexpr size_t kDescents = 2;
constexpr size_t kPaired = 6;    // guesses that are looked around in pairs of knobs
constexpr int64_t kEnough = 80;  // scores, after which none is begun
constexpr size_t kExact = 4;
constexpr int kAttempts = 3;

// Stages that begin and end where nodes do, or share one evenly.
bool suits_nodes(int64_t ranks, int64_t per_node) {
  return ranks % per_node == 0 || per_node % ranks == 0;
}

std::vector<Parallel> stage_grids(const ModelSpec& model, const HardwareProfile& hw,
                                  const ParallelChoice& choice) {
  if (choice.schedule) schedule_family(*choice.schedule);  // says which are near an unknown name
  std::vector<Parallel> all;
  const int64_t fewest = model.uniform() ? 2 : 1;
  for (int64_t stages = fewest; stages <= std::min(hw.devices(), model.layers); ++stages) {
    if (stages == 1 && choice.of_pipeline()) continue;
    if (hw.devices() % stages != 0 || choice.pipeline.value_or(stages) != stages) continue;
    const int64_t ranks = hw.devices() / stages;
    if (!suits_nodes(ranks, hw.devices_per_node)) continue;
    try {
      for (Parallel grid : grids(model, ranks, choice)) {
        // A ring is for what heads cannot be dealt out to; stages are another way to that.
        if (grid.ring > 1 && !choice.ring) continue;
        grid.pipeline.stages = stages;
        if (grid.replicas() > 1 && !choice.zero) grid.zero = 1;
        all.push_back(grid);
      }
    } catch (const Error&) {  // no grid of so few ranks: other numbers of stages may have one
    }
  }
  return all;
}

// How many microbatches a rank may hold in a schedule that arranges itself within memory: any
// number, and from twice 1F1B's down.
std::vector<int64_t> limits_of(const ScheduleFamily& family, int64_t stages,
                               const ParallelChoice& choice) {
  if (!family.limited) return {0};
  if (choice.in_flight) return {*choice.in_flight};
  return {0, 2 * stages, (3 * stages + 1) / 2, stages, (stages + 1) / 2};
}

// Two and four, or what is asked for, of what the family takes.
std::vector<int64_t> virtual_stages_of(const ScheduleFamily& family, const ParallelChoice& choice) {
  const int64_t least = family.least_virtual_stages, most = family.most_virtual_stages;
  if (choice.virtual_stages) {
    const int64_t v = *choice.virtual_stages;
    return v >= least && (most == 0 || v <= most) ? std::vector{v} : std::vector<int64_t>{};
  }
  std::vector<int64_t> all;
  for (int64_t v = least; v <= (most == 0 ? 4 : most); v *= 2) all.push_back(v);
  return all;
}

// The schedules of so many slices, with their virtual stages. Those that arrange themselves within
// memory are for those who ask for them: they take long to make.
std::vector<Pipeline> schedules_of(const Pipeline& pipeline, const ModelSpec& model,
                                   const ParallelChoice& choice) {
  if (pipeline.stages == 1) return {Pipeline{}};
  std::vector<Pipeline> all;
  for (const std::string_view name : plannable_schedules()) {
    const ScheduleFamily& family = schedule_family(name);
    const bool asked = choice.in_flight && family.limited;
    if (choice.schedule ? *choice.schedule != name : !asked && (family.limited || family.outdone)) {
      continue;
    }
    if (family.sliced != (pipeline.slices > 1) || (choice.in_flight && !family.limited)) continue;
    for (const int64_t v : virtual_stages_of(family, choice)) {
      if (v * pipeline.stages > model.layers) continue;
      for (const bool equal_work : {false, true}) {
        if (equal_work && (pipeline.slices == 1 || name != "seq1f1b")) continue;
        for (const int64_t in_flight : limits_of(family, pipeline.stages, choice)) {
          all.push_back({pipeline.stages, name, v, pipeline.slices, equal_work, in_flight});
        }
      }
    }
  }
  return all;
}

// Numbers of slices that a stage's grid may pass on, of those asked for.
std::vector<int64_t> slice_counts(const Parallel& grid, int64_t micro_batches,
                                  const ParallelChoice& choice) {
  const bool may_slice = grid.pipeline.stages > 1 && grid.ring == 1;
  std::vector<int64_t> counts;
  for (const int64_t slices :
       choice.slices ? std::vector{*choice.slices} : std::vector(kSlices.begin(), kSlices.end())) {
    if (slices == 1 || (may_slice && slices * micro_batches <= kMostPasses)) {
      counts.push_back(slices);
    }
  }
  return counts;
}

// Numbers of chunks that a sequence which is not sliced may be cut into.
std::vector<int64_t> chunk_counts(const Parallel& grid) {
  std::vector<int64_t> counts;
  for (const int64_t chunks : kChunks) {
    const bool piped = grid.pipeline.stages > 1;
    if (chunks == 1 || (grid.tensor == 1 && !(piped && chunks > kMostPipedChunks))) {
      counts.push_back(chunks);
    }
  }
  return counts;
}

// The ways to cut a sequence on a grid: whole, in chunks, in slices.
std::vector<Shape> shapes_of(Parallel grid, int64_t sequence, int64_t micro_batches,
                             const ParallelChoice& choice, int64_t chunk_tokens,
                             bool deterministic) {
  std::vector<Shape> shapes;
  const auto add = [&](int64_t chunk) {
    if (chunk_tokens > 0 && chunk != chunk_tokens) return;
    const int64_t unit = chunk * (grid.ring > 1 ? 2 * grid.ring : 1);
    if (sequence % unit == 0 && chunk % (grid.ulysses * grid.tensor) == 0) {
      shapes.push_back({grid, sequence / grid.ring, chunk, deterministic});
    }
  };
  for (const int64_t slices : slice_counts(grid, micro_batches, choice)) {
    if (sequence % slices != 0) continue;
    if (sequence / slices % (grid.ulysses * grid.tensor) != 0) continue;
    grid.pipeline.slices = slices;
    if (slices > 1) {
      add(grid.tensor > 1 ? sequence : sequence / slices);
      continue;
    }
    for (const int64_t chunks : chunk_counts(grid)) {
      const int64_t parts = chunks * (grid.ring > 1 ? 2 * grid.ring : 1);
      if (sequence % parts == 0) add(sequence / parts);
    }
  }
  return shapes;
}

// Where descents begin: everything on the device, nothing there that can be elsewhere or done
// again, and nothing done again, which is what schedules that split the backward need.
enum class Corner { kept, away, offloaded };

std::array<SavedPolicy*, 5> saved_of(Strategy& s) {
  return {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner};
}

// Of a sliced sequence a block is a slice: with more of it at a time nothing is gained.
Strategy start_of(const Shape& shape, const std::optional<int64_t>& zero, Corner corner) {
  Strategy s = corner == Corner::away ? everything_away(shape, zero) : everything_kept(shape);
  if (corner == Corner::offloaded) {
    for (SavedPolicy* saved : saved_of(s)) saved->where = Saved::host;
  }
  if (shape.grid.tensor == 1) s.block_tokens = shape.chunk;
  if (shape.grid.pipeline.slices == 1) return s;
  s.kv = s.idle = s.parameters = s.gradients = Tier::device;
  s.parallel.zero = shape.grid.zero;
  return s;
}

std::vector<Knob> pipeline_knobs(const ModelSpec& model, const Shape& shape,
                                 const ParallelChoice& choice) {
  std::vector<Knob> space = knobs(model, shape, false, choice.zero);
  // The exact way follows; these move little.
  std::erase_if(space, [&](const Knob& knob) {
    return knob.name == "offload_window" || knob.name == "prefetch_depth" ||
           knob.name == "head_groups" || (knob.name == "block" && shape.grid.pipeline.slices > 1);
  });
  Knob schedule{"schedule", {}};
  for (const Pipeline& pipeline : schedules_of(shape.grid.pipeline, model, choice)) {
    schedule.values.push_back([pipeline](Strategy& s) { s.parallel.pipeline = pipeline; });
  }
  space.insert(space.begin(), std::move(schedule));
  return space;
}

struct Space {
  Shape shape;
  std::vector<Knob> knobs;
};

bool same_kind(const Strategy& a, const Strategy& b) {
  const Parallel &p = a.parallel, &q = b.parallel;
  return p.pipeline.stages == q.pipeline.stages && p.pipeline.slices == q.pipeline.slices &&
         p.tensor == q.tensor && p.data == q.data;
}

// The one that a strategy was found in.
const Space& space_of(const std::vector<Space>& spaces, const Strategy& strategy) {
  const Parallel& grid = strategy.parallel;
  return *std::find_if(spaces.begin(), spaces.end(), [&](const Space& s) {
    Parallel other = s.shape.grid;
    other.zero = grid.zero;
    other.pipeline = grid.pipeline;
    return other == grid && s.shape.grid.pipeline.stages == grid.pipeline.stages &&
           s.shape.grid.pipeline.slices == grid.pipeline.slices &&
           s.shape.chunk == strategy.chunk_tokens;
  });
}

std::vector<Candidate> guess_all(PipelineJudge& judge, const std::vector<Space>& spaces,
                                 int64_t sequence, const SearchOptions& options) {
  std::vector<Candidate> found;
  const auto guess = [&](const Strategy& s) { return judge.guess(s, sequence); };
  const auto worth = [](const Strategy&, const Candidate&) { return true; };
  for (const Space& space : spaces) {
    for (const Corner corner : {Corner::kept, Corner::away, Corner::offloaded}) {
      const Strategy start = start_of(space.shape, options.parallel.zero, corner);
      // The best schedule of those asked for is where to go on from.
      Candidate from{start, {}};
      from.score.overflow = PipelineJudge::kImpossible;
      for (const auto& set : space.knobs.front().values) {
        Strategy changed = start;
        set(changed);
        const Score score = guess(changed);
        if (score.better_than(from.score, options.objective)) from = {changed, score};
      }
      if (from.score.overflow >= PipelineJudge::kImpossible) continue;
      found.push_back(descend(from, space.knobs, options.objective, guess, worth));
    }
  }
  const auto better = [&](const Candidate& a, const Candidate& b) {
    return a.score.better_than(b.score, options.objective);
  };
  std::stable_sort(found.begin(), found.end(), better);
  for (size_t i = 0, count = std::min(kPaired, found.size()); i < count; ++i) {
    const std::vector<Knob>& knobs = space_of(spaces, found[i].strategy).knobs;
    Candidate best = found[i];
    for (bool improved = true; improved;) {
      const Candidate next = improve_by_pairs(best, knobs, options.objective, guess);
      improved = next.score.better_than(best.score, options.objective);
      if (improved) best = descend(next, knobs, options.objective, guess, worth);
    }
    // Beside what it began with: guesses are guesses.
    found.push_back(best);
  }
  std::stable_sort(found.begin(), found.end(), better);
  return found;
}

// By the fast path: the best guesses, a few of each kind, and what a descent from the best finds.
std::vector<Candidate> score_best(PipelineJudge& judge, const std::vector<Space>& spaces,
                                  const std::vector<Candidate>& guessed, int64_t sequence,
                                  const SearchOptions& options) {
  std::vector<Candidate> scored;
  const auto score = [&](const Strategy& s) {
    scored.push_back({s, judge.score(s, sequence)});
    return scored.back().score;
  };
  for (const Candidate& c : guessed) {
    if (scored.size() == kScored) break;
    const auto alike = std::count_if(scored.begin(), scored.end(), [&](const Candidate& other) {
      return same_kind(c.strategy, other.strategy);
    });
    const bool known = std::any_of(scored.begin(), scored.end(), [&](const Candidate& other) {
      return c.strategy == other.strategy;
    });
    if (known || alike >= static_cast<int64_t>(kOfOneKind)) continue;
    score(c.strategy);
  }
  const auto better = [&](const Candidate& a, const Candidate& b) {
    return a.score.better_than(b.score, options.objective);
  };
  std::stable_sort(scored.begin(), scored.end(), better);
  const std::vector<Candidate> starts(
      scored.begin(), scored.begin() + static_cast<int64_t>(std::min(kDescents, scored.size())));
  const int64_t enough = judge.evaluations() + kEnough;
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
  std::stable_sort(scored.begin(), scored.end(), better);
  return scored;
}

std::vector<Space> spaces_of(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                             const SearchOptions& options) {
  std::vector<Space> spaces;
  for (const Parallel& grid : stage_grids(model, hw, options.parallel)) {
    for (const Shape& shape : shapes_of(grid, sequence, options.micro_batches, options.parallel,
                                        options.chunk_tokens, options.deterministic)) {
      Space space{shape, pipeline_knobs(model, shape, options.parallel)};
      if (!space.knobs.front().values.empty()) spaces.push_back(std::move(space));
    }
  }
  return spaces;
}

Error none_suits(const std::string& length, const ModelSpec& model, const HardwareProfile& hw) {
  return bad_input(
      "pipeline: no pipeline of what was asked for suits {}{} ({} layers) on {} devices; leave "
      "some of --pipeline, --schedule, --virtual, --slices and --in-flight out",
      length, model.name, model.layers, hw.devices());
}

Error none_takes(int64_t micro_batches) {
  return bad_input(
      "pipeline: no schedule of what was asked for takes {} microbatch{}; change --micro-batches, "
      "or leave --schedule, --virtual, --slices or --in-flight out",
      micro_batches, micro_batches == 1 ? "" : "es");
}

}  // namespace

PipelinesFound search_pipelines(PipelineJudge& judge, const ModelSpec& model,
                                const HardwareProfile& hw, int64_t sequence,
                                const SearchOptions& options) {
  const std::vector<Space> spaces = spaces_of(model, hw, sequence, options);
  if (spaces.empty()) {
    throw none_suits(fmt::format("{} tokens of ", sequence), model, hw);
  }
  PipelinesFound result;
  // As in search(): exact memory can exceed the sums by what packing loses.
  for (int attempt = 0; attempt < kAttempts && result.fitting.empty(); ++attempt) {
    const std::vector<Candidate> guessed = guess_all(judge, spaces, sequence, options);
    if (guessed.empty()) {
      throw none_takes(options.micro_batches);
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
      const Candidate exact{c.strategy, judge.exact(c.strategy, sequence)};
      if (exact.score.overflow == 0) {
        result.fitting.push_back(exact);
      } else if (!result.nearest || exact.score.overflow < result.nearest->score.overflow) {
        result.nearest = exact;
      }
    }
  }
  std::stable_sort(result.fitting.begin(), result.fitting.end(),
                   [&](const Candidate& a, const Candidate& b) {
                     return a.score.better_than(b.score, options.objective);
                   });
  return result;
}

namespace {

// Lengths come in multiples of this, so that slices and chunks are whole.
int64_t granule_of(const Parallel& grid, int64_t least) {
  const int64_t whole =
      grid.pipeline.slices * grid.tensor * grid.ulysses * (grid.ring > 1 ? 2 * grid.ring : 1);
  return (least + whole - 1) / whole * whole;
}

struct Hope {
  Strategy strategy;  // of any length: chunk and block are set by at_length()
  int64_t chunks = 1;
  int64_t granule = 0, sequence = 0;
};

Strategy at_length(const Hope& hope, int64_t sequence) {
  Strategy s = hope.strategy;
  const int64_t share = sequence / s.parallel.ring;
  const int64_t slices = s.parallel.tensor > 1 ? 1 : s.parallel.pipeline.slices;
  s.chunk_tokens = s.block_tokens = share / slices / hope.chunks;
  if (s.parallel.tensor > 1) s.chunk_tokens = s.block_tokens = sequence;
  return s;
}

// What takes least memory on a grid: states, saved tensors and tiles at the far end.
std::vector<Hope> hopes_of(const Parallel& grid, const ModelSpec& model,
                           const MaxSequenceOptions& options) {
  std::vector<Hope> hopes;
  for (const int64_t slices : slice_counts(grid, options.micro_batches, options.parallel)) {
    Parallel sliced = grid;
    sliced.pipeline.slices = slices;
    for (const Pipeline& pipeline : schedules_of(sliced.pipeline, model, options.parallel)) {
      for (const int64_t chunks : chunk_counts(grid)) {
        if (chunks > 1 && (slices > 1 || grid.ring > 1)) continue;
        Shape shape{sliced, 1 << 20, (1 << 20) / chunks, options.deterministic};
        shape.grid.pipeline = pipeline;
        Strategy away = start_of(shape, options.parallel.zero, Corner::away);
        if (slices > 1 && away.parallel.shards() > 1)
          away.parallel.zero = options.parallel.zero.value_or(2);
        const int64_t granule = granule_of(shape.grid, 4096 * chunks);
        hopes.push_back({away, chunks, granule, 0});
        Strategy kept_out = away;
        kept_out.attention_out.where = Saved::host;
        hopes.push_back({kept_out, chunks, granule, 0});
        // Nothing done again, for schedules that split the backward.
        for (const Saved where : {Saved::host, Saved::keep}) {
          Strategy whole = away;
          for (SavedPolicy* saved : saved_of(whole)) saved->where = where;
          hopes.push_back({whole, chunks, granule, 0});
        }
      }
    }
  }
  return hopes;
}

template <class Fits>
int64_t longest_multiple(int64_t granule, int64_t low, int64_t high, const Fits& fits) {
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle * granule) ? low : high) = middle;
  }
  return low * granule;
}

}  // namespace

LongestPipeline longest_pipeline(PipelineJudge& judge, const ModelSpec& model,
                                 const HardwareProfile& hw, const MaxSequenceOptions& options,
                                 int64_t beyond) {
  constexpr size_t kLooks = 4;
  std::vector<Hope> hopes;
  for (const Parallel& grid : stage_grids(model, hw, options.parallel)) {
    if (grid.data > 1 && !options.parallel.data) continue;  // fewer ranks would share a sequence
    for (Hope& hope : hopes_of(grid, model, options)) hopes.push_back(std::move(hope));
  }
  const bool asked = !options.parallel.admits_flat();
  if (asked && hopes.empty()) throw none_suits("", model, hw);
  bool possible = false;
  int64_t best = beyond;
  for (Hope& hope : hopes) {
    const auto overflow = [&](int64_t sequence) {
      return judge.guess(at_length(hope, sequence), sequence).overflow;
    };
    const int64_t low = best / hope.granule;  // only what is longer is of interest
    const double of_next = overflow((low + 1) * hope.granule);
    possible |= of_next < PipelineJudge::kImpossible;
    if (of_next > 0) continue;
    hope.sequence = longest_multiple(hope.granule, low + 1, options.longest / hope.granule + 1,
                                     [&](int64_t sequence) { return overflow(sequence) == 0; });
    best = hope.sequence;
  }
  if (asked && !possible) throw none_takes(options.micro_batches);
  std::stable_sort(hopes.begin(), hopes.end(),
                   [](const Hope& a, const Hope& b) { return a.sequence > b.sequence; });
  LongestPipeline longest;
  for (size_t i = 0; i < std::min(kLooks, hopes.size()); ++i) {
    const Hope& hope = hopes[i];
    if (hope.sequence <= std::max(longest.sequence, beyond)) break;
    const auto fits = [&](int64_t sequence) {
      const Strategy s = at_length(hope, sequence);
      validate(s, model, sequence, "max-seq");
      return judge.exact(s, sequence).overflow == 0;
    };
    // The guess is within a few percent: from there on by halves of what is left.
    int64_t high = hope.sequence / hope.granule + 1;
    const int64_t low = std::max(longest.sequence, beyond) / hope.granule;
    int64_t from = low;
    for (int64_t step = std::max<int64_t>(1, high / 32); high - step > low; step *= 2) {
      if (fits((high - step) * hope.granule)) {
        from = high - step;
        break;
      }
      high -= step;
    }
    if (from == low) continue;
    const int64_t sequence = longest_multiple(hope.granule, from, high, fits);
    if (sequence <= longest.sequence) continue;
    longest.sequence = sequence;
    longest.granule = hope.granule;
    longest.strategy = at_length(hope, sequence);
    longest.score = judge.exact(longest.strategy, sequence);
    longest.refused = at_length(hope, sequence + hope.granule);
    longest.refused_score = judge.exact(longest.refused, sequence + hope.granule);
  }
  return longest;
}

}  // namespace longspan
