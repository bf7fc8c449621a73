// Checks without a GPU that cuDNN's frontend accepts the attention that plans request, on each
// architecture; otherwise refused shapes would only be found on a GPU.
#include <catch2/catch.hpp>

#include "engine/cuda/attention_plans.h"

namespace longspan::cuda {
namespace {

AttentionKey key(bool backward, bool masks, int64_t queries, int64_t keys, int64_t head_dim = 128) {
  return {.backward = backward,
          .masks = masks,
          .deterministic = false,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = head_dim,
          .queries = queries,
          .keys = keys,
          .o_row = 8 * head_dim};
}

}  // namespace

TEST_CASE("the frontend takes every kind of attention call", "[cuda]") {
  for (const int capability : {80, 90, 100}) {
    for (const bool backward : {false, true}) {
      for (const int64_t head_dim : {64, 128}) {
        INFO("capability " << capability << (backward ? ", backward" : ", forward") << ", heads of "
                           << head_dim);
        CHECK(why_refused(key(backward, false, 4096, 4096, head_dim), capability) == "");
        CHECK(why_refused(key(backward, true, 4096, 4096, head_dim), capability) == "");
        CHECK(why_refused(key(backward, true, 4096, 65536, head_dim), capability) == "");
      }
    }
    AttentionKey deterministic = key(true, true, 8192, 8192);
    deterministic.deterministic = true;
    CHECK(why_refused(deterministic, capability) == "");
    // A group of heads among more: rows of o are longer than those in use.
    AttentionKey group = key(true, true, 4096, 4096);
    group.o_row *= 4;
    CHECK(why_refused(group, capability) == "");
  }
}

TEST_CASE("what the frontend refuses is not asked of it", "[cuda]") {
  CHECK_FALSE(why_refused(key(false, true, 8192, 4096), 90).empty());
  CHECK_FALSE(why_refused(key(true, false, 4096, 4096, 256), 80).empty());
  AttentionShape wide;
  wide.heads = wide.kv_heads = 8;
  wide.head_dim = 256;
  wide.queries = wide.keys = 4096;
  wide.offset = 4096;
  wide.rows = {2048, 8, 8};
  CHECK(fits_library(wide, false));
  CHECK_FALSE(fits_library(wide, true));
  AttentionShape cut = wide;
  cut.head_dim = 128;
  cut.offset = 100;  // neither without a mask nor causal with the last query seeing the last key
  CHECK_FALSE(fits_library(cut, false));
}

}  // namespace longspan::cuda
