// Kernels are written as a body for one element, or for one row by a team of threads. On the device
// a team is a thread block. On the host, bodies run one after another, and a team is a single
// thread unless a test asks for more (HostLaunch). Bodies must not depend on the order in which
// they run nor, beyond rounding, on the size of a team. Sums within a team have a fixed order, so
// results repeat bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "engine/cuda/element.h"
#include "engine/cuda/packs.h"
#include "engine/cuda/queue.h"

#if defined(__CUDACC__)
#include "engine/cuda/cuda_error.h"
#else
#include <functional>
#endif

namespace longspan::cuda {

#if defined(__CUDACC__)

inline constexpr int kTeamThreads = 256;

class Team {
 public:
  __device__ explicit Team(float* shared) : shared_(shared) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ void sync() const { __syncthreads(); }
  /// The sum (or maximum) over all members' values, returned to every member.
  __device__ float sum(float x) const {
    return reduce(x, [](float a, float b) { return a + b; });
  }
  __device__ float max(float x) const {
    return reduce(x, [](float a, float b) { return fmaxf(a, b); });
  }

 private:
  template <class Combine>
  __device__ float reduce(float x, Combine combine) const {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      x = combine(x, __shfl_xor_sync(0xFFFFFFFFU, x, lanes));
    }
    __syncthreads();  // the last result may still be being read
    if (threadIdx.x % 32 == 0) shared_[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared_[0];
    for (int warp = 1; warp < size() / 32; ++warp) x = combine(x, shared_[warp]);
    return x;
  }

  float* shared_;
};

template <class Body>
__global__ void __launch_bounds__(kTeamThreads) run_each(Body body, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    body(i);
  }
}

template <class Body>
__global__ void __launch_bounds__(kTeamThreads) run_teams(Body body, int64_t n) {
  __shared__ float shared[kTeamThreads / 32];
  const Team team(shared);
  for (int64_t row = blockIdx.x; row < n; row += gridDim.x) body(team, row);
}

/// A team of 32 threads, for rows of a few hundred elements. It needs no shared memory.
class Warp {
 public:
  __device__ int rank() const { return static_cast<int>(threadIdx.x % 32); }
  __device__ int size() const { return 32; }
  __device__ float sum(float x) const {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, lanes);
    return x;
  }
  __device__ float max(float x) const {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, lanes));
    }
    return x;
  }
};

template <class Body>
__global__ void __launch_bounds__(kTeamThreads) run_warps(Body body, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (kTeamThreads / 32);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * (kTeamThreads / 32) + threadIdx.x / 32;
       row < n; row += stride) {
    body(Warp(), row);
  }
}

// A thread takes the packs of one column, in several rows. Where rows are short, a block has
// several rows at a time. No index is divided.
template <int N, class Body>
__global__ void __launch_bounds__(kTeamThreads) run_packs(Body body, int64_t rows, int64_t width) {
  const int64_t packs = width / N;
  const int64_t row_stride = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const int64_t pack_stride = static_cast<int64_t>(gridDim.y) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += row_stride) {
#pragma unroll 1  // a pack is enough work, and copies of the body take registers
    for (int64_t i = first; i < packs; i += pack_stride) {
      body(std::integral_constant<int, N>(), row, i * N);
    }
    if constexpr (N > 1) {
#pragma unroll 1
      for (int64_t j = packs * N + first; j < width; j += pack_stride) {
        body(std::integral_constant<int, 1>(), row, j);
      }
    }
  }
}

/// Runs body(i) for i in [0, n).
template <class Body>
void for_each(const Queue& queue, int64_t n, Body body) {
  if (n == 0) return;
  const int64_t blocks = std::min<int64_t>((n + kTeamThreads - 1) / kTeamThreads, 1 << 20);
  run_each<<<static_cast<unsigned>(blocks), kTeamThreads, 0,
             static_cast<cudaStream_t>(queue.stream)>>>(body, n);
  check(cudaGetLastError(), "launch");
}

/// Runs body(N, row, j) for all rows of `width` elements: for N of them from column j on. N is a
/// std::integral_constant: kPack if `packs` is true (see in_packs()), else, and for what is left at
/// the end of a row, 1.
template <class Body>
void for_each_pack(const Queue& queue, bool packs, int64_t rows, int64_t width, Body body) {
  if (rows == 0 || width == 0) return;
  const int64_t most = packs ? std::max<int64_t>(1, width / kPack) : width;
  unsigned across = 1;
  while (across < kTeamThreads && across < most) across *= 2;
  const unsigned down = kTeamThreads / across;
  const dim3 block(across, down);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((rows + down - 1) / down, 1 << 20)),
                  static_cast<unsigned>(std::min<int64_t>((most + across - 1) / across, 65535)));
  const auto stream = static_cast<cudaStream_t>(queue.stream);
  if (packs) {
    run_packs<kPack><<<grid, block, 0, stream>>>(body, rows, width);
  } else {
    run_packs<1><<<grid, block, 0, stream>>>(body, rows, width);
  }
  check(cudaGetLastError(), "launch");
}

