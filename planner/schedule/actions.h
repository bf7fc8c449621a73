// What one rank does in a step, at the granularity of (stage, microbatch, sequence slice).
//
// The grammar is the one of PyTorch's pipeline schedules: F forward, I gradient of the input, W
// gradient of the weights, B = I + W, and so on, so that schedules can be exchanged as CSV. What
// PyTorch has no word for (recomputation, offloading, passes of a cut vocabulary, slices of a
// sequence) extends it. With one stage the list is trivial; lowering reads the list all the same,
// so that schedules plug in here and nowhere else. Plain values; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

enum class ActionKind : uint8_t {
  forward,              ///< F
  backward,             ///< B: the whole backward, I and then W, as one action
  backward_input,       ///< I: the gradient of the stage's input
  backward_weight,      ///< W: the gradients of its weights, any time after I
  recompute,            ///< R: F again, for a backward whose F has kept its input only
  vocabulary_forward,   ///< S: logits and softmax of the rank's share of the vocabulary
  vocabulary_backward,  ///< T: the gradients of that share
  send_forward,         ///< SEND_F, named after the stage that sends
  recv_forward,         ///< RECV_F, named after the stage that receives
  send_backward,        ///< SEND_B
  recv_backward,        ///< RECV_B
  wait_send_forward,    ///< WAIT_SEND_F: the stage's SEND_F has been received, its memory is free
  wait_send_backward,   ///< WAIT_SEND_B
  offload,              ///< what F has kept goes to the host
  await_offload,        ///< the rank goes on when its memory is free
  reload,               ///< and comes back
  unshard,              ///< the stage's parameters are gathered
  reshard,              ///< and given up again
  reduce_grad,          ///< the stage's gradients are summed over data replicas
  wait_reduce_grad,     ///< the rank goes on when they are
  optimizer,
};
inline constexpr int kActionKindCount = static_cast<int>(ActionKind::optimizer) + 1;

struct Action {
  ActionKind kind = ActionKind::forward;
  int32_t stage = 0;  ///< of the whole model, counted from 0; the rank's own share for S and T
  int32_t microbatch = 0;
  int32_t slice = 0;
  bool with_next = false;  ///< runs with the action that follows it, as one
  int32_t ways = 1;        ///< ranks that have it in their lists, each for an equal part of it
  bool operator==(const Action&) const = default;
};

/// F, I, W, B, R, S, T: what occupies the rank's compute units.
bool is_compute(ActionKind kind);

/// Whether actions of this kind belong to a microbatch; UNSHARD and what follows it do not.
bool has_microbatch(ActionKind kind);

/// "F", "SEND_F", ...: the word of the grammar.
std::string_view word_of(ActionKind kind);

/// The kind whose word this is.
std::optional<ActionKind> kind_of(std::string_view word);

/// One stage on one rank: F0 B0 F1 B1 ... then the optimizer. REQUIRES: microbatches >= 1.
std::vector<Action> single_stage_schedule(int64_t microbatches);

/// "2F3": stage, kind, microbatch; "2.1F3" with slice 1 of it where schedules have `slices` > 1
/// (behind the microbatch PyTorch would pass over it); "2F3/4" for one of four parts.
std::string to_string(const Action& action, int32_t slices = 1);

/// "0F0 0B0 0F1 0B1 OPTIMIZER"; actions that run as one are "(0F1;0B0)OVERLAP_F_B".
std::string to_string(const std::vector<Action>& actions, int32_t slices = 1);

}  // namespace longspan
