#include "frameworks/knobs/configured_run.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "frameworks/files/arithmetic.h"
#include "frameworks/knobs/device_support.h"
#include "planner/plan/plan.h"
#include "planner/schedule/registry.h"

namespace longspan {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30, kMostSequences = int64_t{1} << 20;

std::vector<double> all_of(const RunKnobs& knobs, const char* knob, double share = 1) {
  const std::string tier = knobs.text(knob).value_or("device");
  const bool away = tier == "host" || tier == "nvme";
  return away ? std::vector<double>{share} : std::vector<double>{};
}

class Configurer {
 public:
  Configurer(const RunKnobs& knobs, const Framework& framework, const ModelSpec& model,
             const HardwareProfile& hw, const KnobPlaces& places)
      : knobs_(knobs), framework_(framework), places_(places) {
    configured_.model = model;
    configured_.hw = hw;
  }

  ConfiguredRun run() {
    refuse_unknown_kinds();
    choose_devices();
    degrees();
    expert_degrees();
    batch();
    schedule();
    other_models();
    layers();
    states();
    kernels();
    costs();
    check_rules();
    configured_.model = fit_to_length(configured_.model, run_.sequence);
    return std::move(configured_);
  }

 private:
  std::string name(const std::string& knob) const { return places_(knob); }
  int64_t degree(const char* knob) const { return std::max<int64_t>(1, knobs_.count_or(knob, 1)); }

  void refuse_unknown_kinds() const {
    if (const std::string adapter = knobs_.text("adapter").value_or("none"); adapter != "none") {
      throw bad_input("{}: {} is not predicted, only training of all parameters", name("adapter"),
                      adapter == "lora"    ? "LoRA"
                      : adapter == "qlora" ? "QLoRA"
                                           : "training of a few layers");
    }
  }

  // Experts are spread over the GPUs of a stage, whatever these share besides.
  void expert_degrees() {
    RunDegrees& d = run_.degrees;
    const std::optional<Experts>& experts = configured_.model.experts;
    d.expert = degree("expert");
    d.expert_tensor = knobs_.has("expert-tensor") ? degree("expert-tensor") : 0;
    if (!experts) {
      if (d.expert > 1) {
        throw bad_input("{}: {} has no experts", name("expert"), configured_.model.name);
      }
      return;
    }
    if (experts->count % d.expert != 0) {
      throw bad_input("{}: {} experts cannot be divided by {}", name("expert"), experts->count,
                      d.expert);
    }
    const int64_t stage = run_.gpus / d.pipeline;
    if (stage % (d.expert * d.of_expert()) != 0) {
      throw bad_input("{}: {} GPUs of a stage cannot be divided by {} x {} of an expert",
                      name("expert"), stage, d.expert, d.of_expert());
    }
    const std::string capacity = knobs_.text("expert-capacity").value_or("0");
    char* end = nullptr;
    run_.expert_capacity = std::strtod(capacity.c_str(), &end);
    if (*end != '\0' || !(run_.expert_capacity >= 0 && run_.expert_capacity < 1e6)) {
      throw bad_input("{}: expected a number >= 0, got \"{}\"", name("expert-capacity"), capacity);
    }
  }

  void choose_devices() {
    HardwareProfile& hw = configured_.hw;
    std::optional<int64_t> gpus = knobs_.count("gpus");
    if (!gpus && knobs_.has("node-gpus")) {
      gpus = *knobs_.count("node-gpus") * knobs_.count_or("nodes", hw.nodes);
    }
    if (gpus && *gpus > hw.devices()) {
      throw bad_input("{}: the config has {} GPUs, the hardware {}",
                      name(knobs_.has("gpus") ? "gpus" : "node-gpus"), *gpus, hw.devices());
    }
    if (gpus && *gpus > 0 && *gpus < hw.devices()) hw = with_devices(hw, *gpus);
    run_.gpus = hw.devices();
    run_.gpus_per_node = hw.devices_per_node;
  }

