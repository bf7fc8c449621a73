#include "planner/search/refine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

#include "planner/evaluate/evaluate.h"
#include "planner/search/frame_choice.h"
#include "planner/search/kinds.h"
#include "planner/search/steps.h"
#include "planner/strategy/knobs.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr double kLeastGain = 1e-4;  // smaller gains are not worth a step
constexpr double kTooFar = 1.1;      // factor on memory or measure: no half of a pair
constexpr size_t kPairs = 12;        // pairs of single steps to try
constexpr size_t kExactLooks = 3;    // exact evaluations per round, the best first
constexpr double kFarthest = 1.03;   // limit on the measure of uphill steps, relative
constexpr int64_t kLaidOutOps = 150'000;
constexpr int64_t kLayoutWork = 10;  // per op (SampledSimulation::work)
constexpr double kLess = 0.985;      // factor on the room if a frame's rounding does not fit

// `from` with both changes; b's value for knobs that both turn.
Strategy joined(const Strategy& from, const Strategy& a, const Strategy& b) {
  Strategy both = a;
  for (const KnobRow& row : knob_rows()) {
    const KnobAccess& at = row.at;
    if (at.get(b) != at.get(from)) at.set(both, at.get(b));
    if (at.fraction == nullptr) continue;
    const double fraction = at.fraction->get(b);
    if (fraction != at.fraction->get(from)) at.fraction->set(both, fraction);
  }
  return both;
}

class Refinement {
 public:
  Refinement(Evaluator& evaluator, const Ranking& ranking, std::span<const Candidate> frames,
             const SpaceOptions& options, const Scored& start, const RefineEffort& effort,
             RefineMemory& memory, std::vector<Scored>& seen)
      : evaluator_(evaluator),
        ranking_(ranking),
        frames_(frames),
        options_(options),
        best_(start),
        left_(effort.evaluations),
        exact_(effort.exact),
        ops_(effort.exact_ops),
        kicks_(effort.kicks),
        last_work_(evaluator.work() + effort.work),
        seen_(seen),
        estimates_(memory.estimates),
        refused_(memory.refused) {}

  Refined run() {
    calibrate();
    while (!is_spent() && exact_ > 0 && ops_ > 0) {
      steps_.clear();
      path_.clear();
      descend({best_.candidate, best_.score, measure_});
      if (take(path_)) continue;
      pairs();
      neighbours();
      if (!take(steps_) && !(kicks_ && kick())) break;
    }
    const bool stalled = !is_spent() && exact_ > 0 && ops_ > 0;
    return {best_, stalled, kicks_ && stalled};
  }

 private:
  // A candidate with its corrected estimate.
  struct Step {
    Candidate candidate;
    Score score;
    double measure = 0;
  };

  Score estimate(const Candidate& c) {
    for (const auto& [known, score] : estimates_) {
      if (known == c) return score;
    }
    --left_;
    return estimates_.emplace_back(c, ranking_.estimate(c)).second;
  }

