#include "planner/pipeline/rank_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/units.h"
#include "models/training.h"
#include "planner/program/layout.h"
#include "planner/program/saved_bytes.h"

namespace longspan {
namespace {

// Hidden states that a rank has with its share of the vocabulary: of two microbatches between S and
// T, and a gradient.
constexpr int64_t kBetween = 3;

using TierBytes = std::array<int64_t, kTierCount>;

TensorBytes bytes_of(const StepRequest& r) {
  return tensor_bytes(r.model, lengths_of(r.strategy, r.sequence), r.strategy, r.dtype,
                      r.compute_capability);
}

}  // namespace

std::array<double, kTierCount> unit_states(const StepRequest& stage, const TensorBytes& bytes,
                                           int64_t microbatches, std::initializer_list<int> units) {
  const Strategy& s = stage.strategy;
  const bool sharded = s.parallel.shards() > 1;
  const bool shards = sharded && (microbatches == 1 || s.parallel.zero >= 2);
  std::array<double, kTierCount> sum{};
  for (const int unit : units) {
    const auto kind = static_cast<UnitKind>(unit);
    const auto of = [&](Tensor first) {
      return static_cast<double>(bytes[unit_tensor(first, kind)]);
    };
    const auto add = [&](Tier tier, double more) { sum[static_cast<size_t>(tier)] += more; };
    const bool gathers = sharded && s.parallel.zero == 3;
    const double in_4_bits = of(Tensor::nf4_embedding);
    add(s.parameters,
        in_4_bits > 0 ? in_4_bits
                      : of(gathers ? Tensor::params_embedding_shard : Tensor::params_embedding));
    if (s.forward_only || !trains(stage.model, kind)) continue;
    const bool is_end = kind == UnitKind::embedding || kind == UnitKind::head;
    const int64_t layers = stage.model.layers;
    const double on_device =
        is_end ? (optimizer_tier(s, kind, 0, 0) == Tier::device ? 1 : 0)
               : static_cast<double>(updated_on_device(s, layers)) / static_cast<double>(layers);
    for (const auto& [states, part] :
         {std::pair{Tier::device, on_device}, std::pair{s.optimizer, 1 - on_device}}) {
      const Tier updated = states == Tier::device ? Tier::device : Tier::host;
      if (has_masters(s, stage.dtype)) {
        add(updated, part * of(Tensor::master_embedding));
      } else if (updated != s.parameters) {
        add(updated,
            part * of(sharded ? Tensor::params_embedding_shard : Tensor::params_embedding));
      }
      add(states, part * (of(Tensor::adam_m_embedding) + of(Tensor::adam_v_embedding)));
    }
    const double gradients = of(shards ? Tensor::grads_embedding_shard : Tensor::grads_embedding);
    add(Tier::device, on_device * gradients);
    add(s.gradients, (1 - on_device) * gradients);
  }
  return sum;
}

RankBytes::RankBytes(StagePrograms& programs, int64_t slices_of_step)
    : programs_(programs),
      microbatches_(std::min<int64_t>(2, slices_of_step)),
      cut_(cuts_vocabulary(programs.pipeline())) {
  const auto slices = static_cast<double>(programs.pipeline().slices);
  for (size_t kind = 0; kind < programs.kinds(); ++kind) {
    const StepRequest& slice = programs.slice(kind);
    const TensorBytes bytes = bytes_of(slice);
    Kind& own = kinds_.emplace_back(Kind{SlicesInFlight(slice, bytes, slices)});
    own.for_weights =
        bytes_for_weights(slice.model, lengths_of(slice.strategy, slice.sequence), bytes);
    const auto states = unit_states(slice, bytes, microbatches_, {1, 3, 4});
    const TierBytes peak = programs.evaluation(kind, kMiddle, microbatches_).peak_bytes;
    const auto layers = static_cast<double>(programs.layers(kind));
    for (int tier = 0; tier < kTierCount; ++tier) {
      own.lasting[tier] = states[tier] + static_cast<double>(own.slices.alone()[tier]) / layers;
      own.passing[tier] = static_cast<double>(peak[tier]) - layers * own.lasting[tier];
    }
  }
  if (!cut_) return;
  const StepRequest& first = programs.slice(0);
  const TensorBytes bytes = bytes_of(first);
  const auto ends = unit_states(first, bytes, microbatches_, {0, 2});
  for (int tier = 0; tier < kTierCount; ++tier) vocabulary_[tier] = std::llround(ends[tier]);
  // Every rank has the tokens, and the last stage's output and its gradient, of microbatches
  // between S and T.
  vocabulary_[static_cast<int>(Tier::host)] += round_up(bytes[Tensor::tokens_all], kArenaAlignment);
  const int64_t block = round_up(bytes[Tensor::x], kArenaAlignment);
  const int64_t blocks = lengths_of(first.strategy, first.sequence).blocks();
  vocabulary_[static_cast<int>(first.strategy.between_uses)] += kBetween * blocks * block;
  loss_ = loss_bytes(first.model, first.strategy, bytes, bytes[Tensor::ws_vocabulary]) +
          round_up(bytes[Tensor::tokens], kArenaAlignment) + 2 * block;
}

std::vector<double> RankBytes::kept_parts() const {
  std::vector<double> parts;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const TierBytes& kept = kinds_[kind].slices.kept();
    parts.push_back(static_cast<double>(std::accumulate(kept.begin(), kept.end(), int64_t{0})) /
                    static_cast<double>(programs_.layers(kind)));
  }
  const double most = *std::max_element(parts.begin(), parts.end());
  for (double& part : parts) part = most > 0 ? part / most : 1;
  return parts;
}

