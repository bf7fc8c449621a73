#include "planner/search/repair.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/evaluate/evaluate.h"
#include "planner/search/steps.h"

namespace longspan {
namespace {

constexpr double kGain = 1e-5;      // smaller gains are not worth a step
constexpr double kOfMemory = 0.01;  // weight of all memory used, next to the shortfall
constexpr double kShortage = 5;     // weight of overflow relative to (log) time

class Repair {
 public:
  Repair(Evaluator& evaluator, const Ranking& ranking, MemoryMargin& margin,
         const SpaceOptions& options, const Candidate& from, double better_than,
         const RepairEffort& effort)
      : evaluator_(evaluator),
        ranking_(ranking),
        margin_(margin),
        steps_(evaluator.request(from).model, options,
               evaluator.limits()[static_cast<int>(Tier::nvme)] > 0),
        c_(from),
        better_than_(better_than),
        left_(effort.steps),
        last_work_(evaluator.work() + effort.work),
        most_ops_(effort.exact_ops) {}

  Repaired run() {
    const Score live = ranking_.estimate(c_);
    if (live.seconds > 0) slower_ = live.seconds / bound_seconds(c_);
    at_ = margin_.packed(c_, live);
    if (at_.overflow > 0) packing_ = BytesRatio(at_.bytes, live.bytes);
    do {
      if (at_.overflow == 0 && lay_out()) break;
    } while (step());
    return std::move(result_);
  }

 private:
  double bound_seconds(const Candidate& c) {
    return evaluator_.demand(c).step_seconds() / static_cast<double>(sequences_of_step(c));
  }

  // Memory by live bytes and packing; time by bounds, scaled by the ratio of the first candidate.
  Score sketch(const Candidate& c) {
    Score score;
    score.bytes = packing_.of(evaluator_.live(c));
    score.overflow = evaluator_.overflow(score.bytes);
    if (ranking_.needs_time()) score.seconds = slower_ * bound_seconds(c);
    return score;
  }

  // The quantity that steps lower. Of candidates with equal overflow, the one with less memory in
  // total is better.
  double need(const Score& score) const {
    if (ranking_.wanted().goal == Goal::fastest) {
      return std::log(score.seconds) + kShortage * score.overflow;
    }
    double sum = 0;
    for (int tier = 0; tier < kTierCount; ++tier) {
      sum += static_cast<double>(score.bytes[tier]) /
             std::max(1.0, static_cast<double>(evaluator_.limits()[tier]));
    }
    return score.overflow + kOfMemory * sum;
  }

  // Returns whether to stop: it fits, or further steps are not worthwhile.
  bool lay_out() {
    const int64_t ops = ops_of_all_positions(evaluator_.request(c_));
    if (result_.exact_ops + ops > most_ops_) return true;
    const Score live = ranking_.estimate(c_);
    if (ranking_.wanted().goal == Goal::fastest && ranking_.weighed(live) >= better_than_) {
      return true;
    }
    result_.exact_ops += ops;
    const Score score = ranking_.exact(c_);
    margin_.learn_packing(c_, live.bytes, score.bytes);
    if (ranking_.admits(score)) {
      result_.fits = Scored{c_, score, true};
      return true;
    }
    result_.missed.push_back({c_, score, true});
    if (score.overflow == 0) return true;  // too slow
    packing_ = BytesRatio(score.bytes, live.bytes);
    at_ = sketch(c_);
    return false;
  }

  // Sets every knob to its best value. Returns whether any was turned.
  bool step() {
    bool turned = false;
    for (int knob = 0; knob < Steps::knobs() && at_.overflow > 0; ++knob) {
      for (const Candidate& like : steps_.of(knob, c_)) {
        if (!evaluator_.possible(like)) continue;
        if (evaluator_.overflow(evaluator_.demand(like, DemandOf::bytes).peak_bytes()) >
            at_.overflow)
          continue;
        if (left_-- == 0 || evaluator_.work() > last_work_) return false;
        const Score score = sketch(like);
        if (need(score) >= need(at_) - kGain) continue;
        c_ = like;
        at_ = score;
        turned = true;
      }
    }
    return turned;
  }

  Evaluator& evaluator_;
  const Ranking& ranking_;
  MemoryMargin& margin_;
  const Steps steps_;
  Candidate c_;
  Score at_;
  double better_than_;
  int left_;
  int64_t last_work_, most_ops_;
  BytesRatio packing_;
  double slower_ = 1;  // ratio to bounds
  Repaired result_;
};

}  // namespace

Repaired repaired(Evaluator& evaluator, const Ranking& ranking, MemoryMargin& margin,
                  const SpaceOptions& options, const Candidate& from, double better_than,
                  const RepairEffort& effort) {
  return Repair(evaluator, ranking, margin, options, from, better_than, effort).run();
}

}  // namespace longspan
