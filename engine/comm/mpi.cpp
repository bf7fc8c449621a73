#include "engine/comm/mpi.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <list>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "engine/comm/mpi_detail.h"

namespace longspan {
namespace mpi {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw failed("MPI: {}: {}", what, text.data());
}

void Pause::wait() {
  using std::chrono::microseconds;
  constexpr microseconds kYielding(200), kShortest(20), kLongest(5000);
  constexpr int64_t kShare = 64;
  const auto waited =
      std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - begin_);
  if (waited < kYielding) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::clamp(waited / kShare, kShortest, kLongest));
  }
}

namespace {

// The tags of a message: of its size, and of its payload.
struct Tags {
  int size = 0, payload = 1;
};
Tags tags_of(MessageTag tag) { return {2 * tag, 2 * tag + 1}; }

// MPI counts in int, and it moves data only while it is polled. Segments keep the polls frequent: a
// completed one shows that the next is in progress. Both ends of a message compute the same size.
int64_t segment_bytes(int64_t message_bytes) {
  constexpr int64_t kSmallest = int64_t{1} << 18, kLargest = int64_t{1} << 30, kSegments = 256;
  return std::clamp(ceil_div(message_bytes, kSegments), kSmallest, kLargest);
}

// The communicators of exchanges and of tagged messages, which other threads send.
struct Comms {
  MPI_Comm exchanges = MPI_COMM_NULL, tagged = MPI_COMM_NULL;
};

// A message is its size (8 bytes), followed by its payload in segments. Payloads are posted without
// waiting for the sizes, but the exchange fails if the sizes differ.

// Posts a message's parts; `size` and the data must stay until the requests are done.
void send_parts(MPI_Comm comm, const Send& send, Tags tags, const int64_t& size,
                std::vector<MPI_Request>& requests) {
  const auto post = [&](const std::byte* data, int64_t bytes, int tag) {
    requests.push_back(MPI_REQUEST_NULL);
    check(
        MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, send.peer, tag, comm, &requests.back()),
        "send");
  };
  post(reinterpret_cast<const std::byte*>(&size), sizeof(int64_t), tags.size);
  const int64_t segment = segment_bytes(send.bytes);
  for (int64_t at = 0; at < send.bytes; at += segment) {
    post(send.data + at, std::min(segment, send.bytes - at), tags.payload);
  }
}

