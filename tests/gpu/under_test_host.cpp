#include "tests/engine/cuda/host_device.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

std::unique_ptr<cuda::Device> open_under_test(bool lag) { return make_host_device(lag); }
bool on_gpu() { return false; }
bool repeats_bits(DType) { return true; }
std::optional<int64_t> device_bytes_taken() { return {}; }

}  // namespace longspan::testing
