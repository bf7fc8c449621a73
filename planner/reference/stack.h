// The software that a published figure was measured with, as the habits that cost time or memory.
//
// The same model on the same machine takes half as long under one framework as under another.
// A Stack names what makes the difference (how its host issues kernels, which exchanges it hides,
// what it stores between forward and backward, what its allocator leaves unused), each term with
// where its value comes from; nothing else of a prediction depends on who wrote the software.
// Stacks are files in planner/reference/stacks, compiled in; one that is `like` another lists only
// the terms that differ. Plain values, safe to share.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// A habit's price. Sources begin with "paper: ", "code: ", "measured: ", "fitted: " (to which
/// tables) or "assumption: ".
struct StackTerm {
  double value = 0;
  std::string source;
  bool operator==(const StackTerm&) const = default;
};

struct Stack {
  std::string name;              // "megatron-lm"
  std::string about;             // one sentence
  std::string attention_kernel;  // "flash2", where the hardware has its tables; empty: its own

  // Time.
  StackTerm kernel_gap_s;   // s a device idles between two kernels
  StackTerm host_kernel_s;  // s the host takes to issue one: a layer takes no less than its kernels
  StackTerm product_share;  // 1: of the device's measured products that its libraries reached
  StackTerm pass_share;     // 1: of the memory bandwidth that elementwise kernels reach
  StackTerm norm_passes;    // tensors moved by a norm, forward; twice as many backward
  StackTerm add_passes;     // by bias, dropout and residual addition together
  StackTerm activation_passes;    // by bias and activation of the MLP, of its inner width
  StackTerm score_bytes_forward;  // B moved for a score of attention, where scores are stored
  StackTerm score_bytes_backward;
  StackTerm logit_bytes;      // B moved for a logit by the loss, forward and backward
  StackTerm optimizer_bytes;  // B moved for a parameter by an update
  StackTerm exchange_s;       // s an exchange takes beyond the wire: to launch, to meet
  StackTerm tensor_hidden;    // 1: share of the tensor group's exchanges that computation hides
  StackTerm data_hidden;      // 1: likewise of gradients' and parameters' exchanges
  StackTerm context_hidden;   // 1: likewise of keys' and values'
  StackTerm stage_latency_s;  // s a stage waits for what the one before sends
  StackTerm micro_batch_s;    // s a micro-batch takes besides: its data, the parts of its loss
  StackTerm step_s;           // s a step takes besides: data, logging, the norm of the gradients
  StackTerm attention_share;  // 1: of the device's measured attention that whole sequences reach
  StackTerm attention_head_cost;  // columns of a head that a pair's softmax takes as long as, where
                                  // heads are not of 128; 0: attention's rate is that of any head
  StackTerm tiled_mlp_again;      // forwards that the tiles of an MLP run again backward
  StackTerm cluster_gather_share;    // 1: of the fabric between nodes that gathers reach
  StackTerm cluster_exchange_share;  // 1: likewise exchanges of all with all
  StackTerm copy_share;              // 1: of the link to the host that copies of tensors reach
  StackTerm copy_hidden;             // 1: share of these copies' time that computation hides
  StackTerm host_update_bytes;       // B moved in host memory for a parameter that is updated there
  // Memory.
  StackTerm parameter_state_bytes;  // B for a parameter on the device, not sharded by ZeRO 1
  StackTerm optimizer_state_bytes;  // B for a parameter, sharded by it
  StackTerm gradient_bytes;         // B for a gradient that ranks exchange
  StackTerm context_bytes;          // B of CUDA context, libraries and collectives' buffers
  StackTerm reserved_share;         // 1: what the allocator takes for a byte of tensors
  StackTerm score_saved_bytes;      // B kept for a score of attention, where scores are stored
  StackTerm logit_saved_bytes;      // B held for a logit while the loss is differentiated
  StackTerm loss_work;              // tensors of hidden width that are held meanwhile
  StackTerm hidden_work;     // tensors of hidden width that a layer at work holds, unless saved
  StackTerm inner_work;      // of the MLP's inner width that its backward holds, unless saved
  StackTerm attention_work;  // of the queries' width, likewise of attention's backward
  StackTerm exchange_work;   // of the queries' width, where ranks exchange tokens for heads
  StackTerm gathered_bytes;  // B of gathered parameters and buckets at a time, with ZeRO 3
  StackTerm exchange_buffer_bytes;  // B of buffers of a group that exchanges tokens for heads
  StackTerm kernel_elements;        // elements of a tensor that kernels can address; 0: any
  StackTerm host_state_bytes;       // B in host memory for a parameter whose optimizer is there
  StackTerm host_reserved_bytes;    // B of a node's host memory that processes and system take
  bool operator==(const Stack&) const = default;
};

/// Names of the stacks, sorted.
std::vector<std::string> stack_names();

/// Throws bad_input for an unknown name, with the nearest known ones.
Stack load_stack(const std::string& name);

}  // namespace longspan
