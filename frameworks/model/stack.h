// The software that a published figure was measured with, described by its costs in time and
// memory.
//
// The same model on the same machine takes half as long under one framework as under another. A
// Stack lists the causes (how its host issues kernels, which exchanges it hides, what it stores
// between forward and backward, what its allocator leaves unused), each term with the source of its
// value; nothing else of a prediction depends on the software. Stacks are files in
// frameworks/stacks, compiled in; one that is `like` another lists only the terms that
// differ. Plain values, safe to share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// The value of a term without one table.
struct TermWithout {
  double value = 0;
  std::vector<std::string> fitted_to;  // tables of published cases; empty: assumed
  bool operator==(const TermWithout&) const = default;
};

/// A cost of the software. Sources begin with "paper: ", "code: ", "measured: ", "fitted: " or
/// "assumption: ".
struct StackTerm {
  double value = 0;
  std::string source;
  /// For a fitted term: the tables of published cases that it was fitted to. Each has the value of
  /// the term without that table: fitted to other tables or, if they say nothing about it, an
  /// assumption.
  std::map<std::string, TermWithout> without;
  bool operator==(const StackTerm&) const = default;
};

struct Stack {
  std::string name;              // "megatron-lm"
  std::string like;              // the stack that its other terms are from; empty: none
  std::string family;            // "fsdp": stacks that are right and wrong alike
  std::string about;             // one sentence
  std::string attention_kernel;  // "flash2", where the hardware has its tables; empty: its own

