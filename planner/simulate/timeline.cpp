#include "planner/simulate/timeline.h"

#include <algorithm>
#include <cassert>

namespace longspan {
namespace {

// Seconds of `span` that are within others, which do not overlap and are sorted.
double overlap(const std::vector<Span>& others, const Span& span) {
  auto it = std::lower_bound(others.begin(), others.end(), span.start,
                             [](const Span& other, double start) { return other.end < start; });
  double seconds = 0;
  for (; it != others.end() && it->start < span.end; ++it) {
    seconds += std::max(0.0, std::min(it->end, span.end) - std::max(it->start, span.start));
  }
  return seconds;
}

}  // namespace

std::array<double, kOpKindCount> seconds_by_kind(const Program& program, const Timeline& timeline) {
  assert(timeline.spans.empty() || timeline.spans.size() == program.ops.size());
  std::array<double, kOpKindCount> seconds{};
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Span& span = timeline.spans[i];
    seconds[static_cast<int>(program.ops[i].kind)] += span.end - span.start;
  }
  return seconds;
}

std::vector<Span> spans_of_actions(const Program& program, const Timeline& timeline) {
  std::vector<Span> spans(program.actions.size(), Span{0, -1});
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.action < 0 || op.stream != Stream::compute || is_message(op.kind)) continue;
    Span& span = spans[static_cast<size_t>(op.action)];
    if (span.end < 0) span.start = timeline.spans[i].start;
    span.end = timeline.spans[i].end;
  }
  return spans;
}

double seconds_in_passes(const Program& program, const Timeline& timeline) {
  std::vector<Span> receives;  // one after another, like the ops of every stream
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    if (program.ops[i].kind == OpKind::receive) receives.push_back(timeline.spans[i]);
  }
  double seconds = 0, end = 0;
  int action = -1;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.stream != Stream::compute || is_message(op.kind)) continue;
    if (op.action < 0 || !is_compute(program.actions[static_cast<size_t>(op.action)].kind))
      continue;
    const Span& span = timeline.spans[i];
    if (op.action == action) seconds += span.start - end - overlap(receives, {end, span.start});
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
    total += overlap(compute, timeline.spans[i]);
  }
  return total;
}

}  // namespace longspan
