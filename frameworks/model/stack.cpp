#include "frameworks/model/stack.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "base/embedded.h"
#include "base/nearest.h"
#include "base/yaml.h"

namespace longspan {

/// The files of frameworks/stacks, sorted; defined by a source that the build writes.
std::span<const EmbeddedFile> stack_files();

namespace {

constexpr std::pair<const char*, StackTerm Stack::*> kTerms[] = {
    {"kernel_gap_s", &Stack::kernel_gap_s},
    {"host_kernel_s", &Stack::host_kernel_s},
    {"gather_host_s", &Stack::gather_host_s},
    {"product_share", &Stack::product_share},
    {"pass_share", &Stack::pass_share},
    {"norm_passes", &Stack::norm_passes},
    {"add_passes", &Stack::add_passes},
    {"activation_passes", &Stack::activation_passes},
    {"qkv_passes", &Stack::qkv_passes},
    {"score_bytes_forward", &Stack::score_bytes_forward},
    {"score_bytes_backward", &Stack::score_bytes_backward},
    {"head_share", &Stack::head_share},
    {"logit_bytes", &Stack::logit_bytes},
    {"optimizer_bytes", &Stack::optimizer_bytes},
    {"exchange_s", &Stack::exchange_s},
    {"tensor_hidden", &Stack::tensor_hidden},
    {"data_hidden", &Stack::data_hidden},
    {"context_hidden", &Stack::context_hidden},
    {"context_imbalance", &Stack::context_imbalance},
    {"stage_latency_s", &Stack::stage_latency_s},
    {"message_share", &Stack::message_share},
    {"message_stop", &Stack::message_stop},
    {"idle_speedup", &Stack::idle_speedup},
    {"micro_batch_s", &Stack::microbatch_s},
    {"step_s", &Stack::step_s},
    {"exchange_passes", &Stack::exchange_passes},
    {"bias_passes", &Stack::bias_passes},
    {"shard_copy_bytes", &Stack::shard_copy_bytes},
    {"gradient_sum_bytes", &Stack::gradient_sum_bytes},
    {"exchange_toll", &Stack::exchange_toll},
    {"selective_products", &Stack::selective_products},
    {"selective_low_precision", &Stack::selective_low_precision},
    {"selective_passes", &Stack::selective_passes},
    {"low_precision_rate", &Stack::low_precision_rate},
    {"low_precision_gathers", &Stack::low_precision_gathers},
    {"cast_bytes", &Stack::cast_bytes},
    {"ends_as_layers", &Stack::ends_as_layers},
    {"exchange_share", &Stack::exchange_share},
    {"exchange_rank_s", &Stack::exchange_rank_s},
    {"regathers", &Stack::regathers},
    {"block_cast_bytes", &Stack::block_cast_bytes},
    {"weight_casts", &Stack::weight_casts},
    {"gradient_touch_bytes", &Stack::gradient_touch_bytes},
    {"attention_share", &Stack::attention_share},
    {"attention_head_cost", &Stack::attention_head_cost},
    {"attention_window", &Stack::attention_window},
    {"tiled_mlp_again", &Stack::tiled_mlp_again},
    {"cluster_gather_share", &Stack::cluster_gather_share},
    {"cluster_exchange_share", &Stack::cluster_exchange_share},
    {"copy_share", &Stack::copy_share},
    {"copy_hidden", &Stack::copy_hidden},
    {"host_update_bytes", &Stack::host_update_bytes},
    {"vocabulary_wait", &Stack::vocabulary_wait},
    {"rank_spread", &Stack::rank_spread},
    {"router_bytes", &Stack::router_bytes},
    {"expert_passes", &Stack::expert_passes},
    {"clamped_passes", &Stack::clamped_passes},
    {"grouped_share", &Stack::grouped_share},
    {"expert_gradient_bytes", &Stack::expert_gradient_bytes},
    {"expert_host_s", &Stack::expert_host_s},
    {"expert_wait_s", &Stack::expert_wait_s},
    {"dispatch_once", &Stack::dispatch_once},
    {"dispatch_share", &Stack::dispatch_share},
    {"dispatch_hidden", &Stack::dispatch_hidden},
    {"router_saved_bytes", &Stack::router_saved_bytes},
    {"expert_inputs", &Stack::expert_inputs},
    {"parameter_bytes", &Stack::parameter_bytes},
    {"parameter_state_bytes", &Stack::parameter_state_bytes},
    {"optimizer_state_bytes", &Stack::optimizer_state_bytes},
    {"gradient_bytes", &Stack::gradient_bytes},
    {"gradient_state_bytes", &Stack::gradient_state_bytes},
    {"fsdp_units", &Stack::fsdp_units},
    {"fsdp_root", &Stack::fsdp_root},
    {"stage_tensors", &Stack::stage_tensors},
    {"work_tensors", &Stack::work_tensors},
    {"selective_kept", &Stack::selective_kept},
    {"logit_state_bytes", &Stack::logit_state_bytes},
    {"logit_forward_bytes", &Stack::logit_forward_bytes},
    {"chunked_logit_bytes", &Stack::chunked_logit_bytes},
    {"tile_rows", &Stack::tile_rows},
    {"tile_columns", &Stack::tile_columns},
    {"tile_sum_bytes", &Stack::tile_sum_bytes},
    {"reference_logit_bytes", &Stack::reference_logit_bytes},
    {"cut_logit_state_bytes", &Stack::cut_logit_state_bytes},
    {"context_bytes", &Stack::context_bytes},
    {"reserved_share", &Stack::reserved_share},
    {"stream_pools", &Stack::stream_pools},
    {"placeholder_bytes", &Stack::placeholder_bytes},
    {"flow_bytes", &Stack::flow_bytes},
    {"exchanged_output_bytes", &Stack::exchanged_output_bytes},
    {"workspace_bytes", &Stack::workspace_bytes},
    {"score_saved_bytes", &Stack::score_saved_bytes},
    {"score_work_bytes", &Stack::score_work_bytes},
    {"dropout_masks", &Stack::dropout_masks},
    {"unfused_masks", &Stack::unfused_masks},
    {"score_dropout_bytes", &Stack::score_dropout_bytes},
    {"mixer_tensors", &Stack::mixer_tensors},
    {"loss_work", &Stack::loss_work},
    {"hidden_work", &Stack::hidden_work},
    {"inner_work", &Stack::inner_work},
    {"attention_work", &Stack::attention_work},
    {"exchange_work", &Stack::exchange_work},
    {"gathered_bytes", &Stack::gathered_bytes},
    {"expanded_keys", &Stack::expanded_keys},
    {"group_buffer_bytes", &Stack::group_buffer_bytes},
    {"exchange_buffer_bytes", &Stack::exchange_buffer_bytes},
    {"kernel_elements", &Stack::kernel_elements},
    {"host_state_bytes", &Stack::host_state_bytes},
    {"host_process_bytes", &Stack::host_process_bytes},
    {"live_parameters", &Stack::live_parameters},
    {"spare_bytes", &Stack::spare_bytes},
    {"whole_logit_state_bytes", &Stack::whole_logit_state_bytes},
    {"tensor_loss_work", &Stack::tensor_loss_work},
    {"exchanged_norm_inputs", &Stack::exchanged_norm_inputs},
    {"activation_tensors", &Stack::activation_tensors},
    {"norm_inputs", &Stack::norm_inputs},
    {"norm_outputs", &Stack::norm_outputs},
    {"residual_bytes", &Stack::residual_bytes},
    {"checkpoint_inputs", &Stack::checkpoint_inputs},
    {"weight_copies", &Stack::weight_copies},
    {"late_states", &Stack::late_states},
    {"gathered_logits", &Stack::gathered_logits},
};

constexpr std::array<std::string_view, 5> kKinds{
    "paper: ", "code: ", "measured: ", "fitted: ", "assumption: "};

// A number, which is assumed, or {value, fitted_to}.
TermWithout read_without(const YamlMap& yaml, const std::string& table) {
  if (!yaml.has_map(table)) return {yaml.real(table), {}};
  const YamlMap of_table = yaml.map(table);
  TermWithout without{of_table.real("value"), of_table.texts("fitted_to")};
  if (std::find(without.fitted_to.begin(), without.fitted_to.end(), table) !=
      without.fitted_to.end()) {
    throw of_table.error("fitted_to", "expected tables other than " + table);
  }
  of_table.finish();
  return without;
}

StackTerm read_term(const YamlMap& yaml) {
  StackTerm term{yaml.real("value"), yaml.text("source"), {}};
  if (term.value < 0) throw yaml.error("value", "expected a number >= 0");
  const bool known = std::any_of(kKinds.begin(), kKinds.end(), [&](std::string_view kind) {
    return term.source.starts_with(kind);
  });
  if (!known) {
    throw yaml.error("source",
                     "expected one that begins with paper:, code:, measured:, fitted: or "
                     "assumption:");
  }
  if (term.source.starts_with("fitted: ")) {
    const YamlMap without = yaml.map("without");
    for (const std::string& table : without.keys()) {
      term.without[table] = read_without(without, table);
    }
    without.finish();
  }
  yaml.finish();
  return term;
}

Stack read_stack(const YamlMap& yaml) {
  const bool layered = yaml.has("like");
  Stack stack = layered ? load_stack(yaml.text("like")) : Stack{};
  stack.like = layered ? yaml.text("like") : "";
  stack.name = yaml.text("name");
  stack.about = yaml.text("about");
  if (!layered || yaml.has("family")) stack.family = yaml.text("family");
  if (yaml.has("attention_kernel")) stack.attention_kernel = yaml.text("attention_kernel");
  for (const auto& [key, term] : kTerms) {
    if (!layered || yaml.has(key)) stack.*term = read_term(yaml.map(key));
  }
  if (yaml.has("gpt2")) {
    const YamlMap terms = yaml.map("gpt2");
    for (const std::string& key : terms.keys()) {
      term_of(stack, key);
      stack.gpt2[key] = read_term(terms.map(key));
    }
    terms.finish();
  }
  yaml.finish();
  return stack;
}

}  // namespace

std::vector<std::string> stack_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : stack_files()) names.emplace_back(file.name);
  return names;
}

