// The cut of a vocabulary over ranks (Vocabulary Parallelism, arXiv 2411.05288): the rows of the
// embedding table and of the output matrix that each rank has.
//
// Rows are cut in groups of kVocabularyRows, as even as possible; a rank has whole groups, and the
// last rank what is left. The parameter units of a rank are parameter_units() of share_model().
// Positions are on the first rank alone. All ranks have the final norm's parameters; those of the
// rank with the last stage are in use.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_spec.h"
#include "models/tensor_slices.h"

namespace longspan {

/// Rows of bfloat16 columns that a GPU's products want aligned: 16 bytes.
inline constexpr int64_t kVocabularyRows = 8;

/// The rows from `first` on of a vocabulary of `whole` rows. Their number is the vocabulary of the
/// share's model.
struct VocabularyShare {
  int64_t first = 0;
  int64_t whole = 0;  // 0: the vocabulary is not cut

  bool is_cut() const { return whole > 0; }
  /// The size of the vocabulary of which a model with `rows` rows has a share, or all.
  int64_t all(int64_t rows) const { return is_cut() ? whole : rows; }
  bool operator==(const VocabularyShare&) const = default;
};

/// The most ranks over which a model's vocabulary can be cut.
int64_t most_vocabulary_shares(const ModelSpec& model);

/// The share of rank `index` of `ranks`. Throws bad_input if there are more ranks than groups.
VocabularyShare vocabulary_share(const ModelSpec& model, int64_t index, int64_t ranks);

/// The model with the vocabulary, and the positions, of that rank alone.
ModelSpec share_model(const ModelSpec& model, int64_t index, int64_t ranks);

/// The runs of the embedding or head unit of `own`, a share_model(), in that of the whole model.
/// Runs that every rank has are `replicated`.
std::vector<SliceRun> share_runs(const ModelSpec& own, const VocabularyShare& share,
                                 ParameterUnit::Kind kind);

}  // namespace longspan