// Likewise for a message that is expected; its size arrives in `size` by its own request.
void receive_parts(MPI_Comm comm, const Receive& receive, Tags tags, int64_t& size,
                   MPI_Request& size_request, std::vector<MPI_Request>& requests) {
  check(MPI_Irecv(&size, sizeof(int64_t), MPI_BYTE, receive.peer, tags.size, comm, &size_request),
        "receive");
  const int64_t segment = segment_bytes(receive.bytes);
  for (int64_t at = 0; at < receive.bytes; at += segment) {
    requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(receive.data + at, static_cast<int>(std::min(segment, receive.bytes - at)),
                    MPI_BYTE, receive.peer, tags.payload, comm, &requests.back()),
          "receive");
  }
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const Comms& comms, int rank, int size, Liveness& liveness)
      : Communicator(rank, size), comms_(comms), liveness_(liveness) {}

  std::string_view name() const override { return "mpi"; }

  void abandon(const std::string& reason) noexcept override {
    try {
      const std::string text = fmt::format("rank {} failed: {}", rank(), reason);
      liveness_.lose(text);
      liveness_.tell_all(text);
    } catch (const std::exception&) {
      liveness_.tell_all("a rank failed");
    }
  }

  void throw_if_lost() const override { liveness_.throw_if_lost(); }

 private:
  void move(std::span<const Send> sends, std::span<const Receive> receives) override {
    liveness_.throw_if_lost();
    try {
      post(sends, receives);
      Pause pause;
      size_t sizes_missing = receives.size();
      while (true) {
        const size_t sizes_left = check_sizes(receives);
        int done = 0;
        const int code = MPI_Testsome(static_cast<int>(payloads_.size()), payloads_.data(), &done,
                                      done_.data(), MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) check_sizes(receives);  // clearer if a message is too long
        check(code, "exchange");
        if (sizes_left == 0 && done == MPI_UNDEFINED) return;
        if (done > 0 || sizes_left < sizes_missing) pause = Pause();  // a peer is active
        sizes_missing = sizes_left;
        liveness_.throw_if_lost();
        pause.wait();
      }
    } catch (const std::exception& error) {
      // Cancel the receives that MPI has not started to fill. It may still use the others and the
      // vectors below, so those stay: the communicator is never used again.
      for (size_t i = 0; i < receive_requests_; ++i) cancel(payloads_[i]);
      for (MPI_Request& request : sizes_in_) cancel(request);
      liveness_.lose(error.what());
      throw;
    }
  }

  void post(std::span<const Send> sends, std::span<const Receive> receives) {
    payloads_.clear();
    receive_requests_ = 0;
    sizes_in_.assign(receives.size(), MPI_REQUEST_NULL);
    announced_.assign(receives.size(), kUnknown);
    sent_sizes_.resize(sends.size());
    for (size_t i = 0; i < receives.size(); ++i) {
      receive_parts(comms_.exchanges, receives[i], {}, announced_[i], sizes_in_[i], payloads_);
      receive_requests_ = payloads_.size();
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      sent_sizes_[i] = sends[i].bytes;
      send_parts(comms_.exchanges, sends[i], {}, sent_sizes_[i], payloads_);
    }
    done_.resize(payloads_.size());
  }

  // Returns how many sizes have not arrived. Throws on a wrong one, after telling the sender.
  size_t check_sizes(std::span<const Receive> receives) {
    size_t left = 0;
    for (size_t i = 0; i < receives.size(); ++i) {
      if (announced_[i] == kChecked) continue;
      int done = 0;
      check(MPI_Test(&sizes_in_[i], &done, MPI_STATUS_IGNORE), "exchange");
      if (done == 0) {
        ++left;
        continue;
      }
      if (announced_[i] != receives[i].bytes) {
        const std::string text =
            describe_mismatch(receives[i].peer, announced_[i], rank(), receives[i].bytes);
        liveness_.tell({receives[i].peer}, text);
        throw failed("{}", text);
      }
      announced_[i] = kChecked;
    }
    return left;
  }

  static void cancel(MPI_Request& request) {
    if (request == MPI_REQUEST_NULL) return;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }

  static constexpr int64_t kUnknown = -1, kChecked = -2;

  // Tagged messages. Few are in flight, so each has its own requests.

  struct Posted {
    int peer;
    MessageTag tag;
    int64_t bytes;
    std::vector<MPI_Request> requests;
  };

  void do_start_send(const Send& send, MessageTag tag) override {
    liveness_.throw_if_lost();
    Posted& posted = posted_.emplace_back(Posted{send.peer, tag, send.bytes, {}});
    send_parts(comms_.tagged, send, tags_of(tag), posted.bytes, posted.requests);
  }

  int64_t do_finish_send(int peer, MessageTag tag) override {
    const auto posted = std::find_if(posted_.begin(), posted_.end(), [&](const Posted& other) {
      return other.peer == peer && other.tag == tag;
    });
    assert(posted != posted_.end());
    wait_for(posted->requests);
    const int64_t bytes = posted->bytes;
    posted_.erase(posted);
    return bytes;
  }

  void do_receive(const Receive& receive, MessageTag tag) override {
    liveness_.throw_if_lost();
    int64_t size = kUnknown;
    std::vector<MPI_Request> size_request(1, MPI_REQUEST_NULL), payloads;
    try {
      receive_parts(comms_.tagged, receive, tags_of(tag), size, size_request[0], payloads);
      wait_for(size_request);
      if (size != receive.bytes) {
        const std::string text = describe_mismatch(receive.peer, size, rank(), receive.bytes);
        liveness_.tell({receive.peer}, text);
        throw failed("{}", text);
      }
      wait_for(payloads);
    } catch (const std::exception& error) {
      cancel(size_request[0]);
      for (MPI_Request& request : payloads) cancel(request);
      liveness_.lose(error.what());
      throw;
    }
  }

  // MPI moves messages whenever any thread is in it, those too that it was asked to cancel.
  bool do_cancel_sends() noexcept override {
    for (Posted& posted : posted_) {
      for (MPI_Request& request : posted.requests) cancel(request);
    }
    // MPI may still read the sizes, so they stay.
    retracted_.splice(retracted_.end(), posted_);
    return false;
  }

  void wait_for(std::vector<MPI_Request>& requests) {
    Pause pause;
    while (true) {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                        MPI_STATUSES_IGNORE),
            "message");
      if (done != 0) return;
      liveness_.throw_if_lost();
      pause.wait();
    }
  }

  Comms comms_;
  Liveness& liveness_;
  std::list<Posted> posted_, retracted_;
  // Requests of the current exchange. Members, to reuse their memory.
  std::vector<MPI_Request> payloads_;  // receives, then sends with their sizes
  size_t receive_requests_ = 0;
  std::vector<int> done_;  // indices of payloads_
  std::vector<MPI_Request> sizes_in_;
  std::vector<int64_t> announced_;  // the received sizes
  std::vector<int64_t> sent_sizes_;
};

}  // namespace
}  // namespace mpi

