// Exchanges between ranks in host memory. Every call returns when its exchange is done.
//
// Sums over ranks are in rank order, so the bits do not depend on timing.
#pragma once

#include "engine/comm/communicator.h"
#include "engine/runtime/exchange.h"

namespace longspan::cpu {

class HostExchange final : public RankExchange {
 public:
  /// `comm` must outlive it.
  explicit HostExchange(Communicator& comm) : comm_(comm) {}

  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override;
  void start_send(const Send& send, MessageTag tag) override { comm_.start_send(send, tag); }
  void finish_send(int peer, MessageTag tag) override { comm_.finish_send(peer, tag); }
  void receive(const Receive& receive, MessageTag tag) override { comm_.receive(receive, tag); }
  void read(const std::byte* from, int64_t bytes, std::byte* to) override;
  void abandon(const std::string& reason) noexcept override { comm_.abandon(reason); }
  bool cancel() noexcept override { return comm_.cancel_sends(); }
  void all_gather(const Group& group, std::span<const std::byte> shard, std::byte* out) override;
  /// REQUIRES: float32.
  void reduce_scatter(const Group& group, DType type, const std::byte* parts, int64_t count,
                      std::byte* sum, std::span<std::byte> workspace) override;
  void all_reduce(const Group& group, float* data, int64_t count,
                  std::span<std::byte> workspace) override;
  void all_reduce(const Group& group, double* data, int64_t count) override;
  void copy_rows(const std::byte* from, int64_t from_stride, int64_t rows, int64_t width,
                 std::byte* to, int64_t to_stride) override;
  void add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width, float* to,
                int64_t to_stride) override;

 private:
  Communicator& comm_;
};

}  // namespace longspan::cpu
