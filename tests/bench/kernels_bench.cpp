// How fast the CPU building blocks are, and how close to the matrix product they come.
//
//   kernels_bench [--benchmark_filter=gemm|attention|rows]
//
// gemm/eigen is Eigen's own single-threaded product: the yardstick of the machine. Every matrix and
// attention benchmark reports FLOP/s (a multiply-add is two, a causal mask counts the pairs it
// leaves); elementwise ones report elements per second. The last argument is the thread count.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"

namespace {

using longspan::ModelSpec;
using longspan::ThreadPool;
using longspan::cpu::BlockContext;
using longspan::cpu::Into;
using Floats = std::vector<float>;

Floats random_floats(int64_t n) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(n);
  for (float& v : values) v = uniform(engine);
  return values;
}

void report_flops(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] = benchmark::Counter(
      flops, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

// ---- matrix products: m, n, k, threads ----

void gemm_eigen(benchmark::State& state) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const Matrix a = Matrix::Random(m, k), b = Matrix::Random(n, k);
  Matrix c(m, n);
  for (auto _ : state) {
    c.noalias() = a * b.transpose();
    benchmark::DoNotOptimize(c.data());
  }
  report_flops(state, 2.0 * m * n * k);
}

using Gemm = void (*)(ThreadPool&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);

template <Gemm kGemm, bool kTransposedA, bool kTransposedB, Into kInto>
void gemm(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  ThreadPool pool(static_cast<int>(state.range(3)));
  const Floats a = random_floats(m * k), b = random_floats(n * k);
  Floats c(m * n);
  for (auto _ : state) {
    kGemm(pool, m, n, k, a.data(), kTransposedA ? m : k, b.data(), kTransposedB ? k : n, kInto,
          c.data(), n);
  }
  report_flops(state, 2.0 * m * n * k);
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    b->Args({2048, 1024, 1024, threads})->Args({1024, 4096, 1024, threads});
  }
  b->UseRealTime();
}

void gemm_nt(benchmark::State& state) {
  gemm<longspan::cpu::gemm_nt, false, true, Into::write>(state);
}
void gemm_nt_add(benchmark::State& state) {
  gemm<longspan::cpu::gemm_nt, false, true, Into::add>(state);
}
void gemm_nn(benchmark::State& state) {
  gemm<longspan::cpu::gemm_nn, false, false, Into::write>(state);
}
void gemm_tn_add(benchmark::State& state) {
  gemm<longspan::cpu::gemm_tn, true, false, Into::add>(state);
}
BENCHMARK(gemm_eigen)->Args({2048, 1024, 1024, 1})->Args({1024, 4096, 1024, 1})->UseRealTime();
BENCHMARK(gemm_nt)->Apply(shapes);
BENCHMARK(gemm_nt_add)->Apply(shapes);
BENCHMARK(gemm_nn)->Apply(shapes);
BENCHMARK(gemm_tn_add)->Apply(shapes);

// ---- attention: queries, keys, head dim, kv heads of 8, causal, threads ----

ModelSpec attention_model(int64_t head_dim, int64_t kv_heads) {
  ModelSpec model;
  model.name = "bench";
  model.layers = 1;
  model.heads = 8;
  model.kv_heads = kv_heads;
  model.head_dim = head_dim;
  model.hidden = model.attention_width();
  model.ffn = 4 * model.hidden;
  model.vocab = 32000;
  model.max_positions = 1 << 20;
  return model;
}

template <bool kBackward>
void attention(benchmark::State& state) {
  const int64_t nq = state.range(0), nk = state.range(1), dim = state.range(2);
  const bool causal = state.range(4) != 0;
  const ModelSpec model = attention_model(dim, state.range(3));
  ThreadPool pool(static_cast<int>(state.range(5)));
  const BlockContext context = longspan::cpu::make_block_context(model, pool);
  const int64_t a = model.attention_width(), g = model.kv_width();
  const Floats q = random_floats(nq * a), k = random_floats(nk * g), v = random_floats(nk * g);
  const Floats d_o = random_floats(nq * a), delta(nq * model.heads, 0.0F);
  Floats o(nq * a), lse(nq * model.heads), dq(nq * a), dk(nk * g), dv(nk * g);
  Floats workspace(longspan::cpu::attention_backward_workspace(model));
  const int64_t q0 = causal ? 0 : nk;
  const auto forward = [&] {
    longspan::cpu::attention_forward(context, q.data(), k.data(), v.data(), q0, nq, 0, nk, true,
                                     o.data(), lse.data(), workspace.data());
  };
  forward();
  for (auto _ : state) {
    if (kBackward) {
      longspan::cpu::attention_backward(context, q.data(), k.data(), v.data(), d_o.data(),
                                        lse.data(), delta.data(), q0, nq, 0, nk, true, dq.data(),
                                        true, dk.data(), dv.data(), workspace.data());
    } else {
      forward();
    }
  }
  const double pairs = causal ? 0.5 * nq * (nq + 1) : 1.0 * nq * nk;
  report_flops(state, (kBackward ? 10.0 : 4.0) * pairs * static_cast<double>(a));
}

