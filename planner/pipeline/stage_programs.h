// The step programs from which the costs of a pipeline's stages are computed. Internal to
// planner/pipeline.
//
// There is one program per kind of layer: of a model with only this kind, and as many layers as the
// rank with most of them has. If all layers are alike there is one kind. Programs are evaluated
// lazily, each once. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "planner/pipeline/pipeline_step.h"

namespace longspan {

/// A stage with neither embedding nor loss.
inline constexpr StageBoundary kMiddle = {false, false};
/// Whether all ranks have a share of embedding and output layer.
bool cuts_vocabulary(const Pipeline& pipeline);

/// Numbers of layers of every kind (layer_kinds()): on a stage, or on all stages of a rank.
using LayersByKind = std::vector<int64_t>;
/// The layers of all kinds.
int64_t sum_of(const LayersByKind& layers);
/// Returns the layers of every stage.
std::vector<LayersByKind> layers_by_stage(const ModelSpec& model, const Pipeline& pipeline,
                                          int64_t sequence);
/// The most layers of each kind on a rank, for any assignment of stages by a schedule; at least 1.
LayersByKind most_on_a_rank(const std::vector<LayersByKind>& by_stage, const Pipeline& pipeline);

class StagePrograms {
 public:
  /// `evaluate` must outlive this object.
  StagePrograms(const StepRequest& request, const EvaluateStage& evaluate);

  const Pipeline& pipeline() const { return pipeline_; }
  /// Whether the programs are of slices of sequences.
  bool is_sliced() const { return pipeline_.slices > 1; }
  size_t kinds() const { return kinds_.size(); }
  /// The request of the kind's program. If the vocabulary is cut, its model has the largest share.
  const StepRequest& slice(size_t kind) const { return kinds_[kind].slice; }
  int64_t layers(size_t kind) const { return slice(kind).model.layers; }
  /// Layers of a kind in the whole model.
  int64_t all_layers(size_t kind) const { return kinds_[kind].in_model; }
  /// Layers of a kind on one stage.
  int64_t layers_on(int64_t stage, size_t kind) const {
    return kinds_[kind].on_stage[static_cast<size_t>(stage)];
  }
  /// The tokens of every slice of a sequence.
  const std::vector<int64_t>& slice_tokens() const { return slice_tokens_; }
  /// The chunks of every slice in the kind's program.
  std::vector<int64_t> slice_chunks(size_t kind) const;
  /// Hidden states that a stage sends to the next one, in sequences, including those of tokens that
  /// pass by layers.
  double passed_on(int64_t stage) const { return passed_on_[static_cast<size_t>(stage)]; }
  /// The maximum of hidden states that pass by a stage's layers, in sequences.
  double passing(int64_t stage) const { return passing_[static_cast<size_t>(stage)]; }

  /// The evaluation of a kind's program. The first kind processes all tokens, and represents all
  /// kinds at the ends.
  const Evaluation& evaluation(size_t kind, StageBoundary boundary, int64_t microbatches);

 private:
  struct Known {
    StageBoundary boundary;
    int64_t microbatches;
    Evaluation evaluation;
  };
  struct Kind {
    StepRequest slice;
    int64_t in_model = 0;
    std::vector<int64_t> on_stage;
    std::deque<Known> known;  // a deque, as references stay valid
  };

  Pipeline pipeline_;
  const EvaluateStage& evaluate_;
  std::vector<Kind> kinds_;
  std::vector<double> passed_on_, passing_;
  std::vector<int64_t> slice_tokens_;
};

/// The request of one slice on layers of one kind, without the pipeline; `run` gives the kind and
/// the number of layers.
StepRequest slice_request(const StepRequest& request, const LayerRun& run);

}  // namespace longspan
