// A point in a queue that other queues can wait for, including those of other ranks if ranks are
// threads that share a device.
//
// Only the owner calls record(). Any thread may call wait_on(), but not concurrently with record().
// An event may be destroyed while queues still wait for it.
#pragma once

#include <memory>

#include "engine/cuda/queue.h"

namespace longspan::cuda {

class Event {
 public:
  /// Creates the event on the calling thread's current device.
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Sets the event after all work on `queue` so far. REQUIRES: a queue of the event's device.
  void record(const Queue& queue);
  /// Work submitted to `queue` from now on waits for the point recorded last. REQUIRES: record()
  /// has been called.
  void wait_on(const Queue& queue) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan::cuda
