#include "planner/schedule/solver/solved_families.h"

#include <algorithm>
#include <array>

namespace longspan {
namespace {

constexpr auto kSolvedFamilies = std::to_array<ScheduleFamily>({
    {.name = "optpipe",
     .summary = "order and offload by a solver, from the best of all others",
     .source = "OptPipe, arXiv 2510.05186",
     .most_virtual_stages = 0,
     .takes_memory_limit = true},
    {.name = "adaptis",
     .summary = "layers cut, stages placed and lists ordered together, for layers not alike",
     .source = "AdaPtis, arXiv 2509.23722",
     .takes_memory_limit = true,
     .plannable = false},
});

}  // namespace

std::span<const ScheduleFamily> solved_families() { return kSolvedFamilies; }

const ScheduleFamily* solved_family(std::string_view name) {
  const auto found = std::find_if(kSolvedFamilies.begin(), kSolvedFamilies.end(),
                                  [&](const ScheduleFamily& f) { return f.name == name; });
  return found == kSolvedFamilies.end() ? nullptr : &*found;
}

}  // namespace longspan