  void degrees() {
    RunDegrees& d = run_.degrees;
    d.tensor = degree("tensor");
    d.pipeline = degree("pipeline");
    d.ulysses = degree("ulysses");
    d.ring = degree("ring");
    const int64_t context = degree("context");
    const std::string kind = knobs_.text("context-kind").value_or("ring");
    if (kind == "both") {
      if (context % d.ulysses != 0) {
        throw bad_input("{}: {} is not a multiple of {}: {}", name("context"), context,
                        name("ulysses"), d.ulysses);
      }
      d.ring = context / d.ulysses;
    } else if (context > 1) {
      (kind == "ulysses" ? d.ulysses : kind == "gather" ? d.all_gather : d.ring) = context;
    }
    const int64_t group = d.tensor * d.pipeline * d.ulysses * d.ring * d.all_gather;
    if (run_.gpus % group != 0) {
      throw bad_input("{}: {} GPUs cannot be divided by {}", degree_names(), run_.gpus, group);
    }
    d.data = run_.gpus / group;
    const int64_t sequence_ranks = d.ulysses * d.ring * d.all_gather;
    run_.state_copies = degree("replicate");
    if (knobs_.is("sharded-over", "node") && !knobs_.has("shard")) {
      const int64_t ranks = d.data * sequence_ranks;
      run_.state_copies = ranks / std::gcd(ranks, run_.gpus_per_node);
    } else if (knobs_.has("shard") && knobs_.is("replicate", "0")) {
      const int64_t ranks = d.data * sequence_ranks, shard = std::min(degree("shard"), ranks);
      if (ranks % shard != 0) {
        throw bad_input("{}: {} GPUs cannot be divided by {}", name("shard"), ranks, shard);
      }
      run_.state_copies = ranks / shard;
    } else if (knobs_.has("shard")) {
      const int64_t shard = degree("shard"), replicate = degree("replicate");
      // Some count the ranks of a sequence among those that share states.
      const int64_t product = shard * replicate;
      if (product != d.data && product != d.data * sequence_ranks) {
        throw bad_input("{}, {}: their product {} is not the number of GPUs, {}", name("shard"),
                        degree_names(), product * group, run_.gpus);
      }
    }
    run_.sequence_parallel = knobs_.flag("sequence-parallel");
    run_.virtual_stages = degree("virtual-stages");
    const int64_t layers = configured_.model.layers;
    if (const int64_t each = knobs_.count_or("virtual-layers", 0); each > 0 && d.pipeline > 1) {
      if (layers % (d.pipeline * each) != 0) {
        throw bad_input("{}: {} layers cannot be divided by {} stages of {}",
                        name("virtual-layers"), layers, d.pipeline, each);
      }
      run_.virtual_stages = layers / (d.pipeline * each);
    }
    const auto divides = [&](const char* knob, int64_t ranks, int64_t heads, const char* what) {
      if (heads % ranks == 0) return;
      throw bad_input("{}: {} {} cannot be divided by {}", name(knob), heads, what, ranks);
    };
    divides("tensor", d.tensor, configured_.model.heads, "query heads");
    const int64_t hidden = knobs_.count_or("hidden", 0);
    if (!knobs_.has("head-dim")) {
      divides("heads", std::max<int64_t>(1, knobs_.count_or("heads", 1)), hidden, "columns");
    }
    const bool by_kind = knobs_.has("context") && kind == "ulysses";
    divides(by_kind ? "context" : "ulysses", d.ulysses, configured_.model.heads / d.tensor,
            "query heads");
  }
  std::string degree_names() const {
    std::string names;
    for (const char* knob : {"tensor", "pipeline", "context", "ulysses", "ring"}) {
      if (degree(knob) > 1) names += (names.empty() ? "" : ", ") + name(knob);
    }
    return names.empty() ? name("shard") : names;
  }

