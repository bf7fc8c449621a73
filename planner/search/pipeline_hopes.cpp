#include "planner/search/pipeline_hopes.h"

#include <algorithm>

#include "planner/search/pipeline_space.h"

namespace longspan {
namespace {

constexpr int64_t kFinest = 1024;  // tokens a chunk grows by

// The ways to cut sequences on a grid that names slices.
std::vector<Hope> cuts_of(const Parallel& grid, const MaxSequenceOptions& options) {
  const int64_t slices = grid.pipeline.slices, rings = grid.ring > 1 ? 2 * grid.ring : 1;
  const int64_t dealt = grid.ulysses * grid.tensor;
  std::vector<Hope> cuts;
  const auto add = [&](int64_t chunks) {
    const int64_t parts = slices * chunks * rings, whole = parts * dealt;
    Hope& cut = cuts.emplace_back();
    cut.chunks = chunks;
    cut.granule = (parts * kFinest + whole - 1) / whole * whole;
    cut.most = options.longest / cut.granule;
  };
  if (const int64_t chunk = options.chunk_tokens; chunk > 0) {
    // A tensor group has one chunk, a slice is one: those are of one length.
    if (chunk % (grid.tensor > 1 ? slices * dealt : dealt) != 0) return {};
    Hope& cut = cuts.emplace_back();
    cut.chunk_tokens = chunk;
    cut.granule = chunk * (grid.tensor > 1 ? 1 : slices) * rings;
    cut.most = slices > 1 ? 1 : most_chunks(grid);
    cut.most = std::min(cut.most, options.longest / cut.granule);
    return cuts;
  }
  if (slices > 1) {
    add(1);
  } else {
    for (const int64_t chunks : chunk_counts(grid)) add(chunks);
  }
  return cuts;
}

std::vector<Strategy> lean_of(const Shape& shape, const ModelSpec& model, bool with_nvme,
                              const std::optional<int64_t>& asked) {
  std::optional<int64_t> zero = asked;
  const bool sliced = shape.grid.pipeline.slices > 1;
  if (sliced && !zero) zero = shape.grid.replicas() > 1 ? 2 : 0;
  std::vector<Strategy> lean = lean_strategies(model, shape, with_nvme, zero);
  const size_t recomputing = lean.size();
  for (size_t i = 0; i < recomputing; ++i) {
    if (lean[i].layer_input.where == Saved::keep) continue;
    for (const Saved where : {Saved::keep, Saved::host, Saved::nvme}) {
      if (where == Saved::nvme && !with_nvme) continue;
      Strategy whole = lean[i];
      for (SavedPolicy* saved : saved_of(whole)) saved->where = where;
      lean.push_back(std::move(whole));
    }
  }
  if (sliced) {
    std::erase_if(lean, [](const Strategy& s) { return against_slices(s).has_value(); });
  }
  return lean;
}

std::vector<Hope> hopes_of(const Parallel& grid, const ModelSpec& model, bool with_nvme,
                           const MaxSequenceOptions& options) {
  std::vector<Hope> hopes;
  for (const int64_t slices : slice_counts(grid, options.micro_batches, options.parallel)) {
    Parallel sliced = grid;
    sliced.pipeline.slices = slices;
    const std::vector<Pipeline> schedules = schedules_of(sliced.pipeline, model, options.parallel);
    if (schedules.empty()) continue;
    for (const Hope& cut : cuts_of(sliced, options)) {
      if (cut.most < 1) continue;
      // Two granules stand for any length when asking which knobs there are.
      Hope probe = cut;
      probe.strategy.parallel = sliced;
      const int64_t length = 2 * cut.granule;
      const int64_t chunk = at_length(probe, length).chunk_tokens;
      const Shape shape{sliced, length / grid.ring, chunk, options.deterministic};
      for (const Strategy& lean : lean_of(shape, model, with_nvme, options.parallel.zero)) {
        for (const Pipeline& pipeline : schedules) {
          Hope& hope = hopes.emplace_back(cut);
          hope.strategy = lean;
          hope.strategy.parallel.pipeline = pipeline;
          hope.one_block = slices == 1 && lean.block_tokens > chunk;
        }
      }
    }
  }
  return hopes;
}

}  // namespace

Strategy at_length(const Hope& hope, int64_t sequence) {
  Strategy s = hope.strategy;
  const Parallel& p = s.parallel;
  const int64_t share = sequence / p.ring;
  const int64_t parts = hope.chunks * (p.ring > 1 ? 2 : 1);
  s.chunk_tokens = hope.chunk_tokens;
  if (hope.chunk_tokens == 0) {
    s.chunk_tokens = p.tensor > 1 ? sequence : share / p.pipeline.slices / parts;
  }
  s.block_tokens = hope.one_block ? share : s.chunk_tokens;
  return s;
}

std::vector<Hope> pipeline_hopes(const ModelSpec& model, const HardwareProfile& hw, bool with_nvme,
                                 const MaxSequenceOptions& options) {
  std::vector<Hope> hopes;
  for (const Parallel& grid : stage_grids(model, hw, options.parallel)) {
    if (grid.data > 1 && !options.parallel.data) continue;  // fewer ranks would share a sequence
    for (Hope& hope : hopes_of(grid, model, with_nvme, options)) hopes.push_back(std::move(hope));
  }
  return hopes;
}

}  // namespace longspan
