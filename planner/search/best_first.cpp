#include "planner/search/best_first.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "planner/search/exploration.h"
#include "planner/search/refine.h"

namespace longspan {
namespace {

// Kinds whose best is within this, if refined, of the best of all are refined, too.
constexpr double kNear = 1.3;
constexpr double kStartEstimates = 60;  // estimates per start
constexpr size_t kFinalists = 2;
constexpr size_t kMostStarts = 12;
constexpr double kBehind = 1.05;  // of a layout that kEnough starts did not bring near the best
constexpr int64_t kEnough = 3;
constexpr double kContinued = 0.02;  // handicap of a mesh for every time that it was continued
constexpr double kSameLayout = 1.1, kAlike = 1.25;  // handicaps of starts similar to others

// The handicap of a start that is similar to another.
double likeness_of(const Candidate& a, const Candidate& b) {
  if (layout_of(a) != layout_of(b)) return 1;
  const double chunks =
      static_cast<double>(a.strategy.chunk_tokens) / static_cast<double>(b.strategy.chunk_tokens);
  const bool groups = (a.strategy.head_groups > 1) == (b.strategy.head_groups > 1);
  return groups && chunks < 2.1 && chunks > 0.48 ? kAlike : kSameLayout;
}

int64_t part_of(int64_t effort, double share) {
  return static_cast<int64_t>(share * static_cast<double>(effort));
}

// Frames without, and with, a pipeline if the fastest plan is wanted; else all frames together.
std::vector<std::span<const Candidate>> families_of(std::span<const Candidate> frames,
                                                    const Wanted& wanted) {
  if (wanted.goal != Goal::fastest || wanted.first) return {frames};
  const auto is_flat = [](const Candidate& c) { return !c.strategy.parallel.has_pipeline(); };
  const auto flat = static_cast<size_t>(
      std::partition_point(frames.begin(), frames.end(), is_flat) - frames.begin());
  std::vector<std::span<const Candidate>> families;
  for (const auto& family : {frames.first(flat), frames.subspan(flat)}) {
    if (!family.empty()) families.push_back(family);
  }
  return families;
}

class BestFirst {
 public:
  using Seen = Exploration::Seen;

  BestFirst(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
            const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
            const Progress& progress)
      : evaluator_(evaluator),
        frames_(frames),
        options_(options),
        wanted_(wanted),
        ranking_(evaluator, wanted),
        effort_(effort) {
    if (progress) {
      progress_ = [this, &progress](int64_t done, int64_t most) {
        const auto all = static_cast<int64_t>(explorations_.size());
        progress(explored_ * most + std::min(done, most), all * most);
      };
    }
    for (const std::span<const Candidate> family : families_of(frames, wanted)) {
      explorations_.emplace_back(evaluator, margin, ranking_, family, options, effort, progress_);
      if (wanted.start && (is_piped(family.front()) == is_piped(*wanted.start))) {
        explorations_.back().begin_with(*wanted.start);
      }
    }
  }

  Found run() {
    double least = kInfinity;
    for (Exploration& e : explorations_) {
      e.run(least);
      ++explored_;
      if (!e.best()) continue;
      const double own = ranking_.weighed(e.best()->score);
      if (own < least) found_.best = e.best();
      least = std::min(least, own);
    }
    if (found_.best && !wanted_.first && effort_.refinements > 0) refine();
    return finish();
  }

 private:
  struct Start {
    Scored scored;
    Exploration* of = nullptr;
    Waiting from;
    Candidate first;        // before refinement
    bool stalled = false;   // no single step is expected to help
    bool settled = false;   // no further refinement helps
    int64_t continued = 0;  // the number of times
    RefineMemory memory = {};
  };

  // The mean ratio of measures after and before refinement.
  struct Gain {
    double sum = 0;
    int64_t count = 0;
    double mean() const { return sum / static_cast<double>(count); }
  };

  static bool is_piped(const Candidate& c) { return c.strategy.parallel.has_pipeline(); }
  double weighed(const Scored& s) const { return ranking_.weighed(s.score); }

  // The number of starts that can be refined for some rounds each.
  size_t affordable_starts() const {
    int64_t work = 0, estimated = 1;
    for (const Exploration& e : explorations_) {
      work += e.work();
      estimated += e.estimated();
    }
    const double of_estimate = static_cast<double>(work) / static_cast<double>(estimated);
    const double affordable =
        static_cast<double>(effort_.refinement_work) / (2 * kStartEstimates * of_estimate + 1);
    return std::min(static_cast<size_t>(effort_.starts),
                    std::max(kFinalists, static_cast<size_t>(affordable)));
  }

