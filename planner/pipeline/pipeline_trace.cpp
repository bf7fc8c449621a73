#include "planner/pipeline/pipeline_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "planner/simulate/trace.h"

namespace longspan {
namespace {

std::string span(const std::string& name, size_t track, double start, double end) {
  const TraceSpan times = trace_span(start, end);
  return fmt::format(R"({{"ph":"X","name":"{}","pid":0,"tid":{},"ts":{:.3f},"dur":{:.3f}}})", name,
                     track, times.start, times.duration);
}

std::string named_track(size_t track, const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"thread_name","pid":0,"tid":{},"args":{{"name":"{}"}}}})",
                     track, name);
}

}  // namespace

std::string pipeline_trace(const PipelineStep& step) {
  const std::vector<Action>& actions = step.linked.actions;
  const size_t ranks = step.ranks.size();
  std::vector<std::string> events;
  for (size_t rank = 0; rank < ranks; ++rank) {
    events.push_back(named_track(rank, fmt::format("rank {}", rank)));
    // Copies overlap with the list, and with each other.
    const std::array<size_t, 2> copies = {ranks + 2 * rank, ranks + 2 * rank + 1};
    std::array<bool, 2> copied{};
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
      const ActionKind kind = actions[next - 1].kind;
      if (is_copy(kind)) {
        const size_t way = kind == ActionKind::offload ? 0 : 1;
        copied[way] = true;
        events.push_back(span(name, copies[way], start, end));
      } else {
        events.push_back(span(name, rank, start, end));
      }
    }
    for (const size_t way : {0, 1}) {
      const char* what = way == 0 ? "to the host" : "from the host";
      if (copied[way]) {
        events.push_back(named_track(copies[way], fmt::format("rank {}, {}", rank, what)));
      }
    }
    const double end = step.timing.makespan;
    if (step.rest_seconds > 0) {
      events.push_back(span("reductions and update", rank, end, end + step.rest_seconds));
    }
  }
  return trace_document(events);
}

}  // namespace longspan
