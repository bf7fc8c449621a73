#include "planner/simulate/timeline.h"

#include <algorithm>
#include <cassert>

namespace longspan {

std::array<double, kOpKindCount> seconds_by_kind(const Program& program, const Timeline& timeline) {
  assert(timeline.spans.empty() || timeline.spans.size() == program.ops.size());
  std::array<double, kOpKindCount> seconds{};
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Span& span = timeline.spans[i];
    seconds[static_cast<int>(program.ops[i].kind)] += span.end - span.start;
  }
  return seconds;
}

double seconds_in_passes(const Program& program, const Timeline& timeline) {
  std::vector<Span> receives;  // one after another, like the ops of every stream
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    if (program.ops[i].kind == OpKind::receive) receives.push_back(timeline.spans[i]);
  }
  const auto received_in = [&](double start, double end) {
    auto it = std::lower_bound(receives.begin(), receives.end(), start,
                               [](const Span& r, double time) { return r.end < time; });
    double seconds = 0;
    for (; it != receives.end() && it->start < end; ++it) {
      seconds += std::max(0.0, std::min(it->end, end) - std::max(it->start, start));
    }
    return seconds;
  };
  double seconds = 0, end = 0;
  int action = -1;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.stream != Stream::compute || is_message(op.kind)) continue;
    if (op.action < 0 || !is_compute(program.actions[static_cast<size_t>(op.action)].kind))
      continue;
    const Span& span = timeline.spans[i];
    if (op.action == action) seconds += span.start - end - received_in(end, span.start);
    seconds += span.end - span.start;
    end = span.end;
    action = op.action;
  }
  return seconds;
}

double overlapped_copy_seconds(const Program& program, const Timeline& timeline) {
  std::vector<Span> compute;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    if (program.ops[i].stream == Stream::compute) compute.push_back(timeline.spans[i]);
  }
  std::sort(compute.begin(), compute.end(),
            [](const Span& a, const Span& b) { return a.start < b.start; });
  double total = 0;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Stream stream = program.ops[i].stream;
    if (stream != Stream::h2d && stream != Stream::d2h && stream != Stream::io) continue;
    const Span& copy = timeline.spans[i];
    // Compute spans do not overlap, so they are sorted by end as well.
    auto it = std::lower_bound(compute.begin(), compute.end(), copy.start,
                               [](const Span& c, double start) { return c.end < start; });
    for (; it != compute.end() && it->start < copy.end; ++it) {
      total += std::max(0.0, std::min(it->end, copy.end) - std::max(it->start, copy.start));
    }
  }
  return total;
}

}  // namespace longspan
