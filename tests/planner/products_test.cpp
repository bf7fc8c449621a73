// Products below 16 bits: their copies to the byte, their casts, their speed, and who may have
// them.
#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "models/training.h"
#include "planner/cost/cost_model.h"
#include "planner/cost/product_speed.h"
#include "planner/explain/cast_costs.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/plan/plan.h"
#include "planner/program/casts.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr ProductFormat kNarrowFormats[] = {ProductFormat::fp8, ProductFormat::fp8_blockwise,
                                            ProductFormat::mxfp8, ProductFormat::nvfp4};

Strategy in_format(int64_t tokens, ProductFormat format = ProductFormat::dtype) {
  Strategy s;
  s.chunk_tokens = s.block_tokens = tokens;
  s.products = format;
  return s;
}

Casts casts_of_op(const ModelSpec& m, OpKind kind, ProductFormat format, int64_t rows,
                  bool has_inner = false) {
  OpShape shape;
  shape.kind = kind;
  shape.saves_inner = has_inner;
  return casts_of(m, lengths_of(in_format(rows), rows), 1, format, shape, rows);
}

int64_t aligned_copy(int64_t bytes) { return (bytes + 255) / 256 * 256; }

Plan plan_in_format(const char* model, const char* hw, int64_t sequence, ProductFormat format) {
  Plan plan;
  plan.model = load_model(model);
  plan.created_by = "test";
  plan.hardware = load_hardware(hw);
  plan.sequence = sequence;
  plan.dtype = DType::bfloat16;
  plan.strategy = make_preset("checkpoint", plan.model, sequence);
  plan.strategy.products = format;
  return plan;
}

Plan reread_products(const Plan& plan) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("longspan-products-{}.yaml", getpid());
  std::ofstream(path) << write_plan(plan);
  const auto remove = [&] { std::filesystem::remove(path); };
  try {
    Plan read = read_plan(path);
    remove();
    return read;
  } catch (...) {
    remove();
    throw;
  }
}

}  // namespace

TEST_CASE("copies have the elements' bits and their scales") {
  CHECK(copy_bytes(ProductFormat::fp8, 4096, false) == 4096 + 4);
  CHECK(copy_bytes(ProductFormat::fp8_blockwise, 16384, false) == 16384 + 128 * 4);
  CHECK(copy_bytes(ProductFormat::fp8_blockwise, 16384, true) == 16384 + 4);
  CHECK(copy_bytes(ProductFormat::mxfp8, 4096, false) == 4096 + 4096 / 32);
  CHECK(copy_bytes(ProductFormat::nvfp4, 4096, false) == 4096 / 2 + 4096 / 16 + 4);
}

TEST_CASE("an op's copies are those of its products' operands, one for each direction") {
  const ModelSpec m = load_model("llama-3.1-8b");  // d 4096, A 4096, G 1024, F 14336
  const int64_t t = 1000, d = 4096, f = 14336, qkv = 6144;
  for (const ProductFormat format : kNarrowFormats) {
    CAPTURE(name_of(format));
    const int64_t multiple = format_row(format).multiple,
                  padded = (t + multiple - 1) / multiple * multiple;
    const auto rows = [&](int64_t width) {
      return aligned_copy(copy_bytes(format, padded * width, false));
    };
    const auto weights = [&](int64_t elements) {
      return aligned_copy(copy_bytes(format, elements, true));
    };
    const Casts forward = casts_of_op(m, OpKind::qkv_forward, format, t);
    CHECK(forward.weight_elements == qkv * d);
    CHECK(forward.row_elements == t * d);
    CHECK(forward.bytes() == weights(qkv * d) + rows(d));

    const Casts backward = casts_of_op(m, OpKind::qkv_backward, format, t);
    CHECK(backward.row_elements == t * (qkv + d));
    CHECK(backward.bytes() == weights(qkv * d) + 2 * rows(qkv) + rows(d));
    const Casts input = casts_of_op(m, OpKind::qkv_backward_input, format, t);
    const Casts weight = casts_of_op(m, OpKind::qkv_backward_weight, format, t);
    CHECK(input.bytes() + weight.bytes() == backward.bytes());
    CHECK(weight.weight_elements == 0);

    const Casts saved = casts_of_op(m, OpKind::mlp_backward, format, t, true);
    CHECK(saved.bytes() ==
          weights(d * f) + weights(2 * f * d) + 2 * rows(d) + rows(f) + 2 * rows(2 * f) + rows(d));
    const Casts again = casts_of_op(m, OpKind::mlp_backward, format, t);
    CHECK(again.bytes() == saved.bytes() + weights(2 * f * d) + rows(d));
    // Frozen layers have no gradients of weights.
    ModelSpec frozen = m;
    frozen.backward = LayerBackward::inputs;
    CHECK(casts_of_op(frozen, OpKind::mlp_backward, format, t, true).bytes() ==
          weights(d * f) + weights(2 * f * d) + rows(d) + rows(2 * f));
    for (const OpKind kind : {OpKind::loss, OpKind::route, OpKind::attention_forward}) {
      CHECK(casts_of_op(m, kind, format, t).bytes() == 0);
    }
  }
}

