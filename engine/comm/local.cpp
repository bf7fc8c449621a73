#include "engine/comm/local.h"

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace longspan {
namespace {

// The unfinished sends of one exchange. On the sender's stack, guarded by the world's mutex.
struct Outbox {
  int waiting = 0;  // messages not yet taken by a receiver
  int copying = 0;  // messages being copied by a receiver, outside the mutex
  std::string error;
};

struct Message {
  const std::byte* data;
  int64_t bytes;
  Outbox* outbox;
  int source;
};

// A tagged message, from its start to its end.
struct TaggedSend {
  int source;
  MessageTag tag;
  const std::byte* data;
  int64_t bytes;
  enum { posted, copying, received } state = posted;
  std::string error;
};

// The state shared by the ranks. One mutex guards it; no data is copied while it is held.
struct World {
  explicit World(int n) : size(n), mailboxes(n * n), news(n), sends(n), sends_news(n) {}

  std::deque<Message>& mailbox(int source, int destination) {
    return mailboxes[source * size + destination];
  }

  int size;
  std::mutex mutex;
  std::vector<std::deque<Message>> mailboxes;  // per source and destination
  std::vector<std::condition_variable> news;   // per rank: something it may wait for has changed
  std::vector<std::list<TaggedSend>> sends;    // per destination
  std::vector<std::condition_variable> sends_news;  // per rank: one to or from it has changed
  std::optional<std::string> lost;                  // why no exchange can succeed any more
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(World& world, int rank) : Communicator(rank, world.size), world_(world) {}

  std::string_view name() const override { return "local"; }

  void abandon(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(world_.mutex);
      try {
        if (!world_.lost) world_.lost = fmt::format("rank {} failed: {}", rank(), reason);
      } catch (const std::exception&) {  // out of memory; the next line does not allocate
        world_.lost = "a rank failed";
      }
    }
    for (std::condition_variable& news : world_.news) news.notify_all();
    for (std::condition_variable& news : world_.sends_news) news.notify_all();
  }

  void throw_if_lost() const override {
    const std::lock_guard lock(world_.mutex);
    if (world_.lost) throw failed("{}", *world_.lost);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void move(std::span<const Send> sends, std::span<const Receive> receives) override {
    Lock lock(world_.mutex);
    if (broken_.empty() && world_.lost) broken_ = *world_.lost;
    if (!broken_.empty()) throw failed("{}", broken_);

    Outbox outbox;
    for (const Send& send : sends) {
      world_.mailbox(rank(), send.peer).push_back({send.data, send.bytes, &outbox, rank()});
      ++outbox.waiting;
      world_.news[send.peer].notify_one();
    }

    // Serve receives in the order in which messages arrive: two ranks may wait for each other
    // through a third.
    todo_.assign(receives.begin(), receives.end());
    while (true) {
      while (outbox.error.empty() && receive_one(lock, outbox)) {
      }
      if (outbox.error.empty() && world_.lost) outbox.error = *world_.lost;
      if (!outbox.error.empty()) break;
      if (todo_.empty() && outbox.waiting == 0 && outbox.copying == 0) return;
      world_.news[rank()].wait(lock);
    }

    // No rank may access this exchange's buffers once it has thrown.
    for (const Send& send : sends) {
      std::erase_if(world_.mailbox(rank(), send.peer),
                    [&](const Message& message) { return message.outbox == &outbox; });
    }
    world_.news[rank()].wait(lock, [&] { return outbox.copying == 0; });
    broken_ = outbox.error;
    throw failed("{}", broken_);
  }

  // Receives one available message; false if there is none for any receive. Writes a size mismatch
  // into both outboxes.
  bool receive_one(Lock& lock, Outbox& own) {
    const auto next = std::find_if(todo_.begin(), todo_.end(), [&](const Receive& receive) {
      return !world_.mailbox(receive.peer, rank()).empty();
    });
    if (next == todo_.end()) return false;
    const Receive receive = *next;
    std::deque<Message>& mailbox = world_.mailbox(receive.peer, rank());
    const Message message = mailbox.front();
    mailbox.pop_front();
    todo_.erase(next);
    Outbox& sender = *message.outbox;
    --sender.waiting;
    if (message.bytes != receive.bytes) {
      own.error = sender.error =
          describe_mismatch(message.source, message.bytes, rank(), receive.bytes);
    } else if (message.bytes > 0) {
      ++sender.copying;
      lock.unlock();
      std::memcpy(receive.data, message.data, message.bytes);
      lock.lock();
      --sender.copying;
    }
    // Still under the mutex: once it is free, the sender may return and the world be destroyed.
    world_.news[message.source].notify_one();
    return true;
  }

  // Tagged messages.

  std::list<TaggedSend>::iterator find(int source, int destination, MessageTag tag) {
    std::list<TaggedSend>& sends = world_.sends[destination];
    return std::find_if(sends.begin(), sends.end(), [&](const TaggedSend& send) {
      return send.source == source && send.tag == tag;
    });
  }

  void throw_lost(const Lock&) const {
    if (world_.lost) throw failed("{}", *world_.lost);
  }

  void do_start_send(const Send& send, MessageTag tag) override {
    const Lock lock(world_.mutex);
    throw_lost(lock);
    assert(find(rank(), send.peer, tag) == world_.sends[send.peer].end());
    world_.sends[send.peer].push_back({rank(), tag, send.data, send.bytes, TaggedSend::posted, {}});
    world_.sends_news[send.peer].notify_all();
  }

  int64_t do_finish_send(int peer, MessageTag tag) override {
    Lock lock(world_.mutex);
    const auto message = find(rank(), peer, tag);
    assert(message != world_.sends[peer].end());
    world_.sends_news[rank()].wait(lock, [&] {
      return message->state == TaggedSend::received ||
             (message->state == TaggedSend::posted && world_.lost);
    });
    const bool received = message->state == TaggedSend::received;
    const std::string error = message->error;
    const int64_t bytes = message->bytes;
    world_.sends[peer].erase(message);
    if (!error.empty()) throw failed("{}", error);
    if (!received) throw_lost(lock);
    return bytes;
  }

  void do_receive(const Receive& receive, MessageTag tag) override {
    Lock lock(world_.mutex);
    auto message = world_.sends[rank()].end();
    world_.sends_news[rank()].wait(lock, [&] {
      message = find(receive.peer, rank(), tag);
      const bool there = message != world_.sends[rank()].end();
      // One of the step before may not have been awaited yet.
      return (there && message->state == TaggedSend::posted) || world_.lost;
    });
    throw_lost(lock);
    // The sender neither ends nor forgets a message that is being copied.
    message->state = TaggedSend::copying;
    if (message->bytes != receive.bytes) {
      message->error = describe_mismatch(receive.peer, message->bytes, rank(), receive.bytes);
    } else if (message->bytes > 0) {
      lock.unlock();
      std::memcpy(receive.data, message->data, message->bytes);
      lock.lock();
    }
    message->state = TaggedSend::received;
    const std::string error = message->error;
    world_.sends_news[receive.peer].notify_all();
    if (!error.empty()) throw failed("{}", error);
  }

  bool do_cancel_sends() noexcept override {
    Lock lock(world_.mutex);
    for (std::list<TaggedSend>& sends : world_.sends) {
      for (auto message = sends.begin(); message != sends.end();) {
        if (message->source == rank()) {
          world_.sends_news[rank()].wait(lock,
                                         [&] { return message->state != TaggedSend::copying; });
          message = sends.erase(message);
        } else {
          ++message;
        }
      }
    }
    return true;
  }

  World& world_;
  std::vector<Receive> todo_;  // of the running exchange
  std::string broken_;         // what the last exchange threw
};

}  // namespace

struct LocalWorld::State {
  explicit State(int size) : world(size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<LocalCommunicator>(world, rank));
    }
  }
  World world;
  std::vector<std::unique_ptr<LocalCommunicator>> ranks;
};

