// solve() of milp.h for a build without a solver.
#include "base/error.h"
#include "planner/schedule/solver/milp.h"

namespace longspan {

MilpSolution solve(const Milp& /*milp*/, const SolverLimits& /*limits*/,
                   std::span<const Term> /*start*/) {
  throw bad_input("this build has no solver; build Longspan with -DLONGSPAN_SOLVER=ON");
}

}  // namespace longspan
