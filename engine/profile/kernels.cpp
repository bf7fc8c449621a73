#include "engine/profile/kernels.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/norm.h"
#include "engine/cpu/rope.h"
#include "engine/cpu/rows.h"
#include "engine/profile/hashed_tokens.h"

namespace longspan {
namespace {

using cpu::BlockContext;
using cpu::Into;

constexpr int64_t kVocab = 4096;

// A model and its block context, shared by samples.
struct Model {
  Model(ThreadPool& pool, int64_t hidden, int64_t heads, int64_t head_dim, int64_t ffn) {
    spec.name = "profile";
    spec.layers = 1;
    spec.hidden = hidden;
    spec.heads = spec.kv_heads = heads;
    spec.head_dim = head_dim;
    spec.ffn = ffn;
    spec.vocab = kVocab;
    spec.max_positions = int64_t{1} << 20;
    context = cpu::make_block_context(spec, pool);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ModelSpec spec;
  BlockContext context;
};

std::shared_ptr<Model> row_model(ThreadPool& pool, int64_t hidden, int64_t ffn) {
  const int64_t dim = std::min<int64_t>(hidden, 64);
  return std::make_shared<Model>(pool, hidden, hidden / dim, dim, ffn);
}

std::array<double, 3> shape_of(int64_t a, int64_t b = 1, int64_t c = 1) {
  return {static_cast<double>(a), static_cast<double>(b), static_cast<double>(c)};
}
double product_of(int64_t a, int64_t b, int64_t c = 1) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// Rows and widths at which the elementwise families are measured.
constexpr int64_t kRowCounts[] = {32, 512, 4096};
constexpr int64_t kWidths[] = {128, 512, 2048};

}  // namespace

void add_product_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch) {
  for (const int64_t m : {32, 128, 512, 2048}) {
    for (const int64_t n : {32, 128, 512, 2048}) {
      for (const int64_t k : {32, 128, 512, 2048}) {
        const double flops = 2 * product_of(m, n, k);
        sampler.add("gemm_nt", shape_of(m, n, k), flops, [=, &pool, &scratch] {
          const float *a = scratch.in(m * k), *b = scratch.in(n * k);
          float* c = scratch.out(m * n);
          return timed([&] { cpu::gemm_nt(pool, m, n, k, a, k, b, k, Into::write, c, n); });
        });
        sampler.add("gemm_nn", shape_of(m, n, k), flops, [=, &pool, &scratch] {
          const float *a = scratch.in(m * k), *b = scratch.in(n * k);
          float* c = scratch.out(m * n);
          return timed([&] { cpu::gemm_nn(pool, m, n, k, a, k, b, n, Into::write, c, n); });
        });
        sampler.add("gemm_tn", shape_of(m, n, k), flops, [=, &pool, &scratch] {
          const float *a = scratch.in(m * k), *b = scratch.in(n * k);
          float* c = scratch.out(m * n);
          return timed([&] { cpu::gemm_tn(pool, m, n, k, a, m, b, n, Into::add, c, n); });
        });
      }
    }
  }
}

namespace {

// One call of attention: an unmasked rectangle, or the triangle of a causal mask.
struct AttentionSample {
  std::shared_ptr<Model> model;
  int64_t queries, keys;
  bool diagonal, backward;
  Scratch* scratch;

  double work() const {
    const double pairs =
        diagonal ? product_of(queries, queries + 1) / 2 : product_of(queries, keys);
    return (backward ? 10 : 4) * pairs * static_cast<double>(model->spec.attention_width());
  }
  double operator()() const {
    const ModelSpec& m = model->spec;
    const int64_t q_floats = queries * m.attention_width(), k_floats = keys * m.kv_width();
    const int64_t q0 = diagonal ? 0 : keys;  // queries after all keys: nothing is masked
    const float *q = scratch->in(q_floats), *k = scratch->in(k_floats), *v = scratch->in(k_floats);
    if (!backward) {
      float *o = scratch->out(q_floats), *lse = scratch->out(queries * m.heads);
      float* workspace = scratch->out(cpu::attention_forward_workspace(m));
      return timed([&] {
        cpu::attention_forward(model->context, q, k, v, q0, queries, 0, keys, true, o, lse,
                               workspace);
      });
    }
    const float* d_o = scratch->in(q_floats);
    const float *lse = scratch->in(queries * m.heads), *delta = scratch->in(queries * m.heads);
    float *dq = scratch->out(q_floats), *dk = scratch->out(k_floats), *dv = scratch->out(k_floats);
    float* workspace = scratch->out(cpu::attention_backward_workspace(m));
    return timed([&] {
      cpu::attention_backward(model->context, q, k, v, d_o, lse, delta, q0, queries, 0, keys, true,
                              dq, true, dk, dv, workspace);
    });
  }
};

}  // namespace

void add_attention_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch) {
  // Enough heads to keep a few threads busy at one tile of queries.
  const int64_t heads = std::max(4, pool.threads());
  for (const int64_t dim : {32, 64, 128}) {
    const auto model = std::make_shared<Model>(pool, dim, heads, dim, dim);
    for (const bool backward : {false, true}) {
      const std::string family = backward ? "attention_backward" : "attention_forward";
      for (const int64_t queries : {64, 256, 1024}) {
        for (const int64_t keys : {64, 256, 1024}) {
          const AttentionSample sample{model, queries, keys, false, backward, &scratch};
          sampler.add(family, shape_of(queries, keys, dim), sample.work(), sample);
        }
      }
      for (const int64_t queries : {64, 256, 1024, 2048}) {
        const AttentionSample sample{model, queries, queries, true, backward, &scratch};
        sampler.add(family + "_diagonal", shape_of(queries, queries, dim), sample.work(), sample);
      }
    }
  }
}

