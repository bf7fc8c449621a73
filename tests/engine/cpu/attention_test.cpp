#include <catch2/catch.hpp>

#include "tests/engine/cpu/cpu_test.h"

using namespace longspan;
using namespace longspan::cpu_test;

namespace {

ModelSpec attention_model(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  ModelSpec m = llama();
  m.heads = heads, m.kv_heads = kv_heads, m.head_dim = head_dim;
  return m;
}

struct Inputs {
  Inputs(const ModelSpec& model, int64_t queries, int64_t keys, float scale, uint32_t seed)
      : nq(queries), nk(keys) {
    Random random(seed);
    q = random.normal(nq * model.attention_width(), scale);
    k = random.normal(nk * model.kv_width(), scale);
    v = random.normal(nk * model.kv_width());
    d_o = random.normal(nq * model.attention_width());
    if (model.attention_sinks) sinks = random.normal(model.heads);
  }
  int64_t nq, nk;
  Floats q, k, v, d_o, sinks;
};

// The terms of the op of the first keys, or of another.
AttentionTerms<float> terms_of(const ModelSpec& model, const Inputs& in, bool first,
                               float* sink_gradients = nullptr) {
  const float* sinks = first && !in.sinks.empty() ? in.sinks.data() : nullptr;
  return {model.window, sinks, sink_gradients};
}

struct Result {
  Floats o, lse;
};

// Forward over the keys in chunks, each merged into the previous result. Positions begin at
// `origin`.
Result forward(ThreadPool& pool, const ModelSpec& model, const Inputs& in, int64_t q0,
               const std::vector<int64_t>& chunks, int64_t origin = 0) {
  const cpu::BlockContext context = cpu::make_block_context(model, pool);
  Guarded o(in.nq * model.attention_width());
  Guarded lse(in.nq * model.heads);
  Guarded workspace(cpu::attention_forward_workspace(model));
  int64_t key = 0;
  for (const int64_t keys : chunks) {
    const int64_t at = key * model.kv_width();
    cpu::attention_forward(context, in.q.data(), in.k.data() + at, in.v.data() + at, origin + q0,
                           in.nq, origin + key, keys, key == 0, o.data(), lse.data(),
                           workspace.data(), {}, terms_of(model, in, key == 0));
    key += keys;
  }
  REQUIRE(key == in.nk);
  REQUIRE((o.intact() && lse.intact() && workspace.intact()));
  return {o.floats(), lse.floats()};
}

struct Gradients {
  Floats dq, dk, dv, sinks = {};
};

// Backward chunk of keys by chunk of keys: dq accumulates, dk and dv are written or added to.
Gradients backward(ThreadPool& pool, const ModelSpec& model, const Inputs& in, const Floats& lse,
                   const Floats& delta, int64_t q0, const std::vector<int64_t>& chunks,
                   const Gradients* start = nullptr, int64_t origin = 0) {
  const cpu::BlockContext context = cpu::make_block_context(model, pool);
  Guarded dq = start ? Guarded(start->dq) : Guarded(in.nq * model.attention_width());
  Guarded dk = start ? Guarded(start->dk) : Guarded(in.nk * model.kv_width());
  Guarded dv = start ? Guarded(start->dv) : Guarded(in.nk * model.kv_width());
  Floats sinks(in.sinks.size());
  int64_t key = 0;
  for (const int64_t keys : chunks) {
    const int64_t at = key * model.kv_width();
    Guarded workspace(cpu::attention_backward_workspace(model));
    cpu::attention_backward(context, in.q.data(), in.k.data() + at, in.v.data() + at, in.d_o.data(),
                            lse.data(), delta.data(), origin + q0, in.nq, origin + key, keys,
                            key == 0 && !start, dq.data(), !start, dk.data() + at, dv.data() + at,
                            workspace.data(), {}, terms_of(model, in, key == 0, sinks.data()));
    REQUIRE(workspace.intact());
    key += keys;
  }
  REQUIRE((dq.intact() && dk.intact() && dv.intact()));
  return {dq.floats(), dk.floats(), dv.floats(), sinks};
}

Floats narrow(const Doubles& x) { return {x.begin(), x.end()}; }

void check_forward(const Result& got, const reference::Attention& want) {
  CHECK(error_of(got.o, want.o) < kForwardError);
  CHECK(error_of(got.lse, want.lse) < kForwardError);
}

}  // namespace

