#include "engine/cpu/norm.h"

#include <cmath>

#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

// Rows whose statistics are kept on the stack between the passes of the backward.
constexpr int64_t kBackwardRows = 512;

struct RowStats {
  float mean = 0;
  float r = 0;
  float mean_g = 0;       // mean(w * dh), with w as it multiplies
  float mean_g_xhat = 0;  // mean(w * dh * xhat)
};

// What a weight is added to before it multiplies.
float offset_of(const ModelSpec& model) { return model.norm_offset ? 1 : 0; }

float inverse_root(float square_sum, int64_t width, double eps) {
  return static_cast<float>(1.0 / std::sqrt(square_sum / static_cast<double>(width) + eps));
}

float sum_of_products(const float* a, const float* b, int64_t n) {
  return sum_over(
      n, [&](int64_t j, int64_t count) { return load(a + j, count) * load(b + j, count); });
}

RowStats row_stats(const ModelSpec& model, const float* x) {
  const int64_t d = model.hidden;
  RowStats stats;
  if (model.norm == Norm::rmsnorm) {
    stats.r = inverse_root(sum_of_products(x, x, d), d, model.norm_eps);
    return stats;
  }
  const auto value = [&](int64_t j, int64_t count) { return load(x + j, count); };
  stats.mean = sum_over(d, value) / static_cast<float>(d);
  const auto squared = [&](int64_t j, int64_t count) {
    const Vec centred = load(x + j, count) - stats.mean;
    const Vec square = centred * centred;
    float part[kLanes];
    if (count == kLanes) return square;
    store(part, square);
    return load_part(part, count);
  };
  stats.r = inverse_root(sum_over(d, squared), d, model.norm_eps);
  return stats;
}

// row_stats() plus the statistics for the gradient of x.
RowStats backward_stats(const ModelSpec& model, const float* weight, const float* x,
                        const float* dh) {
  const int64_t d = model.hidden;
  const float offset = offset_of(model);
  RowStats stats = row_stats(model, x);
  if (model.norm == Norm::layernorm) {
    stats.mean_g = sum_of_products(weight, dh, d) / static_cast<float>(d);
  }
  // In a tail, the loaded dh is zero beyond count, so the centred x needs no mask.
  stats.mean_g_xhat =
      sum_over(d,
               [&](int64_t j, int64_t count) {
                 const Vec xhat = (load(x + j, count) - stats.mean) * stats.r;
                 return (offset + load(weight + j, count)) * load(dh + j, count) * xhat;
               }) /
      static_cast<float>(d);
  return stats;
}

void add_parameter_gradients(ThreadPool& pool, int64_t d, const float* x, const float* dh,
                             int64_t n, const RowStats* stats, NormTensors<float> gradients) {
  for_pieces(pool, ceil_div(d, kSumCols), [&](int64_t piece) {
    const int64_t first = piece * kSumCols;
    const int64_t cols = std::min(kSumCols, d - first);
    for (int64_t begin = 0; begin < n; begin += kSumRows) {
      const int64_t end = std::min(n, begin + kSumRows);
      for_lanes(cols, [&](int64_t j, int64_t count) {
        const int64_t col = first + j;
        Vec weight{};
        Vec bias{};
        for (int64_t i = begin; i < end; ++i) {
          const Vec g = load(dh + i * d + col, count);
          weight += g * ((load(x + i * d + col, count) - stats[i].mean) * stats[i].r);
          bias += g;
        }
        store(gradients.weight + col, load(gradients.weight + col, count) + weight, count);
        if (gradients.bias != nullptr) {
          store(gradients.bias + col, load(gradients.bias + col, count) + bias, count);
        }
      });
    }
  });
}

}  // namespace

void norm_forward(ThreadPool& pool, const ModelSpec& model, NormTensors<const float> parameters,
                  const float* x, int64_t n, float* h) {
  const int64_t d = model.hidden;
  const float offset = offset_of(model);
  for_rows(pool, n, d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* from = x + i * d;
      const RowStats stats = row_stats(model, from);
      for_lanes(d, [&](int64_t j, int64_t count) {
        const Vec weight = offset + load(parameters.weight + j, count);
        Vec v = (load(from + j, count) - stats.mean) * stats.r * weight;
        if (parameters.bias != nullptr) v += load(parameters.bias + j, count);
        store(h + i * d + j, v, count);
      });
    }
  });
}

void norm_backward(ThreadPool& pool, const ModelSpec& model, NormTensors<const float> parameters,
                   const float* x, const float* dh, int64_t n, const float* more, float* dx,
                   NormTensors<float> gradients) {
  const int64_t d = model.hidden;
  const float offset = offset_of(model);
  RowStats stats[kBackwardRows];
  for (int64_t first = 0; first < n; first += kBackwardRows) {
    const int64_t rows = std::min(kBackwardRows, n - first);
    const float* x_part = x + first * d;
    const float* dh_part = dh + first * d;
    for_rows(pool, rows, d, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        stats[i] = backward_stats(model, parameters.weight, x_part + i * d, dh_part + i * d);
      }
    });
    // Must precede the writes of dx, which may alias x.
    if (gradients.weight != nullptr) {
      add_parameter_gradients(pool, d, x_part, dh_part, rows, stats, gradients);
    }
    for_rows(pool, rows, d, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const RowStats& s = stats[i];
        const int64_t row = (first + i) * d;
        for_lanes(d, [&](int64_t j, int64_t count) {
          const Vec xhat = (load(x_part + i * d + j, count) - s.mean) * s.r;
          const Vec weight = offset + load(parameters.weight + j, count);
          const Vec g = weight * load(dh_part + i * d + j, count);
          Vec v = s.r * (g - s.mean_g - xhat * s.mean_g_xhat);
          if (more != nullptr) v += load(more + row + j, count);
          store(dx + row + j, v, count);
        });
      }
    });
  }
}

void head_norm_forward(const ModelSpec& model, const float* weight, int64_t width, float* x) {
  const float offset = offset_of(model);
  const float r = inverse_root(sum_of_products(x, x, width), width, model.norm_eps);
  for_lanes(width, [&](int64_t j, int64_t count) {
    store(x + j, load(x + j, count) * r * (offset + load(weight + j, count)), count);
  });
}

void head_norm_backward(const ModelSpec& model, const float* weight, int64_t width, float* x,
                        float* dx) {
  const float offset = offset_of(model);
  const float r = inverse_root(sum_of_products(x, x, width), width, model.norm_eps);
  const auto term = [&](int64_t j, int64_t count) {
    const Vec g = (offset + load(weight + j, count)) * load(dx + j, count);
    return g * (load(x + j, count) * r);
  };
  const float mean_g_xhat = sum_over(width, term) / static_cast<float>(width);
  for_lanes(width, [&](int64_t j, int64_t count) {
    const Vec xhat = load(x + j, count) * r;
    const Vec dy = load(dx + j, count);
    const Vec g = (offset + load(weight + j, count)) * dy;
    store(dx + j, r * (g - xhat * mean_g_xhat), count);
    store(x + j, dy * xhat, count);
  });
}

}  // namespace longspan::cpu
