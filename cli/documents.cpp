#include "cli/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "planner/plan/fit.h"
#include "planner/reference/range.h"

namespace longspan::cli {
namespace {

Json saved_json(const SavedPolicy& policy) {
  return {{"where", name_of(policy.where)}, {"fraction", policy.fraction}};
}

Json parallel_json(const Parallel& p) {
  Json object = {{"ranks", p.ranks()},   {"data", p.data}, {"tensor", p.tensor},  {"ring", p.ring},
                 {"ulysses", p.ulysses}, {"zero", p.zero}, {"overlap", p.overlap}};
  const Pipeline& pipeline = p.pipeline;
  if (pipeline.stages > 1) {
    object["pipeline"] = {{"stages", pipeline.stages},
                          {"schedule", pipeline.schedule},
                          {"virtual_stages", pipeline.virtual_stages},
                          {"slices", pipeline.slices},
                          {"split", pipeline.equal_work ? "work" : "tokens"}};
    if (pipeline.in_flight > 0) object["pipeline"]["in_flight"] = pipeline.in_flight;
  }
  return object;
}

}  // namespace

std::string version_text() { return "longspan " LONGSPAN_VERSION; }

void put_tiers(Json& object, const std::array<int64_t, kTierCount>& bytes) {
  for (int tier = 0; tier < kTierCount; ++tier) object[kTierByteKeys[tier]] = bytes[tier];
}

Json tiers_json(const std::array<int64_t, kTierCount>& bytes) {
  Json object = Json::object();
  put_tiers(object, bytes);
  return object;
}

Json strategy_json(const Strategy& s) {
  return {{"preset", s.preset},
          {"parallel", parallel_json(s.parallel)},
          {"chunk_tokens", s.chunk_tokens},
          {"block_tokens", s.block_tokens},
          {"head_groups", s.head_groups},
          {"kv", name_of(s.kv)},
          {"idle", name_of(s.idle)},
          {"prefetch_depth", s.prefetch_depth},
          {"offload_window", s.offload_window},
          {"backward_order", name_of(s.backward_order)},
          {"deterministic", s.deterministic},
          {"saved",
           {{"layer_input", saved_json(s.layer_input)},
            {"qkv", saved_json(s.qkv)},
            {"attention_out", saved_json(s.attention_out)},
            {"mlp_input", saved_json(s.mlp_input)},
            {"mlp_inner", saved_json(s.mlp_inner)}}},
          {"tiles",
           {{"projection_tokens", s.projection_tile},
            {"mlp_tokens", s.mlp_tile},
            {"loss_tokens", s.loss_tile}}},
          {"states",
           {{"parameters", name_of(s.parameters)},
            {"gradients", name_of(s.gradients)},
            {"optimizer", name_of(s.optimizer)}}}};
}

Json prediction_json(const Prediction& prediction) {
  Json object = {{"step_seconds", prediction.step_seconds},
                 {"tokens_per_second", prediction.tokens_per_second},
                 {"mfu", prediction.mfu}};
  put_tiers(object, prediction.peak_bytes);
  return object;
}

Json forecast_json(const HardwareProfile& hw, const Prediction& prediction) {
  Json object = prediction_json(prediction);
  const Range& range = step_range(hw);
  object["step_seconds_range"] = {prediction.step_seconds * range.low,
                                  prediction.step_seconds * range.high};
  const FitVerdict verdict = fit_of(hw, prediction.peak_bytes);
  object["verdict"] = name_of(verdict.fit);
  if (!verdict.reason.empty()) object["verdict_reason"] = verdict.reason;
  return object;
}

Json plan_summary_json(const Plan& plan) {
  return {{"model", plan.model.name},         {"hardware", plan.hardware.name},
          {"sequence_tokens", plan.sequence}, {"micro_batches", plan.micro_batches},
          {"dtype", name_of(plan.dtype)},     {"strategy", strategy_json(plan.strategy)}};
}

int report_error(const std::string& message, int exit_status, bool json) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (json) print_json({{"error", line}, {"exit_status", exit_status}});
  std::fflush(stdout);
  fmt::print(stderr, "longspan: {}\n", line);
  return exit_status;
}

void print_warning(const std::string& text) { fmt::print(stderr, "longspan: warning: {}\n", text); }

void print_json(const Json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace longspan::cli
