#include "tests/engine/plan_runner.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <span>

#include "base/bfloat16.h"
#include "engine/cpu/backend.h"
#include "engine/runtime/executor.h"
#include "engine/train/optimizer.h"
#include "engine/train/state_formats.h"
#include "engine/train/states.h"
#include "models/adapters.h"
#include "models/training.h"
#include "planner/pipeline/rank_program.h"
#include "planner/program/op_table.h"
#include "planner/schedule/registry.h"

namespace longspan::testing {

int64_t case_sequences(const StepCase& step) { return step.microbatches * step.model.micro_batch; }

std::vector<int32_t> case_tokens(const StepCase& step, int64_t index) {
  std::mt19937_64 random(step.seed * 1000 + index);
  std::vector<int32_t> tokens(step.model.of_sequence(step.sequence) + 1);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % step.model.vocab);
  return tokens;
}

std::vector<int32_t> case_documents(const StepCase& step, int64_t index) {
  std::mt19937_64 random(step.seed * 1000 + 500 + index);
  const int64_t tokens = step.model.of_sequence(step.sequence);
  const std::vector<Documents::Length>& lengths = step.model.documents.lengths();
  std::vector<int32_t> begins;
  while (static_cast<int64_t>(begins.size()) <= tokens) {
    const int64_t length = lengths.empty() ? tokens + 1 : lengths[random() % lengths.size()].tokens;
    begins.insert(begins.end(), static_cast<size_t>(length), static_cast<int32_t>(begins.size()));
  }
  begins.resize(static_cast<size_t>(tokens) + 1);
  return begins;
}

double case_loss_scale(const StepCase& step) {
  int64_t labels = 0;
  for (int64_t i = 0; i < case_sequences(step) * step.strategy.parallel.data; ++i) {
    const std::vector<int32_t> begins = case_documents(step, i);
    for (size_t at = 1; at < begins.size(); ++at) labels += begins[at - 1] == begins[at] ? 1 : 0;
  }
  return 1 / static_cast<double>(std::max<int64_t>(1, labels));
}

std::vector<std::vector<float>> case_weights(const StepCase& step) {
  std::vector<std::vector<float>> weights;
  std::mt19937_64 random(step.seed);
  for (const ParameterUnit& unit : parameter_units(step.model)) {
    std::vector<float> values(unit.elements);
    for (const ParameterTensor& tensor : unit.tensors) {
      // Far enough from the usual start that norms, biases and attention all matter.
      const bool vector = tensor.shape.size() == 1;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        const double uniform = static_cast<double>(random() >> 11) * 0x1p-53 * 2 - 1;
        const double center = tensor.init == ParameterTensor::Init::ones ? 1 : 0;
        values[tensor.offset + i] =
            static_cast<float>(center + uniform * (vector ? 0.3 : step.weight_spread));
      }
    }
    for (const ParameterTensor& tensor : unit.tensors) {
      // Without groups, ties go to the first.
      const bool routes =
          tensor.name.ends_with(".gate.weight") || tensor.name.ends_with(".router.weight") ||
          tensor.name.ends_with(".router.bias") || tensor.name.ends_with("e_score_correction_bias");
      if (!step.equal_scores || !routes) continue;
      std::fill_n(values.begin() + tensor.offset, tensor.elements, 0.0F);
    }
    if (step.rounded_weights) {
      for (float& value : values) value = widen(narrow(value));
    }
    weights.push_back(std::move(values));
  }
  return weights;
}

namespace {

RankOfPipeline split_backward(const StepCase& step) {
  using enum ActionKind;
  RankOfPipeline rank{{{0, 0, static_cast<int>(step.model.layers), {}}}, {}};
  for (const ActionKind kind : {forward, backward_input, backward_weight}) {
    for (int32_t m = 0; m < step.microbatches; ++m) rank.actions.push_back({kind, 0, m});
  }
  rank.actions.push_back({optimizer});
  return rank;
}

}  // namespace