TEST_CASE("attention of whole sequences, for grouped heads and ragged tiles") {
  struct Shape {
    int64_t heads, kv_heads, dim, nq, nk;
  };
  const Shape s =
      GENERATE(Shape{2, 2, 8, 1, 1}, Shape{4, 2, 6, 50, 50}, Shape{3, 1, 16, 97, 97},
               Shape{2, 1, 64, 200, 200}, Shape{5, 5, 5, 193, 193}, Shape{7, 1, 20, 70, 430},
               Shape{100, 2, 4, 9, 31}, Shape{2, 1, 72, 33, 225}, Shape{1, 1, 136, 100, 130},
               Shape{1, 1, 264, 40, 210});
  CAPTURE(s.heads, s.kv_heads, s.dim, s.nq, s.nk);
  const ModelSpec model = attention_model(s.heads, s.kv_heads, s.dim);
  const Inputs in(model, s.nq, s.nk, 1, 11);
  const int64_t q0 = s.nk - s.nq;  // the last query sees the last key
  ThreadPool pool(2);
  const Doubles q = widen(in.q), k = widen(in.k), v = widen(in.v), d_o = widen(in.d_o);
  const reference::Attention want = reference::attention(model, q, k, v, q0);
  check_forward(forward(pool, model, in, q0, {s.nk}), want);

  const Doubles delta = reference::row_dots(model, d_o, want.o);
  const reference::AttentionGradient grad =
      reference::attention_backward(model, q, k, v, d_o, want.lse, delta, q0, 0);
  const Gradients got = backward(pool, model, in, narrow(want.lse), narrow(delta), q0, {s.nk});
  // The first query sees only one key: its gradient is zero except for rounding.
  const double floor = s.nk == 1 ? 1 : 0;
  CHECK(error_of(got.dq, grad.dq) < kGradientError + floor * 1e-5);
  CHECK(error_of(got.dk, grad.dk) < kGradientError + floor * 1e-5);
  CHECK(error_of(got.dv, grad.dv) < kGradientError);
}

TEST_CASE("the gradients of attention are those of its forward") {
  const ModelSpec model = attention_model(4, 2, 4);
  const Inputs in(model, 5, 8, 1, 12);
  Doubles q = widen(in.q), k = widen(in.k), v = widen(in.v);
  const Doubles d_o = widen(in.d_o);
  const auto f = [&] { return reference::dot(reference::attention(model, q, k, v, 3).o, d_o); };
  const reference::Attention want = reference::attention(model, q, k, v, 3);
  const Floats delta = narrow(reference::row_dots(model, d_o, want.o));
  ThreadPool pool(2);
  const Gradients got = backward(pool, model, in, narrow(want.lse), delta, 3, {8});
  CHECK(error_of(got.dq, reference::differences(f, q)) < kGradientError);
  CHECK(error_of(got.dk, reference::differences(f, k)) < kGradientError);
  CHECK(error_of(got.dv, reference::differences(f, v)) < kGradientError);
}

TEST_CASE("chunks of keys merge to the whole, forward and backward") {
  const ModelSpec model = attention_model(6, 2, 24);
  const std::vector<int64_t> chunks = GENERATE(
      std::vector<int64_t>{300}, std::vector<int64_t>{1, 299}, std::vector<int64_t>{100, 100, 100},
      std::vector<int64_t>{193, 64, 43}, std::vector<int64_t>{50, 50, 50, 50, 50, 25, 25});
  // Chunks off the diagonal, on it, and with keys that no query or only some queries see.
  const int64_t nq = 80;
  const int64_t q0 = GENERATE(int64_t{0}, int64_t{120}, int64_t{220}, int64_t{300});
  CAPTURE(q0, chunks.size());
  const Inputs in(model, nq, 300, 1, 13);
  const Doubles q = widen(in.q), k = widen(in.k), v = widen(in.v), d_o = widen(in.d_o);
  const reference::Attention want = reference::attention(model, q, k, v, q0);
  ThreadPool pool(3);
  check_forward(forward(pool, model, in, q0, chunks), want);
  // The result is the same at positions far out in a long sequence.
  check_forward(forward(pool, model, in, q0, chunks, int64_t{1} << 40), want);

  const Doubles delta = reference::row_dots(model, d_o, want.o);
  const reference::AttentionGradient grad =
      reference::attention_backward(model, q, k, v, d_o, want.lse, delta, q0, 0);
  const Floats lse = narrow(want.lse);
  const Gradients got = backward(pool, model, in, lse, narrow(delta), q0, chunks);
  CHECK(error_of(got.dq, grad.dq) < kGradientError);
  CHECK(error_of(got.dk, grad.dk) < kGradientError);
  CHECK(error_of(got.dv, grad.dv) < kGradientError);

  const Gradients start{in.d_o, in.v, in.k};
  const Gradients sum = backward(pool, model, in, lse, narrow(delta), q0, chunks, &start, 1 << 30);
  CHECK(error_of(sum.dq, plus(start.dq, grad.dq)) < kGradientError);
  CHECK(error_of(sum.dk, plus(start.dk, grad.dk)) < kGradientError);
  CHECK(error_of(sum.dv, plus(start.dv, grad.dv)) < kGradientError);
}

