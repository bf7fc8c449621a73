// Shares of a cut vocabulary give the loss and the gradients of the whole one.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "models/vocabulary_share.h"
#include "tests/engine/cpu/loss_case.h"

using namespace longspan;
using namespace longspan::cpu_test;

namespace {

// All ranks one after another, with the gradient of the output in T or in S.
LossResult run_shares(ThreadPool& pool, const LossCase& c, int64_t ranks, int64_t tile,
                      double scale, bool in_t) {
  const int64_t d = c.model.hidden, columns = cpu::kTermColumns;
  LossResult result;
  result.output = c.output_start;
  const cpu::BlockContext whole = cpu::make_block_context(c.model, pool);
  Guarded h(c.n * d);
  cpu::final_norm_forward(whole, c.head.data(), c.x.data(), c.n, h.data());
  std::vector<ModelSpec> models;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    models.push_back(share_model(c.model, rank, ranks));
  }
  const auto context_of = [&](int64_t rank) {
    cpu::BlockContext context = cpu::make_block_context(models[rank], pool);
    context.share = vocabulary_share(c.model, rank, ranks);
    return context;
  };
  std::vector<Floats> terms(ranks, Floats(c.n * columns)), parts(ranks, Floats(2 * c.n * d));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const cpu::BlockContext context = context_of(rank);
    Guarded workspace(cpu::vocabulary_workspace(models[rank], c.n, tile));
    cpu::vocabulary_forward(context, c.output.data() + context.share.first * d, h.data(),
                            c.labels.data(), c.n, tile, terms[rank].data(),
                            in_t ? nullptr : parts[rank].data(), workspace.data());
    REQUIRE(workspace.intact());
  }
  Floats sum(c.n * d);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const cpu::BlockContext context = context_of(rank);
    const int64_t at = context.share.first * d;
    Guarded merged(c.n * columns);
    cpu::vocabulary_merge(terms[rank].data(), c.n, true, merged.data());
    for (int64_t other = 0; other < ranks; ++other) {
      if (other != rank) cpu::vocabulary_merge(terms[other].data(), c.n, false, merged.data());
    }
    Floats dh(c.n * d);
    if (!in_t) {
      // Written by the first, added to by the second.
      for (const bool first : {true, false}) {
        cpu::vocabulary_combine(context, parts[rank].data(), terms[rank].data(), merged.data(), c.n,
                                first, scale / 2, dh.data());
      }
    }
    Guarded workspace(cpu::vocabulary_workspace(models[rank], c.n, tile));
    cpu::vocabulary_backward(context, c.output.data() + at, h.data(), c.labels.data(),
                             merged.data(), c.n, tile, scale, result.output.data() + at,
                             in_t ? dh.data() : nullptr, rank + 1 == ranks ? &result.loss : nullptr,
                             workspace.data());
    REQUIRE((workspace.intact() && merged.intact()));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += dh[i];
  }
  Guarded dx(c.x), head(c.head_start);
  cpu::final_norm_backward(whole, c.head.data(), dx.data(), sum.data(), c.n, dx.data(),
                           head.data());
  REQUIRE((dx.intact() && head.intact() && h.intact()));
  result.dx = dx.floats(), result.head = head.floats();
  return result;
}

}  // namespace

TEST_CASE("shares of a vocabulary add up to the loss and its gradients") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled());
  const int64_t ranks = GENERATE(int64_t{1}, int64_t{2}, int64_t{4});
  const int64_t tile = GENERATE(int64_t{1}, int64_t{3}, int64_t{20});
  const bool in_t = GENERATE(false, true);
  const double scale = GENERATE(1.0, 1.0 / 4096);
  CAPTURE(spec.name, ranks, tile, in_t, scale);
  const LossCase c(spec, 7, 51);
  ThreadPool pool(2);
  const LossResult got = run_shares(pool, c, ranks, tile, scale, in_t);
  check_result(got, c, scale);
}

TEST_CASE("logits of a thousand do not overflow in shares") {
  LossCase c(llama(), 5, 53);
  for (float& v : c.output) v *= 500;
  ThreadPool pool(1);
  const double want =
      reference::loss(c.model, widen(c.head), widen(c.output), widen(c.x), c.labels, 1);
  for (const bool in_t : {false, true}) {
    const LossResult got = run_shares(pool, c, 3, 5, 1, in_t);
    CHECK(got.loss - 0.5 == Approx(want).epsilon(1e-6));
    for (const float v : got.dx) CHECK(std::isfinite(v));
  }
}

TEST_CASE("shares refuse a bad label and a loss that is not finite") {
  LossCase c(llama(), 5, 54);
  ThreadPool pool(2);
  c.labels[2] = GENERATE(-1, -101, 37);
  CHECK_THROWS_AS(run_shares(pool, c, 2, 2, 1, true), Error);
  c.labels[2] = 0;
  c.x[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(run_shares(pool, c, 2, 2, 1, true), Error);
}

TEST_CASE("shares of the embedding add up to its rows, and to their gradients") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled());
  const int64_t ranks = GENERATE(int64_t{2}, int64_t{3}, int64_t{4});
  CAPTURE(spec.name, ranks);
  constexpr int64_t kRows = 9, kPosition = 3;
  const int64_t d = spec.hidden;
  const bool learned = spec.positions == Positions::learned;
  Random random(55);
  const Floats table = random.normal((spec.vocab + (learned ? spec.max_positions : 0)) * d);
  const Floats dx = random.normal(kRows * d);
  const std::vector<int32_t> tokens = random.below(kRows, spec.vocab);
  ThreadPool pool(2);
  const cpu::BlockContext whole = cpu::make_block_context(spec, pool);
  Floats x(kRows * d), gradient(table.size());
  cpu::embed_forward(whole, table.data(), tokens.data(), kRows, kPosition, x.data());
  cpu::embed_backward(whole, tokens.data(), dx.data(), kRows, kPosition, gradient.data());
  Floats sum(kRows * d), gathered(table.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const ModelSpec model = share_model(spec, rank, ranks);
    cpu::BlockContext context = cpu::make_block_context(model, pool);
    context.share = vocabulary_share(spec, rank, ranks);
    const auto runs = share_runs(model, context.share, ParameterUnit::Kind::embedding);
    Floats unit(runs.back().narrow + runs.back().count), own(unit.size()), part(kRows * d);
    for (const SliceRun& run : runs) {
      std::copy_n(table.begin() + run.whole, run.count, unit.begin() + run.narrow);
    }
    cpu::embed_forward(context, unit.data(), tokens.data(), kRows, kPosition, part.data());
    cpu::embed_backward(context, tokens.data(), dx.data(), kRows, kPosition, own.data());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    for (const SliceRun& run : runs) {
      std::copy_n(own.begin() + run.narrow, run.count, gathered.begin() + run.whole);
    }
  }
  CHECK(error_of(sum, widen(x)) < 1e-6);
  CHECK(gathered == gradient);
}