Program program_of(const StepCase& step, int rank) {
  StepRequest request{step.model,        step.strategy, step.sequence,
                      step.microbatches, step.dtype,    rank};
  const ParallelLayout& parallel = step.strategy.parallel;
  if (step.splits_backward) return build_program(request, split_backward(step));
  if (!parallel.has_pipeline()) return build_program(request);
  const Pipeline& pipeline = parallel.pipeline;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(pipeline.stages);
  wanted.virtual_stages = static_cast<int32_t>(pipeline.virtual_stages);
  wanted.microbatches = static_cast<int32_t>(step.microbatches);
  wanted.slices = static_cast<int32_t>(pipeline.slices);
  wanted.costs.times[0].offload = wanted.costs.times[0].reload = step.copy_units;
  const Schedule schedule = make_schedule(schedule_family(pipeline.schedule), wanted);
  return program_of_rank(request, schedule, rank);
}

namespace {

// By unit of the model: the unit of the rank's program, or -1.
std::vector<int> units_of_rank(const Program& p, const ModelSpec& model) {
  std::vector<int> own(parameter_units(model).size(), -1);
  const auto head = static_cast<size_t>(p.model.layers) + 1;
  if (p.parameters.front() >= 0) own.front() = 0;
  if (p.parameters[head] >= 0) own[model.layers + 1] = static_cast<int>(head);
  for (const StageLayers& stage : p.stages) {
    for (int layer = stage.first; layer < stage.end; ++layer) {
      const int64_t in_model = stage.in_model + layer - stage.first;
      own[1 + in_model] = 1 + layer;
      if (model.adapters) own[own.size() - model.layers + in_model] = p.adapters_unit(layer);
      if (!run_of_layer(model, in_model).experts) continue;
      int64_t unit = model.layers + 2;
      for (int64_t before = 0; before < in_model; ++before) {
        unit += run_of_layer(model, before).experts ? 1 : 0;
      }
      own[unit] = p.experts_unit(layer);
    }
  }
  return own;
}

}  // namespace

