// Operands for a device's kernels, and how large the shapes are that they are tried at. Internal to
// engine/profile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan {

/// The shapes a device is measured at. What does not fit the scratch is left out.
struct DeviceGrid {
  std::vector<int64_t> product_rows{256, 1024, 4096, 16384};  // tokens
  std::vector<int64_t> product_widths{1024, 4096, 16384};
  // Chunks of attention's queries and keys: the first are measured whatever the time, the others
  // where there is some left; so with the heads' width.
  std::vector<int64_t> chunks{4096, 16384, 65536};
  std::vector<int64_t> more_chunks{8192, 32768, 131072};
  int64_t head_dim = 128, other_head_dim = 64;
  int64_t heads = 8, kv_heads = 2;
  std::vector<int64_t> heads_tried{1, 2, 4, 8, 16, 32};
  std::vector<int64_t> heads_chunks{4096, 16384};
  std::vector<int64_t> rows{512, 4096, 32768};  // of elementwise kernels
  std::vector<int64_t> widths{1024, 4096, 16384};
  std::vector<int64_t> loss_rows{256, 2048, 8192};
  std::vector<int64_t> vocabularies{32768, 131072};
  std::vector<int64_t> states{1 << 16, 1 << 20, 1 << 24, 1 << 27};  // elements
  std::vector<int64_t> host_states{1 << 16, 1 << 20, 1 << 25};      // of an optimizer on the host
  std::vector<int64_t> copies{1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28};  // bytes
  int64_t contended_product = 8192;           // rows and columns of the products during copies
  int64_t contended_copy = int64_t{1} << 26;  // bytes
  int64_t exchanged = int64_t{32} << 20;      // bytes to each other rank: all bandwidth
  int64_t in_bytes = int64_t{2} << 30, out_bytes = int64_t{4} << 30;  // of the scratch, at most
};

/// Rings of memory on the device and of pinned memory on the host: what is taken comes round again
/// after all of the ring, so that no cache holds it.
class DeviceScratch {
 public:
  /// Takes the grid's bytes, or less where the device has less to spare; and host memory for the
  /// largest copy. The device must outlive it. Throws no_fit where there is not even a little.
  DeviceScratch(cuda::Device& device, const DeviceGrid& grid);

  /// Whether operands of these sizes fit at once.
  bool holds(int64_t in_bytes, int64_t out_bytes) const;
  /// Random numbers in [-1, 1], as bfloat16 or as float. They are never written.
  template <class T>
  const T* in(int64_t count) {
    return reinterpret_cast<const T*>(in_.take(count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  T* out(int64_t count) {
    return reinterpret_cast<T*>(out_.take(count * static_cast<int64_t>(sizeof(T))));
  }
  std::byte* host(int64_t bytes) { return host_.take(bytes); }
  /// Tokens (or labels) below kTokens, of the grid's largest number of rows.
  const int32_t* tokens() const { return reinterpret_cast<const int32_t*>(tokens_->data()); }
  static constexpr int64_t kTokens = 4096;
  /// A double on the device whose value is 1.
  double* one() const { return reinterpret_cast<double*>(sums_->data()); }
  /// A double to add to.
  double* sum() const { return one() + 1; }
  /// Results of results would grow without end: begins at nothing again.
  void refresh();

 private:
  struct Ring {
    std::byte* take(int64_t bytes);
    std::unique_ptr<Arena> arena;
    int64_t next = 0;
  };
  cuda::Device& device_;
  Ring in_, out_, host_;
  std::unique_ptr<Arena> tokens_, sums_;
};

}  // namespace longspan
