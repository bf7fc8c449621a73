#include "planner/search/refine.h"

#include <algorithm>
#include <cmath>

#include "planner/strategy/validity.h"

namespace longspan {
std::vector<Candidate> refinements_of(const Candidate& c, const Evaluator& evaluator,
                                      const SpaceOptions& options, bool nvme) {
  const ModelSpec model = evaluator.request(c).model;
  const Parallel& p = c.strategy.parallel;
  std::vector<Candidate> all;
  const auto add = [&](const Strategy& s) {
    Candidate changed = c;
    changed.strategy = s;
    if (s != c.strategy && is_valid(s, model, c.sequence)) all.push_back(std::move(changed));
  };
  const auto set = [&](auto member, const auto& values) {
    for (const auto value : values) {
      Strategy s = c.strategy;
      s.*member = value;
      add(s);
    }
  };
  using Counts = std::vector<int64_t>;
  set(&Strategy::prefetch_depth, Counts{0, 1, 2, 3, 4, 8});
  set(&Strategy::offload_window, Counts{0, 1, 2, 4});
  const int64_t layers = model.layers / p.pipeline.stages;
  for (SavedPolicy Strategy::*member :
       {&Strategy::layer_input, &Strategy::qkv, &Strategy::attention_out, &Strategy::mlp_input,
        &Strategy::mlp_inner}) {
    const SavedPolicy own = c.strategy.*member;
    for (const Saved where : {Saved::keep, Saved::recompute, Saved::host, Saved::nvme}) {
      if ((where == Saved::nvme && !nvme) || where == own.where) continue;
      Strategy s = c.strategy;
      s.*member = {where, where == Saved::keep ? 1.0 : own.fraction};
      add(s);
    }
    if (own.where == Saved::keep) continue;
    const auto covered =
        static_cast<int64_t>(std::llround(own.fraction * static_cast<double>(layers)));
    for (const int64_t fewer : {covered - 1, covered - layers / 8, covered - layers / 4,
                                covered + 1, covered + layers / 8}) {
      if (fewer <= 0 || fewer > layers || fewer == covered) continue;
      Strategy s = c.strategy;
      (s.*member).fraction = static_cast<double>(fewer) / static_cast<double>(layers);
      add(s);
    }
  }
  set(&Strategy::projection_tile, Counts{0, 512, 1024, 2048, 4096, 8192});
  set(&Strategy::mlp_tile, Counts{0, 512, 1024, 2048, 4096, 8192});
  set(&Strategy::loss_tile, Counts{0, 512, 1024, 2048, 4096, 8192});
  if (p.tensor == 1 && p.pipeline.slices == 1) {
    Counts blocks;
    const int64_t share = c.sequence / p.ring;
    for (int64_t block = c.strategy.chunk_tokens; block <= share; block *= 2)
      blocks.push_back(block);
    blocks.push_back(share);
    set(&Strategy::block_tokens, blocks);
  }
  set(&Strategy::kv, std::vector<Tier>{Tier::device, Tier::host});
  set(&Strategy::idle, std::vector<Tier>{Tier::device, Tier::host});
  set(&Strategy::backward_order,
      std::vector<BackwardOrder>{BackwardOrder::q_outer, BackwardOrder::kv_outer});
  const GroupValues values = values_of(c, options, nvme);
  for (const Strategy& s : values[static_cast<size_t>(Group::states)]) add(s);
  if (p.replicas() > 1 && !options.parallel.zero) {
    for (int64_t zero = 0; zero <= 3; ++zero) {
      Strategy s = c.strategy;
      s.parallel.zero = zero;
      add(s);
    }
  }
  return all;
}

}  // namespace longspan
