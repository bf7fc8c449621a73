#include "planner/search/best_first.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "planner/evaluate/evaluate.h"
#include "planner/search/frame_queue.h"
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
// Layouts and kinds whose best is within this are refined too.
constexpr double kNear = 1.3;
// A sample's few chunks do not show copies that fall behind from chunk to chunk.
constexpr double kSampled = 1.5;
constexpr int64_t kSmallOps = 100'000;  // of a program that packed() lays out
constexpr int kRepairs = 6;             // repairs of candidates that do not fit when laid out
constexpr double kStartEstimates = 60;  // estimates per start
constexpr int kStartLooks = 5;          // layouts per start, until one fits
constexpr double kNearlyInTime = 1.15;  // excess over the time: refinement may remove it
constexpr int64_t kSlowEvaluations = 150;
constexpr size_t kFinalists = 2;
constexpr size_t kMostStarts = 12;
constexpr double kSameLayout = 1.1, kAlike = 1.25;  // handicaps of starts similar to others
// All of the effort is spent if kMuchToGain may be gained, less for less down to kLeastEffort for
// kLittleToGain, and at most kMostShare of it for more.
constexpr double kLittleToGain = 0.01, kMuchToGain = 0.055;
constexpr double kLeastEffort = 0.08, kMostShare = 1.5;
constexpr double kMostEffort = 4;       // with limits on time
constexpr double kLastEffort = 1.5;     // if all candidates turned out too large
constexpr double kUnseenEffort = 0.25;  // for meshes not evaluated so far
constexpr double kSeemed = 0.002;       // excess of exact time over the estimate
constexpr int kAgain = 3;
constexpr size_t kFewMeshes = 48;  // more meshes are not all visited

// The state of a frame.
struct FrameState {
  double bound = kInfinity;  // in the goal's measure; infinite: nothing fits
  // Without files and with files:
  Room room[2] = {{kFirstRoom, 1, 0}, {kFirstRoom, 1, 1}};
  int attempts[2] = {0, 0};
};

class BestFirst {
 public:
  BestFirst(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
            const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
            const Progress& progress)
      : evaluator_(evaluator),
        frames_(frames),
        options_(options),
        wanted_(wanted),
        ranking_(evaluator, wanted),
        effort_(effort),
        progress_(progress),
        early_ops_(effort.exact_ops / 4),
        ops_(wanted.goal == Goal::fastest ? effort.exact_ops * 3 / 4 : effort.exact_ops),
        first_work_(evaluator.work()),
        states_(frames.size()),
        queue_(frames, wanted.goal),
        margin_(margin) {}

  Found run() {
    if (wanted_.start) {
      begin_with(*wanted_.start);
      if (wanted_.first && !seen_.empty()) {
        found_.best = seen_.front().scored;
        return finish();
      }
      first_work_ = evaluator_.work();
    }
    enqueue();
    if (explore()) return finish();
    if (wanted_.goal != Goal::fastest) verify_each_kind();
    if (seen_.empty()) repair_nearest();
    if (seen_.empty()) refine_slow();
    int looks = effort_.exact;
    verify(looks);
    // A leader that turned out slower than estimated has ruled out too much.
    for (int again = 0; again < kAgain && is_slower_than_seemed(); ++again) {
      incumbent_ = weighed(found_.best->score);
      explore();
      verify(looks);
    }
    if (found_.best && !wanted_.first && effort_.refinements > 0) refine();
    return finish();
  }

 private:
  struct Seen {
    Scored scored;
    Waiting from;
    bool dropped = false;  // fits by live bytes, but probably not when packed
  };

