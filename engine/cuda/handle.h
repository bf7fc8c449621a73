// A handle of a C library that is destroyed with its owner.
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
  /// For functions that create into a pointer. REQUIRES: it holds nothing yet.
  Value* out() {
    assert(value_ == Value{});
    return &value_;
  }

 private:
  // What destroying may say comes too late to be of use.
  void reset() noexcept {
    if (value_ != Value{}) (void)Destroy(value_);
    value_ = Value{};
  }

  Value value_{};
};

}  // namespace longspan::cuda
