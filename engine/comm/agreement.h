// Collective error handling: if a piece of work fails on some ranks, all ranks throw the same
// error, so that none waits for a rank that has given up.
#pragma once

#include <functional>

#include "base/error.h"
#include "engine/comm/communicator.h"

namespace longspan {

/// The error that all ranks throw together. No rank is lost.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Runs `part` on this rank and waits until all ranks have run theirs. If `part` threw on any rank,
/// throws the same AgreedError on all of them: the error of the first such rank, prefixed with its
/// number unless all ranks failed. In a world of one rank, rethrows the exception of `part`
/// unchanged. `part` must not exchange anything, unless every failure in it is an AgreedError.
void agree(Communicator& comm, const std::function<void()>& part);

/// Returns the exception being handled: unchanged if it is an Error, otherwise `failed` with its
/// text. REQUIRES: an exception is being handled.
Error current_error();

}  // namespace longspan
