#include "planner/pipeline/pipeline_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "planner/pipeline/rank_program.h"
#include "planner/program/layout.h"
#include "planner/program/ops_estimate.h"
#include "planner/simulate/simulate.h"
#include "planner/simulate/trace.h"

namespace longspan {
namespace {

// Maps times of one clock to another: linear between given points. The first clock may stand still
// while the second goes on.
class Stretch {
 public:
  // REQUIRES: neither time is below that of the point before.
  void add(double from, double to) { points_.push_back({from, to}); }

  // The earliest and the latest time of the second clock.
  double first(double time) const {
    const auto at = std::lower_bound(points_.begin(), points_.end(), time,
                                     [](const Point& p, double t) { return p.from < t; });
    return at != points_.end() && at->from == time ? at->to : between(at, time);
  }
  double last(double time) const {
    const auto at = std::upper_bound(points_.begin(), points_.end(), time,
                                     [](double t, const Point& p) { return t < p.from; });
    return at != points_.begin() && (at - 1)->from == time ? (at - 1)->to : between(at, time);
  }

 private:
  struct Point {
    double from, to;
  };
  double between(std::vector<Point>::const_iterator after, double time) const {
    if (after == points_.begin()) return after->to;
    if (after == points_.end()) return points_.back().to;
    const Point &a = *(after - 1), &b = *after;
    return a.to + (b.to - a.to) * (time - a.from) / (b.from - a.from);
  }
  std::vector<Point> points_ = {{0, 0}};
};

// The step of a program whose messages take no time.
Timeline without_messages(const Program& program, const CostModel& cost) {
  std::vector<double> durations = cost.durations(program);
  for (size_t shape = 0; shape < durations.size(); ++shape) {
    if (is_message(program.shapes[shape].kind)) durations[shape] = 0;
  }
  return simulate(program, lay_out(program), durations, cost.interference());
}

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

Timeline rank_timeline(const PipelineStep& step, int64_t mesh, const Program& program,
                       const CostModel& cost) {
  Timeline timeline = without_messages(program, cost);
  const std::vector<Span> alone = spans_of_actions(program, timeline);
  Stretch stretch;
  std::vector<double> done(alone.size(), 0);  // by action: when those before it, and it, are done
  double now = 0;
  int32_t next = step.linked.first_of_rank[static_cast<size_t>(mesh)];
  std::vector<double> begun(alone.size() + 1,
                            0);  // by action: when it, or the next that computes, begins
  for (size_t a = 0; a < program.actions.size(); ++a) {
    if (is_compute(program.actions[a].kind)) {
      while (!is_compute(step.linked.actions[next].kind)) ++next;
      begun[a] = std::max(now, step.timing.starts[next]);
      now = std::max(begun[a], step.timing.ends[next]);
      ++next;
      if (alone[a].end >= alone[a].start) {
        stretch.add(alone[a].start, begun[a]);
        stretch.add(alone[a].end, now);
      }
    }
    done[a] = now;
  }
  const double end = std::max(now, step.whole.step_seconds);
  stretch.add(timeline.step_seconds, end);
  begun.back() = end;
  for (size_t a = alone.size(); a-- > 0;) {
    if (!is_compute(program.actions[a].kind)) begun[a] = begun[a + 1];
  }
  // A message leaves when it is made. A rank waits in its receives until the action that needs
  // them begins.
  std::array<double, kStreamCount> free{};
  double message = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    Span& span = timeline.spans[i];
    if (is_message(op.kind)) {
      const auto action = static_cast<size_t>(op.action);
      span = {done[action], op.kind == OpKind::receive ? begun[action] : done[action]};
    } else {
      span = {stretch.last(span.start), stretch.first(span.end)};
    }
    // Messages do not wait for other exchanges in the schedule.
    double& from = is_message(op.kind) ? message : free[static_cast<size_t>(op.stream)];
    span.start = std::max(span.start, from);
    span.end = from = std::max(span.end, span.start);
  }
  timeline.step_seconds = end;
  return timeline;
}

bool has_op_trace(const StepRequest& request, const Schedule& schedule) {
  return can_be_laid_out(request, schedule) && ops_estimate(request) <= kMostListedOps;
}

std::string op_trace(const StepRequest& request, const PipelineStep& step, const CostModel& cost) {
  const int64_t of_mesh = request.strategy.parallel.stage_ranks();
  std::vector<std::string> parts;
  for (int64_t mesh = 0; mesh < request.strategy.parallel.pipeline.stages; ++mesh) {
    const int64_t rank = mesh * of_mesh;
    const Program program = program_of_rank(request, step.schedule, rank);
    const std::string name = fmt::format("predicted rank {}", rank);
    parts.push_back(trace_events(program, rank_timeline(step, mesh, program, cost), name,
                                 static_cast<int>(rank)));
  }
  return trace_document(parts);
}

std::string schedule_trace(const PipelineStep& step) {
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
