#include "models/documents.h"

#include <catch2/catch.hpp>
#include <random>

namespace longspan {
namespace {

// By the definition: pair by pair.
double pairs_one_by_one(const Documents& documents, int64_t queries, int64_t keys, int64_t distance,
                        int64_t window) {
  double sum = 0;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t apart = distance + i - j;
      if (window == 0 || apart < window) sum += documents.visible(apart);
    }
  }
  return sum;
}

TEST_CASE("pairs of documents are the sum over all pairs of how often they are visible") {
  std::mt19937 random(7);
  const auto pick = [&](int64_t most) { return static_cast<int64_t>(random() % most) + 1; };
  for (int trial = 0; trial < 200; ++trial) {
    std::map<int64_t, int64_t> counts;
    for (int64_t i = pick(4); i > 0; --i) counts[pick(60)] += pick(5);
    const Documents documents = trial % 10 == 0 ? Documents() : Documents(counts);
    const int64_t queries = pick(40), keys = pick(40), distance = pick(90) - 1;
    const int64_t window = trial % 3 == 0 ? pick(50) : 0;
    CAPTURE(trial, queries, keys, distance, window);
    CHECK(documents.pairs(queries, keys, distance, window) ==
          Approx(pairs_one_by_one(documents, queries, keys, distance, window))
              .epsilon(1e-9)
              .margin(1e-9));
  }
}

TEST_CASE("all documents of a stream have the pairs of their lengths") {
  // Over a long stretch of the stream, the pairs of a query with all keys before it are those of
  // its document.
  const Documents documents(std::map<int64_t, int64_t>{{10, 3}, {25, 1}, {1, 5}});
  const double of_documents = 3 * 55 + 325 + 5, tokens = 30 + 25 + 5;
  CHECK(documents.pairs(6000, 100, 100) < of_documents / tokens * 6000);
  CHECK(documents.pairs(1000, 2000, 1000) == Approx(of_documents / tokens * 1000));
}

TEST_CASE("documents of one length that divides the sequence begin with it") {
  std::mt19937 random(11);
  const auto pick = [&](int64_t most) { return static_cast<int64_t>(random() % most) + 1; };
  for (int trial = 0; trial < 100; ++trial) {
    const int64_t part = 1 + pick(6), factor = pick(4);
    // Chunks of several documents, and documents of several chunks.
    const int64_t length = trial % 2 == 0 ? part : part * factor;
    const int64_t chunk = trial % 2 == 0 ? part * factor : part;
    const int64_t sequence = length * chunk * pick(3);
    const int64_t window = trial % 3 == 0 ? pick(2 * length) : 0;
    const Documents documents = Documents(std::map<int64_t, int64_t>{{length, 1}}).in(sequence);
    double sum = 0, expected = 0;
    for (int64_t query = 0; query < sequence / chunk; ++query) {
      sum += documents.pairs(chunk, (query + 1) * chunk, query * chunk, window);
    }
    for (int64_t i = 0; i < sequence; ++i) {
      const int64_t keys = i % length + 1;
      expected += static_cast<double>(window > 0 ? std::min(keys, window) : keys);
    }
    CAPTURE(trial, length, chunk, sequence, window);
    CHECK(sum == Approx(expected));
    CHECK(documents.pairs(sequence, sequence, 0, window) == Approx(expected));
  }
  const Documents whole = Documents(std::map<int64_t, int64_t>{{64, 1}}).in(64);
  CHECK(whole.are_sequences());
  CHECK(whole.most_keys(0) == 0);
  CHECK(whole.pairs(16, 48, 32) == Documents().pairs(16, 48, 32));
}

TEST_CASE("without documents all pairs up to the query are there") {
  const Documents none;
  CHECK(none.pairs(8, 8, 0) == 36);
  CHECK(none.pairs(8, 8, 8) == 64);
  CHECK(none.pairs(4, 12, 8) == 32 + 10);
}

TEST_CASE("documents of one length as long as the sequence have all its pairs at most") {
  const Documents long_ones(std::map<int64_t, int64_t>{{1 << 20, 1}});
  CHECK(long_ones.pairs(1024, 1024, 0) == Approx(1024 * 1025 / 2).epsilon(1e-3));
}

TEST_CASE("many lengths are joined, and keep their tokens") {
  std::map<int64_t, int64_t> counts;
  for (int64_t length = 1; length <= 5000; ++length) counts[length] = 1 + length % 7;
  const Documents documents(counts);
  double pairs = 0, tokens = 0;
  for (const auto& [length, count] : counts) {
    const auto l = static_cast<double>(length), n = static_cast<double>(count);
    pairs += n * l * (l + 1) / 2;
    tokens += n * l;
  }
  CHECK(documents.lengths().size() <= Documents::kMostLengths);
  CHECK(documents.longest() == 5000);
  CHECK(documents.visible(0) == Approx(1));
  CHECK(documents.pairs(1000, 9000, 8000) == Approx(1000 * pairs / tokens).epsilon(0.005));
}

}  // namespace
}  // namespace longspan
