// The compute threads of the CPU backend: the caller plus `threads - 1` workers that share a loop.
//
// A pool belongs to one compute stream; one thread at a time may call run(). Work is split into
// fixed pieces that do not depend on the number of threads, so results have the same bits for any
// pool size as long as pieces write disjoint outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace longspan {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // REQUIRES: threads >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  /// Calls body(piece, thread) once for every piece in [0, pieces), in any order and on any thread
  /// (0 <= thread < threads()). Returns when all are done. Rethrows an exception of a body after
  /// all threads have stopped.
  void run(int64_t pieces, const std::function<void(int64_t piece, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
