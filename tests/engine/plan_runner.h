// Runs one step of a plan, by default on the CPU engine, and returns all results to check: loss,
// every gradient, updated parameters, and the use of the arenas.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/runtime/backend.h"
#include "models/model_spec.h"
#include "planner/program/op.h"
#include "planner/program/tensor.h"
#include "planner/simulate/timeline.h"
#include "planner/strategy/strategy.h"

namespace longspan::testing {

struct StepCase {
  ModelSpec model;
  Strategy strategy;
  int64_t sequence = 0;  // tokens of a microbatch
  int64_t microbatches = 1;
  double copy_units = 1;         // time of a copy of a microbatch, in forwards; for adaptive copies
  bool splits_backward = false;  // of one stage: all gradients of weights after all of inputs
  int threads = 2;
  uint64_t seed = 7;                     // of the weights and the tokens
  std::optional<uint64_t> random_order;  // run on one thread in a random legal order
  DType dtype = DType::float32;
  double weight_spread = 0.2;    // matrices are uniform in [-weight_spread, weight_spread]
  bool equal_scores = false;     // routers are zero, so all tokens choose the first experts
  bool rounded_weights = false;  // rounded to bfloat16 for any dtype
  /// Creates the backend for the step. The communicator is null for one rank. Empty: CPU backend.
  std::function<std::unique_ptr<Backend>(const Program&, Communicator*)> make_backend;
  /// Called before each op of a rank, on the op's thread. Empty: nothing.
  std::function<void(int rank, const Op&)> before_op;
};

struct StepOutcome {
  double loss = 0;
  double gradient_norm = 0;
  std::vector<std::vector<float>> gradients;   // per unit; empty if another stage has it
  std::vector<std::vector<float>> parameters;  // per unit, after one AdamW update
  std::vector<std::vector<float>> log_probs;   // of a forward alone, by sequence; NaN: another
                                               // rank has them
  std::array<int64_t, kTierCount> arena_bytes{};
  std::array<int64_t, kTierCount> high_water_bytes{};
  int64_t sent_bytes = 0;  // to other ranks
};

/// The program of one rank of the case.
Program program_of(const StepCase& step, int rank);

/// The sequences of a step on each replica.
int64_t case_sequences(const StepCase& step);
/// The tokens of one sequence: S + 1 ids.
std::vector<int32_t> case_tokens(const StepCase& step, int64_t index);
/// Where their documents begin, of random lengths among those of the model's documents.
std::vector<int32_t> case_documents(const StepCase& step, int64_t index);
/// The factor of a token's loss: 1 / the labels of the step.
double case_loss_scale(const StepCase& step);

/// The weights the step starts from, per unit.
std::vector<std::vector<float>> case_weights(const StepCase& step);

/// Runs the step. Arenas start as NaN to expose reads of unwritten memory. With `comm`, the outcome
/// is this rank's; gradients and parameters are the shards that it holds, padding included.
StepOutcome run_step(const StepCase& step, Communicator* comm = nullptr);

/// Small models with every feature: GPT-2 style; Llama style with GQA, H*D != d, RoPE scaling and
/// qkv biases; Qwen3 style with q/k norms and tied embeddings; Gemma-3 style with GeGLU, a scaled
/// embedding and norms by 1 + weight, also of outputs; OLMo-2 style with norms of outputs alone and
/// q/k norms over all heads.
ModelSpec small_gpt();
ModelSpec small_llama();
ModelSpec small_qwen();
ModelSpec small_gemma();
ModelSpec small_olmo();

/// Layers that attend to a window, and rotate differently or not, around one that does not; all
/// have sinks.
ModelSpec in_windows(ModelSpec model, int64_t window);
/// Other formats of moments, and of frozen weights, which the CPU backend alone has.
void add_formats(StepCase& step, uint64_t seed);
/// With adapters of some projections, by chance.
ModelSpec adapted(ModelSpec model, uint64_t seed);
/// With some parts frozen, by chance.
ModelSpec partly_frozen(ModelSpec model, uint64_t seed);

/// With experts: Mixtral's; Qwen2-MoE's, with shared ones that have a gate, around a dense layer;
/// GLM-4.5's, in groups, after a dense layer; gpt-oss's, with biases.
ModelSpec small_mixtral();
ModelSpec small_qwen_experts();
ModelSpec small_glm();
ModelSpec small_gpt_oss();

/// Ways in which layers differ: one without attention in the middle (0), fused ones (1), some on
/// half of the tokens (2), and all of these, nested (3); some attend to windows and rotate
/// differently or not (4), all to windows, also on half of the tokens (5).
inline constexpr int64_t kLayerVariants = 6;
ModelSpec in_runs(ModelSpec model, int64_t variant);

/// A random legal strategy and a random sequence length that suits it.
StepCase random_case(uint64_t seed);
/// The same of a model with experts.
StepCase random_case_with_experts(uint64_t seed);

/// Layers that attend within spans around one that attends to all, and rotates nothing.
ModelSpec in_spans(ModelSpec model, int64_t span);

/// Gives experts an auxiliary loss, unless they cannot have one or a microbatch has several
/// sequences; its share of the loss is large.
ModelSpec balanced(ModelSpec model);

}  // namespace longspan::testing
