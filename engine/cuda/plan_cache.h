// What a library has worked out for a shape, kept: finding an algorithm or building a plan takes
// the host from microseconds to seconds, and a step asks for the same few shapes again and again.
#pragma once

#include <cstdint>
#include <map>

namespace longspan::cuda {

/// Key is ordered (<) and says everything a plan depends on. One thread at a time.
template <class Key, class Plan>
class PlanCache {
 public:
  /// The plan of `key`, built by build() if it is asked for the first time; where build() throws,
  /// nothing is kept. The reference holds as long as the cache.
  template <class Build>
  Plan& get(const Key& key, Build build) {
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      found = plans_.emplace(key, build()).first;
      ++built_;
    }
    return found->second;
  }
  int64_t built() const { return built_; }
  const std::map<Key, Plan>& plans() const { return plans_; }

 private:
  std::map<Key, Plan> plans_;
  int64_t built_ = 0;
};

}  // namespace longspan::cuda
