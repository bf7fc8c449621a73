#include "planner/search/frame_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/units.h"

namespace longspan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMostSolves = 24;  // of one rounding
constexpr size_t kMostRounded = 4;

DemandRows difference(const DemandRows& a, const DemandRows& b) {
  DemandRows rows;
  for (int r = 0; r < kRows; ++r) rows[r] = a[r] - b[r];
  return rows;
}

double seconds_scale(const Candidate& c) { return 1 / static_cast<double>(sequences_of_step(c)); }

Relaxation relaxation_of(Evaluator& evaluator, const Candidate& frame, GroupValues& values) {
  const auto rows = [&](const Strategy& s) {
    Candidate c = frame;
    c.strategy = s;
    return rows_of(evaluator.demand(c), seconds_scale(c), evaluator.limits());
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
    for (const Strategy& s : group) {
      of_group.push_back(of_group.empty() ? DemandRows{} : difference(rows(s), base));
    }
  }
  return Relaxation(base, std::move(added));
}

}  // namespace

Room tightened(Room room, const TierBytes& bytes, const TierBytes& limits) {
  constexpr double kSpare = 0.0005;  // of a tier
  for (int tier = 0; tier < kTierCount; ++tier) {
    const double share =
        static_cast<double>(bytes[tier]) / std::max(1.0, static_cast<double>(limits[tier]));
    if (share > 1) room[tier] = room[tier] / share - kSpare;
  }
  return room;
}

FrameChoice::FrameChoice(Evaluator& evaluator, const Candidate& frame, const SpaceOptions& options)
    : frame_(frame),
      layers_(
          ceil_div(evaluator.request(frame).model.layers, frame.strategy.parallel.pipeline.stages)),
      values_(values_of(frame, options, evaluator.limits()[2] > 0)),
      relaxation_(relaxation_of(evaluator, frame, values_)) {
  for (size_t g = 0; g < values_.size(); ++g) {
    uint64_t& mask = without_nvme_.emplace_back(0);
    for (size_t v = 0; v < values_[g].size(); ++v) {
      Strategy s = values_[g][v];
      const SavedPolicy* const policy = saved_policy(static_cast<Group>(g), s);
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
    if (goal != Goal::roomiest) result.at_most[r] = room[tier];
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

std::vector<Rounded> FrameChoice::round_each(Group group, Goal goal, const Room& room,
                                             double most_seconds, size_t most) const {
  const auto g = static_cast<size_t>(group);
  const RelaxationGoal wanted = relaxation_goal(goal, room, most_seconds, true);
  std::vector<std::pair<double, std::vector<uint64_t>>> ways;
  for (size_t v = 0; v < values_[g].size(); ++v) {
    std::vector<uint64_t> allowed = allowed_with(room);
    if ((allowed[g] >> v & 1) == 0) continue;
    allowed[g] = uint64_t{1} << v;
    const Mixture mixture = relaxation_.solve(wanted, allowed);
    if (mixture.overflow == 0) ways.emplace_back(mixture.objective, std::move(allowed));
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (ways.size() > most) ways.resize(most);
  std::vector<Rounded> found;
  for (const auto& [objective, allowed] : ways) {
    std::vector<Rounded> rounded;
    int solves = 0;
    round(wanted, allowed, solves, rounded);
    const auto best =
        std::min_element(rounded.begin(), rounded.end(),
                         [](const Rounded& a, const Rounded& b) { return a.bound < b.bound; });
    if (best != rounded.end()) found.push_back(*best);
  }
  return found;
}

// Whether one policy is kept in part: "keep" and another, with the same tile.
bool FrameChoice::stands(size_t group, const std::vector<double>& shares) const {
  std::vector<Strategy> taken;
  for (size_t v = 0; v < shares.size(); ++v) {
    if (shares[v] > 0) taken.push_back(values_[group][v]);
  }
  if (taken.size() < 2) return true;
  if (taken.size() > 2) return false;
  SavedPolicy* const a = saved_policy(static_cast<Group>(group), taken[0]);
  SavedPolicy* const b = saved_policy(static_cast<Group>(group), taken[1]);
  if (a == nullptr || taken[0].mlp_tile != taken[1].mlp_tile) return false;
  return (a->where == Saved::keep) != (b->where == Saved::keep);
}

Candidate FrameChoice::candidate_of(const Mixture& mixture) const {
  Candidate c = frame_;
  for (size_t g = 0; g < values_.size(); ++g) {
    const auto group = static_cast<Group>(g);
    const std::vector<double>& shares = mixture.shares[g];
    const auto most =
        static_cast<size_t>(std::max_element(shares.begin(), shares.end()) - shares.begin());
    size_t other = most;
    for (size_t v = 0; v < shares.size(); ++v) {
      if (v != most && shares[v] > 0) other = v;
    }
    Strategy value = values_[g][most];
    if (SavedPolicy* policy = saved_policy(group, value); policy != nullptr && other != most) {
      const bool keeps_most = policy->where == Saved::keep;
      if (keeps_most) value = values_[g][other];
      const double share = shares[keeps_most ? other : most];
      const auto layers = static_cast<double>(layers_);
      saved_policy(group, value)->fraction =
          std::clamp(std::ceil(share * layers - 1e-6), 1.0, layers) / layers;
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
    // Each value in turn, the most taken first; for a saved tensor in part, if need be.
    std::vector<size_t> taken;
    for (size_t v = 0; v < shares.size(); ++v) {
      if (shares[v] > 0) taken.push_back(v);
    }
    std::stable_sort(taken.begin(), taken.end(),
                     [&](size_t a, size_t b) { return shares[a] > shares[b]; });
    if (taken.size() > 3) taken.resize(3);
    for (const size_t v : taken) {
      std::vector<uint64_t> fewer = allowed;
      fewer[g] = uint64_t{1} << v;
      Strategy value = values_[g][v];
      SavedPolicy* const policy = saved_policy(static_cast<Group>(g), value);
      if (policy != nullptr) {
        policy->where = Saved::keep;
        for (size_t w = 0; w < values_[g].size(); ++w) {
          if (values_[g][w] == value) fewer[g] |= uint64_t{1} << w;
        }
      }
      if (fewer[g] == allowed[g]) fewer[g] = uint64_t{1} << v;
      round(goal, fewer, solves, found);
    }
    return;
  }
  found.push_back({candidate_of(mixture), mixture.objective});
}

}  // namespace longspan
