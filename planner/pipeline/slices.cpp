#include "planner/pipeline/slices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/units.h"
#include "planner/pipeline/attention_exchange.h"
#include "planner/program/layout.h"
#include "planner/program/saved_bytes.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/slice_lengths.h"

namespace longspan {
namespace {

using TierBytes = std::array<int64_t, kTierCount>;

// The fraction of the forward's products that is recomputed for the backward.
double recomputed_share(const Strategy& s) {
  double share = 0;
  for (const SavedPolicy* p : {&s.qkv, &s.mlp_input, &s.mlp_inner}) {
    if (p->where == Saved::recompute) share += p->fraction / 3;
  }
  return share;
}

}  // namespace

double attention_again(const Strategy& s) {
  return s.attention_out.where == Saved::recompute ? s.attention_out.fraction : 0;
}

int32_t ranks_that_share(const Pipeline& pipeline) {
  const bool exchanges = family_of(pipeline).exchanges_attention;
  return pipeline.slices > 1 && exchanges ? static_cast<int32_t>(pipeline.stages) : 0;
}

std::vector<SliceShare> pipeline_shares(const StepRequest& request) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  if (p.slices == 1) return {};
  std::vector<SliceShare> shares =
      slice_shares(slice_lengths(request.model, request.strategy, request.sequence),
                   token_cost_of(request.model, request.sequence),
                   1 + recomputed_share(request.strategy), 2.5 + attention_again(request.strategy));
  if (ranks_that_share(p) == 0) return shares;
  // Except for attention, equal slices are equal, so one with as many keys has the same share.
  std::vector<SliceShare> by_rank;
  for (const SharedSlice& own : shared_slices(p.slices, p.stages)) {
    by_rank.push_back(shares[static_cast<size_t>(own.rectangles)]);
  }
  for (int64_t rank = 0; rank < p.stages; ++rank) {
    by_rank.insert(by_rank.end(), shares.begin(), shares.end());
  }
  return by_rank;
}

double EarlierSlices::all_forward() const { return all(forward); }
double EarlierSlices::all_backward() const { return all(backward); }
double EarlierSlices::all_again() const { return all(again); }
double EarlierSlices::all(const std::vector<double>& seconds) const {
  if (ranks == 0) return std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const auto meeting = static_cast<std::ptrdiff_t>(seconds.size() / 2);
  return std::accumulate(seconds.begin(), seconds.begin() + meeting, 0.0) /
         static_cast<double>(ranks);
}

EarlierSlices earlier_slices(const StepRequest& slice, const std::vector<int64_t>& chunks,
                             const CostModel& cost) {
  const std::vector<double> none(chunks.size(), 0);
  if (chunks.size() == 1 || !slice.model.attention) return {none, none, none, 0};
  const Program program = empty_program(slice);
  const auto of_mean = static_cast<size_t>(program.lengths.chunks());
  EarlierSlices earlier;
  for (const OpKind kind : {OpKind::attention_forward, OpKind::attention_backward}) {
    // Every chunk of the sequence attends to itself and all before it.
    std::vector<OpShape> shapes(of_mean * chunks.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      shapes[i].kind = kind;
      shapes[i].kv_chunks = static_cast<int32_t>(i) + 1;
      shapes[i].diagonal = true;
    }
    const std::vector<double> seconds = cost.durations(program, shapes);
    auto next = seconds.begin();
    const double alone = std::accumulate(next, next + of_mean, 0.0) / static_cast<double>(of_mean);
    for (const int64_t own : chunks) {
      const double with_earlier = std::accumulate(next, next + own, 0.0);
      (kind == OpKind::attention_forward ? earlier.forward : earlier.backward)
          .push_back(with_earlier - static_cast<double>(own) * alone);
      next += own;
    }
  }
  earlier.again = earlier.forward;
  return earlier;
}

SlicesInFlight::SlicesInFlight(const StepRequest& slice, const TensorBytes& bytes, double slices)
    : slices_(slices) {
  const Strategy& s = slice.strategy;
  const Lengths lengths = lengths_of(s, slice.sequence);
  const int64_t kv_units = kv_groups(slice.model, lengths), layers = slice.model.layers;
  kept_ = saved_bytes(slice.model, s, lengths, bytes, kv_units, layers, 1);
  if (slices == 1) return;
  if (s.qkv.where != Saved::keep) {
    const double away = std::ceil(s.qkv.fraction * static_cast<double>(layers));
    const int64_t kv =
        static_cast<int64_t>(away) * kv_units * 2 * round_up(bytes[Tensor::k_all], kArenaAlignment);
    kept_[0] += kv;
    if (s.qkv.where != Saved::recompute) {
      const int tier = s.qkv.where == Saved::host ? 1 : 2;
      kept_[tier] -= kv;
      moved_[0] += kv;
      moved_[tier] -= kv;
    }
  }
  own_gradients_ = layers * (bytes[Tensor::dk_all] + bytes[Tensor::dv_all]);
  gradients_ = std::llround((static_cast<double>(layers) * slices - 1) *
                            static_cast<double>(bytes[Tensor::dk_all] + bytes[Tensor::dv_all]));
}

void SlicesInFlight::include(const SlicesInFlight& other, double part) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    kept_[tier] += std::llround(part * static_cast<double>(other.kept_[tier]));
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    moved_[tier] += std::llround(part * static_cast<double>(other.moved_[tier]));
  }
  gradients_ += std::llround(part * static_cast<double>(other.gradients_));
  own_gradients_ += std::llround(part * static_cast<double>(other.own_gradients_));
}

void SlicesInFlight::add(double held, TierBytes& bytes) const {
  const double others = std::max(0.0, held * slices_ - 1);
  for (int tier = 0; tier < kTierCount; ++tier) {
    bytes[tier] += std::llround(others * static_cast<double>(kept_[tier])) + moved_[tier];
  }
  bytes[0] += gradients_;
}

void SlicesInFlight::add_least(double held, double gradients, double next, TierBytes& bytes) const {
  add(held, bytes);
  if (slices_ == 1) return;
  const double earlier = gradients * static_cast<double>(own_gradients_) * (slices_ - 1);
  bytes[0] += std::llround(earlier - next * static_cast<double>(kept_[0])) - gradients_;
}

void cut_to_slice(StepRequest& request, const LayerRun& run) {
  Strategy& s = request.strategy;
  request.sequence /= s.parallel.pipeline.slices;
  s.parallel.pipeline = {};
  s.block_tokens = std::min(s.block_tokens, request.sequence);
  s.chunk_tokens = std::min(s.chunk_tokens, request.sequence);
  request.rank = 0;
  if (run.tokens == 1) return;
  // The same numbers of chunks and blocks, with fewer tokens each.
  const int64_t chunks = request.sequence / s.chunk_tokens;
  const int64_t chunks_of_block = s.block_tokens / s.chunk_tokens;
  request.sequence =
      tokens_of_run(run, request.sequence, chunks * s.parallel.ulysses * s.parallel.tensor);
  s.chunk_tokens = request.sequence / chunks;
  s.block_tokens = s.chunk_tokens * chunks_of_block;
}

}  // namespace longspan
