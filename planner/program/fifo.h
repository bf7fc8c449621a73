// A queue on a growable ring buffer. Internal to planner/program, where queues are short and their
// pushes and pops are the hottest loop of lowering.
#pragma once

#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

namespace longspan {

template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  const T& operator[](size_t i) const {
    return slots_[(head_ + i) & mask()];
  }  // the i-th from the front
  /// REQUIRES: not empty; also for back() and pop_front().
  T& front() {
    assert(!empty());
    return slots_[head_ & mask()];
  }
  T& back() {
    assert(!empty());
    return slots_[(tail_ - 1) & mask()];
  }
  /// Appends a slot and returns it, with the content of an earlier item.
  T& push() {
    if (size() == slots_.size()) grow();
    return slots_[tail_++ & mask()];
  }
  void push_back(const T& item) { push() = item; }
  void pop_front() {
    assert(!empty());
    ++head_;
  }

 private:
  size_t mask() const { return slots_.size() - 1; }  // the number of slots is a power of two
  void grow() {
    std::vector<T> larger(2 * slots_.size());
    const size_t count = size();
    for (size_t i = 0; i < count; ++i) larger[i] = std::move(slots_[(head_ + i) & mask()]);
    slots_ = std::move(larger);
    head_ = 0;
    tail_ = count;
  }

  std::vector<T> slots_ = std::vector<T>(32);
  size_t head_ = 0, tail_ = 0;  // numbers of pops and of pushes
};

}  // namespace longspan
