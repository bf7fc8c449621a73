#include "engine/cuda/arenas.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/numa.h"
#include "base/units.h"
#include "engine/cuda/cuda_error.h"

namespace longspan::cuda {
namespace {

// Memsets and copies of pageable memory may return before the device has finished, and the queues'
// non-blocking streams do not wait for the default stream.
void wait_for_default_stream() { check(cudaStreamSynchronize(cudaStreamLegacy), "device memory"); }

class DeviceArena final : public Arena {
 public:
  explicit DeviceArena(int64_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    size_t available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "free memory");
    if (cudaMalloc(&data_, bytes) != cudaSuccess) {
      (void)cudaGetLastError();  // it has been heard of
      throw no_fit("device memory: the plan's peak is {}, the device has {} available, short by {}",
                   format_bytes(bytes), format_bytes(static_cast<int64_t>(available)),
                   format_bytes(std::max<int64_t>(0, bytes - static_cast<int64_t>(available))));
    }
    fill(0);
  }
  ~DeviceArena() override { (void)cudaFree(data_); }

  std::byte* data() const override { return static_cast<std::byte*>(data_); }
  int64_t bytes() const override { return bytes_; }
  void poison() override {
    if (bytes_ > 0) fill(0xFF);
  }
  void read(int64_t offset, void* out, int64_t bytes) const override {
    check(cudaMemcpy(out, data() + offset, bytes, cudaMemcpyDeviceToHost), "read");
  }
  void write(int64_t offset, const void* data, int64_t bytes) override {
    check(cudaMemcpy(this->data() + offset, data, bytes, cudaMemcpyHostToDevice), "write");
    wait_for_default_stream();
  }

 private:
  void fill(int value) {
    check(cudaMemset(data_, value, bytes_), "fill");
    wait_for_default_stream();
  }

  void* data_ = nullptr;
  int64_t bytes_;
};

// The NUMA node nearest to the current device, if any.
std::optional<int> numa_node_of_current_device() {
  int device = 0;
  char address[32];  // domain:bus:device.function
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetPCIBusId(address, sizeof address, device) != cudaSuccess) {
    (void)cudaGetLastError();  // it has been heard of
    return std::nullopt;
  }
  return numa_node_of_device(address);
}

class PinnedArena final : public Arena {
 public:
  explicit PinnedArena(int64_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    refuse_unless_available(bytes, "host");
    mapped_ = round_up(bytes, int64_t{2} << 20);
    void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      throw failed("host memory: cannot map {}: {}", format_bytes(bytes), std::strerror(errno));
    }
    data_ = static_cast<std::byte*>(base);
    (void)madvise(base, mapped_, MADV_HUGEPAGE);  // a hint
    touch_first(data_, mapped_, numa_node_of_current_device());
    const cudaError_t status = cudaHostRegister(data_, mapped_, cudaHostRegisterPortable);
    if (status != cudaSuccess) {
      munmap(data_, mapped_);
      throw failed("host memory: cannot pin {}: {}; check the limit on locked memory (ulimit -l)",
                   format_bytes(bytes), cudaGetErrorString(status));
    }
  }
  ~PinnedArena() override {
    if (mapped_ == 0) return;
    (void)cudaHostUnregister(data_);
    munmap(data_, mapped_);
  }

  std::byte* data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }
  void poison() override {
    if (bytes_ > 0) std::memset(data_, 0xFF, bytes_);
  }
  void read(int64_t offset, void* out, int64_t bytes) const override {
    std::memcpy(out, data_ + offset, bytes);
  }
  void write(int64_t offset, const void* data, int64_t bytes) override {
    std::memcpy(data_ + offset, data, bytes);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_, mapped_ = 0;
};

}  // namespace

std::unique_ptr<Arena> take_device_memory(int64_t bytes) {
  return std::make_unique<DeviceArena>(bytes);
}

std::unique_ptr<Arena> take_pinned_memory(int64_t bytes) {
  return std::make_unique<PinnedArena>(bytes);
}

}  // namespace longspan::cuda