  // Refines a new start for a first time.
  void begin_at(Exploration& of, const Seen& s, const RefineEffort& effort) {
    started_.insert(of.kind_from(s));
    starts_.push_back({s.scored, &of, s.from, s.scored.candidate});
    const double before = weighed(s.scored);
    refine(starts_.back(), effort);
    Gain& gain = gains_[&of];
    gain.sum += weighed(starts_.back().scored) / before;
    ++gain.count;
    if (weighed(starts_.back().scored) < weighed(*found_.best)) {
      found_.best = starts_.back().scored;
    }
  }
  // The expected measure of a candidate after refinement.
  double if_refined(const Exploration& of, const Seen& s) const {
    const auto known = gains_.find(&of);
    return of.likely(s) * (known == gains_.end() ? 1 : known->second.mean());
  }
  // Whether several starts of a layout did not come near the best.
  bool is_behind(const LayoutKey& layout) const {
    int64_t starts = 0;
    for (const Start& start : starts_) {
      if (layout_of(start.first) != layout) continue;
      if (weighed(start.scored) < kBehind * weighed(*found_.best)) return false;
      ++starts;
    }
    return starts >= kEnough;
  }
  // Begins at the best candidate of every exploration and, of another kind, at the best of the
  // frame with the best expectation. The leader is not always the one that can be improved most.
  void begin_at_leaders(size_t most, const RefineEffort& effort) {
    std::vector<Exploration*> order;
    for (Exploration& e : explorations_) {
      if (e.best() && weighed(*e.best()) < kNear * weighed(*found_.best)) order.push_back(&e);
    }
    std::stable_sort(order.begin(), order.end(), [&](const Exploration* a, const Exploration* b) {
      return weighed(*a->best()) < weighed(*b->best());
    });
    for (Exploration* e : order) {
      const auto measure = [&](const Seen& s) { return e->likely(s); };
      const auto is_best = [&](const Seen& s) {
        return s.scored.candidate == e->best()->candidate;
      };
      if (starts_.size() < most) begin_at(*e, *e->least_of(measure, is_best), effort);
    }
    for (Exploration* e : order) {
      const auto expected = [&](const Seen& s) { return std::pair(s.from.expected, e->likely(s)); };
      const auto new_kind = [&](const Seen& s) { return !started_.contains(e->kind_from(s)); };
      if (starts_.size() >= most || most <= kFinalists) return;
      if (const Seen* s = e->least_exact(expected, new_kind)) begin_at(*e, *s, effort);
    }
  }
  // Begins at the best candidate of a new kind that is near the best of all, with handicaps for
  // similar ones. Returns false if there is none.
  bool begin_at_next(const RefineEffort& effort) {
    while (true) {
      Exploration* of = nullptr;
      double least = kInfinity;
      Kind kind;
      for (Exploration& e : explorations_) {
        const auto order = [&](const Seen& s) {
          double likeness = 1;
          for (const Start& start : starts_) {
            likeness = std::max({likeness, likeness_of(start.scored.candidate, s.scored.candidate),
                                 likeness_of(start.first, s.scored.candidate)});
          }
          return likeness * if_refined(e, s);
        };
        const auto is_near = [&](const Seen& s) {
          return if_refined(e, s) < kNear * weighed(*found_.best) &&
                 !started_.contains(e.kind_from(s)) && !is_behind(layout_of(s.scored.candidate));
        };
        const Seen* s = e.least_of(order, is_near);
        if (s == nullptr || order(*s) >= least) continue;
        of = &e;
        least = order(*s);
        kind = e.kind_from(*s);
      }
      if (of == nullptr) return false;
      started_.insert(kind);
      const auto measure = [&](const Seen& s) { return of->likely(s); };
      const auto is_of_kind = [&](const Seen& s) { return of->kind_from(s) == kind; };
      // If nothing of a kind fits when laid out, the next kind is tried.
      if (const Seen* s = of->least_exact(measure, is_of_kind)) {
        begin_at(*of, *s, effort);
        return true;
      }
    }
  }

