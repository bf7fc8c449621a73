#include "planner/search/best_first.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>

#include "planner/search/refine.h"

namespace longspan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kNvme = static_cast<int>(Tier::nvme);

// Bounds see less memory than programs need, and packing loses some: the first rounding of a frame
// leaves room for that. Where candidates turn out too large it leaves more.
constexpr double kFirstRoom = 0.96;
constexpr double kNearly = 0.5;  // beyond the limits: what may fit with nothing copied ahead
// What is this much slower than the best is looked at in one rounding only.
constexpr double kClose = 1.03;
// The first frame of a kind that is not this much slower tries so many placements of states.
constexpr double kSpread = 1.25;
constexpr size_t kStates = 6;
// Every look at a kind of frame puts its like back by this part, so that other kinds get theirs.
constexpr double kTired = 0.004;
// What a plan has to gain to be worth a file, or the last of a memory. Less than the prediction's
// own error: a person would not take either for so little.
constexpr double kWorthNvme = 0.004;
constexpr double kWorthRisk = 0.002;

// A frame that waits.
struct Waiting {
  double key = 0;  // what is expected of it, in the goal's measure
  size_t frame = 0;
  bool relaxed = false, nvme = false;
};
struct Later {
  bool operator()(const Waiting& a, const Waiting& b) const {
    return a.key != b.key ? a.key > b.key : a.frame > b.frame;
  }
};

// What is known of a frame.
struct FrameState {
  double bound = kInfinity;                     // in the goal's measure; infinite: none fits
  double expected[2] = {kInfinity, kInfinity};  // without and with files
  Room room[2] = {{kFirstRoom, 1, 0}, {kFirstRoom, 1, 1}};
  int attempts[2] = {0, 0};
};

// Frames that overlap alike: what one has taken, in what was expected, says what the others will.
using Kind = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, std::string_view, int64_t,
                        int64_t, int64_t, int64_t>;
struct Learned {
  double ratio = kInfinity;
  int64_t looks = 0;
};

class BestFirst {
 public:
  BestFirst(Evaluator& evaluator, const std::vector<Candidate>& frames, const SpaceOptions& options,
            const Wanted& wanted, const Effort& effort)
      : evaluator_(evaluator),
        frames_(frames),
        options_(options),
        wanted_(wanted),
        effort_(effort),
        states_(frames.size()) {}

  Found run(const std::function<void(int64_t, int64_t)>& progress) {
    enqueue();
    const int64_t begin = evaluator_.simulated();
    for (int64_t steps = 0; !queue_.empty(); ++steps) {
      const int64_t done = evaluator_.simulated() - begin;
      // Where nothing fits yet, it takes longer to say that nothing does.
      if (done >= (seen_.empty() ? 4 : 1) * effort_.evaluations) break;
      if (progress && steps % 64 == 0) progress(done, effort_.evaluations);
      if (wanted_.first && !seen_.empty()) {
        int looks = effort_.exact;
        verify(looks);
        if (found_.best) break;
      }
      visit();
    }
    int looks = effort_.exact;
    verify(looks);
    if (found_.best && !wanted_.first) {
      refine();
      verify(looks);
    }
    return finish();
  }

 private:
  // With what it has to gain for its files and its risk.
  double weighed(const Score& score) const {
    double seconds = measure_of(wanted_.goal, score, evaluator_.limits());
    if (wanted_.goal != Goal::fastest) return seconds;
    if (score.bytes[kNvme] > 0) seconds *= 1 + kWorthNvme;
    if (evaluator_.at_risk(score.bytes)) seconds *= 1 + kWorthRisk;
    return seconds;
  }
  bool allowed(const Score& s) const {
    return s.overflow == 0 && s.step_seconds <= wanted_.most_seconds &&
           s.seconds <= wanted_.most_seconds_per_sequence;
  }
  double most_seconds(size_t frame) const {
    const auto sequences = static_cast<double>(sequences_of_step(frames_[frame]));
    return std::min(wanted_.most_seconds, wanted_.most_seconds_per_sequence * sequences);
  }
  // Memory alone is known sooner than time.
  Score evaluate(const Candidate& c) {
    const bool timed = wanted_.most_seconds < 1e300 || wanted_.most_seconds_per_sequence < 1e300;
    if (wanted_.goal == Goal::fastest || timed) return evaluator_.fast(c);
    Score score;
    score.bytes = evaluator_.live(c);
    score.overflow = evaluator_.overflow(score.bytes);
    return score;
  }

  // All frames, by what their compute takes with everything on the device: no value of any group
  // takes less.
  void enqueue() {
    for (size_t i = 0; i < frames_.size(); ++i) {
      const Candidate& c = frames_[i];
      if (!evaluator_.possible(c)) continue;
      double bound = 0;
      if (wanted_.goal == Goal::fastest) {
        const Demand demand = evaluator_.demand(c);
        const int compute = static_cast<int>(Stream::compute);
        bound = (demand.forward[compute] + demand.backward[compute]) /
                static_cast<double>(sequences_of_step(c));
      }
      FrameState& state = states_[i];
      state.bound = bound;
      state.expected[0] = state.expected[1] = bound * evaluator_.expected_ratio(c);
      queue_.push({state.expected[0], i, false, false});
    }
  }

