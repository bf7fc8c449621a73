#include "frameworks/model/layer_work.h"

#include <algorithm>
#include <cmath>

#include "frameworks/model/number.h"

namespace longspan {
namespace {

// Appends kernels to a list.
class Kernels {
 public:
  explicit Kernels(std::vector<Primitive>& out, ProductPrecision precision = {})
      : out_(out), precision_(precision) {}

  void product(Kernel kernel, double m, double n, double k, double batch = 1, double speed = 1) {
    out_.push_back({kernel, {m, n, k}, 2 * m * n * k * batch, 1, batch, speed});
  }
  // C = A W^T, and its gradients by A and by W; below 16 bits with casts of the new operands: A and
  // W, the gradient of C.
  void linear(double rows, double out, double in) {
    cast(rows * in + precision_.weight_casts * out * in);
    product(Kernel::gemm_nt, rows, out, in, 1, precision_.speed);
  }
  void linear_backward(double rows, double out, double in) {
    cast(rows * out);
    product(Kernel::gemm_nn, rows, in, out, 1, precision_.speed);
    product(Kernel::gemm_tn, out, in, rows, 1, precision_.speed);
  }
  // The products of `local` experts side by side, with `rows` rows in all, in the order of
  // linear(). Each expert's weights are read for few rows, so their bytes count besides.
  void grouped(double rows, double out, double in, double local, double share) {
    cast(rows * in + precision_.weight_casts * local * out * in);
    product(Kernel::gemm_nt, rows, out, in, 1, precision_.speed * share);
    touch(weight_bytes() * local * out * in);
  }
  void grouped_backward(double rows, double out, double in, double local, double share,
                        double gradient_bytes) {
    cast(rows * out);
    product(Kernel::gemm_nn, rows, in, out, 1, precision_.speed * share);
    product(Kernel::gemm_tn, out, in, rows, 1, precision_.speed * share);
    touch((weight_bytes() + gradient_bytes) * local * out * in);
  }
  // `products` products over `pairs` of queries and keys. The slowest rank has `slowest` times an
  // equal share of them.
  void attention(Kernel kernel, double products, double queries, double keys, double pairs,
                 double dim, double batch, double slowest) {
    out_.push_back(
        {kernel, {queries, keys, dim}, 2 * products * pairs * dim * batch, slowest, batch});
  }
  // `bytes` read and written by `kernels` kernels.
  void touch(double bytes, int kernels = 1) {
    for (int i = 0; bytes > 0 && i < kernels; ++i) {
      out_.push_back({Kernel::pass, {bytes / kernels, 1, 1}, bytes / kernels});
    }
  }

 private:
  double weight_bytes() const { return precision_.speed > 1 ? 1 : 2; }
  void cast(double elements) { touch(precision_.cast_bytes * elements); }
  std::vector<Primitive>& out_;
  ProductPrecision precision_;
};

// An all-reduce, or an all-gather with a reduce-scatter, of `bytes` over a group of neighbours:
// each is two passes in which every rank sends its share to all others. The gather moves `gathered`
// times the bytes.
void all_reduce(std::vector<Primitive>& out, double bytes, double ranks, double gathered = 1) {
  if (ranks <= 1) return;
  for (const double share : {gathered, 1.0}) {
    const double own = share * bytes / ranks;
    out.push_back({Kernel::gather, {own, 1, ranks}, own * (ranks - 1)});
  }
}

// Builds one layer's work.
class Layer {
 public:
  Layer(const ModelSpec& model, const Stack& stack, const LayerShape& shape)
      : model_(model),
        stack_(stack),
        shape_(shape),
        widths_(layer_widths(model, shape)),
        queries_(number(shape.sequence) * number(shape.ulysses) / number(shape.context)),
        keys_(number(shape.sequence)),
        dim_(model.latent ? (number(model.head_dim) + number(model.latent->value_dim)) / 2
                          : number(model.head_dim)),
        batch_(number(model.heads) / (t_ * number(shape.ulysses)) * number(shape.sequences)) {}

