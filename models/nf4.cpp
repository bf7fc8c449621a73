#include "models/nf4.h"

#include "base/units.h"

namespace longspan {

int64_t nf4_bytes(int64_t in_matrices, int64_t plain, int64_t plain_bytes) {
  const int64_t scales = 4 * ceil_div(in_matrices, kNf4Block);
  return scales + checked_mul(plain, plain_bytes, "parameters") + ceil_div(in_matrices, int64_t{2});
}

Nf4Layout::Nf4Layout(const ParameterUnit& unit, int64_t plain_bytes) {
  for (const ParameterTensor& tensor : unit.tensors) {
    int64_t& count = tensor.decays ? in_matrices : plain;
    runs.push_back({tensor.decays, tensor.offset, tensor.elements, count});
    count += tensor.elements;
  }
  plain_offset = 4 * ceil_div(in_matrices, kNf4Block);
  codes_offset = plain_offset + plain * plain_bytes;
  total_bytes = nf4_bytes(in_matrices, plain, plain_bytes);
}

int nf4_code(float x) {
  // Between two levels the middle decides.
  int code = 0;
  while (code < 15 &&
         x > (kNf4Levels[static_cast<size_t>(code)] + kNf4Levels[static_cast<size_t>(code) + 1]) /
                 2) {
    ++code;
  }
  return code;
}

}  // namespace longspan
