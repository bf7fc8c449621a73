#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/comm/mpi_detail.h"

namespace longspan::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kBeatPeriod = std::chrono::seconds(1);
constexpr auto kLookPeriod = milliseconds(20);  // the longest delay of another rank's notice
constexpr auto kTellLimit = std::chrono::seconds(1);
constexpr int kBeatTag = 1, kNoticeTag = 2;
constexpr int kNoticeBytes = 1000;
constexpr char kBeat = 0, kGoodbye = 1;

}  // namespace

Liveness::Liveness(MPI_Comm comm, const MpiOptions& options, std::vector<std::string> hosts)
    : comm_(comm), options_(options), hosts_(std::move(hosts)) {
  check(MPI_Comm_rank(comm_, &rank_), "rank");
  check(MPI_Comm_size(comm_, &size_), "size");
  if (size_ == 1) return;
  // Send here, not on the thread: no rank may leave its constructor without being watched.
  send_beat(kBeat);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception& error) {
    throw failed("could not start the thread that watches the other ranks: {}", error.what());
  }
}

Liveness::~Liveness() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Liveness::close() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Liveness::throw_if_lost() const {
  if (!lost()) return;
  const std::lock_guard lock(mutex_);
  throw failed("{}", reason_);
}

void Liveness::lose(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!lost()) reason_ = reason;
  lost_.store(true, std::memory_order_release);
}

void Liveness::tell(const std::vector<int>& ranks, const std::string& reason) noexcept {
  // A rank that cannot be told learns it from the heartbeats, so errors are ignored here.
  try {
    const std::lock_guard lock(mutex_);
    Notice& notice = notices_.emplace_back();
    notice.text = reason.substr(0, kNoticeBytes);
    for (const int rank : ranks) {
      if (rank == rank_) continue;
      MPI_Request& request = notice.requests.emplace_back(MPI_REQUEST_NULL);
      check(MPI_Isend(notice.text.data(), static_cast<int>(notice.text.size()), MPI_CHAR, rank,
                      kNoticeTag, comm_, &request),
            "tell");
    }
    Pause pause;
    const Clock::time_point limit = Clock::now() + kTellLimit;
    for (int sent = 0; sent == 0 && Clock::now() < limit; pause.wait()) {
      check(MPI_Testall(static_cast<int>(notice.requests.size()), notice.requests.data(), &sent,
                        MPI_STATUSES_IGNORE),
            "tell");
    }
  } catch (const std::exception&) {
    return;
  }
}

void Liveness::tell_all(const std::string& reason) noexcept {
  try {
    std::vector<int> ranks(size_);
    std::iota(ranks.begin(), ranks.end(), 0);
    tell(ranks, reason);
  } catch (const std::exception&) {
    return;
  }
}

void Liveness::report(const std::string& message) {
  // The callback comes first: it may end the process with its own message.
  if (options_.on_lost) options_.on_lost(message);
  lose(message);
  tell_all(message);
}

void Liveness::send_beat(char kind) {
  beat_out_ = kind;
  check(MPI_Isend(&beat_out_, 1, MPI_CHAR, (rank_ + 1) % size_, kBeatTag, comm_, &sending_),
        "beat");
}

void Liveness::run() {
  try {
    watch();
  } catch (const std::exception& error) {
    report(fmt::format("rank {} can watch the others no longer: {}", rank_, error.what()));
  }
}

void Liveness::watch() {
  const int previous = (rank_ + size_ - 1) % size_;
  const auto test = [](MPI_Request& request, MPI_Status* status) {
    int done = 0;
    check(MPI_Test(&request, &done, status), "watch");
    return done != 0;
  };
  MPI_Request beat = MPI_REQUEST_NULL, notice = MPI_REQUEST_NULL;
  notice_in_.resize(kNoticeBytes);
  const auto await_beat = [&] {
    check(MPI_Irecv(&beat_in_, 1, MPI_CHAR, previous, kBeatTag, comm_, &beat), "watch");
  };
  const auto await_notice = [&] {
    check(MPI_Irecv(notice_in_.data(), kNoticeBytes, MPI_CHAR, MPI_ANY_SOURCE, kNoticeTag, comm_,
                    &notice),
          "watch");
  };
  await_beat();
  await_notice();

  bool heard = false, watching = true, said_goodbye = false, heard_goodbye = false;
  Clock::duration silence{0};
  Clock::time_point looked = Clock::now(), beaten = looked;
  while (true) {
    const Clock::time_point now = Clock::now();
    // While this process was stopped or the machine slept, no heartbeats were due.
    silence += std::min<Clock::duration>(now - looked, kBeatPeriod);
    looked = now;

    std::unique_lock lock(mutex_);
    const bool closing = closing_, stopping = stopping_;
    lock.unlock();
    if (stopping || (closing && lost())) break;

    // At most one heartbeat in flight: they would pile up at a rank that receives none.
    if (test(sending_, MPI_STATUS_IGNORE)) {
      if (closing && said_goodbye && heard_goodbye) break;
      const bool goodbye = closing && !said_goodbye;
      if (goodbye || (!said_goodbye && now - beaten >= kBeatPeriod)) {
        send_beat(goodbye ? kGoodbye : kBeat);
        said_goodbye = goodbye;
        beaten = now;
      }
    }
    while (!heard_goodbye && test(beat, MPI_STATUS_IGNORE)) {
      heard = true;
      silence = Clock::duration::zero();
      heard_goodbye = beat_in_ == kGoodbye;
      if (!heard_goodbye) await_beat();
    }
    if (watching && heard && !heard_goodbye &&
        std::chrono::duration<double>(silence).count() >= options_.silence_seconds) {
      watching = false;  // report only once
      report(fmt::format("rank {} (host {}) gives no sign of life for {:g} s", previous,
                         hosts_[previous], options_.silence_seconds));
    }
    MPI_Status status;
    if (test(notice, &status)) {
      int bytes = 0;
      check(MPI_Get_count(&status, MPI_CHAR, &bytes), "watch");
      lose(notice_in_.substr(0, bytes));
      await_notice();
    }

    lock.lock();
    const bool waiting_to_end = closing_;
    wake_.wait_for(lock, waiting_to_end ? milliseconds(1) : kLookPeriod,
                   [&] { return stopping_ || (closing_ && !waiting_to_end); });
  }

  // MPI must not be finalised while receives are open.
  for (MPI_Request* request : {&beat, &notice}) {
    if (*request == MPI_REQUEST_NULL) continue;
    check(MPI_Cancel(request), "watch");
    check(MPI_Wait(request, MPI_STATUS_IGNORE), "watch");
  }
}

}  // namespace longspan::mpi
