#include "frameworks/model/gathered_memory.h"

#include <algorithm>

#include "frameworks/model/layer_work.h"
#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"

namespace longspan {

ModelParts model_parts(const TrainingRun& c, const ModelSpec& model) {
  const LayerMix mix = layer_mix(model);
  const double tensor = number(c.degrees.tensor);
  // The largest layer stands for all.
  const LayerGroup& kind = *std::max_element(mix.kinds.begin(), mix.kinds.end(),
                                             [](const LayerGroup& a, const LayerGroup& b) {
                                               return a.shared + a.experts < b.shared + b.experts;
                                             });
  const LayerWidths w = layer_widths(kind.model, shape_of(layer_shape(c), kind));
  ModelParts parts;
  parts.all = rank_parameters(c, model);
  parts.embedding = mix.embedding / tensor;
  parts.layer = parameters_of_layer(c, kind).all();
  parts.table = number(model.vocab * model.hidden) / tensor;
  parts.tied = model.tied_embeddings && c.outputs == 0;
  parts.outputs = number(output_columns(c, model) * model.hidden) / tensor;
  const double norm = mix.head / tensor - (model.tied_embeddings ? 0 : parts.table);
  parts.head = norm + parts.outputs;
  parts.ends = parts.embedding + parts.head - (parts.tied ? parts.table : 0);
  parts.down = w.hidden * (w.inner + w.local * w.expert_inner);
  parts.after =
      w.hidden * (w.inner + w.gated + w.attended + w.local * (w.expert_inner + w.expert_gated));
  return parts;
}

double layer_gradients(const ModelParts& parts, StepMoment moment) {
  if (!in_layer(moment)) return 0;
  return in_attention(moment) ? parts.after : parts.down;
}

bool head_waits(const ModelParts& parts, const Stack& stack) {
  return parts.tied || stack.fsdp_root.value > 0;
}

double fsdp_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack,
                  StepMoment moment) {
  const ModelParts p = model_parts(c, model);
  const double element = layer_shape(c).element_bytes;
  // A microbatch before the last reduces none.
  const double reduced = gradients_wait_whole(c) ? 0 : stack.gradient_bytes.value;
  // A head that shares the table, or is one unit with it, waits for the embedding's backward, with
  // its gradient.
  const bool waits = head_waits(p, stack);
  const double unit = waits ? p.ends : p.head;
  const double waiting = waits ? element * (unit + p.table) : 0;
  const double layer = element * (p.layer + layer_gradients(p, moment));
  const double next = element * (waits ? p.layer : p.embedding);
  switch (moment) {
    case StepMoment::forward_pass:  // a layer, and the one that comes next
      return element * (2 * p.layer + unit);
    case StepMoment::reference:  // one unit: gathered, and copied to where its weights are used
      return element * (2 * p.all + unit);
    case StepMoment::forward_end:
      return 2 * element * unit;
    case StepMoment::loss:
      return element * (unit + (c.tiled_loss ? p.layer : 0));
    case StepMoment::last_mlp:
    case StepMoment::last_attention:
      return waiting + layer + element * p.layer + (waits ? 0 : reduced * p.head);
    case StepMoment::first_mlp:
    case StepMoment::first_attention:
      return waiting + layer + next + reduced * p.layer;
    case StepMoment::backward_end: {  // the sum of a product's gradient and another is a third one
      const double gradients = (c.tiled_loss || !p.tied ? 1 : 2) * element * p.table;
      return (waits ? waiting + gradients : 2 * element * p.embedding) + reduced * p.layer;
    }
    case StepMoment::update:
      return 0;
  }
  return 0;
}

}  // namespace longspan
