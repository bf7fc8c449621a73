// Failing together: where a part of the work may fail on some ranks only, all of them hear of it
// and throw the same, so that none waits for one that has given up.
#pragma once

#include <functional>

#include "base/error.h"
#include "engine/comm/communicator.h"

namespace longspan {

/// The error that all ranks throw together: none of them has lost another.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Runs `part` on this rank and waits for the others to have run theirs. If it has thrown on any,
/// throws AgreedError on all of them, the same: the first such rank's error, with its number in
/// front if not all have failed. Of a world of one, what `part` throws is thrown as it is. A part
/// exchanges nothing, unless every failure in it is an agreed one.
void agree(Communicator& comm, const std::function<void()>& part);

/// The exception being thrown: as it is if it is an Error, else `failed` with its text.
/// REQUIRES: an exception is being handled.
Error current_error();

}  // namespace longspan
