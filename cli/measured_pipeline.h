// longspan schedule measured: a trace of a pipeline, drawn and evaluated as schedules are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan::cli {

struct MeasuredFlags {
  std::string folder;
  std::optional<int64_t> iteration;
  std::string against;  ///< the schedule whose simulation is compared; empty: no comparison
  double communication = 0;
  int width = 118;
  std::string svg;
};

/// Returns the exit status. Throws what read_primus_trace() and resimulate() throw.
int show_measured(const MeasuredFlags& flags, bool json);

}  // namespace longspan::cli