void rectangles(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (const int dim : {64, 128}) {
      b->Args({4096, 4096, dim, 2, 1, threads})->Args({1024, 1024, dim, 2, 0, threads});
    }
    b->Args({4096, 4096, 64, 8, 1, threads})->Args({4096, 4096, 64, 1, 1, threads});
  }
  b->UseRealTime();
}

void attention_forward(benchmark::State& state) { attention<false>(state); }
void attention_backward(benchmark::State& state) { attention<true>(state); }
BENCHMARK(attention_forward)->Apply(rectangles);
BENCHMARK(attention_backward)->Apply(rectangles);

// ---- row-wise work, in elements: threads ----

void rows_norm_forward(benchmark::State& state) {
  const ModelSpec model = attention_model(128, 8);
  ThreadPool pool(static_cast<int>(state.range(0)));
  const BlockContext context = longspan::cpu::make_block_context(model, pool);
  const int64_t n = 2048, d = model.hidden;
  const Floats unit = random_floats(d), x = random_floats(n * d);
  Floats h(n * d);
  for (auto _ : state) longspan::cpu::norm1_forward(context, unit.data(), x.data(), n, h.data());
  state.SetItemsProcessed(state.iterations() * n * d);
}

void rows_norm_backward(benchmark::State& state) {
  const ModelSpec model = attention_model(128, 8);
  ThreadPool pool(static_cast<int>(state.range(0)));
  const BlockContext context = longspan::cpu::make_block_context(model, pool);
  const int64_t n = 2048, d = model.hidden;
  const Floats unit = random_floats(d), x = random_floats(n * d), dh = random_floats(n * d);
  Floats dx(n * d), gradient(d);
  for (auto _ : state) {
    longspan::cpu::norm1_backward(context, unit.data(), x.data(), dh.data(), n, dx.data(),
                                  dx.data(), gradient.data());
  }
  state.SetItemsProcessed(state.iterations() * n * d);
}

void rows_adamw(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const int64_t n = 1 << 22;
  const Floats g = random_floats(n);
  Floats p = random_floats(n), m(n), v(n);
  longspan::cpu::AdamWStep step;
  step.learning_rate = 1e-3;
  for (auto _ : state) {
    longspan::cpu::adamw(pool, step, g.data(), n, p.data(), m.data(), v.data());
  }
  state.SetItemsProcessed(state.iterations() * n);
}

void rows_sum_of_squares(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const int64_t n = 1 << 22;
  const Floats g = random_floats(n);
  double sum = 0;
  for (auto _ : state) longspan::cpu::sum_of_squares(pool, g.data(), n, &sum);
  benchmark::DoNotOptimize(sum);
  state.SetItemsProcessed(state.iterations() * n);
}

BENCHMARK(rows_norm_forward)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(rows_norm_backward)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(rows_adamw)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(rows_sum_of_squares)->Arg(1)->Arg(2)->UseRealTime();

// ---- whole blocks, in FLOP/s of their products: rows, threads ----

template <bool kBackward>
void mlp(benchmark::State& state) {
  ModelSpec model = attention_model(128, 8);
  model.ffn = 2816;
  const int64_t n = state.range(0), d = model.hidden;
  ThreadPool pool(static_cast<int>(state.range(1)));
  const BlockContext context = longspan::cpu::make_block_context(model, pool);
  const int64_t elements = longspan::parameter_units(model)[1].elements;
  const Floats unit = random_floats(elements), y = random_floats(n * d);
  Floats out(n * d), dy = random_floats(n * d), gradient(elements), inner(n * 2 * model.ffn);
  Floats workspace(longspan::cpu::mlp_backward_workspace(model, n, n, false));
  for (auto _ : state) {
    if (kBackward) {
      longspan::cpu::mlp_backward(context, unit.data(), y.data(), inner.data(), n, n, dy.data(),
                                  gradient.data(), workspace.data());
    } else {
      longspan::cpu::mlp_forward(context, unit.data(), y.data(), n, n, out.data(), inner.data(),
                                 workspace.data());
    }
  }
  report_flops(state, (kBackward ? 12.0 : 6.0) * n * d * model.ffn);
}
void mlp_forward(benchmark::State& state) { mlp<false>(state); }
void mlp_backward(benchmark::State& state) { mlp<true>(state); }
BENCHMARK(mlp_forward)->Args({1024, 1})->Args({1024, 2})->UseRealTime();
BENCHMARK(mlp_backward)->Args({1024, 1})->Args({1024, 2})->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