  LayerWork work() {
    forward();
    backward();
    exchanges();
    return std::move(work_);
  }

 private:
  void forward() {
    Kernels k(work_.forward.kernels, shape_.precision);
    if (model_.next_token_layers > 0) {
      norm_forward(k, 2);
      k.linear(rows_, d_ / t_, 2 * d_);
      norm_forward(k, 1);
    }
    if (model_.attention) {
      norm_forward(k, norms_);
      projections_forward(k);
      k.touch(shape_.element_bytes * stack_.qkv_passes.value * rows_ *
              (a_ + g_ + v_));  // biases, rotations, layouts
      attention_forward(work_.forward.kernels);
      if (shape_.stored_scores) attention_forward(work_.scores);
      k.linear(rows_, d_, o_);
      k.touch(shape_.element_bytes * stack_.add_passes.value * between_ * d_);
    }
    norm_forward(k, norms_);
    mlp_forward(work_.forward.kernels);
    mlp_forward(work_.mlp);
    if (model_.experts) experts_forward(k);
    k.touch(shape_.element_bytes * stack_.add_passes.value * between_ * d_);
  }

  void norm_forward(Kernels& k, int norms) {
    for (int i = 0; i < norms; ++i) {
      k.touch(shape_.element_bytes * stack_.norm_passes.value * between_ * d_);
    }
  }
  void norm_backward(Kernels& k, int norms) {
    for (int i = 0; i < norms; ++i) {
      k.touch(shape_.element_bytes * 2 * stack_.norm_passes.value * between_ * d_, 2);
    }
  }

  // The products by which queries, keys and values come from the hidden state: one, or those of
  // latent attention, whose first ones every rank of a tensor group has whole.
  struct Projection {
    double rows, out, in;
  };
  std::vector<Projection> projections() const {
    if (!model_.latent) return {{rows_, a_ + g_ + v_, d_}};
    const LatentAttention& l = *model_.latent;
    const double heads = number(model_.heads) / t_;
    const double rank = number(l.key_rank), rotated = number(l.rotated_dim);
    std::vector<Projection> all;
    if (l.query_rank > 0) {
      all.push_back({between_, number(l.query_rank), d_});
      all.push_back({rows_, a_, number(l.query_rank)});
    } else {
      all.push_back({rows_, a_, d_});
    }
    all.push_back({between_, rank + rotated, d_});
    all.push_back({rows_, g_ - heads * rotated + v_, rank});
    return all;
  }
  void projections_forward(Kernels& k) {
    for (const Projection& p : projections()) k.linear(p.rows, p.out, p.in);
    if (model_.latent) latent_norms(k, 1);
  }
  void latent_norms(Kernels& k, int passes) {
    const LatentAttention& l = *model_.latent;
    k.touch(shape_.element_bytes * passes * stack_.norm_passes.value * between_ *
                number(l.query_rank + l.key_rank),
            2 * passes);
  }

  // A router, the way of tokens to experts and back, and the experts.
  void experts_forward(Kernels& k) {
    work_.forward.experts = widths_.local;
    const double experts = number(model_.experts->count);
    Kernels router(work_.forward.kernels);
    router.linear(between_, experts, d_);
    router.touch(stack_.router_bytes.value * between_ * experts);
    k.touch(shape_.element_bytes * stack_.expert_passes.value * widths_.chosen * d_, 2);
    const double r = widths_.routed, f = widths_.expert_inner, w = widths_.expert_gated;
    const double share = stack_.grouped_share.value;
    k.grouped(r, w, d_, widths_.local, share);
    k.touch(shape_.element_bytes * activation_passes() * r * f);
    k.grouped(r, d_, f, widths_.local, share);
  }
  double activation_passes() const {
    return model_.activation == Activation::clamped_swiglu ? stack_.clamped_passes.value
                                                           : stack_.activation_passes.value;
  }
  void experts_backward(Kernels& k) {
    work_.backward.experts = widths_.local;
    const double experts = number(model_.experts->count);
    const double r = widths_.routed, f = widths_.expert_inner, w = widths_.expert_gated;
    const double share = stack_.grouped_share.value, gradient = stack_.expert_gradient_bytes.value;
    k.touch(shape_.element_bytes * stack_.expert_passes.value * widths_.chosen * d_, 2);
    k.grouped_backward(r, d_, f, widths_.local, share, gradient);
    k.touch(shape_.element_bytes * 2 * activation_passes() * r * f);
    k.grouped_backward(r, w, d_, widths_.local, share, gradient);
    Kernels router(work_.backward.kernels);
    router.touch(stack_.router_bytes.value * between_ * experts);
    router.linear_backward(between_, experts, d_);
  }

