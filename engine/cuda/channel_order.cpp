#include "engine/cuda/channel_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "base/error.h"
#include "engine/comm/agreement.h"

namespace longspan::cuda {
namespace {

// Tells the receiver of each channel what is sent in it: values[i] of channel i, whose size is as
// the receiver has resized told[i].
void tell(Communicator& comm, const std::vector<MessageChannel>& channels,
          const std::vector<std::span<const int64_t>>& values,
          std::vector<std::vector<int64_t>>& told) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (size_t i = 0; i < channels.size(); ++i) {
    if (channels[i].sender == comm.rank()) {
      const auto bytes = std::as_bytes(values[i]);
      sends.push_back({channels[i].receiver, bytes.data(), std::ssize(bytes)});
    } else {
      const auto bytes = std::as_writable_bytes(std::span(told[i]));
      receives.push_back({channels[i].sender, bytes.data(), std::ssize(bytes)});
    }
  }
  comm.exchange(sends, receives);
}

}  // namespace

void check_channel_order(Communicator& comm, const std::vector<MessageChannel>& channels) {
  const size_t n = channels.size();
  std::vector<int64_t> counts;
  for (const MessageChannel& channel : channels) counts.push_back(std::ssize(channel.messages));
  std::vector<std::span<const int64_t>> values;
  for (const int64_t& count : counts) values.emplace_back(&count, 1);
  std::vector<std::vector<int64_t>> told(n, std::vector<int64_t>(1));
  tell(comm, channels, values, told);
  for (size_t i = 0; i < n; ++i) {
    values[i] = channels[i].messages;
    told[i].resize(told[i][0]);
  }
  tell(comm, channels, values, told);
  agree(comm, [&] {
    for (size_t i = 0; i < n; ++i) {
      const MessageChannel& channel = channels[i];
      if (channel.sender == comm.rank() || channel.messages == told[i]) continue;
      const auto differ = std::mismatch(channel.messages.begin(), channel.messages.end(),
                                        told[i].begin(), told[i].end());
      throw bad_input(
          "pipeline: rank {} sends the {} in another order than rank {} receives them, from "
          "message "
          "{} on; between GPUs the orders must be the same: choose another schedule",
          channel.sender, channel.what, channel.receiver,
          differ.first - channel.messages.begin() + 1);
    }
  });
}

}  // namespace longspan::cuda
