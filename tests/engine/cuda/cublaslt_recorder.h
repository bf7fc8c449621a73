// A stand-in for cuBLASLt on the host, linked in its place. It checks what a product is given as
// the library would, records it, and computes it on its stream by plain loops: sums in the loops'
// order and in float, as the library's are, rounded once at the end.
//
// A product that breaks a rule gets CUBLAS_STATUS_INVALID_VALUE, and the status's text says why.
// Global state, safe from any thread.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace longspan::testing {

/// A matrix of the library: column-major, columns `stride` elements apart.
struct RecordedLayout {
  cudaDataType type{};
  uint64_t rows = 0, columns = 0;
  int64_t stride = 0;
};

struct RecordedProduct {
  RecordedLayout a, b, c;
  bool transposes_a = false, transposes_b = false;
  float alpha = 0, beta = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // bytes: of a, b, c, d
  uint32_t reductions = 0;                       // a mask of cublasLtReductionScheme_t
};

/// The last product that was asked for.
RecordedProduct last_product();
/// The number of algorithms that were looked for, by all queues.
int64_t algorithms_found();
/// With `false`, products are checked and recorded but not computed, so that operands may be too
/// large for this machine.
void compute_products(bool yes);

}  // namespace longspan::testing
