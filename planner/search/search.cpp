#include "planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/program/layer_kinds.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/answer.h"
#include "planner/search/best_first.h"
#include "planner/search/front.h"
#include "planner/search/longest.h"
#include "planner/search/min_memory_layouts.h"
#include "planner/search/pipeline_space.h"
#include "planner/search/preset_plans.h"
#include "planner/search/question.h"
#include "planner/search/refine.h"

namespace longspan {
namespace {

constexpr double kNoTime = 1e299;     // of a candidate whose step has none
constexpr double kNearLimit = 1.03;   // excess over the time that more effort may remove
constexpr double kFrontSlack = 0.02;  // smaller savings do not justify a line of the front
// Limit on program ops in searches for the ends of the front.
constexpr int64_t kEndOps = 500'000;
constexpr Effort kEndEffort = {.evaluations = 60,
                               .refinements = 200,
                               .refinement_work = 5'000'000,
                               .starts = 1,
                               .exact = 8,
                               .attempts = 3,
                               .exact_ops = 800'000};
constexpr RefineEffort kBetweenEffort = {
    .evaluations = 200, .work = 8'000'000, .exact = 6, .exact_ops = 4'000'000};
constexpr Effort kAlternativeEffort = {
    .evaluations = 40, .refinements = 0, .exact = 4, .attempts = 3, .repaired = 0};
// The same after a search that ended early, which saw little of them.
constexpr Effort kEarlyEffort = {.evaluations = 100,
                                 .work = 6'000'000,
                                 .refinements = 300,
                                 .refinement_work = 6'000'000,
                                 .starts = 2,
                                 .exact = 6,
                                 .attempts = 3,
                                 .exact_ops = 3'000'000,
                                 .repaired = 0};
constexpr int kAlternativeLooks = 4;
constexpr double kFarBehind = 1.1;  // of an alternative: a search of its own may find better
constexpr Effort kLargeEffort = {.evaluations = 150, .refinements = 40, .exact = 10, .attempts = 4};
constexpr Effort kLastEffort = {.evaluations = 200, .refinements = 0, .exact = 40, .attempts = 6};

// The search for the least memory is repeated while the largest size known not to suffice is below
// this part of the answer.
constexpr double kNearBound = 0.8;
constexpr int kSqueezes = 5;
constexpr double kNearMiss = 0.1;  // of a limit, up to which that search is asked last
constexpr int kPushes = 8;
constexpr double kPush = 0.95;
constexpr Effort kSqueezeEffort = {.evaluations = 60,
                                   .work = 12'000'000,
                                   .refinements = 0,
                                   .exact = 8,
                                   .attempts = 3,
                                   .exact_ops = 3'000'000};

Goal goal_of(Objective objective) {
  if (objective == Objective::memory) return Goal::least_device;
  if (objective == Objective::host_memory) return Goal::least_host;
  return Goal::fastest;
}

// The length, padded if it has no whole number of the tokens of a run. Padding is little and leaves
// as many parts as it may of which each has whole numbers, too. Throws bad_input if that takes a
// sixteenth or more.
int64_t of_whole_shares(const ModelSpec& model, int64_t sequence) {
  const int64_t of_shares = tokens_of_shares(model);
  if (sequence % of_shares == 0) return sequence;
  int64_t padded = round_up(sequence, of_shares);
  if (padded - sequence >= ceil_div(sequence, 16)) {
    throw bad_input(
        "--seq: the runs of {} need a multiple of {} tokens, got {}; ask for {}, or use rounder "
        "shares",
        model.name, of_shares, sequence, padded);
  }
  for (int64_t parts = 2; parts <= sequence / 256; parts *= 2) {
    const int64_t more = round_up(sequence, of_shares * parts);
    if (more - sequence > sequence / 256) break;
    padded = more;
  }
  return padded;
}

[[noreturn]] void refuse(const Evaluator& evaluator, const ModelSpec& model,
                         const HardwareProfile& hw, int64_t tokens, const Found& found,
                         const std::string& margin) {
  const std::string what =
      fmt::format("no plan for {} fits {}", batch_text(model, tokens), hw.name);
  // Bytes without a time stand for a schedule that does not take the plan's stages.
  if (found.nearest && found.nearest->score.step_seconds < kNoTime) {
    const std::string shortfalls =
        describe_shortfalls(found.nearest->score.bytes, evaluator.limits());
    if (!shortfalls.empty()) throw no_fit("{}; the nearest plan: {}{}", what, shortfalls, margin);
  }
  throw no_fit("{}", what);
}

class Search {
 public:
  Search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
         const SearchOptions& options, const Progress& progress)
      : hw_(hw),
        asked_(sequence),
        sequence_(of_whole_shares(model, sequence)),
        options_(options),
        progress_(progress),
        space_(space_of(model, hw, options)),
        evaluator_(model, hw, limits_of(hw, options)),
        margin_(evaluator_),
        model_(model) {}

  SearchResult run() {
    check_compute();
    const Goal goal = goal_of(options_.objective);
    Found found = goal == Goal::fastest ? fastest_or_any() : least_or_any(goal);
    const std::vector<Scored> points = front(goal, found);
    const auto own = [&](const Scored& s) {
      return measure_of(goal, s.score, evaluator_.limits());
    };
    for (const Scored& s : points) {
      if (goal != Goal::fastest && own(s) < own(*found.best)) found.best = s;
    }
    SearchResult result;
    const auto gap_of = [&](double measure) {
      return measure > found.bound ? 1 - found.bound / measure : 0;
    };
    result.gap = gap_of(own(*found.best));
    result.best = plan_of(*found.best);
    for (const Scored& s : points) result.pareto.push_back(plan_of(s));
    add_alternative(found, result);
    if (ends_early() && result.alternative &&
        seconds_per_sequence(*result.alternative) < seconds_per_sequence(result.best)) {
      std::swap(result.best, *result.alternative);
      result.gap = gap_of(seconds_per_sequence(result.best));
      result.pareto.insert(result.pareto.begin(), result.best);
    }
    result.considered = evaluator_.considered();
    result.evaluated = evaluator_.simulated();
    return result;
  }

 private:
  const std::vector<Candidate>& frames() {
    if (frames_.empty()) {
      frames_ = frames_of(model_, hw_, sequence_, space_, {false, kModerateOps});
    }
    return frames_;
  }
  Wanted wanted(Goal goal) const {
    Wanted wanted;
    wanted.goal = goal;
    if (goal == Goal::fastest) wanted.gap = std::max(wanted.gap, options_.gap);
    wanted.time = options_.time;
    wanted.tokens = asked_;
    return wanted;
  }
  // Whether the question is content with a plan near the fastest. Then other kinds of plans may
  // hardly have been looked at.
  bool ends_early() const { return options_.gap > Wanted{}.gap; }
  // The least times that compute alone takes of these frames.
  Score compute_of(const std::vector<Candidate>& frames) {
    Score least;
    least.seconds = least.step_seconds = kInfinity;
    for (const Candidate& c : frames) {
      if (!evaluator_.possible(c)) continue;
      const double seconds = evaluator_.demand(c).compute_seconds();
      least.step_seconds = std::min(least.step_seconds, seconds);
      least.seconds =
          std::min(least.seconds, seconds / static_cast<double>(micro_batches_of_step(c)));
    }
    return least;
  }
  // Refuses limits on time that the compute of every plan exceeds.
  void check_compute() {
    if (!options_.time.any() || is_in_time(compute_of(frames()))) return;
    const Score least =
        compute_of(frames_of(model_, hw_, sequence_, space_, {false, kMostPricedOps}));
    if (least.seconds < kInfinity)
      check_time(model_, least, asked_, options_, TimeOf::compute_alone);
  }
  bool is_in_time(const Score& score, double slack = 1) const {
    return options_.time.admit(score.step_seconds, score.seconds, asked_, slack);
  }
  // Refuses limits on time if a plan fits without them. The shortest step has the fewest sequences.
  void refuse_for_time() {
    int64_t fewest = INT64_MAX;
    for (const Candidate& c : frames()) fewest = std::min(fewest, micro_batches_of_step(c));
    std::vector<Candidate> shortest = frames();
    if (options_.time.step_seconds < 1e300) {
      std::erase_if(shortest,
                    [&](const Candidate& c) { return micro_batches_of_step(c) > fewest; });
    }
    if (!any_time_.best || shortest.size() < frames().size()) {
      const Found any =
          best_first(evaluator_, margin_, shortest, space_, Wanted{}, kLargeEffort, progress_);
      if (any.best) check_time(model_, any.best->score, asked_, options_);
    }
    if (any_time_.best) check_time(model_, any_time_.best->score, asked_, options_);
  }
  // Searches moderate programs, then larger ones if none of those fits.
  Found fastest() {
    Found found = fastest_of(frames(), {});
    if (found.best || any_time_.best) return found;
    const std::vector<Candidate> listed =
        frames_of(model_, hw_, sequence_, space_, {false, kMostListedOps});
    if (listed.size() == frames().size()) return found;
    Found larger = fastest_of(listed, kLargeEffort);
    return larger.best || larger.nearest ? larger : found;
  }
  // The fastest without limits on time, if it is within them, is also the answer with them.
  Found fastest_of(const std::vector<Candidate>& frames, const Effort& effort) {
    const Wanted limited = wanted(Goal::fastest);
    Wanted any_time = limited;
    any_time.time = {};
    any_time_ = best_first(evaluator_, margin_, frames, space_, any_time, effort, progress_);
    if (!any_time_.best || is_in_time(any_time_.best->score)) return any_time_;
    Found in_time = best_first(evaluator_, margin_, frames, space_, limited, effort, progress_);
    if (in_time.best || !is_in_time(any_time_.best->score, kNearLimit)) return in_time;
    // The limit is near: looks further among the frames that may be within it.
    std::vector<Candidate> near = frames;
    std::erase_if(near, [&](const Candidate& c) {
      return !evaluator_.possible(c) ||
             evaluator_.demand(c).compute_seconds() > limited.most_seconds(c);
    });
    any_time.start = any_time_.best->candidate;
    any_time.gap = 0;
    any_time.thorough = true;
    Found last = best_first(evaluator_, margin_, near, space_, any_time, effort, progress_);
    if (!last.best) return in_time;
    if (is_in_time(last.best->score)) return last;
    any_time_.best = last.best;
    return in_time;
  }
  // The fastest, or if that search finds none any plan that fits. Throws no_fit if there is none.
  Found fastest_or_any() {
    Found found = fastest();
    if (found.best) return found;
    refuse_if_none_possible();
    // If a plan fits without limits on time, memory is not what is short.
    Found last = any_time_.best ? Found{} : roomiest();
    if (!last.best) reach(last);
    if (!last.best && !any_time_.best) shrink(last.nearest ? last.nearest : found.nearest, last);
    if (!last.best && options_.time.any()) refuse_for_time();
    if (!last.best) {
      refuse(evaluator_, model_, hw_, sequence_, last.nearest ? last : found,
             margin_text(options_));
    }
    found = faster_of(std::move(last));
    if (found.fitting.empty()) found.fitting.push_back(*found.best);
    return found;
  }
  // Throws the reason if no plan of the space can be, whatever fits.
  void refuse_if_none_possible() {
    const std::vector<Candidate>& all = frames();
    const auto any = [&](const auto& holds) { return std::any_of(all.begin(), all.end(), holds); };
    if (any([&](const Candidate& c) { return evaluator_.possible(c); })) return;
    const PipelineQuestion question{model_, hw_, options_.parallel, options_.microbatches,
                                    sequence_};
    if (all.empty()) {
      // Longer lengths may be cut into too many ops for these frames.
      if (!frames_of(model_, hw_, sequence_, space_, {true, kMostPricedOps}).empty()) return;
      throw none_cuts(question);
    }
    const bool divides =
        any([&](const Candidate& c) { return divides_shares(model_, c.strategy, c.sequence); });
    if (!divides) check_shares(model_, all.front().strategy, all.front().sequence);
    throw none_takes(question);
  }
  Found least_or_any(Goal goal) {
    Found found = least(goal);
    found.bound = std::min(found.bound, bound_of_larger(goal));
    if (found.best) return found;
    // Where hardly anything fits, the question for the fastest plan looks further. It is asked
    // anew: results in the evaluator cost no effort, so they would change its answer.
    Found any = Search(model_, hw_, asked_, options_, progress_).fastest_or_any();
    any.bound = found.bound;
    if (any.bound >= 1) {  // of frames without a candidate that fits; others have one
      any.bound =
          bound_of(frames_of(model_, hw_, sequence_, space_, {false, kMostPricedOps}), goal);
    }
    squeeze(any, goal);
    return any;
  }
  Found least(Goal goal) {
    Found found = best_first(evaluator_, margin_, min_memory_frames(), space_, wanted(goal),
                             kEndEffort, progress_);
    squeeze(found, goal);
    return found;
  }
  const std::vector<Candidate>& min_memory_frames() {
    if (min_memory_frames_.empty()) min_memory_frames_ = min_memory_frames_of(kEndOps);
    return min_memory_frames_;
  }
  // Frames for searches for the least memory. A stage's ranks hold least if they divide a sequence
  // rather than train one each.
  std::vector<Candidate> min_memory_frames_of(int64_t most_ops) {
    std::vector<RankLayout> layouts = layouts_of(model_, hw_, space_);
    int64_t fewest = INT64_MAX;
    for (const RankLayout& layout : layouts) {
      if (layout.parallel.has_pipeline()) fewest = std::min(fewest, layout.parallel.data);
    }
    std::erase_if(layouts, [&](const RankLayout& layout) {
      return layout.parallel.has_pipeline() && layout.parallel.data > fewest;
    });
    return frames_of(model_, min_memory_layouts(evaluator_, layouts), sequence_, space_,
                     {true, most_ops});
  }
  // A lower bound on the memory of programs too large for that search.
  double bound_of_larger(Goal goal) {
    std::vector<Candidate> larger = min_memory_frames_of(kMostPricedOps);
    std::erase_if(
        larger, [&](const Candidate& c) { return ops_estimate(evaluator_.request(c)) <= kEndOps; });
    return bound_of(larger, goal);
  }
  // A lower bound on the measure of the frames' candidates, by mixtures. Frames whose compute alone
  // exceeds it are not relaxed.
  double bound_of(const std::vector<Candidate>& frames, Goal goal) {
    const Wanted limits = wanted(goal);
    const bool fastest = goal == Goal::fastest;
    const DemandOf rows = fastest || limits.time.any() ? DemandOf::all : DemandOf::bytes;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < frames.size(); ++i) {
      const Candidate& c = frames[i];
      if (!evaluator_.possible(c)) continue;
      const double compute = fastest ? evaluator_.demand(c).compute_seconds() : 0;
      order.emplace_back(compute / static_cast<double>(micro_batches_of_step(c)), i);
    }
    std::sort(order.begin(), order.end());
    double bound = kInfinity;
    for (const auto& [least, i] : order) {
      if (least >= bound) break;
      const Candidate& c = frames[i];
      const Mixture m =
          FrameChoice(evaluator_, c, space_, rows).bound(goal, limits.most_seconds(c));
      if (m.overflow > 0 && m.optimal) continue;
      bound = std::min(bound, m.optimal ? std::max(least, m.objective) : least);
    }
    return bound;
  }
  // If bounds are much lower than the result: searches for anything that fits reduced limits. That
  // is easier than a search for the minimum, because near misses are repaired.
  void squeeze(Found& found, Goal goal) {
    const int tier = static_cast<int>(goal == Goal::least_host ? Tier::host : Tier::device);
    if (found.bound >= 1) return;  // nothing fits
    const TierBytes limits = evaluator_.limits();
    const auto bound = static_cast<int64_t>(found.bound * static_cast<double>(limits[tier]));
    int64_t missed = bound;
    const auto least = [&] { return found.best ? found.best->score.bytes[tier] : limits[tier]; };
    const auto fits_in = [&](int64_t bytes, bool as_plan = false) {
      TierBytes less = limits;
      less[tier] = bytes;
      evaluator_.set_limits(less);
      const Found any = as_plan ? any_of(frames(), Goal::fastest, {})
                                : any_of(min_memory_frames(), Goal::roomiest, kSqueezeEffort);
      if (!any.best) return false;
      found.best = any.best;
      found.fitting.push_back(*any.best);
      return true;
    };
    for (int looks = 0; looks < kSqueezes; ++looks) {
      if (static_cast<double>(missed) > kNearBound * static_cast<double>(least())) break;
      const int64_t asked = looks == 0 ? bound + bound / 64 + 1 : missed + (least() - missed) / 2;
      if (!fits_in(asked)) missed = asked;
    }
    // Then slightly less, as often as that fits, at last as `plan` searches for the fastest: that
    // has more frames, and repairs candidates that the search for most room misses.
    for (int looks = 0; found.best && looks < kPushes; ++looks) {
      const auto asked = static_cast<int64_t>(kPush * static_cast<double>(least()));
      if (asked <= bound) break;
      if (!fits_in(asked) && !fits_in(asked, /*as_plan=*/true)) break;
    }
    evaluator_.set_limits(limits);
  }
  // Searches for anything that fits, the roomiest or the fastest first.
  Found any_of(const std::vector<Candidate>& frames, Goal first, const Effort& effort) {
    Wanted any = wanted(first);
    any.first = true;
    Found found = best_first(evaluator_, margin_, frames, space_, any, effort, progress_);
    if (found.best) found.best->score = evaluator_.exact(found.best->candidate);
    return found;
  }
  // Searches for anything that fits, after all fast plans were too large.
  Found roomiest() {
    const std::vector<Candidate> listed =
        frames_of(model_, hw_, sequence_, space_, {true, kMostListedOps});
    Found found = any_of(listed, Goal::roomiest, kLastEffort);
    if (found.best) return found;
    // Programs too large to list are the last resort, as the engine does not run them. A pipeline
    // would have one for each stage.
    std::vector<Candidate> all = frames_of(model_, hw_, sequence_, space_, {true, kMostPricedOps});
    std::erase_if(all, [&](const Candidate& c) {
      return c.strategy.parallel.has_pipeline() &&
             ops_estimate(evaluator_.request(c)) > kMostListedOps;
    });
    if (all.size() == listed.size()) return found;
    Found last = any_of(all, Goal::roomiest, kLastEffort);
    return last.best || last.nearest ? last : found;
  }
  // A plan of a longer sequence also trains this one: uses the search of max-seq.
  void reach(Found& found) {
    LongestWanted wanted;
    wanted.time = options_.time;
    // A new evaluator: cached results cost no effort, so they would change the answer.
    Evaluator own(model_, hw_, evaluator_.limits());
    const LongestFound reached = longest(own, model_, hw_, space_, wanted);
    const Candidate& longest = reached.fits.candidate;
    if (longest.sequence < sequence_) return;
    for (const int64_t length : {sequence_, sequence_ + sequence_ / 64, longest.sequence}) {
      const std::optional<Candidate> c =
          length == longest.sequence
              ? longest
              : at_length(longest, shape_of(longest, space_), length, model_, space_);
      if (!c || c->sequence > sequence_ + sequence_ / 16 || !evaluator_.fits(*c)) continue;
      found.best = Scored{*c, evaluator_.exact(*c), true};
      return;
    }
  }

