#include "planner/pipeline/pipeline_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "planner/simulate/trace.h"

namespace longspan {
namespace {

std::string span(const std::string& name, size_t rank, double start, double end) {
  const TraceSpan times = trace_span(start, end);
  return fmt::format(R"({{"ph":"X","name":"{}","pid":0,"tid":{},"ts":{:.3f},"dur":{:.3f}}})", name,
                     rank, times.start, times.duration);
}

}  // namespace

std::string pipeline_trace(const PipelineStep& step) {
  const std::vector<Action>& actions = step.linked.actions;
  std::vector<std::string> events;
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    events.push_back(fmt::format(
        R"({{"ph":"M","name":"thread_name","pid":0,"tid":{},"args":{{"name":"rank {}"}}}})", rank,
        rank));
    int32_t next = step.linked.first_of_rank[rank];
    while (next < step.linked.first_of_rank[rank + 1]) {
      std::string name;
      double start = step.timing.starts[next], end = 0;
      for (bool more = true; more; ++next) {
        name += (name.empty() ? "" : " + ") + to_string(actions[next], step.schedule.slices);
        start = std::min(start, step.timing.starts[next]);
        end = std::max(end, step.timing.ends[next]);
        more = actions[next].with_next;
      }
      events.push_back(span(name, rank, start, end));
    }
    const double end = step.timing.makespan;
    if (step.rest_seconds > 0) {
      events.push_back(span("reductions and update", rank, end, end + step.rest_seconds));
    }
  }
  return trace_document(events);
}

}  // namespace longspan