/// Runs body(team, row) for row in [0, n).
template <class Body>
void for_each_row(const Queue& queue, int64_t n, Body body) {
  if (n == 0) return;
  const int64_t blocks = std::min<int64_t>(n, 1 << 20);
  run_teams<<<static_cast<unsigned>(blocks), kTeamThreads, 0,
              static_cast<cudaStream_t>(queue.stream)>>>(body, n);
  check(cudaGetLastError(), "launch");
}

/// Runs body(warp, row) for row in [0, n).
template <class Body>
void for_each_warp(const Queue& queue, int64_t n, Body body) {
  if (n == 0) return;
  constexpr int64_t kWarps = kTeamThreads / 32;
  const int64_t blocks = std::min<int64_t>((n + kWarps - 1) / kWarps, 1 << 20);
  run_warps<<<static_cast<unsigned>(blocks), kTeamThreads, 0,
              static_cast<cudaStream_t>(queue.stream)>>>(body, n);
  check(cudaGetLastError(), "launch");
}

#else

/// How the host runs bodies: in which order, and with how many threads in a team.
struct HostLaunch {
  int team_threads = 1;
  bool backwards = false;  // the last body, and the last member of a team, come first
};

/// Applies to work that is submitted from now on. Initially a single thread, forwards.
HostLaunch& host_launch();

/// What the members of a team on the host share. They take turns: one runs until its next barrier,
/// then the next one does.
class TeamTurns {
 public:
  virtual ~TeamTurns() = default;
  virtual int size() const = 0;
  virtual void sync(int rank) = 0;
  virtual float& value_of(int rank) = 0;
};

class Team {
 public:
  Team() = default;
  Team(int rank, TeamTurns* turns) : rank_(rank), turns_(turns) {}
  int rank() const { return rank_; }
  int size() const { return turns_ == nullptr ? 1 : turns_->size(); }
  void sync() const {
    if (turns_ != nullptr) turns_->sync(rank_);
  }
  float sum(float x) const {
    return reduce(x, [](float a, float b) { return a + b; });
  }
  float max(float x) const {
    return reduce(x, [](float a, float b) { return std::max(a, b); });
  }

 private:
  template <class Combine>
  float reduce(float x, Combine combine) const {
    if (turns_ == nullptr) return x;
    sync();  // the last result may still be being read
    turns_->value_of(rank_) = x;
    sync();
    x = turns_->value_of(0);
    for (int member = 1; member < size(); ++member) x = combine(x, turns_->value_of(member));
    return x;
  }

  int rank_ = 0;
  TeamTurns* turns_ = nullptr;  // null: a team of one
};

/// Submits work to a queue of the tests' CUDA runtime.
void submit(const Queue& queue, std::function<void()> work);

/// Runs body(team, row) for row in [0, n) by a team of several threads.
void run_team(const HostLaunch& launch, int64_t n,
              const std::function<void(const Team&, int64_t)>& body);

template <class Body>
void for_each(const Queue& queue, int64_t n, Body body) {
  submit(queue, [=, backwards = host_launch().backwards] {
    for (int64_t i = 0; i < n; ++i) body(backwards ? n - 1 - i : i);
  });
}

template <class Body>
void for_each_pack(const Queue& queue, bool packs, int64_t rows, int64_t width, Body body) {
  const int64_t whole = packs ? width / kPack : 0, rest = width - whole * kPack;
  for_each(queue, rows * (whole + rest), [=](int64_t i) {
    const int64_t row = i / (whole + rest), at = i % (whole + rest);
    if (at < whole) {
      body(std::integral_constant<int, kPack>(), row, at * kPack);
    } else {
      body(std::integral_constant<int, 1>(), row, whole * kPack + at - whole);
    }
  });
}

template <class Body>
void for_each_row(const Queue& queue, int64_t n, Body body) {
  submit(queue, [=, launch = host_launch()] {
    if (launch.team_threads > 1 || launch.backwards) return run_team(launch, n, body);
    for (int64_t row = 0; row < n; ++row) body(Team(), row);
  });
}

using Warp = Team;

template <class Body>
void for_each_warp(const Queue& queue, int64_t n, Body body) {
  for_each_row(queue, n, body);
}

#endif

}  // namespace longspan::cuda
