// Costs of reference implementations: layers, stages, exchanges, states, against closed forms.
#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "frameworks/model/layer_work.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/product_precision.h"
#include "frameworks/model/run_host.h"
#include "frameworks/model/run_memory.h"
#include "frameworks/model/run_time.h"
#include "frameworks/model/slowest_rank.h"
#include "frameworks/model/stack.h"
#include "hwprofiles/catalog.h"
#include "validation/measure.h"
#include "validation/predict.h"
#include "validation/report.h"

namespace longspan {
namespace {

ModelSpec gpt_22b() {
  ModelSpec m;
  m.name = "gpt-22b";
  m.layers = 48;
  m.hidden = 6144;
  m.heads = m.kv_heads = 64;
  m.head_dim = 96;
  m.ffn = 24576;
  m.vocab = 51200;
  m.max_positions = 2048;
  m.norm = Norm::layernorm;
  m.activation = Activation::gelu;
  m.positions = Positions::learned;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.tied_embeddings = true;
  return m;
}

PublishedCase case_22b() {
  PublishedCase c;
  c.model = "gpt-22b";
  c.shape = gpt_22b();
  c.hardware = "selene";
  c.gpus = 8;
  c.stack = "megatron-lm";
  c.precision = "fp16";
  c.sequence = 2048;
  c.microbatch = 4;
  c.global_batch = 4;
  c.degrees.tensor = 8;
  c.flash_attention = false;
  return c;
}

double flops(const std::vector<Primitive>& kernels) {
  return std::accumulate(kernels.begin(), kernels.end(), 0.0, [](double all, const Primitive& p) {
    return counts_flops(p.kernel) ? all + p.work * p.repeats : all;
  });
}

double step(const PublishedCase& c, const Stack& stack) {
  const HardwareProfile hw = load_hardware("4x8xselene");
  return run_time(c, *c.shape, hw, stack).step();
}

TEST_CASE("every stack loads, under its own name") {
  REQUIRE(!stack_names().empty());
  for (const std::string& name : stack_names()) CHECK(load_stack(name).name == name);
  CHECK_THROWS_WITH(load_stack("megatron-ml"), Catch::Contains("megatron-lm"));
}

TEST_CASE("a layer's products are the model's FLOPs, shared by its tensor group") {
  const ModelSpec m = gpt_22b();
  const Stack stack = load_stack("megatron-lm");
  LayerShape shape;
  shape.sequence = 2048;
  shape.sequences = 3;
  shape.stored_scores = true;
  // 24 s b h^2 + 4 s^2 b h: arXiv 2104.04473, appendix; scores are whole squares.
  const double s = 2048, b = 3, h = 6144;
  const double forward = 24 * s * b * h * h + 4 * s * s * b * h;
  for (const int64_t tensor : {1, 2, 8}) {
    shape.tensor = tensor;
    const LayerWork work = layer_work(m, stack, shape);
    CHECK(flops(work.forward.kernels) * tensor == Approx(forward));
    CHECK(flops(work.backward.kernels) * tensor == Approx(2 * forward));
    CHECK(flops(work.scores) * tensor == Approx(4 * s * s * b * h));
    CHECK(work.forward.tensor.size() == (tensor > 1 ? 4U : 0U));
  }
}

TEST_CASE("a tensor group that gathers its logits has the whole loss on every rank") {
  const ModelSpec m = gpt_22b();
  Stack stack = load_stack("megatron-lm");
  LayerShape shape;
  shape.sequence = 2048;
  shape.tensor = 8;
  const auto passes = [&] {
    double bytes = 0;
    for (const Primitive& p : ends_work(m, stack, shape).head.kernels) {
      if (p.kernel == Kernel::pass) bytes += p.shape[0] * p.repeats;
    }
    return bytes;
  };
  const double cut = passes();
  const size_t exchanges = ends_work(m, stack, shape).head.tensor.size();
  stack.gathered_logits.value = 1;
  const double part = 2048.0 * 51200 / 8;
  CHECK(passes() - cut == Approx(7 * stack.logit_bytes.value * part));
  const std::vector<Primitive> gathered = ends_work(m, stack, shape).head.tensor;
  REQUIRE(gathered.size() == exchanges + 1);
  CHECK(gathered.front().shape[0] == Approx(2 * part));
  shape.tensor = 1;
  CHECK(ends_work(m, stack, shape).head.tensor.empty());
}

TEST_CASE("a fused kernel computes the pairs a causal mask leaves, and again backward") {
  const ModelSpec m = gpt_22b();
  LayerShape shape;
  shape.sequence = 4096;
  const double s = 4096, h = 6144;
  for (const int64_t ulysses : {1, 4}) {
    for (const int64_t ring : {1, 2}) {
      shape.ulysses = ulysses;
      shape.context = ulysses * ring;
      const LayerWork work = layer_work(m, load_stack("megatron-lm"), shape);
      const double dense = 24 * s * h * h, pairs = s * (s + 1) / 2;
      CHECK(flops(work.forward.kernels) * static_cast<double>(shape.context) ==
            Approx(dense + 4 * pairs * h));
      CHECK(flops(work.backward.kernels) * static_cast<double>(shape.context) ==
            Approx(2 * dense + 10 * pairs * h));
      CHECK(work.forward.context.size() == (ring > 1 ? 1U : 0U) + (ulysses > 1 ? 2U : 0U));
    }
  }
}

TEST_CASE("full recomputation takes a forward more, selective one the scores") {
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  const double none = step(c, stack);
  c.recompute = Recompute::selective;
  const double selective = step(c, stack);
  c.recompute = Recompute::full;
  const double full = step(c, stack);
  CHECK(none < selective);
  CHECK(selective < full);
  CHECK(full / none > 1.25);
  CHECK(full / none < 1.4);
  c.recompute_layers = {24};  // half of them
  CHECK(step(c, stack) == Approx((none + full) / 2).epsilon(1e-9));
}

TEST_CASE("stages wait for each other as 1F1B does, less where they are interleaved") {
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  stack.stage_latency_s.value = 0;
  c.gpus = 32;
  c.degrees.pipeline = 4;
  c.microbatch = 1;
  c.global_batch = 16;
  const HardwareProfile hw = load_hardware("4x8xselene");
  const auto bubble_share = [&] {
    const RunTime t = run_time(c, *c.shape, hw, stack);
    return t.bubble / (t.compute + t.tensor);
  };
  // (p - 1) / m of the work, with ends that differ and hops that cost a little.
  CHECK(bubble_share() == Approx(3.0 / 16).epsilon(0.15));
  const double plain = bubble_share();
  c.virtual_stages = 4;
  CHECK(bubble_share() < plain / 2);
}

TEST_CASE("a slow host sets the pace of small layers and of no others") {
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  const double usual = step(c, stack);
  stack.host_kernel_s.value = 0;
  CHECK(step(c, stack) == Approx(usual));
  stack.host_kernel_s.value = 1e-2;
  CHECK(step(c, stack) > 2 * usual);
}

TEST_CASE("gradients of more replicas cost an exchange, unless it is hidden") {
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  stack.rank_spread.value = 0;
  const double one = step(c, stack);
  c.gpus = 32;
  c.degrees.data = 4;
  c.global_batch = 16;
  const double four = step(c, stack);
  CHECK(four > one);
  stack.data_hidden.value = 1;
  CHECK(step(c, stack) == Approx(one));
  stack.data_hidden.value = 0;
  c.global_batch = 64;
  const double once = step(c, stack);
  c.zero = 3;  // gathers and scatters in every microbatch
  CHECK(step(c, stack) > once);
}

TEST_CASE("a step waits for the slowest of its ranks") {
  CHECK(largest_of_normal(1) == 0);
  CHECK(largest_of_normal(8) == Approx(1.4236).epsilon(0.01));
  CHECK(largest_of_normal(100) == Approx(2.5076).epsilon(0.01));
  CHECK(largest_of_normal(1000) == Approx(3.2414).epsilon(0.01));
  CHECK(waiting_for_slowest(0.1, 4, 8) == 1);
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  const HardwareProfile hw = load_hardware("64x8xselene");
  const auto compute = [&] { return run_time(c, *c.shape, hw, stack).compute; };
  const double node = compute();
  c.gpus = 512;
  c.degrees.data = 64;
  c.global_batch *= 64;
  const double cluster = compute();
  CHECK(cluster > 1.015 * node);
  CHECK(cluster < 1.04 * node);
  stack.rank_spread.value = 0;
  CHECK(compute() == Approx(node));
}

TEST_CASE("products with a whole vocabulary have a share of their own") {
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  const double cut = step(c, stack);
  stack.head_share.value = 0.5;
  CHECK(step(c, stack) == cut);
  c.degrees.tensor = 1;
  c.degrees.data = 8;
  c.global_batch = 8 * *c.microbatch;
  const double slow = step(c, stack);
  stack.head_share.value = 1;
  CHECK(step(c, stack) < slow);
}

TEST_CASE("states of the optimizer in 16 bits take and move less") {
  PublishedCase c = case_22b();
  const Stack stack = load_stack("megatron-lm");  // master and two moments in single precision
  const HardwareProfile hw = load_hardware("8xselene");
  const auto states = [&] { return run_memory(c, *c.shape, hw, stack).states(); };
  const auto update = [&] { return run_time(c, *c.shape, hw, stack).update; };
  const double all = states(), moved = update();
  c.optimizer_state_bytes = 12;
  CHECK(states() == all);
  CHECK(update() == moved);
  c.optimizer_state_bytes = 8;
  CHECK(all - states() == Approx(4 * rank_parameters(c, *c.shape)));
  CHECK(update() == Approx(moved * 32 / 40));
}

TEST_CASE("the host issues the exchanges of a tensor group") {
  PublishedCase c = case_22b();
  Stack stack = load_stack("megatron-lm");
  stack.host_kernel_s.value = 1;  // no other time matters
  const double grouped = run_time(c, *c.shape, load_hardware("selene"), stack).compute;
  c.degrees.tensor = 1;
  c.degrees.data = 8;
  const double alone = run_time(c, *c.shape, load_hardware("selene"), stack).compute;
  CHECK(grouped > alone);
}

TEST_CASE("fewer bits speed up the products with parameters, and cost casts") {
  HardwareProfile hw = load_hardware("8xb200");
  hw.device.speedup_float8 = hw.device.speedup_float4 = {};  // then from the peaks
  Stack stack = load_stack("megatron-lm");
  stack.low_precision_rate.value = 1;
  CHECK(product_precision("bf16", hw, stack).speed == 1);
  CHECK(product_precision("bf16", hw, stack).cast_bytes == 0);
  CHECK(product_precision("fp8", hw, stack).speed == Approx(2));
  CHECK(product_precision("nvfp4", hw, stack).speed == Approx(4));
  CHECK(product_precision("mxfp8", hw, stack).speed == Approx(2));
  CHECK_THROWS_WITH(product_precision("nvfp4", load_hardware("h100-80g"), stack),
                    Catch::Contains("peak_flops_float4"));

  PublishedCase c = case_22b();
  c.flash_attention = true;
  c.sequence = 128;  // next to no attention
  c.microbatch = 64;
  c.global_batch = 64;
  stack.pass_share.value = 1e6;
  stack.kernel_gap_s.value = stack.host_kernel_s.value = stack.step_s.value = 0;
  stack.optimizer_bytes.value = stack.exchange_s.value = 0;
  c.degrees.tensor = 1;
  const auto compute = [&] { return run_time(c, *c.shape, hw, stack).compute; };
  const double half = compute();
  c.precision = "fp8";
  CHECK(half / compute() == Approx(2).epsilon(0.05));  // the head stays in 16 bits
  stack.pass_share.value = 0.8;
  const double cast = compute();
  stack.cast_bytes.value = 0;
  CHECK(cast > compute());
}

TEST_CASE("layers save what arXiv 2205.05198 counts") {
  PublishedCase c = case_22b();
  const Stack stack = load_stack("megatron-lm");
  const double s = 2048, b = 4, h = 6144, a = 64, t = 8, layers = 48;
  const auto activations = [&] {
    return run_memory(c, *c.shape, load_hardware("8xselene"), stack).activations();
  };
  CHECK(activations() == Approx(layers * s * b * h * (10 + 24 / t + 5 * a * s / (h * t))));
  // While a layer's attention runs backward, 4 B a score more, when its MLP's tensors, the second
  // norm's and the values have been freed.
  c.sequence_parallel = true;
  const double scores = s * b * h / t * 5 * a * s / h;
  const double working = s * b * h / t * (4 * a * s / h - 16 - 4 - 2);
  CHECK(activations() == Approx(layers * s * b * h / t * (34 + 5 * a * s / h) + working));
  c.recompute = Recompute::selective;  // and one layer's scores
  CHECK(activations() == Approx(layers * s * b * h / t * 34 + scores + working));
  c.recompute = Recompute::full;
  CHECK(activations() ==
        Approx(layers * s * b * h / t * 2 + s * b * h / t * 32 + scores + working));
  // The first of p stages holds p microbatches, a p-th of the layers each.
  c.recompute = Recompute::none;
  c.gpus = 32;
  c.degrees.pipeline = 4;
  c.global_batch = 64;
  CHECK(activations() == Approx(layers * s * b * h / t * (34 + 5 * a * s / h) + working));
  c.virtual_stages = 3;
  CHECK(activations() ==
        Approx(layers * s * b * h / t * (34 + 5 * a * s / h) * (1 + 3.0 / (4 * 3)) + working));
}

TEST_CASE("ZeRO divides the optimizer's states among replicas, and all of them at stage 3") {
  PublishedCase c = case_22b();
  const Stack stack = load_stack("megatron-lm");
  c.gpus = 32;
  c.degrees.data = 4;
  c.global_batch = 16;
  const auto states = [&] {
    return run_memory(c, *c.shape, load_hardware("8xselene"), stack).states();
  };
  const double parameters = static_cast<double>(parameter_count(*c.shape)) / 8;
  CHECK(states() == Approx(18 * parameters));
  c.zero = 1;
  CHECK(states() == Approx((6 + 12.0 / 4) * parameters));
  c.zero = 3;
  CHECK(states() == Approx(18 * parameters / 4));
}

PublishedCase case_fsdp() {
  PublishedCase c;
  c.model = "gpt-22b";
  c.shape = gpt_22b();
  c.shape->kv_heads = 8;
  c.hardware = "dgx-h100";
  c.gpus = c.degrees.data = 16;
  c.stack = "torchtitan";
  c.precision = "bf16";
  c.sequence = 4096;
  c.microbatch = 1;
  c.global_batch = 16;
  c.zero = 3;
  return c;
}

TEST_CASE("a layer hides as much of its exchanges as its own computation is long") {
  PublishedCase c = case_fsdp();
  Stack stack = load_stack("torchtitan");
  stack.exchange_toll.value = stack.shard_copy_bytes.value = 0;
  HardwareProfile hw = load_hardware("2x8xdgx-h100");
  const auto data = [&] { return run_time(c, *c.shape, hw, stack).data; };
  const auto gathers = [&] {  // of everything, with nothing else running
    stack.data_hidden.value = 0;
    const double all = data();
    stack.data_hidden.value = 1;
    return all;
  };
  // Only the ends' exchanges show, during which nothing else runs: less than a layer's.
  const double all = gathers();
  CHECK(data() < all / 40);
  // 48 layers' gathers, half as many without a second one: (2 + 4 B) to (2 + 2 + 4 B).
  const double ends = data();
  c.zero = 2;
  CHECK(gathers() - ends == Approx((all - ends) * 6 / 8).epsilon(0.01));
  c.zero = 3;
  // A fabric so slow that computation hides almost nothing.
  hw.cluster_fabric.bandwidth.value /= 1e4;
  CHECK(data() > 0.99 * gathers());
  // Transfers during computation slow it down by the toll.
  hw = load_hardware("2x8xdgx-h100");
  stack.exchange_toll.value = 0.25;
  CHECK(data() - ends == Approx((all - ends) / 4).epsilon(0.01));
  // Every microbatch has all of them, unless a pipeline keeps what it has gathered.
  stack.exchange_toll.value = 0;
  stack.data_hidden.value = 0;
  c.global_batch = 64;
  CHECK(data() == Approx(4 * all));
}

TEST_CASE("a selection of products is run again, and what it keeps is what the rest is not") {
  PublishedCase c = case_fsdp();
  c.sequence = 128;
  c.microbatch = 32;
  c.global_batch = 512;
  Stack stack = load_stack("torchtitan");
  stack.data_hidden.value = 1;
  const HardwareProfile hw = load_hardware("2x8xdgx-h100");
  const auto compute = [&](double products, double passes) {
    stack.selective_products.value = products;
    stack.selective_passes.value = passes;
    return run_time(c, *c.shape, hw, stack).compute;
  };
  c.recompute = Recompute::full;
  const double full = compute(0, 0);
  c.recompute = Recompute::none;
  const double none = compute(0, 0);
  c.recompute = Recompute::selective;
  CHECK(compute(0, 0) == Approx(none));
  CHECK(compute(0.5, 0.5) == Approx((compute(1, 1) + none) / 2).epsilon(0.02));  // gaps in full
  CHECK(compute(1, 1) == Approx(full).epsilon(0.02));  // all but attention

  const auto activations = [&](double kept) {
    stack.selective_kept.value = kept;
    return run_memory(c, *c.shape, hw, stack).activations();
  };
  // Inputs and outputs of attention stay, and a share of the outputs of the products.
  const double rows = 128 * 32, layers = 48, h = 6144, g = 8 * 96;
  stack.selective_passes.value = 1;
  stack.logit_state_bytes.value = stack.gradient_state_bytes.value =
      0;  // the last layer's backward
  const double outputs = 2 * rows * (h + 2 * g + 4 * h + h + h);
  CHECK(activations(1) - activations(0) == Approx((layers - 1) * outputs));  // one is running
  c.precision = "fp8";
  CHECK(activations(1) == Approx(activations(0)));  // its products are not on the list
}

TEST_CASE("a tensor group gathers in fewer bits where its software casts before") {
  const ModelSpec m = gpt_22b();
  Stack stack = load_stack("torchtitan");
  LayerShape shape;
  shape.sequence = 4096;
  shape.tensor = 8;
  shape.sequence_parallel = true;
  const auto sent = [&](const LayerShape& s) {
    double bytes = 0;
    for (const Primitive& p : layer_work(m, stack, s).forward.tensor) bytes += p.work;
    return bytes;
  };
  const auto moved = [&] {
    double bytes = 0;
    for (const Primitive& p : layer_work(m, stack, shape).forward.kernels) {
      if (p.kernel == Kernel::pass) bytes += p.work;
    }
    return bytes;
  };
  // Two gathers and two sums of all tokens, of which a rank sends seven of eight parts.
  const double tokens = 2.0 * 4096 * 6144;
  CHECK(sent(shape) == Approx(4 * tokens * 7 / 8));
  LayerShape low = shape;
  low.precision.speed = 2;
  stack.low_precision_gathers.value = 0.5;
  CHECK(sent(low) == Approx(3 * tokens * 7 / 8));
  stack.exchange_passes.value = 0;
  const double contiguous = moved();
  stack.exchange_passes.value = 2;
  CHECK(moved() - contiguous == Approx(4 * 2 * tokens));
}

TEST_CASE("the last part of a sequence has nearly twice the average's attention") {
  const ModelSpec m = gpt_22b();
  Stack stack = load_stack("megatron-lm");
  LayerShape shape;
  shape.sequence = 4096;
  shape.context = 4;
  const double even = flops(layer_work(m, stack, shape).forward.kernels);
  stack.context_imbalance.value = 1;
  const double last = flops(layer_work(m, stack, shape).forward.kernels);
  // Queries of the last quarter see 3.5 quarters of the keys, on average 2.
  const double pairs = 4096.0 * 4097 / 2 / 4;
  CHECK(last - even == Approx(0.75 * 4 * pairs * 6144));
  shape.ulysses = 4;  // the whole sequence for a share of the heads
  CHECK(flops(layer_work(m, stack, shape).forward.kernels) == Approx(even));
}

TEST_CASE("FSDP holds the ends of the model while the loss runs, in a pipeline all it has") {
  PublishedCase c = case_fsdp();
  Stack stack = load_stack("torchtitan");
  const HardwareProfile hw = load_hardware("2x8xdgx-h100");
  const auto states = [&] { return run_memory(c, *c.shape, hw, stack).states(); };
  const std::vector<ParameterUnit> units = parameter_units(*c.shape);
  const auto all = static_cast<double>(parameter_count(*c.shape));
  const auto layer = static_cast<double>(units[1].elements);
  CHECK(states() == Approx(12 * all / 16 + 2 * (all - 48 * layer)).epsilon(1e-3));
  c.global_batch = 32;  // gradients wait for those of the second microbatch
  CHECK(states() == Approx(16 * all / 16 + 2 * (all - 48 * layer)).epsilon(1e-3));
  c.degrees.pipeline = 2;
  c.degrees.data = 8;
  const double stage = 24 * layer + static_cast<double>(units.front().elements);
  CHECK(states() == Approx(16 * stage / 8 + 6 * stage).epsilon(1e-3));
}

// Mean |error| of the step times, or of the peaks, of every `stride`-th case of a table; of those
// with their experts on several ranks alone, or of the others.
double mean_error(const char* table, size_t stride, bool memory = false,
                  std::optional<bool> experts = {}) {
  const std::vector<PublishedCase> cases =
      read_cases(std::filesystem::path(LONGSPAN_SOURCE) / "tests/published" / table);
  CasePredictor predictor;
  std::vector<double> errors;
  for (size_t i = 0; i < cases.size(); i += stride) {
    if (!cases[i].left_out.empty()) continue;
    if (experts && *experts != (cases[i].degrees.expert > 1)) continue;
    const CasePrediction p = predictor.predict(cases[i]);
    INFO(cases[i].name << ": " << p.reason);
    REQUIRE(p.reason.empty());
    if (memory && !measured_peak_bytes(cases[i])) continue;
    errors.push_back(memory ? static_cast<double>(*p.peak_bytes) /
                                      static_cast<double>(*measured_peak_bytes(cases[i])) -
                                  1
                            : *p.step_seconds / *measured_step_seconds(cases[i]) - 1);
  }
  return summarize(errors).mean;
}

TEST_CASE("published runs of the stacks are predicted as well as the documentation says") {
  CHECK(mean_error("vtrain_single_node.yaml", 10) < 0.09);
  CHECK(mean_error("vtrain_multi_node.yaml", 1) < 0.092);
  CHECK(mean_error("megatron_recomputation_times.yaml", 1) < 0.036);
  CHECK(mean_error("megatron_recomputation_memory.yaml", 1, true) < 0.04);
  CHECK(mean_error("llm_foundry_a100_40g.yaml", 1) < 0.045);
  CHECK(mean_error("llm_foundry_a100_80g.yaml", 1) < 0.058);
  CHECK(mean_error("llm_foundry_h100.yaml", 1) < 0.032);
  CHECK(mean_error("llm_foundry_h100_large.yaml", 1) < 0.03);
  CHECK(mean_error("llm_foundry_h100_fp8.yaml", 1) < 0.048);
  CHECK(mean_error("torchtitan.yaml", 1) < 0.052);
  CHECK(mean_error("torchtitan.yaml", 1, true) < 0.036);
  CHECK(mean_error("ptdp_weak_scaling.yaml", 1) < 0.04);
  CHECK(mean_error("ptdp_zero_3.yaml", 1) < 0.035);
  CHECK(mean_error("simumax_b200.yaml", 1) < 0.038);
  CHECK(mean_error("simumax_b200.yaml", 1, true, false) < 0.001);
  CHECK(mean_error("simumax_b200.yaml", 1, true, true) < 0.012);
  CHECK(mean_error("simumax_b200.yaml", 1, false, true) < 0.06);
  CHECK(mean_error("megatron_bridge.yaml", 1, false, false) < 0.057);
  CHECK(mean_error("megatron_bridge.yaml", 1, false, true) < 0.12);
  CHECK(mean_error("megatron_h100_weak_scaling.yaml", 1) < 0.115);
  CHECK(mean_error("nemo_long_sequence.yaml", 1) < 0.055);
}

TEST_CASE("single precision keeps twice the bytes and multiplies without tensor cores") {
  PublishedCase c = case_22b();
  c.flash_attention = true;
  const Stack stack = load_stack("megatron-lm");
  const HardwareProfile hw = load_hardware("8xa100-80g");
  const LayerShape half = layer_shape(c);
  c.precision = "fp32";
  const LayerShape single = layer_shape(c);
  CHECK(saved_layer_bytes(gpt_22b(), stack, single) ==
        Approx(2 * saved_layer_bytes(gpt_22b(), stack, half)).epsilon(0.01));
  const double slower = hw.device.peak_flops_bfloat16.value / hw.device.peak_flops_float32.value;
  CHECK(1 / product_precision("fp32", hw, stack).speed == Approx(slower));
  const double in_single = run_time(c, gpt_22b(), hw, stack).compute;
  c.precision = "fp16";
  CHECK(in_single > 0.8 * slower * run_time(c, gpt_22b(), hw, stack).compute);
}

TEST_CASE("groups that each have all states share them among fewer ranks") {
  PublishedCase c = case_22b();
  c.degrees.tensor = 1;
  c.degrees.data = 8;
  c.zero = 3;
  c.global_batch = 32;
  const Stack stack = load_stack("torchtitan");
  const HardwareProfile hw = load_hardware("8xa100-80g");
  const RunMemory shared = run_memory(c, gpt_22b(), hw, stack);
  const double sharded = run_time(c, gpt_22b(), hw, stack).data;
  c.state_copies = 2;
  const RunMemory twice = run_memory(c, gpt_22b(), hw, stack);
  CHECK(twice.optimizer == Approx(2 * shared.optimizer));
  CHECK(twice.parameters == Approx(2 * shared.parameters));
  CHECK(twice.gathered == shared.gathered);
  c.state_copies = 8;
  const RunMemory copied = run_memory(c, gpt_22b(), hw, stack);
  CHECK(copied.optimizer == Approx(8 * shared.optimizer));
  CHECK(copied.gathered == 0);  // nothing is missing
  CHECK(run_time(c, gpt_22b(), hw, stack).data == Approx(sharded).epsilon(0.1));
  c.state_copies = 1;
  c.zero = 0;
  CHECK(run_memory(c, gpt_22b(), hw, stack).states() == copied.states());
}

TEST_CASE("checkpoints further apart keep fewer inputs and repeat more layers at a time") {
  PublishedCase c = case_22b();
  c.flash_attention = true;
  c.recompute = Recompute::full;
  const Stack stack = load_stack("megatron-lm");
  const HardwareProfile hw = load_hardware("8xa100-80g");
  const RunMemory each = run_memory(c, gpt_22b(), hw, stack);
  c.recompute_span = 4;
  const RunMemory fourth = run_memory(c, gpt_22b(), hw, stack);
  CHECK(fourth.saved == Approx(each.saved / 4));
  CHECK(fourth.work - each.work == Approx(3 * saved_layer_bytes(gpt_22b(), stack, layer_shape(c))));
  c.recompute_span = 1000;  // the whole stage
  CHECK(run_memory(c, gpt_22b(), hw, stack).saved == Approx(each.saved / 48));
}

TEST_CASE("states in files take time, not host memory") {
  PublishedCase c = case_22b();
  c.zero = 3;
  c.degrees.tensor = 1;
  c.degrees.data = 8;
  c.global_batch = 32;
  c.offload.optimizer = c.offload.parameters = {1};
  const Stack stack = load_stack("hf-deepspeed");
  const HardwareProfile hw = load_hardware("8xa100-80g");
  const double on_host = host_bytes(c, gpt_22b(), stack);
  const HostTraffic without = host_traffic(c, gpt_22b(), stack);
  CHECK(without.read == 0);
  c.offload.optimizer_in_files = c.offload.parameters_in_files = true;
  CHECK(host_bytes(c, gpt_22b(), stack) < 0.1 * on_host);
  const HostTraffic filed = host_traffic(c, gpt_22b(), stack);
  CHECK(filed.written == Approx(12 * filed.updated));
  const double seconds = host_seconds(c, hw, stack, filed, 0);
  CHECK(seconds == Approx(host_seconds(c, hw, stack, without, 0) +
                          8 * filed.read / hw.nvme.read_bandwidth.value +
                          8 * filed.written / hw.nvme.write_bandwidth.value));
}

}  // namespace
}  // namespace longspan
