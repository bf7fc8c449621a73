#include "validation/convention.h"

#include "planner/plan/plan.h"

namespace longspan {

double sequence_flops(const ModelSpec& as_given, int64_t sequence,
                      const FlopConvention& convention) {
  const ModelSpec model = fit_to_length(as_given, sequence);
  const ModelFlops products =
      model_flops(model, sequence, convention.attention == AttentionFlops::causal);
  const auto tokens = static_cast<double>(sequence);
  const double table = static_cast<double>(model.vocab) * static_cast<double>(model.hidden);
  const double logits = 2 * tokens * table;

  double dense = products.dense_forward;
  if (convention.dense != DenseFlops::products) {
    dense = 2 * tokens * static_cast<double>(parameter_count(model));
    // A token table that is the output matrix, too, takes part in a product and counts.
    if (convention.dense == DenseFlops::non_embedding && !model.tied_embeddings) {
      dense -= 2 * tokens * table;
    }
  }
  double flops = 3 * (dense + products.attention_forward);
  if (convention.recomputed != RecomputedFlops::none) flops += dense + products.attention_forward;
  if (convention.recomputed == RecomputedFlops::layers) flops -= logits;
  return flops;
}

}  // namespace longspan
