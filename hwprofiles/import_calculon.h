// Imports hardware files of Calculon (github.com/calculon-ai/calculon, systems/*.json) as profiles.
//
// Such a file is flat and has no sources: peaks with an efficiency by size, two memories, networks
// from the inside out. Other figures of a profile become a stated assumption; check them before
// relying on a prediction.
#pragma once

#include <string>

#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// The profile `name` of one node with the devices of the innermost network. Taken from the file:
///   device memory, its bandwidth     mem1, the bandwidth times its best efficiency
///   bfloat16 peak, rates of products matrix.float16; a point of gflops_efficiency stands for the
///                                    cube of that many operations
///   link and host memory             mem2 (a device's), the bandwidth times its best efficiency
///   fabrics                          the first and last of networks, bandwidth times efficiency
/// `date` is the date of entry (YYYY-MM-DD). The backend is `none`. Throws bad_input with `origin`
/// and the line if the text is not such a file (the form with tflops next to gflops_efficiency in
/// matrix.float16) or gives no valid profile.
HardwareProfile import_calculon(const std::string& text, const std::string& origin,
                                const std::string& name, const std::string& date);

}  // namespace longspan
