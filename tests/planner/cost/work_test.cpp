#include "planner/cost/work.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "models/adapters.h"
#include "models/catalog.h"
#include "models/training.h"
#include "planner/strategy/presets.h"

using namespace longspan;

namespace {

ModelSpec llama() {
  ModelSpec m;
  m.name = "tiny";
  m.layers = 3;
  m.hidden = 64;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.ffn = 96;
  m.vocab = 160;
  m.max_positions = 4096;
  return m;
}

ModelSpec gpt() {
  ModelSpec m = llama();
  m.kv_heads = 4;
  m.norm = Norm::layernorm;
  m.activation = Activation::gelu;
  m.positions = Positions::learned;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = true;
  m.tied_embeddings = true;
  return m;
}

Program program_of(const ModelSpec& model, const Strategy& strategy, int64_t sequence) {
  return build_program({model, strategy, sequence, 1, DType::float32});
}

// FLOPs of all ops of a step; attention's backward does 10 per pair and element, of which 8 are the
// model's: the scores are recomputed.
double model_share(const Program& program) {
  double flops = 0;
  for (const Op& op : program.ops) {
    const double own = op.kind == OpKind::attention_backward ? 0.8 : 1;
    flops += own * flops_of(program, program.shapes[op.shape]);
  }
  return flops;
}

// Work per kernel of one shape, repeats included.
std::map<Kernel, double> work_by_kernel(const Program& program, const OpShape& shape) {
  std::vector<Primitive> work;
  work_of(program, shape, work);
  std::map<Kernel, double> total;
  for (const Primitive& p : work) total[p.kernel] += p.work * p.repeats;
  return total;
}

OpShape shape_of(OpKind kind) {
  OpShape shape;
  shape.kind = kind;
  return shape;
}

}  // namespace

TEST_CASE("attention's heads run side by side") {
  Strategy strategy;
  strategy.chunk_tokens = strategy.block_tokens = 16;
  for (const int64_t ulysses : {1, 2}) {
    strategy.parallel.ulysses = ulysses;
    const Program program = program_of(llama(), strategy, 64);
    for (const OpKind kind : {OpKind::attention_forward, OpKind::attention_backward}) {
      OpShape shape = shape_of(kind);
      shape.kv_chunks = 3;
      shape.diagonal = true;
      std::vector<Primitive> work;
      work_of(program, shape, work);
      REQUIRE(work.size() == 2);  // a rectangle and a triangle
      for (const Primitive& p : work) CHECK(p.batch == 4.0 / static_cast<double>(ulysses));
    }
  }
}

TEST_CASE("the ops of a step without recomputation do exactly the model's FLOPs") {
  for (const ModelSpec& model : {llama(), gpt()}) {
    const double expected = model_flops(model, 256).step();
    const Strategy whole = make_preset("baseline", model, 256);
    CHECK(model_share(program_of(model, whole, 256)) == Approx(expected).epsilon(1e-12));

    // Chunks, tiles and tiers do not change what is computed.
    Strategy chunked = whole;
    chunked.chunk_tokens = 32;
    chunked.block_tokens = 64;
    chunked.mlp_tile = 24;
    chunked.loss_tile = 40;
    chunked.projection_tile = 20;
    CHECK(model_share(program_of(model, chunked, 256)) == Approx(expected).epsilon(1e-12));
    chunked.kv = chunked.between_uses = Tier::host;
    for (const BackwardOrder order : {BackwardOrder::q_outer, BackwardOrder::kv_outer}) {
      chunked.backward_order = order;
      CHECK(model_share(program_of(model, chunked, 256)) == Approx(expected).epsilon(1e-12));
    }
  }
}