namespace {

// Adds norms, RoPE, additions, sums over rows and embeddings at [rows, width].
void add_plain_rows(Sampler& sampler, ThreadPool& pool, Scratch& scratch, int64_t rows,
                    int64_t width) {
  const auto add = [&](const char* family, std::function<double()> run) {
    sampler.add(family, shape_of(rows, width), product_of(rows, width), std::move(run));
  };
  const auto model = row_model(pool, width, width);
  const int64_t count = rows * width;
  add("norm_forward", [=, &pool, &scratch] {
    const float *x = scratch.in(count), *w = scratch.in(width);
    float* h = scratch.out(count);
    return timed([&] { cpu::norm_forward(pool, model->spec, {w, nullptr}, x, rows, h); });
  });
  add("norm_backward", [=, &pool, &scratch] {
    const float *x = scratch.in(count), *dh = scratch.in(count), *w = scratch.in(width);
    float *dx = scratch.out(count), *gradient = scratch.out(width);
    return timed([&] {
      cpu::norm_backward(pool, model->spec, {w, nullptr}, x, dh, rows, dx, dx, {gradient, nullptr});
    });
  });
  add("add", [=, &pool, &scratch] {
    const float* from = scratch.in(count);
    float* to = scratch.out(count);
    return timed([&] {
      cpu::for_rows(pool, rows, width, [&](int64_t begin, int64_t end) {
        cpu::add_to(from + begin * width, (end - begin) * width, to + begin * width);
      });
    });
  });
  add("bias_gradient", [=, &pool, &scratch] {
    const float* dy = scratch.in(count);
    float* sums = scratch.out(width);
    return timed([&] { cpu::add_column_sums(pool, dy, rows, width, sums); });
  });
  add("rope", [=, &pool, &scratch] {
    float* x = scratch.out(count);
    const int64_t heads = model->spec.heads;
    return timed(
        [&] { model->context.rope->rotate(pool, rows, 0, heads, cpu::Rope::Turn::forward, x); });
  });
  const auto tokens = std::make_shared<std::vector<int32_t>>(hashed_tokens(rows, kVocab));
  add("embed_forward", [=, &scratch] {
    const float* table = scratch.in(kVocab * width);
    float* x = scratch.out(count);
    return timed([&] { cpu::embed_forward(model->context, table, tokens->data(), rows, 0, x); });
  });
  add("embed_backward", [=, &scratch] {
    const float* dx = scratch.in(count);
    float* gradient = scratch.out(kVocab * width);
    return timed(
        [&] { cpu::embed_backward(model->context, tokens->data(), dx, rows, 0, gradient); });
  });
}

// The activation and the softmax of the loss are parts of larger kernels. Those kernels are run on
// a model so narrow that these parts dominate; their matrix products are timed separately right
// after and subtracted.
constexpr int64_t kNarrow = 8;

void add_activation(Sampler& sampler, ThreadPool& pool, Scratch& scratch, int64_t rows,
                    int64_t width) {
  const auto model = row_model(pool, kNarrow, width);
  const int64_t w = 2 * width, unit = parameter_units(model->spec)[1].elements;
  const double work = product_of(rows, width);
  sampler.add_difference("activation_forward", shape_of(rows, width), work, [=, &pool, &scratch] {
    const float *weights = scratch.in(unit), *y = scratch.in(rows * kNarrow);
    float* out = scratch.out(rows * kNarrow);
    float* workspace = scratch.out(cpu::mlp_forward_workspace(model->spec, rows, rows, false));
    const double whole = timed(
        [&] { cpu::mlp_forward(model->context, weights, y, rows, rows, out, nullptr, workspace); });
    float* inner = scratch.out(rows * w);
    const double products = timed([&] {
      cpu::gemm_nt(pool, rows, w, kNarrow, y, kNarrow, weights, kNarrow, Into::write, inner, w);
      cpu::gemm_nt(pool, rows, kNarrow, width, inner, width, weights, width, Into::add, out,
                   kNarrow);
    });
    return WholeAndPart{whole, products};
  });
  sampler.add_difference("activation_backward", shape_of(rows, width), work, [=, &pool, &scratch] {
    const float *weights = scratch.in(unit), *y = scratch.in(rows * kNarrow);
    float *dy = scratch.out(rows * kNarrow), *gradient = scratch.out(unit);
    float* inner = scratch.out(rows * w);
    std::copy_n(scratch.in(rows * w), rows * w, inner);
    float* workspace = scratch.out(cpu::mlp_backward_workspace(model->spec, rows, rows, true));
    const auto backward = [&] {
      cpu::mlp_backward(model->context, weights, y, inner, rows, rows, dy, gradient, workspace);
    };
    float* act = scratch.out(rows * width);
    const double whole = timed(backward);
    const double products = timed([&] {
      cpu::gemm_tn(pool, kNarrow, width, rows, y, kNarrow, act, width, Into::add, gradient, width);
      cpu::gemm_nn(pool, rows, width, kNarrow, y, kNarrow, weights, width, Into::write, act, width);
      cpu::gemm_tn(pool, w, kNarrow, rows, inner, w, y, kNarrow, Into::add, gradient, kNarrow);
      cpu::gemm_nn(pool, rows, kNarrow, w, inner, w, weights, kNarrow, Into::write, dy, kNarrow);
    });
    return WholeAndPart{whole, products};
  });
}

void add_loss(Sampler& sampler, ThreadPool& pool, Scratch& scratch, int64_t rows, int64_t vocab) {
  const auto model = row_model(pool, kNarrow, kNarrow);
  model->spec.vocab = vocab;
  const auto labels = std::make_shared<std::vector<int32_t>>(rows, 0);
  sampler.add_difference(
      "loss", shape_of(rows, vocab), product_of(rows, vocab), [=, &pool, &scratch] {
        const float *head = scratch.in(kNarrow), *output = scratch.in(vocab * kNarrow);
        const float* x = scratch.in(rows * kNarrow);
        float *dx = scratch.out(rows * kNarrow), *head_gradient = scratch.out(kNarrow);
        float* gradient = scratch.out(vocab * kNarrow);
        float* workspace = scratch.out(cpu::loss_workspace(model->spec, rows, rows));
        double loss = 0;
        const double whole = timed([&] {
          cpu::loss_forward_backward(model->context, head, output, x, labels->data(), rows, rows, 1,
                                     &loss, dx, head_gradient, gradient, workspace);
        });
        float* logits = scratch.out(rows * vocab);
        const double products = timed([&] {
          cpu::gemm_nt(pool, rows, vocab, kNarrow, x, kNarrow, output, kNarrow, Into::write, logits,
                       vocab);
          cpu::gemm_tn(pool, vocab, kNarrow, rows, logits, vocab, x, kNarrow, Into::add, gradient,
                       kNarrow);
          cpu::gemm_nn(pool, rows, kNarrow, vocab, logits, vocab, output, kNarrow, Into::write, dx,
                       kNarrow);
        });
        return WholeAndPart{whole, products};
      });
}

}  // namespace