TEST_CASE("a window hides early keys, and sinks take a part of the softmax, in any chunks") {
  ModelSpec model = attention_model(6, 2, 24);
  // Shorter than a tile, across tiles, and beyond all keys.
  model.window = GENERATE(int64_t{1}, int64_t{7}, int64_t{96}, int64_t{150}, int64_t{1000});
  model.attention_sinks = GENERATE(false, true);
  model.attention_scale = 0.4;
  const std::vector<int64_t> chunks = GENERATE(
      std::vector<int64_t>{500}, std::vector<int64_t>{250, 250}, std::vector<int64_t>{1, 400, 99});
  const int64_t nq = GENERATE(int64_t{500}, int64_t{130});
  const int64_t q0 = 500 - nq;
  CAPTURE(model.window, model.attention_sinks, chunks.size(), nq);
  const Inputs in(model, nq, 500, 1, 18);
  const Doubles q = widen(in.q), k = widen(in.k), v = widen(in.v), d_o = widen(in.d_o);
  Doubles sinks = widen(in.sinks);
  const reference::Attention want = reference::attention(model, q, k, v, q0, sinks);
  ThreadPool pool(3);
  check_forward(forward(pool, model, in, q0, chunks), want);

  const Doubles delta = reference::row_dots(model, d_o, want.o);
  const reference::AttentionGradient grad =
      reference::attention_backward(model, q, k, v, d_o, want.lse, delta, q0, 0);
  const Gradients got = backward(pool, model, in, narrow(want.lse), narrow(delta), q0, chunks);
  // A query that sees one key alone has no gradient, except for rounding.
  const double floor = model.window == 1 && !model.attention_sinks ? 1e300 : 0;
  CHECK(error_of(got.dq, grad.dq) < kGradientError + floor);
  CHECK(error_of(got.dk, grad.dk) < kGradientError + floor);
  CHECK(error_of(got.dv, grad.dv) < kGradientError);
  if (sinks.empty()) return;
  const auto f = [&] {
    return reference::dot(reference::attention(model, q, k, v, q0, sinks).o, d_o);
  };
  CHECK(error_of(got.sinks, reference::differences(f, sinks)) < kGradientError);
}

TEST_CASE("a later chunk that dominates by far neither overflows nor loses the earlier one") {
  const ModelSpec model = attention_model(2, 1, 16);
  const double jump = GENERATE(100.0, 400.0, -400.0);
  Inputs in(model, 40, 200, 1, 14);
  // Aligning one coordinate of q and k raises the scores of the later keys by `jump`.
  for (size_t i = 0; i < in.q.size(); i += 16) in.q[i] = 4;
  for (size_t j = 0; j < in.k.size(); j += 16) {
    in.k[j] = j / 16 >= 100 ? static_cast<float>(jump) : 0;
  }
  const Doubles q = widen(in.q), k = widen(in.k), v = widen(in.v), d_o = widen(in.d_o);
  const reference::Attention want = reference::attention(model, q, k, v, 180);
  ThreadPool pool(2);
  const Result whole = forward(pool, model, in, 180, {200});
  const Result merged = forward(pool, model, in, 180, {100, 100});
  // A score of size s carries the rounding of s in float, which exp turns into a relative error.
  const double allowed = 2e-6 * std::max(1.0, std::abs(jump) / 10);
  CHECK(error_of(whole.o, want.o) < allowed);
  CHECK(error_of(merged.o, want.o) < allowed);
  CHECK(error_of(whole.lse, want.lse) < kForwardError);
  CHECK(error_of(merged.lse, want.lse) < kForwardError);

  const Doubles delta = reference::row_dots(model, d_o, want.o);
  const reference::AttentionGradient grad =
      reference::attention_backward(model, q, k, v, d_o, want.lse, delta, 180, 0);
  const Gradients got = backward(pool, model, in, narrow(want.lse), narrow(delta), 180, {100, 100});
  CHECK(error_of(got.dv, grad.dv) < 10 * allowed);
  CHECK(std::isfinite(error_of(got.dq, grad.dq)));
  CHECK(std::isfinite(error_of(got.dk, grad.dk)));
}