  // A plan that is short of memory by little: the question for the least of that memory looks
  // further.
  void shrink(const std::optional<Scored>& nearest, Found& found) {
    if (!nearest || nearest->score.overflow > kNearMiss) return;
    const TierBytes limits = evaluator_.limits();
    for (const auto& [goal, tier] :
         {std::pair(Goal::least_device, Tier::device), std::pair(Goal::least_host, Tier::host)}) {
      const int short_of = static_cast<int>(tier);
      if (nearest->score.bytes[short_of] <= limits[short_of]) continue;
      Search anew(model_, hw_, asked_, options_, progress_);
      TierBytes more = limits;
      more[short_of] *= 2;
      anew.evaluator_.set_limits(more);
      const Found least = anew.least(goal);
      if (!least.best || !evaluator_.fits(least.best->candidate)) return;
      found.best = Scored{least.best->candidate, evaluator_.exact(least.best->candidate), true};
      return;
    }
  }

  // The fastest plan, starting from one that fits. If its program is larger than moderate, only its
  // layout and chunk are searched.
  Found faster_of(Found any) {
    const Candidate& c = any.best->candidate;
    const bool is_moderate = ops_estimate(evaluator_.request(c)) <= kModerateOps;
    std::vector<Candidate> others = frames();
    double bound = 0;
    if (!is_moderate) {
      others = frames_of(model_, hw_, sequence_, space_, {false, kMostPricedOps});
      bound = bound_of(others, Goal::fastest);
      std::erase_if(others, [&](const Candidate& other) {
        ParallelLayout p = other.strategy.parallel;
        p.zero = c.strategy.parallel.zero;
        return !(p == c.strategy.parallel) ||
               other.strategy.chunk_tokens != c.strategy.chunk_tokens;
      });
    }
    Wanted faster = wanted(Goal::fastest);
    faster.start = c;
    Found found = best_first(evaluator_, margin_, others, space_, faster,
                             is_moderate ? Effort{} : kLargeEffort, progress_);
    if (is_moderate) bound = found.bound;  // else that covers only some frames
    if (!found.best || found.best->score.seconds > any.best->score.seconds) found = std::move(any);
    found.bound = bound;
    return found;
  }

