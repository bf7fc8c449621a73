#include "engine/comm/communicator.h"

#include <fmt/format.h>

#include "base/error.h"

namespace longspan {

void Communicator::check_peer(int peer, int64_t bytes, const char* what) const {
  if (peer == rank_) throw bad_input("exchange: rank {} {} itself; copy instead", rank_, what);
  if (peer < 0 || peer >= size_) {
    throw bad_input("exchange: rank {} {} rank {}, expected 0 to {}", rank_, what, peer, size_ - 1);
  }
  if (bytes < 0)
    throw bad_input("exchange: rank {} {} rank {}: {} bytes", rank_, what, peer, bytes);
}

void Communicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  int64_t total = 0;
  for (const Send& send : sends) {
    check_peer(send.peer, send.bytes, "sends to");
    total += send.bytes;
  }
  for (const Receive& receive : receives) {
    check_peer(receive.peer, receive.bytes, "receives from");
  }
  move(sends, receives);
  bytes_sent_.fetch_add(total, std::memory_order_relaxed);
}

void Communicator::start_send(const Send& send, MessageTag tag) {
  check_peer(send.peer, send.bytes, "sends to");
  do_start_send(send, tag);
}

void Communicator::finish_send(int peer, MessageTag tag) {
  check_peer(peer, 0, "sends to");
  bytes_sent_.fetch_add(do_finish_send(peer, tag), std::memory_order_relaxed);
}

void Communicator::receive(const Receive& receive, MessageTag tag) {
  check_peer(receive.peer, receive.bytes, "receives from");
  do_receive(receive, tag);
}

std::string describe_mismatch(int source, int64_t sent_bytes, int destination,
                              int64_t expected_bytes) {
  return fmt::format("exchange: rank {} sends {} bytes to rank {}, which expects {}", source,
                     sent_bytes, destination, expected_bytes);
}

}  // namespace longspan
