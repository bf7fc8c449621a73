// What the casts of products below 16 bits cost a rank, and what the products themselves take.
#pragma once

#include <cstdint>

#include "planner/plan/plan.h"
#include "planner/program/program.h"

namespace longspan {

struct CastCosts {
  double product_seconds = 0;  // of the products in the format, alone
  double cast_seconds = 0;     // of casts, alone
  double cast_bytes = 0;       // that casts read and write
  double speed = 1;            // of the products, times those in the dtype
  int64_t most_bytes = 0;      // of an op's copies of its operands, aligned
};
/// The costs of one rank's program of the plan. REQUIRES: casts_operands(plan.strategy).
CastCosts costs_of_casts(const Plan& plan, const Program& program);

}  // namespace longspan
