// A cache of a library's plans per shape: finding an algorithm or building a plan takes the host
// microseconds to seconds, and a step uses the same few shapes repeatedly.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace longspan::cuda {

/// Key is ordered (<) and contains everything that a plan depends on. One thread at a time.
template <class Key, class Plan>
class PlanCache {
 public:
  /// Returns the plan of `key`, calling build() on first use; if build() throws, nothing is kept.
  /// The reference is valid as long as the cache.
  template <class Build>
  Plan& get(const Key& key, Build build) {
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      found = plans_.emplace(key, build()).first;
      ++built_;
    }
    return found->second;
  }
  /// Replaces the plan of `key`. References to it remain valid.
  void set(const Key& key, Plan plan) {
    plans_.insert_or_assign(key, std::move(plan));
    ++built_;
  }
  int64_t built() const { return built_; }
  const std::map<Key, Plan>& plans() const { return plans_; }

 private:
  std::map<Key, Plan> plans_;
  int64_t built_ = 0;
};

}  // namespace longspan::cuda
