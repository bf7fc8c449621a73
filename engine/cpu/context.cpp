#include "base/error.h"
#include "engine/cpu/attention_tile.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/rope.h"

namespace longspan::cpu {

BlockContext make_block_context(const ModelSpec& model, ThreadPool& pool, int64_t expert_degree) {
  if (model.head_dim > kMaxHeadDim) {
    throw bad_input("cpu backend: head_dim of {} is {}, at most {} is supported", model.name,
                    model.head_dim, kMaxHeadDim);
  }
  BlockContext context;
  context.model = &model;
  context.layer = layer_offsets(model, expert_degree);
  context.pool = &pool;
  context.adapters = adapter_shapes(model);
  if (model.positions == Positions::rope) context.rope = std::make_shared<const Rope>(model);
  if (model.experts) {
    ExpertModels models{model, model};
    models.expert.ffn = model.experts->ffn;
    models.shared.ffn = model.experts->shared_ffn;
    models.expert.experts.reset();
    models.shared.experts.reset();
    context.experts = std::make_shared<const ExpertModels>(std::move(models));
  }
  return context;
}

}  // namespace longspan::cpu
