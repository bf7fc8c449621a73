#include "planner/search/longest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/bytes_ratio.h"
#include "planner/program/layer_kinds.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/min_memory_layouts.h"
#include "planner/search/preset_plans.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

// More chunks save hardly any memory, and make large programs.
constexpr int64_t kMostChunksTried = 512;
constexpr int64_t kMostRingChunks = 32;
constexpr int64_t kMostRingOps = 1'000'000;
constexpr int64_t kLeast = 1024;    // tokens; shorter sequences are not tried
constexpr double kCoarse = 1.25;    // ratio of the lengths first tried per shape
constexpr double kFarBehind = 0.7;  // part of the longest: shapes below are not refined
// Lengths to try: the first as a part of the bound, and the next, after a length at which nothing
// fits, as a part of that. Distances grow.
constexpr double kStart = 0.95, kDown = 0.88;
constexpr size_t kBoundsTried = 8;  // the number of bounds from which lengths are tried at last
// Programs are tried by size, the smallest first. `pushes`: the factors by which longer lengths are
// tried; larger programs have to gain more.
struct Size {
  int64_t more_than, at_most;  // in ops
  std::array<double, 2> pushes;
  bool is_listed() const { return at_most <= kMostListedOps; }
  bool has(int64_t ops) const { return ops > more_than && ops <= at_most; }
};
constexpr int64_t kSmallPrograms = 300'000;
constexpr std::array<Size, 3> kSizes = {Size{0, kSmallPrograms, {1.1, 1.02}},
                                        Size{kSmallPrograms, kMostListedOps, {1.1, 1.02}},
                                        Size{kMostListedOps, kMostPricedOps, {1.1, 1.03}}};
constexpr int64_t kResolution = 100;  // the refused step is at least 1 / kResolution of the answer
constexpr int64_t kApart = 256;       // knobs are extended to within 1 / kApart of the answer
constexpr int kLooks = 8;             // layouts for that
constexpr int64_t kDownPart = 16;  // lengths at which knobs do not fit are reduced by 1 / kDownPart
constexpr double kShortest = 0.75;  // of a missed length: shorter ones are not tried
constexpr double kNotably = 1.05;   // factor to the length that is tried last
constexpr Effort kAsPlanEffort = {.evaluations = 100, .work = 15'000'000};  // at that length
// With bounds kFarBelow times as long as the answer, the factor to a length that is tried as well.
constexpr int64_t kFarBelow = 2;
constexpr double kFarPush = 1.25;
constexpr double kMostOverflow = 0.25;  // overflow up to which a shorter length may fit
constexpr Effort kEffort = {.evaluations = 200,
                            .work = 12'000'000,
                            .refinements = 0,
                            .exact = 20,
                            .attempts = 4,
                            .exact_ops = 4'000'000};
// With limits on time: the number of lengths to try, the slack on time, factors for longer lengths,
// and the gap that is good enough.
constexpr int kTimedLooks = 6;
constexpr double kTimedSlack = 1.1, kTimedPush = 1.1, kTimedStep = 1.01;
constexpr double kTimedGap = 0.005;
// The part, of the length at which compute alone takes all of the time, up to which max-seq's
// columns are pushed.
constexpr double kTimedEnough = 0.98;
constexpr Effort kTimedEffort = {.evaluations = 60,
                                 .work = 12'000'000,
                                 .refinements = 0,
                                 .exact = 8,
                                 .attempts = 4,
                                 .repaired = 2};

