#include "base/error.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

bool has_positions(const ModelSpec& model) {
  return model.positions == Positions::learned && model.max_positions > 0;
}

void check(const BlockContext& context, const int32_t* tokens, int64_t n, int64_t position0) {
  const ModelSpec& model = *context.model;
  const int64_t vocab = context.share.all(model.vocab);
  for (int64_t i = 0; i < n; ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab) {
      throw failed(
          "embedding: token {} of row {} is outside the vocabulary [0, {}); check the data",
          tokens[i], i, vocab);
    }
  }
  if (has_positions(model) && position0 + n > model.max_positions) {
    throw failed("embedding: position {} is beyond the {} learned positions of {}",
                 position0 + n - 1, model.max_positions, model.name);
  }
}

// y[i] += scale * x[i] for i in [0, n).
void add_scaled(const float* x, float scale, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, int64_t count) {
    store(y + i, load(y + i, count) + scale * load(x + i, count), count);
  });
}

// The row of the table for a token; null if another share of the vocabulary has it.
template <class Float>
Float* row_of(const BlockContext& context, Float* table, int32_t token) {
  const int64_t row = token - context.share.first;
  return 0 <= row && row < context.model->vocab ? table + row * context.model->hidden : nullptr;
}

}  // namespace

void embed_forward(const BlockContext& context, const float* unit, const int32_t* tokens, int64_t n,
                   int64_t position0, float* x) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden;
  check(context, tokens, n, position0);
  const float* positions = unit + model.vocab * d;
  const auto scale = static_cast<float>(model.embedding_scale);
  for_rows(*context.pool, n, d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (const float* row = row_of(context, unit, tokens[i]); row != nullptr) {
        for_lanes(d, [&](int64_t j, int64_t count) {
          store(x + i * d + j, scale * load(row + j, count), count);
        });
      } else {
        std::fill_n(x + i * d, d, 0.0F);
      }
      if (has_positions(model)) add_to(positions + (position0 + i) * d, d, x + i * d);
    }
  });
}

void embed_backward(const BlockContext& context, const int32_t* tokens, const float* dx, int64_t n,
                    int64_t position0, float* unit_gradient) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden;
  check(context, tokens, n, position0);
  float* positions = unit_gradient + (model.vocab + position0) * d;
  const auto scale = static_cast<float>(model.embedding_scale);
  // Each piece owns columns, so that no element is added to by two threads.
  for_pieces(*context.pool, ceil_div(d, kSumCols), [&](int64_t piece) {
    const int64_t first = piece * kSumCols;
    const int64_t cols = std::min(kSumCols, d - first);
    for (int64_t i = 0; i < n; ++i) {
      const float* from = dx + i * d + first;
      float* row = row_of(context, unit_gradient, tokens[i]);
      if (row != nullptr) add_scaled(from, scale, cols, row + first);
      if (has_positions(model)) add_to(from, cols, positions + i * d + first);
    }
  });
}

}  // namespace longspan::cpu
