#include "planner/schedule/solver/sequence_groups.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/solver/cut_line.h"

namespace longspan {
namespace {

constexpr int64_t kMostSequences = 4096;
constexpr int64_t kMoreMicrobatches = 3;  // tried above the fewest that fit

double sum_of(const std::vector<int64_t>& sequences) {
  return std::accumulate(sequences.begin(), sequences.end(), 0.0,
                         [](double sum, int64_t s) { return sum + static_cast<double>(s); });
}

// A sequence's share of its group's time, and of its group's memory on a rank.
double time_in(const SequenceCosts& costs, const GroupSize& size, int64_t tokens) {
  const auto s = static_cast<double>(tokens);
  return (costs.quadratic * s * s + costs.linear * s) / size.ranks + size.exchange * s;
}

double memory_in(const SequenceCosts& costs, const GroupSize& size, int64_t tokens) {
  return costs.memory_per_token * static_cast<double>(tokens) / size.ranks;
}

bool fits(const SequenceCosts& costs, double memory) {
  return costs.memory_limit == 0 || memory <= costs.memory_limit * (1 + 1e-12);
}

void finish(Microbatch& batch, const SequenceCosts& costs) {
  std::erase_if(batch.groups, [](const SequenceGroup& group) { return group.sequences.empty(); });
  batch.time = 0;
  for (SequenceGroup& group : batch.groups) {
    const auto size = std::find_if(costs.sizes.begin(), costs.sizes.end(),
                                   [&](const GroupSize& one) { return one.ranks == group.ranks; });
    group.time = group_time(costs, *size, group.sequences);
    batch.time = std::max(batch.time, group.time);
  }
}

// Groups of one size; longest first, each sequence goes to the group with the least time so far.
std::optional<Microbatch> groups_of_one_size(const std::vector<int64_t>& lengths, int32_t ranks,
                                             const SequenceCosts& costs, const GroupSize& size) {
  Microbatch batch;
  batch.groups.assign(ranks / size.ranks, {.ranks = size.ranks, .sequences = {}, .time = 0});
  if (batch.groups.empty()) return std::nullopt;
  std::vector<double> held(batch.groups.size(), 0), time(batch.groups.size(), 0);
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    const double own = memory_in(costs, size, *length);
    size_t best = batch.groups.size();
    for (size_t g = 0; g < batch.groups.size(); ++g) {
      if (!fits(costs, held[g] + own)) continue;
      if (best == batch.groups.size() || time[g] < time[best]) best = g;
    }
    if (best == batch.groups.size()) return std::nullopt;
    batch.groups[best].sequences.push_back(*length);
    held[best] += own;
    time[best] += time_in(costs, size, *length);
  }
  finish(batch, costs);
  return batch;
}

// The MILP: possible groups of each size, and how many sequences of each bucket go to each.
class AssignmentModel {
 public:
  AssignmentModel(const std::vector<int64_t>& lengths, int32_t ranks, const SequenceCosts& costs,
                  int64_t buckets, double longest)
      : costs_(costs), uppers_(length_buckets(lengths, buckets)), members_(uppers_.size()) {
    for (const int64_t length : lengths) {
      members_[std::lower_bound(uppers_.begin(), uppers_.end(), length) - uppers_.begin()]
          .push_back(length);
    }
    // Units are the time of a good solution, and the memory limit.
    unit_ = longest > 0 ? longest : 1;
    const int32_t slowest = milp_.add_number(0, std::max(1.0, longest / unit_) * 10, 1);
    std::vector<Term> taken;
    std::vector<std::vector<Term>> placed(uppers_.size());
    for (const GroupSize& size : costs.sizes) {
      for (int32_t i = 0; i < ranks / size.ranks; ++i) add_slot(size, i > 0, slowest, placed);
    }
    for (const Slot& slot : slots_) {
      taken.push_back({slot.used, static_cast<double>(slot.size->ranks)});
    }
    milp_.at_most(ranks, std::move(taken));
    for (size_t q = 0; q < uppers_.size(); ++q) {
      milp_.equal(static_cast<double>(members_[q].size()), std::move(placed[q]));
    }
  }

  const Milp& milp() const { return milp_; }
  double time_of(double objective) const { return objective * unit_; }

  std::vector<Term> start_of(const Microbatch& batch) const {
    std::map<int32_t, double> values;
    for (const Slot& slot : slots_) {
      values[slot.used] = 0;
      for (const int32_t column : slot.counts) values[column] = 0;
    }
    size_t next = 0;
    for (const SequenceGroup& group : batch.groups) {
      while (next < slots_.size() && slots_[next].size->ranks != group.ranks) ++next;
      if (next == slots_.size()) return {};
      const Slot& slot = slots_[next++];
      values[slot.used] = 1;
      for (const int64_t length : group.sequences) {
        const auto q = std::lower_bound(uppers_.begin(), uppers_.end(), length) - uppers_.begin();
        values[slot.counts[q]] += 1;
      }
    }
    std::vector<Term> start;
    for (const auto& [column, value] : values) start.push_back({column, value});
    return start;
  }