TEST_CASE("frozen weights have no products, and layers before the first trained one no backward") {
  for (const ModelSpec& base : {llama(), gpt()}) {
    for (const char* parts :
         {"layers", "head", "embedding,layers 0", "embedding,layers", "layers 1"}) {
      INFO(parts);
      const ModelSpec model = freeze(base, parse_frozen(parts, base));
      const double expected = model_flops(model, 256).step();
      // Norms have no products.
      const bool only_norm = model.tied_embeddings && std::string(parts) == "head";
      CHECK((expected < model_flops(base, 256).step()) == !only_norm);
      Strategy s = make_preset("baseline", base, 256);
      CHECK(model_share(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
      s.chunk_tokens = s.block_tokens = 32;
      CHECK(model_share(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
    }
  }
}

TEST_CASE("adapters add their products, and those of x A^T once more") {
  const ModelSpec model =
      with_adapters(llama(), {4, 8, parse_projections("q_proj,gate_proj,o_proj")});
  double again = 0;
  for (const AdapterShape& shape : adapter_shapes(model)) {
    again += 2.0 * 256 * 4 * static_cast<double>(shape.in * model.layers);
  }
  const double expected = model_flops(model, 256).step() + again;
  Strategy s = make_preset("baseline", model, 256);
  CHECK(model_share(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
  s.projection_tile = 20;
  s.mlp_tile = 24;
  s.chunk_tokens = s.block_tokens = 64;
  CHECK(model_share(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
}

TEST_CASE("an update moves the bytes of its moments") {
  const auto seconds_of = [](MomentFormat format) {
    Strategy s = make_preset("baseline", llama(), 256);
    s.moments = format;
    const Program program = program_of(llama(), s, 256);
    double work = 0;
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::adamw) continue;
      work += work_by_kernel(program, program.shapes[op.shape])[Kernel::adamw];
    }
    return work;
  };
  // 4 of the gradient, 8 of the parameter, 4 passes of a moment.
  const double whole = seconds_of(MomentFormat::float32);
  CHECK(seconds_of(MomentFormat::bfloat16) / whole == Approx(20.0 / 28).epsilon(1e-4));
  CHECK(seconds_of(MomentFormat::int8) / whole == Approx((16 + 1.0 / 16) / 28).epsilon(1e-4));
}

TEST_CASE("latent attention does the model's FLOPs, and its narrow vectors twice") {
  for (const int64_t query_rank : {0, 24}) {
    ModelSpec m = llama();
    m.kv_heads = m.heads;
    m.head_dim = 12;
    m.latent = LatentAttention{query_rank, 20, 4, 6};
    Strategy s;
    s.chunk_tokens = s.block_tokens = 64;
    const ModelFlops flops = model_flops(m, 64);
    const auto all = [&](const Strategy& strategy) {
      const Program program = program_of(m, strategy, 64);
      double sum = 0;
      for (const Op& op : program.ops) sum += flops_of(program, program.shapes[op.shape]);
      return sum;
    };
    CHECK(all(for_forward(s)) == Approx(flops.forward()).epsilon(1e-12));
    // The backward computes the scores again, of the queries' width, too.
    const double narrow = 2.0 * 64 * 64 * static_cast<double>(query_rank + 20 + 4);
    const double scores = 2.0 * causal_pairs(64) * 4 * 12;
    CHECK(all(s) == Approx(flops.step() + 3 * (narrow + scores)).epsilon(1e-12));
    // Frozen layers have no gradients of weights.
    m = freeze(m, parse_frozen("layers", m));
    const double frozen = model_flops(m, 64).step();
    CHECK(frozen < flops.step());
    CHECK(all(s) == Approx(frozen + 3 * (narrow + scores)).epsilon(1e-12));
  }
}

TEST_CASE("experts do the FLOPs of the active ones, and route twice") {
  ModelSpec model = llama();
  model.experts = Experts{.count = 6, .active = 2, .ffn = 24, .shared_ffn = 40};
  const double routes = 2.0 * 256 * static_cast<double>(model.layers * model.hidden * 6);
  const double expected = model_flops(model, 256).step() + routes;
  Strategy s = make_preset("baseline", model, 256);
  CHECK(model_share(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
  // A tile of one token has fewer rows than there are experts.
  for (const int64_t tile : {1, 24}) {
    s.mlp_tile = tile;
    CHECK(model_share(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
  }
  // Even routing: 512 rows over 6 experts.
  s.mlp_tile = 0;
  const Program program = program_of(model, s, 256);
  std::vector<Primitive> work;
  work_of(program, shape_of(OpKind::mlp_forward), work);
  const auto grouped = std::find_if(work.begin(), work.end(), [](const Primitive& p) {
    return p.kernel == Kernel::gemm_nt && p.shape[1] == 48;
  });
  REQUIRE(grouped != work.end());
  CHECK(grouped->shape[0] == Approx(512.0 / 6));
  CHECK(grouped->repeats == 6);
}

TEST_CASE("groups of heads compute and send together what all heads do at once") {
  ModelSpec wide = llama(), multi = gpt();
  wide.heads = multi.heads = multi.kv_heads = 16;
  for (const ModelSpec& model : {wide, multi}) {
    for (const int64_t ulysses : {1, 2, 4}) {
      const auto program = [&](int64_t groups) {
        Strategy s = make_preset("baseline", model, 256, 0, {1, 1, ulysses});
        s.head_groups = groups;
        return program_of(model, s, 256);
      };
      const auto sent = [](const Program& p) {
        int64_t bytes = 0;
        for (const Op& op : p.ops) bytes += sent_bytes(p, op);
        return bytes;
      };
      // The bytes of an exchange in the cost model are the bytes it sends.
      const auto costed = [](const Program& p) {
        double bytes = 0;
        for (const Op& op : p.ops) {
          if (op.kind != OpKind::all_to_all) continue;
          const auto work = work_by_kernel(p, p.shapes[op.shape]);
          CHECK(work.at(Kernel::exchange) == static_cast<double>(sent_bytes(p, op)));
          bytes += work.at(Kernel::exchange);
        }
        return bytes;
      };
      const Program whole = program(1);
      const double flops = model_flops(model, 256).step() / static_cast<double>(ulysses);
      CHECK(model_share(whole) == Approx(flops).epsilon(1e-12));
      for (int64_t groups = 2; groups <= 16 / ulysses; groups *= 2) {
        INFO(model.kv_heads << " K,V heads, " << ulysses << " ranks, " << groups << " groups");
        const Program grouped = program(groups);
        CHECK(model_share(grouped) == Approx(flops).epsilon(1e-12));
        CHECK(sent(grouped) == sent(whole));
        CHECK(costed(grouped) == costed(whole));
        // Every group norms its input again.
        const OpShape qkv = shape_of(OpKind::qkv_forward);
        CHECK(work_by_kernel(grouped, qkv)[Kernel::norm_forward] == 256.0 / ulysses * 64);
      }
    }
  }
}

TEST_CASE("checkpointing adds one forward of every layer but its MLP's last product") {
  const ModelSpec model = llama();
  const int64_t s = 256;
  const double plain = model_flops(model, s).step();
  const double again = model_share(program_of(model, make_preset("checkpoint", model, s), s));
  const ModelFlops flops = model_flops(model, s);
  const double tokens = static_cast<double>(s * model.layers);
  const double logits = 2.0 * static_cast<double>(s * model.hidden * model.vocab);
  const double down = 2.0 * tokens * static_cast<double>(model.hidden * model.ffn);
  CHECK(again - plain ==
        Approx(flops.dense_forward - logits - down + flops.attention_forward).epsilon(1e-12));
}

TEST_CASE("attention is split into the rectangle before the diagonal and the triangle on it") {
  const ModelSpec model = llama();
  Strategy s = make_preset("baseline", model, 256);
  s.chunk_tokens = s.block_tokens = 64;
  const Program program = program_of(model, s, 256);
  OpShape op = shape_of(OpKind::attention_forward);
  op.kv_chunks = 3;
  op.diagonal = true;
  std::vector<Primitive> work;
  work_of(program, op, work);
  REQUIRE(work.size() == 2);
  CHECK(work[0].kernel == Kernel::attention_forward);
  CHECK(work[0].shape == std::array<double, 3>{64, 128, 16});
  CHECK(work[0].work == 4.0 * 64 * 64 * 128);  // width, queries, keys
  CHECK(work[1].kernel == Kernel::attention_forward_diagonal);
  CHECK(work[1].shape == std::array<double, 3>{64, 64, 16});
  CHECK(work[1].work == 4.0 * 64 * (64 * 65 / 2));

  // Merged into a float sum: one narrow value read, two wide ones read and written.
  op.into_sum = true;
  work_of(program, op, work);
  REQUIRE(work.size() == 4);
  for (const int i : {2, 3}) {
    CHECK(work[i].kernel == Kernel::add);
    CHECK(work[i].work == 64.0 * 64);
  }
  op.into_sum = false;

  op.kind = OpKind::attention_backward;
  op.diagonal = false;
  work_of(program, op, work);
  REQUIRE(work.size() == 1);
  CHECK(work[0].kernel == Kernel::attention_backward);
  CHECK(work[0].work == 10.0 * 64 * 64 * 192);
}

TEST_CASE("a library's backward adds up narrow gradients of queries, keys and values") {
  const ModelSpec model = load_model("llama-3.1-8b");
  Strategy s;
  s.chunk_tokens = s.block_tokens = 4096;
  const Program program = build_program({model, s, 16384, 1, DType::bfloat16});
  OpShape op = shape_of(OpKind::attention_backward);
  op.kv_chunks = 3;
  op.diagonal = true;
  const std::map<Kernel, double> work = work_by_kernel(program, op);
  CHECK(work.at(Kernel::add) == 2.0 * (4096 * 4096 + 3 * 4096 * 2 * 1024));
  CHECK(flops_of(program, op) == 10.0 * 4096 * (2 * 4096 * 4096 + 4096 * 4097 / 2));
}

TEST_CASE("a deterministic backward is as many FLOP in tiles, and moves the scores' gradients") {
  const ModelSpec model = load_model("llama-3.1-8b");  // 32 heads: tiles of 4096
  constexpr double kChunk = 16384, kTile = 4096, kWidth = 4096;
  Strategy s = make_preset("fpdt", model, 65536, 16384);
  Program program = program_of(model, s, 65536);
  program.dtype = DType::bfloat16;
  OpShape op = shape_of(OpKind::attention_backward);
  op.kv_chunks = 2;
  op.diagonal = true;
  const auto flops = [](const std::vector<Primitive>& work) {
    double sum = 0;
    for (const Primitive& p : work) sum += counts_flops(p.kernel) ? p.work * p.repeats : 0;
    return sum;
  };
  std::vector<Primitive> plain, work;
  work_of(program, op, plain);
  program.strategy.deterministic = true;
  work_of(program, op, work);
  REQUIRE(work.size() == 3 + 4);  // and the sums of gradients
  CHECK(flops(work) == Approx(flops(plain)).epsilon(1e-12));
  CHECK(flops(plain) == Approx(10 * kWidth * (kChunk * kChunk + kChunk * (kChunk + 1) / 2)));
  CHECK(work[0].shape == std::array<double, 3>{kTile, kTile, 128});
  CHECK(work[1].repeats == kChunk / kTile);
  // All 4 x 4 tiles of the first chunk of keys; 6 of the second, and 4 on the diagonal.
  CHECK(work[2].kernel == Kernel::pass);
  CHECK(work[2].repeats == 16 + 6 + 4);
  CHECK(work[2].work == 4.0 * 32 * kTile * kTile);

  program.dtype = DType::float32;  // with our own kernels, which give the same bits each time
  work_of(program, op, work);
  CHECK(work.size() == plain.size() - 4);
}

TEST_CASE("tiles repeat the products at the tile's rows, a part of a tile as that part") {
  const ModelSpec model = llama();
  Strategy s = make_preset("baseline", model, 256);
  s.mlp_tile = 96;
  const Program program = program_of(model, s, 256);
  std::vector<Primitive> work;
  work_of(program, shape_of(OpKind::mlp_forward), work);
  const auto up = std::find_if(work.begin(), work.end(),
                               [](const Primitive& p) { return p.kernel == Kernel::gemm_nt; });
  REQUIRE(up != work.end());
  CHECK(up->shape == std::array<double, 3>{96, 192, 64});
  CHECK(up->repeats == Approx(256.0 / 96));
}

TEST_CASE("experts on several ranks do the FLOPs of those on one, in tiles") {
  ModelSpec model = llama();
  model.experts = Experts{.count = 8, .active = 2, .ffn = 24, .shared_ffn = 40};
  const auto flops = [](const Program& program) {
    double sum = 0;
    for (const Op& op : program.ops) sum += flops_of(program, program.shapes[op.shape]);
    return sum;
  };
  Strategy s = make_preset("checkpoint", model, 256, 0, {.data = 4});
  const double expected = flops(program_of(model, s, 256));
  s.parallel.expert = 4;
  for (const int64_t tile : {0, 100}) {
    s.mlp_tile = tile;
    CHECK(flops(program_of(model, s, 256)) == Approx(expected).epsilon(1e-12));
  }
  // 200 rows of a tile of 100 tokens, a quarter of them to each rank; of the last, 112.
  const Program even = program_of(model, s, 256);
  std::vector<Primitive> work;
  OpShape dispatch = shape_of(OpKind::dispatch);
  work_of(even, dispatch, work);
  REQUIRE(work.size() == 1);
  CHECK(work[0].shape == std::array<double, 3>{50 * 4.0 * 64, 1, 4});
  dispatch.last_tile = dispatch.with_gradients = true;
  work_of(even, dispatch, work);
  CHECK(work[0].shape == std::array<double, 3>{28 * (2 * 4.0 * 64 + 4), 1, 4});
  // The rank with most rows has half as many again as the mean, if that is stated.
  s.parallel.expert_imbalance = 150;
  const Program uneven = program_of(model, s, 256);
  for (const OpKind kind : {OpKind::experts_forward, OpKind::experts_backward}) {
    CHECK(flops_of(uneven, shape_of(kind)) == Approx(1.5 * flops_of(even, shape_of(kind))));
  }
  work_of(uneven, shape_of(OpKind::dispatch), work);
  CHECK(work[0].shape[0] == 75 * 4.0 * 64);
  CHECK(flops_of(uneven, shape_of(OpKind::shared_forward)) ==
        flops_of(even, shape_of(OpKind::shared_forward)));
}

TEST_CASE("what is saved or already normed is not computed again") {
  const ModelSpec model = llama();
  const Program program = program_of(model, make_preset("baseline", model, 128), 128);
  OpShape mlp = shape_of(OpKind::mlp_backward);
  CHECK(work_by_kernel(program, mlp)[Kernel::gemm_nt] == 2.0 * 128 * 192 * 64);
  mlp.saves_inner = true;
  CHECK(work_by_kernel(program, mlp).count(Kernel::gemm_nt) == 0);

  OpShape qkv = shape_of(OpKind::qkv_forward);
  CHECK(work_by_kernel(program, qkv)[Kernel::norm_forward] == 128.0 * 64);
  qkv.normed = true;
  CHECK(work_by_kernel(program, qkv).count(Kernel::norm_forward) == 0);
}

TEST_CASE("the two parts of a backward have the products of the whole") {
  for (const ModelSpec& model : {llama(), gpt()}) {
    const Program program = program_of(model, make_preset("baseline", model, 128), 128);
    const auto products = [&](OpKind kind) {
      OpShape shape = shape_of(kind);
      shape.saves_inner = true;
      return flops_of(program, shape);
    };
    using enum OpKind;
    CHECK(products(mlp_backward_input) == products(mlp_backward_weight));
    CHECK(products(mlp_backward_input) + products(mlp_backward_weight) == products(mlp_backward));
    CHECK(products(out_backward_input) + products(out_backward_weight) == products(out_backward));
    CHECK(products(qkv_backward_input) + products(qkv_backward_weight) == products(qkv_backward));
    CHECK(work_by_kernel(program, shape_of(qkv_backward_weight))[Kernel::bias_gradient] ==
          work_by_kernel(program, shape_of(qkv_backward))[Kernel::bias_gradient]);
    CHECK(work_by_kernel(program, shape_of(mlp_backward_weight))[Kernel::bias_gradient] ==
          work_by_kernel(program, shape_of(mlp_backward))[Kernel::bias_gradient]);
  }
}

TEST_CASE("features of the model cost what they add") {
  const Program plain = program_of(llama(), make_preset("baseline", llama(), 128), 128);
  const Program biased = program_of(gpt(), make_preset("baseline", gpt(), 128), 128);
  CHECK(work_by_kernel(plain, shape_of(OpKind::qkv_forward))[Kernel::rope] == 128.0 * (64 + 32));
  CHECK(work_by_kernel(biased, shape_of(OpKind::qkv_forward)).count(Kernel::rope) == 0);
  CHECK(work_by_kernel(biased, shape_of(OpKind::qkv_forward))[Kernel::add] == 128.0 * 3 * 64);
  CHECK(work_by_kernel(biased, shape_of(OpKind::qkv_backward))[Kernel::bias_gradient] ==
        128.0 * 3 * 64);
  CHECK(work_by_kernel(plain, shape_of(OpKind::qkv_backward)).count(Kernel::bias_gradient) == 0);

  ModelSpec normed = llama();
  normed.qk_norm = true;
  const Program q = program_of(normed, make_preset("baseline", normed, 128), 128);
  CHECK(work_by_kernel(q, shape_of(OpKind::qkv_backward))[Kernel::gemm_nt] ==
        2.0 * 128 * (64 + 32) * 64);
}

TEST_CASE("copies, files and states count the bytes and elements of their unit") {
  const ModelSpec model = llama();
  Strategy s = make_preset("baseline", model, 128);
  s.parameters = s.gradients = s.optimizer = Tier::host;
  const Program program = program_of(model, s, 128);
  OpShape copy = shape_of(OpKind::copy_h2d);
  copy.tensor = Tensor::params_layer;
  const double bytes = static_cast<double>(program.bytes[Tensor::params_layer]);
  CHECK(work_by_kernel(program, copy)[Kernel::copy_h2d] == bytes);
  copy.kind = OpKind::io_write;
  CHECK(work_by_kernel(program, copy)[Kernel::io_write] == bytes);
  OpShape adamw = shape_of(OpKind::adamw);
  adamw.tensor = Tensor::grads_layer;
  CHECK(work_by_kernel(program, adamw)[Kernel::adamw] == bytes / 4);
  CHECK(flops_of(program, adamw) == 0);
}

TEST_CASE("the ranks of a tensor group share a step's FLOPs evenly") {
  for (ModelSpec model : {llama(), gpt()}) {
    model.kv_heads = 4;
    Strategy s = make_preset("baseline", model, 256);
    s.parallel.tensor = 4;
    s.mlp_tile = 48;
    const double expected = model_flops(model, 256).step();
    for (const int64_t chunk : {256, 32}) {
      s.chunk_tokens = chunk;
      const Program program = build_program({model, s, 256, 1, DType::float32, 3});
      CHECK(4 * model_share(program) == Approx(expected).epsilon(1e-12));
    }
  }
}

TEST_CASE("what a tensor group moves and sums is its tokens and what it holds alike") {
  const ModelSpec model = gpt();
  Strategy s = make_preset("baseline", model, 256);
  s.parallel = {.data = 3, .zero = 1, .tensor = 2};
  const Program program = build_program({model, s, 256, 1, DType::float32, 5});
  const int64_t own = 128 * 64 * 4;  // bytes of half of the tokens
  const int64_t d = 64;
  std::map<std::string, int64_t> sent, count;
  for (const Op& op : program.ops) {
    if (!is_exchange(op.kind)) continue;
    const OpShape& shape = program.shapes[op.shape];
    const std::string what =
        std::string(name_of(op.kind)) + " " + std::string(name_of(shape.tensor));
    sent[what] += sent_bytes(program, op);
    ++count[what];
  }
  // In every layer: the inputs of attention and the MLP, forward and backward, and their gradients.
  CHECK(sent["all_gather h"] == 4 * 3 * own);
  CHECK(sent["all_gather dx"] == 2 * 3 * own);
  CHECK(sent["reduce_scatter sum"] == 4 * 3 * own);
  // A layer's norms and the biases of out and down, in two halves that are summed and gathered.
  CHECK(sent["sum_replicated grads layer"] == 3 * 6 * d * 4);
  CHECK(count["reduce_scatter grads layer"] == 3);
  CHECK(sent["reduce_scatter grads layer"] == 3 * 2 * program.bytes[Tensor::grads_layer_shard]);
  CHECK(sent["all_reduce loss"] == 5 * 8);
  CHECK(sent["all_reduce grad_norm"] == 5 * 8);

  OpShape gather = shape_of(OpKind::all_gather);
  gather.tensor = Tensor::h_own;
  CHECK(work_by_kernel(program, gather)[Kernel::gather] == own);
  std::vector<Primitive> work;
  gather.tensor = Tensor::params_layer_shard;
  work_of(program, gather, work);
  CHECK(work.at(0).shape[1] == 2);  // replicas are two ranks apart
  CHECK(work.at(0).shape[2] == 3);
  OpShape mlp = shape_of(OpKind::mlp_forward);
  mlp.partial = true;
  CHECK(work_by_kernel(program, mlp).count(Kernel::norm_forward) == 0);
  CHECK(work_by_kernel(program, mlp)[Kernel::add] == 256.0 * 48);  // the inner bias alone
  OpShape norm = shape_of(OpKind::norm_forward);
  CHECK(work_by_kernel(program, norm)[Kernel::norm_forward] == 128.0 * 64);
  CHECK(work_by_kernel(program, shape_of(OpKind::residual_forward))[Kernel::add] == 2 * 128.0 * 64);
}

TEST_CASE("every kernel has a name of its own") {
  std::map<std::string_view, int> names;
  for (int i = 0; i < kKernelCount; ++i) ++names[name_of(static_cast<Kernel>(i))];
  CHECK(names.size() == kKernelCount);
  CHECK(name_of(Kernel::io_write) == "io_write");
}
