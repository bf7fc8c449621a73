#include "planner/search/longest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/units.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/steps.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr int64_t kFirst = 1024;  // tokens asked about first
constexpr double kFirstRoom = 0.985;
// Ops that are laid out in all, the part of them that is for the climb, and what a look at live
// bytes counts as, as its sampled programs are lowered.
constexpr int64_t kEffortOps = 4'500'000;
constexpr int64_t kClimbOps = 1'500'000;
constexpr int64_t kLiveOps = 20'000;
constexpr int kRounds = 3;          // roundings of a shape, each with less room
constexpr size_t kStates = 3;       // placements of states that the first of them tries
constexpr int kLooks = 3;           // layouts of one choice of knobs, at ever shorter lengths
constexpr size_t kNeighbours = 20;  // looked at around the best
// More chunks hold hardly less, and make large programs.
constexpr int64_t kMostChunks = 256;
constexpr int64_t kMostRingChunks = 32;
constexpr int64_t kFirstOps = 1'000'000;
constexpr int64_t kMostRingOps = 1'000'000;
constexpr double kLeastPacking = 1.008;  // of live bytes, until more was seen
constexpr double kClose = 0.02;          // of a length: the smaller program is looked at first
constexpr double kAlike = 0.004;         // of a length
constexpr int64_t kResolution = 100;     // the answer's part that the last push is longer by
constexpr int64_t kApart = 256;          // the answer's part that its last step is at most
constexpr int64_t kFirstChunks = 16;     // of a fixed size: fewer may not be valid
constexpr double kCoarse = 1.25;  // lengths that shapes are asked about at first are so far apart
constexpr double kPushes[] = {1.25, 1.1, 1.01};
constexpr Effort kPushEffort = {.evaluations = 200,
                                .work = 5'000'000,
                                .refinements = 0,
                                .exact = 40,
                                .attempts = 6,
                                .exact_ops = 4'000'000};
constexpr int kNvme = static_cast<int>(Tier::nvme);

