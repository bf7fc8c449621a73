// Operands for a device's kernels, and the grid of shapes at which kernels are measured. Internal
// to engine/profile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan {

/// The shapes at which a device is measured. Shapes that do not fit the scratch are left out.
struct DeviceGrid {
  std::vector<int64_t> product_rows{256, 1024, 4096, 16384};  // tokens
  std::vector<int64_t> product_widths{1024, 4096, 16384};
  // Lengths of attention's queries and keys. `chunks` at head_dim are always measured,
  // `more_chunks` and other_head_dim only if time is left.
  std::vector<int64_t> chunks{4096, 16384, 65536};
  std::vector<int64_t> more_chunks{8192, 32768, 131072};
  int64_t head_dim = 128, other_head_dim = 64;
  int64_t heads = 8, kv_heads = 2;
  std::vector<int64_t> heads_tried{1, 2, 4, 8, 16, 32};
  std::vector<int64_t> heads_chunks{4096, 16384};
  std::vector<int64_t> rows{512, 4096, 32768};  // for elementwise kernels
  std::vector<int64_t> widths{1024, 4096, 16384};
  std::vector<int64_t> loss_rows{256, 2048, 8192};
  std::vector<int64_t> vocabularies{32768, 131072};
  std::vector<int64_t> states{1 << 16, 1 << 20, 1 << 24, 1 << 27};  // elements
  std::vector<int64_t> host_states{1 << 16, 1 << 20, 1 << 25};      // for an optimizer on the host
  std::vector<int64_t> copies{1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28};  // bytes
  double load_seconds = 0.1;         // of untimed runs before products and attention are timed
  int64_t contended_product = 8192;  // rows and columns of products that run during copies
  int64_t contended_copy = int64_t{1} << 26;  // bytes
  int64_t exchanged = int64_t{32} << 20;      // bytes to each other rank: bandwidth dominates
  int64_t in_bytes = int64_t{2} << 30, out_bytes = int64_t{4} << 30;  // largest scratch
};

/// Ring buffers in device memory and in pinned host memory. Memory is reused only after the whole
/// ring has been handed out, so that operands are not in a cache.
class DeviceScratch {
 public:
  /// Allocates the grid's in_bytes and out_bytes, or less if the device has less free, and host
  /// memory for the largest copy. The device must outlive it. Throws no_fit if allocation fails.
  DeviceScratch(cuda::Device& device, const DeviceGrid& grid);

  /// Whether operands of these sizes fit at once.
  bool holds(int64_t in_bytes, int64_t out_bytes) const;
  /// Read-only random numbers in [-1, 1], as bfloat16 or as float.
  template <class T>
  const T* in(int64_t count) {
    return reinterpret_cast<const T*>(in_.take(count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  T* out(int64_t count) {
    return reinterpret_cast<T*>(out_.take(count * static_cast<int64_t>(sizeof(T))));
  }
  std::byte* host(int64_t bytes) { return host_.take(bytes); }
  // Where copies go: nothing else writes there, as copies run during kernels and each other.
  std::byte* copied_up(int64_t bytes) { return copied_up_.take(bytes); }
  std::byte* copied_down(int64_t bytes) { return copied_down_.take(bytes); }
  /// Tokens (or labels) in [0, kTokens), as many as the grid's largest number of rows.
  const int32_t* tokens() const { return reinterpret_cast<const int32_t*>(tokens_->data()); }
  static constexpr int64_t kTokens = 4096;
  /// A double on the device whose value is 1.
  double* one() const { return reinterpret_cast<double*>(sums_->data()); }
  /// An accumulator on the device.
  double* sum() const { return one() + 1; }
  /// Zeroes the outputs. Kernels that reuse their outputs as inputs would otherwise grow them
  /// without bound.
  void refresh();

 private:
  struct Ring {
    std::byte* take(int64_t bytes);
    std::unique_ptr<Arena> arena;
    int64_t next = 0;
  };
  cuda::Device& device_;
  Ring in_, out_, host_, copied_up_, copied_down_;
  std::unique_ptr<Arena> tokens_, sums_;
};

}  // namespace longspan
