// A queue in one growing block of memory: internal to planner/program, where queues are short and
// their pushes and pops are the hottest loop of lowering.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace longspan {

template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  size_t size() const { return items_.size() - head_; }
  T& front() { return items_[head_]; }
  T& back() { return items_.back(); }
  void push_back(T item) { items_.push_back(std::move(item)); }
  void pop_front() {
    if (++head_ < kSlack || 2 * head_ < items_.size()) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }

 private:
  static constexpr size_t kSlack = 32;  // dead items tolerated before the rest moves up

  std::vector<T> items_;
  size_t head_ = 0;
};

}  // namespace longspan
