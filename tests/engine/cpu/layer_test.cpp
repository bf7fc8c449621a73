// The blocks of a layer against the plain double implementation and its finite differences.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "models/tensor_slices.h"
#include "tests/engine/cpu/cpu_test.h"
#include "tests/length.h"

using namespace longspan;
using namespace longspan::cpu_test;
using cpu::BlockContext;
using cpu::make_block_context;
using longspan::testing::cases;

namespace {

// A layer with random weights in both precisions.
struct LayerCase {
  LayerCase(const ModelSpec& spec, ThreadPool& pool)
      : model(spec),
        context(make_block_context(model, pool)),
        unit(layer_weights(model, 21)),
        wide(widen(unit)) {}
  LayerCase(const LayerCase&) = delete;
  reference::Layer layer() const { return {model, context.layer, wide}; }

  ModelSpec model;
  BlockContext context;
  Floats unit;
  Doubles wide;
};

// Models large enough for several pieces and blocks.
ModelSpec wide_model() {
  ModelSpec m = llama();
  m.hidden = 300, m.head_dim = 40, m.ffn = 410;
  return m;
}

}  // namespace

TEST_CASE("offsets of a layer fill the unit that the models library lays out") {
  const ModelSpec model = GENERATE(llama(), gpt2(), scaled(), gemma(), olmo());
  ThreadPool pool(1);
  const LayerOffsets at = make_block_context(model, pool).layer;
  std::vector<int64_t> offsets;
  const ParameterUnit unit = parameter_units(model).at(1);
  for (const ParameterTensor& tensor : unit.tensors) {
    offsets.push_back(tensor.offset);
  }
  for (const int64_t offset :
       {at.norm1_weight, at.norm1_bias, at.qkv_weight, at.qkv_bias, at.q_norm, at.k_norm,
        at.out_weight, at.out_bias, at.norm2_weight, at.norm2_bias, at.up_weight, at.up_bias,
        at.down_weight, at.down_bias, at.out_norm1_weight, at.out_norm1_bias, at.out_norm2_weight,
        at.out_norm2_bias}) {
    if (offset >= 0) CHECK(std::count(offsets.begin(), offsets.end(), offset) == 1);
  }
  CHECK((at.norm1_bias >= 0) == (model.norm == Norm::layernorm));
  CHECK((at.qkv_bias >= 0) == model.qkv_bias);
  CHECK((at.norm1_weight >= 0) == model.norms_inputs());
  CHECK((at.out_norm2_weight >= 0) == model.norms_outputs());
  CHECK((at.k_norm >= 0) == model.qk_norm);
  CHECK((at.down_bias >= 0) == model.mlp_bias);
}

TEST_CASE("norm1 forward and backward") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), wide_model());
  const int64_t n = spec.hidden > 100 ? 3 : 7;
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(22);
  const int64_t d = spec.hidden;
  Floats x = random.normal(n * d);
  for (int64_t j = 0; j < d; ++j) x[j] += 3;  // a row with a mean
  const Floats dh = random.normal(n * d), start = random.normal(n * d);
  Doubles wide_x = widen(x);
  Guarded h(n * d);
  cpu::norm1_forward(c.context, c.unit.data(), x.data(), n, h.data());
  CHECK(error_of(h.floats(), reference::norm1(c.layer(), wide_x)) < kForwardError);
  CHECK(h.intact());

  const auto f = [&] { return reference::dot(reference::norm1(c.layer(), wide_x), widen(dh)); };
  Guarded dx(start);
  const Floats gradient_start = random.normal(static_cast<int64_t>(c.unit.size()));
  Guarded gradient(gradient_start);
  cpu::norm1_backward(c.context, c.unit.data(), x.data(), dh.data(), n, dx.data(), dx.data(),
                      gradient.data());
  CHECK(error_of(dx.floats(), plus(start, reference::differences(f, wide_x))) < kGradientError);
  if (d < 100) {
    const Doubles want = reference::differences(f, c.wide);
    CHECK(error_of(gradient.floats(), plus(gradient_start, want)) < kGradientError);
  }
  CHECK((dx.intact() && gradient.intact()));
}

TEST_CASE("norm of many rows sums the gradients of its weights accurately") {
  ThreadPool pool(2);
  LayerCase c(gpt2(), pool);
  const int64_t n = 3000, d = c.model.hidden;
  Random random(23);
  const Floats x = random.normal(n * d), dh = random.normal(n * d);
  Floats dx(n * d), gradient(c.unit.size());
  cpu::norm1_backward(c.context, c.unit.data(), x.data(), dh.data(), n, dx.data(), dx.data(),
                      gradient.data());
  Doubles ones(d, 1.0);
  const Doubles xhat = reference::norm(c.model, ones.data(), nullptr, widen(x));
  Doubles want(2 * d);
  for (int64_t i = 0; i < n * d; ++i) {
    want[i % d] += xhat[i] * dh[i];
    want[d + i % d] += dh[i];
  }
  CHECK(error_of(Floats(gradient.begin(), gradient.begin() + 2 * d), want) < kGradientError);
}

