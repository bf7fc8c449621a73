// Timing what a device does, by the events of its queues: the same that say when the ops of a step
// ran. On a GPU they are events; the tests' host device has clocks there.
//
// Internal to engine/profile; used from one thread, which must be the only user of the device.
#pragma once

#include <functional>

#include "engine/cuda/device.h"

namespace longspan {

/// Puts work on a queue and returns.
using Submit = std::function<void(const cuda::Queue&)>;

/// Work for the queue of a stream.
struct QueueWork {
  Stream stream = Stream::compute;
  Submit submit;
};

class DeviceTimer {
 public:
  /// The device must outlive the timer.
  explicit DeviceTimer(cuda::Device& device) : device_(device) {}

  /// Seconds of `repeats` runs one after another. With `lead` one more goes before, untimed: what
  /// it loads is loaded, and while it runs the others get on the queue.
  double seconds(const QueueWork& work, int repeats, bool lead);
  /// Seconds of `repeats` runs of `first` while `second` runs all the time. REQUIRES:
  /// `others` runs of `second` take longer than that.
  double seconds_beside(const QueueWork& first, int repeats, const QueueWork& second, int others);
  /// Seconds of `host`, on this thread, while `others` runs of `second` are on their queue.
  double host_seconds_beside(const std::function<void()>& host, const QueueWork& second,
                             int others);

  /// Seconds an op adds to what its kernels take: its events.
  double op_overhead(const QueueWork& tiny);
  /// Seconds from the end of an op to the start of one on another queue that waits for it. Both
  /// should do next to nothing.
  double hand_over(const QueueWork& one, const QueueWork& other);

 private:
  // Ops [first, first + count) of a queue, each with `runs` runs; returns when they are submitted.
  void put(const QueueWork& work, int32_t first, int32_t count, int runs);
  double span(Stream stream, int32_t first, int32_t last) const;

  cuda::Device& device_;
};

}  // namespace longspan
