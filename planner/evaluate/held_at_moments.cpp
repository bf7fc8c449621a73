#include "planner/evaluate/held_at_moments.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace longspan {
namespace {

// The most microbatches in flight besides the one that runs, at actions of a kind on a stage; and
// the same once all stages of the rank hold gradients. Only those count that are in flight on all
// layers of the rank, as policies may cover some layers only.
struct Besides {
  double ever = 0, accumulating = 0;
};

class RankList {
 public:
  RankList(const Schedule& schedule, int32_t rank, const std::vector<int64_t>& layers)
      : actions_(schedule.ranks[static_cast<size_t>(rank)]), layers_(layers) {
    const std::vector<int32_t> ranks = schedule.ranks_of_stages();
    for (int32_t stage = 0; stage < schedule.all_stages(); ++stage) {
      if (ranks[static_cast<size_t>(stage)] != rank) continue;
      stages_.push_back(stage);
      count_ += layers[static_cast<size_t>(stage)];
    }
  }

  int32_t last_stage() const { return stages_.back(); }
  /// The stage of a layer of the rank.
  int32_t stage_of(int64_t layer) const {
    for (const int32_t stage : stages_) {
      layer -= layers_[static_cast<size_t>(stage)];
      if (layer < 0) return stage;
    }
    return stages_.back();
  }
  int64_t layers() const { return count_; }

  Besides at(ActionKind kind, int32_t stage) const {
    std::map<int32_t, int64_t> held;  // layers in flight by microbatch
    std::set<int32_t> with_gradients;
    Besides most;
    for (const Action& a : actions_) {
      if (a.kind != ActionKind::forward && a.kind != ActionKind::backward) continue;
      const int64_t layers = layers_[static_cast<size_t>(a.stage)];
      if (a.kind == kind && a.stage == stage) {
        double besides = 0;
        for (const auto& [microbatch, of_it] : held) {
          if (microbatch != a.microbatch && of_it == count_) ++besides;
        }
        most.ever = std::max(most.ever, besides);
        if (with_gradients.size() == stages_.size()) {
          most.accumulating = std::max(most.accumulating, besides);
        }
      }
      if (a.kind == ActionKind::forward) {
        held[a.microbatch] += layers;
      } else {
        held[a.microbatch] -= layers;
        with_gradients.insert(a.stage);
      }
    }
    return most;
  }

  /// As at(), at a sequence's last slice, of slices in flight besides it, by tokens and layers. A
  /// backward makes the gradients of its own stage.
  Besides at_last_slice(ActionKind kind, int32_t stage, const std::vector<int64_t>& tokens) const {
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    std::map<int32_t, int64_t> last;  // layers of a microbatch's last slice
    std::set<int32_t> with_gradients;
    int64_t held = 0;  // tokens times layers
    Besides most;
    for (const Action& a : actions_) {
      if (a.kind != ActionKind::forward && a.kind != ActionKind::backward) continue;
      const auto slice = static_cast<size_t>(a.slice);
      const bool is_last = slice + 1 == tokens.size(), adds = a.kind == ActionKind::forward;
      const int64_t layers = layers_[static_cast<size_t>(a.stage)];
      int64_t& own = last[a.microbatch];
      if (!adds) with_gradients.insert(a.stage);
      if (is_last && a.kind == kind && a.stage == stage) {
        const double besides = static_cast<double>(held - own * tokens.back()) /
                               static_cast<double>(all) / static_cast<double>(count_);
        most.ever = std::max(most.ever, besides);
        if (with_gradients.size() == stages_.size()) {
          most.accumulating = std::max(most.accumulating, besides);
        }
      }
      held += (adds ? 1 : -1) * layers * tokens[slice];
      if (is_last) own += (adds ? 1 : -1) * layers;
    }
    return most;
  }

 private:
  const std::vector<Action>& actions_;
  const std::vector<int64_t>& layers_;
  std::vector<int32_t> stages_;
  int64_t count_ = 0;  // layers of the rank
};

// The layers in whose backward moments are, from the third moment on, two in each.
std::array<int64_t, 3> layers_of_moments(int64_t count) {
  return {count - 1, std::min((count + 1) / 2, count - 1), 0};
}

Besides least(const Besides& a, const Besides& b) {
  return Besides{std::min(a.ever, b.ever), std::min(a.accumulating, b.accumulating)};
}

// `own`: what runs, in microbatches.
HeldAtMoments held(const std::array<Besides, Demand::kMoments>& besides, double own) {
  HeldAtMoments result;
  for (const Besides& b : besides) result.accumulates &= b.accumulating >= b.ever;
  for (size_t moment = 0; moment < besides.size(); ++moment) {
    result.held[moment] = own + besides[moment].ever;
  }
  return result;
}

}  // namespace

HeldAtMoments held_in_sliced_lists(const Schedule& schedule, const std::vector<int64_t>& layers,
                                   const std::vector<int64_t>& tokens) {
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  const RankList first(schedule, ranks.front(), layers), last(schedule, ranks.back(), layers);
  std::array<Besides, Demand::kMoments> besides{};
  besides[Demand::kLossMoment] =
      least(last.at_last_slice(ActionKind::forward, last.last_stage(), tokens),
            last.at_last_slice(ActionKind::backward, last.last_stage(), tokens));
  const std::array<int64_t, 3> of_moments = layers_of_moments(first.layers());
  for (size_t i = 0; i < 3; ++i) {
    besides[2 + 2 * i] = besides[3 + 2 * i] =
        first.at_last_slice(ActionKind::backward, first.stage_of(of_moments[i]), tokens);
  }
  besides[0] = besides[2 + 2 * 2];
  const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  return held(besides, static_cast<double>(tokens.back()) / static_cast<double>(all));
}

HeldAtMoments held_in_lists(const Schedule& schedule, const std::vector<int64_t>& layers) {
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  const RankList first(schedule, ranks.front(), layers), last(schedule, ranks.back(), layers);
  std::array<Besides, Demand::kMoments> besides{};
  // The loss runs at the end of a forward or at the start of its backward.
  besides[Demand::kLossMoment] = least(last.at(ActionKind::forward, last.last_stage()),
                                       last.at(ActionKind::backward, last.last_stage()));
  const std::array<int64_t, 3> of_moments = layers_of_moments(first.layers());
  for (size_t i = 0; i < 3; ++i) {
    const Besides own = first.at(ActionKind::backward, first.stage_of(of_moments[i]));
    besides[2 + 2 * i] = besides[3 + 2 * i] = own;
  }
  return held(besides, 1);
}

}  // namespace longspan
