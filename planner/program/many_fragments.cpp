#include "planner/program/many_fragments.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace longspan {
namespace {

template <class T>
void insert_at(std::vector<T>& list, size_t at, const T& value) {
  list.insert(list.begin() + static_cast<int64_t>(at), value);
}

template <class T>
void erase_at(std::vector<T>& list, size_t at) {
  list.erase(list.begin() + static_cast<int64_t>(at));
}

}  // namespace

// Bisection without a branch, which would be mispredicted half of the time.
size_t ManyFragments::fragment_at(int64_t offset) const {
  size_t first = 0;
  for (size_t left = offsets_.size(); left > 0;) {
    const size_t half = (left + 1) / 2;
    first += offsets_[first + half - 1] < offset ? half : 0;
    left -= half;
  }
  return first;
}

size_t ManyFragments::fitting(int64_t bytes) const {
  // Without branches, as above.
  int64_t oldest = INT64_MAX, smallest = INT64_MAX;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const int64_t other = -static_cast<int64_t>(sizes_[i] != bytes) & INT64_MAX;
    const int64_t small = -static_cast<int64_t>(sizes_[i] < bytes) & INT64_MAX;
    oldest = std::min(oldest, freed_[i] | other);
    smallest = std::min(smallest, sizes_[i] | small);
  }
  const auto index_of = [](const std::vector<int64_t>& list, int64_t value) {
    return static_cast<size_t>(std::find(list.begin(), list.end(), value) - list.begin());
  };
  if (oldest < INT64_MAX) return index_of(freed_, oldest);
  return smallest < INT64_MAX ? index_of(sizes_, smallest) : sizes_.size();
}

size_t ManyFragments::fitting_indexed(int64_t bytes) const {
  auto fit = by_size_.lower_bound({bytes, INT64_MIN, 0});
  if (fit == by_size_.end()) return sizes_.size();
  if (fit->bytes > bytes) {
    for (auto other = fit; other != by_size_.end() && other->bytes == fit->bytes; ++other) {
      if (other->offset < fit->offset) fit = other;
    }
  }
  return fragment_at(fit->offset);
}

int64_t ManyFragments::take(int64_t bytes, Waits* history) {
  const size_t at = by_size_.empty() ? fitting(bytes) : fitting_indexed(bytes);
  if (at == sizes_.size()) return -1;
  const int64_t offset = offsets_[at];
  if (history != nullptr) merge(*history, histories_[at]);
  if (sizes_[at] == bytes) {
    erase(at);
    index_or_not();
    return offset;
  }
  if (!by_size_.empty()) by_size_.erase(sized(at));
  offsets_[at] += bytes;
  sizes_[at] -= bytes;
  if (!by_size_.empty()) by_size_.insert(sized(at));
  return offset;
}

int64_t ManyFragments::take_before(int64_t end, Waits* history) {
  const size_t n = sizes_.size();
  if (n == 0 || this->end(n - 1) != end) return end;
  const int64_t offset = offsets_[n - 1];
  if (history != nullptr) merge(*history, histories_[n - 1]);
  erase(n - 1);
  return offset;
}

void ManyFragments::add(const Fragment& fragment) {
  const size_t at = fragment_at(fragment.offset);
  assert(at == size() || fragment.end() <= offsets_[at]);
  assert(at == 0 || end(at - 1) <= fragment.offset);
  insert_at(offsets_, at, fragment.offset);
  insert_at(sizes_, at, fragment.bytes);
  insert_at(freed_, at, fragment.freed);
  insert_at(histories_, at, fragment.history);
  if (!by_size_.empty()) by_size_.insert(sized(at));
  merge_with_next(at);
  if (at > 0) merge_with_next(at - 1);
  index_or_not();
}

void ManyFragments::absorb(size_t i, const Fragment& next) {
  sizes_[i] += next.bytes;
  freed_[i] = std::max(freed_[i], next.freed);
  merge(histories_[i], next.history);
}

void ManyFragments::merge_with_next(size_t i) {
  if (i + 1 == size() || end(i) != offsets_[i + 1]) return;
  const bool is_indexed = !by_size_.empty();
  if (is_indexed) by_size_.erase(sized(i));
  absorb(i, at(i + 1));
  if (is_indexed) by_size_.insert(sized(i));
  erase(i + 1);
}

void ManyFragments::append(const Fragment& fragment) {
  if (!offsets_.empty() && end(size() - 1) == fragment.offset) {
    absorb(size() - 1, fragment);
    return;
  }
  offsets_.push_back(fragment.offset);
  sizes_.push_back(fragment.bytes);
  freed_.push_back(fragment.freed);
  histories_.push_back(fragment.history);
}

void ManyFragments::erase(size_t i) {
  if (!by_size_.empty()) by_size_.erase(sized(i));
  erase_at(offsets_, i);
  erase_at(sizes_, i);
  erase_at(freed_, i);
  erase_at(histories_, i);
}

void ManyFragments::clear() {
  offsets_.clear();
  sizes_.clear();
  freed_.clear();
  histories_.clear();
  by_size_.clear();
}

void ManyFragments::append_by_age(std::vector<int64_t>& state) const {
  std::vector<size_t> by_age(size());
  std::iota(by_age.begin(), by_age.end(), size_t{0});
  std::sort(by_age.begin(), by_age.end(),
            [&](size_t a, size_t b) { return freed_[a] < freed_[b]; });
  for (const size_t i : by_age) {
    state.push_back(offsets_[i]);
    state.push_back(sizes_[i]);
  }
}

uint64_t ManyFragments::key() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < size(); ++i) sum += key_of(offsets_[i], sizes_[i]);
  return sum;
}

void ManyFragments::index_or_not() {
  if (size() <= indexed_ / 2) by_size_.clear();
  if (!by_size_.empty() || size() <= indexed_) return;
  for (size_t i = 0; i < size(); ++i) by_size_.insert(sized(i));
}

}  // namespace longspan
