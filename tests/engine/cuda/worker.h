// The streams of the tests' CUDA runtime.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace longspan::testing {

/// A queue: a thread that runs the submitted work in order. With `lag` it sleeps for random times
/// before pieces of it.
class Worker {
 public:
  explicit Worker(bool lag, int seed) : random_(seed), lag_(lag), thread_([this] { loop(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
  }

  void submit(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
      idle_ = false;
    }
    changed_.notify_all();
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return idle_;
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return idle_; });
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stops_ || !work_.empty(); });
      if (work_.empty()) return;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (lag_ && random_() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
      }
      work();
      lock.lock();
      if (work_.empty()) idle_ = true;
      changed_.notify_all();
    }
  }

  std::mt19937 random_;
  bool lag_, stops_ = false, idle_ = true;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::jthread thread_;
};

}  // namespace longspan::testing