TEST_CASE("qkv forward for every tile, from x and from its norm") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled(), wide_model(), gemma(), olmo());
  const bool normed = GENERATE(false, true);
  const int64_t n = 11;
  const int64_t tile = GENERATE(int64_t{1}, int64_t{4}, int64_t{11}, int64_t{100});
  const bool rope = spec.positions == Positions::rope;
  const int64_t position0 = rope ? GENERATE(int64_t{0}, int64_t{60}, int64_t{3000000}) : int64_t{5};
  CAPTURE(spec.name, normed, tile, position0);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  const Floats x = Random(24).normal(n * spec.hidden);
  Guarded q(n * spec.attention_width()), k(n * spec.kv_width()), v(n * spec.kv_width());
  Guarded workspace(cpu::qkv_forward_workspace(spec, n, tile));
  cpu::qkv_forward(c.context, c.unit.data(), x.data(), normed, n, position0, tile, q.data(),
                   k.data(), v.data(), workspace.data());
  const reference::Qkv want = reference::qkv(c.layer(), widen(x), normed, position0);
  CHECK(error_of(q.floats(), want.q) < kForwardError);
  CHECK(error_of(k.floats(), want.k) < kForwardError);
  CHECK(error_of(v.floats(), want.v) < kForwardError);
  CHECK((q.intact() && k.intact() && v.intact() && workspace.intact()));
}

TEST_CASE("rotations stay accurate billions of tokens out") {
  ModelSpec spec = llama();
  spec.qk_norm = false, spec.head_dim = 64;
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  const int64_t n = 150;
  const int64_t position0 = (int64_t{1} << 31) - 70;
  const Floats x = Random(25).normal(n * spec.hidden);
  Floats q(n * spec.attention_width()), k(n * spec.kv_width()), v(n * spec.kv_width());
  Floats workspace(cpu::qkv_forward_workspace(spec, n, n));
  cpu::qkv_forward(c.context, c.unit.data(), x.data(), false, n, position0, n, q.data(), k.data(),
                   v.data(), workspace.data());
  const reference::Qkv want = reference::qkv(c.layer(), widen(x), false, position0);
  CHECK(error_of(q, want.q) < kForwardError);
  CHECK(error_of(k, want.k) < kForwardError);
}

TEST_CASE("qkv backward for every tile") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled(), gemma(), olmo());
  const bool normed = GENERATE(false, true);
  const int64_t tile = GENERATE(int64_t{1}, int64_t{2}, int64_t{5});
  CAPTURE(spec.name, normed, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(26);
  const int64_t n = 5, d = spec.hidden, position0 = 40;
  const Floats x = random.normal(n * d), start = random.normal(n * d);
  const Floats gq = random.normal(n * spec.attention_width());
  const Floats gk = random.normal(n * spec.kv_width()), gv = random.normal(n * spec.kv_width());
  Guarded dq(gq), dk(gk), dv(gv);
  Guarded dx = normed ? Guarded(n * d) : Guarded(start);
  const Floats gradient_start = random.normal(static_cast<int64_t>(c.unit.size()));
  Guarded gradient(gradient_start);
  Guarded workspace(cpu::qkv_backward_workspace(spec, n, tile));
  cpu::qkv_backward(c.context, c.unit.data(), x.data(), normed, n, position0, tile, dq.data(),
                    dk.data(), dv.data(), dx.data(), gradient.data(), workspace.data());
  Doubles wide_x = widen(x);
  const Doubles wq = widen(gq), wk = widen(gk), wv = widen(gv);
  const auto f = [&] {
    const reference::Qkv r = reference::qkv(c.layer(), wide_x, normed, position0);
    return reference::dot(r.q, wq) + reference::dot(r.k, wk) + reference::dot(r.v, wv);
  };
  const Doubles want = reference::differences(f, wide_x);
  CHECK(error_of(dx.floats(), normed ? want : plus(start, want)) < kGradientError);
  CHECK(error_of(gradient.floats(), plus(gradient_start, reference::differences(f, c.wide))) <
        kGradientError);
  CHECK((dx.intact() && gradient.intact() && workspace.intact()));
  CHECK((dq.intact() && dk.intact() && dv.intact()));
}

