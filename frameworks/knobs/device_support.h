// What a generation of GPUs can run: types of products and kernels of attention.
//
// Pure functions of their arguments; safe from any thread.
#pragma once

#include <string>

#include "frameworks/knobs/configured_model.h"
#include "frameworks/knobs/run_knobs.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// The type of 16-bit products: "bf16", or "fp16" where the device only emulates bfloat16.
std::string half_precision(const DeviceProfile& device);

/// Throws bad_input, by the key's place, for a type of products or a kernel of attention that the
/// device does not have. A device without a compute capability has all.
void refuse_unsupported(const RunKnobs& knobs, const DeviceProfile& device,
                        const KnobPlaces& places);

}  // namespace longspan
