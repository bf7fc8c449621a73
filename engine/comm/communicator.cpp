#include "engine/comm/communicator.h"

#include <fmt/format.h>

#include "base/error.h"

namespace longspan {

void Communicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  const auto check = [this](int peer, int64_t bytes, const char* what) {
    if (peer == rank_) throw bad_input("exchange: rank {} {} itself; copy instead", rank_, what);
    if (peer < 0 || peer >= size_) {
      throw bad_input("exchange: rank {} {} rank {}, expected 0 to {}", rank_, what, peer,
                      size_ - 1);
    }
    if (bytes < 0) {
      throw bad_input("exchange: rank {} {} rank {}: {} bytes", rank_, what, peer, bytes);
    }
  };
  int64_t total = 0;
  for (const Send& send : sends) {
    check(send.peer, send.bytes, "sends to");
    total += send.bytes;
  }
  for (const Receive& receive : receives) check(receive.peer, receive.bytes, "receives from");
  move(sends, receives);
  bytes_sent_.fetch_add(total, std::memory_order_relaxed);
}

std::string describe_mismatch(int source, int64_t sent_bytes, int destination,
                              int64_t expected_bytes) {
  return fmt::format("exchange: rank {} sends {} bytes to rank {}, which expects {}", source,
                     sent_bytes, destination, expected_bytes);
}

}  // namespace longspan
