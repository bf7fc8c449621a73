// Ranks that are threads sharing a GPU: the receiver copies straight from the sender's memory.
//
// An exchange has two meetings of the threads, by messages of the communicator. In the first, every
// rank announces its data and an event on its queue; the receivers' queues wait for these events
// and copy. In the second, every rank has submitted its copies, and after them an event for each
// rank it copied from, whose queue waits for it; the sent data may then be overwritten. So threads
// wait only until others have submitted, and queues wait for queues.
#include <algorithm>
#include <atomic>
#include <cassert>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/cuda/event.h"
#include "engine/cuda/kernels/exchange.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/queue_ranks.h"

namespace longspan::cuda {
namespace {

// A message to another stage, from its start to its end. The receiver's queue waits for `ready` and
// copies; `copied` is recorded when `submitted` is set, unless the receiver failed.
struct TaggedSend {
  TaggedSend* self = this;  // what the receiver is told
  int peer = -1;            // -1: not in use
  MessageTag tag = 0;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  Event ready, copied;
  std::atomic<bool> submitted{false};
};

// State of a rank that is visible to the others. An event may be recorded again only after each
// waiting rank has submitted its wait: `ready` is waited for between the two meetings, `taken[r]`
// before rank r enters the first meeting of its next exchange with this rank.
struct Events {
  explicit Events(int ranks) : taken(ranks) {}
  Event ready;                  // the data of this rank is ready to be copied
  std::vector<Event> taken;     // the data from each other rank is copied
  std::list<TaggedSend> sends;  // entries are used again
};

// The most doubles that are summed at once.
constexpr int64_t kSums = 256;

class LocalRanks final : public QueueRanks {
 public:
  LocalRanks(Communicator& comm, const RankLinks& links, Device& device)
      : QueueRanks(links.parallel, device),
        comm_(comm),
        own_(std::make_shared<Events>(comm.size())),
        sums_(device.allocate(Tier::device, comm.size() * kSums * sizeof(double))) {
    // Shared, as a failing rank may leave while others still use its events.
    const std::shared_ptr<Events>* own = &own_;
    std::vector<const std::shared_ptr<Events>*> all(comm.size());
    const Group world = whole_world(comm_);
    longspan::all_gather(comm_, world, std::as_bytes(std::span(&own, 1)),
                         reinterpret_cast<std::byte*>(all.data()));
    for (const std::shared_ptr<Events>* events : all) events_.push_back(*events);
    barrier(comm_, world);
  }

  void check() override { comm_.throw_if_lost(); }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    trade(sends, receives, [&](const std::vector<const std::byte*>& from) {
      for (size_t i = 0; i < receives.size(); ++i) {
        copy_bytes(queue(), from[i], receives[i].bytes, receives[i].data);
      }
    });
  }

  void start_send(const Send& send, MessageTag tag) override {
    TaggedSend& message = sent(-1, 0);
    message.peer = send.peer;
    message.tag = tag;
    message.data = send.data;
    message.bytes = send.bytes;
    message.submitted = false;
    message.ready.record(queue());
    comm_.start_send({send.peer, bytes_at(&message.self), sizeof(TaggedSend*)}, tag);
  }

  void finish_send(int peer, MessageTag tag) override {
    TaggedSend& message = sent(peer, tag);
    comm_.finish_send(peer, tag);
    message.submitted.wait(false);
    message.copied.wait_on(queue());
    count_sent(message.bytes);
    message.peer = -1;
  }

  void receive(const Receive& receive, MessageTag tag) override {
    TaggedSend* message = nullptr;
    comm_.receive({receive.peer, bytes_at(&message), sizeof(TaggedSend*)}, tag);
    const auto submitted = [&] {
      message->submitted = true;
      message->submitted.notify_all();
    };
    try {
      if (message->bytes != receive.bytes) {
        throw failed("{}",
                     describe_mismatch(receive.peer, message->bytes, comm_.rank(), receive.bytes));
      }
      message->ready.wait_on(queue());
      copy_bytes(queue(), message->data, receive.bytes, receive.data);
      message->copied.record(queue());
    } catch (...) {
      submitted();
      throw;
    }
    submitted();
  }

