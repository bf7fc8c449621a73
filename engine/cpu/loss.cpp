// Final norm, logits, cross-entropy and their gradients, one tile of tokens at a time.
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

// Exponentials that are summed in float before they are added in double.
constexpr int64_t kSumTerms = 1024;

// The cross-entropy of one row of logits, which it replaces by their exponentials, and their sum.
struct RowLoss {
  double value, sum;
};
RowLoss row_loss(float* x, int64_t vocab, int32_t label) {
  const float top = max_of(x, vocab);
  const float wanted = x[label];
  const double sum = exponentials(x, vocab, top);
  return {std::log(sum) + (static_cast<double>(top) - wanted), sum};
}

// The same; replaces the row by scale * (softmax - onehot). Both are 0 without a label.
double softmax_row(float* x, int64_t vocab, int32_t label, double scale) {
  if (label == kNoLabel) {
    std::fill_n(x, vocab, 0.0F);
    return 0;
  }
  const auto [value, sum] = row_loss(x, vocab, label);
  const float factor = static_cast<float>(scale / sum);
  for_lanes(vocab,
            [&](int64_t j, int64_t count) { store(x + j, load(x + j, count) * factor, count); });
  x[label] -= static_cast<float>(scale);
  return value;
}

// Adds scale * loss_of(i) of all rows to `total`, in order. They wait in rows of `scratch` of width
// d, as pairs of floats, which keep the precision of the sum in double.
template <class LossOf>
void add_losses(ThreadPool& pool, int64_t rows, int64_t vocab, int64_t d, double scale,
                float* scratch, double& total, const LossOf& loss_of) {
  for_rows(pool, rows, vocab, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double value = loss_of(i);
      const float high = static_cast<float>(value);
      scratch[i * d] = high;
      if (d > 1) scratch[i * d + 1] = static_cast<float>(value - high);
    }
  });
  for (int64_t i = 0; i < rows; ++i) {
    total += scale * (static_cast<double>(scratch[i * d]) + (d > 1 ? scratch[i * d + 1] : 0.0F));
  }
}

}  // namespace

void check_labels(const int32_t* labels, int64_t n, int64_t vocab) {
  for (int64_t i = 0; i < n; ++i) {
    if ((labels[i] < 0 || labels[i] >= vocab) && labels[i] != kNoLabel) {
      throw failed("loss: label {} of row {} is outside the vocabulary [0, {}); check the data",
                   labels[i], i, vocab);
    }
  }
}

void check_loss(double loss, int64_t n) {
  if (std::isfinite(loss)) return;
  throw failed("loss: not finite after {} tokens; try a lower learning rate or check the weights",
               n);
}

float max_of(const float* x, int64_t n) {
  Vec m = broadcast(x[0]);
  for_lanes(n, [&](int64_t j, int64_t count) {
    if (count == kLanes) m = max(m, load(x + j));
  });
  float top = max_lanes(m);
  for (int64_t j = n / kLanes * kLanes; j < n; ++j) top = std::max(top, x[j]);
  return top;
}

double exponentials(float* x, int64_t n, float top) {
  double sum = 0;
  for (int64_t first = 0; first < n; first += kSumTerms) {
    const int64_t terms = std::min(kSumTerms, n - first);
    sum += sum_over(terms, [&](int64_t j, int64_t count) {
      float* at = x + first + j;
      store(at, exp(load(at, count) - top), count);
      return load(at, count);
    });
  }
  return sum;
}

namespace {

// Calls body(row, rows) with the normed rows in `h` and their logits, tile by tile.
template <class Body>
void for_logits(const BlockContext& context, const float* head, const float* output, const float* x,
                int64_t n, int64_t tile, float* h, float* logits, const Body& body) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden, vocab = model.vocab;
  const int64_t bias = model.norm == Norm::layernorm ? d : -1;
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    norm_forward(*context.pool, model, norm_tensors(head, 0, bias), x + row * d, rows, h);
    gemm_nt(*context.pool, rows, vocab, d, h, d, output, d, Into::write, logits, vocab);
    body(row, rows);
  }
}

}  // namespace

int64_t loss_workspace(const ModelSpec& model, int64_t n, int64_t tile, bool forward_only) {
  const char* what = "loss workspace";
  const int64_t widths = forward_only ? 1 : 2;
  const int64_t row = checked_add(checked_mul(widths, model.hidden, what), model.vocab, what);
  return checked_mul(std::min(n, tile), row, what);
}

void loss_forward(const BlockContext& context, const float* head, const float* output,
                  const float* x, const int32_t* labels, int64_t n, int64_t tile, double scale,
                  double* loss, float* log_probs, float* workspace) {
  const int64_t d = context.model->hidden, vocab = context.model->vocab;
  check_labels(labels, n, vocab);
  float* h = workspace;
  float* logits = h + std::min(n, tile) * d;
  double total = 0;
  for_logits(context, head, output, x, n, tile, h, logits, [&](int64_t row, int64_t rows) {
    // The losses wait in h, which is not used again.
    add_losses(*context.pool, rows, vocab, d, scale, h, total, [&](int64_t i) {
      float& log_prob = log_probs[row + i];
      log_prob = std::numeric_limits<float>::quiet_NaN();
      if (labels[row + i] == kNoLabel) return 0.0;
      const double value = row_loss(logits + i * vocab, vocab, labels[row + i]).value;
      log_prob = static_cast<float>(-value);
      return value;
    });
  });
  check_loss(total, n);
  *loss += total;
}

void loss_forward_backward(const BlockContext& context, const float* head, const float* output,
                           const float* x, const int32_t* labels, int64_t n, int64_t tile,
                           double scale, double* loss, float* dx, float* head_gradient,
                           float* output_gradient, float* workspace) {
  const ModelSpec& model = *context.model;
  ThreadPool& pool = *context.pool;
  const int64_t d = model.hidden;
  const int64_t vocab = model.vocab;
  const int64_t bias = model.norm == Norm::layernorm ? d : -1;
  check_labels(labels, n, vocab);
  float* h = workspace;
  float* dh = h + std::min(n, tile) * d;
  float* logits = dh + std::min(n, tile) * d;
  double total = 0;
  for_logits(context, head, output, x, n, tile, h, logits, [&](int64_t row, int64_t rows) {
    // The losses wait in dh, which is unused until the logits are gradients.
    add_losses(pool, rows, vocab, d, scale, dh, total, [&](int64_t i) {
      return softmax_row(logits + i * vocab, vocab, labels[row + i], scale);
    });
    if (output_gradient != nullptr) {
      gemm_tn(pool, vocab, d, rows, logits, vocab, h, d, Into::add, output_gradient, d);
    }
    gemm_nn(pool, rows, d, vocab, logits, vocab, output, d, Into::write, dh, d);
    norm_backward(pool, model, norm_tensors(head, 0, bias), x + row * d, dh, rows, nullptr,
                  dx + row * d, norm_tensors(head_gradient, 0, bias));
  });
  check_loss(total, n);
  *loss += total;
}

}  // namespace longspan::cpu