TEST_CASE("the two parts of the qkv backward for every tile") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled(), gemma(), olmo());
  const int64_t tile = GENERATE(int64_t{1}, int64_t{2}, int64_t{5});
  CAPTURE(spec.name, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(34);
  const int64_t n = 5, position0 = 40;
  const Floats h = random.normal(n * spec.hidden);
  const Floats gq = random.normal(n * spec.attention_width());
  const Floats gk = random.normal(n * spec.kv_width()), gv = random.normal(n * spec.kv_width());
  Guarded dq(gq), dk(gk), dv(gv), dh(n * spec.hidden);
  Guarded dqkv(n * (spec.attention_width() + 2 * spec.kv_width()));
  const Floats start = random.normal(static_cast<int64_t>(c.unit.size()));
  Guarded gradient(start);
  Guarded workspace(cpu::qkv_backward_input_workspace(spec, n, tile));
  cpu::qkv_backward_input(c.context, c.unit.data(), h.data(), n, position0, tile, dq.data(),
                          dk.data(), dv.data(), dqkv.data(), dh.data(), gradient.data(),
                          workspace.data());
  cpu::qkv_backward_weight(c.context, h.data(), n, dqkv.data(), gradient.data());
  Doubles wide_h = widen(h);
  const auto f = [&] {
    const reference::Qkv r = reference::qkv(c.layer(), wide_h, true, position0);
    return reference::dot(r.q, widen(gq)) + reference::dot(r.k, widen(gk)) +
           reference::dot(r.v, widen(gv));
  };
  CHECK(error_of(dh.floats(), reference::differences(f, wide_h)) < kGradientError);
  CHECK(error_of(gradient.floats(), plus(start, reference::differences(f, c.wide))) <
        kGradientError);
  CHECK((dqkv.intact() && dh.intact() && gradient.intact() && workspace.intact()));
}

TEST_CASE("groups of heads project, and differentiate, together what all heads do") {
  // Two groups for each of two ranks; K,V heads that divide in the same way, or one that they
  // share.
  ModelSpec grouped = llama(), multi = gpt2(), shared = scaled();
  grouped.heads = multi.heads = multi.kv_heads = shared.heads = 8;
  grouped.kv_heads = 4;
  const ModelSpec spec = GENERATE_COPY(grouped, multi, shared);
  const bool shares_kv = spec.kv_heads == 1;
  const int64_t tile = GENERATE(int64_t{2}, int64_t{5});
  CAPTURE(spec.name, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(33);
  const int64_t n = 5, d = spec.hidden, dim = spec.head_dim;
  const Floats x = random.normal(n * d), start = random.normal(n * d);
  const int64_t a = spec.attention_width(), g = spec.kv_width();
  const Floats gq = random.normal(n * a), gk = random.normal(n * g), gv = random.normal(n * g);
  const float* unit = c.unit.data();

  Floats q(n * a), k(n * g), v(n * g), workspace(cpu::qkv_backward_workspace(spec, n, tile));
  cpu::qkv_forward(c.context, unit, x.data(), false, n, 7, tile, q.data(), k.data(), v.data(),
                   workspace.data());
  Floats dq = gq, dk = gk, dv = gv, dx = start, gradient(c.unit.size());
  cpu::qkv_backward(c.context, unit, x.data(), false, n, 7, tile, dq.data(), dk.data(), dv.data(),
                    dx.data(), gradient.data(), workspace.data());

  // The columns of a group of [n, heads * D].
  const auto part = [&](const Floats& all, int64_t heads, const HeadRuns& runs) {
    Floats columns;
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t run = 0; run < runs.runs; ++run) {
        const auto from = all.begin() + (row * heads + run * heads / runs.runs + runs.first) * dim;
        columns.insert(columns.end(), from, from + runs.count * dim);
      }
    }
    return columns;
  };
  Floats dx_sum = start, gradient_sum(c.unit.size());
  for (int64_t group = 0; group < 2; ++group) {
    const int64_t kv = spec.kv_heads / 4;
    const HeadGroup heads{{2, 2 * group, 2},
                          shares_kv ? HeadRuns{1, 0, 1} : HeadRuns{2, kv * group, kv}};
    const Floats part_k = part(k, spec.kv_heads, heads.kv),
                 part_v = part(v, spec.kv_heads, heads.kv);
    Guarded q_got(n * a / 2), k_got(part_k.size()), v_got(part_v.size());
    const bool makes_kv = !shares_kv || group == 0;
    Guarded scratch(cpu::qkv_backward_workspace(spec, n, tile, 4));
    cpu::qkv_forward(c.context, unit, x.data(), false, n, 7, tile, q_got.data(),
                     makes_kv ? k_got.data() : nullptr, makes_kv ? v_got.data() : nullptr,
                     scratch.data(), heads);
    CHECK(error_of(q_got.floats(), widen(part(q, 8, heads.q))) < kForwardError);
    if (makes_kv) {
      CHECK(error_of(k_got.floats(), widen(part_k)) < kForwardError);
      CHECK(error_of(v_got.floats(), widen(part_v)) < kForwardError);
    }
    CHECK((q_got.intact() && k_got.intact() && v_got.intact()));

    const bool has_dkv = !shares_kv || group == 1;
    Guarded dq_part(part(gq, 8, heads.q));
    Guarded dk_part(part(gk, spec.kv_heads, heads.kv)), dv_part(part(gv, spec.kv_heads, heads.kv));
    cpu::qkv_backward(c.context, unit, x.data(), false, n, 7, tile, dq_part.data(),
                      has_dkv ? dk_part.data() : nullptr, has_dkv ? dv_part.data() : nullptr,
                      dx_sum.data(), gradient_sum.data(), scratch.data(), heads);
    CHECK((scratch.intact() && dq_part.intact() && dk_part.intact() && dv_part.intact()));
  }
  CHECK(error_of(dx_sum, widen(dx)) < kForwardError);
  CHECK(error_of(gradient_sum, widen(gradient)) < kForwardError);
}

