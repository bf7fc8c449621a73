#include "planner/program/arena_allocator.h"

#include <cassert>

namespace longspan {

int64_t ArenaAllocator::allocate(int64_t bytes, Waits* history) {
  assert(bytes > 0 && bytes % kArenaAlignment == 0);
  int64_t offset = is_many_ ? many_.take(bytes, history) : few_.take_equal(bytes, history);
  if (offset < 0 && !is_many_) offset = few_.take_from_run(bytes, history);
  if (offset < 0) {
    offset = is_many_ ? many_.take_before(top_, history) : few_.take_run_before(top_, history);
    top_ = offset + bytes;
  }
  return offset;
}

void ArenaAllocator::free(int64_t offset, int64_t bytes, const Waits* history) {
  assert(offset >= 0 && offset + bytes <= top_);
  const int64_t now = clock_++;
  if (!is_many_ && few_.size() == FewFragments::kMost) {
    is_many_ = true;
    few_.sort();
    for (int i = 0; i < FewFragments::kMost; ++i) many_.append(few_.at(i));
    few_.clear();
  } else if (is_many_ && many_.size() < static_cast<size_t>(FewFragments::kMost)) {
    is_many_ = false;
    for (size_t i = 0; i < many_.size(); ++i) few_.add(many_.at(i));
    many_.clear();
  }
  const Fragment fragment{offset, bytes, now, history != nullptr ? *history : kNoWaits};
  if (is_many_) {
    many_.add(fragment);
  } else {
    few_.add(fragment);
  }
}

void ArenaAllocator::append_state(std::vector<int64_t>& state) const {
  state.push_back(top_);
  is_many_ ? many_.append_by_age(state) : few_.append_by_age(state);
}

uint64_t ArenaAllocator::state_key() const {
  return static_cast<uint64_t>(top_) + (is_many_ ? many_.key() : few_.key());
}

}  // namespace longspan