  // A microbatch of one group of GPUs; 0: not said.
  int64_t of_group(const char* knob) const {
    const int64_t count = knobs_.count_or(knob, 0);
    if (count == 0 || !knobs_.is("microbatch-unit", "all")) return count;
    return std::max<int64_t>(1, count / run_.degrees.data);
  }

  // Sequences in a microbatch of `tokens`.
  int64_t packed_sequences(int64_t tokens) const {
    const int64_t whole = tokens / run_.sequence;
    const int64_t data = run_.degrees.data;
    const int64_t batch = knobs_.count_or("batch", 0) *
                          (knobs_.is("batch-unit", "prompts") ? degree("responses") : 1);
    if (!knobs_.is("budget-kind", "mean") || batch < data) return whole;
    // As few microbatches as the mean allows, as even as whole sequences are.
    const int64_t own = batch / data;
    const int64_t parts = (own * run_.sequence + tokens - 1) / tokens;
    return std::max(whole, (own + parts - 1) / parts);
  }

  void batch() {
    run_.sequence = knobs_.count_or("sequence", 0);
    const RunDegrees& d = run_.degrees;
    const int64_t sequence_ranks = d.ulysses * d.ring * d.all_gather;
    // A budget of tokens is filled with whole sequences, or is one of documents.
    int64_t packed = 1;
    if (const int64_t budget = knobs_.count_or("token-budget", 0); budget > 0) {
      if (run_.sequence <= 0 || run_.sequence > budget * sequence_ranks) {
        run_.sequence = budget * sequence_ranks;
      }
      packed = packed_sequences(budget * sequence_ranks);
    }
    if (run_.sequence > kMostTokens || knobs_.count_or("microbatch", 1) > kMostSequences) {
      throw bad_input("{}: expected at most {} tokens, and {} sequences in a microbatch",
                      name("sequence"), kMostTokens, kMostSequences);
    }
    const ModelSpec& m = configured_.model;
    if (!has_positions(m, run_.sequence)) {
      throw bad_input("{}: {} has a table of {} positions, and the sequence has {} tokens",
                      name("sequence"), m.name, m.max_positions, run_.sequence);
    }
    if (run_.sequence <= 0) {
      throw bad_input("the config does not say the length of a sequence; give it with --seq");
    }
    int64_t microbatch = std::max<int64_t>(1, of_group("microbatch"));
    int64_t accumulation = degree("accumulation");
    if (const int64_t own = knobs_.count_or("rank-batch", 0);
        own > 0 && !knobs_.has("accumulation")) {
      accumulation = own / microbatch;
      if (accumulation == 0) {
        throw bad_input("{}: {} sequences are fewer than a microbatch has: {}", name("rank-batch"),
                        own, microbatch);
      }
    }
    int64_t batch = knobs_.count_or("batch", 0);
    if (knobs_.is("batch-unit", "prompts")) batch *= degree("responses");
    if (batch == 0 && knobs_.has("batch-tokens")) {
      batch = *knobs_.count("batch-tokens") / run_.sequence;
    }
    if (batch > 0 && !knobs_.has("microbatch")) {
      // The batch is divided by data ranks and steps of accumulation.
      microbatch = std::max<int64_t>(1, batch / (d.data * accumulation));
    }
    bool in_parts = false;  // the last microbatch may be smaller than the others
    if (packed > 1) {
      microbatch = packed;
      in_parts = batch > 0 && batch % d.data == 0 && d.pipeline == 1;
      if (in_parts) microbatch = std::min(packed, batch / d.data);
      while (!in_parts && batch > 0 && microbatch > 1 && batch % (microbatch * d.data) != 0) {
        --microbatch;
      }
    }
    if (batch > 0 && !in_parts && batch % (microbatch * d.data) != 0) {
      throw bad_input("{}: {} sequences cannot be divided by {} of a microbatch x {} data ranks",
                      name("batch"), batch, microbatch, d.data);
    }
    if (batch == 0) batch = microbatch * accumulation * d.data;
    const bool pairs = knobs_.is("task", "dpo") || knobs_.is("task", "reward");
    // The completions of pairs are scored; that they are half of the tokens is an assumption.
    if (pairs) run_.scored_share = 0.5;
    run_.padded = !knobs_.is("padding", "false");
    const int64_t sequences = pairs && !knobs_.flag("packed-pairs") ? 2 : 1;
    run_.microbatch = microbatch * sequences;
    run_.global_batch = batch * sequences;
    if (run_.sequence % sequence_ranks != 0) {
      throw bad_input("{}: {} tokens cannot be divided by the {} GPUs of a sequence",
                      name("sequence"), run_.sequence, sequence_ranks);
    }
  }