  Plan plan_of(const Scored& s) const {
    return longspan::plan_of(evaluator_, s.candidate, s.score);
  }

  // Adds the best plan with a pipeline if the best has none, or the reverse.
  void add_alternative(const Found& found, SearchResult& result) {
    const bool piped = result.best.strategy.parallel.has_pipeline();
    const auto other = [&](const Candidate& c) {
      return c.strategy.parallel.has_pipeline() != piped;
    };
    std::vector<Scored> alternatives;
    for (const Scored& s : found.fitting) {
      if (other(s.candidate)) alternatives.push_back(s);
    }
    std::stable_sort(
        alternatives.begin(), alternatives.end(),
        [](const Scored& a, const Scored& b) { return a.score.seconds < b.score.seconds; });
    // Estimates are often too short: a few that promise most are laid out.
    const Scored* fastest = nullptr;
    int looks = kAlternativeLooks;
    for (Scored& s : alternatives) {
      if (fastest != nullptr && s.score.seconds >= fastest->score.seconds) break;
      if (!s.exact && looks-- <= 0) continue;
      if (!s.exact) s.score = evaluator_.exact(s.candidate);
      if (s.score.overflow > 0) continue;
      if (fastest == nullptr || s.score.seconds < fastest->score.seconds) fastest = &s;
    }
    if (fastest != nullptr && !ends_early() &&
        fastest->score.seconds < kFarBehind * found.best->score.seconds) {
      result.alternative = plan_of(*fastest);
      return;
    }
    // Bounds ruled out most of them, or a search that ended early did not come to them. Moved, as
    // there may be a hundred thousand frames, and no later code uses them.
    frames();
    std::vector<Candidate> others = std::exchange(frames_, {});
    std::erase_if(others, [&](const Candidate& c) { return !other(c); });
    if (others.empty()) return;
    Wanted fast = wanted(Goal::fastest);
    fast.gap = Wanted{}.gap;
    if (fastest != nullptr) fast.start = fastest->candidate;
    Found best = best_first(evaluator_, margin_, others, space_, fast,
                            ends_early() ? kEarlyEffort : kAlternativeEffort);
    if (!best.best) best = any_of(others, Goal::roomiest, kAlternativeEffort);
    if (best.best) {
      result.alternative = plan_of(*best.best);
    } else {
      result.no_alternative_reason =
          fmt::format("no plan {} a pipeline was found to fit", piped ? "without" : "with");
    }
  }