  // Visits queued frames while worthwhile. Returns true if Wanted::first is set and a candidate was
  // found.
  bool explore() {
    double share = 1;
    for (int64_t steps = 0; !queue_.empty(); ++steps) {
      if (steps % 64 == 0 || seen_.empty() || share > 1) share = share_of_effort();
      if (is_spent(share)) break;
      if (progress_ && steps % 64 == 0) progress_(estimated_, effort_.evaluations);
      if (wanted_.first && !seen_.empty()) {
        int looks = effort_.exact;
        verify(looks);
        if (found_.best) return true;
        if (queue_.empty()) break;  // verify() visits, too
      }
      visit(queue_.pop());
    }
    if (wanted_.goal == Goal::fastest) {
      if (!wanted_.first && !seen_.empty()) visit_unseen(share_of_effort());
      repair_leaders();
    }
    return false;
  }
  bool is_slower_than_seemed() const {
    return wanted_.goal == Goal::fastest && !wanted_.first && found_.best &&
           incumbent_ < weighed(found_.best->score) * (1 - kSeemed);
  }
  // Adds the start, repaired if Wanted::first is set.
  void begin_with(const Candidate& c) {
    Waiting from;
    while (from.frame + 1 < frames_.size() && kind_of(frames_[from.frame]) != kind_of(c)) {
      ++from.frame;
    }
    if (wanted_.first) {
      repair(c, from, effort_.work / 2);
      return;
    }
    const Score score = exact(c, estimate(c));
    if (!allowed(score)) return;
    seen_.push_back({{c, score, true}, from});
    incumbent_ = weighed(score);
  }
  double least_bound() const {
    double least = kInfinity;
    for (const FrameState& state : states_) least = std::min(least, state.bound);
    return least;
  }
  // Effort is proportional to the possible gain. With a limit on time and no result yet, more
  // effort is spent before the search gives up.
  double share_of_effort() const {
    if (seen_.empty()) return wanted_.time.any() && !wanted_.first ? kMostEffort : 1;
    if (wanted_.goal != Goal::fastest) return 1;
    if (wanted_.thorough) return kMostShare;
    const double best = found_.best ? weighed(found_.best->score) : incumbent_;
    const double gain = 1 - least_bound() / best;
    const double slope = (1 - kLeastEffort) / (kMuchToGain - kLittleToGain);
    return std::clamp(kLeastEffort + slope * (gain - kLittleToGain), kLeastEffort, kMostShare);
  }
  bool is_spent(double share) const {
    const auto beyond = [&](int64_t done, int64_t of) {
      return static_cast<double>(done) >= share * static_cast<double>(of);
    };
    return beyond(estimated_, effort_.evaluations) ||
           beyond(evaluator_.work() - first_work_, effort_.work);
  }
  int64_t work_of_repair() const { return effort_.work / kRepairs; }
  double weighed(const Score& score) const { return ranking_.weighed(score); }
  bool allowed(const Score& score) const { return ranking_.admits(score); }
  double most_seconds(size_t frame) const { return wanted_.most_seconds(frames_[frame]); }