  // Time.
  StackTerm kernel_gap_s;   // s a device idles between two kernels
  StackTerm host_kernel_s;  // s the host takes to issue one: a layer takes no less than its kernels
  StackTerm gather_host_s;  // s the host takes in a pass of a layer to gather its parameters,
                            // module by module, with ZeRO 3
  StackTerm product_share;  // 1: share of the device's measured products that libraries reach
  StackTerm pass_share;     // 1: share of the memory bandwidth that elementwise kernels reach
  StackTerm norm_passes;    // tensors moved by a norm, forward; twice as many backward
  StackTerm add_passes;     // tensors moved by bias, dropout and residual addition together
  StackTerm activation_passes;    // tensors of the MLP's inner width moved by bias and activation
  StackTerm qkv_passes;           // tensors moved by biases, rotations and layouts of q, k and v
  StackTerm score_bytes_forward;  // B moved for a score of attention, where scores are stored
  StackTerm score_bytes_backward;
  StackTerm head_share;         // 1: share of product_share that products with a whole vocabulary
                                // reach
  StackTerm logit_bytes;        // B moved for a logit by the loss, forward and backward
  StackTerm optimizer_bytes;    // B moved for a parameter by an update
  StackTerm exchange_s;         // s an exchange takes beyond the wire: launch, synchronization
  StackTerm tensor_hidden;      // 1: share of the tensor group's exchanges that computation hides
  StackTerm data_hidden;        // 1: share of gradients' and parameters' exchanges that is hidden
  StackTerm context_hidden;     // 1: share of keys' and values' exchanges that is hidden
  StackTerm context_imbalance;  // 1: of the pairs a mask leaves to the last part of a sequence, how
                                // much stays with its rank: 0 where parts are even
  StackTerm stage_latency_s;    // s a stage waits for the message of the stage before
  StackTerm message_share;      // 1: share of the fabric's bandwidth that stages' messages reach
  StackTerm message_stop;       // 1: share of a message's time for which its sender stops
  StackTerm idle_speedup;  // 1: share by which a pipeline's work is shorter, per share of time that
                           // its busiest rank idles: clocks under a power limit
  StackTerm microbatch_s;  // s a microbatch takes in addition: its data, the parts of its loss
  StackTerm step_s;        // s a step takes in addition: data, logging, the gradients' norm
  StackTerm exchange_passes;   // tensors moved to lay out what a tensor group gathers or sums
  StackTerm bias_passes;       // tensors read by the sums of biases' gradients, backward
  StackTerm shard_copy_bytes;  // B moved for a parameter in a microbatch, to lay out the exchanges
  StackTerm gradient_sum_bytes;  // B moved for a parameter after a microbatch, to add its gradient
  StackTerm exchange_toll;       // 1: share of a hidden data exchange that computation loses
  StackTerm selective_products;  // 1: share of products that selective recomputation repeats
  StackTerm selective_low_precision;  // 1: the same share for products below 16 bits
  StackTerm selective_passes;         // 1: the same share for elementwise kernels
  StackTerm low_precision_rate;       // 1: share of the speed that the device's peaks promise them
  StackTerm low_precision_gathers;    // 1: bytes that a tensor group gathers, relative to 16 bits
  StackTerm cast_bytes;               // B moved to cast an element of an operand of these products
  StackTerm ends_as_layers;   // layers that embedding and head each count as when stages are cut,
                              // where layers alone do not divide: 0 or 1
  StackTerm exchange_share;   // 1: share of the fabrics' bandwidth that exchanges reach
  StackTerm exchange_rank_s;  // s more of an exchange for each rank of its group beyond the first
  StackTerm regathers;        // gathers that a layer's backward repeats, where tokens are cut up in
                              // the tensor group, and does not hide: 0 to 2
  StackTerm block_cast_bytes;  // B moved in addition to cast an element if blocks have scales
  StackTerm weight_casts;      // 1: share of microbatches that cast weights, in place of the step
  StackTerm gradient_touch_bytes;  // B moved for a gradient on every rank before the update
  StackTerm attention_share;      // 1: share of the device's measured attention for whole sequences
  StackTerm attention_head_cost;  // columns of a head with the cost of a pair's softmax, where
                                  // heads are not of 128; 0: any head has attention's rate
  StackTerm attention_window;     // keys that a query attends to, where attention is linear in the
                                  // length; 0: all
  StackTerm tiled_mlp_again;      // forwards that the tiles of an MLP repeat in backward
  StackTerm cluster_gather_share;    // 1: share of the fabric between nodes that gathers reach
  StackTerm cluster_exchange_share;  // 1: share of it that all-to-all exchanges reach
  StackTerm copy_share;         // 1: share of the link to the host that copies of tensors reach
  StackTerm copy_hidden;        // 1: share of these copies' time that computation hides
  StackTerm host_update_bytes;  // B moved in host memory for a parameter updated there
  StackTerm vocabulary_wait;    // 1: share of a microbatch's layers for which a rank waits at the
                                // barriers of a vocabulary that is cut over the stages
  StackTerm rank_spread;        // 1: standard deviation of the ranks' speeds; a step waits for the
                                // slowest
  // Experts: time.
  StackTerm router_bytes;    // B moved for a token and an expert by scores, choice and loss of a
                             // router, forward; as many backward
  StackTerm expert_passes;   // tensors moved to order what experts get and give, of a token and an
                             // expert that it chose
  StackTerm clamped_passes;  // tensors of the inner width moved by biases and a clamped activation
  StackTerm grouped_share;   // 1: share of other products' rate that experts' products reach
  StackTerm expert_gradient_bytes;  // B moved for a weight of an expert by its gradient
  StackTerm expert_host_s;   // s the host takes more for each expert of a rank in a layer's pass
  StackTerm expert_wait_s;   // s a device waits in such a pass for the host, which waits for counts
  StackTerm dispatch_once;   // 1: share of tokens that travel once to a rank or node, however many
                             // of their experts are there
  StackTerm dispatch_share;  // 1: share of the fabrics' bandwidth that tokens on their way reach
  StackTerm dispatch_hidden;  // 1: share of this exchange that computation hides
  // Memory.
  StackTerm router_saved_bytes;     // B kept for a token and an expert by a router
  StackTerm expert_inputs;          // tensors of hidden width kept for a token and a chosen expert
  StackTerm parameter_bytes;        // of those below, of a parameter itself
  StackTerm parameter_state_bytes;  // B for a parameter on the device, not sharded by ZeRO 1
  StackTerm optimizer_state_bytes;  // B for a parameter, sharded by ZeRO 1
  StackTerm gradient_bytes;         // B for a gradient that ranks exchange
  StackTerm gradient_state_bytes;   // B for a gradient that waits for other microbatches', if it is
                                    // not in parameter_state_bytes
  StackTerm fsdp_units;             // 1: FSDP cuts up parameters, layer by layer; 0: it does not
  StackTerm fsdp_root;              // 1: embedding and head are one unit of it, gathered all along
  StackTerm stage_tensors;          // of a stage's ends, kept for a microbatch in flight besides
                                    // its input
  StackTerm work_tensors;           // of the hidden size, of all tokens of a tensor group, that a
                                    // recomputed layer's backward holds besides what it saves
  StackTerm selective_kept;     // 1: share of products' outputs that a selection of products keeps
  StackTerm logit_state_bytes;  // B for a logit while the loss runs
  StackTerm logit_forward_bytes;     // B for a logit at the end of the forward, where the head
                                     // is held twice then; 0: less than in the backward
  StackTerm chunked_logit_bytes;     // B for a logit that a loss in tiles keeps of all tiles
  StackTerm tile_rows;               // the most tokens of a tile of fixed size; 0: it has none
  StackTerm tile_columns;            // and its part of the vocabulary
  StackTerm tile_sum_bytes;          // B for an element of the gradients that its tiles add to
  StackTerm reference_logit_bytes;   // B for a logit when a joint reference has run forward: what
                                     // its own hold, and those of the trained model
  StackTerm cut_logit_state_bytes;   // B more for a logit where the vocabulary is cut up
  StackTerm context_bytes;           // B of CUDA context and libraries
  StackTerm reserved_share;          // 1: bytes the allocator takes for a byte of tensors
  StackTerm stream_pools;            // 1: whether gradients have an allocator's pool of their own
  StackTerm placeholder_bytes;       // B for a weight: gradients that stand in for those summed in
                                     // place, one for each shape of a layer, one of the head's
  StackTerm flow_bytes;              // B for an element of the gradients that backward hands on
  StackTerm exchanged_output_bytes;  // B for an element of attention's output kept once more where
                                     // heads are exchanged for tokens
  StackTerm workspace_bytes;         // B of libraries' workspaces among the tensors
  StackTerm score_saved_bytes;       // B kept for a score of attention, where scores are stored
  StackTerm score_work_bytes;        // B more for it while attention runs backward
  StackTerm dropout_masks;  // of the hidden width, B of a token, that a layer of fused attention
                            // keeps
  StackTerm unfused_masks;  // the same of a layer whose scores are stored
  StackTerm score_dropout_bytes;  // B more for a stored score that dropout keeps
  StackTerm mixer_tensors;   // of the queries' width, that a layer keeps between queries, keys,
                             // values and attention's output
  StackTerm loss_work;       // tensors of hidden width held while the loss runs
  StackTerm hidden_work;     // tensors of hidden width that a running layer holds, unless saved
  StackTerm inner_work;      // of the MLP's inner width that its backward holds, unless saved
  StackTerm attention_work;  // of the queries' width that attention's backward holds, unless saved
  StackTerm exchange_work;   // of the queries' width, where ranks exchange tokens for heads
  StackTerm gathered_bytes;  // B of gathered parameters and buckets at a time, with ZeRO 3
  StackTerm expanded_keys;   // keys' tensors copied for every query head, kept until attention's
                             // backward
  StackTerm group_buffer_bytes;     // B of buffers of each group of ranks that exchange
  StackTerm exchange_buffer_bytes;  // B of buffers of a group that exchanges tokens for heads
  StackTerm kernel_elements;        // elements of a tensor that kernels can address; 0: any
  StackTerm host_state_bytes;       // B in host memory for a parameter whose optimizer is there
  StackTerm host_process_bytes;     // B of host memory that each process takes for itself
  StackTerm live_parameters;  // that ZeRO 3 gathers ahead of use, in gathered_bytes; the head,
                              // which a fused loss keeps gathered, and a running layer can be more
  StackTerm spare_bytes;      // B of a device that the longest sequences leave free
  StackTerm whole_logit_state_bytes;  // B more for a logit where the vocabulary is not cut up
  StackTerm tensor_loss_work;  // in a tensor group, tensors of hidden width on top of loss_work
  StackTerm exchanged_norm_inputs;  // 1: share of norms' inputs kept where heads are exchanged
                                    // for tokens
  StackTerm activation_tensors;  // of the MLP's inner width, that an activation of several kernels
                                 // keeps between them
  StackTerm norm_inputs;         // of 2 B and a norm's width, that a norm keeps of its input
  StackTerm norm_outputs;        // likewise, that products keep of a layer's two norms
  StackTerm residual_bytes;      // B of an element between layers
  StackTerm checkpoint_inputs;   // full recomputation keeps the inputs of this many parts of a
                                 // layer, which run again one by one; 1: the layer's
  StackTerm weight_copies;       // 1: products keep 2 B of each weight until their backward
  StackTerm late_states;         // 1: the optimizer's states are made in the first update
  StackTerm gathered_logits;     // 1: share of a tensor group's cut logits that every rank gathers
                                 // for the loss
  /// Terms of models with learned positions (GPT-2), by key, where the software runs them with
  /// other kernels.
  std::map<std::string, StackTerm> gpt2;
  bool operator==(const Stack&) const = default;
};

/// Names of the stacks, sorted.
std::vector<std::string> stack_names();

/// Whether a stack has this name.
bool is_stack(const std::string& name);

/// Throws bad_input for an unknown name, with the nearest known ones.
Stack load_stack(const std::string& name);

/// The stack with the terms of such a model.
Stack stack_for(Stack stack, const ModelSpec& model);

/// Keys of a stack's terms, in the order of the struct.
std::vector<std::string> term_keys();

/// A term by its key in the file. Throws bad_input for an unknown one, with the nearest known.
StackTerm& term_of(Stack& stack, const std::string& key);
const StackTerm& term_of(const Stack& stack, const std::string& key);

/// The stack with the values that its terms have without `table`; unchanged if nothing was fitted
/// to it.
Stack without_table(Stack stack, const std::string& table);

}  // namespace longspan
