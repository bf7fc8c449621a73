#include "planner/pipeline/stage_programs.h"

#include <algorithm>

#include "planner/pipeline/slices.h"
#include "planner/schedule/registry.h"

namespace longspan {
namespace {

// The most layers of a rank, for any assignment of stages by a schedule.
int64_t most_on_a_rank(const std::vector<int64_t>& on_stage, const Pipeline& p) {
  int64_t most = p.virtual_stages * on_stage[on_stage.size() / 2];
  for (int64_t r = 0; r < p.stages; ++r) {
    int64_t of_rank = 0;
    for (int64_t v = 0; v < p.virtual_stages; ++v) {
      of_rank += on_stage[static_cast<size_t>(r + v * p.stages)];
    }
    most = std::max(most, of_rank);
  }
  return std::max<int64_t>(1, most);
}

}  // namespace

bool cuts_vocabulary(const Pipeline& pipeline) {
  return schedule_family(pipeline.schedule).cuts_vocabulary;
}

StagePrograms::StagePrograms(const StepRequest& request, const EvaluateStage& evaluate)
    : pipeline_(request.strategy.parallel.pipeline), evaluate_(evaluate) {
  const std::vector<int64_t> layers = layers_of_stages(request.model, pipeline_, request.sequence);
  const std::vector<LayerRun> runs = layer_runs(request.model), kinds = layer_kinds(request.model);
  const std::vector<double> shares = passing_shares(runs);
  kinds_.resize(kinds.size());
  for (Kind& kind : kinds_) kind.on_stage.assign(layers.size(), 0);

  // Walks runs and stages in parallel.
  size_t run = 0;
  int64_t left = runs[0].layers;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    double passing = 0;
    for (int64_t wanted = layers[stage]; wanted > 0;) {
      if (left == 0) left = runs[++run].layers;
      const int64_t taken = std::min(wanted, left);
      const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                     [&](const LayerRun& k) { return k.like(runs[run]); });
      kinds_[static_cast<size_t>(kind - kinds.begin())].on_stage[stage] += taken;
      passing = std::max(passing, shares[run]);
      wanted -= taken;
      left -= taken;
    }
    passing_.push_back(passing);
    // If a stage ends with a run, tokens that pass by rejoin before the send; the next run samples
    // fewer only after it.
    const bool ends = left == 0 && run + 1 < runs.size();
    const size_t from = ends && runs[run + 1].tokens > runs[run].tokens ? run + 1 : run;
    passed_on_.push_back(shares[from] + runs[from].tokens);
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    kinds_[i].in_model = kinds[i].layers;
    LayerRun of_rank = kinds[i];
    of_rank.layers = most_on_a_rank(kinds_[i].on_stage, pipeline_);
    kinds_[i].slice = slice_request(request, of_rank);
  }
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
