#include "planner/program/arena_allocator.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace longspan {
namespace {

constexpr size_t kMaxFragments = 64;  // with more, adjacent ones merge with their histories

// The least freed[i] with sizes[i] == bytes; INT64_MAX if there is none. Without a branch, which
// would be mispredicted in most calls and prevent vectorisation.
int64_t oldest_of_size(const int64_t* sizes, const int64_t* freed, size_t n, int64_t bytes) {
  int64_t oldest = INT64_MAX;
  for (size_t i = 0; i < n; ++i) {
    const int64_t other = -static_cast<int64_t>(sizes[i] != bytes) & INT64_MAX;
    oldest = std::min(oldest, freed[i] | other);
  }
  return oldest;
}

template <class T>
void erase_range(std::vector<T>& list, size_t begin, size_t end) {
  list.erase(list.begin() + static_cast<int64_t>(begin), list.begin() + static_cast<int64_t>(end));
}

template <class T>
void insert_at(std::vector<T>& list, size_t at, const T& value) {
  list.insert(list.begin() + static_cast<int64_t>(at), value);
}

}  // namespace

void ArenaAllocator::erase(size_t begin, size_t end) {
  erase_range(offsets_, begin, end);
  erase_range(sizes_, begin, end);
  erase_range(freed_, begin, end);
  if (!histories_.empty()) erase_range(histories_, begin, end);
}

// Bisection without a branch, which would be mispredicted half of the time.
size_t ArenaAllocator::fragment_at(int64_t offset) const {
  size_t first = 0;
  for (size_t left = offsets_.size(); left > 0;) {
    const size_t half = (left + 1) / 2;
    first += offsets_[first + half - 1] < offset ? half : 0;
    left -= half;
  }
  return first;
}

// An index exists only with more than kMaxFragments fragments, none of which are then adjacent.
void ArenaAllocator::index_or_not() {
  if (sizes_.size() <= std::max(indexed_ / 2, kMaxFragments)) by_size_.clear();
  if (!by_size_.empty() || sizes_.size() <= indexed_) return;
  for (size_t i = 0; i < sizes_.size(); ++i) by_size_.insert(sized(i));
}

// As allocate(), with no adjacent fragments, so each is a run.
int64_t ArenaAllocator::allocate_indexed(int64_t bytes, Waits* history) {
  auto fit = by_size_.lower_bound({bytes, INT64_MIN, 0});
  if (fit == by_size_.end()) {
    const size_t last = sizes_.size() - 1;
    const bool touches_top = end(last) == top_;
    const int64_t offset = touches_top ? offsets_[last] : top_;
    if (touches_top) {
      inherit(history, last);
      by_size_.erase(sized(last));
      erase(last, last + 1);
    }
    top_ = offset + bytes;
    return offset;
  }
  // No fragment fits exactly: take the lowest of the smallest that are larger.
  if (fit->bytes > bytes) {
    for (auto other = fit; other != by_size_.end() && other->bytes == fit->bytes; ++other) {
      if (other->offset < fit->offset) fit = other;
    }
  }
  const int64_t offset = fit->offset;
  const size_t at = fragment_at(offset);
  by_size_.erase(fit);
  inherit(history, at);
  if (sizes_[at] == bytes) {
    erase(at, at + 1);
  } else {
    offsets_[at] += bytes;
    sizes_[at] -= bytes;
    by_size_.insert(sized(at));
  }
  return offset;
}

