// Windows in chunks of keys, against counting every pair of a query and a key.
#include "planner/program/key_window.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

namespace longspan {
namespace {

// Pairs of a query in one chunk and a key in another, `distance` chunks before it, that are
// visible, and that are hidden though not later.
struct PairsApart {
  int64_t visible = 0, hidden = 0;
};
PairsApart pairs_at(int64_t distance, int64_t chunk, int64_t window) {
  PairsApart pairs;
  for (int64_t query = 0; query < chunk; ++query) {
    for (int64_t key = 0; key < chunk; ++key) {
      const int64_t apart = distance * chunk + query - key;
      if (apart >= 0) ++(apart < window ? pairs.visible : pairs.hidden);
    }
  }
  return pairs;
}

ModelSpec with_window(int64_t window) {
  ModelSpec model;
  model.window = window;
  return model;
}

}  // namespace

TEST_CASE("a window reaches the chunks in which some query sees some key") {
  for (int64_t window = 1; window < 40; ++window) {
    for (int64_t chunk = 1; chunk < 9; ++chunk) {
      CAPTURE(window, chunk);
      const KeyWindow of = key_window(with_window(window), chunk);
      for (int64_t distance = 0; distance < 50; ++distance) {
        const PairsApart pairs = pairs_at(distance, chunk, window);
        CHECK((pairs.visible > 0) == (distance <= of.farthest));
        if (pairs.visible > 0) CHECK((pairs.hidden > 0) == (distance >= of.hides_from));
      }
      for (int64_t chunks = 1; chunks < 20; ++chunks) {
        int64_t sum = 0;
        for (int64_t query = 0; query < chunks; ++query) sum += query - of.first(query) + 1;
        CHECK(of.pairs(chunks) == sum);
        CHECK(of.last(0, chunks) == std::min(of.farthest, chunks - 1));
      }
    }
  }
  CHECK_FALSE(key_window(with_window(0), 8).is_limited());
}

TEST_CASE("the pairs of an op are counted exactly") {
  for (const int64_t window : {0, 1, 2, 5, 8, 9, 10, 23, 100}) {
    for (const int64_t chunk : {1, 4, 8}) {
      for (int64_t keys = 1; keys < 5; ++keys) {
        for (int64_t distance = keys - 1; distance < keys + 4; ++distance) {
          const bool diagonal = distance == keys - 1;
          int64_t sum = 0;
          for (int64_t i = 0; i < keys; ++i) {
            sum += pairs_at(distance - i, chunk, window > 0 ? window : 1000).visible;
          }
          CAPTURE(window, chunk, keys, distance);
          CHECK(visible_pairs(with_window(window), chunk, keys, diagonal,
                              diagonal ? 0 : distance) == sum);
        }
      }
    }
  }
  CHECK(visible_pairs(with_window(5), 16, 3, false, 0) == 16 * 48);  // none is hidden
}

TEST_CASE("the chunks of a ring's positions are attended to once, if they are seen") {
  ParallelLayout parallel;
  for (const int64_t ring : {2, 3, 4}) {
    parallel.ring = ring;
    for (const int64_t window : {0, 1, 7, 8, 9, 20, 60, 500}) {
      constexpr int64_t kChunk = 8, kChunks = 6;
      const KeyWindow of = key_window(with_window(window), kChunk);
      for (int64_t own = 0; own < ring; ++own) {
        for (int64_t query = 0; query < kChunks; ++query) {
          std::set<int64_t> seen;
          double pairs = 0;
          for (int64_t source = 0; source < ring; ++source) {
            for (const KeyRange& keys : ring_keys(parallel, own, query, source, kChunks, of)) {
              for (int i = 0; i < keys.count; ++i) {
                CHECK(seen.insert(global_chunk(parallel, source, keys.first + i)).second);
              }
              pairs += visible_pairs(with_window(window), kChunk, keys.count, keys.diagonal,
                                     keys.distance);
            }
          }
          int64_t expected = 0;
          const int64_t place = global_chunk(parallel, own, query);
          for (int64_t chunk = 0; chunk <= place; ++chunk) {
            const int64_t visible =
                pairs_at(place - chunk, kChunk, window > 0 ? window : 10000).visible;
            expected += visible;
            CHECK(seen.contains(chunk) == (visible > 0));
          }
          CAPTURE(ring, window, own, query);
          CHECK(pairs == expected);
        }
      }
    }
  }
}

TEST_CASE("the first position of a ring sees the most pairs") {
  ParallelLayout parallel;
  constexpr int64_t kChunk = 8, kChunks = 4;
  std::vector<ModelSpec> models;
  for (const int64_t window : {0, 1, 7, 9, 20, 60, 500}) models.push_back(with_window(window));
  for (const int64_t length : {1, 5, 8, 30, 100, 1000}) {
    models.push_back(with_window(length % 2 == 0 ? 0 : 12));
    models.back().documents = Documents({{length, 3}, {2 * length, 1}});
  }
  for (const int64_t ring : {2, 3, 4, 8}) {
    parallel.ring = ring;
    for (const ModelSpec& model : models) {
      const KeyWindow window = key_window(model, kChunk);
      std::vector<double> pairs(static_cast<size_t>(ring));
      for (int64_t own = 0; own < ring; ++own) {
        for (int64_t query = 0; query < kChunks; ++query) {
          for (int64_t source = 0; source < ring; ++source) {
            for (const KeyRange& keys : ring_keys(parallel, own, query, source, kChunks, window)) {
              pairs[static_cast<size_t>(own)] +=
                  visible_pairs(model, kChunk, keys.count, keys.diagonal, keys.distance);
            }
          }
        }
      }
      INFO("ring " << ring << ", window " << model.window << ", documents up to "
                   << model.documents.longest());
      for (const double of_position : pairs) CHECK(of_position <= pairs[0] * (1 + 1e-12));
    }
  }
}

}  // namespace longspan
