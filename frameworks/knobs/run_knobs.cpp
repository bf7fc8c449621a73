#include "frameworks/knobs/run_knobs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "base/error.h"

namespace longspan {
namespace {

using enum RunKnobKind;

// Places of a model besides the trained one: in the same process, in its own, in host memory until
// it runs, in the same pass as the trained model, on other GPUs.
constexpr const char* kPlaces = "none device process host joint elsewhere";

constexpr RunKnobRow kRows[] = {
    {"model", text, "", "a name on the Hugging Face hub, or a folder", true},
    {"model-family", text, "", "a framework's name for a family of models"},
    {"model-size", text, "", "its name for a model of the family"},
    {"layers", count, "", "layers of the model"},
    {"hidden", count, "", "hidden size of the model"},
    {"heads", count, "", "query heads"},
    {"kv-heads", count, "", "key and value heads"},
    {"head-dim", count, "", "size of a head"},
    {"ffn", count, "", "inner size of the MLP"},
    {"vocabulary", count, "", "tokens of the vocabulary"},
    {"vocabulary-multiple", count, "", "the vocabulary is padded to a multiple of it"},
    {"gated", flag, "", "the MLP has a gate (SwiGLU)"},
    {"tied", flag, "", "embedding and head share their weights"},
    {"qk-norm", flag, "", "queries and keys have norms of their own"},
    {"grouped-heads", flag, "", "key and value heads are fewer, as kv-heads says"},
    {"experts", count, "", "experts of a layer"},
    {"active-experts", count, "", "experts that process a token"},
    {"expert-ffn", count, "", "inner width of an expert"},
    {"shared-ffn", count, "", "inner width of the experts that process all tokens"},
    {"expert-layers", text, "",
     "layers with experts: every which, or a list of 0 and 1 such as [0]*3+[1]*58"},
    {"dense-layers", count, "", "first layers that have no experts"},
    {"next-token-layers", count, "", "layers that predict further tokens"},
    {"latent", flag, "", "attention is multi-head latent attention, of these ranks and widths:"},
    {"query-rank", count, "", "... of the vector of queries; 0: none"},
    {"key-rank", count, "", "... of the one of keys and values"},
    {"plain-dim", count, "", "... of a head of queries and keys, what RoPE does not rotate"},
    {"rotated-dim", count, "", "... and what it rotates"},
    {"value-dim", count, "", "... of a head of values"},

    {"refused", text, "", "what the framework refuses in the config; its rules say why"},
    {"gpus", count, "", "processes, one for each GPU"},
    {"nodes", count, "", "machines"},
    {"node-gpus", count, "", "GPUs of a machine"},

    {"sequence", count, "", "tokens of a sequence", true},
    {"token-budget", count, "", "tokens that a GPU works on at a time, in packed sequences"},
    {"packing", flag, "", "several documents share a sequence", false, "false"},
    {"packed-pairs", flag, "", "both sequences of a pair are in the same packed one", false,
     "false"},
    {"padding", flag, "", "short sequences are padded to the longest of a microbatch", false,
     "true"},
    {"microbatch", count, "", "sequences that a group of GPUs works on at a time", true, "", 1},
    {"accumulation", count, "", "microbatches of a step", true, "", 1},
    {"batch", count, "", "sequences of a step, of all GPUs"},
    {"rank-batch", count, "", "sequences of a step, of a data-parallel rank"},
    {"batch-tokens", count, "", "tokens of a step, of all GPUs"},
    {"task", choice, "sft dpo kto reward rl", "what is trained; dpo and reward see pairs"},
    {"head", choice, "vocabulary value", "what the model gives: logits, or one value a token"},
    {"actor", choice, "device process host", "where the trained model is while a critic is updated",
     false, "device"},
    {"reference", choice, kPlaces,
     "where a frozen copy of the model is; dpo and kto have a joint one"},
    {"critic", choice, kPlaces, "where a trained model of values is (PPO)"},
    {"reward-model", choice, kPlaces, "where a frozen model of rewards is"},
    {"critic-name", text, "", "the critic's model, where it is another one"},
    {"reward-name", text, "", "the reward model's, likewise"},
    {"budget-kind", choice, "limit mean",
     "token-budget limits each microbatch, or the mean of a batch's", false, "limit"},
    {"entropy", flag, "", "rl: the loss has the entropy of the logits", false, "false"},
    {"edition", choice, "old new", "of the framework, by its keys: defaults may differ", false,
     "new"},
    {"microbatch-unit", choice, "group all",
     "microbatches are those of a group of GPUs, or of all of them", false, "group"},
    {"critic-microbatch", count, "", "sequences that a group of GPUs works on at a time, critic's"},
    {"critic-token-budget", count, "", "tokens that a GPU works on at a time, critic's"},
    {"rollout-prompts", count, "", "prompts of a step of reinforcement learning"},
    {"responses", count, "", "sequences that are rolled out from a prompt"},
    {"batch-unit", choice, "sequences prompts", "what batch counts", false, "sequences"},
    {"epochs", count, "", "updates that see each of a step's sequences"},
    {"old-log-probabilities", flag, "",
     "rl: a forward pass comes before the updates (if nothing says otherwise)"},
    {"forward-microbatch", count, "", "sequences of a forward pass before the updates"},

    {"engine", choice, "ddp deepspeed fsdp1 fsdp megatron megatron-fsdp",
     "the library that distributes parameters"},
    {"shard", count, "", "GPUs that share parameters, gradients and optimizer"},
    {"replicate", count, "", "copies of these groups; 0: as many as there are"},
    {"sharded-over", choice, "all node", "the GPUs that share them where no number says so", false,
     "all"},
    {"tensor", count, "", "tensor-parallel degree", false, "1"},
    {"sequence-parallel", flag, "", "norms are split within the tensor group, too", false, "false"},
    {"pipeline", count, "", "pipeline stages", false, "1"},
    {"virtual-stages", count, "", "parts of each pipeline stage (interleaving)", false, "1"},
    {"virtual-layers", count, "", "layers of each of these parts"},
    {"embedding-layer", flag, "", "the embedding counts as a layer when stages are cut"},
    {"loss-layer", flag, "", "the head and the loss count as a layer when stages are cut"},
    {"first-stage-layers", count, "", "layers of the first pipeline stage"},
    {"last-stage-layers", count, "", "layers of the last pipeline stage"},
    {"schedule", text, "", "the pipeline's schedule, a name of `longspan schedule list`"},
    {"context", count, "", "GPUs that share a sequence", false, "1"},
    {"context-kind", choice, "ring ulysses gather both",
     "how these exchange keys and values; both: ulysses within ring"},
    {"ulysses", count, "", "GPUs that share a sequence by exchanging heads for tokens", false, "1"},
    {"ring", count, "", "GPUs that share a sequence by passing keys and values around", false, "1"},
    {"expert", count, "", "expert-parallel degree"},
    {"expert-tensor", count, "", "GPUs that share an expert; unset: those of a tensor group"},
    {"expert-capacity", text, "", "tokens that experts have room for, as a factor of the mean"},

    {"zero", choice, "0 1 2 3", "what is sharded: optimizer (1), gradients (2), parameters (3)",
     true, "0"},
    {"recompute", choice, "none selective full", "activations that backward computes again", true,
     "none"},
    {"recompute-layers", count, "", "layers to recompute, or layers a checkpoint spans"},
    {"recompute-method", choice, "uniform block",
     "recompute-layers are between checkpoints (uniform) or of a stage (block)"},
    {"checkpoints", choice, "device host nvme", "where layers' inputs wait for backward", true,
     "device"},
    {"activations", choice, "device host", "where all that layers save waits for backward", false,
     "device"},
    {"parameters", choice, "device host nvme", "where parameters wait for their use", false,
     "device"},
    {"gradients", choice, "device host", "where gradients wait for the update", false, "device"},
    {"optimizer-states", choice, "device host nvme paged",
     "where its states are; paged: off the device under pressure", true, "device"},
    {"optimizer-share", share, "", "share of these states that is not on the device"},
    {"update", choice, "step backward", "when parameters are updated: after, or in backward", false,
     "step"},

    {"precision", choice, "fp32 fp16 bf16 half fp8 mxfp8 nvfp4",
     "of products; half: bf16, or fp16 on GPUs without it", true},
    {"parameter-dtype", choice, "fp32 bf16", "of the parameters that the optimizer updates"},
    {"loaded-dtype", choice, "fp32 bf16", "of the weights when they are loaded"},
    {"gradient-dtype", choice, "fp32 bf16", "of gradients between microbatches"},
    {"gradient-sum", choice, "microbatch step",
     "FSDP sums and shards gradients after each microbatch, or after a step's last one", false,
     "microbatch"},
    {"moment-dtype", choice, "fp32 bf16 int8", "of the optimizer's moments"},
    {"embedding-moments", choice, "fp32",
     "the optimizer's moments of embeddings, where others differ"},
    {"update-copies", flag, "", "an update makes another copy of all parameters", false, "false"},
    {"optimizer", choice, "adamw sgd adafactor lion muon", "the optimizer", true, "adamw"},
    {"attention", choice, "eager sdpa flash2 flash3 flash4 cudnn flex", "attention's kernel", true},
    {"compile", flag, "", "layers are compiled (torch.compile)", false, "false"},
    {"dropout", flag, "", "dropout runs where the model has it", false, "true"},
    {"fused-layers", flag, "", "norms and activations are single kernels (Liger)", false, "false"},
    {"chunk", count, "", "tokens of attention's chunks, of the whole sequence"},
    {"mlp", choice, "whole tiled", "the MLP works on tiles of the sequence", false, "whole"},
    {"mlp-tiles", count, "", "tiles of the MLP"},
    {"loss", choice, "whole fused tiled",
     "logits: all at once; never in memory (a fused kernel); in tiles", true, "whole"},
    {"loss-tiles", count, "", "tiles of the loss"},
    {"overlap", flag, "", "communication runs during computation", false, "true"},
    {"async-tensor", flag, "", "exchanges of the tensor group run during its products", false,
     "false"},
    {"bucket", count, "", "elements of a bucket of gradients"},
    {"live-parameters", count, "", "parameters that ZeRO 3 gathers ahead of use"},
    {"adapter", choice, "none lora qlora frozen",
     "what is trained: all parameters, adapters, or few layers (frozen)", false, "none"},
    {"rollout-share", share, "", "share of a GPU's memory that a rollout engine holds"},
};

std::optional<double> parse_number(const std::string& value) {
  double number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, problem] = std::from_chars(value.data(), end, number);
  if (problem != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::optional<int64_t> parse_count(const std::string& value) {
  int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, problem] = std::from_chars(value.data(), end, number);
  constexpr int64_t kMost = int64_t{1} << 50;
  if (problem != std::errc() || stop != end || number < 0 || number > kMost) return std::nullopt;
  return number;
}

std::string expected_of(const RunKnobRow& row) {
  switch (row.kind) {
    case count:
      return fmt::format("a whole number >= {}", row.least);
    case share:
      return "a number from 0 to 1";
    case flag:
      return "true or false";
    case choice:
      return std::string("one of ") + row.words;
    case text:
      return "a word";
  }
  return "";
}

bool allows(const RunKnobRow& row, const std::string& value) {
  switch (row.kind) {
    case count: {
      const std::optional<int64_t> number = parse_count(value);
      return number && *number >= row.least;
    }
    case share: {
      const std::optional<double> number = parse_number(value);
      return number && *number >= 0 && *number <= 1;
    }
    case flag:
      return value == "true" || value == "false";
    case choice: {
      const std::vector<std::string> words = words_of(row);
      return std::find(words.begin(), words.end(), value) != words.end();
    }
    case text:
      return !value.empty();
  }
  return false;
}

}  // namespace

std::span<const RunKnobRow> run_knob_rows() { return kRows; }

const RunKnobRow* find_run_knob(std::string_view name) {
  for (const RunKnobRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::vector<std::string> words_of(const RunKnobRow& row) {
  std::istringstream in(row.words);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

void RunKnobs::set(std::string_view knob, const std::string& value) {
  const RunKnobRow& row = *find_run_knob(knob);
  if (!allows(row, value)) {
    throw bad_input("{}: expected {}, got \"{}\"", row.name, expected_of(row), value);
  }
  values_.insert_or_assign(std::string(knob), value);
}

void RunKnobs::set(std::string_view knob, int64_t value) { set(knob, std::to_string(value)); }

void RunKnobs::clear(std::string_view knob) {
  if (const auto it = values_.find(knob); it != values_.end()) values_.erase(it);
}

bool RunKnobs::has(std::string_view knob) const { return values_.contains(knob); }

std::optional<std::string> RunKnobs::text(std::string_view knob) const {
  const auto it = values_.find(knob);
  if (it == values_.end()) return std::nullopt;
  return it->second;
}

std::optional<int64_t> RunKnobs::count(std::string_view knob) const {
  const std::optional<std::string> value = text(knob);
  return value ? parse_count(*value) : std::nullopt;
}

std::optional<double> RunKnobs::share(std::string_view knob) const {
  const std::optional<std::string> value = text(knob);
  return value ? parse_number(*value) : std::nullopt;
}

std::string RunKnobs::effective(std::string_view knob) const {
  return text(knob).value_or(find_run_knob(knob)->unset);
}

bool RunKnobs::flag(std::string_view knob) const { return is(knob, "true"); }

bool RunKnobs::is(std::string_view knob, std::string_view value) const {
  return text(knob) == value;
}

int64_t RunKnobs::count_or(std::string_view knob, int64_t otherwise) const {
  return count(knob).value_or(otherwise);
}

bool holds(const KnobCondition& condition, const RunKnobs& knobs) {
  return std::all_of(condition.begin(), condition.end(), [&](const auto& entry) {
    const std::string value = knobs.text(entry.first).value_or("unset");
    return std::any_of(entry.second.begin(), entry.second.end(), [&](const std::string& wanted) {
      if (wanted == ">1") return knobs.count_or(entry.first, 1) > 1;
      return wanted == value;
    });
  });
}

}  // namespace longspan
