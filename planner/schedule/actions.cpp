#include "planner/schedule/actions.h"

#include <fmt/format.h>
#include <cassert>

#include <algorithm>
#include <array>

namespace longspan {
namespace {

constexpr std::array<std::string_view, kActionKindCount> kWords = {
    "F",           "B",
    "I",           "W",
    "R",           "S",
    "T",           "E",
    "G",           "SEND_F",
    "RECV_F",      "SEND_B",
    "RECV_B",      "WAIT_SEND_F",
    "WAIT_SEND_B", "OFFLOAD",
    "AWAIT",       "RELOAD",
    "UNSHARD",     "RESHARD",
    "REDUCE_GRAD", "WAIT_REDUCE_GRAD",
    "OPTIMIZER"};

}  // namespace

bool is_compute(ActionKind kind) { return kind <= ActionKind::embedding_backward; }

bool of_vocabulary(ActionKind kind) {
  return ActionKind::vocabulary_forward <= kind && kind <= ActionKind::embedding_backward;
}

bool of_backward(ActionKind kind) {
  switch (kind) {
    case ActionKind::backward:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
    case ActionKind::recompute:
    case ActionKind::send_backward:
    case ActionKind::recv_backward:
    case ActionKind::wait_send_backward:
      return true;
    default:
      return false;
  }
}

bool has_microbatch(ActionKind kind) { return kind < ActionKind::unshard; }

std::string_view word_of(ActionKind kind) { return kWords[static_cast<size_t>(kind)]; }

std::optional<ActionKind> kind_of(std::string_view word) {
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  if (found == kWords.end()) return std::nullopt;
  return static_cast<ActionKind>(found - kWords.begin());
}

std::vector<Action> single_stage_schedule(int64_t microbatches, int32_t slices) {
  assert(microbatches >= 1);
  std::vector<Action> actions;
  actions.reserve(2 * microbatches * slices + 1);
  for (int32_t m = 0; m < microbatches; ++m) {
    for (int32_t j = 0; j < slices; ++j) actions.push_back({ActionKind::forward, 0, m, j});
    for (int32_t j = slices - 1; j >= 0; --j) actions.push_back({ActionKind::backward, 0, m, j});
  }
  actions.push_back({ActionKind::optimizer, 0, 0, 0});
  return actions;
}

std::string to_string(const Action& action, int32_t slices) {
  if (action.kind == ActionKind::optimizer) return std::string(word_of(action.kind));
  if (!has_microbatch(action.kind)) return fmt::format("{}{}", action.stage, word_of(action.kind));
  std::string text = fmt::format("{}", action.stage);
  if (slices > 1) text += fmt::format(".{}", action.slice);
  text += fmt::format("{}{}", word_of(action.kind), action.microbatch);
  if (action.ways > 1) text += fmt::format("/{}", action.ways);
  return text;
}

std::string to_string(const std::vector<Action>& actions, int32_t slices) {
  std::string text;
  bool joined = false;  // the previous action runs with this one
  for (const Action& action : actions) {
    if (!text.empty()) text += joined ? ";" : " ";
    if (action.with_next && !joined) text += '(';
    text += to_string(action, slices);
    if (joined && !action.with_next) text += ")OVERLAP_F_B";
    joined = action.with_next;
  }
  return text;
}

}  // namespace longspan
