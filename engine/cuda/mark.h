// A point of a queue that other queues can wait for: those of other ranks too, where ranks are
// threads that share a device.
//
// set() is for its owner; make_wait() for anybody, of any thread, as long as the two do not run at
// the same time. A mark may be destroyed while queues still wait for it.
#pragma once

#include <memory>

#include "engine/cuda/queue.h"

namespace longspan::cuda {

class Mark {
 public:
  /// On the calling thread's current device.
  Mark();
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  /// The point behind all that is on the queue by now. REQUIRES: a queue of the mark's device.
  void set(const Queue& queue);
  /// What is put on `queue` from now on waits until the device has passed the mark where it was set
  /// last. REQUIRES: it was set.
  void make_wait(const Queue& queue) const;

 private:
  struct Event;
  std::unique_ptr<Event> event_;
};

}  // namespace longspan::cuda
