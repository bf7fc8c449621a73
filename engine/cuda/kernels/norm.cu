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

// Packs of a row that each member of a team keeps in registers. Rows that are longer, or not in
// packs, are read again instead.
constexpr int kHeld = 4;

// The elements of a row that one member of a team works on.
template <class T>
class RowPart {
 public:
  template <class Members>
  LONGSPAN_BODY RowPart(const Members& team, bool packs, int64_t width, const T* row)
      : row_(row), width_(width), packs_(width / kPack), in_packs_(packs) {
    is_held_ = packs && width % kPack == 0 && packs_ <= kHeld * team.size();
    if (!is_held_) return;
    for_held(team, [&](int i, int64_t j) { load(row + j, held_[i]); });
  }

  /// Runs body(N, j, x) for all elements x of the part: for N of them from column j on.
  template <class Members, class Body>
  LONGSPAN_BODY void each(const Members& team, Body body) const {
    if (is_held_) {
      for_held(team, [&](int i, int64_t j) { body(Whole(), j, held_[i]); });
      return;
    }
    each_pack(team, in_packs_, width_, [&](auto lanes, int64_t j) {
      float x[lanes.value];
      load(row_ + j, x);
      body(lanes, j, x);
    });
  }

  /// Runs body(N, j, x, y) for all elements of this part and of the same part of another row.
  /// REQUIRES: both were made with the same team, packs and width.
  template <class Members, class Other, class Body>
  LONGSPAN_BODY void each_with(const Members& team, const RowPart<Other>& other, Body body) const {
    if (is_held_) {
      for_held(team, [&](int i, int64_t j) { body(Whole(), j, held_[i], other.held_[i]); });
      return;
    }
    each_pack(team, in_packs_, width_, [&](auto lanes, int64_t j) {
      float x[lanes.value], y[lanes.value];
      load(row_ + j, x);
      load(other.row_ + j, y);
      body(lanes, j, x, y);
    });
  }

 private:
  template <class Other>
  friend class RowPart;
  using Whole = std::integral_constant<int, kPack>;

  // The compiler unrolls this, so the packs stay in registers.
  template <class Members, class Body>
  LONGSPAN_BODY void for_held(const Members& team, Body body) const {
    for (int i = 0; i < kHeld; ++i) {
      const int64_t pack = team.rank() + static_cast<int64_t>(i) * team.size();
      if (pack < packs_) body(i, pack * kPack);
    }
  }

  const T* row_;
  int64_t width_, packs_;
  bool in_packs_, is_held_ = false;
  float held_[kHeld][kPack];
};

template <class Members, class T>
LONGSPAN_BODY RowStats row_stats(const Members& team, NormKind kind, const RowPart<T>& part) {
  const float width = static_cast<float>(kind.width);
  float mean = 0;
  if (kind.centers) {
    float sum = 0;
    part.each(team, [&](auto lanes, int64_t, const auto& x) {
      for (int k = 0; k < lanes.value; ++k) sum += x[k];
    });
    mean = team.sum(sum) / width;
  }
  float squares = 0;
  part.each(team, [&](auto lanes, int64_t, const auto& x) {
    for (int k = 0; k < lanes.value; ++k) squares += (x[k] - mean) * (x[k] - mean);
  });
  return {mean, inverse_root(team.sum(squares) / width + kind.epsilon)};
}

// Normalizes a row by a team, which may be a warp. `to` may be `from`: all members have read their
// parts when the first sum returns.
template <class Members, class T>
LONGSPAN_BODY void normalize_row(const Members& team, NormKind kind, bool packs,
                                 NormTensors<const T> parameters, const T* from, T* to) {
  const RowPart<T> part(team, packs, kind.width, from);
  const RowStats stats = row_stats(team, kind, part);
  part.each(team, [&](auto lanes, int64_t j, const auto& x) {
    float weight[lanes.value], bias[lanes.value] = {}, y[lanes.value];
    load(parameters.weight + j, weight);
    if (parameters.bias != nullptr) load(parameters.bias + j, bias);
    for (int k = 0; k < lanes.value; ++k) {
      y[k] = (x[k] - stats.mean) * stats.r * (kind.offset + weight[k]) + bias[k];
    }
    store(y, to + j);
  });
}

}  // namespace