LocalWorld::LocalWorld(int size) {
  if (size < 1) throw bad_input("local ranks: expected at least 1, got {}", size);
  state_ = std::make_unique<State>(size);
}

LocalWorld::~LocalWorld() = default;

Communicator& LocalWorld::rank(int rank) {
  assert(0 <= rank && rank < static_cast<int>(state_->ranks.size()));
  return *state_->ranks[rank];
}

namespace {

// The first exception of a run that is not a consequence of another's: a rank may tell the others
// of its failure before it ends.
class FirstError {
 public:
  /// `lost`: it only says that another rank has failed.
  void keep(int rank, bool lost, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ && (lost || !lost_)) return;
    rank_ = rank;
    lost_ = lost;
    error_ = std::move(error);
  }

  void rethrow(int size) const {
    if (!error_) return;
    if (size == 1) std::rethrow_exception(error_);
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("rank {}: {}", rank_, error.what()));
    } catch (const std::exception& error) {
      throw failed("rank {}: {}", rank_, error.what());
    }
  }

 private:
  std::mutex mutex_;
  int rank_ = 0;
  bool lost_ = false;
  std::exception_ptr error_;
};

// Whether an error of this rank is what it was told of another.
bool is_lost(const Communicator& comm, const std::string& reason) {
  try {
    comm.throw_if_lost();
    return false;
  } catch (const Error& lost) {
    return reason.find(lost.what()) != std::string::npos &&
           !std::string_view(lost.what()).starts_with(fmt::format("rank {} ", comm.rank()));
  }
}

}  // namespace

void run_local_ranks(int size, const std::function<void(Communicator&)>& body) {
  LocalWorld world(size);
  FirstError first;
  const auto run = [&](int rank) {
    Communicator& comm = world.rank(rank);
    std::string reason = "unknown exception";
    try {
      body(comm);
      return;
    } catch (const std::exception& error) {
      reason = error.what();
      first.keep(rank, is_lost(comm, reason), std::current_exception());
    } catch (...) {
      first.keep(rank, false, std::current_exception());
    }
    comm.abandon(reason);
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 1; rank < size; ++rank) threads.emplace_back(run, rank);
    } catch (const std::system_error& error) {
      const std::string reason =
          fmt::format("could not start {} threads ({}); try fewer ranks", size - 1, error.what());
      first.keep(static_cast<int>(threads.size()) + 1, false,
                 std::make_exception_ptr(failed("{}", reason)));
      world.rank(static_cast<int>(threads.size()) + 1).abandon(reason);
    }
    if (static_cast<int>(threads.size()) == size - 1) run(0);
  }
  first.rethrow(size);
}

}  // namespace longspan
