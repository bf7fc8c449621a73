#include "engine/comm/agreement.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/collectives.h"

namespace longspan {
namespace {

// The outcome of a rank's part, sent as raw bytes.
struct Verdict {
  int status = 0;  // 0: success
  std::array<char, 1000> message{};
};

Verdict verdict_of(const Error& error) {
  Verdict verdict{error.exit_status(), {}};
  const std::string_view message = error.what();
  std::copy_n(message.begin(), std::min(message.size(), verdict.message.size() - 1),
              verdict.message.begin());
  return verdict;
}

}  // namespace

Error current_error() {
  assert(std::current_exception() != nullptr);
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return failed("out of memory");
  } catch (const std::exception& error) {
    return failed("{}", error.what());
  } catch (...) {
    return failed("unknown exception");
  }
}

void agree(Communicator& comm, const std::function<void()>& part) {
  Verdict own;
  try {
    part();
  } catch (...) {
    if (comm.size() == 1) throw;
    own = verdict_of(current_error());
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

}  // namespace longspan