  Microbatch batch_of(const std::vector<double>& values) const {
    Microbatch batch;
    std::vector<size_t> next(uppers_.size(), 0);
    for (const Slot& slot : slots_) {
      SequenceGroup group{.ranks = slot.size->ranks, .sequences = {}, .time = 0};
      for (size_t q = 0; q < uppers_.size(); ++q) {
        for (int64_t n = std::llround(values[slot.counts[q]]); n > 0; --n) {
          group.sequences.push_back(members_[q].at(next[q]++));
        }
      }
      batch.groups.push_back(std::move(group));
    }
    finish(batch, costs_);
    return batch;
  }

 private:
  struct Slot {
    const GroupSize* size;
    int32_t used;
    std::vector<int32_t> counts;  // columns, by bucket
  };

  void add_slot(const GroupSize& size, bool after_another, int32_t slowest,
                std::vector<std::vector<Term>>& placed) {
    Slot slot{.size = &size, .used = milp_.add_binary(), .counts = {}};
    // Groups of a size are interchangeable: the first ones are used.
    if (after_another) milp_.at_least(0, {{slots_.back().used, 1}, {slot.used, -1}});
    std::vector<Term> time = {{slowest, 1}, {slot.used, -costs_.fixed / unit_}}, memory;
    for (size_t q = 0; q < uppers_.size(); ++q) {
      const double own = memory_in(costs_, size, uppers_[q]);
      auto most = static_cast<double>(members_[q].size());
      if (!fits(costs_, own)) most = 0;
      const int32_t column = milp_.add_whole(0, most);
      slot.counts.push_back(column);
      placed[q].push_back({column, 1});
      time.push_back({column, -time_in(costs_, size, uppers_[q]) / unit_});
      if (costs_.memory_limit > 0) memory.push_back({column, -own / costs_.memory_limit});
      milp_.at_most(0, {{column, 1}, {slot.used, -most}});
    }
    milp_.at_least(0, std::move(time));
    if (!memory.empty()) {
      memory.push_back({slot.used, 1});
      milp_.at_least(0, std::move(memory));
    }
    slots_.push_back(std::move(slot));
  }

  const SequenceCosts& costs_;
  std::vector<int64_t> uppers_;
  std::vector<std::vector<int64_t>> members_;  // by bucket
  double unit_ = 1;
  Milp milp_;
  std::vector<Slot> slots_;
};

std::optional<Microbatch> group(const std::vector<int64_t>& lengths, int32_t ranks,
                                const SequenceCosts& costs, const AssignOptions& options,
                                int64_t& nodes) {
  std::optional<Microbatch> best;
  for (const GroupSize& size : costs.sizes) {
    std::optional<Microbatch> made = groups_of_one_size(lengths, ranks, costs, size);
    if (made && (!best || made->time < best->time)) best = std::move(made);
  }
  // Without a known solution: all sequences on the largest groups, one after another.
  double longest = best ? best->time : costs.fixed;
  if (!best) {
    for (const int64_t length : lengths) longest += time_in(costs, costs.sizes.back(), length);
  }
  const AssignmentModel model(lengths, ranks, costs, options.buckets, longest);
  const MilpSolution solution =
      solve(model.milp(), options.limits, best ? model.start_of(*best) : std::vector<Term>{});
  nodes += solution.nodes;
  const double bound = model.time_of(solution.bound);
  if (!solution.values.empty()) {
    Microbatch made = model.batch_of(solution.values);
    if (!best || made.time < best->time) best = std::move(made);
  }
  if (!best) return best;
  best->stop = solution.stop;
  // Rounding up to buckets can exclude solutions that fit with exact lengths.
  best->bound = solution.stop == Stop::infeasible ? 0 : std::min(bound, best->time);
  return best;
}

void check(const std::vector<int64_t>& lengths, int32_t ranks, const SequenceCosts& costs,
           const AssignOptions& options) {
  if (lengths.empty() || static_cast<int64_t>(lengths.size()) > kMostSequences) {
    throw bad_input("{} sequences; expected 1 to {}", lengths.size(), kMostSequences);
  }
  for (const int64_t length : lengths) {
    if (length < 1) throw bad_input("a sequence has {} tokens; expected 1 or more", length);
  }
  if (ranks < 1) throw bad_input("{} ranks; expected 1 or more", ranks);
  if (options.buckets < 1) throw bad_input("{} buckets; expected 1 or more", options.buckets);
  if (options.microbatches < 0 || options.microbatches > static_cast<int64_t>(lengths.size())) {
    throw bad_input("{} of {}; expected as many as sequences or fewer",
                    counted(options.microbatches, "microbatch", "microbatches"),
                    counted(static_cast<int64_t>(lengths.size()), "sequence", "sequences"));
  }
  for (const double cost :
       {costs.quadratic, costs.linear, costs.fixed, costs.memory_per_token, costs.memory_limit}) {
    if (!(cost >= 0) || !std::isfinite(cost)) {
      throw bad_input("a cost of sequences is {}; expected a number, 0 or more", cost);
    }
  }
  for (size_t i = 0; i < costs.sizes.size(); ++i) {
    const GroupSize& size = costs.sizes[i];
    if (size.ranks < 1 || (i > 0 && size.ranks <= costs.sizes[i - 1].ranks)) {
      throw bad_input("group {} has {} ranks; expected ascending sizes, 1 or more", i, size.ranks);
    }
    if (!(size.exchange >= 0) || !std::isfinite(size.exchange)) {
      throw bad_input("exchanges of groups of {} take {} per token; expected 0 or more", size.ranks,
                      size.exchange);
    }
  }
  if (costs.sizes.empty() || costs.sizes.back().ranks > ranks) {
    throw bad_input("no groups, or groups larger than the {} ranks there are", ranks);
  }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (const double held = memory_in(costs, costs.sizes.back(), longest); !fits(costs, held)) {
    throw no_fit(
        "{} tokens take {:.6g} on each rank of the largest group, of {}; the limit is {:.6g}",
        longest, held, costs.sizes.back().ranks, costs.memory_limit);
  }
}

}  // namespace

