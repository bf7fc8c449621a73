// Memory of one layer and one microbatch on a GPU: what its forward leaves for the backward, and
// what its backward holds besides. Pure functions.
#pragma once

#include "frameworks/model/layer_work.h"
#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"

namespace longspan {

/// Bytes that a layer saves between forward and backward.
struct LayerBytes {
  double all = 0;
  double scores = 0;  // the part that selective recomputation does not save
  double input = 0;   // what the layer before hands on
  double kept = 0;    // the part that full recomputation keeps: `input`, or those of its parts
  double chosen = 0;  // the part kept if products and attention are selected
  /// What a part of the layer saves when it runs again by itself.
  double of_attention = 0, of_mlp = 0;
};

/// Layers save what arXiv 2205.05198, section 4, counts for the GPT of Megatron-LM, written for any
/// widths: 34 s b h + 5 a s^2 b bytes where a tensor group cuts nothing, MLP and heads are as wide
/// as the model, and scores are stored. With a fused kernel the list has one number for each row of
/// scores, and no masks: inputs of norms and products, queries, keys and values, attention's
/// output, and the MLP's inner width before and after the activation, which Transformer Engine
/// saves, too.
LayerBytes saved_bytes(const ModelSpec& model, const Stack& stack, const LayerShape& shape);

/// Bytes in addition to those saved, at the two moments of a layer's backward that hold most: the
/// MLP's, with all that is saved, and attention's, when the MLP's part has been freed; less than
/// zero where more has been freed than came.
struct LayerWorkBytes {
  double mlp = 0, attention = 0;
};
/// REQUIRES: the run's microbatch is known.
LayerWorkBytes layer_work_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

/// Bytes that a layer's forward holds where nothing is saved, its input included. REQUIRES: as
/// layer_work_bytes().
double forward_work_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

}  // namespace longspan