std::vector<double> RankBytes::parts_for_weights() const {
  std::vector<double> parts;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const TierBytes& kept = kinds_[kind].slices.kept();
    const int64_t until_input = std::accumulate(kept.begin(), kept.end(), int64_t{0});
    const int64_t all = programs_.layers(kind) * kinds_[kind].for_weights;
    parts.push_back(static_cast<double>(all) /
                    static_cast<double>(std::max<int64_t>(1, until_input)));
  }
  return parts;
}

RankBytes::Parts RankBytes::parts() const {
  Parts parts;
  double most = 0;  // that a layer keeps
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const TierBytes& kept = kinds_[kind].slices.kept();
    const auto all = static_cast<double>(
        std::max<int64_t>(1, std::accumulate(kept.begin(), kept.end(), int64_t{0})));
    int64_t moves = 0;
    for (const SavedUnits& saved : movable_units(programs_.slice(kind), programs_.is_sliced())) {
      moves += saved.bytes;
    }
    parts.movable.push_back(static_cast<double>(moves) / all);
    const StepRequest& slice = programs_.slice(kind);
    const TensorBytes bytes = bytes_of(slice);
    const auto layers = static_cast<double>(programs_.layers(kind));
    const auto keys = static_cast<double>(bytes[Tensor::k_all] + bytes[Tensor::v_all]);
    parts.keys.push_back(programs_.is_sliced() ? layers * keys / all : 0);
    most = std::max(most, all / layers);
    if (kind > 0) continue;
    const int64_t blocks = lengths_of(slice.strategy, slice.sequence).blocks();
    parts.input = static_cast<double>(blocks * round_up(bytes[Tensor::x], kArenaAlignment));
  }
  parts.input /= most;
  return parts;
}

TierBytes RankBytes::peak(const LayersByKind& layers, StageBoundary boundary, const Held& held,
                          double passing) {
  const Pipeline& p = programs_.pipeline();
  const StepRequest& first = programs_.slice(0);
  std::array<double, kTierCount> bytes{}, largest;
  largest.fill(-std::numeric_limits<double>::infinity());
  SlicesInFlight slices(static_cast<double>(p.slices));
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    if (layers[kind] == 0) continue;
    const Kind& own = kinds_[kind];
    for (int tier = 0; tier < kTierCount; ++tier) {
      bytes[tier] += static_cast<double>(layers[kind]) * own.lasting[tier];
      largest[tier] = std::max(largest[tier], own.passing[tier]);
    }
    slices.include(own.slices,
                   static_cast<double>(layers[kind]) / static_cast<double>(programs_.layers(kind)));
  }
  largest[0] = std::max(largest[0], static_cast<double>(loss_));
  const auto peak_of = [&](StageBoundary at) -> const TierBytes& {
    return programs_.evaluation(0, at, microbatches_).peak_bytes;
  };
  const TierBytes &with = peak_of(cut_ ? kMiddle : boundary), &without = peak_of(kMiddle);
  TierBytes sum{};
  for (int tier = 0; tier < kTierCount; ++tier) {
    sum[tier] =
        std::llround(bytes[tier] + largest[tier]) + with[tier] - without[tier] + vocabulary_[tier];
  }
  const ParallelLayout& parallel = first.strategy.parallel;
  const int64_t rows = first.sequence / parallel.sequence_ranks() / parallel.tensor;
  sum[static_cast<int>(first.strategy.between_uses)] +=
      std::llround(passing * static_cast<double>(rows * first.model.hidden * size_of(first.dtype)));
  slices.add(held.in_flight, sum);
  const TierBytes& kept = slices.kept();
  const auto of_microbatch =
      static_cast<double>(p.slices) *
      static_cast<double>(std::accumulate(kept.begin(), kept.end(), int64_t{0}));
  const auto bytes_of_them = [&](double microbatches) {
    return std::llround(microbatches * of_microbatch);
  };
  sum[static_cast<int>(Tier::device)] -= bytes_of_them(held.in_flight - held.left);
  sum[static_cast<int>(Tier::host)] += bytes_of_them(held.moved);
  return sum;
}

}  // namespace longspan