template <class T>
void norm_forward(const Queue& queue, NormKind kind, NormTensors<const T> parameters, const T* x,
                  int64_t n, T* h) {
  const bool packs = in_packs({kind.width}, {x, h, parameters.weight, parameters.bias});
  for_each_row(queue, n, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
    normalize_row(team, kind, packs, parameters, x + row * kind.width, h + row * kind.width);
  });
}

template <class T>
void norm_backward(const Queue& queue, NormKind kind, NormTensors<const T> parameters, const T* x,
                   const T* dh, int64_t n, const T* more, T* dx, NormTensors<float> gradients) {
  RowStats* stats = reinterpret_cast<RowStats*>(queue.scratch);
  const int64_t d = kind.width;
  const bool packs = in_packs({d}, {x, dh, more, dx, parameters.weight});
  for (int64_t first = 0; first < n; first += kStatsRows) {
    const int64_t rows = std::min(kStatsRows, n - first);
    const T* xs = x + first * d;
    const T* dhs = dh + first * d;
    const T* mores = more == nullptr ? nullptr : more + first * d;
    T* dxs = dx + first * d;
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      const RowPart<T> part(team, packs, d, xs + row * d);
      const RowStats s = row_stats(team, kind, part);
      if (team.rank() == 0) stats[row] = s;
    });
    // Must precede the writes of dx, which may alias x or dh.
    std::byte* partial = queue.scratch + kStatsBytes;
    const int64_t room = kScratchBytes - kStatsBytes;
    if (gradients.weight != nullptr) {
      add_column_sums(
          queue, rows, d, partial, room,
          [=] LONGSPAN_BODY(int64_t i, int64_t j) {
            const float xhat = (to_float(xs[i * d + j]) - stats[i].mean) * stats[i].r;
            return to_float(dhs[i * d + j]) * xhat;
          },
          gradients.weight);
    }
    if (gradients.bias != nullptr) {
      add_column_sums(
          queue, rows, d, partial, room,
          [=] LONGSPAN_BODY(int64_t i, int64_t j) { return to_float(dhs[i * d + j]); },
          gradients.bias);
    }
    const T* weight = parameters.weight;
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      const RowStats s = stats[row];
      const RowPart<T> of_x(team, packs, d, xs + row * d), of_dh(team, packs, d, dhs + row * d);
      T* to = dxs + row * d;
      float sum_g = 0, sum_g_xhat = 0;
      of_x.each_with(team, of_dh,
                     [&](auto lanes, int64_t j, const auto& x_row, const auto& dh_row) {
                       float w[lanes.value];
                       load(weight + j, w);
                       for (int k = 0; k < lanes.value; ++k) {
                         const float g = (kind.offset + w[k]) * dh_row[k];
                         sum_g += g;
                         sum_g_xhat += g * ((x_row[k] - s.mean) * s.r);
                       }
                     });
      const float mean_g = kind.centers ? team.sum(sum_g) / static_cast<float>(d) : 0;
      const float mean_g_xhat = team.sum(sum_g_xhat) / static_cast<float>(d);
      of_x.each_with(team, of_dh,
                     [&](auto lanes, int64_t j, const auto& x_row, const auto& dh_row) {
                       float w[lanes.value], value[lanes.value] = {};
                       load(weight + j, w);
                       if (mores != nullptr) load(mores + row * d + j, value);
                       for (int k = 0; k < lanes.value; ++k) {
                         const float xhat = (x_row[k] - s.mean) * s.r;
                         const float g = (kind.offset + w[k]) * dh_row[k];
                         value[k] += s.r * (g - mean_g - xhat * mean_g_xhat);
                       }
                       store(value, to + j);
                     });
    });
  }
}