  // The front: its ends, from searches with their goals, and plans between them that a search has
  // seen. The ends come from the same searches and plans for every objective.
  std::vector<Scored> front(Goal goal, const Found& found) {
    std::vector<Scored> points = {*found.best};
    if (options_.front_lines == 0) return points;
    const std::vector<Scored> between = some_of(found);
    std::vector<Scored> all = between;
    all.push_back(*found.best);
    for (const Goal end : {Goal::fastest, Goal::least_host, Goal::least_device}) {
      if (end == goal) continue;
      // A new search gives the result of a question with only that objective.
      Search anew(model_, hw_, asked_, options_, progress_);
      if (end != Goal::fastest) anew.min_memory_frames_ = min_memory_frames();
      const Found other = end == Goal::fastest ? anew.fastest() : anew.least(end);
      if (!other.best) continue;
      all.push_back(*other.best);
      if (end == Goal::fastest) points.push_back(*other.best);
      for (const Scored& s : anew.some_packed_of(other)) all.push_back(s);
    }
    for (const Goal end : {Goal::least_host, Goal::least_device}) {
      const auto own = [&](const Scored& s) {
        return measure_of(end, s.score, evaluator_.limits());
      };
      const Scored& least =
          *std::min_element(all.begin(), all.end(),
                            [&](const Scored& x, const Scored& y) { return own(x) < own(y); });
      // Refined as plans between the ends are, which may also take less memory.
      points.push_back(refined_within(measured(least)));
    }
    const size_t ends = points.size();
    points.insert(points.end(), between.begin(), between.end());
    std::vector<Costs> costs;
    for (const Scored& s : points) costs.push_back(costs_of(s));
    for (size_t i = points.size(); i-- > ends;) {
      if (beaten_by_mixture(costs[i], costs))
        points.erase(points.begin() + static_cast<int64_t>(i));
    }
    return non_dominated_of(points);
  }

