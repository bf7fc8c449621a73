#include "planner/search/best_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <string_view>
#include <tuple>

#include "planner/search/refine.h"

namespace longspan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTired = 0.004;   // by which every look at a kind of frame puts its like back
constexpr double kClose = 1.03;    // times the best: what is looked at in more than one rounding
constexpr double kSpare = 0.0005;  // of a tier, left beyond what was missing

using Room = std::array<double, kTierCount>;
// What bounds do not see of memory, and what packing loses: the first rounding leaves room for it.
constexpr Room kFirstRoom = {0.96, 1, 1};

// A frame that waits, or is being looked at.
struct Waiting {
  double key = 0;  // what is expected of it, in the goal's measure
  size_t frame = 0;
};
struct Later {
  bool operator()(const Waiting& a, const Waiting& b) const {
    return a.key != b.key ? a.key > b.key : a.frame > b.frame;
  }
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
        relaxed_(frames.size(), false),
        rooms_(frames.size(), kFirstRoom),
        bounds_(frames.size(), kInfinity),
        expected_(frames.size(), 0),
        roundings_(frames.size(), 0) {}

  Found run(const std::function<void(int64_t, int64_t)>& progress) {
    enqueue();
    const int64_t begin = evaluator_.simulated();
    int64_t steps = 0;
    while (!queue_.empty()) {
      Waiting next = queue_.top();
      if (const double key = expected_[next.frame] * ratio(next.frame); key > next.key) {
        queue_.pop();
        next.key = key;
        queue_.push(next);
        continue;
      }
      const int64_t done = evaluator_.simulated() - begin;
      if (done >= effort_.evaluations && fits_) break;
      if (done >= 4 * effort_.evaluations) break;
      queue_.pop();
      if (bounds_[next.frame] >= incumbent() * (1 - wanted_.gap)) continue;
      if (progress && ++steps % 64 == 0) progress(done, effort_.evaluations);
      visit(next);
    }
    settle();
    return std::move(found_);
  }

 private:
  double measure(const Score& score) const {
    return measure_of(wanted_.goal, score, evaluator_.limits());
  }
  double incumbent() const { return incumbent_; }
  bool allowed(const Score& s) const {
    return s.overflow == 0 && s.step_seconds <= wanted_.most_seconds;
  }

