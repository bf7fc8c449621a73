// Executes a step program. (The simulator is the program's other reader.)
//
// One thread per stream runs that stream's ops in order. Before each op it waits only for the ops
// on other streams that the layout lists. If the backend has a queue for a stream, that stream's
// thread only enqueues, and its waits become waits between queues. Only streams whose work the host
// does itself (file I/O, the data source) block a thread on the device. Arenas are allocated once,
// on construction, after their sizes have been checked against the capacities.
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
  /// The most bytes of each tier; a larger arena is refused before anything is allocated.
  std::array<int64_t, kTierCount> capacity_bytes{INT64_MAX, INT64_MAX, INT64_MAX};
  std::filesystem::path nvme_directory = ".";
  bool poison = false;  // fills the arenas with NaN first (tests)
};

class StreamProgress;

class Executor {
 public:
  /// Throws no_fit, before allocating, if an arena exceeds its capacity or the machine's memory.
  /// The backend must outlive the executor.
  Executor(Program program, Backend& backend, const ExecutorOptions& options);
  ~Executor();

  const Program& program() const { return program_; }
  const Layout& layout() const { return layout_; }

  /// Runs one step on the streams' threads and returns its measured timeline. An exception thrown
  /// by an op ends the step on all streams and is rethrown here.
  Timeline run(const StepContext& context);

  /// Runs one step on this thread in a random order that respects the dependencies.
  void run_in_random_order(const StepContext& context, uint64_t seed);

  /// Copies a buffer out of, or into, its arena. REQUIRES: no step is running; the buffer is
  /// persistent, or the caller is inside `before_op`.
  void read(BufferId buffer, void* out) const;
  void write(BufferId buffer, const void* data);

  /// Called on the op's thread right before the op runs; for tests and tracing.
  std::function<void(const Op&)> before_op;

  /// The end of the highest byte that any op has touched so far, per tier.
  std::array<int64_t, kTierCount> high_water_bytes() const { return high_water_; }
  std::array<int64_t, kTierCount> arena_bytes() const { return layout_.arena_bytes; }

 private:
  void cancel() noexcept;
  void run_all_in_random_order(const StepContext& context, uint64_t seed);
  void await(int stream, const Waits& waits, StreamProgress& progress);
  void run_op(const Op& op, const StepContext& context);
  void submit(const Op& op, int32_t n, const StepContext& context);
  void touch(const Op& op, std::array<int64_t, kTierCount>& high_water) const;

  Program program_;
  Layout layout_;
  Backend& backend_;
  DeviceQueues* queues_;
  std::array<std::unique_ptr<Arena>, 2> memory_;  // device, host
  bool memory_in_use_ = false;                    // by messages of a failed step, to the end
  std::unique_ptr<FileArena> file_;
  std::array<int64_t, kTierCount> high_water_{};
};

}  // namespace longspan
