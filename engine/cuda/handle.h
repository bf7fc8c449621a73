// An owning handle of a C library: destroyed with its owner, movable.
#pragma once

#include <cassert>
#include <utility>

namespace longspan::cuda {

template <class Value, auto Destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Value value) : value_(value) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, Value{})) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      value_ = std::exchange(other.value_, Value{});
    }
    return *this;
  }

  Value get() const { return value_; }
  /// The output argument of functions that create a handle. REQUIRES: it is empty.
  Value* out() {
    assert(value_ == Value{});
    return &value_;
  }

 private:
  // Errors of destruction are ignored: they come too late to be useful.
  void reset() noexcept {
    if (value_ != Value{}) (void)Destroy(value_);
    value_ = Value{};
  }

  Value value_{};
};

}  // namespace longspan::cuda