StepOutcome run_step(const StepCase& step, Communicator* comm) {
  Program program = program_of(step, comm == nullptr ? 0 : comm->rank());
  const std::unique_ptr<Backend> backend = step.make_backend
                                               ? step.make_backend(program, comm)
                                               : cpu::make_backend(program, step.threads, comm);
  ExecutorOptions options;
  options.poison = true;
  options.nvme_directory = std::filesystem::temp_directory_path();
  Executor executor(std::move(program), *backend, options);
  initialize_states(executor, step.model, 1);
  const std::vector<std::vector<float>> weights = case_weights(step);
  const Program& p = executor.program();
  const std::vector<int> own = units_of_rank(p, step.model);
  for (size_t unit = 0; unit < weights.size(); ++unit) {
    if (own[unit] >= 0) write_parameters(executor, own[unit], weights[unit]);
  }

  StepOutcome outcome;
  outcome.gradients.resize(weights.size());
  outcome.parameters.resize(weights.size());
  // A device may still use them, unless ops are waited for one by one.
  const bool waits = backend->queues() == nullptr || step.random_order;
  executor.before_op = [&](const Op& op) {
    if (step.before_op) step.before_op(comm == nullptr ? 0 : comm->rank(), op);
    if (op.kind != OpKind::adamw || !waits) return;
    const BufferId grads = op.operands[operand_index(OpKind::adamw, "grads")];
    const auto unit = std::find(own.begin(), own.end(), op.index) - own.begin();
    std::vector<float>& gradient = outcome.gradients[unit];
    gradient.resize(p.bytes_of(grads) / 4);
    executor.read(grads, gradient.data());
  };
  StepContext context;
  context.step = 1;
  context.learning_rate = 1e-3;
  context.weight_decay = 0.1;
  context.clip_norm = 1;
  context.norm_before = 2;
  context.fill_tokens = [&](int64_t sequence, int64_t first, int64_t count, int32_t* tokens) {
    const int64_t replicas = step.strategy.parallel.data;
    const std::vector<int32_t> all = case_tokens(step, sequence * replicas + p.place.data);
    std::copy_n(all.begin() + first, count, tokens);
  };
  if (step.strategy.forward_only) {
    const std::vector<float> none(step.model.of_sequence(step.sequence),
                                  std::numeric_limits<float>::quiet_NaN());
    outcome.log_probs.assign(case_sequences(step), none);
  }
  context.take_log_probs = [&](int64_t sequence, int64_t first, int64_t count,
                               const float* values) {
    std::copy_n(values, count, outcome.log_probs.at(sequence).begin() + first);
  };
  std::vector<int32_t> begins;
  if (!step.model.documents.empty()) {
    context.loss_scale = case_loss_scale(step);
    context.documents = [&](int64_t sequence) {
      begins = case_documents(step, sequence * step.strategy.parallel.data + p.place.data);
      return std::span<const int32_t>(begins);
    };
  }
  const int64_t sent_before = backend->sent_bytes();
  if (step.random_order) {
    executor.run_in_random_order(context, *step.random_order + p.place.rank);
  } else {
    executor.run(context);
  }
  executor.read(p.loss, &outcome.loss);
  if (p.grad_norm >= 0) executor.read(p.grad_norm, &outcome.gradient_norm);
  for (size_t unit = 0; unit < weights.size(); ++unit) {
    if (own[unit] < 0) continue;
    const BufferId parameters = p.parameters[own[unit]];
    std::vector<float>& values = outcome.parameters[unit];
    if (is_nf4(p.buffers[parameters].tensor)) {
      std::vector<std::byte> bytes(p.bytes_of(parameters));
      executor.read(parameters, bytes.data());
      for (const std::byte byte : bytes) values.push_back(static_cast<float>(byte));
    } else {
      values = read_state(executor, parameters);
    }
    if (waits || step.strategy.forward_only || p.adam_m[own[unit]] < 0) continue;
    // After one step from zero the first moment is (1 - beta1) of the clipped gradient.
    const double norm =
        step.strategy.early_update ? context.norm_before : std::sqrt(outcome.gradient_norm);
    const double kept = (1 - context.beta1) * std::min(1.0, context.clip_norm / norm);
    std::vector<float>& gradient = outcome.gradients[unit];
    gradient = read_state(executor, p.adam_m[own[unit]]);
    for (float& value : gradient) value = static_cast<float>(value / kept);
  }
  outcome.sent_bytes = backend->sent_bytes() - sent_before;
  outcome.arena_bytes = executor.arena_bytes();
  outcome.high_water_bytes = executor.high_water_bytes();
  return outcome;
}

ModelSpec small_gpt() {
  ModelSpec m;
  m.name = "small-gpt";
  m.layers = 3;
  m.hidden = 48;
  m.heads = m.kv_heads = 4;
  m.head_dim = 12;
  m.ffn = 80;
  m.vocab = 61;
  m.max_positions = 512;
  m.norm = Norm::layernorm;
  m.activation = Activation::gelu;
  m.positions = Positions::learned;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.tied_embeddings = true;
  return m;
}

ModelSpec small_llama() {
  ModelSpec m;
  m.name = "small-llama";
  m.layers = 3;
  m.hidden = 40;
  m.heads = 6;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.ffn = 56;
  m.vocab = 71;
  m.max_positions = 4096;
  m.rope_scaling = RopeScaling{RopeType::llama3, 8, 1, 4, 64};
  m.qkv_bias = true;
  return m;
}

ModelSpec small_qwen() {
  ModelSpec m = small_llama();
  m.name = "small-qwen";
  m.layers = 2;
  m.kv_heads = 1;
  m.head_dim = 16;
  m.rope_scaling = RopeScaling{RopeType::linear, 4};
  m.qkv_bias = false;
  m.qk_norm = m.tied_embeddings = true;
  return m;
}

