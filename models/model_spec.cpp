#include "models/model_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "models/adapters.h"
#include "models/model_check.h"
#include "models/training.h"

namespace longspan {
namespace {

constexpr int64_t kMaxCount = (int64_t{1} << 40) - 1;
// Far above any model; bounds the work that a hostile file can cause in a planner: parameter units,
// tensors, divisors of heads.
constexpr int64_t kMaxLayers = 2048;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHidden = int64_t{1} << 24;
constexpr int64_t kMaxFfn = int64_t{1} << 32;    // also for fused layers
constexpr int64_t kMaxVocab = int64_t{1} << 31;  // token ids are 32 bits wide

struct Count {
  const char* field;
  int64_t value;
  int64_t max = kMaxCount;
};

struct Real {
  const char* field;
  double value;
};

std::optional<ModelProblem> check_count(const Count& count) {
  if (count.value >= 1 && count.value <= count.max) return std::nullopt;
  return ModelProblem{count.field, fmt::format("expected a whole number from 1 to {}, got {}",
                                               count.max, count.value)};
}

std::optional<ModelProblem> check_positive(const Real& real) {
  if (std::isfinite(real.value) && real.value > 0) return std::nullopt;
  return ModelProblem{real.field, fmt::format("expected a finite number > 0, got {}", real.value)};
}

std::optional<ModelProblem> find_rope_problem(const ModelSpec& model) {
  if (auto problem = check_positive({"rope_theta", model.rope_theta})) return problem;
  if (model.positions == Positions::rope && model.head_dim % 2 != 0) {
    return ModelProblem{"head_dim",
                        fmt::format("expected an even number under rope, got {}", model.head_dim)};
  }
  if (!model.rope_scaling) return std::nullopt;
  if (model.positions != Positions::rope) {
    return ModelProblem{"rope_scaling", "only for positions: rope; remove it"};
  }
  const RopeScaling& scaling = *model.rope_scaling;
  if (auto problem = check_positive({"rope_scaling.factor", scaling.factor})) return problem;
  if (scaling.type == RopeType::linear) return std::nullopt;
  if (auto problem =
          check_count({"rope_scaling.original_max_positions", scaling.original_max_positions})) {
    return problem;
  }
  if (scaling.type == RopeType::yarn) {
    for (const Real& real : {Real{"rope_scaling.beta_slow", scaling.beta_slow},
                             Real{"rope_scaling.beta_fast", scaling.beta_fast},
                             Real{"rope_scaling.attention_factor", scaling.attention_factor}}) {
      if (auto problem = check_positive(real)) return problem;
    }
    if (scaling.beta_fast > scaling.beta_slow) return std::nullopt;
    return ModelProblem{"rope_scaling.beta_fast",
                        fmt::format("expected more than beta_slow ({}), got {}", scaling.beta_slow,
                                    scaling.beta_fast)};
  }
  for (const Real& real : {Real{"rope_scaling.low_freq_factor", scaling.low_freq_factor},
                           Real{"rope_scaling.high_freq_factor", scaling.high_freq_factor}}) {
    if (auto problem = check_positive(real)) return problem;
  }
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return ModelProblem{"rope_scaling.high_freq_factor",
                        fmt::format("expected more than low_freq_factor ({}), got {}",
                                    scaling.low_freq_factor, scaling.high_freq_factor)};
  }
  return std::nullopt;
}

std::optional<ModelProblem> find_experts_problem(const ModelSpec& model) {
  const bool of_runs = std::any_of(model.runs.begin(), model.runs.end(),
                                   [](const LayerRun& run) { return run.experts; });
  if (!model.experts) {
    if (!of_runs) return std::nullopt;
    return ModelProblem{"runs.experts", "the model has no experts; describe them, or remove it"};
  }
  const Experts& e = *model.experts;
  for (const Count& count :
       {Count{"experts.count", e.count, kMostExperts}, Count{"experts.active", e.active, e.count},
        Count{"experts.ffn", e.ffn, kMaxFfn}, Count{"experts.groups", e.groups, e.count},
        Count{"experts.active_groups", e.active_groups, e.groups}}) {
    if (auto problem = check_count(count)) return problem;
  }
  if (e.shared_ffn < 0 || e.shared_ffn > kMaxFfn) {
    return ModelProblem{
        "experts.shared_ffn",
        fmt::format("expected a whole number up to {}, got {}", kMaxFfn, e.shared_ffn)};
  }
  if (e.count % e.groups != 0) {
    return ModelProblem{"experts.groups",
                        fmt::format("expected a divisor of count ({}), got {}", e.count, e.groups)};
  }
  if (e.active > e.count / e.groups * e.active_groups) {
    return ModelProblem{
        "experts.active_groups",
        fmt::format("{} groups have fewer than the {} active experts", e.active_groups, e.active)};
  }
  if (model.norm_placement != NormPlacement::input) {
    return ModelProblem{"norm_placement", "expected input: outputs of experts are not normalised"};
  }
  if (e.selection_bias && e.scores != Experts::Scores::sigmoid) {
    return ModelProblem{"experts.selection_bias", "only for sigmoid scores; remove it"};
  }
  if (e.shared_gate && e.shared_ffn == 0) {
    return ModelProblem{"experts.shared_gate", "there are no shared experts; remove it"};
  }
  if (!std::isfinite(e.auxiliary_loss) || e.auxiliary_loss < 0) {
    return ModelProblem{"experts.auxiliary_loss",
                        fmt::format("expected a finite number >= 0, got {}", e.auxiliary_loss)};
  }
  if (e.auxiliary_loss > 0 && e.scores == Experts::Scores::sigmoid) {
    return ModelProblem{"experts.auxiliary_loss",
                        "only for scores by softmax, of which it takes the mean; remove it"};
  }
  return check_positive({"experts.scale", e.scale});
}

// What layers attend within, of a model and of its runs.
std::optional<ModelProblem> find_span_problem(const ModelSpec& model) {
  for (const LayerRun& run : layer_runs(model)) {
    const char* field = model.uniform() ? "span" : "runs.span";
    if (run.span < 0 || run.span > kMaxCount) {
      return ModelProblem{
          field, fmt::format("expected a whole number up to {}, got {}", kMaxCount, run.span)};
    }
    if (run.span == 0) continue;
    if (run.window > 0) return ModelProblem{field, "these layers have a window; remove one"};
    if (!model.documents.empty()) {
      return ModelProblem{field,
                          "documents begin within spans, which is not supported; leave the "
                          "documents out"};
    }
    if (!model.works_on_all_tokens()) {
      return ModelProblem{field, "only where all layers work on all tokens; remove it"};
    }
  }
  return std::nullopt;
}

std::optional<ModelProblem> find_attention_problem(const ModelSpec& model) {
  if (model.window < 0 || model.window > kMaxCount) {
    return ModelProblem{
        "window", fmt::format("expected a whole number up to {}, got {}", kMaxCount, model.window)};
  }
  if (!model.documents.empty() && model.positions == Positions::learned) {
    return ModelProblem{"documents",
                        "positions of documents begin again, and those of the model are a table of "
                        "the whole sequence; leave the documents out"};
  }
  if (model.documents.longest() == 1) {
    return ModelProblem{"documents", "documents of one token have no label; give longer ones"};
  }
  if (!model.documents.empty() && !model.works_on_all_tokens()) {
    return ModelProblem{"documents",
                        "some layers work on a share of the tokens, of all documents alike; leave "
                        "the documents out"};
  }
  if (model.micro_batch < 1 || model.micro_batch > kMostMicroBatch) {
    return ModelProblem{"micro_batch", fmt::format("expected 1 to {} sequences, got {}",
                                                   kMostMicroBatch, model.micro_batch)};
  }
  if (model.micro_batch > 1 && !model.works_on_all_tokens()) {
    return ModelProblem{"micro_batch",
                        "some layers work on a share of the tokens, of one sequence; leave the "
                        "microbatch out"};
  }
  if (model.attention_scale != 0) {
    if (auto problem = check_positive({"attention_scale", model.attention_scale})) return problem;
  }
  const double rotated = model.rotary_share * static_cast<double>(model.head_dim);
  if (!(model.rotary_share > 0 && model.rotary_share <= 1) || rotated != std::floor(rotated) ||
      (model.positions == Positions::rope && std::fmod(rotated, 2) != 0)) {
    return ModelProblem{"rotary_share", fmt::format("expected a share in (0, 1] that is an even "
                                                    "number of head_dim's {}, got {}",
                                                    model.head_dim, model.rotary_share)};
  }
  if (model.qk_norm_of_token && !model.qk_norm) {
    return ModelProblem{"qk_norm_of_token", "there is no qk_norm; set qk_norm, or remove it"};
  }
  const bool local = std::any_of(model.runs.begin(), model.runs.end(), [](const LayerRun& run) {
    return run.positions == LayerPositions::local;
  });
  if (!local && model.local_rope_theta == 0) return std::nullopt;
  return check_positive({"local_rope_theta", model.local_rope_theta});
}

std::optional<ModelProblem> find_latent_problem(const ModelSpec& model) {
  if (model.next_token_layers < 0 || model.next_token_layers > 16) {
    return ModelProblem{"next_token_layers", fmt::format("expected a whole number up to 16, got {}",
                                                         model.next_token_layers)};
  }
  if (!model.latent) return std::nullopt;
  const LatentAttention& l = *model.latent;
  for (const Count& count :
       {Count{"latent.key_rank", l.key_rank, kMaxHidden},
        Count{"latent.rotated_dim", l.rotated_dim, std::max<int64_t>(1, model.head_dim - 1)},
        Count{"latent.value_dim", l.value_dim, kMaxHidden}}) {
    if (auto problem = check_count(count)) return problem;
  }
  if (l.query_rank < 0 || l.query_rank > kMaxHidden) {
    return ModelProblem{"latent.query_rank", fmt::format("expected a whole number up to {}, got {}",
                                                         kMaxHidden, l.query_rank)};
  }
  if (model.kv_heads == model.heads) return std::nullopt;
  return ModelProblem{"kv_heads", fmt::format("expected as many as heads ({}) with latent "
                                              "attention, got {}",
                                              model.heads, model.kv_heads)};
}

std::optional<ModelProblem> find_adapters_problem(const ModelSpec& model) {
  const Adapters& a = *model.adapters;
  if (auto problem = check_count({"adapters.rank", a.rank, kMaxHidden})) return problem;
  if (auto problem = check_positive({"adapters.alpha", a.alpha})) return problem;
  const bool gpt2 = model.activation == Activation::gelu && model.positions == Positions::learned;
  if (gpt2 || model.fused_projections || model.latent) {
    return ModelProblem{"adapters",
                        "only for models whose q, k, v, gate and up are matrices of "
                        "their own"};
  }
  using enum Projection;
  const bool of_mlp = a.has(gate) || a.has(up) || a.has(down);
  const std::vector<LayerRun> runs = layer_runs(model);
  const bool experts =
      std::any_of(runs.begin(), runs.end(), [](const LayerRun& run) { return run.experts; });
  if (of_mlp && experts) {
    return ModelProblem{"adapters",
                        "experts cannot have them yet; expected q_proj, k_proj, v_proj "
                        "and o_proj alone"};
  }
  for (const LayerRun& run : runs) {
    if (adapter_elements(model_of_run(model, run)) > 0) continue;
    return ModelProblem{"adapters", "some layers have none of these projections"};
  }
  return std::nullopt;
}

std::optional<ModelProblem> find_training_problem(const ModelSpec& model) {
  using enum LayerBackward;
  bool before = !model.frozen_embedding;  // whether anything before the layer is trained
  bool trained = before || !model.frozen_head;
  for (const LayerRun& run : layer_runs(model)) {
    if (model.adapters && run.backward != inputs) {
      return ModelProblem{"backward",
                          "layers with adapters are frozen and pass gradients on; "
                          "expected inputs"};
    }
    if (model.nf4 && run.backward == weights) {
      return ModelProblem{"nf4",
                          "trained layers are not stored in 4 bits; freeze all layers, or "
                          "remove it"};
    }
    if (run.backward == none && (before || !model.works_on_all_tokens())) {
      return ModelProblem{"backward",
                          "parameters before these layers are trained; expected inputs, "
                          "got none"};
    }
    before = before || run.backward != none;
    trained = trained || run.backward == weights;
  }
  if (model.adapters) {
    if (auto problem = find_adapters_problem(model)) return problem;
    trained = true;
  }
  if (model.next_token_layers > 0 && is_frozen(model)) {
    return ModelProblem{"next_token_layers", "nothing of such a model can be frozen"};
  }
  if (trained) return std::nullopt;
  return ModelProblem{"backward", "all parameters are frozen; nothing is left to train"};
}

std::optional<ModelProblem> find_runs_problem(const ModelSpec& model) {
  if (model.uniform()) return std::nullopt;
  if (model.runs.front().tokens < 1 || model.runs.back().tokens < 1) {
    return ModelProblem{"runs", "the first and the last work on all tokens; set their tokens to 1"};
  }
  int64_t layers = 0;
  for (const LayerRun& run : model.runs) {
    for (const Count& count :
         {Count{"runs.layers", run.layers, kMaxLayers}, Count{"runs.ffn", run.ffn, kMaxFfn}}) {
      if (auto problem = check_count(count)) return problem;
    }
    if (run.window < 0 || run.window > kMaxCount) {
      return ModelProblem{"runs.window", fmt::format("expected a whole number up to {}, got {}",
                                                     kMaxCount, run.window)};
    }
    if (run.positions != LayerPositions::model && model.positions != Positions::rope) {
      return ModelProblem{"runs.positions", "only for positions: rope; remove it"};
    }
    if (!(run.tokens > 0 && run.tokens <= 1)) {
      return ModelProblem{"runs.tokens",
                          fmt::format("expected a share in (0, 1], got {}", run.tokens)};
    }
    layers += run.layers;
  }
  if (layers == model.layers) return std::nullopt;
  return ModelProblem{"runs",
                      fmt::format("expected {} layers in all, as many as the model has, got {}",
                                  model.layers, layers)};
}

}  // namespace

