#include "engine/runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/error.h"
#include "engine/runtime/bound_op.h"
#include "planner/plan/plan.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

std::array<int32_t, kStreamCount> ops_of_streams(const Layout& layout) {
  std::array<int32_t, kStreamCount> counts{};
  for (int stream = 0; stream < kStreamCount; ++stream) {
    counts[stream] = static_cast<int32_t>(layout.streams[stream].size());
  }
  return counts;
}

}  // namespace

// The number of completed ops of each stream; the only state that the streams' threads share during
// a step. Counters only grow. After a failure all are at their maximum, so that no thread waits
// forever.
class StreamProgress {
 public:
  void wait_for(int stream, int32_t ordinal) {
    std::atomic<int32_t>& done = done_[stream];
    for (int32_t seen = done.load(std::memory_order_acquire); seen <= ordinal;
         seen = done.load(std::memory_order_acquire)) {
      done.wait(seen, std::memory_order_acquire);
    }
  }
  void complete(int stream, int32_t ordinal) {
    // fail() may have set the counter to its maximum meanwhile; do not overwrite it.
    int32_t expected = ordinal;
    done_[stream].compare_exchange_strong(expected, ordinal + 1, std::memory_order_release);
    done_[stream].notify_all();
  }
  /// Returns whether it is the first failure.
  bool fail(std::exception_ptr error) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = error_ == nullptr;
      if (first) error_ = std::move(error);
    }
    failed_.store(true, std::memory_order_release);
    for (std::atomic<int32_t>& done : done_) {
      done.store(INT32_MAX, std::memory_order_release);
      done.notify_all();
    }
    return first;
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::array<std::atomic<int32_t>, kStreamCount> done_{};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

Executor::Executor(Program program, Backend& backend, const ExecutorOptions& options)
    : program_(std::move(program)),
      layout_(lay_out(program_)),
      backend_(backend),
      queues_(backend.queues()) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (layout_.arena_bytes[tier] > options.capacity_bytes[tier]) {
      throw no_fit("{}", describe_shortfall(static_cast<Tier>(tier), layout_.arena_bytes[tier],
                                            options.capacity_bytes[tier]));
    }
  }
  for (int tier = 0; tier < 2; ++tier) {
    memory_[tier] = backend.allocate(static_cast<Tier>(tier), layout_.arena_bytes[tier]);
    if (options.poison) memory_[tier]->poison();
  }
  if (layout_.arena_bytes[2] > 0) {
    file_ = std::make_unique<FileArena>(layout_.arena_bytes[2], options.nvme_directory);
  }
}

Executor::~Executor() {
  if (!memory_in_use_) return;
  for (std::unique_ptr<Arena>& arena : memory_) static_cast<void>(arena.release());
}

void Executor::cancel() noexcept {
  if (!backend_.cancel()) memory_in_use_ = true;
}

void Executor::run_op(const Op& op, const StepContext& context) {
  if (before_op) before_op(op);
  OperandPointers pointers{};
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    const int tier = static_cast<int>(program_.buffers[id].tier);
    if (tier < 2) pointers[i] = memory_[tier]->data() + layout_.offsets[id];
  }
  switch (op.kind) {
    case OpKind::io_read: {
      const BoundOp<OpKind::io_read> b(program_, op, pointers);
      file_->read(layout_.offsets[b.id("source")], b.whole<std::byte>("destination"),
                  b.bytes("source"));
      break;
    }
    case OpKind::io_write: {
      const BoundOp<OpKind::io_write> b(program_, op, pointers);
      file_->write(layout_.offsets[b.id("destination")], b.whole<std::byte>("source"),
                   b.bytes("source"));
      break;
    }
    default:
      backend_.run(program_, op, pointers, context);
  }
}

void Executor::touch(const Op& op, std::array<int64_t, kTierCount>& high_water) const {
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    int64_t& mark = high_water[static_cast<int>(program_.buffers[id].tier)];
    // The padding up to the next aligned offset belongs to the buffer.
    const int64_t bytes = program_.bytes_of(id);
    mark = std::max(mark, layout_.offsets[id] +
                              (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment);
  }
}

// Returns when the op of `stream` with these waits may be run or enqueued. If both streams have a
// queue, the wait is enqueued instead of blocking this thread.
void Executor::await(int stream, const Waits& waits, StreamProgress& progress) {
  const bool queued = queues_ != nullptr && queues_->has(static_cast<Stream>(stream));
  for (int i = 0; i < kStreamCount; ++i) {
    if (waits[i] < 0) continue;
    progress.wait_for(i, waits[i]);
    const Stream other = static_cast<Stream>(i);
    if (progress.failed() || queues_ == nullptr || !queues_->has(other)) continue;
    if (queued) {
      queues_->wait(static_cast<Stream>(stream), other, waits[i]);
    } else {
      queues_->synchronize(other, waits[i]);
    }
  }
}

// Submits an op, the n-th of its queue. An error names the op, as a device's own errors do not.
void Executor::submit(const Op& op, int32_t n, const StepContext& context) {
  try {
    queues_->started(op.stream, n);
    run_op(op, context);
    queues_->submitted(op.stream, n);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", describe(program_, op), error.what()));
  }
}

