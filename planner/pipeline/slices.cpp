#include "planner/pipeline/slices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/units.h"
#include "planner/pipeline/attention_exchange.h"
#include "planner/program/key_window.h"
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

// Seconds until all streams have done their work, if they start together.
double seconds_together(StreamSeconds left, const Interference& rates) {
  double seconds = 0;
  for (;;) {
    unsigned busy = 0;
    for (size_t s = 0; s < left.size(); ++s) busy |= (left[s] > 0 ? 1U : 0U) << s;
    if (busy == 0) return seconds;
    double next = std::numeric_limits<double>::infinity();
    for (size_t s = 0; s < left.size(); ++s) {
      if (left[s] > 0) next = std::min(next, left[s] / rates[busy][s]);
    }
    for (size_t s = 0; s < left.size(); ++s) {
      if (left[s] <= 0) continue;
      const double done = next * rates[busy][s];
      left[s] = left[s] - done > 1e-12 * done ? left[s] - done : 0;
    }
    seconds += next;
  }
}

// Seconds to move a chunk of keys and values, or of their gradients, from where they are to the
// device and back.
struct Moves {
  StreamSeconds there{}, back{};
};
Moves moves_of(const Program& program, Tensor keys, Tensor values, const CostModel& cost) {
  const bool in_file = program.strategy.kv == Tier::nvme;
  Moves moves;
  const auto add = [&](OpKind kind, Stream stream, StreamSeconds& sum) {
    std::vector<OpShape> shapes(2);
    for (OpShape& shape : shapes) shape.kind = kind;
    shapes[0].tensor = keys;
    shapes[1].tensor = values;
    for (const double seconds : cost.durations(program, shapes)) {
      sum[static_cast<size_t>(stream)] += seconds;
    }
  };
  add(OpKind::copy_d2h, Stream::d2h, moves.there);
  add(OpKind::copy_h2d, Stream::h2d, moves.back);
  if (in_file) add(OpKind::io_write, Stream::io, moves.there);
  if (in_file) add(OpKind::io_read, Stream::io, moves.back);
  return moves;
}

void add_times(double times, const StreamSeconds& work, StreamSeconds& sum) {
  for (size_t s = 0; s < sum.size(); ++s) sum[s] += times * work[s];
}