  void mlp_forward(std::vector<Primitive>& out) {
    if (w_ == 0) return;  // all in experts
    Kernels k(out, shape_.precision);
    k.linear(rows_, w_, d_);
    k.touch(shape_.element_bytes * stack_.activation_passes.value * rows_ * f_);
    k.linear(rows_, d_, f_);
  }

  void backward() {
    Kernels k(work_.backward.kernels, shape_.precision);
    k.touch(shape_.element_bytes * stack_.add_passes.value * between_ * d_);
    if (model_.experts) experts_backward(k);
    if (w_ > 0) {
      k.linear_backward(rows_, d_, f_);
      bias_gradient(k, model_.mlp_bias, d_ + w_);
      k.touch(shape_.element_bytes * 2 * stack_.activation_passes.value * rows_ * f_);
      k.linear_backward(rows_, w_, d_);
    }
    norm_backward(k, norms_);
    if (model_.attention) {
      k.touch(shape_.element_bytes * stack_.add_passes.value * between_ * d_);
      k.linear_backward(rows_, d_, o_);
      bias_gradient(k, model_.attention_out_bias, d_);
      attention_backward(work_.backward.kernels);
      k.touch(shape_.element_bytes * stack_.qkv_passes.value * rows_ * (a_ + g_ + v_));
      for (const Projection& p : projections()) k.linear_backward(p.rows, p.out, p.in);
      if (model_.latent) latent_norms(k, 2);
      bias_gradient(k, model_.qkv_bias, a_ + g_ + v_);
      norm_backward(k, norms_);
    }
    if (model_.next_token_layers > 0) {
      norm_backward(k, 3);
      k.linear_backward(rows_, d_ / t_, 2 * d_);
    }
    for (const Primitive& p : work_.backward.kernels) {
      // Attention's own products have many heads at once.
      if (p.kernel == Kernel::gemm_tn && p.batch == 1) work_.weights.kernels.push_back(p);
    }
  }

  // The bias's gradient in one backward of a linear layer with `out` outputs.
  void bias_gradient(Kernels& k, bool has_bias, double out) {
    if (has_bias) k.touch(shape_.element_bytes * stack_.bias_passes.value * rows_ * out);
  }

  // Queries of the last of n equal parts see 2 - 1/n times as many keys as the average.
  double slowest() const { return 1 + stack_.context_imbalance.value * (1 - queries_ / keys_); }

  // The pairs of queries and keys on a rank that the mask and a window leave, by an equal share of
  // all. Where attention is linear in the length, a query sees no more than a window, too.
  double pairs() const {
    const double whole = model_.span > 0 ? pairs_in_spans(shape_.sequence, model_.span)
                                         : causal_pairs(shape_.sequence, model_.window);
    const double all = whole * (queries_ / keys_);
    const double linear = stack_.attention_window.value;
    return linear > 0 ? std::min(all, linear * queries_) : all;
  }

  void attention_forward(std::vector<Primitive>& out) {
    Kernels k(out);
    if (!shape_.stored_scores) {
      k.attention(Kernel::attention_forward_diagonal, 2, queries_, keys_, pairs(), dim_, batch_,
                  slowest());
      return;
    }
    k.product(Kernel::gemm_nt, queries_, keys_, dim_, batch_);
    k.touch(stack_.score_bytes_forward.value * queries_ * keys_ * batch_, 2);
    k.product(Kernel::gemm_nn, queries_, dim_, keys_, batch_);
  }

