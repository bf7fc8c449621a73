// Products below 16 bits: their speedup, and the cost of casting their operands.
#pragma once

#include <string>

#include "frameworks/model/stack.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

struct ProductPrecision {
  double speed = 1;         // multiple of the rate of the same product in 16 bits
  double cast_bytes = 0;    // B moved to cast one element of an operand
  double weight_casts = 1;  // share of the microbatches that cast weights
};

/// The precision of a layer's products with parameters, by a case's `precision` (one of
/// case_precisions()). The curve of 16 bits is scaled by the device's speedup where that is known,
/// else by the quotient of its peaks and the stack's share of it. Throws bad_input where the
/// device has no peak at these bits.
ProductPrecision product_precision(const std::string& precision, const HardwareProfile& hw,
                                   const Stack& stack);

}  // namespace longspan
