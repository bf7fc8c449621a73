#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/units.h"
#include "models/model_spec.h"

namespace longspan {

bool ModelSpec::works_on_all_tokens() const {
  return std::all_of(runs.begin(), runs.end(), [](const LayerRun& run) { return run.tokens == 1; });
}

std::vector<LayerRun> layer_runs(const ModelSpec& model) {
  if (!model.uniform()) return model.runs;
  return {{model.layers, model.attention, model.ffn, 1, model.window, model.experts.has_value(),
           LayerPositions::model, model.backward, model.span}};
}

ModelSpec model_of_run(const ModelSpec& model, const LayerRun& run) {
  ModelSpec alike = model;
  alike.layers = run.layers;
  alike.attention = run.attention;
  alike.ffn = run.ffn;
  alike.window = run.window;
  alike.span = run.span;
  alike.backward = run.backward;
  alike.next_token_layers = 0;
  if (!run.experts) alike.experts.reset();
  if (run.positions == LayerPositions::local) {
    alike.rope_theta = model.local_rope_theta;
    alike.rope_scaling.reset();
  } else if (run.positions == LayerPositions::none) {
    alike.positions = Positions::none;
  }
  alike.runs.clear();
  return alike;
}

LayerRun run_of_layer(const ModelSpec& model, int64_t layer) {
  const std::vector<LayerRun> runs = layer_runs(model);
  size_t i = 0;
  for (; layer >= runs[i].layers; ++i) layer -= runs[i].layers;
  return runs[i];
}

int64_t tokens_of_run(const LayerRun& run, int64_t sequence, int64_t multiple) {
  const auto whole = static_cast<int64_t>(std::floor(run.tokens * static_cast<double>(sequence)));
  return std::max(multiple, whole / multiple * multiple);
}

std::vector<LayerRun> layer_kinds(const ModelSpec& model) {
  std::vector<LayerRun> kinds;
  for (const LayerRun& run : layer_runs(model)) {
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const LayerRun& kind) { return kind.like(run); });
    if (known == kinds.end()) {
      kinds.push_back(run);
    } else {
      known->layers += run.layers;
    }
  }
  return kinds;
}

std::vector<LayerRun> runs_between(const ModelSpec& model, int64_t first, int64_t end) {
  std::vector<LayerRun> part;
  int64_t next = 0;
  for (LayerRun run : layer_runs(model)) {
    const int64_t begin = std::max(first, next);
    next += run.layers;
    run.layers = std::min(end, next) - begin;
    if (run.layers > 0) part.push_back(run);
  }
  return part;
}

TokenShares shares_in(const TokenShares& neighbour, double tokens) {
  TokenShares shares = neighbour;
  while (shares.back() < tokens) shares.pop_back();
  if (shares.back() > tokens) shares.push_back(tokens);
  return shares;
}

TokenShares shares_before(const ModelSpec& model, int64_t layer) {
  TokenShares before{1};
  for (const LayerRun& run : runs_between(model, 0, layer)) before = shares_in(before, run.tokens);
  if (layer == model.layers) return {1};
  const double next = run_of_layer(model, layer).tokens;
  while (before.back() < next) before.pop_back();
  return before;
}

std::vector<double> passing_shares(const std::vector<LayerRun>& runs) {
  std::vector<double> shares;
  std::vector<double> around;  // shares of the runs around this one, decreasing
  for (const LayerRun& run : runs) {
    while (!around.empty() && around.back() <= run.tokens) around.pop_back();
    shares.push_back(std::accumulate(around.begin(), around.end(), 0.0));
    around.push_back(run.tokens);
  }
  return shares;
}

std::vector<LayerRun> fuse(const std::vector<LayerRun>& runs) {
  std::vector<LayerRun> fused;
  for (size_t i = 0; i < runs.size();) {
    if (runs[i].attention) {
      fused.push_back(runs[i++]);
      continue;
    }
    // Consecutive layers without attention on the same tokens.
    LayerRun wide = runs[i];
    wide.layers = 1;
    wide.ffn = 0;
    int64_t layers = 0, last_ffn = 0;
    for (; i < runs.size() && !runs[i].attention && runs[i].tokens == wide.tokens; ++i) {
      layers += runs[i].layers;
      last_ffn = runs[i].ffn;
      wide.ffn = checked_add(wide.ffn, checked_mul(runs[i].layers, last_ffn, "ffn"), "ffn");
    }
    wide.ffn -= last_ffn;
    if (layers > 1) fused.push_back(wide);
    fused.push_back({1, false, last_ffn, wide.tokens});
  }
  return fused;
}

}  // namespace longspan
