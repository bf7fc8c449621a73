#include "tests/engine/cuda/host_runtime.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

std::unique_ptr<cuda::Device> open_under_test(bool lag, int index) {
  return open_host_device(lag, index);
}
bool on_gpu() { return false; }
bool repeats_bits(DType) { return true; }

}  // namespace longspan::testing
