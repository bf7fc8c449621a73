#include "planner/reference/stack.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/embedded.h"
#include "base/nearest.h"
#include "base/yaml.h"

namespace longspan {

/// The files of planner/reference/stacks, sorted; defined by a source that the build writes.
std::span<const EmbeddedFile> stack_files();

namespace {

constexpr std::pair<const char*, StackTerm Stack::*> kTerms[] = {
    {"kernel_gap_s", &Stack::kernel_gap_s},
    {"host_kernel_s", &Stack::host_kernel_s},
    {"product_share", &Stack::product_share},
    {"pass_share", &Stack::pass_share},
    {"norm_passes", &Stack::norm_passes},
    {"add_passes", &Stack::add_passes},
    {"activation_passes", &Stack::activation_passes},
    {"score_bytes_forward", &Stack::score_bytes_forward},
    {"score_bytes_backward", &Stack::score_bytes_backward},
    {"logit_bytes", &Stack::logit_bytes},
    {"optimizer_bytes", &Stack::optimizer_bytes},
    {"exchange_s", &Stack::exchange_s},
    {"tensor_hidden", &Stack::tensor_hidden},
    {"data_hidden", &Stack::data_hidden},
    {"context_hidden", &Stack::context_hidden},
    {"stage_latency_s", &Stack::stage_latency_s},
    {"micro_batch_s", &Stack::micro_batch_s},
    {"step_s", &Stack::step_s},
    {"attention_share", &Stack::attention_share},
    {"attention_head_cost", &Stack::attention_head_cost},
    {"tiled_mlp_again", &Stack::tiled_mlp_again},
    {"cluster_gather_share", &Stack::cluster_gather_share},
    {"cluster_exchange_share", &Stack::cluster_exchange_share},
    {"copy_share", &Stack::copy_share},
    {"copy_hidden", &Stack::copy_hidden},
    {"host_update_bytes", &Stack::host_update_bytes},
    {"parameter_state_bytes", &Stack::parameter_state_bytes},
    {"optimizer_state_bytes", &Stack::optimizer_state_bytes},
    {"gradient_bytes", &Stack::gradient_bytes},
    {"context_bytes", &Stack::context_bytes},
    {"reserved_share", &Stack::reserved_share},
    {"score_saved_bytes", &Stack::score_saved_bytes},
    {"logit_saved_bytes", &Stack::logit_saved_bytes},
    {"loss_work", &Stack::loss_work},
    {"hidden_work", &Stack::hidden_work},
    {"inner_work", &Stack::inner_work},
    {"attention_work", &Stack::attention_work},
    {"exchange_work", &Stack::exchange_work},
    {"gathered_bytes", &Stack::gathered_bytes},
    {"exchange_buffer_bytes", &Stack::exchange_buffer_bytes},
    {"kernel_elements", &Stack::kernel_elements},
    {"host_state_bytes", &Stack::host_state_bytes},
    {"host_reserved_bytes", &Stack::host_reserved_bytes},
};

constexpr std::array<std::string_view, 5> kKinds{
    "paper: ", "code: ", "measured: ", "fitted: ", "assumption: "};

StackTerm read_term(const YamlMap& yaml) {
  StackTerm term{yaml.real("value"), yaml.text("source")};
  if (term.value < 0) throw yaml.error("value", "expected a number >= 0");
  const bool known = std::any_of(kKinds.begin(), kKinds.end(), [&](std::string_view kind) {
    return term.source.starts_with(kind);
  });
  if (!known) {
    throw yaml.error("source",
                     "expected one that begins with paper:, code:, measured:, fitted: or "
                     "assumption:");
  }
  yaml.finish();
  return term;
}

Stack read_stack(const YamlMap& yaml) {
  const bool layered = yaml.has("like");
  Stack stack = layered ? load_stack(yaml.text("like")) : Stack{};
  stack.name = yaml.text("name");
  stack.about = yaml.text("about");
  if (yaml.has("attention_kernel")) stack.attention_kernel = yaml.text("attention_kernel");
  for (const auto& [key, term] : kTerms) {
    if (!layered || yaml.has(key)) stack.*term = read_term(yaml.map(key));
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

Stack load_stack(const std::string& name) {
  for (const EmbeddedFile& file : stack_files()) {
    if (file.name == name) {
      return read_stack(YamlMap::parse(std::string(file.text), "stack " + name));
    }
  }
  throw bad_input("stack \"{}\": unknown{}", name, nearest_hint(name, stack_names()));
}

}  // namespace longspan
