#include <catch2/catch.hpp>

#include "tests/engine/cpu/cpu_test.h"

using namespace longspan;
using namespace longspan::cpu_test;

TEST_CASE("AdamW follows its definition over several steps") {
  const int64_t n = GENERATE(int64_t{1}, int64_t{13}, int64_t{70001});
  Random random(51);
  ThreadPool pool(2);
  Guarded p(random.normal(n)), m{Floats(n)}, v{Floats(n)};
  Doubles want_p = widen(p.floats()), want_m(n), want_v(n);
  cpu::AdamWStep step;
  step.learning_rate = 0.01, step.weight_decay = 0.1, step.gradient_scale = 0.5;
  for (step.step = 1; step.step <= 4; ++step.step) {
    const Floats g = random.normal(n);
    cpu::adamw(pool, step, g.data(), n, p.data(), m.data(), v.data());
    const double t = static_cast<double>(step.step);
    for (int64_t i = 0; i < n; ++i) {
      const double gradient = 0.5 * g[i];
      want_m[i] = 0.9 * want_m[i] + 0.1 * gradient;
      want_v[i] = 0.95 * want_v[i] + 0.05 * gradient * gradient;
      const double mean = want_m[i] / (1 - std::pow(0.9, t));
      const double square = want_v[i] / (1 - std::pow(0.95, t));
      want_p[i] -= 0.01 * 0.1 * want_p[i] + 0.01 * mean / (std::sqrt(square) + 1e-8);
    }
  }
  CHECK(error_of(p.floats(), want_p) < kForwardError);
  CHECK(error_of(m.floats(), want_m) < kForwardError);
  CHECK(error_of(v.floats(), want_v) < kForwardError);
  CHECK((p.intact() && m.intact() && v.intact()));
}

TEST_CASE("the sum of squares is accurate, added, and the same on every pool") {
  const int64_t n = GENERATE(int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{9000001});
  const Floats g = Random(52).normal(n, 0.01F);
  double want = 3;
  for (const float v : g) want += static_cast<double>(v) * v;
  ThreadPool one(1);
  double sum = 3;
  cpu::sum_of_squares(one, g.data(), n, &sum);
  CHECK(sum == Approx(want).epsilon(1e-7));
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    double other = 3;
    cpu::sum_of_squares(pool, g.data(), n, &other);
    CHECK(other == sum);
  }
}

TEST_CASE("zero fills exactly its range") {
  ThreadPool pool(2);
  Guarded x(100003);
  cpu::zero(pool, x.data(), 100003);
  CHECK(x.floats() == Floats(100003));
  CHECK(x.intact());
}