ModelSpec in_windows(ModelSpec model, int64_t window) {
  const int64_t f = model.ffn;
  model.name += ", windows";
  model.attention_sinks = true;
  const bool experts = model.experts.has_value();
  LayerRun windowed{1, true, f, 1, window, experts};
  const LayerRun all{1, true, f, 1, 0, experts};
  if (model.positions == Positions::rope) {
    model.local_rope_theta = 300;
    windowed.positions = LayerPositions::local;
  }
  model.runs = {windowed, all, windowed};
  if (model.positions == Positions::rope) model.runs.back().positions = LayerPositions::none;
  model.layers = 3;
  validate(model, "test");
  return model;
}

ModelSpec in_spans(ModelSpec model, int64_t span) {
  model.name += ", spans";
  model.attention_sinks = true;  // without, biases of keys have no gradient where none rotate
  LayerRun apart{1, true, model.ffn, 1, 0, model.experts.has_value()}, all = apart;
  apart.span = span;
  if (model.positions == Positions::rope) all.positions = LayerPositions::none;
  model.runs = {apart, all, apart};
  model.layers = 3;
  validate(model, "test");
  return model;
}

ModelSpec small_gemma() {
  ModelSpec m = small_qwen();
  m.name = "small-gemma";
  m.activation = Activation::geglu;
  m.norm_placement = NormPlacement::both;
  m.norm_offset = true;
  m.embedding_scale = 6.5;
  return m;
}

ModelSpec small_olmo() {
  ModelSpec m = small_llama();
  m.name = "small-olmo";
  m.activation = Activation::clamped_swiglu;
  m.norm_placement = NormPlacement::output;
  m.qk_norm = m.qk_norm_of_token = true;
  // Keys that are alike, as biases make them here, have gradients that cancel but for rounding.
  m.qkv_bias = false;
  return m;
}

ModelSpec small_mixtral() {
  ModelSpec m = small_llama();
  m.name = "small-mixtral";
  m.layers = 2;
  m.ffn = 24;
  m.experts = Experts{.count = 6, .active = 2, .ffn = 24, .format = Experts::Format::mixtral};
  return m;
}

ModelSpec small_qwen_experts() {
  ModelSpec m = small_qwen();
  m.name = "small-qwen-experts";
  m.experts = Experts{.count = 5,
                      .active = 3,
                      .ffn = 16,
                      .shared_ffn = 24,
                      .shared_gate = true,
                      .normalised = false};
  m.layers = 3;
  m.runs = {{1, true, m.ffn, 1, 0, true}, {1, true, m.ffn, 1}, {1, true, m.ffn, 1, 0, true}};
  return m;
}

ModelSpec small_glm() {
  ModelSpec m = small_llama();
  m.name = "small-glm";
  m.layers = 3;
  m.experts = Experts{.count = 8,
                      .active = 3,
                      .ffn = 16,
                      .shared_ffn = 24,
                      .scores = Experts::Scores::sigmoid,
                      .scale = 1.5,
                      .selection_bias = true,
                      .groups = 4,
                      .active_groups = 2};
  m.runs = {{1, true, m.ffn, 1}, {2, true, m.ffn, 1, 0, true}};
  return m;
}

ModelSpec small_gpt_oss() {
  ModelSpec m = small_llama();
  m.name = "small-gpt-oss";
  m.layers = 2;
  m.attention_out_bias = m.mlp_bias = true;
  m.experts = Experts{.count = 4,
                      .active = 2,
                      .ffn = 24,
                      .scores = Experts::Scores::softmax_of_chosen,
                      .router_bias = true,
                      .format = Experts::Format::gpt_oss};
  return m;
}

