// What an op does, in primitive kernels: the one place that says what each op kind costs.
//
// An op is a short list of primitives (GEMMs, attention, elementwise passes, bytes moved), each
// with the shape the rate tables are asked about. Time and FLOPs both follow from the list.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/program/program.h"

namespace longspan {

enum class Kernel : uint8_t {
  gemm_nt,
  gemm_nn,
  gemm_tn,  // (m, n, k); work in FLOP
  attention_forward,
  attention_backward,  // (queries, keys, head_dim), no pair masked; FLOP
  attention_forward_diagonal,
  attention_backward_diagonal,  // (queries, queries, head_dim); FLOP of the pairs a mask leaves
  norm_forward,
  norm_backward,
  rope,
  activation_forward,
  activation_backward,  // including the forward that it runs again
  loss,
  adamw,
  adamw_host,  // on the host's processor
  sumsq,
  zero,
  embed_forward,
  embed_backward,
  bias_gradient,
  add,   // elements
  pass,  // bytes read and written by any other elementwise kernel (bytes, 1, 1)
  copy_h2d,
  copy_d2h,
  io_read,
  io_write,  // bytes
  exchange,  // (bytes to each peer, ranks between neighbours of the group, ranks): all-to-all,
             // shift
  gather,    // the same shape: all-gather, reduce-scatter
  count
};
inline constexpr int kKernelCount = static_cast<int>(Kernel::count);
std::string_view name_of(Kernel);  // the family's name in a hardware profile

/// Matrix products.
inline bool is_product(Kernel kernel) { return kernel <= Kernel::gemm_tn; }
/// Attention over pairs that are all visible, or over the pairs a mask leaves.
inline bool is_attention(Kernel kernel) {
  return kernel >= Kernel::attention_forward && kernel <= Kernel::attention_backward_diagonal;
}
/// Kernels whose work is counted in FLOP.
inline bool counts_flops(Kernel kernel) { return is_product(kernel) || is_attention(kernel); }
/// Kernels that move bytes between tiers or ranks.
inline bool is_transfer(Kernel kernel) {
  return kernel >= Kernel::copy_h2d && kernel < Kernel::count;
}

struct Primitive {
  Kernel kernel;
  std::array<double, 3> shape;  // for the rate table
  double work;                  // FLOP, elements or bytes, by the kernel's unit
  double repeats = 1;           // number of runs (tiles); a partial tile counts as a fraction
  double batch = 1;             // products of this shape side by side, all in `work`
  double speed = 1;             // multiple of that rate, of other software's products
  /// The format that a product is computed in; another kernel with a format casts its operands.
  ProductFormat format = ProductFormat::dtype;
};

/// Casts of operands of products below 16 bits.
inline bool is_cast(const Primitive& primitive) {
  return !is_product(primitive.kernel) && primitive.format != ProductFormat::dtype;
}

/// Appends the primitives of one op of `shape` to `out` (cleared first).
void work_of(const Program& program, const OpShape& shape, std::vector<Primitive>& out);

/// FLOPs of matrix products and attention in one op of `shape`, recomputation included.
double flops_of(const Program& program, const OpShape& shape);

}  // namespace longspan
