#include "planner/simulate/timeline.h"

#include <algorithm>
#include <cassert>
#include <limits>

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

std::vector<Span> action_spans(const Program& program, const Timeline& timeline) {
  std::vector<Span> spans(program.actions.size(), {std::numeric_limits<double>::infinity(), 0});
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.action < 0 || op.stream != Stream::compute || is_message(op.kind)) continue;
    Span& span = spans[static_cast<size_t>(op.action)];
    span.start = std::min(span.start, timeline.spans[i].start);
    span.end = std::max(span.end, timeline.spans[i].end);
  }
  for (Span& span : spans) {
    if (span.start > span.end) span = {};
  }
  return spans;
}

double seconds_in_passes(const Program& program, const Timeline& timeline) {
  const std::vector<Span> spans = action_spans(program, timeline);
  double seconds = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (is_compute(program.actions[i].kind)) seconds += spans[i].end - spans[i].start;
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