TEST_CASE("keys that no query sees get zero gradients, and change nothing forward") {
  const ModelSpec model = attention_model(2, 2, 8);
  const Inputs in(model, 20, 30, 1, 15);
  ThreadPool pool(2);
  const cpu::BlockContext context = cpu::make_block_context(model, pool);
  const Floats o0 = Random(1).normal(20 * 16), lse0 = Random(2).normal(20 * 2);
  Floats o = o0, lse = lse0;
  Guarded workspace(cpu::attention_backward_workspace(model));
  cpu::attention_forward(context, in.q.data(), in.k.data(), in.v.data(), 0, 20, 20, 30, false,
                         o.data(), lse.data(), nullptr);
  CHECK(o == o0);
  CHECK(lse == lse0);
  Guarded dq(20 * 16), dk(30 * 16), dv(30 * 16);
  cpu::attention_backward(context, in.q.data(), in.k.data(), in.v.data(), in.d_o.data(), lse.data(),
                          lse.data(), 0, 20, 20, 30, true, dq.data(), true, dk.data(), dv.data(),
                          workspace.data());
  CHECK(dq.floats() == Floats(20 * 16));
  CHECK(dk.floats() == Floats(30 * 16));
  CHECK(dv.floats() == Floats(30 * 16));
}

TEST_CASE("rows that hold other heads too change no bit, and no other head's column") {
  const ModelSpec model = attention_model(4, 2, 6);
  const Inputs in(model, 70, 130, 1, 17);
  const int64_t q0 = in.nk - in.nq, a = model.attention_width();
  const HeadRows rows{a + 11, model.heads + 3, model.heads + 5};
  ThreadPool pool(2);
  const cpu::BlockContext context = cpu::make_block_context(model, pool);
  const Result want = forward(pool, model, in, q0, {in.nk});
  const Gradients gradients = backward(pool, model, in, want.lse, want.lse, q0, {in.nk});
  const auto widened = [&](const Floats& x, int64_t width, int64_t row) {
    Floats wide(in.nq * row, -3);
    for (int64_t i = 0; i < in.nq; ++i) {
      std::copy_n(x.begin() + i * width, width, wide.begin() + i * row);
    }
    return wide;
  };
  // In two chunks, so that the second reads and updates the first one's output.
  Floats o(in.nq * rows.o, -3), lse(in.nq * rows.lse, -3);
  const Result halves = forward(pool, model, in, q0, {60, 70});
  for (const int64_t key : {0, 60}) {
    const int64_t at = key * model.kv_width();
    cpu::attention_forward(context, in.q.data(), in.k.data() + at, in.v.data() + at, q0, in.nq, key,
                           key == 0 ? 60 : 70, key == 0, o.data(), lse.data(), nullptr, rows);
  }
  CHECK(o == widened(halves.o, a, rows.o));
  CHECK(lse == widened(halves.lse, model.heads, rows.lse));

  Floats dq(in.q.size()), dk(in.k.size()), dv(in.v.size());
  Floats workspace(cpu::attention_backward_workspace(model));
  cpu::attention_backward(context, in.q.data(), in.k.data(), in.v.data(),
                          widened(in.d_o, a, rows.o).data(),
                          widened(want.lse, model.heads, rows.lse).data(),
                          widened(want.lse, model.heads, rows.delta).data(), q0, in.nq, 0, in.nk,
                          true, dq.data(), true, dk.data(), dv.data(), workspace.data(), rows);
  CHECK(dq == gradients.dq);
  CHECK(dk == gradients.dk);
  CHECK(dv == gradients.dv);
}

TEST_CASE("the bits of attention do not depend on the pool", "[slow]") {
  // 7000 keys are more than one round of key tiles.
  const bool long_keys = GENERATE(false, true);
  const ModelSpec model = long_keys ? attention_model(1, 1, 4) : attention_model(8, 2, 32);
  const Inputs in(model, long_keys ? 200 : 500, long_keys ? 7000 : 700, 1, 16);
  const int64_t q0 = in.nk - in.nq;
  CHECK(same_bits_on_every_pool([&](ThreadPool& pool) {
    const Result r = forward(pool, model, in, q0, {in.nk});
    const Gradients g = backward(pool, model, in, r.lse, r.lse, q0, {in.nk});
    Floats all = r.o;
    for (const Floats* part : {&r.lse, &g.dq, &g.dk, &g.dv}) append(all, *part);
    return all;
  }));
}

TEST_CASE("a head too wide for the tiles is refused") {
  const ModelSpec model = attention_model(1, 1, 514);
  ThreadPool pool(1);
  CHECK_THROWS(cpu::make_block_context(model, pool));
}