  void abandon(const std::string& reason) noexcept override { comm_.abandon(reason); }
  bool cancel() noexcept override { return comm_.cancel_sends(); }

  void all_gather(const Group& group, std::span<const std::byte> shard, std::byte* out) override {
    const auto bytes = static_cast<int64_t>(shard.size());
    std::byte* own = out + group.index * bytes;
    if (own != shard.data()) copy_bytes(queue(), shard.data(), bytes, own);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for_peers(group, [&](int peer) {
      sends.push_back({group.ranks[peer], shard.data(), bytes});
      receives.push_back({group.ranks[peer], out + peer * bytes, bytes});
    });
    exchange(sends, receives);
  }

  void reduce_scatter(const Group& group, DType type, const std::byte* parts, int64_t count,
                      std::byte* sum, std::span<std::byte> /*workspace*/) override {
    const int n = group.size();
    if (count % n != 0) {
      throw bad_input("reduce_scatter: {} elements do not divide by {} members", count, n);
    }
    const auto shares = [&](int member) {
      return Share{count / n * member, count / n * (member + 1)};
    };
    if (type == DType::float32) {
      sum_shares(group, reinterpret_cast<const float*>(parts), shares,
                 reinterpret_cast<float*>(sum));
    } else {
      sum_shares(group, reinterpret_cast<const bfloat16*>(parts), shares,
                 reinterpret_cast<bfloat16*>(sum));
    }
  }

  void all_reduce(const Group& group, float* data, int64_t count,
                  std::span<std::byte> /*workspace*/) override {
    const auto shares = [&](int member) { return share_of(count, member, group.size()); };
    const Share own = shares(group.index);
    sum_shares(group, data, shares, data + own.begin);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for_peers(group, [&](int peer) {
      const Share theirs = shares(peer);
      sends.push_back({group.ranks[peer], bytes_at(data + own.begin), own.count() * 4});
      receives.push_back({group.ranks[peer], bytes_at(data + theirs.begin), theirs.count() * 4});
    });
    exchange(sends, receives);
  }

  void all_reduce(const Group& group, double* data, int64_t count) override {
    double* all = reinterpret_cast<double*>(sums_->data());
    for (int64_t first = 0; first < count; first += kSums) {
      const std::span<double> some(data + first, std::min(kSums, count - first));
      all_gather(group, std::as_bytes(some), bytes_at(all));
      Parts<double> parts;
      for (; parts.count < group.size(); ++parts.count) {
        parts.at[parts.count] = all + parts.count * some.size();
      }
      sum_parts(queue(), parts, static_cast<int64_t>(some.size()), some.data());
    }
  }

 private:
  // The location of a message in the sender's memory.
  struct Offer {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
  };

  // The message in flight to this peer; with -1 one that is not in use.
  TaggedSend& sent(int peer, MessageTag tag) {
    for (TaggedSend& message : own_->sends) {
      if (message.peer == peer && (peer < 0 || message.tag == tag)) return message;
    }
    assert(peer < 0);
    return own_->sends.emplace_back();
  }

  template <class T>
  static std::byte* bytes_at(T* data) {
    return reinterpret_cast<std::byte*>(data);
  }

  template <class Body>
  static void for_peers(const Group& group, const Body& body) {
    for (int step = 1; step < group.size(); ++step) body((group.index + step) % group.size());
  }