TEST_CASE("the output projection, in place and not") {
  ModelSpec narrow_head = gpt2();
  ModelSpec wide_head = scaled();
  wide_head.head_dim = 300, wide_head.hidden = 9;  // wider than a block of the backward
  const ModelSpec spec = GENERATE_COPY(llama(), narrow_head, scaled(), wide_head, gemma(), olmo());
  const bool in_place = GENERATE(false, true);
  const int64_t tile = GENERATE(int64_t{2}, int64_t{4}, int64_t{6});
  CAPTURE(spec.name, in_place, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(27);
  const int64_t n = 6, d = spec.hidden, a = spec.attention_width();
  const Floats x = random.normal(n * d), o = random.normal(n * a), dy = random.normal(n * d);
  Doubles wide_o = widen(o);
  Guarded y = in_place ? Guarded(x) : Guarded(n * d);
  Guarded workspace(cpu::out_workspace(spec, n, tile));
  cpu::out_forward(c.context, c.unit.data(), in_place ? y.data() : x.data(), o.data(), n, tile,
                   y.data(), workspace.data());
  CHECK(error_of(y.floats(), reference::out(c.layer(), widen(x), wide_o)) < kForwardError);

  const auto f = [&] {
    return reference::dot(reference::out(c.layer(), widen(x), wide_o), widen(dy));
  };
  Guarded d_o = in_place ? Guarded(o) : Guarded(n * a);
  Guarded delta(n * spec.heads);
  const Floats start = random.normal(static_cast<int64_t>(c.unit.size()));
  Guarded gradient(start);
  cpu::out_backward(c.context, c.unit.data(), dy.data(), in_place ? d_o.data() : o.data(), n, tile,
                    d_o.data(), delta.data(), gradient.data(), workspace.data());
  const Doubles want = reference::differences(f, wide_o);
  CHECK(error_of(d_o.floats(), want) < kGradientError);
  CHECK(error_of(delta.floats(), reference::row_dots(spec, want, wide_o)) < kGradientError);
  if (spec.hidden != 9) {
    CHECK(error_of(gradient.floats(), plus(start, reference::differences(f, c.wide))) <
          kGradientError);
  }
  CHECK((y.intact() && d_o.intact() && delta.intact() && gradient.intact() && workspace.intact()));
}

TEST_CASE("the mlp forward for every tile, with and without its inner rows") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled(), wide_model(), gemma(), olmo());
  const bool saves = GENERATE(false, true);
  const bool in_place = GENERATE(false, true);
  const int64_t n = 9;
  const int64_t tile = GENERATE(int64_t{1}, int64_t{4}, int64_t{9}, int64_t{50});
  CAPTURE(spec.name, saves, in_place, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  const int64_t w = spec.inner_width();
  const Floats y = Random(28).normal(n * spec.hidden);
  Guarded out = in_place ? Guarded(y) : Guarded(n * spec.hidden);
  Guarded inner(n * w);
  Guarded workspace(cpu::mlp_forward_workspace(spec, n, tile, saves));
  cpu::mlp_forward(c.context, c.unit.data(), in_place ? out.data() : y.data(), n, tile, out.data(),
                   saves ? inner.data() : nullptr, workspace.data());
  Doubles want_inner;
  CHECK(error_of(out.floats(), reference::mlp(c.layer(), widen(y), &want_inner)) < kForwardError);
  if (saves) CHECK(error_of(inner.floats(), want_inner) < kForwardError);
  CHECK((out.intact() && inner.intact() && workspace.intact()));
}