  // Some plans, evenly spread, of the Pareto front of those found to fit.
  std::vector<Scored> spread_of(const Found& found) const {
    const std::vector<Scored> best = non_dominated_of(found.fitting);
    const size_t lines = options_.front_lines > 3 ? options_.front_lines - 3 : 0;
    std::vector<Scored> some;
    for (size_t i = 0; i < std::min(lines, best.size()); ++i) {
      some.push_back(best[i * best.size() / lines]);
    }
    return some;
  }
  Scored measured(const Scored& s) {
    return s.exact ? s : Scored{s.candidate, evaluator_.exact(s.candidate), true};
  }
  // The same, laid out and simulated, or only laid out: for candidates of an end, time is only
  // needed for a plan that is shown.
  std::vector<Scored> some_of(const Found& found) {
    std::vector<Scored> some;
    for (const Scored& s : spread_of(found)) {
      const Scored exact = measured(s);
      if (exact.score.overflow == 0) some.push_back(refined_within(exact));
    }
    return some;
  }
  // Refines a plan with no more memory than it takes.
  Scored refined_within(const Scored& s) {
    const TierBytes limits = evaluator_.limits();
    evaluator_.set_limits(s.score.bytes);
    const Wanted fastest = wanted(Goal::fastest);
    RefineMemory memory;
    std::vector<Scored> others;
    Scored best = refined(evaluator_, Ranking(evaluator_, fastest), frames(), space_, s,
                          kBetweenEffort, memory, others)
                      .best;
    evaluator_.set_limits(limits);
    return best;
  }
  std::vector<Scored> some_packed_of(const Found& found) {
    std::vector<Scored> some;
    for (Scored s : spread_of(found)) {
      if (!s.exact) s.score.bytes = evaluator_.arenas(s.candidate);
      if (evaluator_.overflow(s.score.bytes) == 0) some.push_back(s);
    }
    return some;
  }