void add_row_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch) {
  for (const int64_t rows : kRowCounts) {
    for (const int64_t width : kWidths) {
      add_plain_rows(sampler, pool, scratch, rows, width);
      add_activation(sampler, pool, scratch, rows / 2, width);
    }
  }
  for (const int64_t rows : {32, 256, 1024}) {
    for (const int64_t vocab : {512, 4096}) add_loss(sampler, pool, scratch, rows, vocab);
  }
}

void add_state_samples(Sampler& sampler, ThreadPool& pool, Scratch& scratch) {
  for (const int64_t count : {1 << 12, 1 << 16, 1 << 19, 1 << 22}) {
    const auto add = [&](const char* family, std::function<double()> run) {
      sampler.add(family, shape_of(count), static_cast<double>(count), std::move(run));
    };
    add("zero", [=, &pool, &scratch] {
      float* x = scratch.cold_out(count);
      return timed([&] { cpu::zero(pool, x, count); });
    });
    add("sumsq", [=, &pool, &scratch] {
      const float* g = scratch.cold_in(count);
      double sum = 0;
      return timed([&] { cpu::sum_of_squares(pool, g, count, &sum); });
    });
    add("adamw", [=, &pool, &scratch] {
      cpu::AdamWStep step;
      step.learning_rate = 1e-3;
      const float* g = scratch.cold_in(count);
      float *p = scratch.cold_out(count), *m = scratch.cold_out(count),
            *v = scratch.cold_out(count);
      return timed([&] { cpu::adamw(pool, step, g, count, p, m, v); });
    });
  }
}

}  // namespace longspan