  // Every frame by its bound with everything on the device: compute alone.
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
      bounds_[i] = bound;
      expected_[i] = bound * evaluator_.expected_ratio(c);
      queue_.push({expected_[i], i});
    }
  }
  // What a frame's like have taken, in bounds of theirs: an unknown kind is hoped to keep to it.
  double ratio(size_t frame) {
    if (wanted_.goal != Goal::fastest) return 1;
    const auto known = ratios_.find(kind_of(frame));
    if (known == ratios_.end()) return 1;
    return known->second.best * (1 + kTired * static_cast<double>(known->second.looks));
  }
  using Kind = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, std::string_view, int64_t,
                          int64_t, int64_t, int64_t>;
  Kind kind_of(size_t frame) const {
    const Candidate& c = frames_[frame];
    const Parallel& p = c.strategy.parallel;
    return {p.data, p.tensor, p.ring, p.ulysses, p.pipeline.stages, p.pipeline.schedule,
            p.pipeline.virtual_stages, p.pipeline.slices, c.sequence / c.strategy.chunk_tokens,
            c.strategy.head_groups};
  }
  void learn(size_t frame, double measured) {
    if (wanted_.goal != Goal::fastest || expected_[frame] <= 0) return;
    const double found = measured / expected_[frame];
    Ratio& ratio = ratios_[kind_of(frame)];
    ratio.best = std::min(ratio.best, found);
    ++ratio.looks;
  }

  FrameChoice choice_of(size_t frame) {
    return FrameChoice(evaluator_, frames_[frame], options_, wanted_.nvme);
  }

  void visit(const Waiting& next) {
    if (relaxed_[next.frame]) {
      look(next.frame);
    } else {
      relax(next);
    }
  }

  void relax(const Waiting& next) {
    relaxed_[next.frame] = true;
    const FrameChoice choice = choice_of(next.frame);
    const Mixture m = choice.bound(wanted_.goal, wanted_.most_seconds);
    if (m.overflow > 0) {
      bounds_[next.frame] = kInfinity;
      return;
    }
    if (m.optimal) bounds_[next.frame] = std::max(m.objective, bounds_[next.frame]);
    if (bounds_[next.frame] >= incumbent()) return;
    const Mixture likely =
        choice.expect(wanted_.goal, rooms_[next.frame], wanted_.most_seconds);
    expected_[next.frame] =
        std::max(bounds_[next.frame],
                 likely.objective * evaluator_.expected_ratio(frames_[next.frame]));
    queue_.push({expected_[next.frame] * ratio(next.frame), next.frame});
  }

  // Rounds the frame with ever less room until a candidate fits by the fast path.
  void look(size_t frame) {
    Room& room = rooms_[frame];
    const FrameChoice choice = choice_of(frame);
    for (; roundings_[frame] < effort_.attempts; ++roundings_[frame]) {
      bool any = false;
      Room next = room;
      double least_missing = kInfinity;
      for (const Rounded& r : depths_of(
               choice.round(wanted_.goal, room, wanted_.most_seconds))) {
        if (known(r.candidate)) continue;
        const Score score = evaluator_.fast(r.candidate);
        if (allowed(score)) {
          any = true;
          const bool close = measure(score) < incumbent() * kClose;
          learn(frame, measure(score));
          add(r.candidate, score, frame, false);
          if (!close) break;  // nothing near it is better by that much
          continue;
        }
        if (score.overflow > 0 && score.overflow < least_missing) {
          least_missing = score.overflow;
          next = tightened(room, score.bytes);
        }
        miss(r.candidate, score, frame);
        if (!any) break;
      }
      if (any || least_missing == kInfinity) return;
      room = next;
    }
  }

  // The first with copies further ahead, too.
  std::vector<Rounded> depths_of(std::vector<Rounded> rounded) const {
    if (rounded.size() > 2) rounded.resize(2);
    if (wanted_.goal != Goal::fastest || rounded.empty()) return rounded;
    const Rounded first = rounded.front();
    for (const auto& [prefetch, window] : {std::pair{1, 1}, std::pair{4, 3}}) {
      Rounded& other = rounded.emplace_back(first);
      other.candidate.strategy.prefetch_depth = prefetch;
      other.candidate.strategy.offload_window = window;
    }
    return rounded;
  }

  Room tightened(Room room, const TierBytes& bytes) const {
    for (int tier = 0; tier < kTierCount; ++tier) {
      const double share = static_cast<double>(bytes[tier]) /
                           std::max(1.0, static_cast<double>(evaluator_.limits()[tier]));
      if (share > 1) room[tier] -= share - 1 + kSpare;
    }
    return room;
  }

  bool known(const Candidate& c) const {
    return std::any_of(found_.seen.begin(), found_.seen.end(),
                       [&](const Scored& s) { return s.candidate == c; });
  }

  void add(const Candidate& c, const Score& score, size_t frame, bool exact) {
    frame_of_.push_back(frame);
    found_.seen.push_back({c, score, bounds_[frame], exact});
    fits_ = true;
    incumbent_ = std::min(incumbent_, measure(score));
  }

  void miss(const Candidate& c, const Score& score, size_t frame) {
    if (!found_.nearest || score.overflow < found_.nearest->score.overflow) {
      found_.nearest = Scored{c, score, bounds_[frame], false};
    }
  }

  // Lays out the best by the fast path until the best of all is exact; then refines it.
  void settle() {
    int looks = effort_.exact;
    verify(looks);
    if (found_.best) {
      refine();
      verify(looks);
    }
    if (getenv("LS_DEBUG")) debug();
    double least = incumbent_exact();
    while (!queue_.empty()) queue_.pop();
    for (size_t i = 0; i < frames_.size(); ++i) least = std::min(least, bounds_[i]);
    found_.bound = least;
    found_.proven_none = !found_.best && least == kInfinity;
    std::erase_if(found_.seen, [](const Scored& s) { return s.score.overflow > 0; });
  }

  double incumbent_exact() const {
    return found_.best ? measure(found_.best->score) : kInfinity;
  }

  void debug() {
    std::vector<size_t> order(found_.seen.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return measure(found_.seen[a].score) + 1e9*(found_.seen[a].score.overflow>0) < measure(found_.seen[b].score)+ 1e9*(found_.seen[b].score.overflow>0); });
    size_t expanded = 0, rel = 0;
    for (bool c : relaxed_) expanded += c;
    for (auto& r : roundings_) rel += r;
    fprintf(stderr, "expanded %zu of %zu, roundings %zu, seen %zu, queue %zu\n", expanded, frames_.size(), rel, found_.seen.size(), queue_.size());
    for (size_t i = 0; i < std::min<size_t>(14, order.size()); ++i) {
      const Scored& s = found_.seen[order[i]];
      const Strategy& t = s.candidate.strategy;
      const auto pol = [](const SavedPolicy& p) { return std::string(1, name_of(p.where)[0]) + (p.fraction < 1 ? std::to_string(p.fraction).substr(1, 3) : ""); };
      fprintf(stderr, "%s %.4f (bound %.4f exp %.4f) ovf %.3f dev %.1f host %.1f d%ld t%ld r%ld u%ld z%ld p%ld/%s/%ld/%ld n%ld b%ld[%.3f] kv%d id%d o%d g%ld pf%ld ow%ld x%s qkv%s o%s y%s in%s tiles %ld %ld %ld st %d%d%d\n", s.exact ? "X" : "f", measure(s.score), bounds_[frame_of_[order[i]]], expected_[frame_of_[order[i]]], s.score.overflow,
              s.score.bytes[0] / 1073741824.0, s.score.bytes[1] / 1073741824.0, t.parallel.data, t.parallel.tensor, t.parallel.ring, t.parallel.ulysses, t.parallel.zero, t.parallel.pipeline.stages, std::string(t.parallel.pipeline.schedule).c_str(), t.parallel.pipeline.virtual_stages, t.parallel.pipeline.slices,
              s.candidate.sequence / t.chunk_tokens, s.candidate.sequence / t.block_tokens, ratio(frame_of_[order[i]]), (int)t.kv, (int)t.idle, (int)t.backward_order, t.head_groups, t.prefetch_depth, t.offload_window, pol(t.layer_input).c_str(), pol(t.qkv).c_str(), pol(t.attention_out).c_str(), pol(t.mlp_input).c_str(), pol(t.mlp_inner).c_str(), t.projection_tile, t.mlp_tile, t.loss_tile, (int)t.parameters, (int)t.gradients, (int)t.optimizer);
    }
  }

  void verify(int& looks) {
    while (true) {
      size_t best = found_.seen.size();
      for (size_t i = 0; i < found_.seen.size(); ++i) {
        const Scored& s = found_.seen[i];
        if (s.score.overflow > 0) continue;
        if (best == found_.seen.size() ||
            measure(s.score) < measure(found_.seen[best].score)) {
          best = i;
        }
      }
      if (best == found_.seen.size()) {
        // All that was hoped for is too large: whatever frame is left.
        if (queue_.empty() || looks <= 0) return;
        const Waiting next = queue_.top();
        queue_.pop();
        visit(next);
        continue;
      }
      if (found_.seen[best].exact) {
        found_.best = found_.seen[best];
        return;
      }
      if (looks-- <= 0) {
        // What is exact so far.
        for (const Scored& s : found_.seen) {
          if (!s.exact || s.score.overflow > 0) continue;
          if (!found_.best || measure(s.score) < incumbent_exact()) found_.best = s;
        }
        if (found_.best) return;
        looks = 8;
      }
      const Candidate candidate = found_.seen[best].candidate;
      const Score score = evaluator_.exact(candidate);
      found_.seen[best].score = score;
      found_.seen[best].exact = true;
      if (allowed(score)) continue;
      found_.seen[best].score.overflow = std::max(score.overflow, 1e-12);
      const size_t frame = frame_of_[best];
      miss(candidate, found_.seen[best].score, frame);
      rooms_[frame] = tightened(rooms_[frame], score.bytes);
      look(frame);
    }
  }

  void refine() {
    int64_t left = effort_.refinements;
    for (bool improved = true; improved && left > 0;) {
      improved = false;
      const Scored from = *found_.best;
      const size_t frame = frame_of(from.candidate);
      double best = measure(from.score);
      for (const Candidate& c : refinements_of(from.candidate, evaluator_, wanted_.nvme)) {
        if (left <= 0) break;
        if (known(c) || !evaluator_.possible(c)) continue;
        const Demand demand = evaluator_.demand(c);
        const double bound = demand.step_seconds() / static_cast<double>(sequences_of_step(c));
        if (wanted_.goal == Goal::fastest && bound >= best) continue;
        if (evaluator_.overflow(demand.peak_bytes()) > 0) continue;
        --left;
        const Score score = evaluator_.fast(c);
        if (!allowed(score)) continue;
        add(c, score, frame, false);
        if (measure(score) < best * (1 - 1e-4)) {
          best = measure(score);
          improved = true;
        }
      }
      if (!improved) break;
      int looks = 6;
      verify(looks);
      improved = !(found_.best->candidate == from.candidate);
    }
  }

  size_t frame_of(const Candidate& c) const {
    for (size_t i = 0; i < found_.seen.size(); ++i) {
      if (found_.seen[i].candidate == c) return frame_of_[i];
    }
    return 0;
  }

  Evaluator& evaluator_;
  const std::vector<Candidate>& frames_;
  const SpaceOptions& options_;
  const Wanted& wanted_;
  const Effort& effort_;
  std::vector<bool> relaxed_;
  std::vector<Room> rooms_;      // that roundings of a frame may use
  std::vector<double> bounds_;   // of every frame, in the goal's measure; infinite: none fits
  std::vector<double> expected_;  // likewise, no bound
  std::vector<int> roundings_;
  std::priority_queue<Waiting, std::vector<Waiting>, Later> queue_;
  struct Ratio {
    double best = kInfinity;
    int64_t looks = 0;
  };
  std::map<Kind, Ratio> ratios_;
  std::vector<size_t> frame_of_;  // of what was seen
  Found found_;
  bool fits_ = false;
  double incumbent_ = kInfinity;
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