TEST_CASE("rows of each expert are padded") {
  ModelSpec m = load_model("qwen3-30b-a3b");
  const int64_t t = 3, d = m.hidden, f = m.experts->ffn, e = m.experts->count;
  const Casts forward = casts_of_op(m, OpKind::mlp_forward, ProductFormat::mxfp8, t);
  // 24 rows go to 24 experts at most, each with 32 after padding.
  const int64_t rows = t * m.experts->active * 32;
  CHECK(forward.row_bytes == aligned_copy(rows * d * 33 / 32) + aligned_copy(rows * f * 33 / 32));
  CHECK(forward.weight_elements == 3 * e * f * d);
  CHECK(forward.row_elements == t * m.experts->active * (d + f));
}

TEST_CASE("workspaces grow by the copies, and nothing else does") {
  const ModelSpec m = load_model("llama-3.1-8b");
  for (const int64_t tensor : {1, 2}) {
    Strategy plain = in_format(8192);
    plain.parallel.tensor = tensor;
    plain.mlp_tile = 1024;
    const Lengths lengths = lengths_of(plain, 8192);
    const TensorBytes before = tensor_bytes(m, lengths, plain, DType::bfloat16, 90);
    Strategy s = plain;
    s.products = ProductFormat::mxfp8;
    const TensorBytes after = tensor_bytes(m, lengths, s, DType::bfloat16, 90);
    for (int i = 0; i < kTensorCount; ++i) {
      const auto t = static_cast<Tensor>(i);
      if (!is_workspace(t)) CHECK(before[t] == after[t]);
    }
    OpShape shape;
    shape.kind = OpKind::mlp_backward;
    shape.partial = tensor > 1;
    CHECK(after[Tensor::ws_mlp_backward] - before[Tensor::ws_mlp_backward] ==
          casts_of(m, lengths, tensor, s.products, shape, 1024).bytes());
    shape.kind = OpKind::qkv_forward;
    CHECK(after[Tensor::ws_qkv_forward] - before[Tensor::ws_qkv_forward] ==
          casts_of(m, lengths, tensor, s.products, shape, 8192).bytes());
  }
}

TEST_CASE("all products of a layer's projections are in the format, and no others") {
  const ModelSpec m = load_model("llama-3.1-8b");
  const Program program =
      build_program({m, in_format(8192, ProductFormat::fp8), 8192, 1, DType::bfloat16});
  double narrow = 0;
  std::vector<Primitive> work;
  for (const Op& op : program.ops) {
    work_of(program, program.shapes[op.shape], work);
    for (const Primitive& p : work) {
      if (!is_product(p.kernel)) continue;
      CHECK((p.format == ProductFormat::fp8) == (op.kind != OpKind::loss));
      if (p.format == ProductFormat::fp8) narrow += p.work * p.repeats;
    }
  }
  // Three products each, and qkv and mlp_inner again where they are not kept (all are).
  const double matrices = 6144.0 * 4096 + 4096.0 * 4096 + 3.0 * 14336 * 4096;
  CHECK(narrow == Approx(6.0 * 8192 * 32 * matrices));
}

TEST_CASE("an MLP of 8B in a format is faster on devices that have it, casts included") {
  struct Case {
    const char* hw;
    ProductFormat format;
    double least, most;  // how many times as fast a step of 8K to 64K is
  };
  for (const auto& [hw, format, least, most] :
       {Case{"h100-80g", ProductFormat::fp8, 1.1, 1.76},
        Case{"h200-141g", ProductFormat::fp8_blockwise, 1.1, 1.76},
        Case{"b200", ProductFormat::mxfp8, 1.1, 2.6}, Case{"b200", ProductFormat::nvfp4, 1.1, 4.2},
        Case{"rtx-4090", ProductFormat::fp8, 1.1, 1.76}}) {
    const HardwareProfile profile = load_hardware(hw);
    const CostModel cost(profile, DType::bfloat16);
    for (const int64_t tokens : {8192, 65536}) {
      CAPTURE(hw, name_of(format), tokens);
      const auto seconds = [&](ProductFormat products, OpKind kind) {
        const Program p = build_program(
            {load_model("llama-3.1-8b"), in_format(tokens, products), tokens, 1, DType::bfloat16});
        OpShape shape;
        shape.kind = kind;
        return cost.durations(p, {shape})[0];
      };
      for (const OpKind kind : {OpKind::mlp_forward, OpKind::mlp_backward}) {
        const double faster = seconds(ProductFormat::dtype, kind) / seconds(format, kind);
        CHECK(faster > least);
        CHECK(faster < most);
      }
      CHECK(seconds(ProductFormat::dtype, OpKind::loss) == seconds(format, OpKind::loss));
    }
  }
}

