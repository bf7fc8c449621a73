#include "tests/engine/plan_reference.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "base/bfloat16.h"
#include "models/nf4.h"
#include "tests/reference/fp.h"
#include "tests/reference/reference.h"

namespace longspan::testing {
namespace {

// The weights as they are computed with: in 4 bits, of blocks of 64 numbers of a unit's matrices.
std::vector<std::vector<float>> held_weights(const StepCase& step) {
  std::vector<std::vector<float>> weights = case_weights(step);
  if (!step.model.nf4) return weights;
  const std::vector<ParameterUnit> units = parameter_units(step.model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    using enum ParameterUnit::Kind;
    if (units[unit].kind != layer && units[unit].kind != experts) continue;
    std::vector<float*> numbers;
    for (const ParameterTensor& tensor : units[unit].tensors) {
      if (!tensor.decays) continue;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        numbers.push_back(&weights[unit][static_cast<size_t>(tensor.offset + i)]);
      }
    }
    for (size_t first = 0; first < numbers.size(); first += 64) {
      const size_t end = std::min(numbers.size(), first + 64);
      float scale = 0;
      for (size_t i = first; i < end; ++i) scale = std::max(scale, std::abs(*numbers[i]));
      for (size_t i = first; i < end && scale > 0; ++i) {
        float best = kNf4Levels[0];
        for (const float level : kNf4Levels) {
          const float x = *numbers[i] / scale;
          if (std::abs(x - level) < std::abs(x - best)) best = level;
        }
        *numbers[i] = best * scale;
      }
    }
  }
  return weights;
}

// The tokens of every document of the step that has a label.
std::vector<std::vector<int32_t>> documents_of(const StepCase& step) {
  std::vector<std::vector<int32_t>> documents;
  for (int64_t index = 0; index < case_sequences(step); ++index) {
    const std::vector<int32_t> tokens = case_tokens(step, index);
    const std::vector<int32_t> begins = case_documents(step, index);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (begins[i] == static_cast<int32_t>(i)) documents.emplace_back();
      documents.back().push_back(tokens[i]);
    }
  }
  std::erase_if(documents, [](const std::vector<int32_t>& d) { return d.size() < 2; });
  return documents;
}

reference::Result reference_step(const StepCase& step) {
  std::vector<std::vector<double>> weights;
  for (const std::vector<float>& unit : held_weights(step)) {
    std::vector<double>& values = weights.emplace_back(unit.begin(), unit.end());
    if (step.dtype == DType::float32) continue;
    // The kernels' inputs are rounded; what they compute from them is compared.
    for (double& value : values) value = widen(narrow(static_cast<float>(value)));
  }
  // Documents are trained one by one, and weighted by their labels.
  const double scale = case_loss_scale(step);
  reference::Result sum;
  sum.gradients.resize(weights.size());
  for (size_t unit = 0; unit < weights.size(); ++unit) {
    sum.gradients[unit].resize(weights[unit].size());
  }
  for (const std::vector<int32_t>& document : documents_of(step)) {
    const reference::Result one = reference::forward_backward(step.model, weights, document);
    const double share = scale * static_cast<double>(document.size() - 1);
    sum.loss += one.loss * share;
    for (size_t unit = 0; unit < one.gradients.size(); ++unit) {
      for (size_t i = 0; i < one.gradients[unit].size(); ++i) {
        sum.gradients[unit][i] += share * one.gradients[unit][i];
      }
    }
  }
  return sum;
}

}  // namespace

std::vector<double> gradient_errors(const StepCase& step) {
  const StepOutcome outcome = run_step(step);
  const reference::Result expected = reference_step(step);
  std::vector<double> errors;
  const std::vector<ParameterUnit> units = parameter_units(step.model);
  for (size_t unit = 0; unit < expected.gradients.size(); ++unit) {
    if (!units[unit].trained) continue;
    errors.push_back(reference::relative_error(outcome.gradients[unit].data(),
                                               expected.gradients[unit].data(),
                                               expected.gradients[unit].size()));
  }
  return errors;
}

void check_against_reference(const StepCase& step, double tolerance) {
  const StepOutcome outcome = run_step(step);
  const reference::Result expected = reference_step(step);
  CHECK(outcome.loss == Approx(expected.loss).epsilon(tolerance));
  const std::vector<ParameterUnit> units = parameter_units(step.model);
  const std::vector<std::vector<float>> weights = held_weights(step);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].trained) {
      INFO("frozen unit " << unit);
      CHECK(outcome.gradients[unit].empty());
      // A shard ends with padding.
      std::vector<float> values = outcome.parameters[unit];
      values.resize(weights[unit].size());
      if (step.dtype == DType::float32 && !step.model.nf4) CHECK(values == weights[unit]);
      continue;
    }
    REQUIRE(outcome.gradients[unit].size() == expected.gradients[unit].size());
    const auto check = [&](int64_t first, int64_t count) {
      CHECK(reference::relative_error(outcome.gradients[unit].data() + first,
                                      expected.gradients[unit].data() + first, count) <= tolerance);
    };
    if (step.dtype != DType::float32) {
      INFO("unit " << unit);
      check(0, units[unit].elements);
      continue;
    }
    for (const ParameterTensor& tensor : units[unit].tensors) {
      INFO(tensor.name);
      check(tensor.offset, tensor.elements);
    }
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    INFO("tier " << tier);
    CHECK(outcome.high_water_bytes[tier] == outcome.arena_bytes[tier]);
  }
}

}  // namespace longspan::testing
