#include "planner/simulate/chains.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

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

// Numbers the distinct sums of `chains`. Most chains are a single op, whose shape finds its sum
// without a search.
class Sums {
 public:
  explicit Sums(Chains& chains) : chains_(chains) {}

  void clear() { ops_.clear(); }
  /// Adds an op to the current sum.
  void add(int32_t shape) {
    const auto at = std::lower_bound(ops_.begin(), ops_.end(), std::pair(shape, 0));
    if (at != ops_.end() && at->first == shape) {
      ++at->second;
    } else {
      ops_.insert(at, {shape, 1});
    }
  }
  int32_t number() {
    if (ops_.size() > 1 || ops_.front().second > 1) {
      return numbered(known_.try_emplace(ops_, -1).first->second);
    }
    const auto shape = static_cast<size_t>(ops_.front().first);
    if (of_shape_.size() <= shape) of_shape_.resize(shape + 1, -1);
    return numbered(of_shape_[shape]);
  }

 private:
  int32_t numbered(int32_t& number) {
    if (number < 0) {
      number = static_cast<int32_t>(chains_.sums.size());
      chains_.sums.push_back(ops_);
    }
    return number;
  }

  Chains& chains_;
  Sum ops_;  // by shape
  std::vector<int32_t> of_shape_;
  std::map<Sum, int32_t> known_;  // of several ops
};

}  // namespace

Chains chains_of(const Queues& queues, const std::function<bool(int32_t, int32_t)>& apart) {
  Chains chains;
  const auto ends_matter = awaited(queues);
  std::array<std::vector<int32_t>, kStreamCount> chain_at;  // per op, its chain's ordinal
  Sums sums(chains);
  for (int s = 0; s < kStreamCount; ++s) {
    const std::vector<Queued>& queue = queues[s];
    chain_at[s].reserve(queue.size());
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
        sums.clear();
      }
      chain_at[s].push_back(static_cast<int32_t>(chains.queues[s].size()) - 1);
      sums.add(queue[i].shape);
      if (breaks_before(i + 1)) chains.queues[s].back().shape = sums.number();
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
