#include "cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <span>
#include <thread>

#include "base/error.h"
#include "cli/documents.h"
#include "engine/comm/collectives.h"
#include "engine/comm/local.h"
#include "engine/comm/mpi.h"
#include "engine/comm/self.h"

namespace longspan::cli {
namespace {

// What all ranks throw together: none of them has lost another.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// How a rank's part went; travels as it is.
struct Verdict {
  int status = 0;  // 0: well
  std::array<char, 1000> message{};
};

Verdict verdict_of(int status, std::string_view message) {
  Verdict verdict{status, {}};
  std::copy_n(message.begin(), std::min(message.size(), verdict.message.size() - 1),
              verdict.message.begin());
  return verdict;
}

// The status and text of what is being thrown.
Verdict current_verdict() {
  try {
    throw;
  } catch (const Error& e) {
    return verdict_of(e.exit_status(), e.what());
  } catch (const std::bad_alloc&) {
    return verdict_of(static_cast<int>(ErrorKind::failed), "out of memory");
  } catch (const std::exception& e) {
    return verdict_of(static_cast<int>(ErrorKind::failed), e.what());
  }
}

// This rank cannot go on, and the others do not know: says it, and ends the job.
[[noreturn]] void end_job(Communicator& comm, const Verdict& verdict) {
  const std::string message = verdict.message.data();
  comm.abandon(message);
  // A text about another rank: that one knows better what happened, and should be the one to speak.
  constexpr std::chrono::seconds kDeference{2};
  const bool of_another = message.starts_with("rank ");
  if (of_another) std::this_thread::sleep_for(kDeference);
  const std::string who = of_another ? "" : fmt::format("rank {}: ", comm.rank());
  fmt::print(stderr, "longspan: {}{}\n", who, message);
  std::fflush(nullptr);
  abort_mpi(verdict.status);
}

int on_processes(bool json, const std::function<void(const RankPlace&)>& body) {
  MpiOptions options;
  options.on_lost = [](const std::string& message) {
    fmt::print(stderr, "longspan: {}\n", message);
    std::fflush(nullptr);
    abort_mpi(static_cast<int>(ErrorKind::failed));
  };
  MpiWorld world(options);
  Communicator& comm = world.communicator();
  try {
    body({comm, world.local_size()});
  } catch (const AgreedError& e) {
    // Not thrown on: unwinding a world means that it is lost. And said before the world ends: the
    // launcher kills what is left once a rank has ended with this status.
    return comm.rank() == 0 ? report_error(e.what(), e.exit_status(), json) : e.exit_status();
  } catch (...) {
    if (comm.size() == 1) throw;
    end_job(comm, current_verdict());
  }
  return 0;
}

int on_threads(int size, const std::function<void(const RankPlace&)>& body) {
  std::optional<AgreedError> agreed;
  run_local_ranks(size, [&](Communicator& comm) {
    try {
      body({comm, size});
    } catch (const AgreedError& e) {
      if (comm.rank() == 0) agreed = e;
    }
  });
  if (agreed) throw Error(*agreed);
  return 0;
}

}  // namespace

int on_ranks(int64_t local_ranks, bool json, const std::function<void(const RankPlace&)>& body) {
  if (local_ranks > 0) return on_threads(static_cast<int>(local_ranks), body);
  if (launched_by_mpi()) return on_processes(json, body);
  SelfCommunicator alone;
  body({alone, 1});
  return 0;
}

void agree(Communicator& comm, const std::function<void()>& part) {
  Verdict own;
  try {
    part();
  } catch (...) {
    if (comm.size() == 1) throw;
    own = current_verdict();
  }
  std::vector<Verdict> all(comm.size());
  all_gather(comm, whole_world(comm), std::as_bytes(std::span(&own, 1)),
             reinterpret_cast<std::byte*>(all.data()));
  const auto failed = [](const Verdict& verdict) { return verdict.status != 0; };
  const auto first = std::find_if(all.begin(), all.end(), failed);
  if (first == all.end()) return;
  const bool everywhere = std::all_of(all.begin(), all.end(), failed);
  const std::string who = everywhere ? "" : fmt::format("rank {}: ", first - all.begin());
  throw AgreedError(static_cast<ErrorKind>(first->status), who + first->message.data());
}

bool any_rank(Communicator& comm, bool yes) {
  return all_reduce_sum(comm, whole_world(comm), yes ? 1 : 0) > 0;
}

}  // namespace longspan::cli
