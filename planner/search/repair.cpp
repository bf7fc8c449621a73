#include "planner/search/repair.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/evaluate/evaluate.h"
#include "planner/search/steps.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr double kGain = 1e-5;      // smaller gains are not worth a step
constexpr size_t kTimed = 6;        // steps whose time is estimated before one is taken
constexpr double kOfMemory = 0.01;  // weight of all memory used, next to the shortfall
constexpr double kShortage = 5;     // weight of overflow relative to (log) time
// Prefetch depths and offload windows to lay out where live bytes fit and the arena does not.
constexpr std::pair<int64_t, int64_t> kDepths[] = {{1, 1}, {4, 1}, {8, 1}, {4, 0}, {8, 2}, {0, 0}};

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
        last_work_(evaluator.work() + effort.work),
        most_ops_(effort.exact_ops) {}

  Repaired run() {
    const Score live = ranking_.estimate(c_);
    if (live.seconds > 0) slower_ = live.seconds / bound_seconds(c_);
    at_ = margin_.packed(c_, live);
    if (at_.overflow > 0) packing_ = BytesRatio(at_.bytes, live.bytes);
    if (at_.overflow > 0 && live.overflow == 0 && repack()) return std::move(result_);
    do {
      if (at_.overflow == 0 && lay_out()) break;
    } while (step());
    return std::move(result_);
  }

 private:
  double bound_seconds(const Candidate& c) {
    return evaluator_.demand(c).step_seconds() / static_cast<double>(micro_batches_of_step(c));
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
    const Score live = ranking_.estimate(c_);
    const std::optional<Score> score = lay_out(c_, live);
    if (!score || score->overflow == 0 || repack()) return true;
    packing_ = BytesRatio(score->bytes, live.bytes);
    at_ = sketch(c_);
    return false;
  }
  // Lays out a candidate and keeps it as what fits or as missed. None if it is not worth it.
  std::optional<Score> lay_out(const Candidate& c, const Score& live) {
    const int64_t ops = ops_of_all_positions(evaluator_.request(c));
    if (result_.exact_ops + ops > most_ops_) return std::nullopt;
    if (ranking_.wanted().goal == Goal::fastest && ranking_.weighed(live) >= better_than_) {
      return std::nullopt;
    }
    result_.exact_ops += ops;
    const Score score = ranking_.exact(c);
    margin_.learn_packing(c, live.bytes, score.bytes);
    if (ranking_.admits(score)) {
      result_.fits = Scored{c, score, true};
    } else {
      result_.missed.push_back({c, score, true});
    }
    return score;
  }

  // Tries other depths of copies for a candidate whose live bytes fit. The order in which buffers
  // are freed decides how well they pack, by up to tens of percent, and no bound shows it. Returns
  // whether one fits.
  bool repack() {
    const ModelSpec& model = evaluator_.request(c_).model;
    for (const auto& [prefetch, window] : kDepths) {
      Candidate c = c_;
      c.strategy.prefetch_depth = prefetch;
      c.strategy.offload_window = window;
      if (c == c_ || !is_valid(c.strategy, model, c.sequence)) continue;
      const Score live = ranking_.estimate(c);
      if (live.overflow == 0) lay_out(c, live);
      if (result_.fits) return true;
    }
    return false;
  }

  // Time given up per overflow removed, both relative. Negative if nothing is given up.
  double cost(const Score& score) const {
    if (ranking_.wanted().goal != Goal::fastest) return need(score) - need(at_);
    const double removed = at_.overflow - score.overflow;
    const double slower = std::log(score.seconds / at_.seconds);
    return slower <= 0 ? slower - removed : slower / removed;
  }

  bool helps(const Score& score) const {
    if (need(score) >= need(at_) - kGain) return false;
    return ranking_.wanted().goal != Goal::fastest || score.overflow < at_.overflow;
  }

  struct Step {
    Candidate to;
    Score score;
    double cost;
  };

  // All steps that seem to help, the least cost first; those found so far if the work ends.
  std::vector<Step> sketched_steps() {
    std::vector<Step> steps;
    for (int knob = 0; knob < Steps::knobs(); ++knob) {
      for (const Candidate& to : steps_.of(knob, c_)) {
        if (is_spent()) break;
        if (!evaluator_.possible(to)) continue;
        if (evaluator_.overflow(evaluator_.demand(to, DemandOf::bytes).peak_bytes()) >
            at_.overflow) {
          continue;
        }
        const Score score = sketch(to);
        if (helps(score)) steps.push_back({to, score, cost(score)});
      }
    }
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.cost < b.cost; });
    return steps;
  }

  // Takes the step of the least cost. Returns whether there is one.
  bool step() {
    if (at_.overflow == 0 || is_spent()) return false;
    std::vector<Step> steps = sketched_steps();
    if (steps.size() > kTimed) steps.resize(kTimed);
    const Step* best = nullptr;
    for (Step& s : steps) {
      if (best != nullptr && best->cost <= s.cost) break;
      // Bounds do not show that a stream which is not the busiest delays others.
      if (ranking_.needs_time()) {
        s.score.seconds = ranking_.estimate(s.to).seconds;
        if (!helps(s.score)) continue;
        s.cost = cost(s.score);
      }
      if (best == nullptr || s.cost < best->cost) best = &s;
    }
    if (best == nullptr) return false;
    c_ = best->to;
    at_ = best->score;
    return true;
  }

  bool is_spent() const { return evaluator_.work() > last_work_; }

  Evaluator& evaluator_;
  const Ranking& ranking_;
  MemoryMargin& margin_;
  const Steps steps_;
  Candidate c_;
  Score at_;
  double better_than_;
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