template <class T>
void head_norm_forward(const Queue& queue, NormKind kind, const T* weight, int64_t n, T* x) {
  const int64_t width = kind.width;
  const bool packs = in_packs({width}, {x, weight});
  for_each_warp(queue, n, [=] LONGSPAN_BODY(const Warp& warp, int64_t row) {
    // The compiler then knows that a mean is never subtracted.
    const NormKind of_head{false, kind.epsilon, width, kind.offset};
    normalize_row<Warp, T>(warp, of_head, packs, {weight, nullptr}, x + row * width,
                           x + row * width);
  });
}

template <class T>
void head_norm_backward(const Queue& queue, NormKind kind, const T* weight, int64_t n, const T* x,
                        float* dx, float* gradient) {
  const int64_t width = kind.width;
  const bool packs = in_packs({width}, {x, dx, weight});
  RowStats* stats = reinterpret_cast<RowStats*>(queue.scratch);
  for (int64_t first = 0; first < n; first += kStatsRows) {
    const int64_t rows = std::min(kStatsRows, n - first);
    const T* xs = x + first * width;
    float* dxs = dx + first * width;
    for_each_warp(queue, rows, [=] LONGSPAN_BODY(const Warp& warp, int64_t row) {
      const RowPart<T> part(warp, packs, width, xs + row * width);
      const RowStats s = row_stats(warp, kind, part);
      if (warp.rank() == 0) stats[row] = s;
    });
    if (gradient != nullptr) {
      add_column_sums(
          queue, rows, width, queue.scratch + kStatsBytes, kScratchBytes - kStatsBytes,
          [=] LONGSPAN_BODY(int64_t i, int64_t j) {
            return dxs[i * width + j] * (to_float(xs[i * width + j]) * stats[i].r);
          },
          gradient);
    }
    for_each_warp(queue, rows, [=] LONGSPAN_BODY(const Warp& warp, int64_t row) {
      const float r = stats[row].r;
      const RowPart<T> of_x(warp, packs, width, xs + row * width);
      float* to = dxs + row * width;
      const RowPart<float> of_dh(warp, packs, width, to);
      float sum = 0;
      of_x.each_with(warp, of_dh,
                     [&](auto lanes, int64_t j, const auto& x_row, const auto& dh_row) {
                       float w[lanes.value];
                       load(weight + j, w);
                       for (int k = 0; k < lanes.value; ++k)
                         sum += (kind.offset + w[k]) * dh_row[k] * (x_row[k] * r);
                     });
      const float mean = warp.sum(sum) / static_cast<float>(width);
      of_x.each_with(warp, of_dh,
                     [&](auto lanes, int64_t j, const auto& x_row, const auto& dh_row) {
                       float w[lanes.value], value[lanes.value];
                       load(weight + j, w);
                       for (int k = 0; k < lanes.value; ++k) {
                         const float g = (kind.offset + w[k]) * dh_row[k];
                         value[k] = r * (g - x_row[k] * r * mean);
                       }
                       store(value, to + j);
                     });
    });
  }
}

template void norm_forward(const Queue&, NormKind, NormTensors<const float>, const float*, int64_t,
                           float*);
template void norm_forward(const Queue&, NormKind, NormTensors<const bfloat16>, const bfloat16*,
                           int64_t, bfloat16*);
template void norm_backward(const Queue&, NormKind, NormTensors<const float>, const float*,
                            const float*, int64_t, const float*, float*, NormTensors<float>);
template void norm_backward(const Queue&, NormKind, NormTensors<const bfloat16>, const bfloat16*,
                            const bfloat16*, int64_t, const bfloat16*, bfloat16*,
                            NormTensors<float>);
template void head_norm_forward(const Queue&, NormKind, const float*, int64_t, float*);
template void head_norm_forward(const Queue&, NormKind, const bfloat16*, int64_t, bfloat16*);
template void head_norm_backward(const Queue&, NormKind, const float*, int64_t, const float*,
                                 float*, float*);
template void head_norm_backward(const Queue&, NormKind, const bfloat16*, int64_t, const bfloat16*,
                                 float*, float*);

}  // namespace longspan::cuda