class Longest {
 public:
  Longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
          const SpaceOptions& options, const LongestWanted& wanted)
      : evaluator_(evaluator),
        margin_(evaluator),
        model_(model),
        hw_(hw),
        options_(options),
        wanted_(wanted) {
    wanted_.most = std::min(wanted_.most, options_.most_tokens);
    least_ = std::min(kLeast, wanted_.most);
  }

  LongestFound run(const Progress& progress) {
    find(progress);
    if (best().sequence == 0) return found_;
    if (best().sequence + found_.step > wanted_.most) hasten();
    if (in_time(found_.fits)) return found_;
    const LongestFound beyond = found_;
    const int64_t most = shorten(beyond);
    take_longer_preset(most);
    push_in_time(static_cast<double>(beyond.fits.candidate.sequence));
    settle();
    return found_;
  }

  LongestFound run_within(const LongestFound& beyond) {
    const int64_t most = shorten(beyond);
    take_longer_preset(most);
    push_in_time(kTimedEnough * static_cast<double>(most));
    settle();
    return found_;
  }

  LongestFound run_from(const LongestFound& found, const Candidate& longer) {
    time_ = wanted_.time;
    found_ = found;
    found_.fits = {longer, {}, false};
    shape_ = shape_of(longer, options_);
    extend(longer);
    settle();
    return found_;
  }

 private:
  /// Finds the longest without limits on time.
  void find(const Progress& progress) {
    // Layouts with the fewest replicas come first, as a rank then has less of a sequence. Without a
    // pipeline heads may not divide by as many ranks as with one, so layouts left out by that come
    // second.
    std::vector<FrameShape> all;
    for (const bool left_out : {false, true}) {
      const std::vector<FrameShape> shapes = min_memory_shapes(left_out);
      all.insert(all.end(), shapes.begin(), shapes.end());
      if (shapes.empty()) continue;
      bound_all(shapes, progress);
      missed_.fill(INT64_MAX);
      descend();
      while (best().sequence > 0 && push()) {
      }
    }
    while (best().sequence > 0 && (push_as_plan() || push_far())) {
    }
    settle();
    if (best().sequence == 0) least_of(all);
  }

  /// A shape, and an upper bound on the length of its candidates.
  struct Bounded {
    FrameShape shape;
    int64_t length = 0;
    bool refined = false;  // else on a coarse grid
  };

  const Candidate& best() const { return found_.fits.candidate; }

  // A length of which every rank has whole shares (SpaceOptions::of_shares), and its multiples too.
  int64_t whole_of(const FrameShape& shape) const { return unit_of(shape) * options_.of_shares; }
  int64_t step_of(const FrameShape& shape) const {
    return round_up(wanted_.granularity, whole_of(shape));
  }

  // Whether the program is small enough. Limits are lower for a ring and for a pipeline, as all
  // positions or stages are evaluated; but `plan` takes every slice of one chunk.
  bool is_moderate(const Candidate& c) const {
    const ParallelLayout& p = c.strategy.parallel;
    const bool is_cut = shape_of(c, options_).chunks > 1;
    const int64_t most = p.ring > 1                   ? kMostRingOps
                         : p.has_pipeline() && is_cut ? kMostListedOps
                                                      : kMostPricedOps;
    return ops(c) <= most;
  }
  int64_t ops(const Candidate& c) const { return ops_estimate(evaluator_.request(c)); }
  std::optional<Candidate> frame(const FrameShape& shape, int64_t length) const {
    std::optional<Candidate> c = frame_of(shape, length, options_);
    if (!c || !is_valid(c->strategy, model_, c->sequence) || !is_moderate(*c)) return std::nullopt;
    return c;
  }
  std::optional<Candidate> at(const Candidate& c, const FrameShape& shape, int64_t length) const {
    std::optional<Candidate> other = at_length(c, shape, length, model_, options_);
    if (other && !is_moderate(*other)) return std::nullopt;
    return other;
  }

  double most_seconds(const Candidate& c) const {
    return time_.most_seconds(c.sequence, micro_batches_of_step(c));
  }
  bool in_time(const Scored& s) const {
    return s.score.step_seconds <=
           wanted_.time.most_seconds(s.candidate.sequence, micro_batches_of_step(s.candidate));
  }

  // Whether a candidate of the shape may fit a length.
  enum class May { fit, not_fit, not_be };  // not_be: not valid, but longer lengths may be
  May may(const FrameShape& shape, int64_t length) {
    const std::optional<Candidate> c = frame_of(shape, length, options_);
    if (!c || !is_valid(c->strategy, model_, c->sequence) ||
        !divides_shares(model_, c->strategy, c->sequence)) {
      return May::not_be;
    }
    if (!is_moderate(*c) || !evaluator_.possible(*c)) return May::not_fit;
    const FrameChoice choice(evaluator_, *c, options_, DemandOf::bytes);
    const Mixture m = choice.bound(Goal::fastest, kInfinity);
    return m.overflow == 0 || !m.optimal ? May::fit : May::not_fit;
  }

  // The bound of every shape: coarse first, and refined for the longest. Shapes far behind the
  // longest are not examined further.
  void bound_all(const std::vector<FrameShape>& shapes, const Progress& progress) {
    bounds_.clear();
    auto likely = static_cast<double>(least_);
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (progress && i % 64 == 0) {
        progress(static_cast<int64_t>(i), static_cast<int64_t>(shapes.size()));
      }
      const FrameShape& shape = shapes[i];
      const int64_t step = step_of(shape);
      const int64_t least = std::max<int64_t>(1, ceil_div(shortest_of(shape), step));
      const int64_t most = wanted_.most / step;
      if (least > most) continue;
      const auto next = [&](int64_t count) {
        return std::min(most, static_cast<int64_t>(static_cast<double>(count) * kCoarse) + 1);
      };
      int64_t count = std::clamp<int64_t>(static_cast<int64_t>(likely) / step, least, most);
      while (count < most && may(shape, count * step) == May::not_be) {
        count = std::min(most, 2 * count);
      }
      int64_t fits = 0;
      while (may(shape, count * step) == May::fit && fits < most) {
        fits = std::exchange(count, next(count));
      }
      bounds_.push_back({shape, count * step});
      likely = std::max(likely, kFarBehind * static_cast<double>(fits * step));
    }
    while (!bounds_.empty()) {
      Bounded& longest =
          *std::max_element(bounds_.begin(), bounds_.end(),
                            [](const Bounded& a, const Bounded& b) { return a.length < b.length; });
      if (longest.refined) {
        found_.bound = std::max(found_.bound, longest.length);
        return;
      }
      refine(longest);
    }
  }
  void refine(Bounded& bounded) {
    const int64_t step = step_of(bounded.shape);
    int64_t high = bounded.length / step + 1;
    auto low = std::max<int64_t>(0, static_cast<int64_t>(static_cast<double>(high) / kCoarse) - 1);
    const int64_t apart = std::max<int64_t>(1, low / 512);
    while (high - low > apart) {
      const int64_t middle = low + (high - low) / 2;
      (may(bounded.shape, middle * step) == May::fit ? low : high) = middle;
    }
    bounded.length = std::min(bounded.length, (high - 1 + apart) * step);
    bounded.refined = true;
  }

  // Shapes of the layouts that divide a sequence among most ranks, each with the schedule that
  // holds least.
  std::vector<FrameShape> min_memory_shapes(bool left_out) {
    std::vector<RankLayout> layouts = layouts_of(model_, hw_, options_);
    int64_t fewest[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
    const auto kind = [](const ParallelLayout& p) { return p.tensor > 1 ? 2 : p.ring > 1 ? 1 : 0; };
    for (const RankLayout& layout : layouts) {
      int64_t& least = fewest[kind(layout.parallel)];
      least = std::min(least, layout.parallel.data);
    }
    int64_t fewest_flat = INT64_MAX;
    for (const RankLayout& layout : layouts) {
      const ParallelLayout& p = layout.parallel;
      if (kind(p) == 0 && !p.has_pipeline()) fewest_flat = std::min(fewest_flat, p.data);
    }
    std::erase_if(layouts, [&](const RankLayout& layout) {
      const ParallelLayout& p = layout.parallel;
      const bool first = p.data <= fewest[kind(p)];
      const bool second = kind(p) == 0 && !p.has_pipeline() && p.data <= fewest_flat;
      return left_out ? first || !second : !first;
    });
    std::vector<FrameShape> shapes;
    for (const RankLayout& layout : min_memory_layouts(evaluator_, layouts)) {
      for (FrameShape& shape :
           shapes_of(model_, layout, wanted_.most, options_, /*min_memory=*/true)) {
        shapes.push_back(std::move(shape));
      }
    }
    // reach() tries numbers of chunks in between.
    std::erase_if(shapes, [](const FrameShape& shape) {
      const bool ring = shape.layout.parallel.ring > 1;
      return shape.chunks > (ring ? kMostRingChunks : kMostChunksTried) ||
             (shape.chunks > 4 && !std::has_single_bit(static_cast<uint64_t>(shape.chunks)));
    });
    return shapes;
  }

  // Tries lengths from the bound down until something fits; at last, as far as it goes, the bound
  // of every shape, which may lie between two of these.
  void descend() {
    if (best().sequence > 0) return;
    descend_from_bound();
    if (best().sequence > 0) return;
    std::vector<int64_t> lengths;
    for (const Bounded& bounded : bounds_) lengths.push_back(bounded.length);
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    lengths.resize(std::min(lengths.size(), kBoundsTried));
    for (const int64_t length : lengths) {
      for (const double part : {kStart, kDown}) {
        const auto asked = static_cast<int64_t>(part * static_cast<double>(length));
        for (size_t size = 0; size < kSizes.size(); ++size) {
          if (reach(std::max(least_, asked), size)) return;
        }
      }
    }
  }
  void descend_from_bound() {
    auto length = static_cast<double>(found_.bound);
    if (found_.bound < wanted_.most * kStart) length *= kStart;  // bounds are hardly ever reached
    double down = kDown;
    for (bool last = false; !last; length *= std::exchange(down, down * kDown)) {
      const int64_t asked = std::max(least_, static_cast<int64_t>(length));
      last = asked == least_;
      for (size_t size = 0; size < kSizes.size(); ++size) {
        if (reach(asked, size)) return;
      }
    }
  }
  // Tries longer lengths; returns whether anything fits.
  bool push() {
    for (size_t size = 0; size < kSizes.size(); ++size) {
      for (const double times : kSizes[size].pushes) {
        const auto length = static_cast<int64_t>(times * static_cast<double>(best().sequence));
        if (length > best().sequence && length < missed_[size] && reach(length, size)) return true;
      }
    }
    return false;
  }

  // Searches a notably longer length as `plan` does, for the fastest plan. Repairs find plans there
  // that the search for most room misses. Of pipelines that differ only in their schedules, only
  // the one that holds least is tried.
  bool push_as_plan() {
    const auto length = static_cast<int64_t>(kNotably * static_cast<double>(best().sequence));
    if (length > std::min(found_.bound, wanted_.most)) return false;
    Wanted any;
    any.tokens = length;
    any.first = true;
    const std::vector<RankLayout> layouts =
        min_memory_layouts(evaluator_, layouts_of(model_, hw_, options_));
    const std::vector<Candidate> frames =
        frames_of(model_, layouts, length, options_, {false, kModerateOps});
    const Found found = best_first(evaluator_, margin_, frames, options_, any, kAsPlanEffort);
    return found.best && extend(found.best->candidate);
  }

  // Tries longer lengths if the bound allows twice the best: any candidate, and any without files,
  // as mixtures may use files where programs have no memory for the copies.
  bool push_far() {
    if (found_.bound < kFarBelow * best().sequence) return false;
    if (push_by(kFarPush)) return true;
    const TierBytes limits = evaluator_.limits();
    if (limits[kNvmeTier] == 0) return false;
    TierBytes without_files = limits;
    without_files[kNvmeTier] = 0;
    evaluator_.set_limits(without_files);
    const bool reached = push_by(kFarPush) || push_by(kNotably);
    evaluator_.set_limits(limits);
    return reached;
  }
  bool push_by(double times) {
    const auto length = static_cast<int64_t>(times * static_cast<double>(best().sequence));
    return std::any_of(kSizes.begin(), kSizes.end(),
                       [&](const Size& size) { return reaches(length, size); });
  }

  // Tries lengths from the one at which compute alone takes all of the time, which it returns, down
  // until something is found.
  int64_t shorten(const LongestFound& beyond) {
    time_ = wanted_.time;
    found_ = {};
    found_.step = wanted_.granularity;
    found_.bound = beyond.bound;
    shape_ = shape_of(beyond.fits.candidate, options_);
    const int64_t most = longest_of_compute(beyond.fits.candidate);
    auto length = static_cast<double>(most);
    double down = kDown;
    for (int looks = 0; looks < kTimedLooks && length >= static_cast<double>(least_); ++looks) {
      // At the first length, hardly anything is within the time.
      const bool thorough = looks > 0;
      if (!reach_in_time(static_cast<int64_t>(length), kTimedSlack, thorough) &&
          best().sequence == 0) {
        length *= std::exchange(down, down * kDown);
        continue;
      }
      const double next = kTimedPush * static_cast<double>(best().sequence);
      if (next >= length) break;
      length = next;
    }
    // The knobs of the longest are within the time at a short enough length.
    if (static_cast<double>(best().sequence) < kTimedEnough * static_cast<double>(most)) {
      extend(beyond.fits.candidate);
    }
    return most;
  }
  // The longest length at which compute alone is within the time, for the layout of `beyond` and
  // for those without a pipeline, as the layout that reaches furthest in memory may divide a
  // sequence among few ranks.
  int64_t longest_of_compute(const Candidate& beyond) {
    std::vector<FrameShape> shapes = {shape_of(beyond, options_)};
    for (const RankLayout& layout : layouts_of(model_, hw_, options_)) {
      if (layout.parallel.has_pipeline()) continue;
      shapes.push_back({.layout = layout, .chunk_tokens = options_.chunk_tokens});
    }
    int64_t longest = least_;
    for (FrameShape& shape : shapes) {
      shape.chunks = shape.head_groups = shape.slices = 1;
      shape.block_parts = 0;
      const auto in_time = [&](int64_t length) {
        const std::optional<Candidate> c =
            frame_of(shape, round_up(length, whole_of(shape)), options_);
        if (!c || !evaluator_.possible(*c)) return true;  // too short
        return evaluator_.demand(*c).compute_seconds() <= most_seconds(*c);
      };
      if (!in_time(longest + longest / kApart)) continue;
      int64_t low = longest, high = beyond.sequence;
      while (high - low > low / kApart + 1) {
        const int64_t middle = low + (high - low) / 2;
        (in_time(middle) ? low : high) = middle;
      }
      longest = std::max(longest, high);
    }
    return longest;
  }
  // Tries slightly longer lengths within the time until `enough` is reached. A length that no frame
  // can reach bounds the answer.
  void push_in_time(double enough) {
    double length = 0;
    for (int looks = 0; looks < kTimedLooks && best().sequence > 0; ++looks) {
      if (static_cast<double>(best().sequence) >= enough) return;
      length = std::max(length, kTimedStep * static_cast<double>(best().sequence));
      if (length >= static_cast<double>(found_.bound)) return;
      if (reach_in_time(static_cast<int64_t>(length), 1, false)) continue;
      if (none_in_time_) {
        found_.bound = static_cast<int64_t>(length);
        return;
      }
      length *= kTimedStep;
    }
  }
  // Takes a preset's plan if it is longer. The search finds few plans where memory and time are
  // both tight; presets are plans that it must not fall short of.
  void take_longer_preset(int64_t most) {
    if (static_cast<double>(best().sequence) >= kTimedEnough * static_cast<double>(most)) return;
    for (const std::string& preset : preset_names()) {
      try {
        PresetPlans plans(evaluator_, model_, hw_, preset, options_);
        const LongestFound found = plans.longest(wanted_);
        if (found.fits.candidate.sequence <= best().sequence) continue;
        found_.fits = found.fits;
        shape_ = shape_of(best(), options_);
      } catch (const Error&) {
        continue;  // the question has no layout or chunk for this preset
      }
    }
  }
  // Searches for the fastest plan of a length within `slack` times the time, or for any plan if
  // slack is 1; then extends its knobs to the longest length within the time. With `thorough` it
  // searches as `plan` does first, without limits on time, if that search finds nothing; and from
  // then on only so, once that has found a longer sequence.
  bool reach_in_time(int64_t length, double slack, bool thorough) {
    Wanted wanted;
    wanted.gap = kTimedGap;
    wanted.time = {slack * time_.step_seconds, time_.tokens_per_second / slack};
    wanted.tokens = length;
    wanted.first = slack == 1;
    std::vector<Candidate> frames = frames_of(model_, hw_, length, options_, {false, kModerateOps});
    if (!wanted.first && !shape_.layout.parallel.has_pipeline()) {
      std::erase_if(frames, [](const Candidate& c) { return c.strategy.parallel.has_pipeline(); });
    }
    if (!as_plan_) {
      const Found found = best_first(evaluator_, margin_, frames, options_, wanted, kTimedEffort);
      none_in_time_ = !found.best && found.bound >= 1e300;
      if (extend_or_shorten(found)) return true;
      if (found.best || none_in_time_ || !thorough) return false;
    }
    wanted.time = {};
    wanted.first = false;
    const Found found = best_first(evaluator_, margin_, frames, options_, wanted, {});
    if (!found.best || !extend(found.best->candidate)) return false;
    return as_plan_ = true;
  }

  // Extends what was found, or what was nearest to fitting: a candidate with a small overflow fits
  // a length that is shorter by at least that part. Returns whether the result is notably longer
  // than the best so far.
  bool extend_or_shorten(const Found& found) {
    const std::optional<Scored>& from = found.best ? found.best : found.nearest;
    if (!from || from->score.overflow > kMostOverflow) return false;
    const auto length = static_cast<double>(from->candidate.sequence);
    if (length / (1 + from->score.overflow) <= static_cast<double>(best().sequence)) return false;
    return from->candidate.sequence <= wanted_.most && extend(from->candidate);
  }

  // Searches for any candidate that fits a length, then extends its knobs. Returns whether the
  // result is notably longer than the best so far.
  bool reach(int64_t length, size_t size) {
    const bool reached = reaches(length, kSizes[size]);
    if (!reached) missed_[size] = std::min(missed_[size], length);
    return reached;
  }
  bool reaches(int64_t length, const Size& size) {
    std::vector<Candidate> frames;
    for (const Bounded& bounded : bounds_) {
      if (bounded.length < length || length > wanted_.most) continue;
      // Numbers of chunks in between have no separate bound.
      FrameShape between = bounded.shape;
      between.chunks += between.chunks / 2;
      for (const FrameShape& shape : {bounded.shape, between}) {
        if (shape.chunks > bounded.shape.chunks && bounded.shape.chunks < 4) continue;
        const std::optional<Candidate> c = frame(shape, length);
        if (c && size.has(ops(*c))) frames.push_back(*c);
      }
    }
    if (frames.empty()) return false;
    Wanted any;
    any.goal = Goal::roomiest;
    any.first = true;
    if (best().sequence > 0) any.start = at(best(), shape_, round_up(length, step_of(shape_)));
    if (any.start && !size.has(ops(*any.start))) any.start.reset();
    Effort effort = kEffort;
    effort.exact_ops = std::max(effort.exact_ops, size.at_most);
    const Found found = best_first(evaluator_, margin_, frames, options_, any, effort);
    const std::optional<Scored>& from = found.best ? found.best : found.nearest;
    if (from && length == least_) note_short(from->candidate);
    return extend_or_shorten(found);
  }

  // Finds the longest length of the same knobs, by live bytes and bounds on time, both scaled by
  // their ratio to the exact values at the length that was evaluated last. Returns whether it is
  // notably longer than the best so far.
  bool extend(const Candidate& knobs) {
    const FrameShape shape = shape_of(knobs, options_);
    const int64_t step = step_of(shape);
    BytesRatio packing;
    double slower = 1;
    const auto seems_to_fit = [&](int64_t count) {
      const std::optional<Candidate> c = at(knobs, shape, count * step);
      if (!c) return false;
      if (time_.any() && slower * evaluator_.demand(*c).step_seconds() > most_seconds(*c)) {
        return false;
      }
      return evaluator_.overflow(packing.of(evaluator_.live(*c))) == 0;
    };
    const auto fits = [&](const Candidate& c) {
      const TierBytes bytes = evaluator_.arenas(c), live = evaluator_.live(c);
      packing = BytesRatio(bytes, live);
      margin_.learn_packing(c, live, bytes);
      if (evaluator_.overflow(bytes) > 0) return false;
      if (!time_.any()) return true;
      const double seconds = evaluator_.exact(c).step_seconds;
      slower = seconds / evaluator_.demand(c).step_seconds();
      return seconds <= most_seconds(c);
    };
    int64_t low = 0, high = wanted_.most / step + 1;  // low fits, high does not
    int64_t count = knobs.sequence / step;
    const auto shortest =
        std::max(best().sequence / step,
                 time_.any() ? 0 : static_cast<int64_t>(kShortest * static_cast<double>(count)));
    for (int looks = 0; looks < kLooks; ++looks) {
      const std::optional<Candidate> c = at(knobs, shape, count * step);
      (c && fits(*c) ? low : high) = count;
      const int64_t apart = std::max<int64_t>(1, count / kApart);
      int64_t least = low, misses = std::min(high, 2 * count);
      while (misses - least > 1) {
        const int64_t middle = least + (misses - least) / 2;
        (seems_to_fit(middle) ? least : misses) = middle;
      }
      const bool is_known = least < low + apart || high - low <= apart;
      // Slightly less than the estimate is more likely to fit. If the estimate does not exceed
      // `low`, as packing has changed, takes the middle, or, as long as nothing fits, somewhat
      // less.
      if (least > low) {
        count = std::max(low + 1, least - apart / 2);
      } else {
        count = low > 0 ? low + (high - low) / 2 : count - count / kDownPart;
      }
      if (low > 0 ? is_known : count <= shortest) break;
    }
    const int64_t before = best().sequence;
    if (low * step <= before) return false;
    found_.fits = {*at(knobs, shape, low * step), {}, false};
    shape_ = shape;
    return best().sequence - before > before / kApart;
  }

  // Reduces the length until it fits, then increases it by steps until it does not.
  void settle() {
    if (best().sequence == 0) return;
    const int64_t unit = step_of(shape_);
    const auto other = [&](int64_t length) { return at(best(), shape_, length); };
    while (best().sequence > 0 && !evaluator_.fits(best())) {
      const int64_t less = round_up(best().sequence / kApart, unit);
      found_.fits.candidate = other(best().sequence - less).value_or(Candidate{});
    }
    found_.step = round_up(best().sequence / kResolution, unit);
    found_.refused = best();
    while (const std::optional<Candidate> next = other(best().sequence + found_.step)) {
      if (next->sequence > wanted_.most) break;
      found_.refused = *next;
      if (evaluator_.overflow(evaluator_.arenas(*next)) > 0) break;
      if (time_.any() && evaluator_.exact(*next).step_seconds > most_seconds(*next)) break;
      found_.fits.candidate = *next;
    }
    if (best().sequence > 0) found_.fits = {best(), evaluator_.exact(best()), true};
    found_.bound = std::max(found_.bound, best().sequence);
  }

  // Memory does not limit the length: takes the fastest plan for it, not the roomiest.
  void hasten() {
    Wanted fast;
    fast.tokens = best().sequence;
    const std::vector<Candidate> frames =
        frames_of(model_, hw_, best().sequence, options_, {false, kModerateOps});
    const Found found = best_first(evaluator_, margin_, frames, options_, fast, {});
    if (!found.best) return;
    found_.fits = *found.best;
    found_.refused = best();
    shape_ = shape_of(best(), options_);
  }

  // Keeps the candidate with the least overflow at the least length.
  void note_short(const Candidate& c) {
    const double overflow = evaluator_.overflow(evaluator_.arenas(c));
    if (overflow >= least_short_) return;
    least_short_ = overflow;
    found_.refused = c;
    found_.step = c.sequence;
  }
  // The same by mixtures, if no search reached that length.
  void least_of(const std::vector<FrameShape>& shapes) {
    if (least_short_ < kInfinity) return;
    const double nvme = evaluator_.limits()[kNvmeTier] > 0 ? 1 : 0;
    double least = kInfinity;
    for (const FrameShape& shape : shapes) {
      const std::optional<Candidate> c = frame(shape, std::max(step_of(shape), least_));
      if (!c || !evaluator_.possible(*c)) continue;
      const FrameChoice choice(evaluator_, *c, options_, DemandOf::bytes);
      const std::vector<Rounded> rounded = choice.round(Goal::roomiest, {1, 1, nvme}, kInfinity);
      if (rounded.empty()) continue;
      Candidate roomiest = rounded.front().candidate;
      roomiest.strategy.prefetch_depth = roomiest.strategy.offload_window = 0;
      const double overflow = evaluator_.overflow(evaluator_.live(roomiest));
      if (overflow >= least) continue;
      least = overflow;
      found_.refused = roomiest;
      found_.step = roomiest.sequence;
    }
  }

  Evaluator& evaluator_;
  MemoryMargin margin_;
  const ModelSpec& model_;
  const HardwareProfile& hw_;
  const SpaceOptions& options_;
  LongestWanted wanted_;
  int64_t least_;  // kLeast, or the model's limit if less
  std::vector<Bounded> bounds_;
  LongestFound found_;
  TimeLimits time_;  // the limits that apply now
  double least_short_ = kInfinity;
  bool none_in_time_ = false;  // no frame can reach the length tried last
  bool as_plan_ = false;       // only a search as that of `plan` has found the best so far
  FrameShape shape_;           // of the best so far
  std::array<int64_t, kSizes.size()>
      missed_{};  // by size: the shortest length at which nothing fits
};

}  // namespace

