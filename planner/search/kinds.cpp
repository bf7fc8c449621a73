#include "planner/search/kinds.h"

namespace longspan {

MeshKey mesh_of(const Candidate& c) {
  const ParallelLayout& p = c.strategy.parallel;
  return {p.data, p.tensor, p.ring, p.ulysses, p.pipeline.stages};
}

LayoutKey layout_of(const Candidate& c) {
  const ParallelLayout& p = c.strategy.parallel;
  return {p.data,
          p.tensor,
          p.ring,
          p.ulysses,
          p.pipeline.stages,
          p.pipeline.schedule,
          p.pipeline.virtual_stages,
          p.pipeline.slices};
}

Kind kind_of(const Candidate& c) {
  const Strategy& s = c.strategy;
  return {layout_of(c), c.sequence / s.chunk_tokens, s.block_tokens == s.chunk_tokens,
          s.head_groups};
}

}  // namespace longspan
