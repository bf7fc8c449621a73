#include "engine/cpu/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace longspan {

struct ThreadPool::State {
  using Body = std::function<void(int64_t, int)>;

  std::mutex mutex;
  std::condition_variable work;  // a loop has begun, or the pool is closing
  std::condition_variable idle;  // the last worker has left the current loop
  const Body* body = nullptr;    // the current loop; null if there is none to join
  uint64_t loop = 0;             // number of loops, so that a worker joins each one once
  int inside = 0;                // workers in the current loop
  bool closing = false;
  std::exception_ptr error;

  std::atomic<int64_t> next{0};
  std::atomic<int64_t> pieces{0};
  std::vector<std::thread> workers;

  // Pieces are handed out in ascending order; attention_backward relies on it.
  void take_pieces(const Body& run_piece, int thread) {
    const int64_t end = pieces.load(std::memory_order_relaxed);
    try {
      for (int64_t i = next.fetch_add(1); i < end; i = next.fetch_add(1)) run_piece(i, thread);
    } catch (...) {
      next.store(end);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void serve(int thread) {
    uint64_t joined = 0;
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return closing || (body != nullptr && loop != joined); });
      if (closing) return;
      joined = loop;
      const Body* current = body;
      ++inside;
      lock.unlock();
      take_pieces(*current, thread);
      lock.lock();
      if (--inside == 0) idle.notify_one();
    }
  }

  void close() {
    {
      const std::lock_guard lock(mutex);
      closing = true;
    }
    work.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads < 1) throw bad_input("thread pool: expected at least 1 thread, got {}", threads);
  try {
    for (int t = 1; t < threads; ++t) {
      state_->workers.emplace_back([state = state_.get(), t] { state->serve(t); });
    }
  } catch (const std::exception& error) {
    state_->close();
    throw failed("thread pool: could not start {} threads ({}); try fewer", threads, error.what());
  }
}

ThreadPool::~ThreadPool() { state_->close(); }

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(int64_t pieces, const std::function<void(int64_t, int)>& body) {
  if (pieces <= 0) return;
  State& s = *state_;
  if (pieces == 1 || s.workers.empty()) {  // not worth waking a worker
    for (int64_t i = 0; i < pieces; ++i) body(i, 0);
    return;
  }
  {
    const std::lock_guard lock(s.mutex);
    s.body = &body;
    s.pieces.store(pieces, std::memory_order_relaxed);
    s.next.store(0);
    ++s.loop;
  }
  s.work.notify_all();
  s.take_pieces(body, 0);
  std::exception_ptr error;
  {
    std::unique_lock lock(s.mutex);
    s.body = nullptr;  // a worker that wakes up late finds no loop to join
    s.idle.wait(lock, [&] { return s.inside == 0; });
    error = std::exchange(s.error, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace longspan
