// Execution of a step program: the second of its two readers.
//
// One thread per stream runs that stream's ops in order; before each op it waits for the ops on
// other streams that the layout names, and for nothing else. Where the backend has queues, the
// thread of such a stream only submits: the waits become waits of queues for each other, and only
// streams that the host itself works for (file I/O, the data source) ever make a thread wait for
// the device. Arenas are taken once, on construction, after their sizes have been held against the
// capacities.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "engine/runtime/arena.h"
#include "engine/runtime/backend.h"
#include "planner/program/layout.h"
#include "planner/simulate/timeline.h"

namespace longspan {

struct ExecutorOptions {
  /// Bytes each tier may take; a larger arena is refused before anything is allocated.
  std::array<int64_t, kTierCount> capacity_bytes{INT64_MAX, INT64_MAX, INT64_MAX};
  std::filesystem::path nvme_directory = ".";
  bool poison = false;  // fill the arenas with NaN first (tests)
};

class StreamProgress;

class Executor {
 public:
  /// Throws no_fit, before allocating, if an arena exceeds its capacity or the machine's memory.
  /// The backend must outlive the executor.
  Executor(Program program, Backend& backend, const ExecutorOptions& options);

  const Program& program() const { return program_; }
  const Layout& layout() const { return layout_; }

  /// Runs one step on the streams' threads and returns what was measured. An exception thrown by an
  /// op ends the step on all streams and is rethrown here.
  Timeline run(const StepContext& context);

  /// Runs one step on this thread in a random order among those the edges allow.
  void run_in_random_order(const StepContext& context, uint64_t seed);

  /// Copies a buffer out of, or into, its arena. REQUIRES: no step is running; the buffer is
  /// persistent, or the caller is inside `before_op`.
  void read(BufferId buffer, void* out) const;
  void write(BufferId buffer, const void* data);

  /// Called on the op's thread right before it runs; for tests and tracing.
  std::function<void(const Op&)> before_op;

  /// The end of the highest byte any op has touched so far, per tier.
  std::array<int64_t, kTierCount> high_water_bytes() const { return high_water_; }
  std::array<int64_t, kTierCount> arena_bytes() const { return layout_.arena_bytes; }

 private:
  void await(int stream, const Waits& waits, StreamProgress& progress);
  void run_op(const Op& op, const StepContext& context);
  void touch(const Op& op, std::array<int64_t, kTierCount>& high_water) const;

  Program program_;
  Layout layout_;
  Backend& backend_;
  DeviceQueues* queues_;
  std::array<std::unique_ptr<Arena>, 2> memory_;  // device, host
  std::unique_ptr<FileArena> file_;
  std::array<int64_t, kTierCount> high_water_{};
};

}  // namespace longspan
