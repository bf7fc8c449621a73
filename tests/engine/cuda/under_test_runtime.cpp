// The checks of tests/gpu on the runtime of the tests: the device that a GPU build opens, with all
// of its own code.
#include "engine/cuda/open_device.h"
#include "tests/engine/cuda/host_runtime.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

std::unique_ptr<cuda::Device> open_under_test(bool lag) {
  let_streams_lag(lag);
  return cuda::open_device(0);
}
bool on_gpu() { return false; }
bool repeats_bits(DType) { return true; }
std::optional<int64_t> device_bytes_taken() { return {}; }

}  // namespace longspan::testing
