#include "frameworks/model/product_precision.h"

#include "base/error.h"
#include "planner/cost/product_speed.h"

namespace longspan {

ProductPrecision product_precision(const std::string& precision, const HardwareProfile& hw,
                                   const Stack& stack) {
  // Without tensor cores, which PyTorch uses in single precision only where it is told to.
  if (precision == "fp32") {
    return {hw.device.peak_flops_float32.value / hw.device.peak_flops_bfloat16.value, 0, 0};
  }
  const std::optional<ProductFormat> format = product_format_named(precision);
  if (!format) return {};
  const double faster = product_speed(hw.device, *format, stack.low_precision_rate.value);
  if (faster <= 0) {
    throw bad_input("{} has no peak_flops_{}, which precision {} needs", hw.device.name,
                    precision == "nvfp4" ? "float4" : "float8", precision);
  }
  const double blocks = precision == "fp8" ? 0 : stack.block_cast_bytes.value;
  return {faster, stack.cast_bytes.value + blocks, stack.weight_casts.value};
}

}  // namespace longspan
