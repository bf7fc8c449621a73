// Best-first exploration of frames. Internal to planner/search.
//
// Frames are queued by expected value. The best is relaxed (frame_choice.h), which gives a lower
// bound for all of its candidates. When it comes up again, the candidates near its best mixture are
// evaluated by sampled simulation, with less room as long as they do not fit. The best of those are
// laid out and simulated exactly; one that does not fit is repaired (repair.h).
//
// Expectations decide the order, bounds decide when to stop: when none beats the best by more than
// the requested gap, or when the effort is spent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "planner/search/effort.h"
#include "planner/search/frame_choice.h"
#include "planner/search/frame_queue.h"
#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

class Exploration {
 public:
  struct Seen {
    Scored scored;
    Waiting from;
    bool dropped = false;  ///< fits by live bytes, but probably not when packed
  };

  /// All arguments must outlive this object.
  Exploration(Evaluator& evaluator, MemoryMargin& margin, const Ranking& ranking,
              std::span<const Candidate> frames, const SpaceOptions& options, const Effort& effort,
              const Progress& progress);

  /// Evaluates a candidate before all others; with Wanted::first, repairs it.
  void begin_with(const Candidate& c);
  /// Explores. `ceiling`: the weighed score of the best plan of other explorations, or infinity.
  /// Call once.
  void run(double ceiling);

  /// The best, exact; none if nothing was found to fit.
  const std::optional<Scored>& best() const { return best_; }
  /// The candidate with the least overflow, if some did not fit.
  const std::optional<Scored>& nearest() const { return nearest_; }
  const std::vector<Seen>& seen() const { return seen_; }
  /// A lower bound of all frames.
  double least_bound();
  /// The expected exact measure: the sampled one times the known ratio of full to sampled
  /// simulation of its kind.
  double likely(const Seen& s) const;
  /// The kind of the frame that a candidate is from.
  Kind kind_from(const Seen& s) const { return kind_of(frames_[s.from.frame]); }

  /// The least seen candidate by `order` among those that `takes` accepts; null if there is none.
  template <class Order, class Takes>
  const Seen* least_of(const Order& order, const Takes& takes) const {
    const Seen* least = nullptr;
    for (const Seen& s : seen_) {
      if (!allowed(s.scored.score) || s.dropped || !takes(s)) continue;
      if (least == nullptr || order(s) < order(*least)) least = &s;
    }
    return least;
  }
  /// The same, laid out; null if none of the first few fits. The pointer is valid until the next
  /// call of a function that is not const.
  template <class Order, class Takes>
  const Seen* least_exact(const Order& order, const Takes& takes) {
    for (int looks = 0; looks < kStartLooks && ops_ > kept_ops(); ++looks) {
      const Seen* least = least_of(order, takes);
      if (least == nullptr || least->scored.exact) return least;
      lay_out_start(static_cast<size_t>(least - seen_.data()), looks == 0);
    }
    return nullptr;
  }
  /// Adds a candidate found elsewhere.
  void add_found(Scored scored, const Waiting& from) { seen_.push_back({std::move(scored), from}); }

  int64_t estimated() const { return estimated_; }  ///< sampled simulations
  int64_t work() const { return work_; }            ///< of run()
  int64_t ops_left() const { return ops_; }         ///< of Effort::exact_ops

 private:
  static constexpr int kStartLooks = 5;

  struct FrameState {
    double bound;  // in the goal's measure; infinite: nothing fits
    Room room[2];  // without files and with files
    int attempts[2] = {0, 0};
  };

  void find_best();
  bool explore();
  void enqueue();
  bool limits_nothing(const Candidate& c);
  bool is_spent(double share) const;
  double share_to_spend();

  double weighed(const Score& score) const { return ranking_.weighed(score); }
  bool allowed(const Score& score) const { return ranking_.admits(score); }
  double most_seconds(size_t frame) const { return wanted_.most_seconds(frames_[frame]); }
  bool known(const Candidate& c) const;
  bool is_beaten(double bound) const;
  bool is_slower_than_seemed() const;
  Score estimate(const Candidate& c);
  Score packed(const Candidate& c, const Score& live);
  Score exact(const Candidate& c, const Score& estimated);

  void visit(const Waiting& next);
  void visit_unseen(double share);
  FrameChoice choice_of(size_t frame);
  void relax(size_t frame);
  void look(const Waiting& waiting);
  void look_bare(const Waiting& waiting, const FrameChoice& choice);
  void look_again(const Waiting& from, const TierBytes& bytes);
  void add(const Candidate& c, const Score& score, const Waiting& from);
  void miss(const Candidate& c, const Score& score, const Waiting& from);

  void verify_each_kind();
  void verify(int& looks);
  bool drop(Seen& s);
  void lay_out_start(size_t index, bool may_repair);
  void repair_leaders();
  void repair_nearest();
  void refine_slow();
  void repair(const Candidate& c, const Waiting& from, int64_t work, double better_than);
  int64_t work_of_repair() const;
  int64_t kept_ops() const;

  Evaluator& evaluator_;
  MemoryMargin& margin_;
  const Ranking& ranking_;
  const Wanted& wanted_;
  std::span<const Candidate> frames_;
  const SpaceOptions& options_;
  const Effort& effort_;
  const Progress& progress_;
  // Ops left for layouts: during exploration, and to repair, verify and refine.
  int64_t early_ops_, ops_;
  int64_t first_work_ = 0, work_ = 0;  // the evaluator's at the begin of run(), and since then
  int64_t estimated_ = 0;
  int repairs_;
  std::vector<FrameState> states_;
  // A heap of bounds and their frames, least first. Bounds only rise, so one that is no longer its
  // frame's is replaced when it comes up.
  std::vector<std::pair<double, size_t>> bounds_;
  FrameQueue queue_;
  std::map<Kind, double> slower_;  // least ratio of full to sampled simulation
  std::vector<Seen> seen_, too_large_, misses_, slow_;
  double incumbent_;  // weighed score of the best that fits by sampled simulation
  double ceiling_;    // the same of other explorations
  std::optional<Scored> best_, nearest_;
};

}  // namespace longspan
