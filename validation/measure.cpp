#include "validation/measure.h"

#include "models/catalog.h"
#include "planner/plan/plan.h"

namespace longspan {
namespace {

double tokens_of_step(const PublishedCase& c) {
  return static_cast<double>(c.global_batch) * static_cast<double>(c.sequence);
}

// FLOPs of a step that count for one GPU.
double flops_per_gpu(const PublishedCase& c) {
  return static_cast<double>(c.global_batch) *
         sequence_flops(model_of(c), c.sequence, c.convention) / static_cast<double>(c.gpus);
}

// The step times that need no model, the most direct first.
std::vector<ImpliedStep> steps_of_tokens(const PublishedCase& c) {
  const CaseMeasured& m = c.measured;
  std::vector<ImpliedStep> steps;
  if (m.step_seconds) steps.push_back({"step_time_s", *m.step_seconds});
  if (m.tokens_per_second) {
    steps.push_back({"tokens_per_s", tokens_of_step(c) / *m.tokens_per_second});
  }
  if (m.tokens_per_second_per_gpu) {
    steps.push_back({"tokens_per_s_per_gpu", tokens_of_step(c) / static_cast<double>(c.gpus) /
                                                 *m.tokens_per_second_per_gpu});
  }
  return steps;
}

}  // namespace

ModelSpec model_of(const PublishedCase& reference) {
  ModelSpec model = reference.shape ? *reference.shape : load_model(reference.model);
  if (reference.layers > 0 && reference.layers < model.layers) {
    if (!model.uniform()) model.runs = runs_between(model, 0, reference.layers);
    model.layers = reference.layers;
  }
  return fit_to_length(model, reference.sequence);
}

std::vector<ImpliedStep> implied_steps(const PublishedCase& reference) {
  const CaseMeasured& m = reference.measured;
  std::vector<ImpliedStep> steps = steps_of_tokens(reference);
  if (m.model_flops_per_gpu) {
    steps.push_back({"model_tflops_per_gpu", flops_per_gpu(reference) / *m.model_flops_per_gpu});
  }
  if (m.mfu) {
    steps.push_back({"mfu", flops_per_gpu(reference) / (*m.mfu * reference.convention.peak_flops)});
  }
  return steps;
}

std::optional<double> measured_step_seconds(const PublishedCase& reference) {
  std::vector<ImpliedStep> steps = steps_of_tokens(reference);
  if (steps.empty()) steps = implied_steps(reference);
  if (steps.empty()) return std::nullopt;
  return steps.front().seconds;
}

std::optional<int64_t> measured_peak_bytes(const PublishedCase& reference) {
  const CaseMeasured& m = reference.measured;
  if (m.peak_allocated_bytes) return m.peak_allocated_bytes;
  if (m.peak_reserved_bytes) return m.peak_reserved_bytes;
  return m.peak_device_bytes;
}

CaseMeasured restated(const PublishedCase& reference, double step_seconds) {
  CaseMeasured figures;
  figures.step_seconds = step_seconds;
  figures.tokens_per_second = tokens_of_step(reference) / step_seconds;
  figures.tokens_per_second_per_gpu =
      *figures.tokens_per_second / static_cast<double>(reference.gpus);
  figures.model_flops_per_gpu = flops_per_gpu(reference) / step_seconds;
  if (reference.convention.peak_flops > 0) {
    figures.mfu = *figures.model_flops_per_gpu / reference.convention.peak_flops;
  }
  return figures;
}

}  // namespace longspan
