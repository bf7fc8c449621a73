#include "engine/profile/device_attention.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/cuda/attention.h"
#include "planner/cost/tiling.h"

namespace longspan {
namespace {

using cuda::AttentionShape;

constexpr int64_t kHalf = sizeof(bfloat16), kFloat = sizeof(float);
const std::string kByHeads = "by heads ";  // prefix of the families of add_heads_samples()

// The shape of one call: an unmasked rectangle, or the triangle of a causal mask.
AttentionShape call_of(int64_t heads, int64_t kv_heads, int64_t dim, int64_t queries, int64_t keys,
                       bool diagonal) {
  AttentionShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = dim;
  shape.queries = queries;
  shape.keys = keys;
  shape.offset = diagonal ? 0 : keys;  // queries after all keys: nothing is masked
  shape.rows = {heads * dim, heads, heads};
  return shape;
}

double flops_of(const AttentionShape& s, bool backward) {
  const auto queries = static_cast<double>(s.queries), keys = static_cast<double>(s.keys);
  const double pairs = s.masks() ? queries * (queries + 1) / 2 : queries * keys;
  return (backward ? 10 : 4) * pairs * static_cast<double>(s.heads * s.head_dim);
}

void add_forward(Sampler& sampler, DeviceBench& bench, const std::string& family,
                 const AttentionShape& s, std::array<double, 3> shape) {
  DeviceScratch& scratch = bench.scratch;
  const int64_t q = s.queries * s.heads * s.head_dim, k = s.keys * s.kv_heads * s.head_dim;
  const int64_t lse = s.queries * s.heads;
  const int64_t workspace = attention_forward_workspace(s.call(), false).bytes();
  if (!scratch.holds(kHalf * (q + 2 * k), kHalf * q + kFloat * lse + workspace)) return;
  const auto run = [=, &scratch](const cuda::Queue& queue) {
    const auto *from_q = scratch.in<bfloat16>(q), *from_k = scratch.in<bfloat16>(k);
    const auto* from_v = scratch.in<bfloat16>(k);
    auto* o = scratch.out<bfloat16>(q);
    float* to_lse = scratch.out<float>(lse);
    cuda::attention_forward<bfloat16>(queue, {s, from_q, from_k, from_v, true, o, to_lse,
                                              scratch.out<std::byte>(workspace), nullptr});
  };
  sampler.add(family, shape, flops_of(s, false), bench.loaded_runs(run));
}

void add_backward(Sampler& sampler, DeviceBench& bench, const std::string& family,
                  const AttentionShape& s, std::array<double, 3> shape) {
  DeviceScratch& scratch = bench.scratch;
  const int64_t q = s.queries * s.heads * s.head_dim, k = s.keys * s.kv_heads * s.head_dim;
  const int64_t lse = s.queries * s.heads;
  const int64_t workspace = attention_backward_workspace(backward_tile(s.call())).bytes();
  if (!scratch.holds(kHalf * (2 * q + 2 * k) + 2 * kFloat * lse,
                     kFloat * (q + 2 * k) + workspace)) {
    return;
  }
  const auto run = [=, &scratch](const cuda::Queue& queue) {
    const auto *from_q = scratch.in<bfloat16>(q), *from_k = scratch.in<bfloat16>(k);
    const auto *from_v = scratch.in<bfloat16>(k), *d_o = scratch.in<bfloat16>(q);
    const float *from_lse = scratch.in<float>(lse), *delta = scratch.in<float>(lse);
    float *dq = scratch.out<float>(q), *dk = scratch.out<float>(k), *dv = scratch.out<float>(k);
    cuda::attention_backward<bfloat16>(
        queue, {s, from_q, from_k, from_v, d_o, from_lse, delta, true, true, dq, dk, dv,
                scratch.out<std::byte>(workspace), false, true});
  };
  sampler.add(family, shape, flops_of(s, true), bench.loaded_runs(run));
}

// Adds forward and backward of one shape; keys 0: the triangle.
void add_shape(Sampler& sampler, DeviceBench& bench, int64_t dim, int64_t queries, int64_t keys) {
  const DeviceGrid& grid = bench.grid;
  const bool diagonal = keys == 0;
  const int64_t all = diagonal ? queries : keys;
  const AttentionShape s = call_of(grid.heads, grid.kv_heads, dim, queries, all, diagonal);
  const std::array<double, 3> shape{static_cast<double>(queries), static_cast<double>(all),
                                    static_cast<double>(dim)};
  const std::string end = diagonal ? "_diagonal" : "";
  add_forward(sampler, bench, "attention_forward" + end, s, shape);
  add_backward(sampler, bench, "attention_backward" + end, s, shape);
}

// Adds the triangles and rectangles of `chunks`, except those with lengths only from `had`.
void add_shapes(Sampler& sampler, DeviceBench& bench, int64_t dim,
                const std::vector<int64_t>& chunks, const std::vector<int64_t>& had) {
  const auto was = [&](int64_t chunk) {
    return std::find(had.begin(), had.end(), chunk) != had.end();
  };
  for (const int64_t queries : chunks) {
    if (!was(queries)) add_shape(sampler, bench, dim, queries, 0);
    for (const int64_t keys : chunks) {
      if (!was(queries) || !was(keys)) add_shape(sampler, bench, dim, queries, keys);
    }
  }
}

double share(const Tiling& tiling, double queries, double heads) {
  return tiled_share(tiling, static_cast<double>(tiling.workers), {queries, 1, 1, heads});
}

}  // namespace

void add_attention_samples(Sampler& sampler, DeviceBench& bench) {
  const DeviceGrid& grid = bench.grid;
  std::vector<int64_t> all = grid.chunks;
  all.insert(all.end(), grid.more_chunks.begin(), grid.more_chunks.end());
  add_shapes(sampler, bench, grid.head_dim, grid.chunks, {});
  sampler.begin_optional();
  add_shapes(sampler, bench, grid.head_dim, all, grid.chunks);
  sampler.begin_optional();
  add_shapes(sampler, bench, grid.other_head_dim, all, {});
}

void add_heads_samples(Sampler& sampler, DeviceBench& bench) {
  const DeviceGrid& grid = bench.grid;
  const int64_t per_kv = grid.heads / grid.kv_heads;
  for (const int64_t chunk : grid.heads_chunks) {
    for (const int64_t heads : grid.heads_tried) {
      const int64_t kv_heads = heads % per_kv == 0 ? heads / per_kv : 1;
      const AttentionShape s = call_of(heads, kv_heads, grid.head_dim, chunk, chunk, false);
      const std::array<double, 3> shape{static_cast<double>(chunk), static_cast<double>(heads), 1};
      add_forward(sampler, bench, kByHeads + "attention_forward", s, shape);
      add_backward(sampler, bench, kByHeads + "attention_backward", s, shape);
    }
  }
}

std::vector<HeadsRate> attention_by_heads(const std::map<std::string, RateTable>& tables) {
  std::vector<HeadsRate> rates;
  std::map<std::pair<std::string, double>, int> shapes;  // by family and queries
  for (const auto& [family, table] : tables) {
    if (!family.starts_with(kByHeads)) continue;
    for (const RatePoint& point : table.points) {
      const auto shape = shapes.try_emplace({family, point.shape[0]}, shapes.size()).first->second;
      rates.push_back({shape, point.shape[0], point.shape[1], point.rate});
    }
  }
  return rates;
}

HeadsTiling fit_heads(const std::vector<HeadsRate>& rates, int64_t processors) {
  HeadsTiling best;
  double least = INFINITY;
  for (const double rows : {64, 128, 192, 256}) {
    for (const double waited : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      Tiling tiling;
      tiling.shapes = {{rows, 1, 1}};
      tiling.workers = processors;
      tiling.padded = true;
      tiling.waited = waited;
      // Divided by the tiling's share, the rates of a shape should not depend on the heads.
      std::map<int, std::vector<double>> left;
      for (const HeadsRate& r : rates) {
        left[r.shape].push_back(std::log(r.rate / share(tiling, r.queries, r.heads)));
      }
      double sum = 0, worst = 0;
      for (const auto& [shape, logs] : left) {
        double mean = 0;
        for (const double x : logs) mean += x / static_cast<double>(logs.size());
        for (const double x : logs) {
          sum += (x - mean) * (x - mean);
          worst = std::max(worst, std::expm1(std::abs(x - mean)));
        }
      }
      if (sum < least) {
        least = sum;
        best = {tiling, worst};
      }
    }
  }
  return best;
}

void share_by_heads(RateTable& table, const Tiling& tiling, double heads) {
  for (RatePoint& point : table.points) {
    point.rate *= share(tiling, point.shape[0], 1) / share(tiling, point.shape[0], heads);
  }
  table.tiling = tiling;
}

}  // namespace longspan
