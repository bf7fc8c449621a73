#include "frameworks/knobs/device_support.h"

#include <limits>

#include "base/error.h"
#include "planner/strategy/product_format.h"

namespace longspan {
namespace {

constexpr int64_t kAmpere = 80, kHopper = 90, kBlackwell = 100;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

struct SupportRow {
  const char* knob;
  const char* value;
  int64_t first, beyond;  // the compute capabilities that have it: from `first`, below `beyond`
  const char* what;
};

// The first of products in a format.
int64_t first_of(ProductFormat format) { return format_row(format).first_capability; }

const SupportRow kSupport[] = {
    {"precision", "bf16", kAmpere, kAny, "bfloat16, which it emulates slowly; fp16 runs"},
    {"precision", "fp8", first_of(ProductFormat::fp8), kAny, "products in FP8"},
    {"precision", "mxfp8", first_of(ProductFormat::mxfp8), kAny, "products in MXFP8"},
    {"precision", "nvfp4", first_of(ProductFormat::nvfp4), kAny, "products in NVFP4"},
    {"attention", "flash2", kAmpere, kAny, "FlashAttention 2; sdpa runs"},
    // Written for Hopper alone.
    {"attention", "flash3", kHopper, kBlackwell, "FlashAttention 3"},
    {"attention", "flash4", kHopper, kAny, "FlashAttention 4"},
    {"attention", "cudnn", kAmpere, kAny, "cuDNN's attention"},
};

}  // namespace

std::string half_precision(const DeviceProfile& device) {
  const int64_t capability = device.compute_capability;
  return capability > 0 && capability < kAmpere ? "fp16" : "bf16";
}

void refuse_unsupported(const RunKnobs& knobs, const DeviceProfile& device,
                        const KnobPlaces& places) {
  const int64_t capability = device.compute_capability;
  if (capability <= 0) return;
  for (const SupportRow& row : kSupport) {
    if (!knobs.is(row.knob, row.value)) continue;
    if (capability >= row.first && capability < row.beyond) continue;
    throw bad_input("{}: {} does not have {}", places(row.knob), device.name, row.what);
  }
}

}  // namespace longspan
