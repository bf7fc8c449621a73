// Shares of a vocabulary cover it, each row once, in whole groups.
#include "models/vocabulary_share.h"

#include <catch2/catch.hpp>
#include <vector>

#include "base/error.h"
#include "models/catalog.h"

namespace longspan {

TEST_CASE("shares of a vocabulary cover each of its rows once") {
  ModelSpec model = load_model("tiny-llama");
  for (const int64_t vocab : {8, 9, 61, 256, 50257, 128256}) {
    model.vocab = vocab;
    for (int64_t ranks = 1; ranks <= std::min<int64_t>(9, most_vocabulary_shares(model)); ++ranks) {
      CAPTURE(vocab, ranks);
      int64_t next = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const VocabularyShare share = vocabulary_share(model, rank, ranks);
        const int64_t rows = share_model(model, rank, ranks).vocab;
        CHECK(share.first == next);
        CHECK(share.whole == vocab);
        CHECK(rows > 0);
        CHECK((rows % kVocabularyRows == 0 || rank + 1 == ranks));
        CHECK(rows <= (vocab + ranks - 1) / ranks + kVocabularyRows);
        next += rows;
      }
      CHECK(next == vocab);
    }
  }
}

TEST_CASE("the runs of all shares cover the embedding and the head unit once") {
  for (const char* name : {"tiny-llama", "tiny-gpt", "qwen3-0.6b"}) {
    const ModelSpec model = load_model(name);
    const std::vector<ParameterUnit> units = parameter_units(model);
    for (const ParameterUnit& unit : {units.front(), units.back()}) {
      CAPTURE(name, unit.elements);
      constexpr int64_t kRanks = 3;
      int64_t covered = 0, norm = 0;
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        const ModelSpec own = share_model(model, rank, kRanks);
        const std::vector<ParameterUnit> own_units = parameter_units(own);
        const bool embedding = unit.kind == ParameterUnit::Kind::embedding;
        int64_t next = 0;
        for (const SliceRun& run :
             share_runs(own, vocabulary_share(model, rank, kRanks), unit.kind)) {
          CHECK(run.narrow == next);
          CHECK(run.whole + run.count <= unit.elements);
          next += run.count;
          (run.replicated ? norm : covered) += run.count;
        }
        CHECK(next == (embedding ? own_units.front() : own_units.back()).elements);
      }
      CHECK(covered + norm / kRanks == unit.elements);
    }
  }
}

TEST_CASE("a vocabulary that is too small for its ranks is refused") {
  ModelSpec model = load_model("tiny-llama");
  model.vocab = 17;
  CHECK_NOTHROW(vocabulary_share(model, 2, 3));
  CHECK_THROWS_WITH(vocabulary_share(model, 0, 4),
                    Catch::Matchers::Contains("too few for 4 ranks"));
}

}  // namespace longspan
