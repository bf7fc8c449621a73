// Ranks with a GPU each, which exchange through NCCL.
//
// A channel's sender has a queue for it, so that its messages wait for their receiver there. The
// exchange queue waits for a message only where the program does (finish_send()). The receiver
// takes messages on the exchange queue.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cassert>
#include <list>

#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/cuda/channel_order.h"
#include "engine/cuda/cuda_error.h"
#include "engine/cuda/event.h"
#include "engine/cuda/handle.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/nccl_communicators.h"
#include "engine/cuda/queue_ranks.h"

namespace longspan::cuda {
namespace {

// A message from its start to its end.
struct StartedSend {
  MessageTag tag = -1;  // -1: not in use
  int64_t bytes = 0;
  Event sent;
};

// What the sender has for a channel.
class OutChannel {
 public:
  explicit OutChannel(int64_t number) : number_(number) {
    check(cudaStreamCreateWithFlags(stream_.out(), cudaStreamNonBlocking), "stream");
    queue_.stream = stream_.get();
  }

  int64_t number() const { return number_; }
  cudaStream_t stream() const { return stream_.get(); }
  const Queue& queue() const { return queue_; }
  /// The message in flight with this tag; with -1 one that is not in use.
  StartedSend& message(MessageTag tag) {
    const auto found = std::find_if(messages_.begin(), messages_.end(),
                                    [&](const StartedSend& each) { return each.tag == tag; });
    assert(found != messages_.end() || tag < 0);
    return found == messages_.end() ? messages_.emplace_back() : *found;
  }
  /// Work on the channel's queue from now on waits for that on `other` so far.
  void wait_for(const Queue& other) {
    ready_.record(other);
    ready_.wait_on(queue_);
  }

 private:
  int64_t number_;
  Handle<cudaStream_t, cudaStreamDestroy> stream_;
  Queue queue_;
  Event ready_;
  std::list<StartedSend> messages_;  // entries are used again
};

class NcclRanks final : public QueueRanks {
 public:
  NcclRanks(Communicator& comm, const RankLinks& links, Device& device)
      : QueueRanks(links.parallel, device),
        comm_(comm),
        stream_(static_cast<cudaStream_t>(queue().stream)),
        world_(whole_world(comm)),
        channel_messages_(links.channel_messages),
        communicators_(comm, links) {
    connect(links.channels, device);
  }

  void check() override { communicators_.check(); }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    communicators_.submit(world_, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      for (const Send& send : sends) {
        if (is_failure(result)) break;
        result = ncclSend(send.data, send.bytes, ncclUint8, send.peer, comm, stream_);
      }
      for (const Receive& receive : receives) {
        if (is_failure(result)) break;
        result = ncclRecv(receive.data, receive.bytes, ncclUint8, receive.peer, comm, stream_);
      }
      return result;
    });
    for (const Send& send : sends) count_sent(send.bytes);
  }

  void start_send(const Send& send, MessageTag tag) override {
    OutChannel& channel = channel_of(tag);
    channel.wait_for(queue());
    submit_send(channel, send.data, send.bytes);
    StartedSend& message = channel.message(-1);
    message.tag = tag;
    message.bytes = send.bytes;
    message.sent.record(channel.queue());
  }

  void finish_send(int /*peer*/, MessageTag tag) override {
    StartedSend& message = channel_of(tag).message(tag);
    message.sent.wait_on(queue());
    count_sent(message.bytes);
    message.tag = -1;
  }

  void receive(const Receive& receive, MessageTag tag) override {
    submit_receive(tag / channel_messages_, receive.data, receive.bytes);
  }

  void abandon(const std::string& reason) noexcept override { comm_.abandon(reason); }
  bool cancel() noexcept override {
    communicators_.cancel();
    return true;
  }

