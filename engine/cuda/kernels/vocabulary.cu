#include "engine/cuda/kernels/vocabulary.h"

#include <cmath>

#include "engine/cuda/kernels/softmax.cuh"
#include "engine/cuda/kernels/sums.cuh"
#include "engine/cuda/launch.h"
#include "engine/runtime/labels.h"

namespace longspan::cuda {
namespace {

// The label's row of a share; -1 if another rank has it.
LONGSPAN_DEVICE int64_t row_of(const VocabularyRows& share, int32_t label) {
  const int64_t row = label - share.first;
  return 0 <= row && row < share.rows ? row : -1;
}

}  // namespace

template <class T>
void share_terms(const Queue& queue, const VocabularyRows& share, const int32_t* labels, int64_t n,
                 bool exponentials, T* logits, float* terms) {
  const VocabularyRows own = share;
  const int64_t width = share.rows;
  Fault* fault = queue.fault;
  SoftmaxTerms* all = reinterpret_cast<SoftmaxTerms*>(terms);
  const bool packs = in_packs({width}, {logits});
  for_each_row(queue, n, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
    T* const at = logits + row * width;
    const int64_t label = row_of(own, labels[row]);
    const SoftmaxTerms own_terms = softmax_terms(team, packs, at, width, label);
    const float top = own_terms.top;
    if (exponentials) {
      each_pack(team, packs, width, [&](auto lanes, int64_t j) {
        float value[lanes.value];
        load(at + j, value);
        for (int k = 0; k < lanes.value; ++k) value[k] = expf(value[k] - top);
        store(value, at + j);
      });
    }
    if (team.rank() != 0) return;
    all[row] = own_terms;
    if (labels[row] == kNoLabel) {
      // The gradient of a token without a label, divided by the sum, is 0.
      all[row] = {0, INFINITY, 0};
    } else if (labels[row] < 0 || labels[row] >= own.whole) {
      *fault = {Fault::Kind::label, labels[row]};
    }
  });
}

void merge_terms(const Queue& queue, const float* part, int64_t n, bool first, float* terms) {
  const SoftmaxTerms* more = reinterpret_cast<const SoftmaxTerms*>(part);
  SoftmaxTerms* all = reinterpret_cast<SoftmaxTerms*>(terms);
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t i) {
    if (first) {
      all[i] = more[i];
      return;
    }
    const float top = fmaxf(all[i].top, more[i].top);
    all[i].sum = all[i].sum * expf(all[i].top - top) + more[i].sum * expf(more[i].top - top);
    all[i].top = top;
    all[i].label += more[i].label;
  });
}

template <class T>
void label_rows(const Queue& queue, const VocabularyRows& share, int64_t hidden, const T* output,
                const int32_t* labels, int64_t n, T* to, int64_t stride) {
  const VocabularyRows own = share;
  const bool packs = in_packs({hidden, stride}, {output, to});
  for_each_pack(queue, packs, n, hidden, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    const int64_t label = row_of(own, labels[row]);
    float value[lanes.value] = {};
    if (label >= 0) load(output + label * hidden + j, value);
    store(value, to + row * stride + j);
  });
}

template <class T>
void combine_shares(const Queue& queue, int64_t hidden, const T* part, const float* part_terms,
                    const float* terms, int64_t n, bool first, double scale, T* dh) {
  const SoftmaxTerms* own = reinterpret_cast<const SoftmaxTerms*>(part_terms);
  const SoftmaxTerms* all = reinterpret_cast<const SoftmaxTerms*>(terms);
  const float weight = static_cast<float>(scale);
  const bool packs = in_packs({hidden}, {part, dh});
  for_each_pack(queue, packs, n, hidden, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    const float factor = weight * expf(own[row].top - all[row].top) * (1 / all[row].sum);
    float value[lanes.value], label[lanes.value], sum[lanes.value] = {};
    load(part + 2 * row * hidden + j, value);
    load(part + (2 * row + 1) * hidden + j, label);
    if (!first) load(dh + row * hidden + j, sum);
    for (int k = 0; k < lanes.value; ++k) sum[k] += value[k] * factor - label[k] * weight;
    store(sum, dh + row * hidden + j);
  });
}

template <class T>
void share_gradient(const Queue& queue, const VocabularyRows& share, const int32_t* labels,
                    const float* terms, int64_t n, double scale, T* logits) {
  const VocabularyRows own = share;
  const int64_t width = share.rows;
  const SoftmaxTerms* all = reinterpret_cast<const SoftmaxTerms*>(terms);
  const float weight = static_cast<float>(scale);
  const bool packs = in_packs({width}, {logits});
  for_each_row(queue, n, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
    T* const at = logits + row * width;
    const int64_t label = row_of(own, labels[row]);
    const bool unlabelled = labels[row] == kNoLabel;
    const float top = all[row].top, part = 1 / all[row].sum;
    each_pack(team, packs, width, [&](auto lanes, int64_t j) {
      float value[lanes.value];
      load(at + j, value);
      for (int k = 0; k < lanes.value; ++k) {
        const float p = expf(value[k] - top) * part;
        value[k] = unlabelled ? 0 : weight * (j + k == label ? p - 1 : p);
      }
      store(value, at + j);
    });
  });
}

void add_loss(const Queue& queue, const float* terms, int64_t n, double scale, double* loss) {
  const SoftmaxTerms* all = reinterpret_cast<const SoftmaxTerms*>(terms);
  Fault* fault = queue.fault;
  add_sum(
      queue, n, queue.scratch,
      [=] LONGSPAN_BODY(int64_t i) {
        const bool unlabelled = all[i].sum == INFINITY;
        return unlabelled ? 0 : static_cast<double>(logf(all[i].sum) + (all[i].top - all[i].label));
      },
      scale, loss);
  for_each(queue, 1, [=] LONGSPAN_BODY(int64_t) {
    if (!finite(*loss) && fault->kind == Fault::Kind::none) *fault = {Fault::Kind::loss, 0};
  });
}

template void share_terms(const Queue&, const VocabularyRows&, const int32_t*, int64_t, bool,
                          float*, float*);
template void share_terms(const Queue&, const VocabularyRows&, const int32_t*, int64_t, bool,
                          bfloat16*, float*);
template void label_rows(const Queue&, const VocabularyRows&, int64_t, const float*, const int32_t*,
                         int64_t, float*, int64_t);
template void label_rows(const Queue&, const VocabularyRows&, int64_t, const bfloat16*,
                         const int32_t*, int64_t, bfloat16*, int64_t);
template void combine_shares(const Queue&, int64_t, const float*, const float*, const float*,
                             int64_t, bool, double, float*);
template void combine_shares(const Queue&, int64_t, const bfloat16*, const float*, const float*,
                             int64_t, bool, double, bfloat16*);
template void share_gradient(const Queue&, const VocabularyRows&, const int32_t*, const float*,
                             int64_t, double, float*);
template void share_gradient(const Queue&, const VocabularyRows&, const int32_t*, const float*,
                             int64_t, double, bfloat16*);

}  // namespace longspan::cuda
