#include "engine/cpu/exchange.h"

#include <cassert>
#include <cstring>

#include "engine/comm/collectives.h"

namespace longspan::cpu {

void HostExchange::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  comm_.exchange(sends, receives);
}

void HostExchange::read(const std::byte* from, int64_t bytes, std::byte* to) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void HostExchange::all_gather(const Group& group, std::span<const std::byte> shard,
                              std::byte* out) {
  longspan::all_gather(comm_, group, shard, out);
}

void HostExchange::reduce_scatter(const Group& group, [[maybe_unused]] DType type,
                                  const std::byte* parts, int64_t count, std::byte* sum,
                                  std::span<std::byte> workspace) {
  assert(type == DType::float32);
  longspan::reduce_scatter(comm_, group, reinterpret_cast<const float*>(parts), count,
                           reinterpret_cast<float*>(sum), workspace);
}

void HostExchange::all_reduce(const Group& group, float* data, int64_t count,
                              std::span<std::byte> workspace) {
  longspan::all_reduce(comm_, group, data, count, workspace);
}

void HostExchange::all_reduce(const Group& group, double* data, int64_t count) {
  all_reduce_sums(comm_, group, {data, static_cast<size_t>(count)});
}

void HostExchange::copy_rows(const std::byte* from, int64_t from_stride, int64_t rows,
                             int64_t width, std::byte* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, width);
  }
}

void HostExchange::add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width,
                            float* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) to[row * to_stride + i] += from[row * from_stride + i];
  }
}

}  // namespace longspan::cpu