  // The closed forms are those of 1F1B, plain and interleaved; any other schedule is simulated.
  void schedule() {
    const std::string word = knobs_.text("schedule").value_or("none");
    const RunDegrees& d = run_.degrees;
    if (d.pipeline == 1 || word == "none" || word == "1f1b" || word == "interleaved-1f1b") return;
    try {
      ScheduleRequest request;
      request.ranks = static_cast<int32_t>(d.pipeline);
      request.virtual_stages = static_cast<int32_t>(run_.virtual_stages);
      request.microbatches = static_cast<int32_t>(run_.global_batch / (*run_.microbatch * d.data));
      make_schedule(schedule_family(word), request);
    } catch (const Error& e) {
      throw bad_input("{}: {}", name("schedule"), e.what());
    }
    run_.schedule = word;
  }

  // The models besides the trained one, and what a step of reinforcement learning does with all.
  void other_models() {
    const std::string task = knobs_.text("task").value_or("sft");
    const bool value = knobs_.has("head") ? knobs_.is("head", "value") : task == "reward";
    run_.outputs = value ? 1 : 0;
    run_.place = place_of(knobs_.effective("actor"));
    const bool preferences = task == "dpo" || task == "kto";
    const bool adapter = knobs_.has("adapter") && !knobs_.is("adapter", "none");
    // KTO runs both models over answers to other prompts, too.
    const int64_t passes = task == "kto" ? 2 : 1;
    if (task == "kto") run_.passes = 1;
    const std::string reference = knobs_.text("reference").value_or(preferences ? "joint" : "none");
    add_model(ModelRole::reference, adapter && reference != "none" ? "actor" : reference, passes);
    if (task != "rl") return;
    add_model(ModelRole::critic, knobs_.text("critic").value_or("none"), 1);
    add_model(ModelRole::reward, knobs_.text("reward-model").value_or("none"), 1);
    run_.passes = knobs_.is("old-log-probabilities", "false") ? 0 : 1;
    run_.updates = run_.epochs = degree("epochs");
    const int64_t forward = of_group("forward-microbatch");
    run_.forward_microbatch = forward == *run_.microbatch ? 0 : forward;
    const int64_t rolled_out = knobs_.count_or("rollout-prompts", 0) * degree("responses");
    if (rolled_out == 0) return;
    if (rolled_out < run_.global_batch) {
      throw bad_input("{}: {} sequences of a step are fewer than the {} of an update: {}",
                      name("rollout-prompts"), rolled_out, run_.global_batch, name("batch"));
    }
    run_.updates = rolled_out / run_.global_batch * run_.epochs;
  }
  static ModelPlace place_of(const std::string& word) {
    for (const ModelPlace place :
         {ModelPlace::process, ModelPlace::host, ModelPlace::joint, ModelPlace::actor}) {
      if (name_of(place) == word) return place;
    }
    return ModelPlace::device;
  }
  void add_model(ModelRole role, const std::string& place, int64_t passes) {
    if (place == "none" || place == "elsewhere") return;
    OtherModel other{role, place_of(place), 0, passes, {}};
    if (role == ModelRole::critic) {
      const RunDegrees& d = run_.degrees;
      const int64_t budget =
          knobs_.count_or("critic-token-budget", 0) * d.ulysses * d.ring * d.all_gather;
      other.microbatch =
          budget > 0 ? std::max<int64_t>(1, budget / run_.sequence) : of_group("critic-microbatch");
      if (other.microbatch == *run_.microbatch) other.microbatch = 0;
    }
    const char* const name = role == ModelRole::critic   ? "critic-name"
                             : role == ModelRole::reward ? "reward-name"
                                                         : nullptr;
    if (name != nullptr) other.model = other_model_of(knobs_, framework_, name);
    if (other.model) other.model = fit_to_length(*other.model, run_.sequence);
    run_.others.push_back(other);
  }

