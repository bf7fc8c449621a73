// An integer as a floating point number. Internal to planner/reference.
#pragma once

#include <cstdint>

namespace longspan {

inline double number(int64_t value) { return static_cast<double>(value); }

}  // namespace longspan