Timeline Executor::run(const StepContext& context) {
  Timeline timeline;
  timeline.spans.resize(program_.ops.size());
  StreamProgress progress;
  std::array<std::array<int64_t, kTierCount>, kStreamCount> high_water{};
  if (queues_ != nullptr) queues_->begin(ops_of_streams(layout_));
  const Clock::time_point begin = Clock::now();

  const auto run_stream = [&](int stream) {
    try {
      const std::vector<Queued>& queue = layout_.streams[stream];
      const Stream name = static_cast<Stream>(stream);
      const bool queued = queues_ != nullptr && queues_->has(name);
      for (size_t i = 0; i < queue.size() && !progress.failed(); ++i) {
        const Op& op = program_.ops[queue[i].op];
        const auto n = static_cast<int32_t>(i);
        await(stream, queue[i].waits, progress);
        if (progress.failed()) return;
        const Clock::time_point start = Clock::now();
        if (queued) {
          submit(op, n, context);
        } else {
          run_op(op, context);
        }
        timeline.spans[queue[i].op] = {seconds_between(begin, start),
                                       seconds_between(begin, Clock::now())};
        touch(op, high_water[stream]);
        progress.complete(stream, n);
      }
    } catch (const std::exception& error) {
      if (progress.fail(std::current_exception())) backend_.abandon(error.what());
    }
  };

  {
    std::vector<std::jthread> threads;
    for (int stream = 1; stream < kStreamCount; ++stream) {
      if (!layout_.streams[stream].empty()) threads.emplace_back(run_stream, stream);
    }
    run_stream(static_cast<int>(Stream::compute));
  }
  if (queues_ != nullptr) {
    try {
      queues_->finish();
    } catch (...) {
      progress.fail(std::current_exception());
    }
  }
  if (progress.failed()) cancel();
  progress.rethrow();
  timeline.step_seconds = seconds_between(begin, Clock::now());

  for (int stream = 0; stream < kStreamCount; ++stream) {
    const std::vector<Queued>& queue = layout_.streams[stream];
    const bool queued = queues_ != nullptr && queues_->has(static_cast<Stream>(stream));
    for (size_t i = 0; i < queue.size(); ++i) {
      Span& span = timeline.spans[queue[i].op];
      if (queued) span = queues_->span_of(static_cast<Stream>(stream), static_cast<int32_t>(i));
      timeline.busy_seconds[stream] += span.end - span.start;
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      high_water_[tier] = std::max(high_water_[tier], high_water[stream][tier]);
    }
  }
  timeline.peak_bytes = high_water_;
  return timeline;
}

void Executor::run_in_random_order(const StepContext& context, uint64_t seed) {
  try {
    run_all_in_random_order(context, seed);
  } catch (const std::exception& error) {
    backend_.abandon(error.what());
    cancel();
    throw;
  }
}

void Executor::run_all_in_random_order(const StepContext& context, uint64_t seed) {
  std::mt19937_64 random(seed);
  if (queues_ != nullptr) queues_->begin(ops_of_streams(layout_));
  std::array<int32_t, kStreamCount> done{};
  for (size_t left = program_.ops.size(); left > 0; --left) {
    std::array<int, kStreamCount> ready{};
    int n_ready = 0;
    for (int stream = 0; stream < kStreamCount; ++stream) {
      if (done[stream] == static_cast<int32_t>(layout_.streams[stream].size())) continue;
      const Waits& waits = layout_.streams[stream][done[stream]].waits;
      bool allowed = true;
      for (int other = 0; other < kStreamCount; ++other) allowed &= waits[other] < done[other];
      if (allowed) ready[n_ready++] = stream;
    }
    if (n_ready == 0) throw failed("executor: the program makes no progress");
    const int stream = ready[random() % n_ready];
    const Op& op = program_.ops[layout_.streams[stream][done[stream]].op];
    const Stream name = static_cast<Stream>(stream);
    if (queues_ != nullptr && queues_->has(name)) {
      submit(op, done[stream], context);
      queues_->synchronize(name, done[stream]);
    } else {
      run_op(op, context);
    }
    touch(op, high_water_);
    ++done[stream];
  }
  if (queues_ != nullptr) queues_->finish();
}

void Executor::read(BufferId buffer, void* out) const {
  const Tier tier = program_.buffers[buffer].tier;
  const int64_t offset = layout_.offsets[buffer], bytes = program_.bytes_of(buffer);
  if (tier == Tier::nvme) {
    file_->read(offset, out, bytes);
  } else {
    memory_[static_cast<int>(tier)]->read(offset, out, bytes);
  }
}

void Executor::write(BufferId buffer, const void* data) {
  const Tier tier = program_.buffers[buffer].tier;
  const int64_t offset = layout_.offsets[buffer], bytes = program_.bytes_of(buffer);
  if (tier == Tier::nvme) {
    file_->write(offset, data, bytes);
  } else {
    memory_[static_cast<int>(tier)]->write(offset, data, bytes);
  }
}

}  // namespace longspan
