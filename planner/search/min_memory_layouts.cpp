#include "planner/search/min_memory_layouts.h"

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "planner/pipeline/stage_programs.h"

namespace longspan {

std::vector<RankLayout> min_memory_layouts(Evaluator& evaluator,
                                           const std::vector<RankLayout>& all) {
  std::map<std::array<int64_t, 11>, std::pair<double, RankLayout>> least;
  std::vector<RankLayout> found;
  for (const RankLayout& layout : all) {
    const ParallelLayout& p = layout.parallel;
    if (!p.has_pipeline()) {
      found.push_back(layout);
      continue;
    }
    const std::optional<Evaluator::InFlight> held = evaluator.in_flight(p, layout.microbatches);
    if (!held) continue;
    const Pipeline& pipeline = p.pipeline;
    const std::array<int64_t, 11> key = {pipeline.stages, pipeline.virtual_stages,
                                         pipeline.slices, pipeline.equal_work,
                                         p.data,          p.tensor,
                                         p.ring,          p.ulysses,
                                         p.expert,        held->splits,
                                         held->offloads};
    const auto [it, fresh] = least.try_emplace(key, held->microbatches, layout);
    if (fresh) continue;
    auto& [least_held, other] = it->second;
    const bool cuts = cuts_vocabulary(p.pipeline) && !cuts_vocabulary(other.parallel.pipeline);
    if (held->microbatches < least_held || (held->microbatches == least_held && cuts)) {
      it->second = {held->microbatches, layout};
    }
  }
  for (const auto& [key, entry] : least) found.push_back(entry.second);
  return found;
}

}  // namespace longspan
