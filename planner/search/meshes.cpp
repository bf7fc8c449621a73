#include "planner/search/meshes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

// What rules a mesh out for a model, at a length that every degree divides, with the fewest chunks.
std::optional<Violation> problem_of(const ParallelLayout& parallel, const ModelSpec& model) {
  const int64_t granularity = whole_granularity(parallel) * model.micro_batch;
  Strategy s;
  s.parallel = parallel;
  s.block_tokens = granularity / parallel.ring;
  s.chunk_tokens = parallel.ring > 1 ? s.block_tokens / 2 : granularity;
  if (parallel.expert > 1) s.mlp_inner.where = Saved::recompute;
  return violation_of(s, model, granularity);
}

}  // namespace

namespace {

// The expert degrees of a mesh, in ascending order.
std::vector<int64_t> expert_degrees(const ModelSpec& model, const ParallelLayout& mesh,
                                    const ParallelChoice& choice) {
  std::vector<int64_t> degrees = {1};
  if (choice.expert == 1) return degrees;
  if (choice.expert && !model.experts) return {};
  if (choice.expert) return {*choice.expert};
  if (!model.experts || model.norms_outputs()) return degrees;
  constexpr int64_t kRanksOfNode = 8;
  const int64_t most = std::gcd(mesh.replicas(), model.experts->count);
  if (most > kRanksOfNode && most % kRanksOfNode == 0) degrees.push_back(kRanksOfNode);
  if (most > 1) degrees.push_back(most);
  return degrees;
}

}  // namespace

std::string degrees_text(const ParallelChoice& choice) {
  std::string text;
  for (const auto& [value, flag] :
       {std::pair{choice.data, "data"}, std::pair{choice.tensor, "tensor"},
        std::pair{choice.ring, "ring"}, std::pair{choice.ulysses, "ulysses"},
        std::pair{choice.expert, "expert"}}) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", flag, *value);
  }
  return text.empty() ? "any degrees" : text;
}

int64_t whole_granularity(const ParallelLayout& parallel) {
  return parallel.tensor * parallel.ulysses * (parallel.ring > 1 ? 2 * parallel.ring : 1);
}

bool may_pipe(const HardwareProfile& hw, const ParallelChoice& choice) {
  if (!choice.admits_pipelines() || hw.devices() < 2) return false;
  return choice.pipeline || choice.fixes_pipeline() || choice.slices || hw.device.backend != "cpu";
}

void check_choice(const ParallelChoice& choice) {
  if (choice.schedule) {
    if (*choice.schedule == kOwnLists) {
      throw bad_input(
          "--schedule: lists are a plan file's own, under the key lists; to have a solver make "
          "them ask for optpipe");
    }
    const ScheduleFamily& family = schedule_family(*choice.schedule);  // throws for an unknown name
    if (!family.plannable) {
      throw bad_input("--schedule: {} is simulated alone, not planned with; {}", *choice.schedule,
                      kPlannedScheduleAdvice);
    }
  }
  if (choice.pipeline == 1 && choice.fixes_pipeline()) {
    throw bad_input(
        "--pipeline: one stage has no schedule, virtual stages or microbatches in flight; leave "
        "them out, or ask for 2 stages or more");
  }
}

void check_degrees(const ModelSpec& model, const ParallelChoice& choice) {
  if (!model.experts) {
    const ParallelChoice any;
    for (const auto& [flag, given] :
         {std::pair{"--expert", choice.expert.value_or(1) > 1},
          {"--expert-capacity", choice.expert_capacity != any.expert_capacity},
          {"--expert-imbalance", choice.expert_imbalance != any.expert_imbalance}}) {
      if (given) throw bad_input("{}: {} has no experts; leave it out", flag, model.name);
    }
  }
  for (const auto& [flag, fixed, degree] :
       {std::tuple{"--tensor", choice.tensor, &ParallelLayout::tensor},
        std::tuple{"--ulysses", choice.ulysses, &ParallelLayout::ulysses},
        std::tuple{"--zero", choice.zero, &ParallelLayout::zero},
        std::tuple{"--expert", choice.expert, &ParallelLayout::expert}}) {
    if (!fixed || *fixed == 1) continue;
    ParallelLayout alone;
    alone.*degree = *fixed;
    if (degree == &ParallelLayout::zero) alone.data = 2;
    if (degree == &ParallelLayout::expert) {
      alone.data = *fixed;
      alone.expert_capacity = choice.expert_capacity;
      alone.expert_imbalance = choice.expert_imbalance;
    }
    if (const std::optional<Violation> problem = problem_of(alone, model)) {
      throw bad_input("{} {}: {}", flag, *fixed, to_string(*problem));
    }
  }
}

std::vector<ParallelLayout> meshes(const ModelSpec& model, const HardwareProfile& hw,
                                   const ParallelChoice& choice) {
  return meshes(model, hw.devices(), choice);
}

std::vector<ParallelLayout> meshes_if_any(const ModelSpec& model, int64_t ranks,
                                          const ParallelChoice& choice) {
  const auto admits = [](const std::optional<int64_t>& fixed, int64_t degree) {
    return !fixed || *fixed == degree;
  };
  std::vector<ParallelLayout> found;
  const auto add = [&](ParallelLayout parallel) {
    if (!admits(choice.data, parallel.data) || !admits(choice.tensor, parallel.tensor) ||
        !admits(choice.ring, parallel.ring) || !admits(choice.ulysses, parallel.ulysses)) {
      return;
    }
    for (const int64_t expert : expert_degrees(model, parallel, choice)) {
      parallel.expert = expert;
      if (expert > 1) {
        parallel.expert_capacity = choice.expert_capacity;
        parallel.expert_imbalance = choice.expert_imbalance;
      }
      if (!problem_of(parallel, model)) found.push_back(parallel);
    }
  };
  const int64_t zero = choice.zero.value_or(0);
  const bool overlap = choice.overlap.value_or(true);
  for (int64_t data = 1; data <= ranks; ++data) {
    if (ranks % data != 0) continue;
    const int64_t rest = ranks / data;
    for (int64_t ring = 1; ring <= rest; ++ring) {
      if (rest % ring == 0) add({data, ring, rest / ring, zero, overlap, 1});
    }
    if (rest > 1) add({data, 1, 1, zero, overlap, rest});
  }
  return found;
}

std::vector<ParallelLayout> meshes(const ModelSpec& model, int64_t ranks,
                                   const ParallelChoice& choice) {
  std::vector<ParallelLayout> found = meshes_if_any(model, ranks, choice);
  if (found.empty()) {
    throw bad_input(
        "parallel: {} {} no mesh with {} for {} ({} heads, {} KV heads): its degrees must "
        "suit the heads and multiply to the number of devices",
        counted(ranks, "rank", "ranks"), ranks == 1 ? "has" : "have", degrees_text(choice),
        model.name, model.heads, model.kv_heads);
  }
  return found;
}

ParallelLayout preset_mesh(const std::string& name, const ModelSpec& model,
                           const HardwareProfile& hw, const ParallelChoice& choice) {
  const Preset& preset = preset_named(name);
  const std::vector<ParallelLayout> all = meshes(model, hw, choice);
  ParallelLayout best = *std::max_element(all.begin(), all.end(),
                                          [&](const ParallelLayout& a, const ParallelLayout& b) {
                                            return preset.suits(a) < preset.suits(b);
                                          });
  if (!choice.zero && best.ranks() > 1) best.zero = std::min(preset.zero, most_zero(model));
  return best;
}

}  // namespace longspan
