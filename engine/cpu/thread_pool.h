// The compute threads of the CPU backend: one caller plus `threads - 1` workers that split a loop.
//
// One pool belongs to one compute stream; run() is called from one thread at a time. Work is split
// into fixed pieces that do not depend on the number of threads, so results are the same bits for
// any pool size as long as pieces write disjoint outputs.
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
  /// Calls body(piece, thread) once for every piece in [0, pieces), in any order, on any thread
  /// (0 <= thread < threads()), and returns when all are done. An exception from a body is
  /// rethrown here after the others have stopped.
  void run(int64_t pieces, const std::function<void(int64_t piece, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
