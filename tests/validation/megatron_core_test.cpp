// Properties of Megatron-Core: tensors that Transformer Engine saves, the fullest stage, exchanges
// that are repeated or hidden, layouts that a source leaves out.
#include <catch2/catch.hpp>
#include <limits>

#include "frameworks/model/infer_layout.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/product_precision.h"
#include "frameworks/model/run_memory.h"
#include "frameworks/model/run_time.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "tests/validation/megatron_core_case.h"
#include "validation/predict.h"

namespace longspan {
namespace {

PublishedCase case_70b() {
  PublishedCase c = testing::megatron_core_case("llama-3.1-70b", "dgx-b200");
  c.layers = 12;
  return c;
}

ModelSpec model_70b() {
  ModelSpec model = load_model("llama-3.1-70b");
  model.layers = 12;
  return model;
}

double step(const PublishedCase& c, const ModelSpec& model, const Stack& stack) {
  return run_time(c, model, load_hardware("dgx-b200"), stack).step();
}

TEST_CASE("Transformer Engine saves what its products, norms and attention read backward") {
  PublishedCase c = case_70b();
  const ModelSpec model = model_70b();
  const Stack stack = load_stack("megatron-core");
  const double s = 4096, d = 8192, a = 8192, g = 1024, f = 28672, heads = 64;
  const auto activations = [&] {
    return run_memory(c, model, load_hardware("dgx-b200"), stack).activations();
  };
  // In halves: inputs of two norms and of two products, q, k and v, attention's output, gate and
  // up, what the down product reads; in single precision a sum of every row of scores.
  const double wide = 2 * s * (a + 2 * g + a + 3 * f) + 4 * s * heads, narrow = 2 * s * 4 * d;
  CHECK(activations() == Approx(12 * (wide + narrow)));
  c.degrees.data = 4;
  c.degrees.tensor = 2;
  CHECK(activations() == Approx(12 * (wide / 2 + narrow)));
  c.sequence_parallel = true;
  CHECK(activations() == Approx(12 * (wide + narrow) / 2));
  c.degrees.data = 1;
  c.degrees.ulysses = 4;  // attention's output twice: before its exchange and after
  CHECK(activations() == Approx(12 * (wide + narrow + 2 * s * a) / 8));
}

TEST_CASE("the fullest stage is the first by what is in flight, or the last by its logits") {
  PublishedCase c = case_70b();
  ModelSpec model = model_70b();
  const Stack stack = load_stack("megatron-core");
  c.degrees.data = 4;
  c.degrees.pipeline = 2;
  CHECK(run_memory(c, model, load_hardware("dgx-b200"), stack).loss == 0);
  model.layers = 2;
  const RunMemory last = run_memory(c, model, load_hardware("dgx-b200"), stack);
  CHECK(last.loss == Approx(2.0 * 4096 * 128256));
  // A single stage has the parameters of both ends.
  c.degrees.pipeline = 1;
  CHECK(run_memory(c, model, load_hardware("dgx-b200"), stack).states() > last.states());
}

TEST_CASE("two layers too few for the stages make room for the embedding and the head") {
  PublishedCase c = case_70b();
  ModelSpec model = model_70b();
  model.layers = 126;
  c.degrees.pipeline = 16;
  const HardwareProfile hw = load_hardware("dgx-b200");
  const auto layers = [&](const char* stack) {
    return infer_layout(c, model, hw, load_stack(stack)).stage_layers;
  };
  CHECK(layers("megatron-core").empty());
  std::vector<int64_t> expected(16, 8);
  expected.front() = expected.back() = 7;
  CHECK(layers("megatron-bridge") == expected);
  c.degrees.pipeline = 2;
  CHECK(layers("megatron-bridge").empty());
}

TEST_CASE("stages share the parameters of the model") {
  PublishedCase c = case_70b();
  const ModelSpec model = model_70b();
  for (const int64_t stages : {1, 2, 3, 4}) {
    c.degrees.pipeline = stages;
    double parameters = 0;
    for (int64_t i = 0; i < stages; ++i) parameters += rank_parameters(c, model, i);
    CHECK(parameters == Approx(static_cast<double>(parameter_count(model))));
  }
}

TEST_CASE("gathers that backward repeats and ranks of a group cost time") {
  PublishedCase c = case_70b();
  c.degrees.data = 1;
  c.degrees.tensor = 8;
  c.sequence_parallel = true;
  const ModelSpec model = model_70b();
  Stack stack = load_stack("megatron-core");
  stack.tensor_hidden.value = 0;
  const double both = step(c, model, stack);
  stack.regathers.value = 0;
  const double none = step(c, model, stack);
  // Two of ten exchanges of a layer: 7/8 of the rows of 8192 halves, at 606 GB/s.
  const double each = 2 * 4096.0 * 8192 * 7 / 8 / 606e9 + 4e-6 + stack.exchange_s.value +
                      7 * stack.exchange_rank_s.value;
  CHECK(both - none == Approx(32 * 12 * 2 * each).epsilon(1e-3));
  stack.exchange_rank_s.value = 0;
  CHECK(step(c, model, stack) < none);
  c.degrees.data = 8;
  c.degrees.tensor = 1;  // nothing is sharded
  const double alone = step(c, model, stack);
  stack.regathers.value = 2;
  CHECK(step(c, model, stack) == alone);
}

TEST_CASE("every rank passes over its whole buffer of gradients") {
  PublishedCase c = case_70b();
  const ModelSpec model = model_70b();
  Stack stack = load_stack("megatron-core");
  const HardwareProfile hw = load_hardware("dgx-b200");
  const double update = run_time(c, model, hw, stack).update;
  const double bytes = stack.gradient_touch_bytes.value;
  stack.gradient_touch_bytes.value = 0;
  CHECK(update - run_time(c, model, hw, stack).update ==
        Approx(bytes * static_cast<double>(parameter_count(model)) /
               (8e12 * stack.pass_share.value)));
}

TEST_CASE("a run without overlap hides nothing") {
  PublishedCase c = case_70b();
  c.degrees.data = 1;
  c.degrees.tensor = 8;
  c.sequence_parallel = true;
  const double overlapped = *predict_case(c).step_seconds;
  c.overlap = false;
  CHECK(*predict_case(c).step_seconds > overlapped);
}

TEST_CASE("what a hidden exchange of data costs computation is the toll") {
  PublishedCase c = case_70b();
  const ModelSpec model = model_70b();
  Stack stack = load_stack("megatron-core");
  const HardwareProfile hw = load_hardware("dgx-b200");
  const auto data = [&] { return run_time(c, model, hw, stack).data; };
  stack.data_hidden.value = 0;
  const double shown = data();
  stack.data_hidden.value = 1e6;  // of a long enough computation
  stack.exchange_toll.value = 0.25;
  CHECK(data() == Approx(shown / 4));
  stack.exchange_toll.value = 0;
  CHECK(data() == 0);
}

TEST_CASE("an exchange takes as long as the share of the fabric it reaches says") {
  PublishedCase c = case_70b();
  const ModelSpec model = model_70b();
  Stack stack = load_stack("megatron-core");
  stack.data_hidden.value = stack.exchange_s.value = stack.exchange_rank_s.value = 0;
  const HardwareProfile hw = load_hardware("dgx-b200");
  const double all = run_time(c, model, hw, stack).data;
  stack.exchange_share.value = 0.25;
  CHECK(run_time(c, model, hw, stack).data == Approx(4 * all));
}

TEST_CASE("an unpublished microbatch is the fastest that fits") {
  PublishedCase c = case_70b();
  const ModelSpec model = model_70b();
  const Stack stack = load_stack("megatron-core");
  const HardwareProfile hw = load_hardware("dgx-b200");
  CHECK(infer_layout(c, model, hw, stack) == c);
  c.microbatch.reset();
  c.global_batch = 64;
  c.degrees.data = 4;
  c.degrees.pipeline = 2;
  const TrainingRun chosen = infer_layout(c, model, hw, stack);
  double best = std::numeric_limits<double>::infinity();
  for (const int64_t micro : {1, 2, 4, 8, 16}) {
    for (const int64_t interleaved : {1, 2, 3, 6}) {
      PublishedCase tried = c;
      tried.microbatch = micro;
      tried.virtual_stages = interleaved;
      if (interleaved > 1 && 16 / micro % 2 != 0) continue;
      if (device_bytes(run_memory(tried, model, hw, stack), stack) <=
          hw.device.memory_bytes.value) {
        best = std::min(best, run_time(tried, model, hw, stack).step());
      }
    }
  }
  CHECK(run_time(chosen, model, hw, stack).step() == Approx(best));
  CHECK(predict_case(c).step_seconds == Approx(best));
  HardwareProfile small = hw;
  small.device.memory_bytes.value = 1e9;
  CHECK(*infer_layout(c, model, small, stack).microbatch == 1);
}

TEST_CASE("a device's own speedup goes before its peaks, blocks of their own scale cost casts") {
  const Stack stack = load_stack("megatron-bridge");
  const HardwareProfile hw = load_hardware("dgx-b200");
  CHECK(product_precision("fp8", hw, stack).speed == Approx(hw.device.speedup_float8.value));
  CHECK(product_precision("nvfp4", hw, stack).speed == Approx(hw.device.speedup_float4.value));
  CHECK(product_precision("mxfp8", hw, stack).cast_bytes -
            product_precision("fp8", hw, stack).cast_bytes ==
        Approx(stack.block_cast_bytes.value));
  CHECK(product_precision("fp8", load_hardware("dgx-h100"), stack).speed ==
        Approx(1978.9 / 989.4 * stack.low_precision_rate.value));
}

}  // namespace
}  // namespace longspan
