#include "planner/search/frame_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"

namespace longspan {
namespace {

constexpr int kMostSolves = 24;  // limit per rounding
constexpr size_t kMostRounded = 4;
constexpr size_t kMostTaken = 3;  // values of a mixture to branch on

// The values with a share in a mixture.
std::vector<size_t> taken_of(const std::vector<double>& shares) {
  std::vector<size_t> taken;
  for (size_t v = 0; v < shares.size(); ++v) {
    if (shares[v] > 0) taken.push_back(v);
  }
  return taken;
}

DemandRows difference(const DemandRows& a, const DemandRows& b) {
  DemandRows rows;
  for (int r = 0; r < kRows; ++r) rows[r] = a[r] - b[r];
  return rows;
}

double seconds_scale(const Candidate& c) {
  return 1 / static_cast<double>(micro_batches_of_step(c));
}

Relaxation relaxation_of(Evaluator& evaluator, const Candidate& frame, DemandOf wanted,
                         GroupValues& values) {
  const auto rows = [&](const Strategy& s) {
    Candidate c = frame;
    c.strategy = s;
    return rows_of(evaluator.demand(c, wanted), seconds_scale(c), evaluator.limits());
  };
  const DemandRows base = rows(frame.strategy);
  std::vector<std::vector<DemandRows>> added;
  for (std::vector<Strategy>& group : values) {
    Candidate c = frame;
    std::erase_if(group, [&](const Strategy& s) {
      c.strategy = s;
      return !evaluator.possible(c);
    });
    std::vector<DemandRows>& of_group = added.emplace_back();
    const auto g = static_cast<KnobGroup>(added.size() - 1);
    for (Strategy& s : group) {
      of_group.push_back(of_group.empty() ? DemandRows{} : difference(rows(s), base));
      const SavedPolicy* const policy = saved_policy(g, s);
      if (policy != nullptr && policy->fraction < 1) {
        of_group.back() = in_first_half(of_group.back());
      }
    }
  }
  return Relaxation(base, std::move(added));
}

}  // namespace

Room tightened(Room room, const TierBytes& bytes, const TierBytes& limits) {
  constexpr double kSpare = 0.0005;  // part of a tier
  for (int tier = 0; tier < kTierCount; ++tier) {
    const double share =
        static_cast<double>(bytes[tier]) / std::max(1.0, static_cast<double>(limits[tier]));
    if (share > 1) room[tier] = room[tier] / share - kSpare;
  }
  return room;
}

FrameChoice::FrameChoice(Evaluator& evaluator, const Candidate& frame, const SpaceOptions& options,
                         DemandOf rows)
    : frame_(frame),
      layers_(
          ceil_div(evaluator.request(frame).model.layers, frame.strategy.parallel.pipeline.stages)),
      divides_states_(!options.optimizer && !frame.strategy.parallel.has_pipeline()),
      values_(values_of(frame, options, evaluator.limits()[2] > 0)),
      relaxation_(relaxation_of(evaluator, frame, rows, values_)) {
  for (size_t g = 0; g < values_.size(); ++g) {
    uint64_t& mask = without_nvme_.emplace_back(0);
    for (size_t v = 0; v < values_[g].size(); ++v) {
      Strategy s = values_[g][v];
      const SavedPolicy* const policy = saved_policy(static_cast<KnobGroup>(g), s);
      const bool nvme =
          policy != nullptr ? policy->where == Saved::nvme : g == 0 && s.optimizer == Tier::nvme;
      if (!nvme) mask |= uint64_t{1} << v;
    }
  }
}

std::vector<uint64_t> FrameChoice::allowed_with(const Room& room) const {
  if (room[static_cast<int>(Tier::nvme)] == 0) return without_nvme_;
  return std::vector<uint64_t>(values_.size(), ~uint64_t{0});
}

RelaxationGoal FrameChoice::relaxation_goal(Goal goal, const Room& room, double most_seconds,
                                            bool expected) const {
  RelaxationGoal result;
  result.part.fill(-1);
  result.weight.fill(1);
  result.at_most.fill(kInfinity);
  for (int r = 0; r < kBoundRows; ++r) {
    if (goal == Goal::fastest && !expected) result.part[r] = 0;
    result.at_most[r] = most_seconds * seconds_scale(frame_);
  }
  for (int r = kBoundRows; r < kTimeRows; ++r) {
    if (goal == Goal::fastest && expected) result.part[r] = (r - kBoundRows) / kStreamCount;
  }
  for (int r = kTimeRows; r < kRows; ++r) {
    const int tier = tier_of_row(r);
    const bool least = goal == Goal::roomiest || (goal == Goal::least_device && tier == 0) ||
                       (goal == Goal::least_host && tier == 1);
    if (least) result.part[r] = 0;
    if (goal != Goal::roomiest) {
      result.at_most[r] = room[tier];
    } else if (room[tier] > 0) {
      result.weight[r] = 1 / room[tier];  // less room counts as more use
    }
  }
  return result;
}

Mixture FrameChoice::bound(Goal goal, double most_seconds) const {
  return relaxation_.solve(relaxation_goal(goal, {1, 1, 1}, most_seconds, false));
}

Mixture FrameChoice::expect(Goal goal, const Room& room, double most_seconds) const {
  return relaxation_.solve(relaxation_goal(goal, room, most_seconds, true), allowed_with(room));
}

std::vector<Rounded> FrameChoice::round(Goal goal, const Room& room, double most_seconds) const {
  std::vector<Rounded> found;
  int solves = 0;
  round(relaxation_goal(goal, room, most_seconds, true), allowed_with(room), solves, found);
  std::stable_sort(found.begin(), found.end(),
                   [](const Rounded& a, const Rounded& b) { return a.bound < b.bound; });
  if (found.size() > kMostRounded) found.resize(kMostRounded);
  return found;
}

std::vector<Rounded> FrameChoice::round_each(KnobGroup group, Goal goal, const Room& room,
                                             double most_seconds, size_t most) const {
  struct Way {
    RelaxationGoal goal;
    double objective;
    std::vector<uint64_t> allowed;
  };
  const auto g = static_cast<size_t>(group);
  Room whole = room;
  for (double& share : whole) share = share > 0 ? 1 : 0;
  std::vector<Way> ways;
  for (size_t v = 0; v < values_[g].size(); ++v) {
    std::vector<uint64_t> allowed = allowed_with(room);
    if ((allowed[g] >> v & 1) == 0) continue;
    allowed[g] = uint64_t{1} << v;
    for (const Room& r : {room, whole}) {
      const RelaxationGoal wanted = relaxation_goal(goal, r, most_seconds, true);
      const Mixture mixture = relaxation_.solve(wanted, allowed);
      if (mixture.overflow > 0) continue;
      ways.push_back({wanted, mixture.objective, std::move(allowed)});
      break;
    }
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Way& a, const Way& b) { return a.objective < b.objective; });
  if (ways.size() > most) ways.resize(most);
  std::vector<Rounded> found;
  for (const Way& way : ways) {
    std::vector<Rounded> rounded;
    int solves = 0;
    round(way.goal, way.allowed, solves, rounded);
    const auto best =
        std::min_element(rounded.begin(), rounded.end(),
                         [](const Rounded& a, const Rounded& b) { return a.bound < b.bound; });
    if (best != rounded.end()) found.push_back(*best);
  }
  return found;
}