double group_time(const SequenceCosts& costs, const GroupSize& size,
                  const std::vector<int64_t>& sequences) {
  double time = costs.fixed;
  for (const int64_t tokens : sequences) time += time_in(costs, size, tokens);
  return time;
}

std::vector<int64_t> length_buckets(std::vector<int64_t> lengths, int64_t buckets) {
  std::sort(lengths.begin(), lengths.end());
  std::vector<int64_t> values, counts;  // distinct lengths
  for (const int64_t length : lengths) {
    if (values.empty() || values.back() != length) {
      values.push_back(length);
      counts.push_back(0);
    }
    ++counts.back();
  }
  const auto count = static_cast<int64_t>(values.size());
  std::vector<double> number(count + 1, 0), tokens(count + 1, 0);  // sums over all lengths before
  for (int64_t i = 0; i < count; ++i) {
    number[i + 1] = number[i] + static_cast<double>(counts[i]);
    tokens[i + 1] = tokens[i] + static_cast<double>(counts[i] * values[i]);
  }
  std::vector<int64_t> uppers;
  for (const int64_t end : cut_line(count, std::min(buckets, count), Smallest::sum,
                                    [&](int64_t, int64_t begin, int64_t last) {
                                      return static_cast<double>(values[last - 1]) *
                                                 (number[last] - number[begin]) -
                                             (tokens[last] - tokens[begin]);
                                    })) {
    uppers.push_back(values[end - 1]);
  }
  return uppers;
}

SequenceAssignment assign_sequences(const std::vector<int64_t>& lengths, int32_t ranks,
                                    const SequenceCosts& costs, const AssignOptions& options) {
  check(lengths, ranks, costs, options);
  std::vector<int64_t> sorted = lengths;
  std::sort(sorted.begin(), sorted.end());
  const auto count = static_cast<int64_t>(sorted.size());
  std::vector<double> before(1, 0);  // tokens before each sequence
  for (const int64_t length : sorted) before.push_back(before.back() + static_cast<double>(length));
  int64_t first = std::max<int64_t>(1, options.microbatches);
  if (options.microbatches == 0 && costs.memory_limit > 0) {
    const double held = costs.memory_per_token * sum_of(sorted) / ranks;
    first = std::max(first, static_cast<int64_t>(std::ceil(held / costs.memory_limit - 1e-9)));
  }
  int64_t last = options.microbatches > 0 ? first : count;
  std::optional<SequenceAssignment> best;
  int64_t nodes = 0;
  for (int64_t k = first; k <= last; ++k) {
    const std::vector<int64_t> ends =
        cut_line(count, k, Smallest::dearest,
                 [&](int64_t, int64_t begin, int64_t end) { return before[end] - before[begin]; });
    SequenceAssignment made;
    for (int64_t i = 0, begin = 0; i < k; begin = ends[i++]) {
      std::optional<Microbatch> batch =
          group({sorted.begin() + begin, sorted.begin() + ends[i]}, ranks, costs, options, nodes);
      if (!batch) break;
      made.time += batch->time;
      made.microbatches.push_back(*std::move(batch));
    }
    if (static_cast<int64_t>(made.microbatches.size()) < k) continue;
    if (!best) last = std::min(last, k + kMoreMicrobatches);
    if (!best || made.time < best->time) best = std::move(made);
  }
  if (!best) {
    throw no_fit(
        "no groups of ranks were found that hold {} sequence{} in {} microbatch{} within memory; "
        "try more microbatches",
        count, count == 1 ? "" : "s", first, first == 1 ? "" : "es");
  }
  best->nodes = nodes;
  return *std::move(best);
}

}  // namespace longspan