  // Half of the effort goes to local optima near as many starts as it lasts for, a quarter to those
  // starts that it did not last for, the rest to the best of all. If those do not improve any more,
  // further starts follow.
  void refine() {
    const double best = measure_of(wanted_.goal, found_.best->score, evaluator_.limits());
    const double share = share_of_effort(wanted_, 1 - least_bound() / best);
    if (share == 0) return;
    const int64_t begin = evaluator_.work();
    const int64_t last_work = begin + part_of(effort_.refinement_work, share);
    const size_t most = affordable_starts();
    RefineEffort first = refine_effort(share, 2 * most);
    first.kicks = false;
    begin_at_leaders(most, first);
    while (starts_.size() < most && begin_at_next(first)) {
    }
    const int64_t half = begin + (last_work - begin) / 2;
    while (evaluator_.work() < half && starts_.size() < kMostStarts && begin_at_next(first)) {
    }
    const int64_t most_of_it = half + (last_work - half) / 2;
    while (evaluator_.work() < most_of_it) {
      Start* next = unstalled();
      if (next == nullptr) break;
      const Candidate before = next->scored.candidate;
      refine(*next, first);
      ++next->continued;
      next->stalled |= next->scored.candidate == before;
    }
    const RefineEffort second = refine_effort(share, 2 * std::min(starts_.size(), kFinalists));
    while (evaluator_.work() < last_work) {
      Start* next = finalist();
      if (next != nullptr) {
        refine(*next, second);
      } else if (!begin_at_next(first)) {
        break;
      }
    }
    for (const Start& s : starts_) {
      if (weighed(s.scored) < weighed(*found_.best)) found_.best = s.scored;
    }
  }
  // The best start that a single step may improve, with handicaps for meshes that were continued;
  // null if there is none.
  Start* unstalled() {
    Start* best = nullptr;
    double least = kInfinity;
    for (Start& s : starts_) {
      if (s.stalled) continue;
      int64_t continued = 0;
      for (const Start& other : starts_) {
        if (mesh_of(other.scored.candidate) == mesh_of(s.scored.candidate)) {
          continued += other.continued;
        }
      }
      const double measure = weighed(s.scored) * (1 + kContinued * static_cast<double>(continued));
      if (measure < least) {
        least = measure;
        best = &s;
      }
    }
    return best;
  }
  // The best unsettled start among the finalists; null if there is none.
  Start* finalist() {
    std::stable_sort(starts_.begin(), starts_.end(), [&](const Start& a, const Start& b) {
      return weighed(a.scored) < weighed(b.scored);
    });
    const auto end = starts_.begin() + static_cast<ptrdiff_t>(std::min(kFinalists, starts_.size()));
    const auto it = std::find_if(starts_.begin(), end, [](const Start& s) { return !s.settled; });
    return it == end ? nullptr : &*it;
  }
  RefineEffort refine_effort(double share, size_t count) const {
    const auto parts = static_cast<int64_t>(count);
    int64_t ops = 0;
    for (const Exploration& e : explorations_) ops = std::max(ops, e.ops_left());
    return {part_of(effort_.refinements / parts, share),
            part_of(effort_.refinement_work / parts, share),
            std::max(2, effort_.exact / static_cast<int>(parts)), ops / parts};
  }
  void refine(Start& start, const RefineEffort& effort) {
    std::vector<Scored> others;
    const Refined refined = longspan::refined(evaluator_, ranking_, frames_, options_, start.scored,
                                              effort, start.memory, others);
    const bool same = refined.best.candidate == start.scored.candidate;
    start.scored = refined.best;
    start.stalled = refined.stalled;
    start.settled = refined.settled || (same && effort.kicks);
    for (Scored& other : others) start.of->add_found(std::move(other), start.from);
  }

  double least_bound() {
    double least = kInfinity;
    for (Exploration& e : explorations_) least = std::min(least, e.least_bound());
    return least;
  }
  Found finish() {
    if (found_.best && !wanted_.first) {
      found_.best->score = evaluator_.exact(found_.best->candidate);
    }
    found_.bound =
        found_.best ? measure_of(wanted_.goal, found_.best->score, evaluator_.limits()) : kInfinity;
    found_.bound = std::min(found_.bound, least_bound());
    for (const Exploration& e : explorations_) {
      const std::optional<Scored>& nearest = e.nearest();
      if (nearest &&
          (!found_.nearest || nearest->score.overflow < found_.nearest->score.overflow)) {
        found_.nearest = nearest;
      }
      for (const Seen& s : e.seen()) {
        if (!ranking_.admits(s.scored.score)) continue;
        found_.fitting.push_back(s.scored);
        found_.fitting.back().exact &= s.scored.score.seconds > 0;
      }
    }
    return std::move(found_);
  }

  Evaluator& evaluator_;
  const std::vector<Candidate>& frames_;
  const SpaceOptions& options_;
  const Wanted& wanted_;
  Ranking ranking_;
  const Effort& effort_;
  Progress progress_;  // of all explorations
  int64_t explored_ = 0;
  std::deque<Exploration> explorations_;
  std::deque<Start> starts_;
  std::set<Kind> started_;  // kinds of starts
  std::map<const Exploration*, Gain> gains_;
  Found found_;
};

}  // namespace

Found best_first(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const Progress& progress) {
  return BestFirst(evaluator, margin, frames, options, wanted, effort, progress).run();
}

}  // namespace longspan
