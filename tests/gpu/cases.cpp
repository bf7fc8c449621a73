#include "tests/gpu/cases.h"

#include <cmath>

#include "base/units.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

StepCase widened(StepCase step, int64_t factor) {
  if (factor == 1) return step;
  ModelSpec& m = step.model;
  for (int64_t* width : {&m.hidden, &m.head_dim, &m.ffn, &m.max_positions}) *width *= factor;
  // A multiple of 8, at most the largest that every library supports.
  m.head_dim = std::min<int64_t>(128, round_up(m.head_dim, 8));
  Strategy& s = step.strategy;
  for (int64_t* tokens : {&step.sequence, &s.chunk_tokens, &s.block_tokens, &s.projection_tile,
                          &s.mlp_tile, &s.loss_tile}) {
    *tokens *= factor;
  }
  step.weight_spread /= std::sqrt(static_cast<double>(factor));
  return step;
}

int64_t wide() { return on_gpu() ? 8 : 2; }

}  // namespace longspan::testing
