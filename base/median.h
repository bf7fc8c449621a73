// The middle of some figures: what timings are summed up by.
#pragma once

#include <vector>

namespace longspan {

/// The middle of the values, half way between two. REQUIRES: not empty.
double median(std::vector<double> values);

}  // namespace longspan