// Adds the copies of keys and values that are not on the device. Every chunk of queries loads all
// earlier chunks of keys and values; in the backward also their sums of gradients, with its own,
// and stores those of earlier ones again.
void add_copies(const Program& program, const std::vector<int64_t>& chunks, const CostModel& cost,
                EarlierWork& work) {
  const Strategy& s = program.strategy;
  const Moves keys = moves_of(program, Tensor::k, Tensor::v, cost);
  const Moves gradients = moves_of(program, Tensor::dk, Tensor::dv, cost);
  const auto of_mean = static_cast<double>(program.lengths.chunks());
  // A slice's own program streams them if it has several chunks.
  const bool streams = streams_keys(s, program.lengths);
  const bool stores = s.qkv.where == Saved::host || s.qkv.where == Saved::nvme;
  const KeyWindow window = key_window(program.model, program.lengths.chunk);
  const int64_t all = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
  // Pairs of the first chunks with others.
  const auto pairs_before = [&](int64_t end) {
    return static_cast<double>(window.pairs(end) - end);
  };
  int64_t first = 0;
  for (size_t slice = 0; slice < chunks.size(); ++slice) {
    const int64_t end = first + chunks[slice];
    const auto own = static_cast<double>(chunks[slice]);
    const double alone = streams ? own * pairs_before(program.lengths.chunks()) / of_mean : 0;
    const double pairs = pairs_before(end) - pairs_before(first) - alone;
    const double own_moves = streams || stores ? 0 : own;
    // The last chunk that sees keys begins their sums.
    const auto begun_from = [&](int64_t chunk) {
      return chunk <= 0 ? 0 : chunk < all ? std::max<int64_t>(0, chunk - window.farthest) : all;
    };
    const auto begun = static_cast<double>(begun_from(end) - begun_from(first));
    first = end;
    add_times(pairs, keys.back, work.forward[slice]);
    add_times(own_moves, keys.there, work.forward[slice]);
    add_times(pairs, keys.back, work.again[slice]);
    add_times(pairs + own_moves, keys.back, work.backward[slice]);
    add_times(pairs, gradients.there, work.backward[slice]);
    add_times(std::max(0.0, pairs + own - begun), gradients.back, work.backward[slice]);
  }
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

EarlierWork earlier_work(const StepRequest& slice, const std::vector<int64_t>& chunks,
                         const CostModel& cost) {
  EarlierWork work;
  work.forward = work.backward = std::vector<StreamSeconds>(chunks.size(), StreamSeconds{});
  work.again = work.forward;
  if (chunks.size() == 1 || !slice.model.attention) return work;
  const Program program = empty_program(slice);
  const KeyWindow window = key_window(program.model, program.lengths.chunk);
  const auto of_mean = static_cast<size_t>(program.lengths.chunks());
  constexpr auto kCompute = static_cast<size_t>(Stream::compute);
  for (const OpKind kind : {OpKind::attention_forward, OpKind::attention_backward}) {
    // Every chunk of the sequence attends to itself and all before it.
    std::vector<OpShape> shapes(of_mean * chunks.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto chunk = static_cast<int64_t>(i);
      shapes[i].kind = kind;
      shapes[i].kv_chunks = static_cast<int32_t>(chunk - window.first(chunk)) + 1;
      shapes[i].diagonal = true;
    }
    const std::vector<double> seconds = cost.durations(program, shapes);
    auto next = seconds.begin();
    const double alone = std::accumulate(next, next + of_mean, 0.0) / static_cast<double>(of_mean);
    for (size_t i = 0; i < chunks.size(); ++i) {
      const double with_earlier = std::accumulate(next, next + chunks[i], 0.0);
      (kind == OpKind::attention_forward ? work.forward : work.backward)[i][kCompute] =
          with_earlier - static_cast<double>(chunks[i]) * alone;
      next += chunks[i];
    }
  }
  work.again = work.forward;
  if (slice.strategy.kv != Tier::device) add_copies(program, chunks, cost, work);
  return work;
}

EarlierSlices earlier_slices(const StepRequest& slice, const std::vector<int64_t>& chunks,
                             const CostModel& cost, const OwnWork& own) {
  constexpr auto kCompute = static_cast<size_t>(Stream::compute);
  const EarlierWork work = earlier_work(slice, chunks, cost);
  const auto of_mean = static_cast<double>(lengths_of(slice.strategy, slice.sequence).chunks());
  const auto seconds = [&](const std::vector<StreamSeconds>& added, const StreamSeconds& of_own) {
    std::vector<double> all;
    for (size_t i = 0; i < added.size(); ++i) {
      if (slice.strategy.kv == Tier::device) {
        all.push_back(added[i][kCompute]);
        continue;
      }
      const double length = static_cast<double>(chunks[i]) / of_mean;
      StreamSeconds busy = added[i];
      add_times(length, of_own, busy);
      all.push_back(seconds_together(busy, cost.interference()) - length * of_own[kCompute]);
    }
    return all;
  };
  return {seconds(work.forward, own.forward), seconds(work.backward, own.backward),
          seconds(work.again, {}), 0};
}

SlicesInFlight::SlicesInFlight(const StepRequest& slice, const TensorBytes& bytes, double slices)
    : slices_(slices) {
  const Strategy& s = slice.strategy;
  const Lengths lengths = lengths_of(s, slice.sequence);
  const int64_t kv_units = kv_groups(slice.model, lengths), layers = slice.model.layers;
  kept_ = alone_ = saved_bytes(slice.model, s, lengths, bytes, kv_units, layers, 1);
  if (slices == 1) return;
  const auto both = [&](Tensor keys, Tensor values) {
    return round_up(bytes[keys], kArenaAlignment) + round_up(bytes[values], kArenaAlignment);
  };
  const int64_t of_layer = kv_units * both(Tensor::k_all, Tensor::v_all);
  const int64_t away =
      s.qkv.where == Saved::keep
          ? 0
          : std::min(layers,
                     static_cast<int64_t>(std::ceil(s.qkv.fraction * static_cast<double>(layers))));
  if (s.kv == Tier::device) {
    const int64_t kv = away * of_layer;
    kept_[0] += kv;
    if (s.qkv.where == Saved::host || s.qkv.where == Saved::nvme) {
      const int tier = s.qkv.where == Saved::host ? 1 : 2;
      kept_[tier] -= kv;
      moved_[0] += kv;
      moved_[tier] -= kv;
    }
    alone_ = kept_;
  } else {
    kv_tier_ = static_cast<int>(s.kv);
    const int64_t chunks = lengths.chunks();
    const int64_t streamed = chunks * both(Tensor::k, Tensor::v);
    TierBytes own{};  // keys and values in the slice's own program
    if (chunks > 1) {
      own[kv_tier_] = (layers - (s.qkv.where == Saved::recompute ? away : 0)) * streamed;
    } else {
      own[0] = (layers - away) * of_layer;
      if (s.qkv.where == Saved::host) own[1] = away * of_layer;
      if (s.qkv.where == Saved::nvme) own[2] = away * of_layer;
      running_ = of_layer;
    }
    moved_[kv_tier_] = layers * streamed;
    for (int tier = 0; tier < kTierCount; ++tier) {
      moved_[tier] -= own[tier];
      kept_[tier] += moved_[tier];
    }
    // Parts of other slices that are loaded ahead, or being stored.
    const int64_t more = std::max<int64_t>(0, s.prefetch_depth + 1 - chunks);
    ahead_ = more * (bytes[Tensor::k] + bytes[Tensor::v] + bytes[Tensor::dk] + bytes[Tensor::dv]);
  }
  if (s.forward_only) return;
  // Gradients of keys and values are there from the first queries on whose backward needs them.
  const int64_t chunks = lengths.chunks();
  const KeyWindow window = key_window(slice.model, lengths.chunk);
  double earlier = slices - 1;
  if (window.is_limited()) {
    const int64_t of_part = s.kv == Tier::device ? chunks : 1;
    const auto reached = static_cast<double>(round_up(window.farthest, of_part));
    earlier = std::min(earlier, reached / static_cast<double>(chunks));
  }
  const auto of_slice = static_cast<double>(bytes[Tensor::dk_all] + bytes[Tensor::dv_all]);
  earlier_gradients_ = std::llround(static_cast<double>(layers) * of_slice * earlier);
  gradients_ = std::llround((static_cast<double>(layers) * (earlier + 1) - 1) * of_slice);
}

void SlicesInFlight::include(const SlicesInFlight& other, double part) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    kept_[tier] += std::llround(part * static_cast<double>(other.kept_[tier]));
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    moved_[tier] += std::llround(part * static_cast<double>(other.moved_[tier]));
  }
  kv_tier_ = other.kv_tier_;
  gradients_ += std::llround(part * static_cast<double>(other.gradients_));
  earlier_gradients_ += std::llround(part * static_cast<double>(other.earlier_gradients_));
  running_ = std::max(running_, other.running_);
  ahead_ = std::max(ahead_, other.ahead_);
}

void SlicesInFlight::add(double held, TierBytes& bytes) const {
  const double others = std::max(0.0, held * slices_ - 1);
  for (int tier = 0; tier < kTierCount; ++tier) {
    bytes[tier] += std::llround(others * static_cast<double>(kept_[tier])) + moved_[tier];
  }
  bytes[kv_tier_] += gradients_;
  bytes[0] += ahead_;
}

void SlicesInFlight::add_least(double held, double gradients, double next, TierBytes& bytes) const {
  add(held, bytes);
  if (slices_ == 1) return;
  const double earlier = gradients * static_cast<double>(earlier_gradients_);
  bytes[kv_tier_] +=
      std::llround(earlier - next * static_cast<double>(kept_[kv_tier_])) - gradients_;
  bytes[0] -= ahead_ + running_;
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
