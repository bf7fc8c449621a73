// Rates that a prediction rests on and that were not measured.
#include "planner/explain/unmeasured.h"

#include <catch2/catch.hpp>
#include <set>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/strategy/presets.h"

namespace longspan {
namespace {

Plan plan_of(const HardwareProfile& hw) {
  Plan plan;
  plan.model = load_model("llama-3.1-8b");
  plan.model.layers = 2;
  plan.hardware = hw;
  plan.sequence = 8192;
  plan.dtype = DType::bfloat16;
  plan.strategy = make_preset("checkpoint", plan.model, plan.sequence, 0);
  return plan;
}

std::set<Kernel> kernels_of(const Plan& plan, bool has_table) {
  std::set<Kernel> kernels;
  double before = 1e300;
  for (const UnmeasuredKernel& kernel :
       unmeasured_kernels(plan, build_program(step_request(plan)))) {
    CHECK(kernel.seconds > 0);
    CHECK(kernel.seconds <= before);
    before = kernel.seconds;
    if (kernel.has_table == has_table) kernels.insert(kernel.kernel);
  }
  return kernels;
}

TEST_CASE("shapes beyond their table and kernels without one are named, others are not") {
  HardwareProfile hw = load_hardware("h100-80g");
  for (const char* family : {"attention_forward", "attention_backward"}) {
    hw.rates[family] = {"FLOP/s", "measured: here", "2026-01-01", {}, {}};
    for (const double length : {1024.0, 16384.0}) {
      hw.rates[family].points.push_back({{length, length, 128}, 1e14});
    }
  }
  hw.rates.erase("attention_forward_diagonal");
  hw.rates.erase("attention_backward_diagonal");
  hw.rates.erase("norm_forward");
  CHECK(!kernels_of(plan_of(hw), true).contains(Kernel::attention_forward_diagonal));
  CHECK(kernels_of(plan_of(hw), false).contains(Kernel::norm_forward));

  for (const char* family : {"attention_forward", "attention_backward"}) {
    hw.rates[family].points.back().shape = {4096, 4096, 128};
  }
  CHECK(kernels_of(plan_of(hw), true).contains(Kernel::attention_forward_diagonal));
  CHECK(kernels_of(plan_of(hw), true).contains(Kernel::attention_backward_diagonal));
}

}  // namespace
}  // namespace longspan
