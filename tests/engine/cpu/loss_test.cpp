#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "engine/runtime/labels.h"
#include "tests/engine/cpu/loss_case.h"

using namespace longspan;
using namespace longspan::cpu_test;

namespace {

LossResult run(ThreadPool& pool, const LossCase& c, int64_t tile, double scale, bool in_place) {
  const cpu::BlockContext context = cpu::make_block_context(c.model, pool);
  Guarded dx = in_place ? Guarded(c.x) : Guarded(c.n * c.model.hidden);
  Guarded head(c.head_start), output(c.output_start);
  Guarded workspace(cpu::loss_workspace(c.model, c.n, tile));
  LossResult result;
  cpu::loss_forward_backward(context, c.head.data(), c.output.data(),
                             in_place ? dx.data() : c.x.data(), c.labels.data(), c.n, tile, scale,
                             &result.loss, dx.data(), head.data(), output.data(), workspace.data());
  REQUIRE((dx.intact() && head.intact() && output.intact() && workspace.intact()));
  result.dx = dx.floats(), result.head = head.floats(), result.output = output.floats();
  return result;
}

}  // namespace

TEST_CASE("loss and its gradients for every tile, in place and not") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled());
  const int64_t tile = GENERATE(int64_t{1}, int64_t{3}, int64_t{7}, int64_t{20});
  const bool in_place = GENERATE(false, true);
  const double scale = GENERATE(1.0, 1.0 / 4096);
  CAPTURE(spec.name, tile, in_place, scale);
  const LossCase c(spec, 7, 41);
  ThreadPool pool(2);
  const LossResult got = run(pool, c, tile, scale, in_place);
  check_result(got, c, scale);
}

TEST_CASE("the loss alone has the same bits, and the log-probabilities of the labels") {
  const ModelSpec spec = GENERATE(llama(), gpt2(), scaled());
  const int64_t tile = GENERATE(int64_t{1}, int64_t{3}, int64_t{20});
  const double scale = GENERATE(1.0, 1.0 / 4096);
  CAPTURE(spec.name, tile, scale);
  const LossCase c(spec, 7, 46);
  ThreadPool pool(2);
  const cpu::BlockContext context = cpu::make_block_context(c.model, pool);
  Guarded workspace(cpu::loss_workspace(c.model, c.n, tile, true)), log_probs(c.n);
  double loss = LossResult().loss;
  cpu::loss_forward(context, c.head.data(), c.output.data(), c.x.data(), c.labels.data(), c.n, tile,
                    scale, &loss, log_probs.data(), workspace.data());
  REQUIRE((workspace.intact() && log_probs.intact()));
  CHECK(loss == run(pool, c, tile, scale, false).loss);
  for (int64_t i = 0; i < c.n; ++i) {
    if (c.labels[i] == kNoLabel) {
      CHECK(std::isnan(log_probs.data()[i]));
      continue;
    }
    const int64_t d = c.model.hidden;
    const Floats row(c.x.begin() + i * d, c.x.begin() + (i + 1) * d);
    const std::vector<int32_t> label = {c.labels[i]};
    const double want =
        reference::loss(c.model, widen(c.head), widen(c.output), widen(row), label, 1);
    CHECK(log_probs.data()[i] == Approx(-want).epsilon(1e-5));
  }
}

TEST_CASE("a large vocabulary is summed accurately") {
  ModelSpec spec = llama();
  spec.vocab = 70001, spec.hidden = 4;
  const LossCase c(spec, 3, 42);
  ThreadPool pool(2);
  const LossResult got = run(pool, c, 2, 1, false);
  const double want =
      reference::loss(spec, widen(c.head), widen(c.output), widen(c.x), c.labels, 1);
  CHECK(got.loss - 0.5 == Approx(want).epsilon(1e-6));
}

TEST_CASE("logits of a thousand do not overflow") {
  LossCase c(llama(), 5, 43);
  for (float& v : c.output) v *= 500;
  ThreadPool pool(1);
  const LossResult got = run(pool, c, 5, 1, false);
  const double want =
      reference::loss(c.model, widen(c.head), widen(c.output), widen(c.x), c.labels, 1);
  CHECK(got.loss - 0.5 == Approx(want).epsilon(1e-6));
}

TEST_CASE("a bad label and a loss that is not finite are refused") {
  LossCase c(llama(), 5, 44);
  ThreadPool pool(2);
  c.labels[2] = GENERATE(-1, -101, 37);
  CHECK_THROWS_AS(run(pool, c, 2, 1, false), Error);
  c.labels[2] = 0;
  c.x[3] =
      GENERATE(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN());
  CHECK_THROWS_AS(run(pool, c, 2, 1, false), Error);
}

TEST_CASE("the bits of the loss do not depend on the pool", "[slow]") {
  ModelSpec spec = gpt2();
  spec.vocab = 3001, spec.hidden = 130;
  const LossCase c(spec, 300, 45);
  CHECK(same_bits_on_every_pool([&](ThreadPool& pool) {
    const LossResult r = run(pool, c, 128, 0.25, false);
    Floats all(2);
    std::memcpy(all.data(), &r.loss, sizeof r.loss);
    for (const Floats* part : {&r.dx, &r.head, &r.output}) append(all, *part);
    return all;
  }));
}
