#include "frameworks/model/product_precision.h"

#include "base/error.h"

namespace longspan {

ProductPrecision product_precision(const std::string& precision, const HardwareProfile& hw,
                                   const Stack& stack) {
  // Without tensor cores, which PyTorch uses in single precision only where it is told to.
  if (precision == "fp32") {
    return {hw.device.peak_flops_float32.value / hw.device.peak_flops_bfloat16.value, 0, 0};
  }
  const bool four = precision == "nvfp4";
  if (!four && precision != "fp8" && precision != "mxfp8") return {};
  const Figure& peak = four ? hw.device.peak_flops_float4 : hw.device.peak_flops_float8;
  if (peak.value <= 0) {
    throw bad_input("{} has no peak_flops_{}, which precision {} needs", hw.device.name,
                    four ? "float4" : "float8", precision);
  }
  const Figure& known = four ? hw.device.speedup_float4 : hw.device.speedup_float8;
  const double of_peaks =
      peak.value / hw.device.peak_flops_bfloat16.value * stack.low_precision_rate.value;
  const double faster = known.value > 0 ? known.value : of_peaks;
  const double blocks = precision == "fp8" ? 0 : stack.block_cast_bytes.value;
  return {faster, stack.cast_bytes.value + blocks, stack.weight_casts.value};
}

}  // namespace longspan