int64_t ArenaAllocator::allocate(int64_t bytes, Waits* history) {
  assert(bytes > 0 && bytes % kArenaAlignment == 0);
  if (!by_size_.empty()) {
    const int64_t offset = allocate_indexed(bytes, history);
    index_or_not();
    return offset;
  }
  // The oldest exact fit; in a loop there nearly always is one.
  const size_t n = sizes_.size();
  const int64_t oldest = oldest_of_size(sizes_.data(), freed_.data(), n, bytes);
  if (oldest != INT64_MAX) {
    const size_t exact =
        static_cast<size_t>(std::find(freed_.begin(), freed_.end(), oldest) - freed_.begin());
    const int64_t offset = offsets_[exact];
    inherit(history, exact);
    erase(exact, exact + 1);
    return offset;
  }
  // Else the smallest run of adjacent fragments that is large enough. Without branches, as above.
  size_t best = n;
  int64_t best_run = INT64_MAX;
  size_t run_start = 0;
  int64_t run = 0, run_end = -1;
  for (size_t i = 0; i < n; ++i) {
    const bool begins = offsets_[i] != run_end;
    run_start = begins ? i : run_start;
    run = (begins ? 0 : run) + sizes_[i];
    run_end = end(i);
    const bool ends = i + 1 == n || offsets_[i + 1] != run_end;
    const bool better = ends & (run >= bytes) & (run < best_run);
    best_run = better ? run : best_run;
    best = better ? run_start : best;
  }
  // No run is large enough: grow, starting in the free run that touches the top, if there is one.
  if (best == n) {
    const bool touches_top = n > 0 && end(n - 1) == top_;
    const size_t from = touches_top ? run_start : n;
    const int64_t offset = touches_top ? offsets_[run_start] : top_;
    for (size_t i = from; i < n; ++i) inherit(history, i);
    erase(from, n);
    top_ = offset + bytes;
    return offset;
  }
  const int64_t offset = offsets_[best];
  int64_t left = bytes;
  size_t past = best;
  while (left > 0) {
    inherit(history, past);
    if (sizes_[past] > left) {
      offsets_[past] += left;
      sizes_[past] -= left;
      break;
    }
    left -= sizes_[past];
    ++past;
  }
  erase(best, past);
  return offset;
}

void ArenaAllocator::free(int64_t offset, int64_t bytes, const Waits* history) {
  const size_t fragment = fragment_at(offset);
  assert(offset >= 0 && offset + bytes <= top_);
  assert(fragment == sizes_.size() || offset + bytes <= offsets_[fragment]);
  assert(fragment == 0 || end(fragment - 1) <= offset);
  insert_at(offsets_, fragment, offset);
  insert_at(sizes_, fragment, bytes);
  insert_at(freed_, fragment, clock_++);
  if (history != nullptr) insert_at(histories_, fragment, *history);
  if (!by_size_.empty()) by_size_.insert(sized(fragment));
  if (sizes_.size() <= kMaxFragments) {
    apart_ = false;
  } else if (apart_) {
    coalesce_at(fragment);
  } else {
    coalesce();
  }
  index_or_not();
}

void ArenaAllocator::absorb(size_t fragment, size_t next) {
  sizes_[fragment] += sizes_[next];
  freed_[fragment] = std::max(freed_[fragment], freed_[next]);
  if (!histories_.empty()) merge(histories_[fragment], histories_[next]);
}

// As coalesce(), if only this fragment may be adjacent to others.
void ArenaAllocator::coalesce_at(size_t fragment) {
  const auto absorb_next = [&](size_t i) {
    if (i + 1 == sizes_.size() || end(i) != offsets_[i + 1]) return;
    const bool is_indexed = !by_size_.empty();
    if (is_indexed) {
      by_size_.erase(sized(i));
      by_size_.erase(sized(i + 1));
    }
    absorb(i, i + 1);
    if (is_indexed) by_size_.insert(sized(i));
    erase(i + 1, i + 2);
  };
  absorb_next(fragment);
  if (fragment > 0) absorb_next(fragment - 1);
}

void ArenaAllocator::append_state(std::vector<int64_t>& state) const {
  std::vector<size_t> by_age(sizes_.size());
  std::iota(by_age.begin(), by_age.end(), size_t{0});
  std::sort(by_age.begin(), by_age.end(),
            [&](size_t a, size_t b) { return freed_[a] < freed_[b]; });
  state.push_back(top_);
  for (const size_t i : by_age) {
    state.push_back(offsets_[i]);
    state.push_back(sizes_[i]);
  }
}

uint64_t ArenaAllocator::state_key() const {
  uint64_t key = static_cast<uint64_t>(top_);
  for (size_t i = 0; i < sizes_.size(); ++i) {
    key = key * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(offsets_[i] ^ (sizes_[i] << 7));
  }
  return key;
}

void ArenaAllocator::coalesce() {
  size_t kept = 0;
  for (size_t i = 1; i < sizes_.size(); ++i) {
    if (end(kept) == offsets_[i]) {
      absorb(kept, i);
      continue;
    }
    ++kept;
    offsets_[kept] = offsets_[i];
    sizes_[kept] = sizes_[i];
    freed_[kept] = freed_[i];
    if (!histories_.empty()) histories_[kept] = histories_[i];
  }
  erase(kept + 1, sizes_.size());
  apart_ = true;
}

}  // namespace longspan
