#include "planner/strategy/parallel_layout.h"

#include <fmt/format.h>
#include <cassert>

#include <algorithm>

namespace longspan {
Place place_of(const ParallelLayout& p, int64_t rank) {
  assert(0 <= rank && rank < p.stage_ranks());
  return {rank, rank / (p.ulysses * p.ring * p.tensor), rank / (p.ulysses * p.ring) % p.tensor,
          rank / p.ulysses % p.ring, rank % p.ulysses};
}

namespace {

int64_t first_of_mesh(const ParallelLayout& p, const Place& place) {
  return place.mesh * p.stage_ranks();
}

}  // namespace

RankGroup mesh_group(const ParallelLayout& p, const Place& place) {
  return {first_of_mesh(p, place), 1, p.stage_ranks(), place.rank};
}

RankGroup pipeline_group(const ParallelLayout& p, const Place& place) {
  return {place.rank, p.stage_ranks(), place.meshes, place.mesh};
}

RankGroup ends_group(const ParallelLayout& p, const Place& place) {
  return {place.rank, p.stage_ranks() * (place.meshes - 1), 2, place.mesh == 0 ? 0 : 1};
}

RankGroup sequence_group(const ParallelLayout& p, const Place& place) {
  const int64_t size = p.stage_ranks() / p.data, index = place.rank % size;
  return {first_of_mesh(p, place) + place.rank - index, 1, size, index};
}

RankGroup tensor_group(const ParallelLayout& p, const Place& place) {
  const int64_t stride = p.sequence_ranks();
  return {first_of_mesh(p, place) + place.rank - place.tensor * stride, stride, p.tensor,
          place.tensor};
}

RankGroup ring_group(const ParallelLayout& p, const Place& place) {
  return {first_of_mesh(p, place) + place.rank - place.ring * p.ulysses, p.ulysses, p.ring,
          place.ring};
}

RankGroup ulysses_group(const ParallelLayout& p, const Place& place) {
  return {first_of_mesh(p, place) + place.rank - place.ulysses, 1, p.ulysses, place.ulysses};
}

RankGroup replica_group(const ParallelLayout& p, const Place& place, ParameterUnit::Kind kind) {
  const RankGroup all = p.tensor == 1 ? mesh_group(p, place)
                                      : RankGroup{first_of_mesh(p, place) + place.tensor, p.tensor,
                                                  p.data, place.data};
  if (kind != ParameterUnit::Kind::experts || p.expert == 1) return all;
  return {all.first + all.index % p.expert * all.stride, all.stride * p.expert, all.size / p.expert,
          all.index / p.expert};
}

RankGroup expert_group(const ParallelLayout& p, const Place& place) {
  const RankGroup all = replica_group(p, place);
  const int64_t index = all.index % p.expert;
  return {all.first + (all.index - index) * all.stride, all.stride, p.expert, index};
}

std::vector<int> ranks_of(const RankGroup& group) {
  std::vector<int> ranks(group.size);
  for (int64_t i = 0; i < group.size; ++i) {
    ranks[i] = static_cast<int>(group.first + i * group.stride);
  }
  return ranks;
}

int64_t global_chunk(const ParallelLayout& p, int64_t ring, int64_t local) {
  assert(0 <= ring && ring < p.ring && local >= 0);
  if (p.ring == 1) return local;
  const int64_t in_pair = local % 2 == 0 ? p.ring - 1 - ring : p.ring + ring;
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

std::string degrees_of(const ParallelLayout& p) {
  std::string text = describe(p.pipeline);
  for (const auto& [degree, name] : {std::pair{p.data, "data"}, std::pair{p.tensor, "tensor"},
                                     std::pair{p.ring, "ring"}, std::pair{p.ulysses, "ulysses"}}) {
    if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, degree);
  }
  if (p.expert > 1) text += fmt::format(", expert {}", p.expert);
  if (p.shards() > 1) text += fmt::format(", ZeRO {}", p.zero);
  if (!p.overlap && p.ranks() > 1) text += ", exchanges not overlapped";
  return text;
}

std::string describe(const ParallelLayout& p) {
  return p.ranks() == 1 ? "1 rank" : fmt::format("{} ranks: {}", p.ranks(), degrees_of(p));
}

}  // namespace longspan
