#include "models/vocabulary_share.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

int64_t first_row(const ModelSpec& model, int64_t index, int64_t ranks) {
  const int64_t groups = most_vocabulary_shares(model);
  return std::min(model.vocab, groups * index / ranks * kVocabularyRows);
}

}  // namespace

int64_t most_vocabulary_shares(const ModelSpec& model) {
  return ceil_div(model.vocab, kVocabularyRows);
}

VocabularyShare vocabulary_share(const ModelSpec& model, int64_t index, int64_t ranks) {
  if (ranks > most_vocabulary_shares(model)) {
    throw bad_input(
        "{}: a vocabulary of {} is cut in groups of {} rows, too few for {} ranks; take a "
        "schedule that does not cut it, such as 1f1b",
        model.name, model.vocab, kVocabularyRows, ranks);
  }
  return {first_row(model, index, ranks), model.vocab};
}

ModelSpec share_model(const ModelSpec& model, int64_t index, int64_t ranks) {
  ModelSpec own = model;
  own.vocab = first_row(model, index + 1, ranks) - vocabulary_share(model, index, ranks).first;
  if (own.positions == Positions::learned && index > 0) own.max_positions = 0;
  return own;
}

std::vector<SliceRun> share_runs(const ModelSpec& own, const VocabularyShare& share,
                                 ParameterUnit::Kind kind) {
  const int64_t d = own.hidden;
  const SliceRun table{0, share.first * d, own.vocab * d};
  if (kind == ParameterUnit::Kind::head) {
    const int64_t norm = (own.norm == Norm::layernorm ? 2 : 1) * d;
    std::vector<SliceRun> runs{{0, 0, norm, true}};
    if (!own.tied_embeddings) runs.push_back({norm, norm + table.whole, table.count});
    return runs;
  }
  std::vector<SliceRun> runs{table};
  const int64_t positions = own.positions == Positions::learned ? own.max_positions * d : 0;
  if (positions > 0) runs.push_back({table.count, share.whole * d, positions});
  return runs;
}

}  // namespace longspan