  void layers() {
    stage_layers();
    const std::string recompute = knobs_.text("recompute").value_or("none");
    run_.recompute = recompute == "full"        ? Recompute::full
                     : recompute == "selective" ? Recompute::selective
                                                : Recompute::none;
    if (recompute == "full" && knobs_.is("recompute-method", "block")) {
      run_.recompute_layers = {degree("recompute-layers")};
    }
    if (recompute == "full" && !knobs_.is("recompute-method", "block")) {
      run_.recompute_span = std::max<int64_t>(1, degree("recompute-layers"));
    }
    run_.offload.checkpoints = all_of(knobs_, "checkpoints");
    if (run_.recompute == Recompute::full && run_.offload.checkpoints.empty()) {
      run_.offload.checkpoints = all_of(knobs_, "activations");
    }
    run_.chunk_tokens = std::min(knobs_.count_or("chunk", 0), run_.sequence);
    run_.tiled_mlp = knobs_.is("mlp", "tiled");
    run_.tiled_loss = knobs_.is("loss", "tiled") || knobs_.is("loss", "fused");
    if (knobs_.is("loss", "tiled")) run_.loss_tiles = knobs_.count_or("loss-tiles", 0);
  }

  // Stages of which the first or the last has layers of its own number; the others share the rest.
  void stage_layers() {
    const int64_t stages = run_.degrees.pipeline, all = configured_.model.layers;
    const int64_t first = knobs_.count_or("first-stage-layers", 0);
    const int64_t last = knobs_.count_or("last-stage-layers", 0);
    if (stages == 1 || (first == 0 && last == 0)) return;
    const int64_t others = stages - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
    const int64_t rest = all - first - last;
    if (rest < 0 || (others == 0 ? rest > 0 : rest % others != 0)) {
      throw bad_input("{}: the other {} of {} layers cannot be divided by {} stages",
                      name(first > 0 ? "first-stage-layers" : "last-stage-layers"), rest, all,
                      others);
    }
    run_.stage_layers.assign(static_cast<size_t>(stages), others > 0 ? rest / others : 0);
    if (first > 0) run_.stage_layers.front() = first;
    if (last > 0) run_.stage_layers.back() = last;
  }

  void states() {
    run_.zero = std::stoll(knobs_.text("zero").value_or("0"));
    // FSDP on one GPU gathers and shards nothing.
    const std::string engine = knobs_.text("engine").value_or("");
    if (run_.gpus == 1 && engine.starts_with("fsdp")) run_.zero = 0;
    if (run_.zero == 0) run_.state_copies = 1;
    run_.whole_gradients =
        engine.starts_with("fsdp") && run_.zero > 0 && knobs_.is("gradient-sum", "step");
    const double share = knobs_.share("optimizer-share").value_or(1);
    run_.offload.parameters = all_of(knobs_, "parameters");
    run_.offload.optimizer = all_of(knobs_, "optimizer-states", share);
    run_.offload.gradients = all_of(knobs_, "gradients", share);
    run_.offload.parameters_in_files = knobs_.is("parameters", "nvme");
    run_.offload.optimizer_in_files = knobs_.is("optimizer-states", "nvme");
    run_.offload.checkpoints_in_files = knobs_.is("checkpoints", "nvme");
    for (const char* knob : {"parameters", "optimizer-states", "checkpoints"}) {
      if (knobs_.is(knob, "nvme") && configured_.hw.nvme.capacity_bytes.value <= 0) {
        throw bad_input("{}: nvme, and the hardware has no file storage", name(knob));
      }
    }
  }

