#include "engine/cuda/open_device.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

std::unique_ptr<cuda::Device> open_under_test(bool, int index) { return cuda::open_device(index); }
bool on_gpu() { return true; }
bool repeats_bits(DType dtype) { return dtype == DType::float32; }

}  // namespace longspan::testing