  Score estimate(const Candidate& c) {
    ++estimated_;
    return ranking_.estimate(c);
  }
  // The score including packing. A candidate that would lead is laid out, if that is as fast as an
  // estimate.
  Score packed(const Candidate& c, const Score& live) {
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
  Score exact(const Candidate& c, const Score& estimated) {
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
  void enqueue() {
    for (size_t i = 0; i < frames_.size(); ++i) {
      const Candidate& c = frames_[i];
      if (!evaluator_.possible(c) || limits_nothing(c)) continue;
      double bound = 0;
      if (wanted_.goal == Goal::fastest) {
        const double seconds = evaluator_.demand(c).compute_seconds();
        if (seconds > wanted_.most_seconds(c)) continue;
        bound = seconds / static_cast<double>(sequences_of_step(c));
      }
      FrameState& state = states_[i];
      state.bound = bound;
      // The gap puts relaxed frames first, unless this one promises more than the gap.
      queue_.push({i, bound * evaluator_.expected_ratio(c) * (1 + wanted_.gap)});
    }
  }

  // Whether the schedule's limit on microbatches in flight has no effect.
  bool limits_nothing(const Candidate& c) {
    ParallelLayout free = c.strategy.parallel;
    if (free.pipeline.in_flight == 0 || options_.parallel.in_flight) return false;
    const auto limit = static_cast<double>(std::exchange(free.pipeline.in_flight, 0));
    const auto held = evaluator_.in_flight(free, c.microbatches);
    return held && held->microbatches <= limit;
  }

  void visit(const Waiting& next) {
    if (states_[next.frame].bound >= incumbent_ * (1 - wanted_.gap)) return;
    if (next.relaxed) {
      look(next);
    } else {
      relax(next.frame);
    }
  }

  // The expectation of a mesh may be too high. Every mesh that bounds do not rule out is visited a
  // few times, so that none gives a better answer if the question fixes it.
  void visit_unseen(double share) {
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

  FrameChoice choice_of(size_t frame) {
    const DemandOf rows = ranking_.needs_time() ? DemandOf::all : DemandOf::bytes;
    return FrameChoice(evaluator_, frames_[frame], options_, rows);
  }

  void relax(size_t frame) {
    FrameState& state = states_[frame];
    const FrameChoice choice = choice_of(frame);
    const Mixture least = choice.bound(wanted_.goal, most_seconds(frame));
    if (least.overflow > 0 && least.optimal) {
      state.bound = kInfinity;
      return;
    }
    if (least.optimal) state.bound = std::max(least.objective, state.bound);
    if (state.bound >= incumbent_ * (1 - wanted_.gap)) return;
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

  static Candidate with_depths(Candidate c, int64_t prefetch, int64_t window) {
    c.strategy.prefetch_depth = prefetch;
    c.strategy.offload_window = window;
    return c;
  }

  // The first and the second rounding, and the first with other prefetch depths and offload
  // windows. For memory goals nothing is copied ahead.
  static std::vector<Candidate> looks_of(const std::vector<Rounded>& rounded, Goal goal) {
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

  // Rounds the frame, with less room each time, until a candidate fits.
  void look(const Waiting& waiting) {
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
        if (allowed(live) && weighed(live) < incumbent_) too_large_.push_back({{c, live}, waiting});
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
  void look_bare(const Waiting& waiting, const FrameChoice& choice) {
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

  bool known(const Candidate& c) const {
    return std::any_of(seen_.begin(), seen_.end(),
                       [&](const Seen& s) { return s.scored.candidate == c; });
  }
  void add(const Candidate& c, const Score& score, const Waiting& from) {
    seen_.push_back({{c, score, false}, from});
    // Live bytes are less than arenas, so candidates that are not laid out rule nothing out.
    if (wanted_.goal != Goal::fastest) return;
    incumbent_ = std::min(incumbent_, weighed(score) * (score.sampled ? kSampled : 1));
  }
  void miss(const Candidate& c, const Score& score, const Waiting& from) {
    if (score.overflow == 0) {
      slow_.push_back({{c, score}, from});
      return;
    }
    if (!found_.nearest || score.overflow < found_.nearest->score.overflow) {
      found_.nearest = Scored{c, score, false};
    }
  }

  // Packing affects memory more than differences in live bytes, and depends on the kind. Lays out
  // the best candidate of every kind that may be the best of all, smallest programs first.
  void verify_each_kind() {
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
  double likely(const Seen& s) const {
    const double measure = weighed(s.scored.score);
    if (s.scored.exact) return measure;
    const auto known = slower_.find(kind_of(s.scored.candidate));
    return known == slower_.end() ? measure : measure * known->second;
  }
  // Ops reserved for refinement.
  int64_t kept_ops() const {
    return wanted_.first || effort_.refinements == 0 ? 0 : effort_.exact_ops / 4;
  }
  // Lays out the best by sampled simulation until the best of all is exact. Candidates that do not
  // fit are rounded again with less room; if none is left, queued frames are visited.
  void verify(int& looks) {
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
        if (spent || queue_.empty() || is_spent(kLastEffort)) return;
        --looks;
        visit(queue_.pop());
        continue;
      }
      if (best->scored.exact) {
        found_.best = best->scored;
        return;
      }
      const Candidate candidate = best->scored.candidate;
      const Waiting from = best->from;
      if (ops_of_all_positions(evaluator_.request(candidate)) > ops_) {
        best->dropped = true;
        continue;
      }
      // Packing of others of its layout may show that it does not fit.
      if (const Score likely = margin_.packed(candidate, best->scored.score); likely.overflow > 0) {
        best->dropped = true;
        look_again(from, likely.bytes);
        continue;
      }
      const Score score = exact(candidate, best->scored.score);
      best->scored = {candidate, score, true};
      // Arenas exceed live bytes, so for memory goals a candidate not yet laid out always seems
      // better.
      if (!allowed(score) || wanted_.goal != Goal::fastest) --looks;
      if (allowed(score) && wanted_.first) {
        found_.best = best->scored;
        return;
      }
      if (allowed(score)) continue;
      miss(candidate, score, from);
      if (score.overflow == 0) continue;
      if (wanted_.goal == Goal::fastest && repairs_-- > 0)
        repair(candidate, from, work_of_repair());
      look_again(from, score.bytes);
    }
  }
  // Repairs candidates that would lead if they fitted when packed.
  void repair_leaders() {
    std::stable_sort(too_large_.begin(), too_large_.end(), [&](const Seen& a, const Seen& b) {
      return weighed(a.scored.score) < weighed(b.scored.score);
    });
    std::set<size_t> frames;
    for (const auto& [scored, from, dropped] : too_large_) {
      if (weighed(scored.score) >= incumbent_ || repairs_ == 0) return;
      if (!frames.insert(from.frame).second) continue;
      --repairs_;
      repair(scored.candidate, from, work_of_repair());
    }
  }
  // If nothing fits: repairs, of each kind, the candidate that is short by least.
  void repair_nearest() {
    std::stable_sort(misses_.begin(), misses_.end(), [](const Seen& a, const Seen& b) {
      return a.scored.score.overflow < b.scored.score.overflow;
    });
    const int64_t last_work = evaluator_.work() + effort_.work / 2;
    std::set<Kind> kinds;
    for (const auto& [scored, from, dropped] : misses_) {
      if (evaluator_.work() > last_work) return;
      if (kinds.size() == effort_.repaired || (wanted_.first && !seen_.empty())) return;
      if (kinds.insert(kind_of(scored.candidate)).second) {
        repair(scored.candidate, from, last_work - evaluator_.work());
      }
    }
  }
  // If nothing that fits is within the limits on time: refines, of each kind, the candidate that
  // exceeds them by least.
  void refine_slow() {
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
  void repair(const Candidate& c, const Waiting& from, int64_t work) {
    const Repaired found = repaired(evaluator_, ranking_, margin_, options_, c, incumbent_,
                                    {.work = work, .exact_ops = ops_});
    ops_ -= found.exact_ops;
    for (const Scored& s : found.missed) miss(s.candidate, s.score, from);
    if (!found.fits) return;
    seen_.push_back({*found.fits, from});
    incumbent_ = std::min(incumbent_, weighed(found.fits->score));
  }
  // Rounds the frame again with less room, after a candidate that needs `bytes`.
  void look_again(const Waiting& from, const TierBytes& bytes) {
    Room& room = states_[from.frame].room[from.nvme ? 1 : 0];
    room = tightened(room, bytes, evaluator_.limits());
    look(from);
  }

  // The least seen candidate by `order` among those that `takes` accepts; null if there is none.
  template <class Order, class Takes>
  Seen* least_of(const Order& order, const Takes& takes) {
    Seen* least = nullptr;
    for (Seen& s : seen_) {
      if (!allowed(s.scored.score) || s.dropped || !takes(s)) continue;
      if (least == nullptr || order(s) < order(*least)) least = &s;
    }
    return least;
  }
  // The same, exactly evaluated.
  template <class Order, class Takes>
  Seen* least_seen(const Order& order, const Takes& takes) {
    for (int looks = 0; looks < kStartLooks && ops_ > kept_ops(); ++looks) {
      Seen* least = least_of(order, takes);
      if (least == nullptr || least->scored.exact) return least;
      const Waiting from = least->from;
      const Score score = exact(least->scored.candidate, least->scored.score);
      least->scored = {least->scored.candidate, score, true};
      if (score.overflow > 0) look_again(from, score.bytes);
    }
    return nullptr;
  }

  // The handicap of a start that is similar to another.
  static double likeness_of(const Candidate& a, const Candidate& b) {
    if (layout_of(a) != layout_of(b)) return 1;
    const double chunks =
        static_cast<double>(a.strategy.chunk_tokens) / static_cast<double>(b.strategy.chunk_tokens);
    const bool groups = (a.strategy.head_groups > 1) == (b.strategy.head_groups > 1);
    return groups && chunks < 2.1 && chunks > 0.48 ? kAlike : kSameLayout;
  }

  // The number of starts that can be refined for some rounds each.
  size_t affordable_starts() const {
    const double of_estimate =
        static_cast<double>(evaluator_.work() - first_work_) / static_cast<double>(estimated_ + 1);
    const double affordable =
        static_cast<double>(effort_.refinement_work) / (2 * kStartEstimates * of_estimate + 1);
    return std::min(static_cast<size_t>(effort_.starts),
                    std::max(kFinalists, static_cast<size_t>(affordable)));
  }
  struct Start {
    Scored scored;
    bool settled = false;  // no further refinement helps
    RefineMemory memory = {};
  };
  // The starts of refinement: the best of all, of other kinds and layouts, and of the frame with
  // the best expectation. The leader is not always the one that can be improved most.
  std::deque<Start> starts() {
    std::deque<Start> starts = {{*found_.best}};
    started_ = {kind_of(frames_[from_of(found_.best->candidate).frame])};
    const size_t most = affordable_starts();
    if (most > kFinalists) {
      const auto expected = [&](const Seen& s) { return std::pair(s.from.expected, likely(s)); };
      const auto new_kind = [&](const Seen& s) {
        return !started_.contains(kind_of(frames_[s.from.frame]));
      };
      if (const Seen* s = least_seen(expected, new_kind)) {
        starts.push_back({s->scored});
        started_.insert(kind_of(frames_[s->from.frame]));
      }
      // The relaxation compares plans with and without a pipeline least well.
      const bool piped = found_.best->candidate.strategy.parallel.has_pipeline();
      const auto measure = [&](const Seen& s) { return likely(s); };
      const auto other = [&](const Seen& s) {
        return s.scored.candidate.strategy.parallel.has_pipeline() != piped && new_kind(s) &&
               likely(s) < kNear * weighed(found_.best->score);
      };
      if (const Seen* s = least_seen(measure, other)) {
        starts.push_back({s->scored});
        started_.insert(kind_of(frames_[s->from.frame]));
      }
    }
    while (starts.size() < most && add_start(starts)) {
    }
    return starts;
  }
  // Adds the best candidate of a new kind that is near the best of all, with handicaps for similar
  // ones. Returns false if there is none.
  bool add_start(std::deque<Start>& starts) {
    const double near = kNear * weighed(found_.best->score);
    const auto order = [&](const Seen& s) {
      double likeness = 1;
      for (const Start& start : starts) {
        likeness = std::max(likeness, likeness_of(start.scored.candidate, s.scored.candidate));
      }
      return likeness * likely(s);
    };
    const auto is_near = [&](const Seen& s) {
      return likely(s) < near && !started_.contains(kind_of(frames_[s.from.frame]));
    };
    // If nothing of a kind fits when laid out, the next kind is tried.
    while (const Seen* s = least_of(order, is_near)) {
      const Kind kind = kind_of(frames_[s->from.frame]);
      started_.insert(kind);
      const auto measure = [&](const Seen& seen) { return likely(seen); };
      s = least_seen(measure,
                     [&](const Seen& seen) { return kind_of(frames_[seen.from.frame]) == kind; });
      if (s == nullptr) continue;
      starts.push_back({s->scored});
      return true;
    }
    return false;
  }

  // Half of the effort goes to local optima near as many starts as it lasts for, the other half to
  // the best of these. If those do not improve any more, further starts follow.
  void refine() {
    const double share = share_of_effort();
    const int64_t begin = evaluator_.work();
    const int64_t last_work = begin + part_of(effort_.refinement_work, share);
    std::deque<Start> all = starts();
    RefineEffort first = refine_effort(share, 2 * all.size());
    first.kicks = false;
    const RefineEffort second = refine_effort(share, 2 * std::min(all.size(), kFinalists));
    for (Start& start : all) refine(start, first);
    const int64_t half = begin + (last_work - begin) / 2;
    while (evaluator_.work() < half && all.size() < kMostStarts && add_start(all)) {
      refine(all.back(), first);
    }
    while (evaluator_.work() < last_work) {
      Start* next = finalist(all);
      if (next == nullptr) {
        if (!add_start(all)) break;
        refine(all.back(), first);
        continue;
      }
      refine(*next, second);
    }
    for (const Start& s : all) {
      if (weighed(s.scored.score) < weighed(found_.best->score)) found_.best = s.scored;
    }
  }
  // The best unsettled start among the finalists; null if there is none.
  Start* finalist(std::deque<Start>& all) const {
    std::stable_sort(all.begin(), all.end(), [&](const Start& a, const Start& b) {
      return weighed(a.scored.score) < weighed(b.scored.score);
    });
    const auto end = all.begin() + static_cast<ptrdiff_t>(std::min(kFinalists, all.size()));
    const auto it = std::find_if(all.begin(), end, [](const Start& s) { return !s.settled; });
    return it == end ? nullptr : &*it;
  }
  static int64_t part_of(int64_t effort, double share) {
    return static_cast<int64_t>(share * static_cast<double>(effort));
  }
  RefineEffort refine_effort(double share, size_t count) const {
    const auto parts = static_cast<int64_t>(count);
    return {part_of(effort_.refinements / parts, share),
            part_of(effort_.refinement_work / parts, share),
            std::max(2, effort_.exact / static_cast<int>(parts)), ops_ / parts};
  }
  void refine(Start& start, const RefineEffort& effort) {
    std::vector<Scored> others;
    const Waiting from = from_of(start.scored.candidate);
    const Refined refined = longspan::refined(evaluator_, ranking_, frames_, options_, start.scored,
                                              effort, start.memory, others);
    const bool same = refined.best.candidate == start.scored.candidate;
    start.scored = refined.best;
    start.settled = refined.settled || (same && effort.kicks);
    for (Scored& other : others) seen_.push_back({std::move(other), from});
  }

  Waiting from_of(const Candidate& c) const {
    for (const Seen& s : seen_) {
      if (s.scored.candidate == c) return s.from;
    }
    return {};
  }

  Found finish() {
    if (found_.best && !wanted_.first) {
      found_.best->score = evaluator_.exact(found_.best->candidate);
    }
    found_.bound =
        found_.best ? measure_of(wanted_.goal, found_.best->score, evaluator_.limits()) : kInfinity;
    found_.bound = std::min(found_.bound, least_bound());
    for (const Seen& s : seen_) {
      if (!allowed(s.scored.score)) continue;
      found_.fitting.push_back(s.scored);
      found_.fitting.back().exact &= s.scored.score.seconds > 0;
    }
    return std::move(found_);
  }

  Evaluator& evaluator_;
  const std::vector<Candidate>& frames_;
  const SpaceOptions& options_;
  const Wanted& wanted_;
  Ranking ranking_;
  const Effort& effort_;
  const Progress& progress_;
  // Ops left for layouts: during exploration, and to repair, verify and refine.
  int64_t early_ops_, ops_;
  int64_t first_work_;  // the evaluator's work at the begin
  int64_t estimated_ = 0;
  int repairs_ = kRepairs;
  std::vector<FrameState> states_;
  FrameQueue queue_;
  MemoryMargin& margin_;
  std::map<Kind, double> slower_;  // least ratio of full to sampled simulation
  std::vector<Seen> seen_, too_large_, misses_, slow_;
  double incumbent_ = kInfinity;  // weighed score of the best that fits by sampled simulation
  std::set<Kind> started_;        // kinds of starts
  Found found_;
};

}  // namespace

Found best_first(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const Progress& progress) {
  return BestFirst(evaluator, margin, frames, options, wanted, effort, progress).run();
}

}  // namespace longspan