  void kernels() {
    refuse_unsupported(knobs_, configured_.hw.device, places_);
    const int64_t capability = configured_.hw.device.compute_capability;
    // FlashAttention 2 and cuDNN's fused attention begin with Ampere; without them Megatron-Core
    // stores the scores (core/transformer/dot_product_attention.py).
    const std::string engine = knobs_.text("engine").value_or("");
    if (capability > 0 && capability < 80 && engine.starts_with("megatron") &&
        !knobs_.has("attention")) {
      knobs_.set("attention", "eager");
    }
    run_.precision = is_all_narrow() ? "bf16" : knobs_.text("precision").value_or("bf16");
    if (run_.precision == "half") run_.precision = half_precision(configured_.hw.device);
    run_.dropout = !knobs_.is("dropout", "false");
    run_.flash_attention = !knobs_.is("attention", "eager");
    run_.overlap = !knobs_.is("overlap", "false");
  }

  void costs() {
    const auto stack = std::find_if(framework_.stacks.begin(), framework_.stacks.end(),
                                    [&](const auto& entry) { return holds(entry.first, knobs_); });
    run_.stack = stack->second;
    Stack& s = configured_.stack = stack_for(load_stack(run_.stack), configured_.model);
    if (const std::optional<std::string> kernel = knobs_.text("attention");
        kernel && (*kernel == "sdpa" || configured_.hw.attention_kernels.contains(*kernel))) {
      run_.attention = *kernel;
    }
    // Megatron-Core's exchanges of a tensor group run during products only with --tp-comm-overlap;
    // the others wait, but for those of the backward that a product of its own hides, such as the
    // second gather of a product's input (transformer_engine/pytorch/module/linear.py).
    if (knobs_.text("engine").value_or("").starts_with("megatron") &&
        !knobs_.is("async-tensor", "true")) {
      s.tensor_hidden.value = 0;
      s.regathers.value = 0;
    }
    states_of_precision(s);
    run_.update_copies = knobs_.flag("update-copies");
    // FSDP takes frozen weights as they are.
    const bool fsdp = knobs_.text("engine").value_or("").starts_with("fsdp");
    if (fsdp && !run_.others.empty() && knobs_.is("loaded-dtype", "bf16")) run_.frozen_bytes = 2;
    if (knobs_.is("fused-layers", "true")) {
      // A fused norm keeps its input, and a fused activation what goes in.
      s.norm_inputs.value = std::min(s.norm_inputs.value, 1 + (s.residual_bytes.value - 2) / 2);
      s.activation_tensors.value = 0;
      s.norm_passes.value = std::min(s.norm_passes.value, 2.0);
      s.activation_passes.value = std::min(s.activation_passes.value, 3.0);
      s.qkv_passes.value = std::min(s.qkv_passes.value, 4.0);
    }
    for (const FrameworkTerm& term : framework_.terms) {
      if (holds(term.when, knobs_)) term_of(s, term.term) = term.value;
    }
    if (const int64_t live = knobs_.count_or("live-parameters", 0);
        live > 0 && s.live_parameters.value > 0) {
      s.live_parameters.value = static_cast<double>(live);
    }
    configured_.run = run_;
  }
  // Whether weights loaded in half precision stay so, with all that is made of them: without mixed
  // precision.
  bool is_all_narrow() const {
    return knobs_.is("loaded-dtype", "bf16") && knobs_.is("precision", "fp32") &&
           !copies_parameters();
  }
  bool narrow_parameters() const { return knobs_.is("parameter-dtype", "bf16") || is_all_narrow(); }
  // Whether the optimizer updates a copy of the parameters.
  bool copies_parameters() const {
    const std::string engine = knobs_.text("engine").value_or("fsdp");
    return engine == "deepspeed" || engine.starts_with("megatron");
  }
  // Bytes of a parameter's states, where they are not those of Adam in single precision.
  void states_of_precision(Stack& s) {
    const std::string moments = knobs_.text("moment-dtype").value_or("");
    // PyTorch's moments have the type of the parameters.
    const bool narrow = narrow_parameters() && !copies_parameters();
    // A scale in single precision for 256 moments of a byte.
    const double of_moment = moments == "int8"                                  ? 1 + 4.0 / 256
                             : moments == "bf16" || (moments.empty() && narrow) ? 2
                                                                                : 4;
    const std::string optimizer = knobs_.text("optimizer").value_or("adamw");
    const double count = optimizer == "adamw"                         ? 2
                         : optimizer == "lion" || optimizer == "muon" ? 1
                                                                      : 0;
    double of_optimizer = s.optimizer_state_bytes.value - 2 * 4;
    if (!knobs_.is("optimizer-states", "paged")) of_optimizer += count * of_moment;
    double of_parameter = s.parameter_state_bytes.value;
    if (narrow_parameters()) {
      // A copy in single precision is not made; or the parameter itself is half as wide.
      if (copies_parameters()) {
        of_optimizer -= 4;
      } else {
        of_parameter -= 2;
      }
    }
    if (knobs_.is("gradient-dtype", "bf16") && s.parameter_state_bytes.value >= 6) {
      of_parameter -= 2;
    }
    if (run_.precision == "fp32") {
      // No copy is made, and gradients are as wide as the parameters.
      if (of_optimizer >= 12) {
        of_optimizer -= 4;
        of_parameter = 8;
      }
      s.parameter_bytes.value = s.gradient_bytes.value = 4;
    }
    if (knobs_.is("embedding-moments", "fp32") && of_optimizer > 0) {
      run_.embedding_state_bytes = of_optimizer + count * (4 - of_moment);
    }
    s.optimizer_state_bytes.value = std::max(0.0, of_optimizer);
    s.parameter_state_bytes.value = std::max(2.0, of_parameter);
    if (knobs_.is("gradient-dtype", "bf16") || narrow_parameters()) {
      s.gradient_state_bytes.value = std::min(s.gradient_state_bytes.value, 2.0);
    }
    if (knobs_.is("update", "backward")) s.gradient_state_bytes.value = 0;
  }

