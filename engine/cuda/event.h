// A point of a queue that other queues can wait for: those of other ranks too, where ranks are
// threads that share a device.
//
// record() is for its owner; wait_on() for any caller, of any thread, as long as the two do not run
// at the same time. An event may be destroyed while queues still wait for it.
#pragma once

#include <memory>

#include "engine/cuda/queue.h"

namespace longspan::cuda {

class Event {
 public:
  /// On the calling thread's current device.
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// The point behind all that is on the queue by now. REQUIRES: a queue of the event's device.
  void record(const Queue& queue);
  /// Work put on `queue` from now on waits until the device has passed the event where it was
  /// recorded last. REQUIRES: it was recorded.
  void wait_on(const Queue& queue) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan::cuda