int FrameChoice::all_updated_here(size_t value) const {
  const std::vector<Strategy>& values = values_[static_cast<size_t>(KnobGroup::states)];
  Strategy own = values[value];
  if (!divides_states_ || own.optimizer == Tier::device) return -1;
  own.gradients = own.optimizer = Tier::device;
  const auto here = std::find(values.begin(), values.end(), own);
  return here == values.end() ? -1 : static_cast<int>(here - values.begin());
}

int FrameChoice::fewer(size_t group, size_t value) const {
  if (static_cast<KnobGroup>(group) == KnobGroup::states) return all_updated_here(value);
  Strategy own = values_[group][value];
  const SavedPolicy* const policy = saved_policy(static_cast<KnobGroup>(group), own);
  if (policy == nullptr || policy->where == Saved::keep) return -1;
  int best = -1;
  double most = -1;
  for (size_t v = 0; v < values_[group].size(); ++v) {
    Strategy other = values_[group][v];
    const SavedPolicy* const with = saved_policy(static_cast<KnobGroup>(group), other);
    const double covered = with->where == Saved::keep ? 0 : with->fraction;
    if (covered > 0 && with->where != policy->where) continue;
    if (other.mlp_tile != own.mlp_tile || covered >= policy->fraction || covered <= most) continue;
    best = static_cast<int>(v);
    most = covered;
  }
  return best;
}

