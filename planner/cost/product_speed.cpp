#include "planner/cost/product_speed.h"

#include <fmt/format.h>

#include "base/error.h"

namespace longspan {
namespace {

bool has_4_bits(ProductFormat format) { return format_row(format).bits == 4; }

// Blocks and their scales are not known of a device without a CUDA capability.
bool has_products(const DeviceProfile& device, ProductFormat format) {
  if (product_peak(device, format) <= 0) return false;
  return device.compute_capability > 0
             ? device.compute_capability >= format_row(format).first_capability
             : format == ProductFormat::fp8;
}

// Formats that the device has, for an error.
std::string known_formats(const DeviceProfile& device) {
  std::string list = "dtype";
  for (int i = 1; i < static_cast<int>(std::size(kProductFormatNames)); ++i) {
    const auto format = static_cast<ProductFormat>(i);
    if (has_products(device, format)) list += fmt::format(", {}", name_of(format));
  }
  return list;
}

}  // namespace

double product_peak(const DeviceProfile& device, ProductFormat format) {
  return has_4_bits(format) ? device.peak_flops_float4.value : device.peak_flops_float8.value;
}

double product_speed(const DeviceProfile& device, ProductFormat format, double share) {
  if (format == ProductFormat::dtype) return 1;
  const double peak = product_peak(device, format), half = device.peak_flops_bfloat16.value;
  if (peak <= 0 || half <= 0) return 0;
  const Figure& known = has_4_bits(format) ? device.speedup_float4 : device.speedup_float8;
  return known.value > 0 ? known.value : peak / half * share;
}

void check_products(const DeviceProfile& device, DType dtype, ProductFormat format,
                    const std::string& origin) {
  if (format == ProductFormat::dtype) return;
  if (dtype != DType::bfloat16) {
    throw bad_input(
        "{}: products in {} are cast from bfloat16, and plans for {} are in {}; expected "
        "dtype",
        origin, name_of(format), device.name, name_of(dtype));
  }
  if (!has_products(device, format)) {
    throw bad_input("{}: {} has no products in {}; expected one of {}", origin, device.name,
                    name_of(format), known_formats(device));
  }
}

}  // namespace longspan
