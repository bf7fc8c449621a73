#include "planner/search/exploration.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "planner/evaluate/evaluate.h"
#include "planner/search/refine.h"
#include "planner/search/repair.h"

namespace longspan {
namespace {

// Programs need more memory than their bounds, and packing adds to it. The first rounding of a
// frame leaves this room, until the needs of other frames are known, and more where candidates turn
// out too large.
constexpr double kFirstRoom = 0.96;
constexpr double kLessRoom = 0.99;  // at least, if rounding gives the same candidate again
constexpr double kNearly = 0.5;     // overflow: more may not fit even with nothing copied ahead
// Frames slower than the best by more than this are evaluated in one rounding only.
constexpr double kClose = 1.03;
// The first frame of a kind tries kStates placements of states, unless it is slower than the best
// by more than kSpread.
constexpr double kSpread = 1.25;
constexpr size_t kStates = 6;
// Files are tried if the expected gain exceeds this part.
constexpr double kFilesPromise = 0.01;
// A sample's few chunks do not show copies that fall behind from chunk to chunk.
constexpr double kSampled = 1.5;
constexpr int64_t kSmallOps = 100'000;  // of a program that packed() lays out
constexpr double kNearMiss = 0.02;      // overflow without packing that a repair may remove
constexpr int kRepairs = 6;             // repairs of candidates that do not fit when laid out
constexpr int64_t kOfLeader = 4;        // part of a repair's work for candidates that do not lead
constexpr double kRepairable = 1.1;     // factor on time that a repair may cost them
constexpr double kNearlyInTime = 1.15;  // excess over the time: refinement may remove it
constexpr int64_t kSlowEvaluations = 150;
constexpr double kMostEffort = 4;       // with limits on time
constexpr double kLastEffort = 1.5;     // if all candidates turned out too large
constexpr double kUnseenEffort = 0.25;  // for meshes not evaluated so far
constexpr double kSeemed = 0.002;       // excess of exact time over the estimate
constexpr int kAgain = 3;
constexpr size_t kFewMeshes = 48;  // more meshes are not all visited

Candidate with_depths(Candidate c, int64_t prefetch, int64_t window) {
  c.strategy.prefetch_depth = prefetch;
  c.strategy.offload_window = window;
  return c;
}

// The first and the second rounding, and the first with other prefetch depths and offload
// windows. For memory goals nothing is copied ahead.
std::vector<Candidate> looks_of(const std::vector<Rounded>& rounded, Goal goal) {
  std::vector<Candidate> looks;
  for (const Rounded& r : rounded) {
    if (looks.size() == 2) break;
    looks.push_back(goal == Goal::fastest ? r.candidate : with_depths(r.candidate, 0, 0));
  }
  if (looks.empty() || goal != Goal::fastest) return looks;
  const Candidate first = looks.front();
  looks.push_back(with_depths(first, 1, 1));
  looks.push_back(with_depths(first, 4, 3));
  looks.push_back(with_depths(first, 8, 4));
  // A stage has few layers, and those at the ends differ, so these depths matter more.
  if (first.strategy.parallel.has_pipeline()) looks.push_back(with_depths(first, 2, 4));
  return looks;
}

}  // namespace

Exploration::Exploration(Evaluator& evaluator, MemoryMargin& margin, const Ranking& ranking,
                         std::span<const Candidate> frames, const SpaceOptions& options,
                         const Effort& effort, const Progress& progress)
    : evaluator_(evaluator),
      margin_(margin),
      ranking_(ranking),
      wanted_(ranking.wanted()),
      frames_(frames),
      options_(options),
      effort_(effort),
      progress_(progress),
      early_ops_(effort.exact_ops / 4),
      ops_(wanted_.goal == Goal::fastest ? effort.exact_ops * 3 / 4 : effort.exact_ops),
      repairs_(kRepairs),
      states_(frames.size(), {kInfinity, {{kFirstRoom, 1, 0}, {kFirstRoom, 1, 1}}}),
      queue_(frames, wanted_.goal,
             [this](size_t frame) { return is_beaten(states_[frame].bound); }),
      incumbent_(kInfinity),
      ceiling_(kInfinity) {}

void Exploration::run(double ceiling) {
  if (wanted_.first && !seen_.empty()) {
    best_ = seen_.front().scored;
    return;
  }
  ceiling_ = ceiling;
  first_work_ = evaluator_.work();
  enqueue();
  find_best();
  work_ = evaluator_.work() - first_work_;
}

void Exploration::find_best() {
  if (explore()) return;
  if (least_bound() >= ceiling_ * (1 - wanted_.gap)) return;  // none of these frames is better
  if (wanted_.goal != Goal::fastest) verify_each_kind();
  // Without any plan that fits, more is worth trying.
  if (seen_.empty() && ceiling_ == kInfinity) repair_nearest();
  if (seen_.empty() && ceiling_ == kInfinity) refine_slow();
  int looks = effort_.exact;
  verify(looks);
  // A leader that turned out slower than estimated has ruled out too much.
  for (int again = 0; again < kAgain && is_slower_than_seemed(); ++again) {
    incumbent_ = weighed(best_->score);
    queue_.restore();
    explore();
    verify(looks);
  }
}

// Visits queued frames while worthwhile. Returns true if Wanted::first is set and a candidate was
// found.
bool Exploration::explore() {
  double share = 1;
  for (int64_t steps = 0;; ++steps) {
    if (steps % 64 == 0 || seen_.empty() || share > 1) share = share_to_spend();
    if (is_spent(share)) break;
    if (progress_ && steps % 64 == 0) progress_(estimated_, effort_.evaluations);
    if (wanted_.first && !seen_.empty()) {
      int looks = effort_.exact;
      verify(looks);
      if (best_) return true;
    }
    const std::optional<Waiting> next = queue_.pop();
    if (!next) break;
    visit(*next);
  }
  if (wanted_.goal == Goal::fastest) {
    if (!wanted_.first && !seen_.empty()) visit_unseen(share_to_spend());
    repair_leaders();
  }
  return false;
}

bool Exploration::is_slower_than_seemed() const {
  return wanted_.goal == Goal::fastest && !wanted_.first && best_ &&
         incumbent_ < weighed(best_->score) * (1 - kSeemed);
}

// Adds the start, repaired if Wanted::first is set.
void Exploration::begin_with(const Candidate& c) {
  Waiting from;
  while (from.frame + 1 < frames_.size() && kind_of(frames_[from.frame]) != kind_of(c)) {
    ++from.frame;
  }
  if (wanted_.first) {
    repair(c, from, effort_.work / 2, incumbent_);
    return;
  }
  const Score score = exact(c, estimate(c));
  if (!allowed(score)) return;
  seen_.push_back({{c, score, true}, from});
  incumbent_ = weighed(score);
}

double Exploration::least_bound() {
  while (!bounds_.empty()) {
    const auto [bound, frame] = bounds_.front();
    if (bound == states_[frame].bound) return bound;
    std::pop_heap(bounds_.begin(), bounds_.end(), std::greater<>());
    bounds_.back().first = states_[frame].bound;
    std::push_heap(bounds_.begin(), bounds_.end(), std::greater<>());
  }
  return kInfinity;
}

// Effort is proportional to the possible gain. With a limit on time and no result yet, more
// effort is spent before the search gives up.
double Exploration::share_to_spend() {
  if (seen_.empty() && ceiling_ == kInfinity) {
    return wanted_.time.any() && !wanted_.first ? kMostEffort : 1;
  }
  const double best = best_ ? weighed(best_->score) : incumbent_;
  return share_of_effort(wanted_, 1 - least_bound() / std::min(best, ceiling_));
}

bool Exploration::is_spent(double share) const {
  const auto beyond = [&](int64_t done, int64_t of) {
    return static_cast<double>(done) >= share * static_cast<double>(of);
  };
  return beyond(estimated_, effort_.evaluations) ||
         beyond(evaluator_.work() - first_work_, effort_.work);
}

int64_t Exploration::work_of_repair() const { return effort_.work / kRepairs; }

Score Exploration::estimate(const Candidate& c) {
  ++estimated_;
  return ranking_.estimate(c);
}

// The score including packing. A candidate that would lead is laid out, if that is as fast as an
// estimate.
Score Exploration::packed(const Candidate& c, const Score& live) {
  Score score = margin_.packed(c, live);
  if (wanted_.goal != Goal::fastest || !allowed(score) || weighed(score) >= incumbent_) {
    return score;
  }
  const int64_t ops = ops_of_all_positions(evaluator_.request(c));
  if (ops > std::min(kSmallOps, early_ops_)) return score;
  early_ops_ -= ops;
  score.bytes = evaluator_.arenas(c);
  score.overflow = evaluator_.overflow(score.bytes);
  margin_.learn_packing(c, live.bytes, score.bytes);
  return score;
}

Score Exploration::exact(const Candidate& c, const Score& estimated) {
  ops_ -= ops_of_all_positions(evaluator_.request(c));
  const Score score = ranking_.exact(c);
  margin_.learn_packing(c, estimated.bytes, score.bytes);
  if (score.overflow == 0 && estimated.seconds > 0) {
    const double times = std::max(1.0, score.seconds / estimated.seconds);
    const auto [known, fresh] = slower_.try_emplace(kind_of(c), times);
    if (!fresh) known->second = std::min(known->second, times);
  }
  return score;
}

// Queues all frames by the compute time with everything on the device, a lower bound for all
// values of all groups.
void Exploration::enqueue() {
  for (size_t i = 0; i < frames_.size(); ++i) {
    const Candidate& c = frames_[i];
    if (!evaluator_.possible(c) || limits_nothing(c)) continue;
    double bound = 0;
    if (wanted_.goal == Goal::fastest) {
      const double seconds = evaluator_.demand(c).compute_seconds();
      if (seconds > wanted_.most_seconds(c)) continue;
      bound = seconds / static_cast<double>(micro_batches_of_step(c));
    }
    states_[i].bound = bound;
    bounds_.emplace_back(bound, i);
    // The gap puts relaxed frames first, unless this one promises more than the gap.
    queue_.push({i, bound * evaluator_.expected_ratio(c) * (1 + wanted_.gap)});
  }
  std::make_heap(bounds_.begin(), bounds_.end(), std::greater<>());
}

// Whether the schedule's limit on microbatches in flight has no effect.
bool Exploration::limits_nothing(const Candidate& c) {
  ParallelLayout free = c.strategy.parallel;
  if (free.pipeline.in_flight == 0 || options_.parallel.in_flight) return false;
  const auto limit = static_cast<double>(std::exchange(free.pipeline.in_flight, 0));
  const auto held = evaluator_.in_flight(free, c.microbatches);
  return held && held->microbatches <= limit;
}

// Whether a bound excludes that a frame has the best plan.
bool Exploration::is_beaten(double bound) const {
  return bound >= std::min(incumbent_, ceiling_) * (1 - wanted_.gap);
}

void Exploration::visit(const Waiting& next) {
  if (next.relaxed) {
    look(next);
  } else {
    relax(next.frame);
  }
}

// The expectation of a mesh may be too high. Every mesh that bounds do not rule out is visited a
// few times, so that none gives a better answer if the question fixes it.
void Exploration::visit_unseen(double share) {
  if (queue_.unseen() > kFewMeshes) return;
  const auto part = [&](int64_t of) {
    return static_cast<int64_t>(share * kUnseenEffort * static_cast<double>(of));
  };
  const int64_t last = estimated_ + part(effort_.evaluations);
  const int64_t last_work = evaluator_.work() + part(effort_.work);
  while (estimated_ < last && evaluator_.work() < last_work) {
    const std::optional<Waiting> next = queue_.pop_unseen();
    if (!next) return;
    visit(*next);
  }
}

FrameChoice Exploration::choice_of(size_t frame) {
  const DemandOf rows = ranking_.needs_time() ? DemandOf::all : DemandOf::bytes;
  return FrameChoice(evaluator_, frames_[frame], options_, rows);
}

void Exploration::relax(size_t frame) {
  FrameState& state = states_[frame];
  const FrameChoice choice = choice_of(frame);
  const Mixture least = choice.bound(wanted_.goal, most_seconds(frame));
  if (least.overflow > 0 && least.optimal) {
    state.bound = kInfinity;
    return;
  }
  if (least.optimal) state.bound = std::max(least.objective, state.bound);
  if (is_beaten(state.bound)) return;
  const double ratio =
      wanted_.goal == Goal::fastest ? evaluator_.expected_ratio(frames_[frame]) : 1;
  double without_files = kInfinity;
  for (const bool nvme : {false, true}) {
    if (nvme && evaluator_.limits()[kNvmeTier] == 0) continue;
    Room room = {1, 1, nvme ? 1.0 : 0.0};
    const Mixture likely = choice.expect(wanted_.goal, room, most_seconds(frame));
    if (likely.overflow > 0) continue;
    const double expected = std::max(state.bound, likely.objective * ratio);
    if (nvme && expected > without_files * (1 - kFilesPromise)) continue;
    if (!nvme) without_files = expected;
    queue_.push({frame, expected, true, nvme});
  }
}

// Rounds the frame, with less room each time, until a candidate fits.
void Exploration::look(const Waiting& waiting) {
  FrameState& state = states_[waiting.frame];
  const size_t way = waiting.nvme ? 1 : 0;
  Room& room = state.room[way];
  const FrameChoice choice = choice_of(waiting.frame);
  std::optional<Candidate> last;  // the last that was too large
  if (state.attempts[way] == 0) room = margin_.room_of(frames_[waiting.frame], room);
  for (; state.attempts[way] < effort_.attempts; ++state.attempts[way]) {
    bool any = false;
    double least_missing = kInfinity;
    Room next = room;
    std::vector<Candidate> looks =
        looks_of(choice.round(wanted_.goal, room, most_seconds(waiting.frame)), wanted_.goal);
    if (looks.empty() && wanted_.goal == Goal::fastest) {
      state.attempts[way] = effort_.attempts;
      look_bare(waiting, choice);
      return;
    }
    // Expectations are least accurate about the placement of states: the first frame of a kind
    // tries several.
    bool spread = (wanted_.goal == Goal::fastest || wanted_.goal == Goal::roomiest) &&
                  !queue_.is_known(waiting.frame);
    size_t spread_end = 0;
    const auto try_states = [&] {
      for (const Rounded& r : choice.round_each(KnobGroup::states, wanted_.goal, room,
                                                most_seconds(waiting.frame), kStates)) {
        looks.push_back(wanted_.goal == Goal::fastest ? r.candidate
                                                      : with_depths(r.candidate, 0, 0));
      }
      spread_end = looks.size();
    };
    for (size_t i = 0; i < looks.size(); ++i) {
      const Candidate c = looks[i];
      if (known(c)) continue;
      const Score live = estimate(c), score = packed(c, live);
      if (i == 0) margin_.learn_live(c, live.bytes);
      if (allowed(live) || wanted_.goal == Goal::roomiest) queue_.learn(waiting, weighed(live));
      if (allowed(score)) {
        any = true;
        const double own = weighed(score);
        const bool close = own < incumbent_ * kClose;
        add(c, live, waiting);
        if (std::exchange(spread, false) && !wanted_.first && own < incumbent_ * kSpread) {
          try_states();
        }
        if (!close && i + 1 >= spread_end) break;
        continue;
      }
      if (score.overflow > 0 && score.overflow < least_missing) {
        least_missing = score.overflow;
        next = tightened(room, score.bytes, evaluator_.limits());
        if (i == 0 && last && *last == c) {  // this reduction of room has no effect
          for (int tier = 0; tier < kTierCount; ++tier) {
            if (next[tier] < room[tier]) next[tier] *= kLessRoom;
          }
        }
      }
      if (i == 0) last = c;
      miss(c, score, waiting);
      if (score.overflow > 0) misses_.push_back({{c, score}, waiting});
      if (live.overflow < kNearMiss && live.step_seconds <= wanted_.most_seconds(c) &&
          weighed(live) < incumbent_) {
        too_large_.push_back({{c, live}, waiting});
      }
      if (wanted_.goal == Goal::roomiest) {
        if (score.overflow > kNearly && i == 0) {
          state.attempts[way] = effort_.attempts;  // far too large: less room does not help
          return;
        }
        if (std::exchange(spread, false) && state.attempts[way] == 0) try_states();
      }
      if (any || i + 1 < spread_end) continue;
      // It may fit without tensors copied ahead.
      const Candidate bare = with_depths(c, 0, 0);
      if (score.overflow < kNearly && !(bare == c) && !known(bare)) {
        const Score own = estimate(bare);
        if (allowed(margin_.packed(bare, own))) {
          queue_.learn(waiting, weighed(own));
          add(bare, own, waiting);
          any = wanted_.goal != Goal::fastest;  // with fewer tensors kept it may be faster
        }
      }
      break;
    }
    if (any || least_missing == kInfinity) return;
    room = next;
  }
}

// Tries candidates with nothing copied ahead, as bounds do not model these copies; at last the
// one with least memory.
void Exploration::look_bare(const Waiting& waiting, const FrameChoice& choice) {
  Room room = {kFirstRoom, 1, waiting.nvme ? 1.0 : 0.0};
  for (int attempt = 0; attempt <= effort_.attempts; ++attempt) {
    std::vector<Rounded> rounded;
    if (attempt < effort_.attempts) {
      rounded = choice.round(Goal::fastest, room, most_seconds(waiting.frame));
    }
    if (rounded.empty()) {
      attempt = effort_.attempts;
      rounded = choice.round(Goal::roomiest, {1, 1, room[kNvmeTier]}, kInfinity);
    }
    if (rounded.empty()) return;
    const Candidate c = with_depths(rounded.front().candidate, 0, 0);
    if (known(c)) return;
    const Score live = estimate(c), score = packed(c, live);
    if (allowed(live)) queue_.learn(waiting, weighed(live));
    if (allowed(score)) {
      add(c, live, waiting);
      return;
    }
    miss(c, score, waiting);
    if (allowed(live) && weighed(live) < incumbent_) too_large_.push_back({{c, live}, waiting});
    room = tightened(room, score.bytes, evaluator_.limits());
  }
}

bool Exploration::known(const Candidate& c) const {
  return std::any_of(seen_.begin(), seen_.end(),
                     [&](const Seen& s) { return s.scored.candidate == c; });
}

void Exploration::add(const Candidate& c, const Score& score, const Waiting& from) {
  seen_.push_back({{c, score, false}, from});
  // Live bytes are less than arenas, so candidates that are not laid out rule nothing out.
  if (wanted_.goal != Goal::fastest) return;
  incumbent_ = std::min(incumbent_, weighed(score) * (score.sampled ? kSampled : 1));
}

void Exploration::miss(const Candidate& c, const Score& score, const Waiting& from) {
  if (score.overflow == 0) {
    slow_.push_back({{c, score}, from});
    return;
  }
  if (!nearest_ || score.overflow < nearest_->score.overflow) {
    nearest_ = Scored{c, score, false};
  }
}

// Packing affects memory more than differences in live bytes, and depends on the kind. Lays out
// the best candidate of every kind that may be the best of all, smallest programs first.
void Exploration::verify_each_kind() {
  std::map<Kind, size_t> of_kind;
  for (size_t i = 0; i < seen_.size(); ++i) {
    if (!allowed(seen_[i].scored.score)) continue;
    const auto [it, fresh] = of_kind.try_emplace(kind_of(frames_[seen_[i].from.frame]), i);
    const auto own = [&](size_t of) { return weighed(seen_[of].scored.score); };
    if (!fresh && own(i) < own(it->second)) it->second = i;
  }
  std::vector<std::pair<int64_t, size_t>> order;
  for (const auto& [kind, i] : of_kind) {
    order.emplace_back(ops_of_all_positions(evaluator_.request(seen_[i].scored.candidate)), i);
  }
  std::sort(order.begin(), order.end());
  double least = kInfinity;
  const int64_t enough = ops_ / 2;
  for (const auto& [ops, i] : order) {
    Scored& scored = seen_[i].scored;
    if (weighed(scored.score) >= least || ops_ <= enough) continue;
    scored.score = exact(scored.candidate, scored.score);
    scored.exact = true;
    if (allowed(scored.score)) least = std::min(least, weighed(scored.score));
  }
}

// The expected exact measure: the sampled one times the known ratio of full to sampled simulation
// of its kind.
double Exploration::likely(const Seen& s) const {
  const double measure = weighed(s.scored.score);
  if (s.scored.exact) return measure;
  const auto known = slower_.find(kind_of(s.scored.candidate));
  return known == slower_.end() ? measure : measure * known->second;
}

// Ops reserved for refinement.
int64_t Exploration::kept_ops() const {
  return wanted_.first || effort_.refinements == 0 ? 0 : effort_.exact_ops / 4;
}

// Lays out the best by sampled simulation until the best of all is exact. Candidates that do not
// fit are rounded again with less room; if none is left, queued frames are visited.
void Exploration::verify(int& looks) {
  while (true) {
    Seen* best = nullptr;
    Seen* best_exact = nullptr;
    for (Seen& s : seen_) {
      if (!allowed(s.scored.score) || s.dropped) continue;
      if (best == nullptr || likely(s) < likely(*best)) best = &s;
      if (s.scored.exact && (best_exact == nullptr || likely(s) < likely(*best_exact))) {
        best_exact = &s;
      }
    }
    // Keeps some ops for refinement.
    const bool spent = looks <= 0 || ops_ <= (best_exact ? kept_ops() : 0);
    if (spent) best = best_exact;
    if (best == nullptr) {
      if (spent || is_spent(kLastEffort)) return;
      const std::optional<Waiting> next = queue_.pop();
      if (!next) return;
      --looks;
      visit(*next);
      continue;
    }
    if (best->scored.exact) {
      best_ = best->scored;
      return;
    }
    if (drop(*best)) continue;
    const Candidate candidate = best->scored.candidate;
    const Waiting from = best->from;
    const Score score = exact(candidate, best->scored.score);
    best->scored = {candidate, score, true};
    // Arenas exceed live bytes, so for memory goals a candidate not yet laid out always seems
    // better.
    if (!allowed(score) || wanted_.goal != Goal::fastest) --looks;
    if (allowed(score) && wanted_.first) {
      best_ = best->scored;
      return;
    }
    if (allowed(score)) continue;
    miss(candidate, score, from);
    if (score.overflow == 0) continue;
    if (wanted_.goal == Goal::fastest && repairs_-- > 0) {
      repair(candidate, from, work_of_repair(), incumbent_);
    }
    look_again(from, score.bytes);
  }
}

// Drops a candidate if its program is too large to be laid out, or if packing of others of its
// layout shows that it does not fit. In the second case its frame is rounded again.
bool Exploration::drop(Seen& s) {
  if (ops_of_all_positions(evaluator_.request(s.scored.candidate)) > ops_) {
    s.dropped = true;
    return true;
  }
  const Score likely = margin_.packed(s.scored.candidate, s.scored.score);
  if (likely.overflow == 0) return false;
  s.dropped = true;
  look_again(Waiting(s.from), likely.bytes);
  return true;
}

// Lays out a candidate for a start of refinement. One that does not fit is repaired, and its frame
// is rounded again.
void Exploration::lay_out_start(size_t index, bool may_repair) {
  Seen& s = seen_[index];
  if (drop(s)) return;
  const Candidate candidate = s.scored.candidate;
  const Waiting from = s.from;
  const double seemed = weighed(s.scored.score);
  const Score score = exact(candidate, s.scored.score);
  s.scored = {candidate, score, true};
  if (score.overflow == 0) return;
  if (may_repair && wanted_.goal == Goal::fastest) {
    repair(candidate, from, work_of_repair() / kOfLeader, kRepairable * seemed);
  }
  look_again(from, score.bytes);
}

// Repairs candidates that would lead if they fitted when packed.
void Exploration::repair_leaders() {
  std::stable_sort(too_large_.begin(), too_large_.end(), [&](const Seen& a, const Seen& b) {
    return weighed(a.scored.score) < weighed(b.scored.score);
  });
  std::set<size_t> frames;
  const auto most = static_cast<size_t>(std::ceil(share_to_spend() * kRepairs));
  for (const auto& [scored, from, dropped] : too_large_) {
    if (weighed(scored.score) >= incumbent_ * (1 - wanted_.gap)) return;
    if (repairs_ == 0 || frames.size() == most) return;
    if (!frames.insert(from.frame).second) continue;
    --repairs_;
    repair(scored.candidate, from, work_of_repair(), incumbent_);
  }
}

// If nothing fits: repairs, of each kind, the candidate that is short by least.
void Exploration::repair_nearest() {
  std::stable_sort(misses_.begin(), misses_.end(), [](const Seen& a, const Seen& b) {
    return a.scored.score.overflow < b.scored.score.overflow;
  });
  const int64_t last_work = evaluator_.work() + effort_.work / 2;
  std::set<Kind> kinds;
  for (const auto& [scored, from, dropped] : misses_) {
    if (evaluator_.work() > last_work) return;
    if (kinds.size() == effort_.repaired || (wanted_.first && !seen_.empty())) return;
    if (kinds.insert(kind_of(scored.candidate)).second) {
      repair(scored.candidate, from, last_work - evaluator_.work(), incumbent_);
    }
  }
}

// If nothing that fits is within the limits on time: refines, of each kind, the candidate that
// exceeds them by least.
void Exploration::refine_slow() {
  const auto excess = [&](const Seen& s) {
    return s.scored.score.step_seconds / wanted_.most_seconds(s.scored.candidate);
  };
  std::stable_sort(slow_.begin(), slow_.end(),
                   [&](const Seen& a, const Seen& b) { return excess(a) < excess(b); });
  Wanted any_time;
  any_time.tokens = wanted_.tokens;
  const Ranking ranking(evaluator_, any_time);
  std::set<Kind> kinds;
  for (const Seen& s : slow_) {
    if (excess(s) > kNearlyInTime || kinds.size() == effort_.repaired || ops_ <= 0) return;
    if (!kinds.insert(kind_of(s.scored.candidate)).second) continue;
    const Score score = exact(s.scored.candidate, s.scored.score);
    if (score.overflow > 0) continue;
    std::vector<Scored> others;
    RefineMemory memory;
    const RefineEffort effort = {kSlowEvaluations, work_of_repair(), effort_.exact, ops_ / 2};
    const Scored best = refined(evaluator_, ranking, frames_, options_,
                                {s.scored.candidate, score, true}, effort, memory, others)
                            .best;
    if (!allowed(best.score)) continue;
    seen_.push_back({best, s.from});
    incumbent_ = std::min(incumbent_, weighed(best.score));
    if (wanted_.first) return;
  }
}

void Exploration::repair(const Candidate& c, const Waiting& from, int64_t work,
                         double better_than) {
  const Repaired found = repaired(evaluator_, ranking_, margin_, options_, c, better_than,
                                  {.work = work, .exact_ops = ops_});
  ops_ -= found.exact_ops;
  for (const Scored& s : found.missed) miss(s.candidate, s.score, from);
  if (!found.fits) return;
  seen_.push_back({*found.fits, from});
  incumbent_ = std::min(incumbent_, weighed(found.fits->score));
}

// Rounds the frame again with less room, after a candidate that needs `bytes`.
void Exploration::look_again(const Waiting& from, const TierBytes& bytes) {
  Room& room = states_[from.frame].room[from.nvme ? 1 : 0];
  room = tightened(room, bytes, evaluator_.limits());
  look(from);
}

}  // namespace longspan