  void attention_backward(std::vector<Primitive>& out) {
    Kernels k(out);
    if (!shape_.stored_scores) {
      k.attention(Kernel::attention_backward_diagonal, 5, queries_, keys_, pairs(), dim_, batch_,
                  slowest());
      return;
    }
    k.product(Kernel::gemm_nt, queries_, keys_, dim_, batch_);  // gradient of the scores
    k.product(Kernel::gemm_tn, keys_, dim_, queries_, batch_);  // of the values
    k.touch(stack_.score_bytes_backward.value * queries_ * keys_ * batch_, 2);
    k.product(Kernel::gemm_nn, queries_, dim_, keys_, batch_);  // of the queries
    k.product(Kernel::gemm_tn, keys_, dim_, queries_, batch_);  // of the keys
  }

  // Tokens go to the ranks of their experts and come back, in both passes: once for each expert, or
  // once for each rank, or node, that has any of them. Where tokens are dropped, each expert gets
  // its room in full.
  void dispatches() {
    const double ranks = number(shape_.expert);
    if (!model_.experts || ranks <= 1) return;
    const double stride = number(shape_.expert_tensor);
    const double nodes = std::ceil(ranks * stride / number(shape_.node));
    const double parts = nodes > 1 ? nodes : ranks;
    const double active = number(model_.experts->active);
    double places = parts * (1 - std::pow(1 - 1 / parts, active));
    if (number(model_.experts->groups) == parts) {
      places = std::min(places, number(model_.experts->active_groups));
    }
    const double once = std::min(1.0, places / active);
    const double share = shape_.drops_tokens ? 0 : stack_.dispatch_once.value;
    const double copies = 1 + share * (once - 1);
    const double each = shape_.element_bytes * copies * widths_.chosen * d_ / ranks;
    for (Pass* pass : {&work_.forward, &work_.backward}) {
      for (int way = 0; way < 2; ++way) {
        pass->dispatch.push_back({Kernel::exchange, {each, stride, ranks}, each * (ranks - 1)});
      }
    }
  }

  void exchanges() {
    dispatches();
    const double bytes = shape_.element_bytes * rows_ * d_;
    const double gathered = shape_.precision.speed > 1 ? stack_.low_precision_gathers.value : 1;
    for (Pass* pass : {&work_.forward, &work_.backward}) {
      for (int half = 0; half < 2; ++half) {
        all_reduce(pass->tensor, bytes, t_, gathered);
        if (t_ > 1) {
          Kernels(pass->kernels).touch(stack_.exchange_passes.value * (gathered + 1) * bytes, 2);
        }
      }
    }
    // A rank keeps a product's input for its own tokens only, and gathers the rest again for the
    // weights' gradient.
    const bool cut_up = shape_.sequence_parallel && shape_.tensor > 1;
    for (int i = 0; cut_up && i < static_cast<int>(stack_.regathers.value); ++i) {
      work_.backward.tensor.push_back({Kernel::gather, {bytes / t_, 1, t_}, bytes / t_ * (t_ - 1)});
    }
    const double others = number(shape_.context / shape_.ulysses);
    if (others > 1) {  // every rank gets the others' keys and values, and sends their gradients
      const double own = shape_.element_bytes * rows_ * (g_ + v_);
      const double stride = t_ * number(shape_.ulysses);
      work_.forward.context.push_back({Kernel::gather, {own, stride, others}, own * (others - 1)});
      for (int pass = 0; pass < 2; ++pass) {
        work_.backward.context.push_back(
            {Kernel::gather, {own, stride, others}, own * (others - 1)});
      }
    }
    if (const double u = number(shape_.ulysses); u > 1) {
      const double there = shape_.element_bytes * rows_ * (a_ + g_ + v_) / u,
                   back = shape_.element_bytes * rows_ * o_ / u;
      for (Pass* pass : {&work_.forward, &work_.backward}) {
        for (const double each : {there, back}) {
          pass->context.push_back({Kernel::exchange, {each, t_, u}, each * (u - 1)});
        }
      }
    }
  }

