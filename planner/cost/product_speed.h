// How fast products below 16 bits are, on a device and in relation to those of 16 bits.
#pragma once

#include <string>

#include "hwprofiles/hardware_profile.h"
#include "planner/program/tensor.h"
#include "planner/strategy/product_format.h"

namespace longspan {

/// The share of the speed that peaks promise them which large products reach: the best of the H100
/// in both precisions are 1402.6 and 794.5 TFLOP/s (github.com/stas00/ml-engineering, commit
/// 744d01e), of 1979 and 989.
inline constexpr double kShareOfPeaks = 0.88;

/// FLOP/s of the device's products in the format, by its peak; 0 if it is not known.
/// REQUIRES: format is not `dtype`.
double product_peak(const DeviceProfile& device, ProductFormat format);

/// How many times as fast as in 16 bits: the device's speedup where that is known, else the
/// quotient of its peaks times `share`; 0 without a peak. 1 for `dtype`.
double product_speed(const DeviceProfile& device, ProductFormat format,
                     double share = kShareOfPeaks);

/// Throws bad_input, prefixed by `origin`, unless the device has products in the format and
/// activations are in bfloat16.
void check_products(const DeviceProfile& device, DType dtype, ProductFormat format,
                    const std::string& origin);

}  // namespace longspan