bool is_stack(const std::string& name) {
  const auto files = stack_files();
  return std::any_of(files.begin(), files.end(),
                     [&](const EmbeddedFile& file) { return file.name == name; });
}

Stack load_stack(const std::string& name) {
  // A search of a framework's settings asks for the same stacks hundreds of times.
  static std::recursive_mutex mutex;
  static std::map<std::string, Stack> loaded;
  const std::scoped_lock lock(mutex);
  if (const auto it = loaded.find(name); it != loaded.end()) return it->second;
  for (const EmbeddedFile& file : stack_files()) {
    if (file.name == name) {
      return loaded[name] = read_stack(YamlMap::parse(std::string(file.text), "stack " + name));
    }
  }
  throw bad_input("stack \"{}\": unknown{}", name, nearest_hint(name, stack_names()));
}

std::vector<std::string> term_keys() {
  std::vector<std::string> keys;
  for (const auto& [name, member] : kTerms) keys.emplace_back(name);
  return keys;
}

const StackTerm& term_of(const Stack& stack, const std::string& key) {
  for (const auto& [name, member] : kTerms) {
    if (name == key) return stack.*member;
  }
  throw bad_input("term \"{}\" of a stack: unknown{}", key, nearest_hint(key, term_keys()));
}

StackTerm& term_of(Stack& stack, const std::string& key) {
  return const_cast<StackTerm&>(term_of(std::as_const(stack), key));
}

Stack stack_for(Stack stack, const ModelSpec& model) {
  if (model.positions != Positions::learned) return stack;
  for (const auto& [key, term] : stack.gpt2) term_of(stack, key) = term;
  return stack;
}

Stack without_table(Stack stack, const std::string& table) {
  for (const auto& [key, member] : kTerms) {
    StackTerm& term = stack.*member;
    if (const auto it = term.without.find(table); it != term.without.end())
      term.value = it->second.value;
  }
  return stack;
}

}  // namespace longspan