TEST_CASE("the mlp backward for every tile, from saved and recomputed inner rows") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled(), gemma(), olmo());
  const bool saved = GENERATE(false, true);
  const int64_t n = 5;
  const int64_t tile = GENERATE(int64_t{1}, int64_t{2}, int64_t{5}, int64_t{9});
  CAPTURE(spec.name, saved, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(29);
  const Floats y = random.normal(n * spec.hidden), g = random.normal(n * spec.hidden);
  Doubles wide_y = widen(y), want_inner;
  const Doubles wide_g = widen(g);
  reference::mlp(c.layer(), wide_y, &want_inner);
  Guarded inner(Floats(want_inner.begin(), want_inner.end()));
  Guarded dy(g);
  const Floats start = random.normal(static_cast<int64_t>(c.unit.size()));
  Guarded gradient(start);
  Guarded workspace(cpu::mlp_backward_workspace(spec, n, tile, saved));
  cpu::mlp_backward(c.context, c.unit.data(), y.data(), saved ? inner.data() : nullptr, n, tile,
                    dy.data(), gradient.data(), workspace.data());
  const auto f = [&] { return reference::dot(reference::mlp(c.layer(), wide_y), wide_g); };
  CHECK(error_of(dy.floats(), reference::differences(f, wide_y)) < kGradientError);
  CHECK(error_of(gradient.floats(), plus(start, reference::differences(f, c.wide))) <
        kGradientError);
  CHECK((dy.intact() && inner.intact() && gradient.intact() && workspace.intact()));
}

TEST_CASE("the two parts of the mlp backward, with norm and residual as ops of their own") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled());
  const bool saved = GENERATE(false, true);
  const int64_t n = 5, d = spec.hidden;
  const int64_t tile = GENERATE(int64_t{1}, int64_t{2}, int64_t{5}, int64_t{9});
  CAPTURE(spec.name, saved, tile);
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(35);
  const Floats y = random.normal(n * d), dy = random.normal(n * d);
  Doubles wide_y = widen(y), want_inner;
  reference::mlp(c.layer(), wide_y, &want_inner);
  Guarded inner = saved ? Guarded(Floats(want_inner.begin(), want_inner.end()))
                        : Guarded(static_cast<int64_t>(want_inner.size()));
  Guarded h(n * d), act(n * spec.ffn), dh(n * d), sum(n * d);
  const Floats start = random.normal(static_cast<int64_t>(c.unit.size()));
  Guarded gradient(start);
  Guarded workspace(cpu::mlp_backward_input_workspace(spec, n, tile));
  const float* unit = c.unit.data();
  cpu::norm2_forward(c.context, unit, y.data(), n, h.data());
  cpu::mlp_backward_input(c.context, unit, saved ? nullptr : h.data(), dy.data(), n, tile,
                          inner.data(), act.data(), dh.data(), workspace.data());
  cpu::norm2_backward(c.context, unit, y.data(), dh.data(), n, dy.data(), sum.data(),
                      gradient.data());
  cpu::mlp_backward_weight(c.context, h.data(), dy.data(), inner.data(), act.data(), n,
                           gradient.data());
  const auto f = [&] { return reference::dot(reference::mlp(c.layer(), wide_y), widen(dy)); };
  CHECK(error_of(sum.floats(), reference::differences(f, wide_y)) < kGradientError);
  CHECK(error_of(gradient.floats(), plus(start, reference::differences(f, c.wide))) <
        kGradientError);
  CHECK((inner.intact() && h.intact() && act.intact() && dh.intact() && sum.intact()));
  CHECK((gradient.intact() && workspace.intact()));
}

namespace {

// A layer as one rank of a tensor group of two holds it: its slice of every tensor, and its own
// rows [first, first + rows) of n.
struct GroupMember {
  GroupMember(const LayerCase& whole, int64_t index, ThreadPool& pool, int64_t n)
      : model(narrow_model(whole.model, 2)),
        context(make_block_context(model, pool)),
        runs(slice_runs(whole.model, parameter_units(whole.model).at(1), 2, index)),
        rows(n / 2),
        first(index * rows) {
    for (const SliceRun& run : runs) {
      const auto from = whole.unit.begin() + run.whole;
      unit.insert(unit.end(), from, from + run.count);
    }
    gradient.resize(unit.size());
  }
  GroupMember(const GroupMember&) = delete;
  /// Adds its gradients to those of the whole unit: sliced ones are its own, replicated ones a
  /// partial sum.
  void add_gradients(Floats& whole) const {
    for (const SliceRun& run : runs) {
      for (int64_t i = 0; i < run.count; ++i) whole[run.whole + i] += gradient[run.narrow + i];
    }
  }