class Longest {
 public:
  Longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
          const SpaceOptions& options, const LongestWanted& wanted)
      : evaluator_(evaluator), model_(model), hw_(hw), options_(options), wanted_(wanted) {
    room_[kNvme] = evaluator.limits()[kNvme] > 0 ? 1 : 0;
  }

  LongestFound run(const std::function<void(int64_t, int64_t)>& progress) {
    // With more replicas a rank has more of a sequence. Without a pipeline heads may not divide by
    // as many ranks as with one, so that what was left out comes second.
    std::vector<FrameShape> all;
    for (const bool left_out : {false, true}) {
      shapes_ = lean_shapes(left_out);
      all.insert(all.end(), shapes_.begin(), shapes_.end());
      if (!shapes_.empty()) look_at_shapes(progress);
    }
    shapes_ = std::move(all);
    settle();
    found_.bound = std::max(found_.bound, found_.fits.candidate.sequence);
    if (found_.fits.candidate.sequence > 0) {
      found_.fits.score = evaluator_.exact(found_.fits.candidate);
      found_.fits.exact = true;
    } else if (!shapes_.empty()) {
      least_of_all();
    }
    return found_;
  }

 private:
  void look_at_shapes(const std::function<void(int64_t, int64_t)>& progress) {
    effort_ = kEffortOps;
    floor_ = kClimbOps;
    bounds_.clear();
    waiting_ = hopes_of_all(progress);
    refine_longest();
    for (const Hope& hope : waiting_) bounds_.emplace_back(hope.shape, hope.length);
    // Large programs take long to lay out: what fits with others says whether they are worth it.
    std::erase_if(waiting_, [&](const Hope& hope) {
      const std::optional<Candidate> c = frame(hope.shape, hope.length);
      return c && ops_estimate(evaluator_.request(*c)) > kFirstOps;
    });
    // Where nothing fits yet, it takes longer to say that nothing does.
    const auto goes_on = [&] {
      return effort_ > (found_.fits.candidate.sequence > 0 ? floor_ : -2 * kEffortOps);
    };
    while (!waiting_.empty() && goes_on()) {
      const auto next =
          std::min_element(waiting_.begin(), waiting_.end(),
                           [&](const Hope& a, const Hope& b) { return rank(a) < rank(b); });
      Hope hope = *next;
      waiting_.erase(next);
      // What others reached orders kinds that are not known yet; it does not put them out.
      const bool unknown = !hope.knobs && !learned_.contains(kind_of(hope.shape));
      if (!longer(unknown ? static_cast<double>(hope.length) : promise(hope))) continue;
      if (!hope.refined) {
        refine(hope);
        waiting_.push_back(hope);
      } else if (!hope.knobs) {
        choose(hope);
      } else if (packs_as_known(hope)) {
        look(std::move(hope));
      }
    }
    floor_ -= kClimbOps;
    while (found_.fits.candidate.sequence > 0 && effort_ > floor_ && climb()) {
    }
    // Where nothing fits yet, anything that does is looked for at ever shorter lengths.
    for (int64_t length = found_.bound; found_.fits.candidate.sequence == 0 && length >= kFirst;
         length /= 2) {
      if (!push_to(length, kFirstOps)) push_to(length, kMostPricedOps);
    }
    while (found_.fits.candidate.sequence > 0 && push()) {
    }
  }

  /// Bytes of arenas in live bytes.
  using Packing = std::array<double, kTierCount>;
  /// A shape, and up to which length it may fit: by bounds; with its other knobs, by live bytes and
  /// by what packing has been seen to add to them.
  struct Hope {
    FrameShape shape;
    int64_t length = 0;
    bool refined = false;  // the length: else it is one of a coarse grid
    std::optional<Candidate> knobs;
    int64_t ops = 0;  // about, with knobs
    int looks = 0;
    double room = kFirstRoom;  // of the limits, for roundings
    Packing packing = {1, 1, 1};
  };
  /// Shapes that bounds err alike on.
  using Kind = std::tuple<int64_t, bool, bool, bool, bool, bool, Tier, Tier, BackwardOrder, int>;
  static Kind kind_of(const FrameShape& shape) {
    const Parallel& p = shape.layout.parallel;
    const int cut = shape.head_groups > 1
                        ? -1
                        : std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, shape.chunks)));
    return {p.data,
            p.tensor > 1,
            p.ring > 1,
            p.ulysses > 1,
            p.pipeline.stages > 1,
            p.pipeline.slices > 1,
            shape.kv,
            shape.idle,
            shape.order,
            cut};
  }

  double promise(const Hope& hope) const {
    const auto length = static_cast<double>(hope.length);
    if (hope.knobs) return length;
    const auto known = learned_.find(kind_of(hope.shape));
    return length * (known == learned_.end() ? best_learned_ : known->second);
  }
  // The longest first; of those that are as good as equal, the smaller program.
  std::tuple<int64_t, int64_t, int64_t> rank(const Hope& hope) const {
    return {-std::llround(std::log(std::max(1.0, promise(hope))) / kClose), hope.ops,
            hope.shape.chunks};
  }
  // What live bytes of new knobs take: programs of a ring are shrunken in their layers only.
  int64_t live_ops(const Hope& hope) const {
    const Parallel& p = hope.shape.layout.parallel;
    return p.ring > 1 || p.has_pipeline() ? kLiveOps + hope.ops / 8 : kLiveOps;
  }
  bool longer(double length) const {
    return length > static_cast<double>(found_.fits.candidate.sequence) * (1 + kAlike);
  }

  int64_t step_of(const FrameShape& shape) const {
    return round_up(wanted_.granule, unit_of(shape));
  }

  std::optional<Candidate> frame(const FrameShape& shape, int64_t length) const {
    std::optional<Candidate> c = frame_of(shape, length, options_);
    if (!c || !is_valid(c->strategy, model_, c->sequence)) return std::nullopt;
    if (!is_moderate(*c)) return std::nullopt;
    return c;
  }
  // Whether a program is worth its time: positions of a ring and stages of a pipeline differ, and
  // all are looked at.
  bool is_moderate(const Candidate& c) const {
    const bool piped = c.strategy.parallel.has_pipeline();
    const int64_t most = is_ring(c) ? kMostRingOps : piped ? kMostListedOps : kMostPricedOps;
    return ops_estimate(evaluator_.request(c)) <= most;
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

  std::vector<Hope> hopes_of_all(const std::function<void(int64_t, int64_t)>& progress) {
    std::vector<Hope> hopes;
    double likely = kFirst;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      if (progress && i % 64 == 0) {
        progress(static_cast<int64_t>(i), static_cast<int64_t>(shapes_.size()));
      }
      const FrameShape& shape = shapes_[i];
      const int64_t step = step_of(shape);
      const int64_t least = std::max<int64_t>(1, ceil_div(shortest_of(shape), step));
      const int64_t most = wanted_.most / step;
      const auto count_of = [&](double length) {
        return std::clamp<int64_t>(static_cast<int64_t>(length) / step, least, most);
      };
      const auto fits = [&](int64_t count) { return may_fit(shape, count * step); };
      if (least > most) continue;
      // Shapes that follow each other reach about as far.
      int64_t low = count_of(likely);
      if (fits(low)) {
        while (low < most && fits(count_of(likely * kCoarse))) low = count_of(likely *= kCoarse);
      } else {
        while (low > least && !fits(low)) low = count_of(likely /= kCoarse);
        // One chunk of a fixed size may be what a shape that streams its chunks is not valid for.
        while (low < std::min(most, kFirstChunks * least) && !fits(low)) low *= 2;
        if (low > most || !fits(low)) continue;
        for (likely = static_cast<double>(low * step); fits(count_of(likely * kCoarse));) {
          if (count_of(likely *= kCoarse) == most) break;
        }
      }
      Hope hope;
      hope.shape = shape;
      hope.length = std::min(most, count_of(likely * kCoarse) + 1) * step;
      hopes.push_back(std::move(hope));
    }
    return hopes;
  }

  // From lengths far apart to the length up to which the shape may fit.
  void refine(Hope& hope) {
    const int64_t step = step_of(hope.shape);
    const int64_t high = hope.length / step;
    const auto low = static_cast<int64_t>(static_cast<double>(high) / kCoarse);
    const auto fits = [&](int64_t count) { return may_fit(hope.shape, count * step); };
    hope.length = (boundary(std::max<int64_t>(1, low), high + 1, fits) + high / 512) * step;
    hope.refined = true;
  }
  // The bound of all is that of the longest once none that is not refined exceeds it.
  void refine_longest() {
    while (!waiting_.empty()) {
      const auto longest =
          std::max_element(waiting_.begin(), waiting_.end(),
                           [](const Hope& a, const Hope& b) { return a.length < b.length; });
      if (longest->refined) {
        found_.bound = std::max(found_.bound, longest->length);
        return;
      }
      refine(*longest);
    }
  }

  // Shapes of the layouts that share a sequence among most ranks, each with the schedule that holds
  // least.
  std::vector<FrameShape> lean_shapes(bool left_out) {
    std::vector<RankLayout> layouts = layouts_of(model_, hw_, options_);
    int64_t fewest[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
    const auto kind = [](const Parallel& p) { return p.tensor > 1 ? 2 : p.ring > 1 ? 1 : 0; };
    for (const RankLayout& layout : layouts) {
      int64_t& least = fewest[kind(layout.parallel)];
      least = std::min(least, layout.parallel.data);
    }
    int64_t fewest_flat = INT64_MAX;
    for (const RankLayout& layout : layouts) {
      const Parallel& p = layout.parallel;
      if (kind(p) == 0 && !p.has_pipeline()) fewest_flat = std::min(fewest_flat, p.data);
    }
    std::erase_if(layouts, [&](const RankLayout& layout) {
      const Parallel& p = layout.parallel;
      const bool first = p.data <= fewest[kind(p)];
      const bool second = kind(p) == 0 && !p.has_pipeline() && p.data <= fewest_flat;
      return left_out ? first || !second : !first;
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
    // The climb tries numbers of chunks in between.
    std::erase_if(shapes, [](const FrameShape& shape) {
      const bool ring = shape.layout.parallel.ring > 1;
      return shape.chunks > (ring ? kMostRingChunks : kMostChunks) ||
             (shape.chunks > 4 && !std::has_single_bit(static_cast<uint64_t>(shape.chunks)));
    });
    return shapes;
  }

  // Knobs for a shape: roundings with the room that bounds and live bytes leave.
  void choose(const Hope& hope) {
    const FrameShape& shape = hope.shape;
    const int64_t step = step_of(shape);
    const int64_t low =
        std::max(found_.fits.candidate.sequence / step + 1, ceil_div(shortest_of(shape), step));
    Room room = room_;
    for (int tier = 0; tier < 2; ++tier) room[tier] *= hope.room;
    double time_room = 1;
    int64_t longest = 0;
    const bool fresh = !learned_.contains(kind_of(shape));
    std::vector<Strategy> tried;
    for (int round = 0; round < kRounds; ++round) {
      const auto may = [&](int64_t count) {
        return !roundings(shape, count * step, room, time_room, 0).empty();
      };
      if (low * step > hope.length || !may(low)) break;
      const int64_t count = boundary(low, hope.length / step + 1, may);
      const std::vector<Candidate> rounded =
          roundings(shape, count * step, room, time_room, fresh && round == 0 ? kStates : 0);
      for (const Candidate& c : rounded) {
        Strategy knobs = c.strategy;
        knobs.chunk_tokens = knobs.block_tokens = 0;
        if (std::find(tried.begin(), tried.end(), knobs) != tried.end()) continue;
        tried.push_back(std::move(knobs));
        Hope chosen = hope;
        chosen.knobs = c;
        chosen.packing = packing_of(shape);
        chosen.ops = ops_estimate(evaluator_.request(c));
        effort_ -= live_ops(chosen);
        chosen.length = live_longest(chosen);
        if (chosen.length == 0) continue;
        longest = std::max(longest, chosen.length);
        if (longer(promise(chosen))) waiting_.push_back(chosen);
      }
      const TierBytes needed = live(rounded.front());
      const double late = time_share(rounded.front());
      if (evaluator_.overflow(needed) == 0 && late <= 1) break;
      room = tightened(room, needed, evaluator_.limits());
      if (late > 1) time_room /= late;
    }
    const double ratio = static_cast<double>(longest) / static_cast<double>(hope.length);
    best_learned_ = learned_.empty() ? ratio : std::max(best_learned_, ratio);
    double& of_kind = learned_.try_emplace(kind_of(shape), 0).first->second;
    of_kind = std::max(of_kind, ratio);
  }

  // Without room for any: none. The first is the fastest; then the best with states elsewhere.
  std::vector<Candidate> roundings(const FrameShape& shape, int64_t length, const Room& room,
                                   double time_room, size_t states) {
    const std::optional<Candidate> c = frame(shape, length);
    if (!c) return {};
    const FrameChoice choice(evaluator_, *c, options_);
    const double seconds = time_room * most_seconds(*c);
    std::vector<Rounded> rounded = choice.round(Goal::fastest, room, seconds);
    if (rounded.empty()) return {};
    rounded.resize(1);
    // Bounds err most on what is nearly full: what leaves most room may reach further.
    for (Rounded& r : choice.round(Goal::roomiest, {1, 1, room[kNvme]}, seconds)) {
      rounded.push_back(std::move(r));
      break;
    }
    if (states > 0) {
      for (Rounded& r : choice.round_each(Group::states, Goal::fastest, room, seconds, states)) {
        rounded.push_back(std::move(r));
      }
    }
    std::vector<Candidate> all;
    for (Rounded& r : rounded) {
      r.candidate.strategy.prefetch_depth = r.candidate.strategy.offload_window = 0;
      all.push_back(std::move(r.candidate));
    }
    return all;
  }

  // The longest length of these knobs by live bytes and packing; 0: none beyond what was found.
  int64_t live_longest(const Hope& hope) {
    const int64_t step = step_of(hope.shape);
    const auto fits = [&](int64_t count) {
      const std::optional<Candidate> c = at(*hope.knobs, hope.shape, count * step);
      if (!c) return false;
      TierBytes bytes = live(*c);
      for (int tier = 0; tier < kTierCount; ++tier) {
        bytes[tier] = static_cast<int64_t>(static_cast<double>(bytes[tier]) * hope.packing[tier]);
      }
      return evaluator_.overflow(bytes) == 0 && time_share(*c) <= 1;
    };
    const int64_t least = found_.fits.candidate.sequence / step + 1;
    const int64_t most = wanted_.most / step;
    int64_t low = std::max(least, hope.knobs->sequence / step);
    if (low > most) return 0;
    int64_t high = low;
    if (fits(low)) {
      for (high += 1 + high / 8; high <= most && fits(high); high += 1 + high / 8) low = high;
    } else {
      while (low > least && !fits(low)) {
        high = low;
        low = std::max(least, low - 1 - low / 8);
      }
      if (!fits(low)) return 0;
    }
    return boundary(low, std::min(high, most + 1), fits) * step;
  }

  // What is sampled may miss buffers that only a part of the layers has: bounds do not.
  TierBytes live(const Candidate& c) {
    TierBytes bytes = evaluator_.live(c);
    const TierBytes least = evaluator_.demand(c).peak_bytes();
    for (int tier = 0; tier < kTierCount; ++tier) bytes[tier] = std::max(bytes[tier], least[tier]);
    return bytes;
  }

  static bool is_ring(const Candidate& c) { return c.strategy.parallel.ring > 1; }
  bool fits(const Candidate& c) {
    const int64_t before = evaluator_.laid_out();
    const bool fitting = evaluator_.nearly_fits(c);
    effort_ -= evaluator_.laid_out() - before;
    return fitting;
  }

  // Kinds that are not known yet pack better than the others so far, more often than not.
  Packing packing_of(const FrameShape& shape) const {
    const auto known = packing_.find(kind_of(shape));
    if (known != packing_.end()) return known->second;
    Packing packing = usual_;
    for (int tier = 0; tier < kTierCount; ++tier) {
      packing[tier] = kLeast[tier] + (packing[tier] - kLeast[tier]) / 3;
    }
    return packing;
  }
  // False if it has been seen since that its like pack worse: it waits again, for a shorter length.
  bool packs_as_known(Hope& hope) {
    const Packing known = packing_of(hope.shape);
    Packing packing = hope.packing;
    for (int tier = 0; tier < kTierCount; ++tier)
      packing[tier] = std::max(packing[tier], known[tier]);
    if (packing == hope.packing) return true;
    hope.packing = packing;
    hope.length = live_longest(hope);
    if (longer(promise(hope))) waiting_.push_back(std::move(hope));
    return false;
  }

  // Lays knobs out at the length they promise; where they do not fit, they wait again with what
  // packing added.
  void look(Hope hope) {
    const std::optional<Candidate> c = at(*hope.knobs, hope.shape, hope.length);
    if (!c) return;
    if (fits(*c)) {
      extend(hope);
      return;
    }
    const int64_t before = evaluator_.laid_out();
    const TierBytes bytes = evaluator_.arenas(*c), least = live(*c);
    effort_ -= evaluator_.laid_out() - before;
    for (int tier = 0; tier < kTierCount; ++tier) {
      if (bytes[tier] <= evaluator_.limits()[tier]) continue;
      hope.packing[tier] =
          static_cast<double>(bytes[tier]) / static_cast<double>(std::max<int64_t>(1, least[tier]));
      for (Packing* like :
           {&packing_.try_emplace(kind_of(hope.shape), kLeast).first->second, &usual_}) {
        double& known = (*like)[tier];
        known = known > kLeastPacking ? std::min(known, hope.packing[tier]) : hope.packing[tier];
      }
    }
    // Other knobs of the shape may leave packing its room.
    if (hope.looks == 0 && hope.room == kFirstRoom) {
      Hope again = hope;
      again.knobs.reset();
      again.room /= *std::max_element(hope.packing.begin(), hope.packing.end());
      waiting_.push_back(std::move(again));
    }
    hope.length = live_longest(hope);
    if (++hope.looks < kLooks && longer(promise(hope))) waiting_.push_back(std::move(hope));
  }

  // From what nearly fits to what does.
  void settle() {
    while (found_.fits.candidate.sequence > 0 && !evaluator_.fits(found_.fits.candidate)) {
      const Candidate& c = found_.fits.candidate;
      found_.refused = c;
      const int64_t step = step_of(shape_);
      const int64_t shorter = c.sequence - round_up(c.sequence / kApart, step);
      found_.step = c.sequence - shorter;
      found_.fits.candidate = at(c, shape_, shorter).value_or(Candidate{});
    }
    // A push may have missed less than its least step: that far the answer is not known.
    const Candidate& c = found_.fits.candidate;
    const int64_t step = round_up(c.sequence / kResolution, step_of(shape_));
    if (c.sequence == 0 || found_.step >= step) return;
    const std::optional<Candidate> next = at(c, shape_, c.sequence + step);
    if (!next || evaluator_.fits(*next)) return;
    found_.refused = *next;
    found_.step = step;
  }

  // As at_length(), of a program that can be priced.
  std::optional<Candidate> at(const Candidate& c, const FrameShape& shape, int64_t length) const {
    std::optional<Candidate> other = at_length(c, shape, length, model_, options_);
    if (other && !is_moderate(*other)) return std::nullopt;
    return other;
  }

  // From a length that fits to the longest of the same knobs.
  void extend(const Hope& hope) {
    packing_[kind_of(hope.shape)] = kLeast;
    // No effort is spent better than this; but all positions of a ring take long.
    const int64_t least_effort = is_ring(*hope.knobs) ? floor_ - kEffortOps : INT64_MIN;
    const int64_t step = step_of(hope.shape);
    const auto fits_at = [&](int64_t count) {
      const std::optional<Candidate> c = at(*hope.knobs, hope.shape, count * step);
      return c && effort_ > least_effort && evaluator_.overflow(live(*c)) == 0 &&
             time_share(*c) <= 1 && fits(*c);
    };
    int64_t low = hope.length / step;
    const int64_t apart = std::max<int64_t>(1, low / kApart);
    int64_t high = low + apart;
    for (int64_t stride = apart; fits_at(high); high += stride) {
      low = high;
      stride *= 2;
    }
    while (high - low > apart) {
      const int64_t middle = low + (high - low) / 2;
      (fits_at(middle) ? low : high) = middle;
    }
    const std::optional<Candidate> best = at(*hope.knobs, hope.shape, low * step);
    if (!best || best->sequence <= found_.fits.candidate.sequence) return;
    // What is found late may be improved as long as what is found in time.
    if (found_.fits.candidate.sequence == 0) floor_ = std::min(floor_, effort_ - kClimbOps);
    found_.fits.candidate = *best;
    found_.step = (high - low) * step;
    found_.refused = at(*hope.knobs, hope.shape, high * step).value_or(*best);
    shape_ = hope.shape;
  }

  // Single knobs of the best turned: those that promise most room a little beyond its length, by
  // their demand and by what the best needs more than its own. Whether one is longer.
  bool climb() {
    const Candidate best = found_.fits.candidate;
    const auto beyond = [&](const FrameShape& shape) {
      const int64_t step = step_of(shape);
      return round_up(
          best.sequence + static_cast<int64_t>(kAlike * static_cast<double>(best.sequence)), step);
    };
    const TierBytes bytes = evaluator_.arenas(best), least = evaluator_.demand(best).peak_bytes();
    struct Neighbour {
      Hope hope;
      double own,
          likely;  // shares of the fullest tier: by its demand; with what the best needs more
    };
    std::vector<Neighbour> neighbours;
    const auto add = [&](const FrameShape& shape, const Candidate& knobs) {
      const std::optional<Candidate> c = at(knobs, shape, beyond(shape));
      if (!c || !evaluator_.possible(*c)) return;
      const TierBytes needed = evaluator_.demand(*c).peak_bytes();
      if (evaluator_.overflow(needed) > 0) return;
      Neighbour neighbour{
          {shape, c->sequence, true, *c, ops_estimate(evaluator_.request(*c))}, 0, 0};
      for (int tier = 0; tier < kTierCount; ++tier) {
        const double limit = std::max(1.0, static_cast<double>(evaluator_.limits()[tier]));
        const auto own = static_cast<double>(needed[tier]);
        neighbour.own = std::max(neighbour.own, own / limit);
        neighbour.likely = std::max(neighbour.likely,
                                    (own + static_cast<double>(bytes[tier] - least[tier])) / limit);
      }
      neighbours.push_back(std::move(neighbour));
    };
    const Steps steps(model_, options_, room_[kNvme] > 0);
    for (int knob = 0; knob < Steps::knobs(); ++knob) {
      for (const Candidate& c : steps.of(knob, best)) {
        FrameShape shape = shape_;
        shape.kv = c.strategy.kv;
        shape.idle = c.strategy.idle;
        shape.order = c.strategy.backward_order;
        add(shape, c);
      }
    }
    for (const Tier kv : {Tier::device, Tier::host}) {
      for (const Tier idle : {Tier::device, Tier::host}) {
        for (const BackwardOrder order : {BackwardOrder::q_outer, BackwardOrder::kv_outer}) {
          FrameShape shape = shape_;
          Candidate c = best;
          shape.kv = c.strategy.kv = kv;
          shape.idle = c.strategy.idle = idle;
          shape.order = c.strategy.backward_order = order;
          if (shape_.chunks > 1 && !(c == best)) add(shape, c);
        }
      }
    }
    if (shape_.chunks > 1) {
      for (const double factor : {0.5, 0.75, 0.875, 0.95, 1.05, 1.125, 1.25, 1.5, 2.0}) {
        FrameShape shape = shape_;
        shape.chunks = std::llround(factor * static_cast<double>(shape.chunks));
        if (shape.chunks > 1 && shape.chunks != shape_.chunks) add(shape, best);
      }
    }
    // What the best needs more need not be what a neighbour does: half are taken by their own
    // demand.
    const auto by = [&](double Neighbour::*share, size_t from) {
      std::stable_sort(neighbours.begin() + static_cast<int64_t>(from), neighbours.end(),
                       [&](const Neighbour& a, const Neighbour& b) { return a.*share < b.*share; });
    };
    by(&Neighbour::likely, 0);
    if (neighbours.size() > kNeighbours / 2) by(&Neighbour::own, kNeighbours / 2);
    if (neighbours.size() > kNeighbours) neighbours.resize(kNeighbours);
    for (const auto& [hope, own, likely] : neighbours) {
      if (effort_ <= floor_) return false;
      effort_ -= live_ops(hope);
      if (evaluator_.overflow(live(*hope.knobs)) > 0 || time_share(*hope.knobs) > 1) continue;
      if (!fits(*hope.knobs)) continue;
      extend(hope);
      return true;
    }
    return false;
  }

  // Whether anything fits a longer sequence, as a plan for it is looked for; then the longest of
  // it. Large programs come last.
  bool push() {
    for (const int64_t most_ops : {kFirstOps, kMostPricedOps}) {
      for (const double factor : kPushes) {
        const auto best = static_cast<double>(found_.fits.candidate.sequence);
        if (push_to(static_cast<int64_t>(best * factor), most_ops)) return true;
      }
    }
    return false;
  }
  bool push_to(int64_t length, int64_t most_ops) {
    std::vector<Candidate> frames;
    bool any_new = most_ops == kFirstOps;
    for (const auto& [shape, bound] : bounds_) {
      if (bound < length || length > wanted_.most) continue;
      // Numbers of chunks in between have not been asked about.
      FrameShape between = shape;
      between.chunks += shape.chunks / 2;
      for (const FrameShape& of : {shape, between}) {
        if (of.chunks > shape.chunks && shape.chunks < 4) continue;
        const std::optional<Candidate> c = frame(of, length);
        if (!c) continue;
        const int64_t ops = ops_estimate(evaluator_.request(*c));
        any_new |= ops > kFirstOps;
        if (ops <= most_ops) frames.push_back(*c);
      }
    }
    if (!any_new || frames.empty()) return false;
    Wanted any;
    any.goal = Goal::roomiest;
    any.first = true;
    any.most_seconds = wanted_.most_seconds;
    const Found found = best_first(evaluator_, frames, options_, any, kPushEffort);
    if (!found.best || found.best->candidate.sequence > wanted_.most) return false;
    const Candidate& c = found.best->candidate;
    if (time_share(c) > 1) return false;
    const int64_t before = found_.fits.candidate.sequence;
    Hope hope{shape_of(c, options_), c.sequence, true, c};
    hope.ops = ops_estimate(evaluator_.request(c));
    extend(hope);
    return found_.fits.candidate.sequence > before;
  }

  // What the least length needs at least, where not even that fits.
  void least_of_all() {
    const Room room = {1e9, 1e9, room_[kNvme] > 0 ? 1e9 : 0};
    double least = std::numeric_limits<double>::infinity();
    for (const FrameShape& shape : shapes_) {
      const int64_t step = step_of(shape);
      const std::vector<Candidate> all = roundings(shape, std::max(step, kFirst), room, 1, 0);
      if (all.empty()) continue;
      const double overflow = evaluator_.overflow(live(all.front()));
      if (overflow >= least) continue;
      least = overflow;
      found_.refused = all.front();
      found_.step = all.front().sequence;
    }
  }

  Evaluator& evaluator_;
  const ModelSpec& model_;
  const HardwareProfile& hw_;
  const SpaceOptions& options_;
  const LongestWanted& wanted_;
  Room room_ = {1, 1, 1};
  std::vector<FrameShape> shapes_;
  std::vector<Hope> waiting_;
  std::vector<std::pair<FrameShape, int64_t>> bounds_;  // shapes, and no length of theirs is longer
  static constexpr Packing kLeast = {kLeastPacking, kLeastPacking, 1};
  Packing usual_ = kLeast;           // likewise of all
  std::map<Kind, Packing> packing_;  // the best that was seen
  std::map<Kind, double> learned_;   // the best length that live bytes allow, in bounds
  double best_learned_ = 1;          // of all kinds
  LongestFound found_;
  FrameShape shape_;  // of what was found
  int64_t effort_ = kEffortOps;
  int64_t floor_ = kClimbOps;  // of the effort, where the next begins
};

}  // namespace

std::optional<Candidate> at_length(const Candidate& c, const FrameShape& shape, int64_t length,
                                   const ModelSpec& model, const SpaceOptions& options) {
  std::optional<Candidate> other = frame_of(shape, length, options);
  if (!other) return std::nullopt;
  Strategy s = c.strategy;
  s.chunk_tokens = other->strategy.chunk_tokens;
  s.block_tokens = other->strategy.block_tokens;
  other->strategy = std::move(s);
  if (!is_valid(other->strategy, model, other->sequence)) return std::nullopt;
  return other;
}

LongestFound longest(Evaluator& evaluator, const ModelSpec& model, const HardwareProfile& hw,
                     const SpaceOptions& options, const LongestWanted& wanted,
                     const std::function<void(int64_t, int64_t)>& progress) {
  return Longest(evaluator, model, hw, options, wanted).run(progress);
}

}  // namespace longspan
