#include "base/error.h"
#include "models/adapters.h"
#include "models/model_spec.h"
#include "models/training.h"

namespace longspan {

namespace {

// The forward of all layers of a uniform model.
ModelFlops layer_flops(const ModelSpec& model, int64_t tokens, bool causal) {
  const auto s = static_cast<double>(tokens);
  const int64_t sequence = model.of_sequence(tokens);
  const auto length = static_cast<double>(sequence);
  const auto layers = static_cast<double>(model.layers);
  const auto hidden = static_cast<double>(model.hidden);
  const double attends = model.attention ? 1 : 0;
  const auto attention = static_cast<double>(model.heads) * static_cast<double>(model.head_dim);
  const auto kv = static_cast<double>(model.kv_heads) * static_cast<double>(model.head_dim);
  const double mlp_matrices = model.gated() ? 3 : 2;

  // Multiply-adds of one token: q, k, v and out, then the MLP or the router and active experts.
  double projections = attends * hidden * (2 * attention + 2 * kv);
  // A pair's score has the width of queries, its part of the output that of values.
  double of_pair = 2 * attention;
  if (model.latent) {
    const LatentAttention& l = *model.latent;
    const auto rank = static_cast<double>(l.key_rank), rotated = static_cast<double>(l.rotated_dim);
    const auto attended = static_cast<double>(model.attended_width());
    const auto query_rank = static_cast<double>(l.query_rank);
    const double queries =
        l.query_rank > 0 ? query_rank * (hidden + attention) : hidden * attention;
    const double keys = attention - static_cast<double>(model.heads) * rotated;
    projections = attends * (queries + hidden * (rank + rotated) + rank * (keys + attended) +
                             attended * hidden);
    of_pair = attention + attended;
  }
  double mlp = mlp_matrices * hidden * static_cast<double>(model.ffn);
  if (model.experts) {
    const Experts& e = *model.experts;
    const auto width = static_cast<double>(e.active) * static_cast<double>(e.ffn) +
                       static_cast<double>(e.shared_ffn);
    mlp = hidden * (mlp_matrices * width + static_cast<double>(e.count));
  }
  const double of_one = !causal          ? length * length
                        : model.span > 0 ? pairs_in_spans(sequence, model.span)
                        : model.documents.empty()
                            ? causal_pairs(sequence, model.window)
                            : model.documents.pairs(sequence, sequence, 0, model.window);
  const double pairs = static_cast<double>(model.micro_batch) * of_one;

  ModelFlops flops;
  flops.dense_forward = 2 * s * layers * (projections + mlp);
  flops.attention_forward = 2 * pairs * attends * of_pair * layers;  // scores, values: A MACs each
  const double products = model.backward == LayerBackward::weights  ? 2
                          : model.backward == LayerBackward::inputs ? 1
                                                                    : 0;
  flops.dense_backward = products * flops.dense_forward;
  flops.attention_backward = products > 0 ? 2 * flops.attention_forward : 0;
  double adapters = 0;
  for (const AdapterShape& adapter : adapter_shapes(model)) {
    adapters += static_cast<double>(adapter.in + adapter.out);
  }
  if (model.adapters) adapters *= 2 * s * layers * static_cast<double>(model.adapters->rank);
  flops.dense_forward += adapters;
  flops.dense_backward += 2 * adapters;
  return flops;
}

}  // namespace

double causal_pairs(int64_t sequence, int64_t window) {
  // One of n and n + 1 is even, so halving it first keeps integers.
  const auto triangle = [](int64_t n) {
    const auto x = static_cast<double>(n);
    return n % 2 == 0 ? (x / 2) * (x + 1) : x * ((x + 1) / 2);
  };
  if (window <= 0 || window >= sequence) return triangle(sequence);
  return triangle(window) + static_cast<double>(sequence - window) * static_cast<double>(window);
}

double pairs_in_spans(int64_t sequence, int64_t span) {
  return static_cast<double>(sequence / span) * causal_pairs(span) + causal_pairs(sequence % span);
}

ModelFlops model_flops(const ModelSpec& model, int64_t tokens, bool causal) {
  if (tokens < 1) throw bad_input("sequence: expected a whole number > 0, got {}", tokens);
  ModelFlops flops;
  const auto add = [&](const ModelFlops& part) {
    flops.dense_forward += part.dense_forward;
    flops.attention_forward += part.attention_forward;
    flops.dense_backward += part.dense_backward;
    flops.attention_backward += part.attention_backward;
  };
  for (const LayerRun& kind : layer_kinds(model)) {  // fewer than runs, where kinds alternate
    const ModelFlops part =
        layer_flops(model_of_run(model, kind), tokens_of_run(kind, tokens), causal);
    add(part);
  }
  const auto s = static_cast<double>(tokens), hidden = static_cast<double>(model.hidden);
  const double logits = 2 * s * hidden * static_cast<double>(model.vocab);
  flops.dense_forward += logits;
  flops.dense_backward += (trains_output(model) ? 2 : 1) * logits;
  if (model.next_token_layers > 0) {
    const auto layers = static_cast<double>(model.next_token_layers);
    LayerRun run = layer_runs(model).back();
    run.layers = model.next_token_layers;
    const ModelFlops part = layer_flops(model_of_run(model, run), tokens, causal);
    add(part);
    const double more = layers * (logits + 4 * s * hidden * hidden);
    flops.dense_forward += more;
    flops.dense_backward += 2 * more;
  }
  return flops;
}

}  // namespace longspan
