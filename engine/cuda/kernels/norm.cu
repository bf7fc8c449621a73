#include "engine/cuda/kernels/norm.h"

#include <cmath>

#include "engine/cuda/kernels/columns.cuh"
#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

struct RowStats {
  float mean, r;
};

// Rows per round. Their statistics are at the beginning of scratch, followed by column sums.
constexpr int64_t kStatsRows = 128 * 1024;
constexpr int64_t kStatsBytes = kStatsRows * static_cast<int64_t>(sizeof(RowStats));

template <class T>
LONGSPAN_BODY RowStats row_stats(const Team& team, NormKind kind, const T* x) {
  const float width = static_cast<float>(kind.width);
  float mean = 0;
  if (kind.centers) {
    float sum = 0;
    for (int64_t j = team.rank(); j < kind.width; j += team.size()) sum += to_float(x[j]);
    mean = team.sum(sum) / width;
  }
  float squares = 0;
  for (int64_t j = team.rank(); j < kind.width; j += team.size()) {
    const float v = to_float(x[j]) - mean;
    squares += v * v;
  }
  return {mean, 1 / sqrtf(team.sum(squares) / width + kind.epsilon)};
}

}  // namespace

template <class T>
void norm_forward(const Queue& queue, NormKind kind, NormTensors<const T> parameters, const T* x,
                  int64_t n, T* h) {
  for_each_row(queue, n, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
    const T* from = x + row * kind.width;
    T* to = h + row * kind.width;
    const RowStats stats = row_stats(team, kind, from);
    for (int64_t j = team.rank(); j < kind.width; j += team.size()) {
      float v = (to_float(from[j]) - stats.mean) * stats.r * to_float(parameters.weight[j]);
      if (parameters.bias != nullptr) v += to_float(parameters.bias[j]);
      to[j] = from_float<T>(v);
    }
  });
}

template <class T>
void norm_backward(const Queue& queue, NormKind kind, NormTensors<const T> parameters, const T* x,
                   const T* dh, int64_t n, bool add, T* dx, NormTensors<float> gradients) {
  RowStats* stats = reinterpret_cast<RowStats*>(queue.scratch);
  const int64_t d = kind.width;
  for (int64_t first = 0; first < n; first += kStatsRows) {
    const int64_t rows = std::min(kStatsRows, n - first);
    const T* xs = x + first * d;
    const T* dhs = dh + first * d;
    T* dxs = dx + first * d;
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      const RowStats s = row_stats(team, kind, xs + row * d);
      if (team.rank() == 0) stats[row] = s;
    });
    // Must precede the writes of dx, which may alias x or dh.
    std::byte* partial = queue.scratch + kStatsBytes;
    const int64_t room = kScratchBytes - kStatsBytes;
    add_column_sums(
        queue, rows, d, partial, room,
        [=] LONGSPAN_BODY(int64_t i, int64_t j) {
          const float xhat = (to_float(xs[i * d + j]) - stats[i].mean) * stats[i].r;
          return to_float(dhs[i * d + j]) * xhat;
        },
        gradients.weight);
    if (gradients.bias != nullptr) {
      add_column_sums(
          queue, rows, d, partial, room,
          [=] LONGSPAN_BODY(int64_t i, int64_t j) { return to_float(dhs[i * d + j]); },
          gradients.bias);
    }
    const T* weight = parameters.weight;
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      const RowStats s = stats[row];
      const T* x_row = xs + row * d;
      const T* dh_row = dhs + row * d;
      T* to = dxs + row * d;
      float sum_g = 0, sum_g_xhat = 0;
      for (int64_t j = team.rank(); j < d; j += team.size()) {
        const float g = to_float(weight[j]) * to_float(dh_row[j]);
        sum_g += g;
        sum_g_xhat += g * ((to_float(x_row[j]) - s.mean) * s.r);
      }
      const float mean_g = kind.centers ? team.sum(sum_g) / static_cast<float>(d) : 0;
      const float mean_g_xhat = team.sum(sum_g_xhat) / static_cast<float>(d);
      for (int64_t j = team.rank(); j < d; j += team.size()) {
        const float xhat = (to_float(x_row[j]) - s.mean) * s.r;
        const float g = to_float(weight[j]) * to_float(dh_row[j]);
        float v = s.r * (g - mean_g - xhat * mean_g_xhat);
        if (add) v += to_float(to[j]);
        to[j] = from_float<T>(v);
      }
    });
  }
}

template <class T>
void head_norm_forward(const Queue& queue, const T* weight, float epsilon, int64_t n, int64_t width,
                       T* x) {
  norm_forward<T>(queue, {false, epsilon, width}, {weight, nullptr}, x, n, x);
}

template <class T>
void head_norm_backward(const Queue& queue, const T* weight, float epsilon, int64_t n,
                        int64_t width, const T* x, float* dx, float* gradient) {
  const NormKind kind{false, epsilon, width};
  RowStats* stats = reinterpret_cast<RowStats*>(queue.scratch);
  for (int64_t first = 0; first < n; first += kStatsRows) {
    const int64_t rows = std::min(kStatsRows, n - first);
    const T* xs = x + first * width;
    float* dxs = dx + first * width;
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      const RowStats s = row_stats(team, kind, xs + row * width);
      if (team.rank() == 0) stats[row] = s;
    });
    add_column_sums(
        queue, rows, width, queue.scratch + kStatsBytes, kScratchBytes - kStatsBytes,
        [=] LONGSPAN_BODY(int64_t i, int64_t j) {
          return dxs[i * width + j] * (to_float(xs[i * width + j]) * stats[i].r);
        },
        gradient);
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      const float r = stats[row].r;
      const T* x_row = xs + row * width;
      float* to = dxs + row * width;
      float sum = 0;
      for (int64_t j = team.rank(); j < width; j += team.size()) {
        sum += to_float(weight[j]) * to[j] * (to_float(x_row[j]) * r);
      }
      const float mean = team.sum(sum) / static_cast<float>(width);
      for (int64_t j = team.rank(); j < width; j += team.size()) {
        to[j] = r * (to_float(weight[j]) * to[j] - to_float(x_row[j]) * r * mean);
      }
    });
  }
}

template void norm_forward(const Queue&, NormKind, NormTensors<const float>, const float*, int64_t,
                           float*);
template void norm_forward(const Queue&, NormKind, NormTensors<const bfloat16>, const bfloat16*,
                           int64_t, bfloat16*);
template void norm_backward(const Queue&, NormKind, NormTensors<const float>, const float*,
                            const float*, int64_t, bool, float*, NormTensors<float>);
template void norm_backward(const Queue&, NormKind, NormTensors<const bfloat16>, const bfloat16*,
                            const bfloat16*, int64_t, bool, bfloat16*, NormTensors<float>);
template void head_norm_forward(const Queue&, const float*, float, int64_t, int64_t, float*);
template void head_norm_forward(const Queue&, const bfloat16*, float, int64_t, int64_t, bfloat16*);
template void head_norm_backward(const Queue&, const float*, float, int64_t, int64_t, const float*,
                                 float*, float*);
template void head_norm_backward(const Queue&, const bfloat16*, float, int64_t, int64_t,
                                 const bfloat16*, float*, float*);

}  // namespace longspan::cuda
