#include "planner/pipeline/stage_programs.h"

#include <algorithm>
#include <numeric>

#include "planner/pipeline/slices.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/slice_lengths.h"

namespace longspan {
bool cuts_vocabulary(const Pipeline& pipeline) { return family_of(pipeline).cuts_vocabulary; }

int64_t sum_of(const LayersByKind& layers) {
  return std::accumulate(layers.begin(), layers.end(), int64_t{0});
}

std::vector<LayersByKind> layers_by_stage(const ModelSpec& model, const Pipeline& pipeline,
                                          int64_t sequence) {
  const std::vector<LayerRun> kinds = layer_kinds(model);
  std::vector<size_t> kind_of_layer;
  for (const LayerRun& run : layer_runs(model)) {
    const auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](const LayerRun& k) { return k.like(run); });
    kind_of_layer.insert(kind_of_layer.end(), static_cast<size_t>(run.layers),
                         static_cast<size_t>(kind - kinds.begin()));
  }
  std::vector<LayersByKind> stages;
  size_t layer = 0;
  for (const int64_t layers : layers_of_stages(model, pipeline, sequence)) {
    LayersByKind& of_stage = stages.emplace_back(kinds.size(), 0);
    for (int64_t i = 0; i < layers; ++i) ++of_stage[kind_of_layer[layer++]];
  }
  return stages;
}

LayersByKind most_on_a_rank(const std::vector<LayersByKind>& by_stage, const Pipeline& p) {
  LayersByKind most = by_stage[by_stage.size() / 2];
  for (int64_t& layers : most) layers = std::max<int64_t>(1, layers * p.virtual_stages);
  for (int64_t r = 0; r < p.stages; ++r) {
    LayersByKind of_rank(most.size(), 0);
    for (int64_t v = 0; v < p.virtual_stages; ++v) {
      const LayersByKind& own = by_stage[static_cast<size_t>(r + v * p.stages)];
      for (size_t kind = 0; kind < own.size(); ++kind) of_rank[kind] += own[kind];
    }
    for (size_t kind = 0; kind < most.size(); ++kind) {
      most[kind] = std::max(most[kind], of_rank[kind]);
    }
  }
  return most;
}

namespace {

// The most rows of the vocabulary on a rank.
int64_t largest_share(const StepRequest& request) {
  const int64_t ranks = request.strategy.parallel.pipeline.stages;
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    most = std::max(most, share_model(request.model, rank, ranks).vocab);
  }
  return most;
}

}  // namespace

StagePrograms::StagePrograms(const StepRequest& request, const EvaluateStage& evaluate)
    : pipeline_(request.strategy.parallel.pipeline),
      evaluate_(evaluate),
      slice_tokens_(slice_lengths(request.model, request.strategy, request.sequence)) {
  const std::vector<LayerRun> runs = layer_runs(request.model), kinds = layer_kinds(request.model);
  const std::vector<double> shares = passing_shares(runs);
  kinds_.resize(kinds.size());
  const std::vector<LayersByKind> by_stage =
      layers_by_stage(request.model, pipeline_, request.sequence);
  for (const LayersByKind& of_stage : by_stage) {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      kinds_[kind].on_stage.push_back(of_stage[kind]);
    }
  }
  const LayersByKind most = most_on_a_rank(by_stage, pipeline_);

  // Walks runs and stages in parallel.
  size_t run = 0;
  int64_t left = runs[0].layers, border = 0;
  for (const LayersByKind& of_stage : by_stage) {
    double passing = 0;
    for (int64_t wanted = sum_of(of_stage); wanted > 0;) {
      if (left == 0) left = runs[++run].layers;
      const int64_t taken = std::min(wanted, left);
      passing = std::max(passing, shares[run]);
      wanted -= taken;
      left -= taken;
    }
    passing_.push_back(passing);
    border += sum_of(of_stage);
    const TokenShares sent = shares_before(request.model, border);
    passed_on_.push_back(std::accumulate(sent.begin(), sent.end(), 0.0));
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    kinds_[i].in_model = kinds[i].layers;
    LayerRun of_rank = kinds[i];
    of_rank.layers = most[i];
    kinds_[i].slice = slice_request(request, of_rank);
    if (cuts_vocabulary(pipeline_)) kinds_[i].slice.model.vocab = largest_share(request);
  }
}

std::vector<int64_t> StagePrograms::slice_chunks(size_t kind) const {
  const int64_t of_all =
      pipeline_.slices * lengths_of(slice(kind).strategy, slice(kind).sequence).chunks();
  const int64_t tokens = std::accumulate(slice_tokens_.begin(), slice_tokens_.end(), int64_t{0});
  std::vector<int64_t> chunks = slice_tokens_;
  for (int64_t& of_slice : chunks) of_slice = of_slice / (tokens / of_all);
  return chunks;
}

const Evaluation& StagePrograms::evaluation(size_t kind, StageBoundary boundary,
                                            int64_t microbatches) {
  Kind& own = kinds_[kind];
  for (const Known& known : own.known) {
    if (known.boundary == boundary && known.microbatches == microbatches) return known.evaluation;
  }
  StepRequest request = own.slice;
  request.boundary = boundary;
  request.microbatches = microbatches;
  own.known.push_back({boundary, microbatches, evaluate_(request)});
  return own.known.back().evaluation;
}

StepRequest slice_request(const StepRequest& request, const LayerRun& run) {
  StepRequest slice = request;
  slice.model = model_of_run(request.model, run);
  cut_to_slice(slice, run);
  return slice;
}

}  // namespace longspan