  // Sets the ratios of exact to sampled results of the best, and the share of each tier that its
  // demand takes.
  void calibrate() {
    const Score fast = estimate(best_.candidate);
    seconds_ = fast.seconds > 0 ? best_.score.seconds / fast.seconds : 1;
    const TierBytes demand = evaluator_.demand(best_.candidate, DemandOf::bytes).peak_bytes();
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto exact = static_cast<double>(best_.score.bytes[tier]);
      bytes_[tier] = fast.bytes[tier] > 0 ? exact / static_cast<double>(fast.bytes[tier]) : 1;
      room_[tier] = exact > 0 ? std::min(1.0, static_cast<double>(demand[tier]) / exact) : 1;
    }
    measure_ = ranking_.weighed(best_.score);
  }

  Step corrected(const Candidate& c) {
    Score score = estimate(c);
    score.seconds *= seconds_;
    score.step_seconds *= seconds_;
    for (int tier = 0; tier < kTierCount; ++tier) {
      score.bytes[tier] =
          static_cast<int64_t>(std::ceil(bytes_[tier] * static_cast<double>(score.bytes[tier])));
    }
    score.overflow = evaluator_.overflow(score.bytes);
    return {c, score, ranking_.weighed(score)};
  }

  // Whether bounds allow an improvement, including as half of a pair, where it may be slightly too
  // large.
  bool may_help(const Candidate& c) {
    if (!evaluator_.possible(c)) return false;
    const Demand demand = evaluator_.demand(c);
    Score bound;
    bound.bytes = demand.peak_bytes();
    bound.seconds = demand.step_seconds() / static_cast<double>(micro_batches_of_step(c));
    return evaluator_.overflow(bound.bytes) < kTooFar - 1 &&
           measure_of(ranking_.wanted().goal, bound, evaluator_.limits()) < kTooFar * measure_;
  }

  bool is_spent() const { return left_ <= 0 || evaluator_.work() >= last_work_; }
  bool is_refused(const Candidate& c) const {
    return std::find(refused_.begin(), refused_.end(), c) != refused_.end();
  }
  std::optional<Step> considered(const Candidate& c) {
    if (is_spent() || is_refused(c) || !may_help(c)) return std::nullopt;
    return corrected(c);
  }
  bool is_better(const Step& step, double than) const {
    return ranking_.admits(step.score) && step.measure < than * (1 - kLeastGain);
  }
  // Packing may exceed the estimate: a small program is laid out before further steps start from
  // it.
  bool fits(const Candidate& c) {
    const int64_t ops = ops_of_all_positions(evaluator_.request(c));
    if (ops > kLaidOutOps) return true;
    last_work_ -= kLayoutWork * ops;
    return evaluator_.overflow(evaluator_.arenas(c)) == 0;
  }
  bool nvme() const { return evaluator_.limits()[static_cast<int>(Tier::nvme)] > 0; }

  // Sets knob by knob to its best value. As long as none has helped, steps are kept for pairs.
  void descend(Step at) {
    const Steps steps(evaluator_.request(best_.candidate).model, options_, nvme());
    const bool from_best = at.candidate == best_.candidate;
    for (int knob = 0; knob < Steps::knobs(); ++knob) {
      const Step from = at;
      for (const Candidate& c : steps.of(knob, from.candidate)) {
        const std::optional<Step> step = considered(c);
        if (!step) continue;
        if (from_best && path_.empty()) steps_.push_back(*step);
        if (is_better(*step, at.measure) && fits(c)) at = *step;
      }
      if (!(at.candidate == from.candidate)) path_.push_back(at);
    }
  }

  // Leaves a local optimum: descends again from the steps that cost least.
  bool kick() {
    std::vector<Step> from = std::move(steps_);
    std::erase_if(from, [&](const Step& s) {
      return !ranking_.admits(s.score) || s.measure > kFarthest * measure_ ||
             is_refused(s.candidate);
    });
    std::stable_sort(from.begin(), from.end(),
                     [](const Step& a, const Step& b) { return a.measure < b.measure; });
    for (const Step& step : from) {
      if (!fits(step.candidate)) continue;
      path_.clear();
      descend(step);
      if (take(path_)) return true;
      if (is_spent()) return false;
    }
    return false;
  }

  // Tries pairs of steps, each of which may be too large or too slow alone. The expected effect of
  // a pair is the sum of both.
  void pairs() {
    struct Pair {
      double measure;
      Candidate candidate;
    };
    std::vector<Pair> all;
    const ModelSpec model = evaluator_.request(best_.candidate).model;
    const size_t count = steps_.size();
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = i + 1; j < count; ++j) {
        Score sum = best_.score;
        sum.overflow = 0;
        for (const Score& s : {steps_[i].score, steps_[j].score}) {
          sum.seconds += s.seconds - best_.score.seconds;
          sum.step_seconds += s.step_seconds - best_.score.step_seconds;
          for (int tier = 0; tier < kTierCount; ++tier) {
            sum.bytes[tier] += s.bytes[tier] - best_.score.bytes[tier];
          }
        }
        sum.overflow = evaluator_.overflow(sum.bytes);
        const double measure = ranking_.weighed(sum);
        if (!ranking_.admits(sum) || measure >= measure_ * (1 - kLeastGain)) continue;
        Candidate c = best_.candidate;
        c.strategy = joined(best_.candidate.strategy, steps_[i].candidate.strategy,
                            steps_[j].candidate.strategy);
        if (c == steps_[i].candidate || c == steps_[j].candidate) continue;
        if (is_valid(c.strategy, model, c.sequence)) all.push_back({measure, std::move(c)});
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Pair& a, const Pair& b) { return a.measure < b.measure; });
    if (all.size() > kPairs) all.resize(kPairs);
    for (const Pair& pair : all) {
      if (const std::optional<Step> step = considered(pair.candidate)) steps_.push_back(*step);
    }
  }

  // Whether slices pass all layers of one stage.
  static bool is_sliced(const Candidate& c) {
    const ParallelLayout& p = c.strategy.parallel;
    return !p.has_pipeline() && p.pipeline.slices > 1;
  }
  // The frame with the other knobs of the best.
  Candidate carried_to(const Candidate& frame) const {
    Candidate c = frame;
    c.strategy = best_.candidate.strategy;
    c.strategy.parallel = frame.strategy.parallel;
    c.strategy.parallel.overlap = best_.candidate.strategy.parallel.overlap;
    c.strategy.chunk_tokens = frame.strategy.chunk_tokens;
    c.strategy.block_tokens = frame.strategy.block_tokens;
    c.strategy.head_groups = frame.strategy.head_groups;
    c.strategy.kv = frame.strategy.kv;
    c.strategy.between_uses = frame.strategy.between_uses;
    c.strategy.backward_order = frame.strategy.backward_order;
    if (is_sliced(c) != is_sliced(best_.candidate)) {
      c.strategy.layer_input = frame.strategy.layer_input;
    }
    return c;
  }

  // Whether a frame differs from the plan's in at most one property.
  bool is_near(const Candidate& frame) const {
    const Strategy &a = frame.strategy, &b = best_.candidate.strategy;
    ParallelLayout p = a.parallel;
    p.zero = b.parallel.zero;
    p.overlap = b.parallel.overlap;
    if (is_other_mesh(frame)) return true;
    if (frame.microbatches != best_.candidate.microbatches) return false;
    // The same number of ranks per sequence, with other ring and Ulysses degrees.
    const bool shared = p.ring * p.ulysses == b.parallel.ring * b.parallel.ulysses;
    const bool mesh = shared && p.ring != b.parallel.ring;
    if (mesh) {
      p.ring = b.parallel.ring;
      p.ulysses = b.parallel.ulysses;
    }
    // Slices of one stage are blocks.
    const bool sliced = is_sliced(frame) != is_sliced(best_.candidate);
    if (!p.has_pipeline() && !b.parallel.has_pipeline()) p.pipeline = b.parallel.pipeline;
    const bool schedule = !(p == b.parallel);
    p.pipeline.schedule = b.parallel.pipeline.schedule;
    p.pipeline.virtual_stages = b.parallel.pipeline.virtual_stages;
    p.pipeline.in_flight = b.parallel.pipeline.in_flight;
    if (!(p == b.parallel)) return false;
    const double chunks = static_cast<double>(a.chunk_tokens) / static_cast<double>(b.chunk_tokens);
    const bool chunk = a.chunk_tokens != b.chunk_tokens;
    const bool whole_a = a.block_tokens == frame.sequence / a.parallel.ring,
               whole_b = b.block_tokens == best_.candidate.sequence / b.parallel.ring;
    const bool block = chunk ? whole_a != whole_b : a.block_tokens != b.block_tokens;
    if (chunk && (chunks > 2.1 || chunks < 0.48)) return false;
    const int differences =
        (mesh ? 1 : 0) + (schedule ? 1 : 0) + (sliced ? 1 : 0) + (chunk ? 1 : 0) + (block ? 1 : 0) +
        (a.kv != b.kv ? 1 : 0) + (a.between_uses != b.between_uses ? 1 : 0) +
        (a.backward_order != b.backward_order ? 1 : 0) + (a.head_groups != b.head_groups ? 1 : 0);
    return differences <= 1;
  }

  // Whether a frame differs from the plan's by a factor of two that one degree of the mesh gives to
  // another, with the same schedule, as many slices, or as many per stage, and as many chunks.
  bool is_other_mesh(const Candidate& frame) const {
    const Strategy &a = frame.strategy, &b = best_.candidate.strategy;
    const Pipeline &p = a.parallel.pipeline, &q = b.parallel.pipeline;
    if (a.parallel.has_pipeline() != b.parallel.has_pipeline()) return false;
    const MeshKey from = mesh_of(best_.candidate), to = mesh_of(frame);
    int doubled = 0, halved = 0, other = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      if (to[i] == from[i]) continue;
      ++(to[i] == 2 * from[i] ? doubled : from[i] == 2 * to[i] ? halved : other);
    }
    if (doubled != 1 || halved != 1 || other > 0) return false;
    if (p.slices != q.slices && p.slices * q.stages != q.slices * p.stages) return false;
    const auto chunks = [](const Candidate& c) {
      const ParallelLayout& of = c.strategy.parallel;
      return c.sequence / of.ring / of.pipeline.slices / c.strategy.chunk_tokens;
    };
    const auto in_blocks = [](const Strategy& s) { return s.block_tokens != s.chunk_tokens; };
    const bool tensor = a.parallel.tensor != b.parallel.tensor;
    return p.schedule == q.schedule && p.virtual_stages == q.virtual_stages &&
           chunks(frame) == chunks(best_.candidate) && (tensor || in_blocks(a) == in_blocks(b)) &&
           a.kv == b.kv && a.between_uses == b.between_uses &&
           a.backward_order == b.backward_order && a.head_groups == b.head_groups;
  }

  void neighbours() {
    const ModelSpec model = evaluator_.request(best_.candidate).model;
    Room room = room_;
    if (best_.score.bytes[kNvmeTier] == 0) room[kNvmeTier] = 0;
    Room less = room;
    for (int tier = 0; tier < 2; ++tier) less[tier] *= kLess;
    for (const Candidate& frame : frames_) {
      if (is_spent()) return;
      if (!is_near(frame) || !evaluator_.possible(frame)) continue;
      if (const Candidate c = carried_to(frame); is_valid(c.strategy, model, c.sequence)) {
        if (const std::optional<Step> step = considered(c)) steps_.push_back(*step);
      }
      const FrameChoice choice(evaluator_, frame, options_);
      const double most = ranking_.wanted().most_seconds(frame);
      for (const Room& of_round : {room, less}) {
        const std::vector<Rounded> rounded = choice.round(ranking_.wanted().goal, of_round, most);
        if (rounded.empty()) break;
        Candidate c = rounded.front().candidate;
        c.strategy.prefetch_depth = best_.candidate.strategy.prefetch_depth;
        c.strategy.offload_window = best_.candidate.strategy.offload_window;
        const std::optional<Step> step = considered(c);
        if (!step) continue;
        steps_.push_back(*step);
        if (ranking_.admits(step->score)) break;
      }
    }
  }

  // Evaluates the best steps exactly; the first that improves becomes the start of the next round.
  bool take(std::vector<Step> steps) {
    std::erase_if(steps, [&](const Step& s) { return !is_better(s, measure_); });
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.measure < b.measure; });
    for (size_t i = 0; i < std::min(kExactLooks, steps.size()) && exact_ > 0 && ops_ > 0; ++i) {
      const Candidate& c = steps[i].candidate;
      ops_ -= ops_of_all_positions(evaluator_.request(c));
      const Score score = ranking_.exact(c);
      if (ranking_.admits(score)) {
        seen_.push_back({c, score, true});
        if (ranking_.weighed(score) < measure_ * (1 - kLeastGain)) {
          best_ = {c, score, true};
          calibrate();
          return true;
        }
      }
      refused_.push_back(c);
      --exact_;
    }
    return false;
  }

  Evaluator& evaluator_;
  const Ranking& ranking_;
  std::span<const Candidate> frames_;
  const SpaceOptions& options_;
  Scored best_;
  int64_t left_;
  int exact_;
  int64_t ops_;
  bool kicks_;
  int64_t last_work_;
  std::vector<Scored>& seen_;
  std::deque<std::pair<Candidate, Score>>& estimates_;  // not corrected
  std::vector<Candidate>& refused_;
  std::vector<Step> steps_, path_;
  double measure_ = 0, seconds_ = 1;
  std::array<double, kTierCount> bytes_{};
  Room room_{};
};

}  // namespace

Refined refined(Evaluator& evaluator, const Ranking& ranking, std::span<const Candidate> frames,
                const SpaceOptions& options, const Scored& start, const RefineEffort& effort,
                RefineMemory& memory, std::vector<Scored>& seen) {
  return Refinement(evaluator, ranking, frames, options, start, effort, memory, seen).run();
}

}  // namespace longspan
