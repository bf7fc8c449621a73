// Rotary position embedding with Hugging Face's rotate-half convention, optionally with Llama 3.1's
// frequency scaling. Immutable after construction, safe to share. Internal to engine/cpu.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cpu/thread_pool.h"
#include "models/model_spec.h"
#include "planner/program/token_share.h"

namespace longspan::cpu {

class Rope {
 public:
  /// REQUIRES: model.positions is rope and model.head_dim is even.
  explicit Rope(const ModelSpec& model);

  enum class Turn { forward, back };

  /// Rotates every head of x[n, heads * D] in place. `tokens` has the global
  /// positions of the rows.
  /// `back` is the transposed, as for gradients. Angles are computed in double and depend on
  /// the position alone, not on how rows are grouped into calls.
  void rotate(ThreadPool& pool, int64_t n, const TokenPositions& tokens, int64_t heads, Turn turn,
              float* x) const;

 private:
  // An angle is the sum of two: that of the last multiple of kAnchor positions, whose cos and sin
  // are computed, and that of the rest, from a table. Cheap, and exact at any position.
  static constexpr int64_t kAnchor = 64;

  void rotate_rows(int64_t begin, int64_t end, const TokenPositions& tokens, int64_t heads,
                   Turn turn, float* x) const;

  int64_t dim_ = 0;                // D
  int64_t half_ = 0;               // R/2, where the first R columns of a head are rotated
  std::vector<double> frequency_;  // [R/2] radians per position
  std::vector<double> cos_, sin_;  // [kAnchor, R/2]
};

}  // namespace longspan::cpu
