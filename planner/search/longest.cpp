#include "planner/search/longest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/units.h"
#include "planner/program/ops_estimate.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr int64_t kFirst = 1024;  // tokens asked about first
constexpr double kFirstRoom = 0.97;
constexpr double kSpare = 0.0005;
constexpr int64_t kMostOps = 1'000'000;
// Ops that are laid out in all, and that a layout counts as at least: a few seconds.
constexpr int64_t kEffortOps = 12'000'000;
constexpr int64_t kLeastOps = 20'000;
constexpr double kRoomy = 0.6;     // of the device
constexpr int kRounds = 4;         // roundings of a shape, each with less room
constexpr int kShorter = 6;        // lengths laid out below one that packs badly
constexpr int kLooks = 12;         // shapes that are verified without being longer than the best
constexpr double kAlike = 0.005;   // of the longest
constexpr double kHopeless = 0.8;  // of the longest bound: shapes that are not kept
constexpr int kNvme = static_cast<int>(Tier::nvme);

class Longest {
 public:
  Longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
          const SpaceOptions& options, const LongestWanted& wanted)
      : evaluator_(evaluator), model_(model), hw_(hw), options_(options), wanted_(wanted) {
    room_[kNvme] = evaluator.limits()[kNvme] > 0 ? 1 : 0;
  }

  LongestFound run(const std::function<void(int64_t, int64_t)>& progress) {
    std::vector<Hope> hopes = hopes_of_all(progress);
    LongestFound found;
    for (const Hope& hope : hopes) found.bound = std::max(found.bound, hope.length);
    // The longest first; between lengths that are as good as equal, that of the smaller program.
    // Packing loses most where few large buffers fill the device: those with room there come first.
    const auto rank = [&](const Hope& hope) {
      const double part = static_cast<double>(hope.length) / static_cast<double>(found.bound);
      return std::tuple{-std::llround(part / kAlike), !hope.roomy, hope.shape.chunks};
    };
    std::stable_sort(hopes.begin(), hopes.end(),
                     [&](const Hope& a, const Hope& b) { return rank(a) < rank(b); });
    int looks = kLooks;
    for (const Hope& hope : hopes) {
      // What is not longer by what makes lengths alike is not worth a look.
      if (static_cast<double>(hope.length) <=
          static_cast<double>(found.fits.candidate.sequence) * (1 + kAlike)) {
        continue;
      }
      if (found.fits.candidate.sequence > 0 && looks-- <= 0) break;
      const int64_t before = found.fits.candidate.sequence;
      verify(hope, found);
      if (found.fits.candidate.sequence > before) looks = kLooks;
    }
    if (found.fits.candidate.sequence > 0) {
      found.fits.score = evaluator_.exact(found.fits.candidate);
      found.fits.exact = true;
    } else if (!shapes_.empty()) {
      least_of_all(found);
    }
    return found;
  }

 private:
  // Arenas, as long as there is effort left; then as if all were too large.
  TierBytes laid_out(const Candidate& c) {
    if (effort_ <= 0) return {INT64_MAX / 4, INT64_MAX / 4, INT64_MAX / 4};
    effort_ -= std::max(kLeastOps, ops_estimate(evaluator_.request(c)));
    return evaluator_.arenas(c);
  }

  /// A shape, and up to which length it may fit.
  struct Hope {
    FrameShape shape;
    int64_t length = 0;
    bool roomy = false;  // much of the device is free at nearly that length
  };

  int64_t step_of(const FrameShape& shape) const {
    return round_up(wanted_.granule, unit_of(shape));
  }

  std::optional<Candidate> frame(const FrameShape& shape, int64_t length) const {
    std::optional<Candidate> c = frame_of(shape, length, options_);
    if (!c || !is_valid(c->strategy, model_, c->sequence)) return std::nullopt;
    if (ops_estimate(evaluator_.request(*c)) > kMostOps) return std::nullopt;
    return c;
  }

  // By both limits on time, of a step.
  double most_seconds(const Candidate& c) const {
    if (wanted_.least_tokens_per_second <= 0) return wanted_.most_seconds;
    const double tokens = static_cast<double>(c.sequence * sequences_of_step(c));
    return std::min(wanted_.most_seconds, tokens / wanted_.least_tokens_per_second);
  }
  // How many times the allowed a step takes; at most 1 where time is not limited.
  double time_share(const Candidate& c) {
    const double most = most_seconds(c);
    return most < 1e300 ? evaluator_.fast(c).step_seconds / most : 0;
  }

  bool may_fit(const FrameShape& shape, int64_t length) {
    const std::optional<Candidate> c = frame(shape, length);
    if (!c || !evaluator_.possible(*c)) return false;
    const FrameChoice choice(evaluator_, *c, options_);
    const Mixture m = choice.bound(Goal::fastest, most_seconds(*c));
    return m.overflow == 0 || !m.optimal;
  }

  template <class Fits>
  static int64_t boundary(int64_t low, int64_t high, const Fits& fits) {
    while (high - low > std::max<int64_t>(1, low / 512)) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }

  // Those that may be nearly as long as the longest may be.
  std::vector<Hope> hopes_of_all(const std::function<void(int64_t, int64_t)>& progress) {
    shapes_ = lean_shapes();
    std::vector<Hope> hopes;
    int64_t longest = 0;
    // From the middle of chunk counts: what is longest hardly has one chunk.
    for (size_t i = 0; i < shapes_.size(); ++i) {
      if (progress && i % 64 == 0) {
        progress(static_cast<int64_t>(i), static_cast<int64_t>(shapes_.size()));
      }
      const FrameShape& shape = shapes_[shapes_.size() - 1 - i];
      const int64_t step = step_of(shape);
      const auto fits = [&](int64_t count) { return may_fit(shape, count * step); };
      const auto hopeless = static_cast<int64_t>(kHopeless * static_cast<double>(longest));
      const int64_t least =
          std::max({int64_t{1}, ceil_div(shortest_of(shape), step), hopeless / step});
      const int64_t most = wanted_.most / step;
      if (least > most || !fits(least)) continue;
      int64_t high = 2 * least;
      while (high <= most && fits(high)) high *= 2;
      const int64_t low = std::max(least, high / 2);
      Hope hope{shape, boundary(low, std::min(high, most + 1), fits) * step};
      longest = std::max(longest, hope.length);
      hopes.push_back(std::move(hope));
    }
    std::erase_if(hopes, [&](const Hope& hope) {
      return static_cast<double>(hope.length) < kHopeless * static_cast<double>(longest);
    });
    for (Hope& hope : hopes) {
      const int64_t step = step_of(hope.shape);
      const auto nearly =
          static_cast<int64_t>(0.97 * static_cast<double>(hope.length)) / step * step;
      const std::optional<Candidate> c = frame(hope.shape, nearly);
      if (!c) continue;
      const Mixture m =
          FrameChoice(evaluator_, *c, options_).expect(Goal::least_device, room_, most_seconds(*c));
      hope.roomy = m.overflow == 0 && m.objective < kRoomy;
    }
    return hopes;
  }

  // Shapes of the layouts that share a sequence among most ranks, each with the schedule that holds
  // least.
  std::vector<FrameShape> lean_shapes() {
    std::vector<RankLayout> layouts = layouts_of(model_, hw_, options_);
    int64_t fewest[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
    const auto kind = [](const Parallel& p) { return p.tensor > 1 ? 2 : p.ring > 1 ? 1 : 0; };
    for (const RankLayout& layout : layouts) {
      int64_t& least = fewest[kind(layout.parallel)];
      least = std::min(least, layout.parallel.data);
    }
    std::erase_if(layouts, [&](const RankLayout& layout) {
      return layout.parallel.data > fewest[kind(layout.parallel)];
    });
    // By stages, slices and grid: the schedule with least in flight, of those that recompute and of
    // those that cannot.
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool>,
             std::pair<double, RankLayout>>
        least;
    std::vector<FrameShape> shapes;
    const auto add = [&](const RankLayout& layout) {
      for (FrameShape& shape : shapes_of(model_, layout, wanted_.most, options_, /*lean=*/true)) {
        shapes.push_back(std::move(shape));
      }
    };
    for (const RankLayout& layout : layouts) {
      const Parallel& p = layout.parallel;
      if (!p.has_pipeline()) {
        add(layout);
        continue;
      }
      const std::optional<Evaluator::InFlight> held = evaluator_.in_flight(p, layout.micro_batches);
      if (!held) continue;
      const auto [it, fresh] = least.try_emplace(
          {p.pipeline.stages, p.pipeline.slices, p.tensor, p.ring, p.ulysses, held->splits},
          held->microbatches, layout);
      if (!fresh && held->microbatches < it->second.first) {
        it->second = {held->microbatches, layout};
      }
    }
    for (const auto& [key, entry] : least) add(entry.second);
    return shapes;
  }

  // The longest of one shape that fits exactly, if longer than what was found.
  void verify(const Hope& hope, LongestFound& found) {
    const FrameShape& shape = hope.shape;
    const int64_t step = step_of(shape);
    const int64_t beyond = found.fits.candidate.sequence / step;
    int64_t high = hope.length / step + 1;
    Room room = room_;
    for (int tier = 0; tier < 2; ++tier) room[tier] *= kFirstRoom;
    time_room_ = 1;
    for (int round = 0; round < kRounds && effort_ > 0; ++round) {
      const auto may = [&](int64_t count) {
        return candidate_at(shape, count * step, room).has_value();
      };
      const int64_t low = std::max(beyond + 1, ceil_div(shortest_of(shape), step));
      if (low >= high || !may(low)) return;
      const int64_t count = boundary(low, high, may);
      const std::optional<Candidate> c = candidate_at(shape, count * step, room);
      if (!c) return;
      TierBytes bytes = evaluator_.live(*c);
      if (evaluator_.overflow(bytes) == 0) bytes = laid_out(*c);
      const double late = evaluator_.overflow(bytes) == 0 ? time_share(*c) : 0;
      if (late > 1) {
        time_room_ = time_room_ / late - kSpare;
        continue;
      }
      if (evaluator_.overflow(bytes) == 0) {
        extend(*c, shape, count, high, found);
        return;
      }
      // The same knobs fit a shorter length; with less room other knobs may fit a longer one.
      shorten(*c, shape, std::max(low, found.fits.candidate.sequence / step + 1), count, found);
      room = tightened(room, bytes, evaluator_.limits());
    }
  }

  std::optional<Candidate> candidate_at(const FrameShape& shape, int64_t length, const Room& room) {
    const std::optional<Candidate> c = frame(shape, length);
    if (!c) return std::nullopt;
    std::vector<Rounded> rounded = FrameChoice(evaluator_, *c, options_)
                                       .round(Goal::fastest, room, time_room_ * most_seconds(*c));
    if (rounded.empty()) return std::nullopt;
    Candidate best = rounded.front().candidate;
    best.strategy.prefetch_depth = best.strategy.offload_window = 0;
    return best;
  }

  // The knobs of `c` at another length of its shape.
  std::optional<Candidate> at_length(const Candidate& c, const FrameShape& shape,
                                     int64_t length) const {
    std::optional<Candidate> other = frame(shape, length);
    if (!other) return std::nullopt;
    Strategy s = c.strategy;
    s.chunk_tokens = other->strategy.chunk_tokens;
    s.block_tokens = other->strategy.block_tokens;
    other->strategy = std::move(s);
    if (!is_valid(other->strategy, model_, other->sequence)) return std::nullopt;
    return other;
  }

  // From a candidate that fits, with its knobs, to the longest length of its shape.
  void extend(const Candidate& c, const FrameShape& shape, int64_t low, int64_t high,
              LongestFound& found) {
    const int64_t step = step_of(shape);
    const auto fits = [&](int64_t count) {
      const std::optional<Candidate> other = at_length(c, shape, count * step);
      if (!other || evaluator_.overflow(evaluator_.live(*other)) > 0) return false;
      return evaluator_.overflow(laid_out(*other)) == 0 && time_share(*other) <= 1;
    };
    // In growing steps, and back; packing makes a few lengths fit that lie behind one that does
    // not.
    for (int64_t stride = std::max<int64_t>(1, low / 128); low + stride < high; stride *= 2) {
      if (!fits(low + stride)) {
        high = low + stride;
        break;
      }
      low += stride;
    }
    const int64_t apart = std::max<int64_t>(1, low / 512);
    while (high - low > apart) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    // What bounds alone have ruled out is laid out once, too.
    if (fits(high)) std::swap(low, high), high = low + apart;
    const std::optional<Candidate> best = at_length(c, shape, low * step);
    if (!best || best->sequence <= found.fits.candidate.sequence) return;
    found.fits.candidate = *best;
    found.step = (high - low) * step;
    found.refused = at_length(c, shape, high * step).value_or(found.fits.candidate);
  }

  // With the knobs of a candidate: the longest length that fits from `low` on, below `high`.
  void shorten(const Candidate& c, const FrameShape& shape, int64_t low, int64_t high,
               LongestFound& found) {
    const int64_t step = step_of(shape);
    const auto lives = [&](int64_t count) {
      const std::optional<Candidate> other = at_length(c, shape, count * step);
      return other && evaluator_.overflow(evaluator_.live(*other)) == 0 && time_share(*other) <= 1;
    };
    if (low >= high || !lives(low)) return;
    const int64_t most = boundary(low, high, lives);
    for (int64_t count = most, looks = 0; count > low && looks < kShorter; ++looks) {
      const std::optional<Candidate> other = at_length(c, shape, count * step);
      if (other && evaluator_.overflow(laid_out(*other)) == 0) {
        extend(c, shape, count, high, found);
        return;
      }
      count -= std::max<int64_t>(1, count / 32);
    }
  }

  // What the least length needs at least, where not even that fits.
  void least_of_all(LongestFound& found) {
    const Room room = {1e9, 1e9, room_[kNvme] > 0 ? 1e9 : 0};
    double least = std::numeric_limits<double>::infinity();
    for (const FrameShape& shape : shapes_) {
      const int64_t step = step_of(shape);
      const std::optional<Candidate> c = candidate_at(shape, std::max(step, kFirst), room);
      if (!c) continue;
      const double overflow = evaluator_.overflow(evaluator_.live(*c));
      if (overflow >= least) continue;
      least = overflow;
      found.refused = *c;
      found.step = c->sequence;
    }
  }

  Evaluator& evaluator_;
  const ModelSpec& model_;
  const HardwareProfile& hw_;
  const SpaceOptions& options_;
  const LongestWanted& wanted_;
  Room room_ = {1, 1, 1};
  double time_room_ = 1;  // of what a step may take, for what bounds on it do not see
  std::vector<FrameShape> shapes_;
  int64_t effort_ = kEffortOps;
};

}  // namespace

LongestFound longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                     const SpaceOptions& options, const LongestWanted& wanted,
                     const std::function<void(int64_t, int64_t)>& progress) {
  return Longest(evaluator, model, hw, options, wanted).run(progress);
}

}  // namespace longspan