  const ModelSpec& model_;
  const Stack& stack_;
  const LayerShape& shape_;
  LayerWork work_;
  const double t_ = number(shape_.tensor);
  const LayerWidths widths_;
  const double rows_ = widths_.rows, between_ = widths_.between;
  const double d_ = widths_.hidden, f_ = widths_.inner, w_ = widths_.gated;
  const double a_ = widths_.queries, g_ = widths_.keys;
  const double v_ = widths_.values, o_ = widths_.attended;
  const int norms_ = model_.norm_placement == NormPlacement::both ? 2 : 1;  // of each part
  // One rank attends over the whole sequence for its heads. A ring or a gather over the other
  // context ranks leaves it an equal part of the queries.
  const double queries_, keys_, dim_, batch_;
};

}  // namespace

LayerWidths layer_widths(const ModelSpec& m, const LayerShape& shape) {
  const double tensor = number(shape.tensor);
  LayerWidths widths;
  widths.rows = shape.tokens();
  widths.between = shape.sequence_parallel ? widths.rows / tensor : widths.rows;
  widths.hidden = number(m.hidden);
  const double gates = m.gated() ? 2 : 1;
  widths.inner = number(m.experts ? m.experts->shared_ffn : m.ffn) / tensor;
  widths.gated = gates * widths.inner;
  if (m.attention) {
    widths.queries = number(m.attention_width()) / tensor;
    widths.keys = number(m.kv_width()) / tensor;
    widths.attended = number(m.attended_width()) / tensor;
    widths.values = m.latent ? widths.attended : widths.keys;
  }
  if (m.experts) {
    const double cut = number(shape.expert_tensor);
    widths.chosen = widths.between * number(m.experts->active);
    widths.routed = widths.chosen * cut * shape.expert_load;
    widths.local = number(m.experts->count) / number(shape.expert);
    widths.expert_inner = number(m.experts->ffn) / cut;
    widths.expert_gated = gates * widths.expert_inner;
  }
  return widths;
}

LayerWork layer_work(const ModelSpec& model, const Stack& stack, const LayerShape& shape) {
  return Layer(model, stack, shape).work();
}

EndsWork ends_work(const ModelSpec& model, const Stack& stack, const LayerShape& shape) {
  const LayerWidths widths = layer_widths(model, shape);
  const double rows = widths.rows, between = widths.between, d = widths.hidden;
  const double t = number(shape.tensor);
  // Megatron rounds the vocabulary up to a multiple of 128 on every rank; for other stacks the
  // difference is negligible.
  const double v = number((model.vocab + 128 * shape.tensor - 1) / (128 * shape.tensor) * 128);
  EndsWork ends;
  Kernels embedding(ends.embedding.kernels);
  embedding.touch(shape.element_bytes * 3 * rows * d, 2);     // rows of the table, positions
  embedding.touch(shape.element_bytes * 3 * between * d, 2);  // dropout; backward
  all_reduce(ends.embedding.tensor, shape.element_bytes * rows * d, t);
  ProductPrecision precision;  // 16 bits, or single precision as all products
  precision.speed = std::min(1.0, shape.precision.speed);
  if (shape.tensor == 1) precision.speed *= stack.head_share.value;
  Kernels head(ends.head.kernels, precision);
  head.touch(shape.element_bytes * 3 * stack.norm_passes.value * between * d, 3);
  head.linear(rows, v, d);
  const double gathered = t > 1 ? stack.gathered_logits.value : 0;
  head.touch(stack.logit_bytes.value * rows * v * (1 + gathered * (t - 1)), 4);
  if (gathered > 0) {
    const double own = gathered * shape.element_bytes * rows * v;
    ends.head.tensor.push_back({Kernel::gather, {own, 1, t}, own * (t - 1)});
  }
  head.linear_backward(rows, v, d);
  all_reduce(ends.head.tensor, shape.element_bytes * rows * d, t);
  return ends;
}

}  // namespace longspan