struct MpiWorld::State {
  int exceptions = std::uncaught_exceptions();  // in flight when the world began
  mpi::Comms comms;                             // for messages between ranks
  MPI_Comm control = MPI_COMM_NULL;             // for heartbeats and notices
  int local_rank = 0;
  int local_size = 1;
  std::unique_ptr<mpi::Liveness> liveness;
  std::unique_ptr<mpi::MpiCommunicator> communicator;
};

MpiWorld::MpiWorld(const MpiOptions& options) : state_(std::make_unique<State>()) {
  using mpi::check;
  if (!(options.silence_seconds >= 2)) {
    throw bad_input("MPI: ranks may be silent for {} s, expected at least 2",
                    options.silence_seconds);
  }
  int in_use = 0;
  MPI_Initialized(&in_use);
  if (in_use != 0) throw failed("MPI: begun already in this process; it can begin only once");
  int level = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "begin");
  if (level < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw failed("MPI: this library has no MPI_THREAD_MULTIPLE; use one built with it");
  }
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "begin");
  State& s = *state_;
  int rank = 0, size = 1;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &s.comms.exchanges), "begin");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &s.comms.tagged), "begin");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &s.control), "begin");
  check(MPI_Comm_rank(s.control, &rank), "begin");
  check(MPI_Comm_size(s.control, &size), "begin");

  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(s.control, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "begin");
  check(MPI_Comm_rank(node, &s.local_rank), "begin");
  check(MPI_Comm_size(node, &s.local_size), "begin");
  check(MPI_Comm_free(&node), "begin");

  constexpr int kName = MPI_MAX_PROCESSOR_NAME;
  std::array<char, kName> own{};
  int length = 0;
  check(MPI_Get_processor_name(own.data(), &length), "begin");
  std::vector<char> names(static_cast<size_t>(size) * kName);
  check(MPI_Allgather(own.data(), kName, MPI_CHAR, names.data(), kName, MPI_CHAR, s.control),
        "begin");
  std::vector<std::string> hosts;
  for (int i = 0; i < size; ++i) {
    const char* name = names.data() + static_cast<size_t>(i) * kName;
    hosts.emplace_back(name, std::find(name, name + kName, '\0'));
  }
  s.liveness = std::make_unique<mpi::Liveness>(s.control, options, std::move(hosts));
  s.communicator = std::make_unique<mpi::MpiCommunicator>(s.comms, rank, size, *s.liveness);
}

MpiWorld::~MpiWorld() {
  State& s = *state_;
  if (std::uncaught_exceptions() > s.exceptions && !s.liveness->lost()) {
    s.communicator->abandon("an exception ended it");
  }
  // All ranks must be here before the first stops its heartbeats. Lost ranks are still detected.
  MPI_Request all_here = MPI_REQUEST_NULL;
  if (!s.liveness->lost() && MPI_Ibarrier(s.control, &all_here) == MPI_SUCCESS) {
    mpi::Pause pause;
    int done = 0;
    while (done == 0 && !s.liveness->lost()) {
      if (MPI_Test(&all_here, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
      if (done == 0) pause.wait();
    }
    if (done != 0) s.liveness->close();
    if (done != 0 && !s.liveness->lost()) {
      MPI_Comm_free(&s.comms.exchanges);
      MPI_Comm_free(&s.comms.tagged);
      MPI_Comm_free(&s.control);
      MPI_Finalize();
    }
  }
}

Communicator& MpiWorld::communicator() { return *state_->communicator; }
int MpiWorld::local_rank() const { return state_->local_rank; }
int MpiWorld::local_size() const { return state_->local_size; }

void abort_mpi(int status) {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  if (begun != 0 && ended == 0) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

}  // namespace longspan
