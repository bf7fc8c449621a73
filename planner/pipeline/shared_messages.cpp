#include "planner/pipeline/shared_messages.h"

#include <algorithm>

#include "planner/schedule/share_passes.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// The latest starts of actions that receive something of a microbatch.
struct Receivers {
  double shares = 0, terms = 0, output_gradient = 0, embedding = 0, embedding_gradient = 0;
};

std::vector<Receivers> receivers_of(const Schedule& schedule, const LinkedActions& linked,
                                    const ScheduleTiming& timing) {
  std::vector<Receivers> all(schedule.microbatches);
  for (size_t i = 0; i < linked.actions.size(); ++i) {
    const Action& a = linked.actions[i];
    if (!has_microbatch(a.kind)) continue;
    Receivers& of = all[a.microbatch];
    const auto starts = [&](double& latest) { latest = std::max(latest, timing.starts[i]); };
    const bool backward = a.kind == Kind::backward || a.kind == Kind::backward_input;
    if (a.kind == Kind::vocabulary_forward) starts(of.shares);
    if (a.kind == Kind::vocabulary_backward) starts(of.terms);
    if (a.kind == Kind::embedding_backward) starts(of.embedding_gradient);
    if (backward && schedule.is_last(a.stage)) starts(of.output_gradient);
    if (a.kind == Kind::forward && schedule.is_first(a.stage)) starts(of.embedding);
  }
  return all;
}

}  // namespace

std::vector<SharedMessage> shared_messages(const Schedule& schedule, const LinkedActions& linked,
                                           const ScheduleTiming& timing, int32_t rank) {
  std::vector<SharedMessage> messages;
  if (!cuts_vocabulary(schedule)) return messages;
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  const bool is_first = ranks.front() == rank, is_last = ranks.back() == rank;
  const std::vector<Receivers> all = receivers_of(schedule, linked, timing);
  for (int32_t m = 0; m < schedule.microbatches; ++m) {
    const Receivers& of = all[m];
    // The last stage's backward takes terms, too, if S computes the gradient of its output.
    messages.push_back({std::max(of.terms, of.output_gradient), Tensor::vocabulary_terms, m});
    if (is_last) messages.push_back({of.shares, Tensor::h_own, m});
    const Tensor gradient =
        schedule.input_gradient_in_t ? Tensor::sum_own : Tensor::vocabulary_gradient;
    if (!is_last) messages.push_back({of.output_gradient, gradient, m});
    if (is_first) messages.push_back({of.embedding_gradient, Tensor::dx, m});
    if (!is_first) messages.push_back({of.embedding, Tensor::x, m});
  }
  std::stable_sort(
      messages.begin(), messages.end(),
      [](const SharedMessage& a, const SharedMessage& b) { return a.received < b.received; });
  return messages;
}

}  // namespace longspan
