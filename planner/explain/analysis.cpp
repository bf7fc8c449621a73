#include "planner/explain/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/units.h"
#include "planner/cost/cost_model.h"
#include "planner/cost/work.h"
#include "planner/evaluate/evaluate.h"
#include "planner/simulate/simulate.h"

namespace longspan {

Simulated simulate_plan(const Plan& plan) {
  Simulated result;
  result.program = build_program(step_request(plan));
  result.layout = lay_out(result.program);
  const CostModel cost(plan.hardware, plan.dtype);
  result.timeline = simulate(result.program, result.layout, cost.durations(result.program),
                             cost.interference(), true);
  return result;
}

Prediction prediction_of(const Plan& plan, const Simulated& s) {
  return prediction_of(plan, s.timeline.step_seconds,
                       peak_of_mesh(step_request(plan), s.layout.arena_bytes));
}

namespace {

// Among the ops that `op` waited for, the one that ended last; -1 if `op` waited for none.
int32_t blocker_of(const Simulated& s, const Queued& op) {
  int32_t blocker = -1;
  for (int stream = 0; stream < kStreamCount; ++stream) {
    const int32_t ordinal = op.waits[stream];
    if (ordinal < 0) continue;
    const int32_t candidate = s.layout.streams[stream][ordinal].op;
    if (blocker < 0 || s.timeline.spans[candidate].end > s.timeline.spans[blocker].end) {
      blocker = candidate;
    }
  }
  return blocker;
}

std::string what_of(const Program& program, const Op& op) {
  std::string text(name_of(op.kind));
  if (names_tensor(op.kind)) {
    text += fmt::format(" of {}", name_of(program.shapes[op.shape].tensor));
  }
  return text;
}

}  // namespace

std::vector<KindTime> time_by_kind(const Program& program, const Timeline& timeline) {
  std::vector<double> flops(program.shapes.size());
  for (size_t i = 0; i < flops.size(); ++i) flops[i] = flops_of(program, program.shapes[i]);
  std::array<KindTime, kOpKindCount> kinds{};
  const std::array<double, kOpKindCount> seconds = seconds_by_kind(program, timeline);
  for (const Op& op : program.ops) {
    KindTime& kind = kinds[static_cast<int>(op.kind)];
    ++kind.count;
    kind.flops += flops[op.shape];
    if (is_copy(op.kind)) {
      const OpShape& shape = program.shapes[op.shape];
      kind.bytes += static_cast<double>(program.table_of(shape.layer_kind)[shape.tensor]);
    }
  }
  std::vector<KindTime> result;
  for (int k = 0; k < kOpKindCount; ++k) {
    if (kinds[k].count == 0) continue;
    kinds[k].kind = static_cast<OpKind>(k);
    kinds[k].seconds = seconds[k];
    result.push_back(kinds[k]);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const KindTime& a, const KindTime& b) { return a.seconds > b.seconds; });
  return result;
}

std::vector<ComputeWait> compute_waits(const Simulated& s) {
  std::map<std::pair<Stream, std::string>, double> waits;
  const auto add = [&](int32_t op, double seconds) {
    waits[{s.program.ops[op].stream, what_of(s.program, s.program.ops[op])}] += seconds;
  };
  double free_since = 0;
  for (const Queued& queued : s.layout.streams[static_cast<int>(Stream::compute)]) {
    const Span& span = s.timeline.spans[queued.op];
    const int32_t blocker = blocker_of(s, queued);
    if (span.start > free_since && blocker >= 0) add(blocker, span.start - free_since);
    free_since = span.end;
  }
  if (s.timeline.step_seconds > free_since && !s.timeline.spans.empty()) {
    const auto last = std::max_element(s.timeline.spans.begin(), s.timeline.spans.end(),
                                       [](const Span& a, const Span& b) { return a.end < b.end; });
    add(static_cast<int32_t>(last - s.timeline.spans.begin()),
        s.timeline.step_seconds - free_since);
  }
  std::vector<ComputeWait> result;
  for (const auto& [key, seconds] : waits) result.push_back({key.first, key.second, seconds});
  std::stable_sort(result.begin(), result.end(), [](const ComputeWait& a, const ComputeWait& b) {
    return a.seconds > b.seconds;
  });
  return result;
}

std::vector<PeakMemory> memory_at_peak(const Program& program, const Layout& layout) {
  const auto curve = live_bytes_by_op(program);
  std::vector<PeakMemory> result;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (layout.arena_bytes[tier] == 0) continue;
    const auto peak =
        std::max_element(curve.begin(), curve.end(),
                         [&](const auto& a, const auto& b) { return a[tier] < b[tier]; });
    const auto position = static_cast<int32_t>(peak - curve.begin());
    std::map<Tensor, TensorMemory> tensors;
    PeakMemory memory;
    memory.tier = static_cast<Tier>(tier);
    memory.arena_bytes = layout.arena_bytes[tier];
    memory.op = describe(program, program.ops[position]);
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      if (static_cast<int>(buffer.tier) != tier) continue;
      const bool alive = buffer.first_op >= 0 && buffer.first_op <= position &&
                         std::max(buffer.first_op, buffer.last_op) >= position;
      if (!buffer.persistent && !alive) continue;
      TensorMemory& entry = tensors[buffer.tensor];
      entry.tensor = buffer.tensor;
      const int64_t bytes = round_up(program.bytes_of(static_cast<BufferId>(b)), kArenaAlignment);
      ++entry.count;
      entry.bytes += bytes;
      memory.live_bytes += bytes;
    }
    for (const auto& [tensor, entry] : tensors) {
      if (entry.bytes > 0) memory.tensors.push_back(entry);
    }
    std::stable_sort(
        memory.tensors.begin(), memory.tensors.end(),
        [](const TensorMemory& a, const TensorMemory& b) { return a.bytes > b.bytes; });
    result.push_back(std::move(memory));
  }
  return result;
}

std::string limit_of(const Simulated& s) {
  const double step = s.timeline.step_seconds;
  const double busy = s.timeline.busy_seconds[static_cast<int>(Stream::compute)] / step;
  const std::vector<ComputeWait> waits = compute_waits(s);
  constexpr double kWorthMentioning = 0.03;  // of the step
  if (!waits.empty() && waits.front().seconds > kWorthMentioning * step) {
    return fmt::format(
        "compute waits during {:.1f} % of the step, the longest for {} on the {} stream ({:.1f} %)",
        100 * (1 - busy), waits.front().what, name_of(waits.front().stream),
        100 * waits.front().seconds / step);
  }
  const std::vector<KindTime> kinds = time_by_kind(s.program, s.timeline);
  const auto longest =
      std::find_if(kinds.begin(), kinds.end(), [](const KindTime& k) { return !is_copy(k.kind); });
  return fmt::format(
      "compute is the limit: it is busy during {:.1f} % of the step, {:.1f} % of it in {}",
      100 * busy, 100 * longest->seconds / step, name_of(longest->kind));
}

}  // namespace longspan
