// An integer as a floating point number. Internal to frameworks/model.
#pragma once

#include <cstdint>

namespace longspan {

inline double number(int64_t value) { return static_cast<double>(value); }

}  // namespace longspan
