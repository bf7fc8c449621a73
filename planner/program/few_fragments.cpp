#include "planner/program/few_fragments.h"

namespace longspan {

// Few fragments change from call to call, so inserting them one by one is fast.
void FewFragments::sort() {
  int count = 0;
  for (int i = 0; i < ordered_; ++i) {
    order_[count] = order_[i];
    count += static_cast<int>(listed_ >> order_[i] & 1);
  }
  for (uint64_t fresh = used_ & ~listed_; fresh != 0; fresh &= fresh - 1) {
    const int slot = std::countr_zero(fresh);
    int at = count++;
    for (; at > 0 && offsets_[order_[at - 1]] > offsets_[slot]; --at) order_[at] = order_[at - 1];
    order_[at] = static_cast<uint8_t>(slot);
  }
  ordered_ = count;
  listed_ = used_;
}

// Without branches, as above.
int64_t FewFragments::take_from_run(int64_t bytes, Waits* history) {
  sort();
  int best = ordered_, run_start = 0;
  int64_t best_run = INT64_MAX, run = 0, run_end = -1;
  for (int i = 0; i < ordered_; ++i) {
    const int slot = order_[i];
    const bool begins = offsets_[slot] != run_end;
    run_start = begins ? i : run_start;
    run = (begins ? 0 : run) + sizes_[slot];
    run_end = end(slot);
    const bool ends = i + 1 == ordered_ || offsets_[order_[i + 1]] != run_end;
    const bool better = ends & (run >= bytes) & (run < best_run);
    best_run = better ? run : best_run;
    best = better ? run_start : best;
  }
  if (best == ordered_) return -1;
  const int64_t offset = offsets_[order_[best]];
  for (int64_t left = bytes; left > 0; ++best) {
    const int slot = order_[best];
    if (sizes_[slot] > left) {
      if (history != nullptr) merge(*history, histories_[slot]);
      offsets_[slot] += left;
      sizes_[slot] -= left;
      break;
    }
    left -= sizes_[slot];
    remove(slot, history);
  }
  return offset;
}

int64_t FewFragments::take_run_before(int64_t end, Waits* history) {
  sort();
  for (int i = ordered_; i > 0 && this->end(order_[i - 1]) == end; --i) {
    end = offsets_[order_[i - 1]];
    remove(order_[i - 1], history);
  }
  return end;
}

void FewFragments::append_by_age(std::vector<int64_t>& state) const {
  std::array<int64_t, kMost> ages;
  int count = 0;
  for (uint64_t used = used_; used != 0; used &= used - 1) {
    ages[count++] = ages_[std::countr_zero(used)];
  }
  std::sort(ages.begin(), ages.begin() + count);
  for (int i = 0; i < count; ++i) {
    const auto slot = static_cast<size_t>(ages[i] & (kMost - 1));
    state.push_back(offsets_[slot]);
    state.push_back(sizes_[slot]);
  }
}

}  // namespace longspan
