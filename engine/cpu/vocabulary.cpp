// The output layer of one rank's share of a cut vocabulary.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/norm.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/softmax.h"
#include "engine/runtime/labels.h"

namespace longspan::cpu {
namespace {

// The columns of vocabulary_terms.
struct Terms {
  float top, sum, label;
};

Terms& terms_of(float* terms, int64_t row) {
  static_assert(sizeof(Terms) == kTermColumns * sizeof(float));
  return reinterpret_cast<Terms*>(terms)[row];
}
const Terms& terms_of(const float* terms, int64_t row) {
  return reinterpret_cast<const Terms*>(terms)[row];
}

// The terms of a token without a label: its gradient, divided by the sum, is 0.
constexpr Terms kUnlabelled{0, std::numeric_limits<float>::infinity(), 0};

// The label's row of a share; -1 if another rank has it.
int64_t row_of(int32_t label, const VocabularyShare& share, int64_t rows) {
  const int64_t row = label - share.first;
  return 0 <= row && row < rows ? row : -1;
}

NormTensors<const float> final_norm(const ModelSpec& model, const float* head) {
  return norm_tensors(head, 0, model.norm == Norm::layernorm ? model.hidden : -1);
}

// Calls `use(first, count, logits)` for tiles of rows of h with their logits[count,rows], which it
// may overwrite.
template <class Use>
void for_logits(const BlockContext& context, const float* output, const float* h, int64_t n,
                int64_t tile, float* logits, Use use) {
  const int64_t d = context.model->hidden, rows = context.model->vocab;
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t count = std::min(tile, n - first);
    gemm_nt(*context.pool, count, rows, d, h + first * d, d, output, d, Into::write, logits, rows);
    use(first, count, logits);
  }
}

}  // namespace

int64_t vocabulary_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  return checked_mul(std::min(n, tile), model.vocab, "vocabulary workspace");
}

void final_norm_forward(const BlockContext& context, const float* head, const float* x, int64_t n,
                        float* h) {
  norm_forward(*context.pool, *context.model, final_norm(*context.model, head), x, n, h);
}

void final_norm_backward(const BlockContext& context, const float* head, const float* x,
                         const float* dh, int64_t n, float* dx, float* head_gradient) {
  const ModelSpec& model = *context.model;
  const int64_t bias = model.norm == Norm::layernorm ? model.hidden : -1;
  norm_backward(*context.pool, model, final_norm(model, head), x, dh, n, nullptr, dx,
                norm_tensors(head_gradient, 0, bias));
}

void vocabulary_forward(const BlockContext& context, const float* output, const float* h,
                        const int32_t* labels, int64_t n, int64_t tile, float* terms,
                        float* gradient, float* workspace) {
  ThreadPool& pool = *context.pool;
  const VocabularyShare& share = context.share;
  const int64_t d = context.model->hidden, rows = context.model->vocab;
  check_labels(labels, n, share.all(rows));
  for_logits(context, output, h, n, tile, workspace,
             [&](int64_t first, int64_t count, float* logits) {
               for_rows(pool, count, rows, [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   float* at = logits + i * rows;
                   if (labels[first + i] == kNoLabel) {
                     terms_of(terms, first + i) = kUnlabelled;
                     std::fill_n(at, rows, 0.0F);
                     continue;
                   }
                   const int64_t label = row_of(labels[first + i], share, rows);
                   const float logit = label < 0 ? 0 : at[label];
                   const float top = max_of(at, rows);
                   const auto sum = static_cast<float>(exponentials(at, rows, top));
                   terms_of(terms, first + i) = {top, sum, logit};
                 }
               });
               if (gradient == nullptr) return;
               float* part = gradient + first * 2 * d;
               gemm_nn(pool, count, d, rows, logits, rows, output, d, Into::write, part, 2 * d);
               for (int64_t i = 0; i < count; ++i) {
                 const int64_t label = row_of(labels[first + i], share, rows);
                 float* row = part + (2 * i + 1) * d;
                 if (label < 0) {
                   std::fill_n(row, d, 0.0F);
                 } else {
                   std::copy_n(output + label * d, d, row);
                 }
               }
             });
}

void vocabulary_merge(const float* part, int64_t n, bool first, float* terms) {
  for (int64_t i = 0; i < n; ++i) {
    const Terms& more = terms_of(part, i);
    Terms& all = terms_of(terms, i);
    if (first) {
      all = more;
      continue;
    }
    const float top = std::max(all.top, more.top);
    all.sum = all.sum * std::exp(all.top - top) + more.sum * std::exp(more.top - top);
    all.top = top;
    all.label += more.label;
  }
}

void vocabulary_combine(const BlockContext& context, const float* part, const float* part_terms,
                        const float* terms, int64_t n, bool first, double scale, float* dh) {
  const int64_t d = context.model->hidden;
  const auto weight = static_cast<float>(scale);
  for_rows(*context.pool, n, d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Terms& all = terms_of(terms, i);
      const float factor = weight * std::exp(terms_of(part_terms, i).top - all.top) / all.sum;
      const float* sum = part + 2 * i * d;
      const float* label = sum + d;
      float* at = dh + i * d;
      for_lanes(d, [&](int64_t j, int64_t count) {
        const Vec own = load(sum + j, count) * factor - load(label + j, count) * weight;
        store(at + j, first ? own : load(at + j, count) + own, count);
      });
    }
  });
}

void vocabulary_backward(const BlockContext& context, const float* output, const float* h,
                         const int32_t* labels, const float* terms, int64_t n, int64_t tile,
                         double scale, float* output_gradient, float* dh, double* loss,
                         float* workspace) {
  ThreadPool& pool = *context.pool;
  const VocabularyShare& share = context.share;
  const int64_t d = context.model->hidden, rows = context.model->vocab;
  const auto weight = static_cast<float>(scale);
  for_logits(
      context, output, h, n, tile, workspace, [&](int64_t first, int64_t count, float* logits) {
        for_rows(pool, count, rows, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const Terms& all = terms_of(terms, first + i);
            float* at = logits + i * rows;
            if (labels[first + i] == kNoLabel) {
              std::fill_n(at, rows, 0.0F);
              continue;
            }
            const float factor = weight / all.sum;
            for_lanes(rows, [&](int64_t j, int64_t lanes) {
              store(at + j, exp(load(at + j, lanes) - all.top) * factor, lanes);
            });
            const int64_t label = row_of(labels[first + i], share, rows);
            if (label >= 0) at[label] -= weight;
          }
        });
        gemm_tn(pool, rows, d, count, logits, rows, h + first * d, d, Into::add, output_gradient,
                d);
        if (dh == nullptr) return;
        gemm_nn(pool, count, d, rows, logits, rows, output, d, Into::write, dh + first * d, d);
      });
  if (loss == nullptr) return;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Terms& all = terms_of(terms, i);
    if (labels[i] == kNoLabel) continue;
    total += scale *
             (std::log(static_cast<double>(all.sum)) + (static_cast<double>(all.top) - all.label));
  }
  check_loss(total, n);
  *loss += total;
}

}  // namespace longspan::cpu