  // sum = the sum over the ranks of this rank's share.
  template <class T, class Shares>
  void sum_shares(const Group& group, const T* data, const Shares& shares, T* sum) {
    const Share own = shares(group.index);
    const int64_t own_bytes = own.count() * static_cast<int64_t>(sizeof(T));
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::vector<int> peers;
    for_peers(group, [&](int peer) {
      const Share theirs = shares(peer);
      sends.push_back({group.ranks[peer], reinterpret_cast<const std::byte*>(data + theirs.begin),
                       theirs.count() * static_cast<int64_t>(sizeof(T))});
      receives.push_back({group.ranks[peer], nullptr, own_bytes});
      peers.push_back(peer);
    });
    trade(sends, receives, [&](const std::vector<const std::byte*>& from) {
      Parts<T> parts;
      parts.count = group.size();
      parts.at[group.index] = data + own.begin;
      for (size_t i = 0; i < from.size(); ++i) {
        parts.at[peers[i]] = reinterpret_cast<const T*>(from[i]);
      }
      sum_parts(queue(), parts, own.count(), sum);
    });
  }

  // Runs an exchange. take(from) submits the work that reads message i at from[i], in its sender.
  template <class Take>
  void trade(std::span<const Send> sends, std::span<const Receive> receives, const Take& take) {
    own_->ready.record(queue());
    const std::vector<Offer> offers = first_meeting(sends, receives);
    const std::vector<int> sources = peers_of(receives);
    for (const int source : sources) events_[source]->ready.wait_on(queue());
    std::vector<const std::byte*> from;
    for (const Offer& offer : offers) from.push_back(offer.data);
    take(from);
    for (const int source : sources) own_->taken[source].record(queue());
    const std::vector<int> destinations = peers_of(sends);
    second_meeting(sources, destinations);
    for (const int peer : destinations) events_[peer]->taken[comm_.rank()].wait_on(queue());
    for (const Send& send : sends) count_sent(send.bytes);
  }

  std::vector<Offer> first_meeting(std::span<const Send> sends, std::span<const Receive> receives) {
    std::vector<Offer> own, theirs(receives.size());
    for (const Send& send : sends) own.push_back({send.data, send.bytes});
    std::vector<Send> out;
    std::vector<Receive> in;
    for (size_t i = 0; i < sends.size(); ++i) {
      out.push_back({sends[i].peer, bytes_at(&own[i]), sizeof(Offer)});
    }
    for (size_t i = 0; i < receives.size(); ++i) {
      in.push_back({receives[i].peer, bytes_at(&theirs[i]), sizeof(Offer)});
    }
    comm_.exchange(out, in);
    for (size_t i = 0; i < receives.size(); ++i) {
      if (theirs[i].bytes == receives[i].bytes) continue;
      throw failed("{}", describe_mismatch(receives[i].peer, theirs[i].bytes, comm_.rank(),
                                           receives[i].bytes));
    }
    return theirs;
  }

  void second_meeting(const std::vector<int>& sources, const std::vector<int>& destinations) {
    std::vector<Send> out;
    std::vector<Receive> in;
    for (const int peer : sources) out.push_back({peer, nullptr, 0});
    for (const int peer : destinations) in.push_back({peer, nullptr, 0});
    comm_.exchange(out, in);
  }

  // The peers, without duplicates.
  template <class Message>
  static std::vector<int> peers_of(std::span<const Message> messages) {
    std::vector<int> peers;
    for (const Message& message : messages) {
      if (std::find(peers.begin(), peers.end(), message.peer) == peers.end()) {
        peers.push_back(message.peer);
      }
    }
    return peers;
  }

  Communicator& comm_;
  std::shared_ptr<Events> own_;
  std::vector<std::shared_ptr<Events>> events_;  // per rank
  std::unique_ptr<Arena> sums_;
};

}  // namespace

std::unique_ptr<DeviceRanks> make_local_ranks(Communicator& comm, const RankLinks& links,
                                              Device& device) {
  if (comm.size() > kMostParts) {
    throw bad_input("cuda backend: {} ranks share one GPU, expected at most {}", comm.size(),
                    kMostParts);
  }
  return std::make_unique<LocalRanks>(comm, links, device);
}

}  // namespace longspan::cuda