  void check_rules() const {
    const auto value_of = [&](const std::string& word) -> std::optional<int64_t> {
      const ModelSpec& m = configured_.model;
      const std::pair<const char*, int64_t> known[] = {
          {"world", run_.gpus},    {"data", run_.degrees.data}, {"layers", m.layers},
          {"heads", m.heads},      {"kv_heads", m.kv_heads},    {"hidden", m.hidden},
          {"vocabulary", m.vocab}, {"sequence", run_.sequence}};
      for (const auto& [named, value] : known) {
        if (word == named) return value;
      }
      std::string knob = word;
      std::replace(knob.begin(), knob.end(), '_', '-');
      return find_run_knob(knob) != nullptr ? std::optional(degree(knob.c_str())) : std::nullopt;
    };
    for (const FrameworkRule& rule : framework_.rules) {
      if (!holds(rule.when, knobs_)) continue;
      const std::optional<int64_t> value = evaluate(rule.expect, value_of);
      if (value && *value == 0) throw bad_input("{}: {}", framework_.name, rule.says);
    }
  }

  RunKnobs knobs_;
  const Framework& framework_;
  const KnobPlaces& places_;
  ConfiguredRun configured_;
  TrainingRun run_;
};

}  // namespace

ConfiguredRun configure(const RunKnobs& knobs, const Framework& framework, const ModelSpec& model,
                        const HardwareProfile& hw, const KnobPlaces& places) {
  return Configurer(knobs, framework, model, hw, places).run();
}

RunPrediction predict(const ConfiguredRun& c) { return predict_run(c.run, c.model, c.hw, c.stack); }

void clear_machine(RunKnobs& knobs) {
  for (const char* knob : {"gpus", "nodes", "node-gpus"}) knobs.clear(knob);
}

}  // namespace longspan