  static Costs costs_of(const Scored& s) {
    return {s.score.seconds, static_cast<double>(s.score.bytes[1]),
            static_cast<double>(s.score.bytes[0])};
  }
  static std::vector<Scored> non_dominated_of(const std::vector<Scored>& all) {
    std::vector<Costs> costs;
    for (const Scored& s : all) costs.push_back(costs_of(s));
    std::vector<Scored> front;
    for (const size_t i : non_dominated(costs, kFrontSlack)) front.push_back(all[i]);
    return front;
  }

  const HardwareProfile& hw_;
  int64_t asked_;     // tokens of a microbatch, which count for rates
  int64_t sequence_;  // the same, or padded
  const SearchOptions& options_;
  const Progress& progress_;
  SpaceOptions space_;
  Evaluator evaluator_;
  MemoryMargin margin_;
  const ModelSpec& model_;
  Found any_time_;  // the fastest without limits on time, if those were looked for
  // Computed lazily: frames of moderate programs, and frames with least memory.
  std::vector<Candidate> frames_, min_memory_frames_;
};

}  // namespace

SearchResult search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                    const SearchOptions& options, const Progress& progress) {
  const int64_t tokens = tokens_of_batch(model, sequence);
  check_positions(model, of_whole_shares(model, tokens), options);
  const auto begin = std::chrono::steady_clock::now();
  SearchResult result = Search(model, hw, tokens, options, progress).run();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Plan plan_preset(const ModelSpec& model, const HardwareProfile& hw, const std::string& preset,
                 int64_t sequence, const SearchOptions& options) {
  const int64_t tokens = tokens_of_batch(model, sequence);
  check_positions(model, tokens, options);
  Evaluator evaluator(model, hw, limits_of(hw, options));
  const Scored found = PresetPlans(evaluator, model, hw, preset, space_of(model, hw, options))
                           .best(tokens, options.time);
  Plan plan = plan_of(evaluator, found.candidate, found.score);
  if (found.score.overflow == 0) {
    check_time(model, found.score, tokens, options);
    return plan;
  }
  throw no_fit("no {} plan for {} fits {}: {}{}", preset, batch_text(model, tokens), hw.name,
               describe_shortfalls(found.score.bytes, evaluator.limits()), margin_text(options));
}

}  // namespace longspan