ModelSpec in_runs(ModelSpec model, int64_t variant) {
  // Some layers do not have projections that others have, so none is adapted.
  if (model.adapters) model = wholly_trained(model);
  model.backward = LayerBackward::weights;
  const int64_t f = model.ffn;
  const std::vector<LayerRun> variants[kLayerVariants] = {
      {{1, true, f, 1}, {1, false, f, 1}, {2, true, f, 1}},
      fuse({{1, true, f, 1}, {4, false, f / 2, 1}, {2, true, f, 1}}),
      {{1, true, f, 1}, {2, true, f, 0.5}, {1, true, f, 1}},
      {{1, true, f, 1},
       {1, true, f + 8, 0.5},
       {1, false, 2 * f, 0.25},
       {1, true, f, 0.25},
       {1, true, f, 0.5},
       {1, false, f, 1},
       {1, true, f + 8, 1}},
      {{1, true, f, 1, 20}, {1, true, f, 1}, {1, true, f, 1, 5}, {1, true, f, 1, 36}},
      {{1, true, f, 1, 16}, {2, true, f, 0.5, 9}, {1, true, f, 1, 17}}};
  model.name += ", layers " + std::to_string(variant);
  model.runs = variants[variant];
  if (variant >= 4) model.attention_sinks = true;
  if (variant == 4 && model.positions == Positions::rope) {
    model.local_rope_theta = 300;
    model.rope_scaling = RopeScaling{RopeType::yarn, 4};
    model.rope_scaling->original_max_positions = 64;
    model.rope_scaling->attention_factor = 1.2;
    model.rope_scaling->truncates = false;
    model.runs[0].positions = model.runs[2].positions = LayerPositions::local;
    model.runs[3].positions = LayerPositions::none;
  }
  model.layers = 0;
  for (const LayerRun& run : model.runs) model.layers += run.layers;
  validate(model, "test");
  return model;
}

ModelSpec partly_frozen(ModelSpec model, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto coin = [&] { return random() % 2 == 0; };
  Frozen frozen{coin(), coin()};
  const auto layers = static_cast<uint64_t>(model.layers);
  const auto first = static_cast<int64_t>(coin() ? 0 : random() % layers);
  const auto end = first + static_cast<int64_t>(random() % (layers + 1));
  if (first < end) frozen.layers.push_back({first, std::min(end, model.layers)});
  if (frozen.embedding && frozen.head && end - first >= model.layers) frozen.head = false;
  return freeze(model, frozen);
}

ModelSpec adapted(ModelSpec model, uint64_t seed) {
  std::mt19937_64 random(seed);
  Adapters adapters{1 + static_cast<int64_t>(random() % 6),
                    1.0 + static_cast<double>(random() % 9)};
  const bool experts = model.experts.has_value();
  const size_t most = experts ? 4 : kProjections;
  for (size_t i = 0; i < most; ++i) adapters.on[i] = random() % 2 == 0;
  const bool attends = !experts && random() % 3 > 0;
  adapters.on[attends ? 6 : 3] = true;  // every layer has one
  model.name += ", adapters";
  return with_adapters(model, adapters);
}