  ModelSpec model;
  BlockContext context;
  std::vector<SliceRun> runs;
  int64_t rows, first;
  Floats unit, gradient;
};

ModelSpec evenly_cut(ModelSpec model) {
  model.heads = 4;
  model.kv_heads = std::max<int64_t>(2, model.kv_heads / 2 * 2);
  model.ffn = model.ffn / 2 * 2;
  return model;
}

}  // namespace

TEST_CASE("the parts of a tensor group's mlp add up to the mlp") {
  const ModelSpec spec = evenly_cut(GENERATE(llama(), gpt2(), scaled()));
  const bool saved = GENERATE(false, true);
  const int64_t tile = GENERATE(int64_t{2}, int64_t{6});
  CAPTURE(spec.name, saved, tile);
  const int64_t n = 6, d = spec.hidden;
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(34);
  const Floats y = random.normal(n * d), g = random.normal(n * d);
  Doubles wide_y = widen(y);
  const Doubles wide_g = widen(g);
  GroupMember a(c, 0, pool, n), b(c, 1, pool, n);
  const int64_t w = spec.activation == Activation::swiglu ? spec.ffn : spec.ffn / 2;

  Floats sum(n * d), out(n * d), d_sum(n * d), dy = g, gradient(c.unit.size());
  for (GroupMember* m : {&a, &b}) {
    Guarded part(n * d), inner(n * w), d_part(g);
    cpu::norm2_forward(m->context, m->unit.data(), y.data(), n, part.data());
    const Floats h = part.floats();
    Guarded workspace(cpu::mlp_forward_workspace(m->model, n, tile, saved, true));
    cpu::mlp_forward(m->context, m->unit.data(), part.data(), n, tile, part.data(),
                     saved ? inner.data() : nullptr, workspace.data(), true);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part.floats()[i];
    CHECK((part.intact() && inner.intact() && workspace.intact()));

    Guarded scratch(cpu::mlp_backward_workspace(m->model, n, tile, saved, true));
    cpu::mlp_backward(m->context, m->unit.data(), h.data(), saved ? inner.data() : nullptr, n, tile,
                      d_part.data(), m->gradient.data(), scratch.data(), true);
    for (size_t i = 0; i < d_sum.size(); ++i) d_sum[i] += d_part.floats()[i];
    CHECK((d_part.intact() && inner.intact() && scratch.intact()));
  }
  for (GroupMember* m : {&a, &b}) {
    const int64_t at = m->first * d;
    cpu::residual_forward(m->context, m->unit.data(), true, y.data() + at, sum.data() + at, m->rows,
                          out.data() + at);
    if (spec.mlp_bias) {
      cpu::residual_backward(m->context, m->unit.data(), true, g.data() + at, m->rows, nullptr,
                             m->gradient.data());
    }
    cpu::norm2_backward(m->context, m->unit.data(), y.data() + at, d_sum.data() + at, m->rows,
                        dy.data() + at, dy.data() + at, m->gradient.data());
    m->add_gradients(gradient);
  }
  CHECK(error_of(out, reference::mlp(c.layer(), wide_y)) < kForwardError);
  const auto f = [&] { return reference::dot(reference::mlp(c.layer(), wide_y), wide_g); };
  CHECK(error_of(dy, reference::differences(f, wide_y)) < kGradientError);
  CHECK(error_of(gradient, reference::differences(f, c.wide)) < kGradientError);
}

