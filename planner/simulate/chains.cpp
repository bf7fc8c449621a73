#include "planner/simulate/chains.h"

#include <bit>
#include <map>

namespace longspan {
namespace {

using Sum = std::vector<std::pair<int32_t, int32_t>>;

// For each stream, whether an op on another waits for the end of its n-th op.
std::array<std::vector<bool>, kStreamCount> awaited(const Queues& queues) {
  std::array<std::vector<bool>, kStreamCount> result;
  for (int s = 0; s < kStreamCount; ++s) result[s].resize(queues[s].size());
  for (const std::vector<Queued>& queue : queues) {
    for (const Queued& op : queue) {
      for (unsigned set = op.wait_set; set != 0; set &= set - 1) {
        const int other = std::countr_zero(set);
        result[other][op.waits[other]] = true;
      }
    }
  }
  return result;
}

}  // namespace

Chains chains_of(const Queues& queues, const std::function<bool(int32_t, int32_t)>& apart) {
  Chains chains;
  const auto ends_matter = awaited(queues);
  std::array<std::vector<int32_t>, kStreamCount> chain_at;  // per op, its chain's ordinal
  std::map<Sum, int32_t> known;
  std::map<int32_t, int32_t> counts;  // ops of the current chain, by shape
  for (int s = 0; s < kStreamCount; ++s) {
    const std::vector<Queued>& queue = queues[s];
    const auto breaks_before = [&](size_t i) {
      return i == 0 || i == queue.size() || queue[i].wait_set != 0 || ends_matter[s][i - 1] ||
             apart(queue[i - 1].op, queue[i].op);
    };
    for (size_t i = 0; i < queue.size(); ++i) {
      if (breaks_before(i)) {
        Queued chain = queue[i];
        chain.op = static_cast<int32_t>(chains.first_ops.size());
        chains.queues[s].push_back(chain);
        chains.first_ops.push_back(queue[i].op);
        counts.clear();
      }
      chain_at[s].push_back(static_cast<int32_t>(chains.queues[s].size()) - 1);
      ++counts[queue[i].shape];
      if (!breaks_before(i + 1)) continue;
      const auto [it, fresh] = known.try_emplace(Sum(counts.begin(), counts.end()),
                                                 static_cast<int32_t>(chains.sums.size()));
      if (fresh) chains.sums.push_back(it->first);
      chains.queues[s].back().shape = it->second;
    }
  }
  for (std::vector<Queued>& queue : chains.queues) {
    for (Queued& chain : queue) {
      for (unsigned set = chain.wait_set; set != 0; set &= set - 1) {
        const int other = std::countr_zero(set);
        chain.waits[other] = chain_at[other][chain.waits[other]];
      }
    }
  }
  return chains;
}

std::vector<double> durations_of(const Chains& chains, const std::vector<double>& of_shapes) {
  std::vector<double> result;
  result.reserve(chains.sums.size());
  for (const Sum& sum : chains.sums) {
    double seconds = 0;
    for (const auto& [shape, count] : sum) seconds += count * of_shapes[shape];
    result.push_back(seconds);
  }
  return result;
}

}  // namespace longspan
