#include "frameworks/model/slowest_rank.h"

#include <algorithm>
#include <cmath>

namespace longspan {

double largest_of_normal(double n) {
  const double below = (n - 0.375) / (n + 0.25);  // the share of draws that are smaller
  double low = -1, high = 9;
  while (high - low > 1e-6) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < below ? low : high) = middle;
  }
  return n > 1 ? (low + high) / 2 : 0;
}

double waiting_for_slowest(double spread, double ranks, double known) {
  const double further = largest_of_normal(ranks) - largest_of_normal(known);
  return 1 + spread * std::max(0.0, further);
}

}  // namespace longspan
