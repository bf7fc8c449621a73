#include "planner/strategy/parallel.h"

#include <fmt/format.h>
#include <cassert>

#include <algorithm>

#include "base/error.h"

namespace longspan {
namespace {

// "1, 2, 4": the degrees up to `most` that fit.
template <class Fits>
std::string usable_degrees(int64_t most, Fits&& fits) {
  std::string list;
  for (int64_t degree = 1; degree <= std::min(most, kMostRanks); ++degree) {
    if (fits(degree)) list += (list.empty() ? "" : ", ") + std::to_string(degree);
  }
  return list;
}

bool fits_tensor(const ModelSpec& model, int64_t degree) {
  return model.heads % degree == 0 && model.kv_heads % degree == 0 && model.ffn % degree == 0;
}

void validate_tensor(const Parallel& p, const ModelSpec& model, int64_t sequence,
                     const std::string& origin) {
  if (p.tensor == 1) return;
  if (p.ring > 1 || p.ulysses > 1) {
    throw bad_input(
        "{}: parallel.tensor: a tensor group deals out heads and tokens by itself; set ring and "
        "ulysses to 1",
        origin);
  }
  if (!fits_tensor(model, p.tensor)) {
    throw bad_input(
        "{}: parallel.tensor: {} does not divide the {} heads, {} K,V heads and the inner width of "
        "{} of {}; try one of {}",
        origin, p.tensor, model.heads, model.kv_heads, model.ffn, model.name,
        usable_degrees(model.kv_heads, [&](int64_t d) { return fits_tensor(model, d); }));
  }
  if (sequence % p.tensor != 0) {
    throw bad_input(
        "{}: parallel.tensor: a sequence of {} tokens cannot be dealt out to {} ranks evenly",
        origin, sequence, p.tensor);
  }
}

}  // namespace

Place place_of(const Parallel& p, int64_t rank) {
  assert(0 <= rank && rank < p.stage_ranks());
  return {rank, rank / (p.ulysses * p.ring * p.tensor), rank / (p.ulysses * p.ring) % p.tensor,
          rank / p.ulysses % p.ring, rank % p.ulysses};
}

RankGroup world_group(const Parallel& p, const Place& place) {
  return {0, 1, p.stage_ranks(), place.rank};
}

RankGroup tensor_group(const Parallel& p, const Place& place) {
  const int64_t stride = p.sequence_ranks();
  return {place.rank - place.tensor * stride, stride, p.tensor, place.tensor};
}

RankGroup ring_group(const Parallel& p, const Place& place) {
  return {place.rank - place.ring * p.ulysses, p.ulysses, p.ring, place.ring};
}

RankGroup ulysses_group(const Parallel& p, const Place& place) {
  return {place.rank - place.ulysses, 1, p.ulysses, place.ulysses};
}

RankGroup replica_group(const Parallel& p, const Place& place) {
  if (p.tensor == 1) return world_group(p, place);
  return {place.tensor, p.tensor, p.data, place.data};
}

std::vector<int> ranks_of(const RankGroup& group) {
  std::vector<int> ranks(group.size);
  for (int64_t i = 0; i < group.size; ++i) {
    ranks[i] = static_cast<int>(group.first + i * group.stride);
  }
  return ranks;
}

int64_t global_chunk(const Parallel& p, int64_t ring, int64_t local) {
  assert(0 <= ring && ring < p.ring && local >= 0);
  if (p.ring == 1) return local;
  const int64_t in_pair = local % 2 == 0 ? ring : 2 * p.ring - 1 - ring;
  return local / 2 * 2 * p.ring + in_pair;
}

int64_t kv_heads_per_rank(const ModelSpec& model, int64_t ulysses) {
  return std::max<int64_t>(1, model.kv_heads / ulysses);
}

bool heads_divide_into(const ModelSpec& model, int64_t ulysses, int64_t groups) {
  const int64_t shares = ulysses * groups;
  return model.heads % shares == 0 &&
         (model.kv_heads % shares == 0 || shares % model.kv_heads == 0);
}

void validate(const Parallel& p, const ModelSpec& model, int64_t sequence, int64_t chunk,
              const std::string& origin) {
  int64_t ranks = 1;
  for (const auto& [degree, key] : {std::pair{p.pipeline.stages, "pipeline"},
                                    std::pair{p.data, "data"}, std::pair{p.tensor, "tensor"},
                                    std::pair{p.ring, "ring"}, std::pair{p.ulysses, "ulysses"}}) {
    if (degree < 1 || degree > kMostRanks) {
      throw bad_input("{}: parallel.{}: expected 1 to {} ranks, got {}", origin, key, kMostRanks,
                      degree);
    }
    ranks *= degree;
    if (ranks > kMostRanks) throw bad_input("{}: parallel: more than {} ranks", origin, kMostRanks);
  }
  if (p.zero < 0 || p.zero > 3) {
    throw bad_input("{}: parallel.zero: expected 0 to 3, got {}", origin, p.zero);
  }
  if (!heads_divide_into(model, p.ulysses, 1)) {
    throw bad_input(
        "{}: parallel.ulysses: {} does not divide the {} heads ({} K,V heads) of {}; try one of {}",
        origin, p.ulysses, model.heads, model.kv_heads, model.name,
        usable_degrees(model.heads, [&](int64_t d) { return heads_divide_into(model, d, 1); }));
  }
  if (chunk % p.ulysses != 0) {
    throw bad_input("{}: parallel.ulysses: a chunk of {} tokens cannot be dealt out to {} ranks",
                    origin, chunk, p.ulysses);
  }
  if (p.ring > 1 && sequence % (chunk * 2 * p.ring) != 0) {
    throw bad_input(
        "{}: parallel.ring: {} tokens are not a multiple of {} chunks of {}, two for each of the "
        "ring's {} ranks",
        origin, sequence, 2 * p.ring, chunk, p.ring);
  }
  validate_tensor(p, model, sequence, origin);
  validate(p.pipeline, model, sequence, origin);
}

std::string degrees_of(const Parallel& p) {
  std::string text = describe(p.pipeline);
  for (const auto& [degree, name] : {std::pair{p.data, "data"}, std::pair{p.tensor, "tensor"},
                                     std::pair{p.ring, "ring"}, std::pair{p.ulysses, "ulysses"}}) {
    if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, degree);
  }
  if (p.shards() > 1) text += fmt::format(", ZeRO {}", p.zero);
  if (!p.overlap && p.ranks() > 1) text += ", exchanges not overlapped";
  return text;
}

std::string describe(const Parallel& p) {
  return p.ranks() == 1 ? "1 rank" : fmt::format("{} ranks: {}", p.ranks(), degrees_of(p));
}

}  // namespace longspan
