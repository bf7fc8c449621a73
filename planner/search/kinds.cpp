#include "planner/search/kinds.h"

#include <algorithm>

namespace longspan {

MeshKey mesh_of(const Candidate& c) {
  const ParallelLayout& p = c.strategy.parallel;
  return {p.data, p.tensor, p.ring, p.ulysses, p.pipeline.stages};
}

// Slices of one stage are blocks, whose number the kind has.
LayoutKey layout_of(const Candidate& c) {
  const ParallelLayout& p = c.strategy.parallel;
  const int64_t slices = p.pipeline.slices;
  return {p.data,
          p.tensor,
          p.ring,
          p.ulysses,
          p.pipeline.stages,
          p.pipeline.schedule,
          p.pipeline.virtual_stages,
          p.has_pipeline() ? slices : std::min<int64_t>(slices, 2)};
}

Kind kind_of(const Candidate& c) {
  const Strategy& s = c.strategy;
  return {layout_of(c), c.sequence / s.chunk_tokens, s.block_tokens == s.chunk_tokens,
          s.head_groups};
}

}  // namespace longspan
