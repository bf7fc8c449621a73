#include "planner/program/token_share.h"

#include <cmath>
#include <numeric>

namespace longspan {

bool RowChoice::is_nested() const {
  // The pattern repeats this many times.
  const int64_t times = std::gcd(std::gcd(all, outer), inner);
  const RowChoice once{all / times, outer / times, inner / times};
  for (int64_t row = 0; row < once.inner; ++row) {
    const int64_t token = row * once.all / once.inner, place = once.at(row);
    if (place >= once.outer || place * once.all / once.outer != token) return false;
  }
  return true;
}

int64_t tokens_of_share(double share, int64_t tokens) {
  constexpr double kRounding = 1e-9;  // of a share written as a decimal fraction
  const double exact = share * static_cast<double>(tokens);
  const int64_t whole = std::llround(exact);
  return whole > 0 && std::abs(exact - static_cast<double>(whole)) < kRounding * exact ? whole : -1;
}

}  // namespace longspan
