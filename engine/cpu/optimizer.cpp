// AdamW, the gradient norm and zeroing: elementwise over whole parameter units.
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "base/error.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/rows.h"
#include "engine/runtime/backend.h"

namespace longspan::cpu {
namespace {

// Pieces per round. Their partial sums are kept on the stack and added in order.
constexpr int64_t kRoundPieces = 256;

double square_sum(const float* g, int64_t n) {
  double sum = 0;
  constexpr int64_t kTerms = 1024;  // summed in float, every lane 1024 / (4 * kLanes) terms
  for (int64_t i = 0; i < n; i += kTerms) {
    const float* part = g + i;
    sum += sum_over(std::min(kTerms, n - i), [&](int64_t j, int64_t count) {
      const Vec v = load(part + j, count);
      return v * v;
    });
  }
  return sum;
}

}  // namespace

AdamWStep adamw_step(const StepContext& context, const double* squared_norm) {
  const double norm = squared_norm != nullptr ? std::sqrt(*squared_norm) : context.norm_before;
  if (!std::isfinite(norm)) throw failed("step {}: the gradient norm is not finite", context.step);
  AdamWStep step;
  step.learning_rate = context.learning_rate;
  step.beta1 = context.beta1;
  step.beta2 = context.beta2;
  step.epsilon = context.epsilon;
  step.step = context.step;
  if (context.clip_norm > 0 && norm > context.clip_norm) {
    step.gradient_scale = context.clip_norm / norm;
  }
  return step;
}

void sum_of_squares(ThreadPool& pool, const float* g, int64_t n, double* sum) {
  std::array<double, kRoundPieces> partial;
  for (int64_t first = 0; first < n; first += kRoundPieces * kPieceElements) {
    const int64_t count = std::min(n - first, kRoundPieces * kPieceElements);
    const int64_t pieces = ceil_div(count, kPieceElements);
    for_pieces(pool, pieces, [&](int64_t piece) {
      const int64_t begin = piece * kPieceElements;
      partial[piece] = square_sum(g + first + begin, std::min(kPieceElements, count - begin));
    });
    for (int64_t piece = 0; piece < pieces; ++piece) *sum += partial[piece];
  }
}

void adamw(ThreadPool& pool, const AdamWStep& s, const float* g, int64_t n, float* p, float* m,
           float* v, bfloat16* narrowed) {
  const double t = static_cast<double>(s.step);
  const float scale = static_cast<float>(s.gradient_scale);
  const float beta1 = static_cast<float>(s.beta1);
  const float beta2 = static_cast<float>(s.beta2);
  const float rest1 = static_cast<float>(1 - s.beta1);
  const float rest2 = static_cast<float>(1 - s.beta2);
  const float rate = static_cast<float>(s.learning_rate / (1 - std::pow(s.beta1, t)));
  const float root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, t)));
  const float epsilon = static_cast<float>(s.epsilon);
  const float keep = static_cast<float>(1 - s.learning_rate * s.weight_decay);
  for_rows(pool, n, 1, [&](int64_t begin, int64_t end) {
    for_lanes(end - begin, [&](int64_t j, int64_t count) {
      const int64_t i = begin + j;
      const Vec gradient = load(g + i, count) * scale;
      const Vec mean = beta1 * load(m + i, count) + rest1 * gradient;
      const Vec square = beta2 * load(v + i, count) + rest2 * gradient * gradient;
      const Vec step = rate * mean / (square_root(square) * root_scale + epsilon);
      store(m + i, mean, count);
      store(v + i, square, count);
      store(p + i, keep * load(p + i, count) - step, count);
    });
    if (narrowed == nullptr) return;
    for (int64_t i = begin; i < end; ++i) narrowed[i] = narrow(p[i]);
  });
}

template <class T>
void adamw_in_format(ThreadPool& pool, AdamWStep s, double weight_decay, MomentFormat format,
                     const std::vector<AdamWPart>& parts, const float* g, int64_t n, T* p,
                     std::byte* m, std::byte* v, bfloat16* narrowed) {
  const double t = static_cast<double>(s.step);
  const float rate = static_cast<float>(s.learning_rate / (1 - std::pow(s.beta1, t)));
  const float root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, t)));
  const auto beta1 = static_cast<float>(s.beta1), beta2 = static_cast<float>(s.beta2);
  const auto rest1 = static_cast<float>(1 - s.beta1), rest2 = static_cast<float>(1 - s.beta2);
  const auto scale = static_cast<float>(s.gradient_scale);
  const auto epsilon = static_cast<float>(s.epsilon);
  const auto decayed = static_cast<float>(1 - s.learning_rate * weight_decay);
  for_pieces(pool, ceil_div(n, kMomentBlock), [&](int64_t block) {
    const int64_t begin = block * kMomentBlock, count = std::min(kMomentBlock, n - begin);
    float mean[kMomentBlock], square[kMomentBlock];
    read_moment(format, false, m, n, begin, count, mean);
    read_moment(format, true, v, n, begin, count, square);
    auto part =
        std::upper_bound(parts.begin(), parts.end(), begin,
                         [](int64_t at, const AdamWPart& of) { return at < of.first + of.count; });
    for (; part != parts.end() && part->first < begin + count; ++part) {
      const float keep = part->decays ? decayed : 1;
      const int64_t end = std::min(begin + count, part->first + part->count);
      for (int64_t i = std::max(begin, part->first); i < end; ++i) {
        const float gradient = g[i] * scale;
        float &own_mean = mean[i - begin], &own_square = square[i - begin];
        own_mean = beta1 * own_mean + rest1 * gradient;
        own_square = beta2 * own_square + rest2 * gradient * gradient;
        const float change = rate * own_mean / (std::sqrt(own_square) * root_scale + epsilon);
        if constexpr (std::is_same_v<T, bfloat16>) {
          p[i] = narrow(keep * widen(p[i]) - change);
        } else {
          p[i] = keep * p[i] - change;
          if (narrowed != nullptr) narrowed[i] = narrow(p[i]);
        }
      }
    }
    write_moment(format, false, mean, n, begin, count, m);
    write_moment(format, true, square, n, begin, count, v);
  });
}
template void adamw_in_format(ThreadPool&, AdamWStep, double, MomentFormat,
                              const std::vector<AdamWPart>&, const float*, int64_t, float*,
                              std::byte*, std::byte*, bfloat16*);
template void adamw_in_format(ThreadPool&, AdamWStep, double, MomentFormat,
                              const std::vector<AdamWPart>&, const float*, int64_t, bfloat16*,
                              std::byte*, std::byte*, bfloat16*);

void zero(ThreadPool& pool, float* x, int64_t n) {
  for_rows(pool, n, 1, [&](int64_t begin, int64_t end) { std::fill(x + begin, x + end, 0.0F); });
}

void add(ThreadPool& pool, const float* part, int64_t n, float* sum) {
  for_rows(pool, n, 1,
           [&](int64_t begin, int64_t end) { add_to(part + begin, end - begin, sum + begin); });
}

}  // namespace longspan::cpu
