#include "planner/program/arena_allocator.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace longspan {
namespace {

constexpr size_t kMaxFragments = 64;  // beyond this, neighbours forget their separate histories

}  // namespace

void ArenaAllocator::erase(size_t begin, size_t end) {
  const auto from = static_cast<int64_t>(begin), to = static_cast<int64_t>(end);
  fragments_.erase(fragments_.begin() + from, fragments_.begin() + to);
  if (!histories_.empty()) histories_.erase(histories_.begin() + from, histories_.begin() + to);
}

// Halved without a branch, which would be foreseen in half of the cases.
size_t ArenaAllocator::fragment_at(int64_t offset) const {
  const Fragment* const all = fragments_.data();
  size_t first = 0;
  for (size_t left = fragments_.size(); left > 0;) {
    const size_t half = (left + 1) / 2;
    first += all[first + half - 1].offset < offset ? half : 0;
    left -= half;
  }
  return first;
}

// More than kMaxFragments fragments are apart, and an index exists only then.
void ArenaAllocator::index_or_not() {
  if (fragments_.size() <= std::max(indexed_ / 2, kMaxFragments)) by_size_.clear();
  if (!by_size_.empty() || fragments_.size() <= indexed_) return;
  for (const Fragment& f : fragments_) by_size_.insert(sized(f));
}

// As allocate(), of fragments that are apart: each is a run.
int64_t ArenaAllocator::allocate_indexed(int64_t bytes, Waits* history) {
  auto fit = by_size_.lower_bound({bytes, INT64_MIN, 0});
  if (fit == by_size_.end()) {
    const Fragment last = fragments_.back();
    const bool touches_top = last.end() == top_;
    const int64_t offset = touches_top ? last.offset : top_;
    if (touches_top) {
      inherit(history, fragments_.size() - 1);
      by_size_.erase(sized(last));
      erase(fragments_.size() - 1, fragments_.size());
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
  Fragment& f = fragments_[at];
  if (f.bytes == bytes) {
    erase(at, at + 1);
  } else {
    f.offset += bytes;
    f.bytes -= bytes;
    by_size_.insert(sized(f));
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
  // The oldest exact fit: in a loop there nearly always is one.
  const size_t n = fragments_.size();
  size_t exact = n;
  int64_t oldest = INT64_MAX;
  for (size_t i = 0; i < n; ++i) {
    if (fragments_[i].bytes != bytes || fragments_[i].freed >= oldest) continue;
    exact = i;
    oldest = fragments_[i].freed;
  }
  if (exact != n) {
    const int64_t offset = fragments_[exact].offset;
    inherit(history, exact);
    erase(exact, exact + 1);
    return offset;
  }
  // Else the smallest run of adjacent fragments that is large enough.
  size_t best = n;
  int64_t best_run = INT64_MAX;
  size_t run_start = 0;
  int64_t run = 0;
  for (size_t i = 0; i < n; ++i) {
    const Fragment& f = fragments_[i];
    if (i > 0 && fragments_[i - 1].end() == f.offset) {
      run += f.bytes;
    } else {
      run_start = i;
      run = f.bytes;
    }
    const bool ends = i + 1 == n || fragments_[i + 1].offset != f.end();
    if (ends && run >= bytes && run < best_run) {
      best_run = run;
      best = run_start;
    }
  }
  // No run is large enough: grow, starting in the free run that touches the top, if there is one.
  if (best == n) {
    const bool touches_top = n > 0 && fragments_.back().end() == top_;
    const size_t from = touches_top ? run_start : n;
    const int64_t offset = touches_top ? fragments_[run_start].offset : top_;
    for (size_t i = from; i < n; ++i) inherit(history, i);
    erase(from, n);
    top_ = offset + bytes;
    return offset;
  }
  const int64_t offset = fragments_[best].offset;
  int64_t left = bytes;
  size_t end = best;
  while (left > 0) {
    Fragment& f = fragments_[end];
    inherit(history, end);
    if (f.bytes > left) {
      f.offset += left;
      f.bytes -= left;
      break;
    }
    left -= f.bytes;
    ++end;
  }
  erase(best, end);
  return offset;
}

void ArenaAllocator::free(int64_t offset, int64_t bytes, const Waits* history) {
  const size_t fragment = fragment_at(offset);
  const auto after = fragments_.begin() + static_cast<int64_t>(fragment);
  assert(offset >= 0 && offset + bytes <= top_);
  assert(after == fragments_.end() || offset + bytes <= after->offset);
  assert(after == fragments_.begin() || std::prev(after)->end() <= offset);
  if (history != nullptr) {
    histories_.insert(histories_.begin() + static_cast<int64_t>(fragment), *history);
  }
  fragments_.insert(after, {offset, bytes, clock_++});
  if (!by_size_.empty()) by_size_.insert(sized(fragments_[fragment]));
  if (fragments_.size() <= kMaxFragments) {
    apart_ = false;
  } else if (apart_) {
    coalesce_at(fragment);
  } else {
    coalesce();
  }
  index_or_not();
}

// The same where all but this one are apart.
void ArenaAllocator::coalesce_at(size_t fragment) {
  const auto absorb_next = [&](size_t i) {
    Fragment& last = fragments_[i];
    if (i + 1 == fragments_.size() || last.end() != fragments_[i + 1].offset) return;
    const bool is_indexed = !by_size_.empty();
    if (is_indexed) {
      by_size_.erase(sized(last));
      by_size_.erase(sized(fragments_[i + 1]));
    }
    last.bytes += fragments_[i + 1].bytes;
    last.freed = std::max(last.freed, fragments_[i + 1].freed);
    if (!histories_.empty()) merge(histories_[i], histories_[i + 1]);
    if (is_indexed) by_size_.insert(sized(last));
    erase(i + 1, i + 2);
  };
  absorb_next(fragment);
  if (fragment > 0) absorb_next(fragment - 1);
}

void ArenaAllocator::append_state(std::vector<int64_t>& state) const {
  std::vector<Fragment> by_age = fragments_;
  std::sort(by_age.begin(), by_age.end(),
            [](const Fragment& a, const Fragment& b) { return a.freed < b.freed; });
  state.push_back(top_);
  for (const Fragment& f : by_age) {
    state.push_back(f.offset);
    state.push_back(f.bytes);
  }
}

uint64_t ArenaAllocator::state_key() const {
  uint64_t key = static_cast<uint64_t>(top_);
  for (const Fragment& f : fragments_) {
    key = key * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(f.offset ^ (f.bytes << 7));
  }
  return key;
}

void ArenaAllocator::coalesce() {
  const bool with_histories = !histories_.empty();
  size_t kept = 0;
  for (size_t i = 1; i < fragments_.size(); ++i) {
    Fragment& last = fragments_[kept];
    const Fragment& f = fragments_[i];
    if (last.end() == f.offset) {
      last.bytes += f.bytes;
      last.freed = std::max(last.freed, f.freed);
      if (with_histories) merge(histories_[kept], histories_[i]);
      continue;
    }
    fragments_[++kept] = f;
    if (with_histories) histories_[kept] = histories_[i];
  }
  erase(kept + 1, fragments_.size());
  apart_ = true;
}

}  // namespace longspan
