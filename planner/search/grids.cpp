#include "planner/search/grids.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "planner/schedule/registry.h"

namespace longspan {
namespace {

bool heads_allow(const Parallel& parallel, const ModelSpec& model) {
  try {
    // A length that every degree divides: only the heads can be in the way.
    const int64_t granule = whole_granule(parallel);
    validate(parallel, model, granule, granule / (parallel.ring > 1 ? 2 * parallel.ring : 1), "");
    return true;
  } catch (const Error&) {
    return false;
  }
}

// How well a grid suits a preset: the larger, compared from the front, the better.
using Suitability = std::array<int64_t, 4>;
Suitability suitability(const std::string& preset, const Parallel& p) {
  if (preset == "megatron-sp") return {p.tensor, p.data, 0, 0};
  if (preset == "ring") return {-p.tensor, -p.ulysses, p.ring, 0};
  if (preset == "usp") return {-p.tensor, std::min(p.ulysses, p.ring), -p.data, p.ulysses};
  const bool deals_tokens =
      preset == "ulysses" || preset == "alst" || preset == "upipe" || preset == "fpdt";
  if (deals_tokens) return {-p.tensor, -p.ring, p.ulysses, 0};
  return {-p.tensor, p.data, p.ulysses, 0};
}

}  // namespace

std::string degrees_text(const ParallelChoice& choice) {
  std::string text;
  for (const auto& [value, flag] :
       {std::pair{choice.data, "data"}, std::pair{choice.tensor, "tensor"},
        std::pair{choice.ring, "ring"}, std::pair{choice.ulysses, "ulysses"}}) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", flag, *value);
  }
  return text.empty() ? "any degrees" : text;
}

int64_t whole_granule(const Parallel& parallel) {
  return parallel.tensor * parallel.ulysses * (parallel.ring > 1 ? 2 * parallel.ring : 1);
}

bool may_pipe(const HardwareProfile& hw, const ParallelChoice& choice) {
  if (!choice.admits_pipelines() || hw.devices() < 2) return false;
  return choice.pipeline || choice.of_pipeline() || hw.device.backend != "cpu";
}

void check_choice(const ParallelChoice& choice) {
  if (choice.schedule) {
    const ScheduleFamily& family = schedule_family(*choice.schedule);  // or says which are near
    if (family.alone) {
      throw bad_input("--schedule: {} is simulated alone, not planned with; try one of {}",
                      *choice.schedule, fmt::join(plannable_schedules(), ", "));
    }
  }
  if (choice.pipeline == 1 && choice.of_pipeline()) {
    throw bad_input(
        "--pipeline: one stage has no schedule, virtual stages, slices or microbatches in flight; "
        "leave them out, or ask for 2 stages or more");
  }
  if (choice.slices.value_or(1) > 1 && choice.zero == 3) {
    throw bad_input(
        "--zero: where slices of sequences are passed on, states are whole or dealt out "
        "by stages 0 to 2; got 3");
  }
}

std::vector<Parallel> grids(const ModelSpec& model, const HardwareProfile& hw,
                            const ParallelChoice& choice) {
  return grids(model, hw.devices(), choice);
}

std::vector<Parallel> grids(const ModelSpec& model, int64_t ranks, const ParallelChoice& choice) {
  const auto admits = [](const std::optional<int64_t>& fixed, int64_t degree) {
    return !fixed || *fixed == degree;
  };
  std::vector<Parallel> found;
  const auto add = [&](const Parallel& parallel) {
    if (admits(choice.data, parallel.data) && admits(choice.tensor, parallel.tensor) &&
        admits(choice.ring, parallel.ring) && admits(choice.ulysses, parallel.ulysses) &&
        heads_allow(parallel, model)) {
      found.push_back(parallel);
    }
  };
  const int64_t zero = choice.zero.value_or(0);
  for (int64_t data = 1; data <= ranks; ++data) {
    if (ranks % data != 0) continue;
    const int64_t rest = ranks / data;
    for (int64_t ring = 1; ring <= rest; ++ring) {
      if (rest % ring == 0) add({data, ring, rest / ring, zero, choice.overlap, 1});
    }
    if (rest > 1) add({data, 1, 1, zero, choice.overlap, rest});
  }
  if (found.empty()) {
    throw bad_input(
        "parallel: no grid of {} rank{} with {} suits {} ({} heads, {} K,V heads); the degrees' "
        "product is the number of devices",
        ranks, ranks == 1 ? "" : "s", degrees_text(choice), model.name, model.heads,
        model.kv_heads);
  }
  return found;
}

Parallel preset_grid(const std::string& preset, const ModelSpec& model, const HardwareProfile& hw,
                     const ParallelChoice& choice) {
  const std::vector<Parallel> all = grids(model, hw, choice);
  Parallel best =
      *std::max_element(all.begin(), all.end(), [&](const Parallel& a, const Parallel& b) {
        return suitability(preset, a) < suitability(preset, b);
      });
  if (!choice.zero && best.ranks() > 1 && preset != "baseline") {
    best.zero = preset == "megatron-sp" ? 1 : 3;
  }
  return best;
}

}  // namespace longspan
