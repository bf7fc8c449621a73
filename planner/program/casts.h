// The casts of products below 16 bits: what an op reads to quantize the operands of its products,
// and the quantized copies that it holds meanwhile. The one description for time (cost/work.h) and
// memory (workspace.h).
//
// Parameters, activations and their gradients stay in the dtype between ops; each op quantizes what
// it multiplies, weights once, rows tile by tile. An operand is quantized along the dimension that
// its product sums over, so that a copy is made for each of the two directions that an op uses:
//
//   Y[t, out] = X[t, in] W[out, in]^T     X and W along `in`
//   dX[t, in] = dY[t, out] W[out, in]     dY and W along `out`
//   dW[out, in] = dY[t, out]^T X[t, in]   dY and X along t, padded to whole blocks
//
// All copies of an op exist at once, those of rows for one tile, each aligned to kCopyAlignment.
#pragma once

#include <cstdint>

#include "models/model_spec.h"
#include "planner/program/op.h"
#include "planner/program/tensor.h"
#include "planner/strategy/product_format.h"

namespace longspan {

inline constexpr int64_t kCopyAlignment = 256;

/// Elements that are read, and bytes of the copies.
struct Casts {
  int64_t weight_elements = 0, weight_bytes = 0;
  int64_t row_elements = 0, row_bytes = 0;  // of one tile
  int64_t bytes() const { return weight_bytes + row_bytes; }
};

/// The casts of an op of this shape with tiles of `rows` rows: of tokens, or of those that
/// experts_forward and experts_backward receive. `m` is the model of the op's kind of layer; the
/// ranks of a tensor group have `cut` parts of its widths, 1 if it is a rank's own. Nothing for ops
/// without such products.
Casts casts_of(const ModelSpec& m, const Lengths& lengths, int64_t cut, ProductFormat format,
               const OpShape& shape, int64_t rows);

/// Bytes that the casts of `elements` into copies of `bytes` move: the dtype's two bytes of an
/// element are read, twice where a tensor has a scale, and the copies written.
int64_t moved_bytes(ProductFormat format, int64_t elements, int64_t bytes);

}  // namespace longspan