std::optional<Candidate> at_length(const Candidate& c, const FrameShape& shape, int64_t length,
                                   const ModelSpec& model, const SpaceOptions& options) {
  std::optional<Candidate> other = frame_of(shape, length, options);
  if (!other) return std::nullopt;
  Strategy s = c.strategy;
  s.chunk_tokens = other->strategy.chunk_tokens;
  s.block_tokens = other->strategy.block_tokens;
  s.parallel.pipeline.slices = other->strategy.parallel.pipeline.slices;
  other->strategy = std::move(s);
  if (!is_valid(other->strategy, model, other->sequence)) return std::nullopt;
  return other;
}

LongestFound longest_within(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                            const SpaceOptions& options, const LongestWanted& wanted,
                            const LongestFound& beyond) {
  return Longest(evaluator, model, hw, options, wanted).run_within(beyond);
}

LongestFound longest_from(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                          const SpaceOptions& options, const LongestWanted& wanted,
                          const LongestFound& found, const Candidate& longer) {
  return Longest(evaluator, model, hw, options, wanted).run_from(found, longer);
}

LongestFound longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                     const SpaceOptions& options, const LongestWanted& wanted,
                     const Progress& progress) {
  return Longest(evaluator, model, hw, options, wanted).run(progress);
}

}  // namespace longspan
