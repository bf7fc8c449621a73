#include "planner/program/arena_allocator.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr size_t kMaxFragments = 64;  // beyond this, neighbours forget their separate histories

}  // namespace

int64_t ArenaAllocator::allocate(int64_t bytes, Waits& history) {
  // The oldest exact fit: in a loop there nearly always is one.
  size_t exact = fragments_.size();
  int64_t oldest = INT64_MAX;
  for (size_t i = 0; i < fragments_.size(); ++i) {
    if (fragments_[i].bytes != bytes || fragments_[i].freed >= oldest) continue;
    exact = i;
    oldest = fragments_[i].freed;
  }
  if (exact != fragments_.size()) {
    const int64_t offset = fragments_[exact].offset;
    merge(history, fragments_[exact].history);
    fragments_.erase(fragments_.begin() + static_cast<int64_t>(exact));
    return offset;
  }
  // Else the smallest run of adjacent fragments that is large enough.
  size_t best = fragments_.size();
  int64_t best_run = INT64_MAX;
  size_t run_start = 0;
  int64_t run = 0;
  for (size_t i = 0; i < fragments_.size(); ++i) {
    const Fragment& f = fragments_[i];
    if (run > 0 && fragments_[i - 1].offset + fragments_[i - 1].bytes == f.offset) {
      run += f.bytes;
    } else {
      run_start = i;
      run = f.bytes;
    }
    const bool ends = i + 1 == fragments_.size() || fragments_[i + 1].offset != f.offset + f.bytes;
    if (ends && run >= bytes && run < best_run) {
      best_run = run;
      best = run_start;
    }
  }
  // No run is large enough: grow, starting in the free run that touches the top, if there is one.
  if (best == fragments_.size()) {
    const bool touches_top =
        !fragments_.empty() && fragments_.back().offset + fragments_.back().bytes == top_;
    best = touches_top ? run_start : fragments_.size();
    const int64_t offset = touches_top ? fragments_[run_start].offset : top_;
    for (size_t i = best; i < fragments_.size(); ++i) merge(history, fragments_[i].history);
    fragments_.resize(best);
    top_ = offset + bytes;
    return offset;
  }
  const int64_t offset = fragments_[best].offset;
  int64_t left = bytes;
  size_t end = best;
  while (left > 0) {
    Fragment& f = fragments_[end];
    merge(history, f.history);
    if (f.bytes > left) {
      f.offset += left;
      f.bytes -= left;
      break;
    }
    left -= f.bytes;
    ++end;
  }
  fragments_.erase(fragments_.begin() + static_cast<int64_t>(best),
                   fragments_.begin() + static_cast<int64_t>(end));
  return offset;
}

void ArenaAllocator::free(int64_t offset, int64_t bytes, const Waits& history) {
  const auto after = std::find_if(fragments_.begin(), fragments_.end(),
                                  [&](const Fragment& f) { return f.offset > offset; });
  fragments_.insert(after, {offset, bytes, clock_++, history});
  if (fragments_.size() > kMaxFragments) coalesce();
}

void ArenaAllocator::coalesce() {
  size_t kept = 0;
  for (size_t i = 1; i < fragments_.size(); ++i) {
    Fragment& last = fragments_[kept];
    const Fragment& f = fragments_[i];
    if (last.offset + last.bytes == f.offset) {
      last.bytes += f.bytes;
      last.freed = std::max(last.freed, f.freed);
      merge(last.history, f.history);
    } else {
      fragments_[++kept] = f;
    }
  }
  fragments_.resize(kept + 1);
}

}  // namespace longspan