const char* name_of(RopeType type) {
  switch (type) {
    case RopeType::linear:
      return "linear";
    case RopeType::llama3:
      return "llama3";
    default:
      return "yarn";
  }
}

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::swiglu:
      return "swiglu";
    case Activation::geglu:
      return "geglu";
    default:
      return "clamped_swiglu";
  }
}

double yarn_attention_factor(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

std::optional<ModelProblem> find_problem(const ModelSpec& model) {
  if (model.name.empty()) return ModelProblem{"name", "expected text, got nothing"};
  for (const Count& count :
       {Count{"layers", model.layers, kMaxLayers}, Count{"hidden", model.hidden, kMaxHidden},
        Count{"heads", model.heads, kMaxHeads}, Count{"kv_heads", model.kv_heads, kMaxHeads},
        Count{"head_dim", model.head_dim, kMaxHidden}, Count{"ffn", model.ffn, kMaxFfn},
        Count{"vocab", model.vocab, kMaxVocab}, Count{"max_positions", model.max_positions}}) {
    if (auto problem = check_count(count)) return problem;
  }
  if (model.heads % model.kv_heads != 0) {
    return ModelProblem{"kv_heads", fmt::format("expected a divisor of heads ({}), got {}",
                                                model.heads, model.kv_heads)};
  }
  if (auto problem = check_positive({"norm_eps", model.norm_eps})) return problem;
  if (auto problem = find_rope_problem(model)) return problem;
  if (auto problem = find_attention_problem(model)) return problem;
  if (auto problem = find_latent_problem(model)) return problem;
  if (auto problem = find_experts_problem(model)) return problem;
  if (auto problem = find_runs_problem(model)) return problem;
  if (auto problem = find_span_problem(model)) return problem;
  if (auto problem = find_training_problem(model)) return problem;
  if (auto problem = check_positive({"embedding_scale", model.embedding_scale})) return problem;
  if (model.norm_offset && model.norm != Norm::rmsnorm) {
    return ModelProblem{"norm_offset", "only for norm: rmsnorm; remove it"};
  }
  const bool has_mlp =
      !model.experts || std::any_of(model.runs.begin(), model.runs.end(),
                                    [](const LayerRun& run) { return !run.experts; });
  if (model.mlp_bias && model.gated() && has_mlp) {
    return ModelProblem{"mlp_bias",
                        "biases in a gated MLP are not supported; expected false, got true"};
  }
  try {
    parameter_count(model);
  } catch (const Error& e) {
    return ModelProblem{"parameters", e.what()};
  }
  return std::nullopt;
}

void validate(const ModelSpec& model, const std::string& origin) {
  if (const auto problem = find_problem(model)) {
    throw bad_input("{}: {}: {}", origin, problem->field, problem->what);
  }
}

double ModelSpec::score_scale() const {
  return attention_scale != 0 ? attention_scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

namespace {

int64_t trained_in(const ParameterUnit& unit) {
  int64_t trained = unit.elements;
  for (const ParameterTensor& tensor : unit.tensors) {
    if (!tensor.trained) trained -= tensor.elements;
  }
  return trained;
}

}  // namespace

int64_t parameter_count(const ModelSpec& model) {
  int64_t total = 0;
  bool ends = true;  // embedding and head are counted once
  for (LayerRun run : layer_runs(model)) {
    // Layers of a run are alike: one represents all, so the cost does not grow with their number.
    const int64_t layers = std::exchange(run.layers, 1);
    for (const ParameterUnit& unit : parameter_units(model_of_run(model, run))) {
      const bool layer =
          unit.kind != ParameterUnit::Kind::embedding && unit.kind != ParameterUnit::Kind::head;
      if (!layer && !ends) continue;
      const int64_t elements = checked_mul(trained_in(unit), layer ? layers : 1, "parameters");
      total = checked_add(total, elements, "parameters");
    }
    ends = false;
  }
  for (const ParameterUnit& unit : next_token_units(model)) {
    total = checked_add(total, trained_in(unit), "parameters");
  }
  return total;
}

int64_t active_parameter_count(const ModelSpec& model) {
  ModelSpec active = model;
  if (model.experts) active.experts->count = model.experts->active;
  if (!model.experts) return parameter_count(active);
  const std::vector<LayerRun> runs = layer_runs(model);
  int64_t layers = runs.back().experts ? model.next_token_layers : 0;
  for (const LayerRun& run : runs) layers += run.experts ? run.layers : 0;
  // The router scores all experts.
  const Experts& e = *model.experts;
  const int64_t row = model.hidden + (e.router_bias ? 1 : 0);
  return parameter_count(active) + layers * (e.count - e.active) * row;
}

void refuse_unplanned(const ModelSpec& model) {
  const std::pair<bool, const char*> features[] = {
      {model.next_token_layers > 0, "layers that predict further tokens"},
  };
  for (const auto& [present, name] : features) {
    if (present) throw bad_input("model {}: {} is not planned yet", model.name, name);
  }
}

ModelSpec fit_to_length(const ModelSpec& model, int64_t tokens) {
  ModelSpec fitted = model;
  const int64_t positions = model.of_sequence(tokens);
  if (model.positions == Positions::learned && model.max_positions < positions) {
    fitted.max_positions = positions;
  }
  if (!model.documents.empty()) fitted.documents = model.documents.in(positions);
  return fitted;
}

}  // namespace longspan