  Kind kind_of(size_t frame) const {
    const Candidate& c = frames_[frame];
    const Parallel& p = c.strategy.parallel;
    return {p.data,
            p.tensor,
            p.ring,
            p.ulysses,
            p.pipeline.stages,
            p.pipeline.schedule,
            p.pipeline.virtual_stages,
            p.pipeline.slices,
            c.sequence / c.strategy.chunk_tokens,
            c.strategy.head_groups};
  }
  double key_of(const Waiting& waiting) const {
    const double expected = states_[waiting.frame].expected[waiting.nvme ? 1 : 0];
    if (wanted_.goal != Goal::fastest) return expected;
    const auto known = learned_.find(kind_of(waiting.frame));
    if (known == learned_.end()) return expected;
    return expected * known->second.ratio * (1 + kTired * static_cast<double>(known->second.looks));
  }
  void learn(const Waiting& waiting, double measured) {
    const double expected = states_[waiting.frame].expected[waiting.nvme ? 1 : 0];
    if (wanted_.goal != Goal::fastest || expected <= 0) return;
    Learned& learned = learned_[kind_of(waiting.frame)];
    learned.ratio = std::min(learned.ratio, measured / expected);
    ++learned.looks;
  }

  void visit() {
    Waiting next = queue_.top();
    queue_.pop();
    if (const double key = key_of(next); key > next.key) {
      next.key = key;
      queue_.push(next);
      return;
    }
    if (states_[next.frame].bound >= incumbent_ * (1 - wanted_.gap)) return;
    if (next.relaxed) {
      look(next);
    } else {
      relax(next.frame);
    }
  }

