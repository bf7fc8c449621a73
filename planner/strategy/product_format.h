// The formats below 16 bits of layers' products, and the widths that they need.
//
// A layer's projections (queries, keys, values, attention's output, MLP, experts) multiply
// activations by weights. In a format below 16 bits both operands of such a product, and of the two
// products of its gradients, are quantized first, and results are in the dtype, as Transformer
// Engine does (github.com/NVIDIA/TransformerEngine, transformer_engine/common/recipe):
//   fp8            a float32 scale per tensor, from the tensor's own maximum (current scaling);
//                  E4M3, gradients E5M2
//   fp8-blockwise  a float32 scale per 128 elements, of weights per 128 x 128; E4M3
//   mxfp8          a scale of one byte (E8M0) per 32 elements; E4M3
//   nvfp4          E2M1, a scale of one byte (E4M3) per 16 elements and a float32 scale per tensor
// Attention, router, adapters, embedding, output layer and norms are not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "planner/strategy/strategy.h"

namespace longspan {

struct ProductFormatRow {
  int64_t bits = 16;             // of an element
  int64_t block = 0;             // elements with one scale, along a product's sum; 0: a tensor
  int64_t weight_block = 0;      // the same of weights
  int64_t scale_bytes = 0;       // of a block's scale
  bool scales_tensor = false;    // a float32 scale per tensor, for which its maximum is read first
  int64_t multiple = 1;          // widths and tokens are multiples of this
  int64_t first_capability = 0;  // compute capability of the first GPUs with such products
};
const ProductFormatRow& format_row(ProductFormat format);
/// The format of a name in kProductFormatNames; none for another text.
std::optional<ProductFormat> product_format_named(std::string_view name);

/// The bytes of a quantized copy of `elements`, a multiple of the format's blocks, without padding
/// of its scales.
int64_t copy_bytes(ProductFormat format, int64_t elements, bool of_weights);

/// A width of the model's products, or a number of tokens, that the format does not divide.
struct OddWidth {
  std::string what;   // "the inner width"
  int64_t width = 0;  // of a rank
  const char* knob;   // that cuts it, "" if none does
  int64_t parts = 1;  // into which the knob cuts it
};
/// The first one. REQUIRES: the strategy's other knobs are valid for the model.
std::optional<OddWidth> odd_width(const Strategy& strategy, const ModelSpec& model);
/// "fp8 needs multiples of 16, and the inner width of each of 8 tensor parts is 1000".
std::string describe(const OddWidth& odd, ProductFormat format);

}  // namespace longspan
