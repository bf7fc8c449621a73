// The median, used to summarize timings.
#pragma once

#include <vector>

namespace longspan {

/// The median of the values; of an even number, the mean of the middle two. REQUIRES: not empty.
double median(std::vector<double> values);

}  // namespace longspan