  FrameChoice choice_of(size_t frame) { return FrameChoice(evaluator_, frames_[frame], options_); }

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
    for (const bool nvme : {false, true}) {
      if (nvme && evaluator_.limits()[kNvme] == 0) continue;
      Room room = {1, 1, nvme ? 1.0 : 0.0};
      const Mixture likely = choice.expect(wanted_.goal, room, most_seconds(frame));
      if (likely.overflow > 0) continue;
      double& expected = state.expected[nvme ? 1 : 0];
      expected = std::max(state.bound, likely.objective * ratio);
      // Files are tried where they promise to be worth it.
      if (nvme && expected > state.expected[0] * (1 - kWorthNvme)) continue;
      Waiting waiting{0, frame, true, nvme};
      waiting.key = key_of(waiting);
      queue_.push(waiting);
    }
  }

  static Candidate with_depths(Candidate c, int64_t prefetch, int64_t window) {
    c.strategy.prefetch_depth = prefetch;
    c.strategy.offload_window = window;
    return c;
  }

  // The first rounding, the second, and the first with copies nearer to and further from their use.
  // Where memory is what counts, nothing is copied ahead.
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
    return looks;
  }

  // Rounds the frame, with ever less room until a candidate fits.
  void look(const Waiting& waiting) {
    FrameState& state = states_[waiting.frame];
    const size_t way = waiting.nvme ? 1 : 0;
    Room& room = state.room[way];
    const FrameChoice choice = choice_of(waiting.frame);
    for (; state.attempts[way] < effort_.attempts; ++state.attempts[way]) {
      bool any = false;
      double least_missing = kInfinity;
      Room next = room;
      std::vector<Candidate> looks =
          looks_of(choice.round(wanted_.goal, room, most_seconds(waiting.frame)), wanted_.goal);
      // Where states live is what expectations know least about: the first of a kind tries several.
      bool spread = wanted_.goal == Goal::fastest && !learned_.contains(kind_of(waiting.frame));
      size_t spread_end = 0;
      for (size_t i = 0; i < looks.size(); ++i) {
        const Candidate c = looks[i];
        if (known(c)) continue;
        const Score score = evaluate(c);
        if (allowed(score)) {
          any = true;
          const double own = weighed(score);
          const bool close = own < incumbent_ * kClose;
          learn(waiting, own);
          add(c, score, waiting);
          if (std::exchange(spread, false) && own < incumbent_ * kSpread) {
            for (const Rounded& r : choice.round_each(Group::states, wanted_.goal, room,
                                                      most_seconds(waiting.frame), kStates)) {
              looks.push_back(r.candidate);
            }
            spread_end = looks.size();
          }
          if (!close && i + 1 >= spread_end) break;
          continue;
        }
        if (score.overflow > 0 && score.overflow < least_missing) {
          least_missing = score.overflow;
          next = tightened(room, score.bytes, evaluator_.limits());
        }
        miss(c, score);
        if (any || i + 1 < spread_end) continue;
        // What is copied ahead may be what is too much.
        const Candidate bare = with_depths(c, 0, 0);
        if (score.overflow < kNearly && !(bare == c) && !known(bare)) {
          const Score own = evaluate(bare);
          if (allowed(own)) {
            learn(waiting, weighed(own));
            add(bare, own, waiting);
            any = true;
          }
        }
        break;
      }
      if (any || least_missing == kInfinity) return;
      room = next;
    }
  }

  bool known(const Candidate& c) const {
    return std::any_of(seen_.begin(), seen_.end(),
                       [&](const Seen& s) { return s.scored.candidate == c; });
  }
  void add(const Candidate& c, const Score& score, const Waiting& from) {
    seen_.push_back({{c, score, false}, from});
    incumbent_ = std::min(incumbent_, weighed(score));
  }
  void miss(const Candidate& c, const Score& score) {
    if (score.overflow == 0) return;
    if (!found_.nearest || score.overflow < found_.nearest->score.overflow) {
      found_.nearest = Scored{c, score, false};
    }
  }

  // Lays out the best by the fast path until the best of all is exact. What turns out not to fit is
  // rounded again with less room; where nothing is left, the frames that wait are looked at.
  void verify(int& looks) {
    while (true) {
      Seen* best = nullptr;
      for (Seen& s : seen_) {
        if (!allowed(s.scored.score)) continue;
        if (looks <= 0 && !s.scored.exact) continue;
        if (best == nullptr || weighed(s.scored.score) < weighed(best->scored.score)) best = &s;
      }
      if (best == nullptr) {
        if (looks <= 0 || queue_.empty()) return;
        --looks;
        visit();
        continue;
      }
      if (best->scored.exact) {
        found_.best = best->scored;
        return;
      }
      const Candidate candidate = best->scored.candidate;
      const Waiting from = best->from;
      const Score score = evaluator_.exact(candidate);
      best->scored = {candidate, score, true};
      // Arenas exceed live bytes: of memory something not yet laid out always promises less.
      if (!allowed(score) || wanted_.goal != Goal::fastest) --looks;
      if (allowed(score)) continue;
      miss(candidate, score);
      if (score.overflow == 0) continue;
      FrameState& state = states_[from.frame];
      Room& room = state.room[from.nvme ? 1 : 0];
      room = tightened(room, score.bytes, evaluator_.limits());
      look(from);
    }
  }

  void refine() {
    const bool nvme = evaluator_.limits()[kNvme] > 0 && found_.best->score.bytes[kNvme] > 0;
    int64_t left = effort_.refinements;
    while (left > 0) {
      const Scored from = *found_.best;
      const Waiting frame = from_of(from.candidate);
      double best = weighed(from.score);
      bool improved = false;
      for (const Candidate& c : refinements_of(from.candidate, evaluator_, options_, nvme)) {
        if (left <= 0) break;
        if (known(c) || !evaluator_.possible(c)) continue;
        Score bound;
        const Demand demand = evaluator_.demand(c);
        bound.bytes = demand.peak_bytes();
        bound.seconds = demand.step_seconds() / static_cast<double>(sequences_of_step(c));
        if (evaluator_.overflow(bound.bytes) > 0 || weighed(bound) >= best) continue;
        --left;
        const Score score = evaluate(c);
        if (!allowed(score)) continue;
        const double own = weighed(score);
        add(c, score, frame);
        if (own < best * (1 - 1e-4)) improved = true;
        best = std::min(best, own);
      }
      if (!improved) return;
      int looks = 6;
      verify(looks);
      if (found_.best->candidate == from.candidate) return;
    }
  }

  Waiting from_of(const Candidate& c) const {
    for (const Seen& s : seen_) {
      if (s.scored.candidate == c) return s.from;
    }
    return {};
  }

  Found finish() {
    found_.bound =
        found_.best ? measure_of(wanted_.goal, found_.best->score, evaluator_.limits()) : kInfinity;
    for (const FrameState& state : states_) found_.bound = std::min(found_.bound, state.bound);
    for (const Seen& s : seen_) {
      if (allowed(s.scored.score)) found_.fitting.push_back(s.scored);
    }
    return std::move(found_);
  }

  struct Seen {
    Scored scored;
    Waiting from;
  };

  Evaluator& evaluator_;
  const std::vector<Candidate>& frames_;
  const SpaceOptions& options_;
  const Wanted& wanted_;
  const Effort& effort_;
  std::vector<FrameState> states_;
  std::priority_queue<Waiting, std::vector<Waiting>, Later> queue_;
  std::map<Kind, Learned> learned_;
  std::vector<Seen> seen_;
  double incumbent_ = kInfinity;  // the best that fits by the fast path, weighed
  Found found_;
};

}  // namespace

double measure_of(Goal goal, const Score& score, const TierBytes& limits) {
  if (goal == Goal::fastest) return score.seconds;
  double most = 0;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (goal == Goal::least_device && tier != 0) continue;
    if (goal == Goal::least_host && tier != 1) continue;
    most = std::max(most, static_cast<double>(score.bytes[tier]) /
                              std::max(1.0, static_cast<double>(limits[tier])));
  }
  return most;
}

Found best_first(Evaluator& evaluator, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const std::function<void(int64_t, int64_t)>& progress) {
  return BestFirst(evaluator, frames, options, wanted, effort).run(progress);
}

}  // namespace longspan