bool FrameChoice::stands(size_t group, const std::vector<double>& shares) const {
  const std::vector<size_t> taken = taken_of(shares);
  if (taken.size() != 2) return taken.size() < 2;
  return fewer(group, taken[1]) == static_cast<int>(taken[0]) ||
         fewer(group, taken[0]) == static_cast<int>(taken[1]);
}

std::vector<uint64_t> FrameChoice::branches(size_t group, const std::vector<double>& shares) const {
  std::vector<size_t> taken = taken_of(shares);
  std::stable_sort(taken.begin(), taken.end(),
                   [&](size_t a, size_t b) { return shares[a] > shares[b]; });
  if (taken.size() > kMostTaken) taken.resize(kMostTaken);
  std::vector<uint64_t> all;
  const auto add = [&](size_t v) {
    const int below = fewer(group, v);
    const uint64_t branch = uint64_t{1} << v | (below < 0 ? 0 : uint64_t{1} << below);
    if (std::find(all.begin(), all.end(), branch) == all.end()) all.push_back(branch);
  };
  for (const size_t v : taken) {
    const int below = fewer(group, v);
    add(v);
    if (below < 0) continue;
    if (fewer(group, static_cast<size_t>(below)) >= 0) add(static_cast<size_t>(below));
    for (size_t above = 0; above < shares.size(); ++above) {
      if (fewer(group, above) == static_cast<int>(v)) add(above);
    }
  }
  return all;
}

Candidate FrameChoice::candidate_of(const Mixture& mixture) const {
  Candidate c = frame_;
  for (size_t g = 0; g < values_.size(); ++g) {
    const auto group = static_cast<KnobGroup>(g);
    const std::vector<double>& shares = mixture.shares[g];
    const auto most =
        static_cast<size_t>(std::max_element(shares.begin(), shares.end()) - shares.begin());
    Strategy value = values_[g][most];
    if (SavedPolicy* const policy = saved_policy(group, value)) {
      double covered = 0;
      for (size_t v = 0; v < shares.size(); ++v) {
        Strategy taken = values_[g][v];
        const SavedPolicy& own = *saved_policy(group, taken);
        if (shares[v] == 0 || own.where == Saved::keep) continue;
        policy->where = own.where;
        covered += shares[v] * own.fraction;
      }
      if (covered > 0) {
        const auto layers = static_cast<double>(layers_);
        policy->fraction = std::clamp(std::ceil(covered * layers - 1e-6), 1.0, layers) / layers;
      }
    }
    if (const std::vector<size_t> taken = taken_of(shares);
        group == KnobGroup::states && taken.size() == 2 && stands(g, shares)) {
      const size_t away = all_updated_here(taken[0]) < 0 ? taken[1] : taken[0];
      const auto layers = static_cast<double>(layers_);
      value = values_[g][away];
      value.optimizer_fraction =
          std::clamp(std::ceil(shares[away] * layers - 1e-6), 1.0, layers) / layers;
    }
    take(group, value, c.strategy);
  }
  return c;
}

void FrameChoice::round(const RelaxationGoal& goal, const std::vector<uint64_t>& allowed,
                        int& solves, std::vector<Rounded>& found) const {
  if (solves++ >= kMostSolves) return;
  const Mixture mixture = relaxation_.solve(goal, allowed);
  if (mixture.overflow > 0) return;
  for (size_t g = 0; g < values_.size(); ++g) {
    const std::vector<double>& shares = mixture.shares[g];
    if (stands(g, shares)) continue;
    std::vector<uint64_t> fewer = allowed;
    uint64_t others = allowed[g] & ((uint64_t{1} << values_[g].size()) - 1);
    for (const uint64_t branch : branches(g, shares)) {
      fewer[g] = branch & allowed[g];
      others &= ~branch;
      if (fewer[g] != 0 && fewer[g] != allowed[g]) round(goal, fewer, solves, found);
    }
    // Values that fit as a mixture may not fit alone, and one outside of it may.
    fewer[g] = others;
    if (found.empty() && others != 0) round(goal, fewer, solves, found);
    return;
  }
  found.push_back({candidate_of(mixture), mixture.objective});
}

}  // namespace longspan