  void all_gather(const Group& group, std::span<const std::byte> shard, std::byte* out) override {
    if (group.size() == 1) {
      if (shard.data() != out) {
        copy_bytes(queue(), shard.data(), static_cast<int64_t>(shard.size()), out);
      }
      return;
    }
    communicators_.submit(group, [&](ncclComm_t comm) {
      return ncclAllGather(shard.data(), out, shard.size(), ncclUint8, comm, stream_);
    });
    count_sent((group.size() - 1) * static_cast<int64_t>(shard.size()));
  }

  void reduce_scatter(const Group& group, DType type, const std::byte* parts, int64_t count,
                      std::byte* sum, std::span<std::byte> /*workspace*/) override {
    const int64_t share = count / group.size();
    if (group.size() == 1) {
      if (parts != sum) copy_bytes(queue(), parts, count * size_of(type), sum);
      return;
    }
    communicators_.submit(group, [&](ncclComm_t comm) {
      return ncclReduceScatter(parts, sum, share,
                               type == DType::float32 ? ncclFloat32 : ncclBfloat16, ncclSum, comm,
                               stream_);
    });
    count_sent((group.size() - 1) * share * size_of(type));
  }

  void all_reduce(const Group& group, float* data, int64_t count,
                  std::span<std::byte> /*workspace*/) override {
    add_up(group, data, count, ncclFloat32);
    const int64_t own = share_of(count, group.index, group.size()).count();
    count_sent(4 * (count - own + (group.size() - 1) * own));
  }

  void all_reduce(const Group& group, double* data, int64_t count) override {
    add_up(group, data, count, ncclFloat64);
    count_sent(8 * count * (group.size() - 1));
  }

 private:
  // Sends a byte by every channel, all ranks in one order. NCCL connects two ranks when both have
  // submitted their part of a first message; later a sender must not wait for the receiver's.
  void connect(const std::vector<MessageChannel>& channels, Device& device) {
    if (channels.empty()) return;
    bytes_ = device.allocate(Tier::device, std::ssize(channels));
    std::byte* byte = bytes_->data();
    for (const MessageChannel& channel : channels) {
      if (channel.sender == comm_.rank()) {
        submit_send(out_.emplace_back(channel.number), byte++, 1);
      } else {
        submit_receive(channel.number, byte++, 1);
      }
    }
  }

  OutChannel& channel_of(MessageTag tag) {
    const int64_t number = tag / channel_messages_;
    const auto found = std::find_if(
        out_.begin(), out_.end(), [&](const OutChannel& each) { return each.number() == number; });
    if (found == out_.end()) throw failed("NCCL: rank {} sends no message {}", comm_.rank(), tag);
    return *found;
  }

  void submit_send(OutChannel& channel, const std::byte* data, int64_t bytes) {
    communicators_.submit(channel.number(), [&](ncclComm_t comm) {
      return ncclSend(data, bytes, ncclUint8, NcclCommunicators::kReceiver, comm, channel.stream());
    });
  }
  void submit_receive(int64_t channel, std::byte* data, int64_t bytes) {
    communicators_.submit(channel, [&](ncclComm_t comm) {
      return ncclRecv(data, bytes, ncclUint8, NcclCommunicators::kSender, comm, stream_);
    });
  }

  void add_up(const Group& group, void* data, int64_t count, ncclDataType_t type) {
    if (group.size() == 1) return;
    communicators_.submit(group, [&](ncclComm_t comm) {
      return ncclAllReduce(data, data, count, type, ncclSum, comm, stream_);
    });
  }

  Communicator& comm_;
  cudaStream_t stream_;
  Group world_;
  int64_t channel_messages_;
  std::list<OutChannel> out_;
  std::unique_ptr<Arena> bytes_;     // of connect()
  NcclCommunicators communicators_;  // ends work on the queues before they end
};

}  // namespace

std::unique_ptr<DeviceRanks> make_nccl_ranks(Communicator& comm, const RankLinks& links,
                                             Device& device) {
  check_channel_order(comm, links.channels);
  return std::make_unique<NcclRanks>(comm, links, device);
}

}  // namespace longspan::cuda