TEST_CASE("devices without a format are refused by name") {
  const auto refused = [](const char* hw, ProductFormat format, const std::string& words) {
    CHECK_THROWS_WITH(
        check_products(load_hardware(hw).device, DType::bfloat16, format, "--products"),
        Catch::Contains(words) && Catch::Contains("--products") && !Catch::Contains("\n"));
  };
  refused("a100-80g", ProductFormat::fp8, "has no products in fp8; expected one of dtype");
  refused("rtx-3090", ProductFormat::fp8, "has no products in fp8");
  refused("h100-80g", ProductFormat::mxfp8, "expected one of dtype, fp8, fp8-blockwise");
  refused("h100-80g", ProductFormat::nvfp4, "has no products in nvfp4");
  refused("rtx-4090", ProductFormat::fp8_blockwise, "expected one of dtype, fp8");
  CHECK_NOTHROW(check_products(load_hardware("b200").device, DType::bfloat16, ProductFormat::nvfp4,
                               "--products"));
  CHECK_THROWS_WITH(check_products(load_hardware("cpu-example").device, DType::float32,
                                   ProductFormat::fp8, "--products"),
                    Catch::Contains("float32"));
  CHECK(product_speed(load_hardware("h100-80g").device, ProductFormat::fp8) ==
        Approx(0.88 * 1978.9 / 989.4));
  CHECK(product_speed(load_hardware("b200").device, ProductFormat::nvfp4) == 4.2);
}

TEST_CASE("widths that the format does not divide are refused by name") {
  const ModelSpec m = load_model("llama-3.1-8b");
  Strategy s = in_format(8192, ProductFormat::mxfp8);
  CHECK(is_valid(s, m, 8192));
  s.parallel.tensor = 8;
  CHECK(is_valid(s, m, 8192));
  ModelSpec odd = m;
  odd.ffn = 8 * 1000;
  CHECK(to_string(*violation_of(s, odd, 8192)) ==
        "products: mxfp8 needs multiples of 32, and the inner width of each of 8 tensor parts is "
        "1000; set a smaller tensor, or products to dtype");
  s.parallel.tensor = 1;
  CHECK(is_valid(s, odd, 8192));
  odd.ffn = 1000;
  CHECK(to_string(*violation_of(s, odd, 8192)) ==
        "products: mxfp8 needs multiples of 32, and the inner width is 1000; set products to "
        "dtype");
  s.chunk_tokens = s.block_tokens = 8208;
  CHECK(violation_of(s, m, 8208)->what == "mxfp8 needs multiples of 32, and the chunk is 8208");
  s.products = ProductFormat::fp8;
  CHECK(is_valid(s, m, 8208));
  SearchOptions options;
  options.products = ProductFormat::fp8;
  CHECK_THROWS_WITH(search(odd, load_hardware("h100-80g"), 8192, options),
                    Catch::Contains("--products") && Catch::Contains("1000"));
  CHECK_THROWS_WITH(search(m, load_hardware("a100-80g"), 8192, options),
                    Catch::Contains("--products") && Catch::Contains("fp8"));
}

TEST_CASE("a plan keeps its format, its MFU is of that format's peak, and it is not run") {
  Plan plain = plan_in_format("llama-3.2-1b", "h100-80g", 16384, ProductFormat::dtype);
  plain.predicted = predict(plain);
  Plan plan = plan_in_format("llama-3.2-1b", "h100-80g", 16384, ProductFormat::fp8);
  plan.predicted = predict(plan);
  CHECK(plan.predicted.step_seconds < plain.predicted.step_seconds);
  CHECK(plan.predicted.peak_bytes[0] >= plain.predicted.peak_bytes[0]);
  CHECK(plan.predicted.mfu * plan.predicted.step_seconds * 1978.9 ==
        Approx(plain.predicted.mfu * plain.predicted.step_seconds * 989.4));
  CHECK(reread_products(plan) == plan);
  CHECK(why_not_run(plain).empty());
  CHECK_THAT(why_not_run(plan), Catch::Contains("fp8"));

  Plan elsewhere = plan;
  elsewhere.hardware = load_hardware("a100-80g");
  CHECK_THROWS_WITH(reread_products(elsewhere),
                    Catch::Contains(".yaml: strategy: products") && Catch::Contains("fp8"));

  const Program program = build_program(step_request(plan));
  const CastCosts costs = costs_of_casts(plan, program);
  CHECK(costs.cast_seconds > 0);
  CHECK(costs.cast_seconds < costs.product_seconds);
  CHECK(costs.most_bytes > 0);
}

TEST_CASE("a search keeps to the format, and products in it do not make answers worse") {
  ModelSpec m = load_model("llama-3.2-1b");
  m.layers = 4;
  const HardwareProfile hw = load_hardware("h100-80g");
  SearchOptions options;
  const SearchResult plain = search(m, hw, 65536, options);
  CHECK(plain.best.strategy.products == ProductFormat::dtype);
  options.products = ProductFormat::fp8;
  const SearchResult narrow = search(m, hw, 65536, options);
  CHECK(narrow.best.strategy.products == ProductFormat::fp8);
  CHECK(narrow.best.predicted.step_seconds < plain.best.predicted.step_seconds);
}

}  // namespace longspan