namespace {

// Gives every chunk as many tokens of each of some sequences.
void in_batches_of(int64_t sequences, StepCase& c) {
  c.model.micro_batch = sequences;
  c.model.name += ", batches";
  for (int64_t* tokens : {&c.sequence, &c.strategy.block_tokens, &c.strategy.chunk_tokens}) {
    *tokens *= sequences;
  }
}

StepCase random_case_of(const std::vector<ModelSpec>& models, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  StepCase c;
  c.seed = seed + 1;
  c.model = models[static_cast<size_t>(pick(static_cast<int64_t>(models.size())))];
  c.microbatches = 1 + pick(2);
  const int64_t chunk = 8 + pick(40), per_block = 1 + pick(2), blocks = 1 + pick(4);
  Strategy& s = c.strategy;
  s.preset = "random";
  s.chunk_tokens = chunk;
  s.block_tokens = chunk * per_block;
  c.sequence = chunk * per_block * blocks;
  if (pick(3) == 0) s.block_tokens = c.sequence;
  s.kv = static_cast<Tier>(pick(2));
  s.between_uses = static_cast<Tier>(pick(2));
  s.prefetch_depth = pick(4);
  s.offload_window = pick(4);
  s.backward_order = static_cast<BackwardOrder>(pick(2));
  const auto saved = [&](bool may_recompute) {
    SavedPolicy policy;
    do {
      policy.where = static_cast<Saved>(pick(4));
    } while (!may_recompute && policy.where == Saved::recompute);
    policy.fraction = pick(3) == 0 ? 0.5 : 1;
    return policy;
  };
  s.layer_input = saved(false);
  s.qkv = saved(true);
  s.attention_out = saved(true);
  s.mlp_input = saved(true);
  s.mlp_inner = saved(true);
  s.projection_tile = pick(2) * (1 + pick(chunk));
  s.mlp_tile = pick(2) * (1 + pick(c.sequence));
  s.loss_tile = pick(2) * (1 + pick(c.sequence));
  switch (pick(5)) {
    case 0:
      break;
    case 1:
      s.optimizer = Tier::host;
      break;
    case 2:
      s.optimizer = s.gradients = Tier::host;
      break;
    case 3:
      s.optimizer = s.gradients = s.parameters = Tier::host;
      break;
    case 4:
      s.optimizer = Tier::nvme;
      s.gradients = static_cast<Tier>(pick(2));
      s.parameters = static_cast<Tier>(pick(2));
  }
  if (s.parameters == Tier::device) {
    s.optimizer_fraction = seed % 4 == 3 ? 0.9 : seed % 2 == 1 ? 0.4 : 1;
  }
  if (pick(3) == 0 && !c.model.qk_norm_of_token) {
    // Groups of heads attend to the whole sequence at once.
    s.chunk_tokens = s.block_tokens = c.sequence;
    do {
      s.head_groups = 1 + pick(c.model.heads);
    } while (!heads_divide_into(c.model, 1, s.head_groups));
  }
  // Windows within a chunk, across some, and beyond all.
  if (pick(3) == 0) c.model.window = 1 + pick(pick(2) == 0 ? 3 * chunk : 2 * c.sequence);
  c.model.attention_sinks = pick(4) == 0;
  if (c.model.positions == Positions::rope) {
    if (pick(4) == 0) c.model.rotary_share = 0.5;
    if (pick(4) == 0) c.model.attention_scale = 0.2;
  }
  if (pick(4) == 0) c.model = in_windows(c.model, 1 + pick(3 * chunk));
  const int64_t trained = pick(4);
  if (trained == 0) c.model = partly_frozen(c.model, seed);
  if (trained == 1 && c.model.activation != Activation::gelu) c.model = adapted(c.model, seed);
  if (pick(3) == 0) in_batches_of(2 + pick(3), c);
  return c;
}

}  // namespace

void add_formats(StepCase& step, uint64_t seed) {
  step.strategy.moments = static_cast<MomentFormat>(seed / 2 % 3);
  step.model.nf4 = step.model.adapters && seed % 3 > 0;
}

StepCase random_case(uint64_t seed) {
  return random_case_of({small_gpt(), small_llama(), small_qwen()}, seed);
}

ModelSpec balanced(ModelSpec model) {
  // That of a microbatch is of all its sequences, which the reference trains one by one.
  if (!model.experts || model.micro_batch > 1) return model;
  if (model.experts->scores == Experts::Scores::sigmoid) return model;
  model.name += ", balanced";
  model.experts->auxiliary_loss = 0.7;
  return model;
}

StepCase random_case_with_experts(uint64_t seed) {
  return random_case_of({small_mixtral(), small_qwen_experts(), small_glm(), small_gpt_oss()},
                        seed);
}

}  // namespace longspan::testing
