// The actions of one rank in a step, by stage, microbatch and sequence slice.
//
// The grammar is that of PyTorch's pipeline schedules: F forward, I gradient of the input, W
// gradient of the weights, B = I + W, and so on, so that schedules can be exchanged as CSV.
// Extensions cover what PyTorch has no word for: recomputation, offloading, the passes of a cut
// vocabulary, slices of a sequence. With one stage the list is trivial; lowering reads it all the
// same, so that lowering has one entry point for schedules. Plain values; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

enum class ActionKind : uint8_t {
  forward,              ///< F
  backward,             ///< B: the whole backward, I then W, as one action
  backward_input,       ///< I: the gradient of the stage's input
  backward_weight,      ///< W: the gradients of its weights, at any time after I
  recompute,            ///< R: F again, before a backward whose F has kept only its input
  vocabulary_forward,   ///< S: logits and softmax of the rank's share of the vocabulary
  vocabulary_backward,  ///< T: the gradients of that share
  embedding_forward,    ///< E: the rows of the rank's share of the embedding
  embedding_backward,   ///< G: their gradients
  send_forward,         ///< SEND_F, named after the sending stage
  recv_forward,         ///< RECV_F, named after the receiving stage
  send_backward,        ///< SEND_B
  recv_backward,        ///< RECV_B
  wait_send_forward,    ///< WAIT_SEND_F: the stage's SEND_F has been received, its memory is free
  wait_send_backward,   ///< WAIT_SEND_B
  offload,              ///< copies F's saved tensors to the host
  await_offload,        ///< the rank waits until OFFLOAD has freed their memory
  reload,               ///< copies them back to the device
  unshard,              ///< gathers the stage's parameters
  reshard,              ///< frees the gathered parameters
  reduce_grad,          ///< sums the stage's gradients over data replicas
  wait_reduce_grad,     ///< the rank waits until REDUCE_GRAD is done
  optimizer,
};
inline constexpr int kActionKindCount = static_cast<int>(ActionKind::optimizer) + 1;

struct Action {
  ActionKind kind = ActionKind::forward;
  int32_t stage = 0;  ///< counted from 0 over the whole model; of_vocabulary(): the rank
  int32_t microbatch = 0;
  int32_t slice = 0;
  bool with_next = false;  ///< runs as one with the next action of the list
  int32_t ways = 1;        ///< number of ranks that each do an equal part of it
  bool operator==(const Action&) const = default;
};

/// Whether the kind occupies the rank's compute units: F, I, W, B, R, S, T, E, G.
bool is_compute(ActionKind kind);

/// Whether it is part of a copy to the host or back: OFFLOAD, RELOAD.
inline bool is_copy(ActionKind kind) {
  return kind == ActionKind::offload || kind == ActionKind::reload;
}
/// Whether it works on a rank's share of a cut vocabulary: S, T, E, G. These are often much
/// shorter than others.
bool of_vocabulary(ActionKind kind);

/// Whether a forward alone has no such actions.
bool of_backward(ActionKind kind);

/// Whether actions of this kind belong to a microbatch: all but UNSHARD and the kinds after it.
bool has_microbatch(ActionKind kind);

/// The word of the grammar: "F", "SEND_F", ...
std::string_view word_of(ActionKind kind);

/// The kind with this word.
std::optional<ActionKind> kind_of(std::string_view word);

/// The list of a single stage on one rank: F0 B0 F1 B1 ... and then the optimizer; of slices, a
/// microbatch's B follow all its F in reverse. REQUIRES: microbatches >= 1, slices >= 1.
std::vector<Action> single_stage_schedule(int64_t microbatches, int32_t slices = 1);

/// "2F3": stage, kind, microbatch. "2.1F3": slice 1, for schedules with `slices` > 1; it stands
/// before the kind because PyTorch ignores text after the microbatch. "2F3/4": one of four parts.
std::string to_string(const Action& action, int32_t slices = 1);

/// "0F0 0B0 0F1 0B1 OPTIMIZER"; actions that run as one are "(0F1;0B0)OVERLAP_F_B".
std::string to_string(const std::vector<Action>& actions, int32_t slices = 1);

}  // namespace longspan
