#include "engine/cuda/kernels/loss.h"

#include "engine/cuda/kernels/softmax.cuh"
#include "engine/cuda/kernels/sums.cuh"
#include "engine/cuda/launch.h"
#include "engine/runtime/labels.h"

namespace longspan::cuda {
namespace {

// Rows per round. Their losses are stored in scratch, after the scratch of their sum.
constexpr int64_t kRoundRows = 4 * 1024 * 1024;
static_assert(kSumBytes + kRoundRows * static_cast<int64_t>(sizeof(float)) <= kScratchBytes);

}  // namespace

template <class T>
void cross_entropy(const Queue& queue, const int32_t* labels, int64_t n, int64_t vocab,
                   double scale, T* logits, double* loss, float* log_probs) {
  float* losses = reinterpret_cast<float*>(queue.scratch + kSumBytes);
  Fault* fault = queue.fault;
  const float factor = static_cast<float>(scale);
  for (int64_t first = 0; first < n; first += kRoundRows) {
    const int64_t rows = std::min(kRoundRows, n - first);
    const int32_t* wanted = labels + first;
    T* x = logits + first * vocab;
    const bool packs = in_packs({vocab}, {x});
    float* const own = log_probs == nullptr ? nullptr : log_probs + first;
    for_each_row(queue, rows, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
      T* const at = x + row * vocab;
      const int32_t label = wanted[row];
      const bool unlabelled = label == kNoLabel;
      const bool valid = unlabelled || (label >= 0 && label < vocab);
      const SoftmaxTerms terms = softmax_terms(team, packs, at, vocab, valid ? label : -1);
      const float top = terms.top;
      const float share = 1 / terms.sum, weight = unlabelled ? 0 : factor;
      if (own == nullptr) {
        each_pack(team, packs, vocab, [&](auto lanes, int64_t j) {
          float value[lanes.value];
          load(at + j, value);
          for (int k = 0; k < lanes.value; ++k) {
            const float p = expf(value[k] - top) * share;
            value[k] = weight * (j + k == label ? p - 1 : p);
          }
          store(value, at + j);
        });
      }
      if (team.rank() != 0) return;
      losses[row] = unlabelled ? 0 : logf(terms.sum) + (top - terms.label);
      if (own != nullptr) own[row] = unlabelled ? NAN : -losses[row];
      if (!valid) *fault = {Fault::Kind::label, label};
    });
    add_sum(
        queue, rows, queue.scratch,
        [=] LONGSPAN_BODY(int64_t i) { return static_cast<double>(losses[i]); }, scale, loss);
  }
  for_each(queue, 1, [=] LONGSPAN_BODY(int64_t) {
    if (!finite(*loss) && fault->kind == Fault::Kind::none) *fault = {Fault::Kind::loss, 0};
  });
}

template void cross_entropy(const Queue&, const int32_t*, int64_t, int64_t, double, float*, double*,
                            float*);
template void cross_entropy(const Queue&, const int32_t*, int64_t, int64_t, double, bfloat16*,
                            double*, float*);

}  // namespace longspan::cuda