TEST_CASE("the parts of a tensor group's output projection add up to the projection") {
  const ModelSpec spec = evenly_cut(GENERATE(llama(), gpt2(), scaled()));
  CAPTURE(spec.name);
  const int64_t n = 6, d = spec.hidden, a_width = spec.attention_width(), share = a_width / 2;
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(35);
  const Floats x = random.normal(n * d), o = random.normal(n * a_width), dy = random.normal(n * d);
  Doubles wide_o = widen(o);
  GroupMember a(c, 0, pool, n), b(c, 1, pool, n);

  Floats sum(n * d), y(n * d), d_o(n * a_width), gradient(c.unit.size());
  for (GroupMember* m : {&a, &b}) {
    const int64_t column = m == &a ? 0 : share;
    Floats own(n * share), d_own(n * share), delta(n * m->model.heads);
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(o.begin() + i * a_width + column, share, own.begin() + i * share);
    }
    Guarded part(n * d);
    cpu::out_forward(m->context, m->unit.data(), nullptr, own.data(), n, n, part.data(), nullptr);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part.floats()[i];
    CHECK(part.intact());
    cpu::out_backward(m->context, m->unit.data(), dy.data(), own.data(), n, n, d_own.data(),
                      delta.data(), m->gradient.data(), nullptr, true);
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(d_own.begin() + i * share, share, d_o.begin() + i * a_width + column);
    }
  }
  for (GroupMember* m : {&a, &b}) {
    const int64_t at = m->first * d;
    std::copy_n(x.begin() + at, m->rows * d, y.begin() + at);
    cpu::residual_forward(m->context, m->unit.data(), false, y.data() + at, sum.data() + at,
                          m->rows, y.data() + at);
    if (spec.attention_out_bias) {
      cpu::residual_backward(m->context, m->unit.data(), false, dy.data() + at, m->rows, nullptr,
                             m->gradient.data());
    }
    m->add_gradients(gradient);
  }
  CHECK(error_of(y, reference::out(c.layer(), widen(x), wide_o)) < kForwardError);
  const auto f = [&] {
    return reference::dot(reference::out(c.layer(), widen(x), wide_o), widen(dy));
  };
  CHECK(error_of(d_o, reference::differences(f, wide_o)) < kGradientError);
  CHECK(error_of(gradient, reference::differences(f, c.wide)) < kGradientError);
}

TEST_CASE("many rows at once give the sum of the rows one by one") {
  // The other tests compare single rows with the definition; this one covers every piece and block.
  ModelSpec spec = GENERATE(llama(), gpt2(), scaled());
  spec.max_positions = 4096;
  const int64_t n = 1500, d = spec.hidden, a = spec.attention_width(), g = spec.kv_width();
  ThreadPool pool(2);
  LayerCase c(spec, pool);
  Random random(33);
  const Floats x = random.normal(n * d), o = random.normal(n * a), dy = random.normal(n * d);
  const Floats gq = random.normal(n * a), gk = random.normal(n * g), gv = random.normal(n * g);
  struct Rows {
    Floats d_o, delta, dx, gradient;
  };
  const auto run = [&](int64_t first, int64_t rows, int64_t tile) {
    const auto part = [&](const Floats& all, int64_t width) {
      return Floats(all.begin() + first * width, all.begin() + (first + rows) * width);
    };
    const Floats x_part = part(x, d);
    Floats q = part(gq, a), k = part(gk, g), v = part(gv, g);
    Rows r{part(o, a), Floats(rows * spec.heads), part(dy, d), Floats(c.unit.size())};
    Floats workspace(cpu::mlp_backward_workspace(spec, rows, tile, false) +
                     cpu::qkv_backward_workspace(spec, rows, tile));
    cpu::out_backward(c.context, c.unit.data(), r.dx.data(), r.d_o.data(), rows, tile, r.d_o.data(),
                      r.delta.data(), r.gradient.data(), workspace.data());
    cpu::mlp_backward(c.context, c.unit.data(), x_part.data(), nullptr, rows, tile, r.dx.data(),
                      r.gradient.data(), workspace.data());
    cpu::qkv_backward(c.context, c.unit.data(), x_part.data(), false, rows, first, tile, q.data(),
                      k.data(), v.data(), r.dx.data(), r.gradient.data(), workspace.data());
    return r;
  };
  Rows want;
  Doubles gradient(c.unit.size());
  for (int64_t row = 0; row < n; ++row) {
    const Rows one = run(row, 1, 1);
    append(want.d_o, one.d_o);
    append(want.delta, one.delta);
    append(want.dx, one.dx);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += one.gradient[i];
  }
  const int64_t tile = GENERATE(int64_t{1500}, int64_t{1401}, int64_t{64});
  const Rows got = run(0, n, tile);
  CHECK(error_of(got.d_o, widen(want.d_o)) < kGradientError);
  CHECK(error_of(got.delta, widen(want.delta)) < kGradientError);
  CHECK(error_of(got.dx, widen(want.dx)) < kGradientError);
  // Tensor by tensor, so that a large one does not hide a small one.
  const ParameterUnit unit = parameter_units(spec).at(1);
  for (const ParameterTensor& tensor : unit.tensors) {
    CAPTURE(tensor.name, tile);
    const auto from = tensor.offset;
    const auto to = tensor.offset + tensor.elements;
    const Floats part(got.gradient.begin() + from, got.gradient.begin() + to);
    CHECK(error_of(part, Doubles(gradient.begin() + from, gradient.begin() + to)) < kGradientError);
  }
}

