#include "engine/profile/device_scratch.h"

#include <algorithm>
#include <random>

#include "base/bfloat16.h"
#include "engine/cuda/memory.h"
#include "engine/profile/hashed_tokens.h"

namespace longspan {
namespace {

constexpr int64_t kAlign = 256;                    // alignment of a plan's buffers
constexpr int64_t kPiece = int64_t{32} << 20;      // bytes of random numbers, which are repeated
constexpr double kInShare = 0.2, kOutShare = 0.4;  // of free memory, at most

int64_t share_of(double share, int64_t free_bytes, int64_t wanted) {
  const int64_t most = static_cast<int64_t>(share * static_cast<double>(free_bytes));
  return std::min(wanted, most / kAlign * kAlign);
}

int64_t largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

void fill_randomly(Arena& arena) {
  std::minstd_rand engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<bfloat16> piece(std::min(kPiece, arena.bytes()) / sizeof(bfloat16));
  for (bfloat16& value : piece) value = narrow(uniform(engine));
  const int64_t bytes = static_cast<int64_t>(piece.size() * sizeof(bfloat16));
  for (int64_t at = 0; at < arena.bytes(); at += bytes) {
    arena.write(at, piece.data(), std::min(bytes, arena.bytes() - at));
  }
}

}  // namespace

std::byte* DeviceScratch::Ring::take(int64_t bytes) {
  if (next + bytes > arena->bytes()) next = 0;
  std::byte* data = arena->data() + next;
  next += (bytes + kAlign - 1) / kAlign * kAlign;
  return data;
}

DeviceScratch::DeviceScratch(cuda::Device& device, const DeviceGrid& grid) : device_(device) {
  const cuda::DeviceMemory memory = device.memory();
  const int64_t left = memory.total_bytes - memory.used_bytes;
  in_.arena = device.allocate(Tier::device, share_of(kInShare, left, grid.in_bytes));
  out_.arena = device.allocate(Tier::device, share_of(kOutShare, left, grid.out_bytes));
  const int64_t copies = 2 * largest(grid.copies);
  copied_up_.arena = device.allocate(Tier::device, copies);
  host_.arena = device.allocate(Tier::host, copies);
  copied_down_.arena = device.allocate(Tier::host, copies);
  fill_randomly(*in_.arena);
  const std::vector<int32_t> tokens =
      hashed_tokens(std::max(largest(grid.rows), largest(grid.loss_rows)), kTokens);
  const int64_t bytes = static_cast<int64_t>(tokens.size() * sizeof(int32_t));
  tokens_ = device.allocate(Tier::device, bytes);
  tokens_->write(0, tokens.data(), bytes);
  const double sums[] = {1, 0};
  sums_ = device.allocate(Tier::device, sizeof sums);
  sums_->write(0, sums, sizeof sums);
}

bool DeviceScratch::holds(int64_t in_bytes, int64_t out_bytes) const {
  constexpr int64_t kOperands = 16;  // most operands, each of which may need padding
  return in_bytes + kOperands * kAlign <= in_.arena->bytes() &&
         out_bytes + kOperands * kAlign <= out_.arena->bytes();
}

void DeviceScratch::refresh() {
  device_.queues().begin({});
  cuda::zero_bytes(device_.queue(Stream::compute), out_.arena->data(), out_.arena->bytes());
  device_.queues().finish();
}

}  // namespace longspan
