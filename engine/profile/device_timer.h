// Times work on a device with the events of its queues, the same that time the ops of a step. The
// tests' host device uses clocks instead of events.
//
// Internal to engine/profile. Used from one thread, which must be the only user of the device.
#pragma once

#include <functional>

#include "engine/cuda/device.h"

namespace longspan {

/// Enqueues work and returns.
using Submit = std::function<void(const cuda::Queue&)>;

/// Work and the stream on whose queue it runs.
struct QueueWork {
  Stream stream = Stream::compute;
  Submit submit;
};

class DeviceTimer {
 public:
  /// The device must outlive the timer.
  explicit DeviceTimer(cuda::Device& device) : device_(device) {}

  /// Returns the seconds of `repeats` consecutive runs. `lead` untimed runs precede them: one loads
  /// the kernels and gives the host time to enqueue the others, more heat the device.
  double seconds(const QueueWork& work, int repeats, int lead);
  /// Returns the seconds of `repeats` runs of `first` while `second` runs concurrently. REQUIRES:
  /// `others` runs of `second` take longer than that.
  double seconds_beside(const QueueWork& first, int repeats, const QueueWork& second, int others);
  /// Returns the seconds of `host` on this thread while `others` runs of `second` are queued.
  double host_seconds_beside(const std::function<void()>& host, const QueueWork& second,
                             int others);

  /// Returns the seconds that an op's events add to the time of its kernels.
  double op_overhead(const QueueWork& tiny);
  /// Returns the seconds from the end of an op to the start of an op on another queue that waits
  /// for it. Both should be as small as possible.
  double hand_over(const QueueWork& one, const QueueWork& other);

 private:
  // Submits ops [first, first + count) of a queue, each with `runs` runs of the work.
  void put(const QueueWork& work, int32_t first, int32_t count, int runs);
  double span(Stream stream, int32_t first, int32_t last) const;

  cuda::Device& device_;
};

}  // namespace longspan