TEST_CASE("activations far from zero neither overflow nor turn to NaN") {
  const ModelSpec spec = GENERATE(llama(), gpt2());
  ThreadPool pool(1);
  LayerCase c(spec, pool);
  for (float& v : c.unit) v *= 100;
  c.wide = widen(c.unit);
  const Floats y = Random(30).normal(4 * spec.hidden);
  Floats out(y.size());
  Floats workspace(cpu::mlp_forward_workspace(spec, 4, 4, false));
  cpu::mlp_forward(c.context, c.unit.data(), y.data(), 4, 4, out.data(), nullptr, workspace.data());
  CHECK(error_of(out, reference::mlp(c.layer(), widen(y))) < kForwardError);
}

TEST_CASE("embeddings, their gradients and bad tokens") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), gemma());
  const bool learned = spec.positions == Positions::learned;
  ThreadPool pool(2);
  const BlockContext context = make_block_context(spec, pool);
  Random random(31);
  const int64_t n = 30, d = spec.hidden, position0 = 20;
  const int64_t elements = parameter_units(spec).at(0).elements;
  const Floats unit = random.normal(elements), dx = random.normal(n * d);
  const Floats start = random.normal(elements);
  std::vector<int32_t> tokens = random.below(n, spec.vocab);
  tokens[3] = tokens[4] = tokens[29] = tokens[0];
  Doubles want_x(n * d), want = widen(start);
  for (int64_t i = 0; i < n * d; ++i) {
    const int64_t at = tokens[i / d] * d + i % d;
    const int64_t position = spec.vocab * d + (position0 + i / d) * d + i % d;
    want_x[i] = spec.embedding_scale * unit[at] + (learned ? unit[position] : 0);
    want[at] += spec.embedding_scale * dx[i];
    if (learned) want[position] += dx[i];
  }
  Guarded x(n * d), gradient(start);
  cpu::embed_forward(context, unit.data(), tokens.data(), n, position0, x.data());
  cpu::embed_backward(context, tokens.data(), dx.data(), n, position0, gradient.data());
  CHECK(error_of(x.floats(), want_x) < kForwardError);
  CHECK(error_of(gradient.floats(), want) < kGradientError);
  CHECK((x.intact() && gradient.intact()));

  tokens[7] = GENERATE(-1, 1000);
  CHECK_THROWS_AS(cpu::embed_forward(context, unit.data(), tokens.data(), n, 0, x.data()), Error);
  if (learned) {
    tokens[7] = 0;
    CHECK_THROWS_AS(cpu::embed_forward(context, unit.data(), tokens.data(), n,
                                       spec.max_positions - n + 1, x.data()),
                    Error);
  }
}

TEST_CASE("the bits of a layer do not depend on the pool", "[slow]") {
  ModelSpec biased = gpt2();
  biased.hidden = 260, biased.head_dim = 100, biased.ffn = 900;
  const ModelSpec spec = GENERATE_COPY(wide_model(), biased);
  Random random(32);
  const int64_t n = cases(140, 700), tile = cases(67, 333), d = spec.hidden;
  const Floats x = random.normal(n * d), o = random.normal(n * spec.attention_width());
  const Floats gk = random.normal(n * spec.kv_width());
  CHECK(same_bits_on_every_pool([&](ThreadPool& pool) {
    const LayerCase c(spec, pool);
    const float* unit = c.unit.data();
    Floats gradient(c.unit.size()), dx = x, y(n * d), out(n * d), delta(n * spec.heads);
    Floats q(o.size()), k(gk.size()), v(gk.size()), dq = o, dk = gk, dv = gk, d_o(o.size());
    Floats workspace(cpu::mlp_backward_workspace(spec, n, tile, false) +
                     cpu::qkv_backward_workspace(spec, n, tile));
    cpu::qkv_forward(c.context, unit, x.data(), false, n, 0, tile, q.data(), k.data(), v.data(),
                     workspace.data());
    cpu::out_forward(c.context, unit, x.data(), o.data(), n, tile, y.data(), workspace.data());
    cpu::mlp_forward(c.context, unit, y.data(), n, tile, out.data(), nullptr, workspace.data());
    cpu::mlp_backward(c.context, unit, y.data(), nullptr, n, tile, dx.data(), gradient.data(),
                      workspace.data());
    cpu::out_backward(c.context, unit, dx.data(), o.data(), n, tile, d_o.data(), delta.data(),
                      gradient.data(), workspace.data());
    cpu::qkv_backward(c.context, unit, x.data(), false, n, 0, tile, dq.data(), dk.data(), dv.data(),
                      dx.data(), gradient.data(), workspace.data());
    Floats all = gradient;
    for (const Floats* part : {&q, &k, &v, &out, &d_o, &delta, &dx}) append(all, *part);
    return all;
  }));
}
