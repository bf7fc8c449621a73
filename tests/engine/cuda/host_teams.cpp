// Teams of several threads on the host (engine/cuda/launch.h): fibers of one thread.
//
// A member runs until its next barrier, then the next one does. So a member that reads what another
// wrote, with no barrier in between, sees it either in forward or in backward order only, and the
// results of the two orders differ.
#include <ucontext.h>

#include <deque>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

// A fiber, or the thread that runs fibers.
struct Fiber {
  ucontext_t context{};
  std::vector<std::byte> stack;
#if defined(__SANITIZE_THREAD__)
  void* of_sanitizer = __tsan_get_current_fiber();
#endif
};

void switch_to(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.of_sanitizer, 0);
#endif
  swapcontext(&from.context, &to.context);
}

// Makes the fiber call `entry` when it is first switched to. Not inlined, as getcontext() may
// return twice as far as the compiler knows.
[[gnu::noinline]] void prepare(Fiber& fiber, void (*entry)()) {
  fiber.stack.resize(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber.context, entry, 0);
#if defined(__SANITIZE_THREAD__)
  fiber.of_sanitizer = __tsan_create_fiber(0);
#endif
}

class Turns final : public TeamTurns {
 public:
  using Body = std::function<void(const Team&, int64_t)>;

  Turns(const HostLaunch& launch, int64_t n, const Body& body)
      : launch_(launch), n_(n), body_(body), members_(static_cast<size_t>(launch.team_threads)) {
    for (Member& member : members_) prepare(member.fiber, &Turns::run_member);
  }
  ~Turns() override {
#if defined(__SANITIZE_THREAD__)
    for (Member& member : members_) __tsan_destroy_fiber(member.fiber.of_sanitizer);
#endif
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void run() {
    running_ = this;
    at_ = 0;
    switch_to(caller_, members_.front().fiber);
  }

  int size() const override { return static_cast<int>(members_.size()); }
  float& value_of(int rank) override { return members_[position_of(rank)].value; }
  void sync(int) override { pass_on(); }

 private:
  struct Member {
    Fiber fiber;
    float value = 0;
    bool ended = false;
  };

  static void run_member() {
    Turns& turns = *running_;
    const size_t own = turns.at_;
    const Team team(turns.rank_of(own), &turns);
    for (int64_t i = 0; i < turns.n_; ++i) {
      turns.body_(team, turns.launch_.backwards ? turns.n_ - 1 - i : i);
    }
    turns.members_[own].ended = true;
    turns.pass_on();
  }

  // Members take turns in the order of their positions.
  size_t position_of(int rank) const {
    const auto position = static_cast<size_t>(rank);
    return launch_.backwards ? members_.size() - 1 - position : position;
  }
  int rank_of(size_t position) const {
    return static_cast<int>(launch_.backwards ? members_.size() - 1 - position : position);
  }

  // Runs the next member that has not ended; the caller, if all have.
  void pass_on() {
    Fiber& from = members_[at_].fiber;
    for (size_t step = 1; step <= members_.size(); ++step) {
      const size_t next = (at_ + step) % members_.size();
      if (members_[next].ended) continue;
      if (next == at_) return;
      at_ = next;
      switch_to(from, members_[next].fiber);
      return;
    }
    switch_to(from, caller_);
  }

  static thread_local Turns* running_;  // by this thread, for members that begin
  const HostLaunch launch_;
  const int64_t n_;
  const Body& body_;
  std::deque<Member> members_;  // by position
  Fiber caller_;
  size_t at_ = 0;  // the position of the member that runs
};

thread_local Turns* Turns::running_ = nullptr;

}  // namespace

HostLaunch& host_launch() {
  static HostLaunch launch;
  return launch;
}

void run_team(const HostLaunch& launch, int64_t n,
              const std::function<void(const Team&, int64_t)>& body) {
  if (launch.team_threads > 1) return Turns(launch, n, body).run();
  for (int64_t i = 0; i < n; ++i) body(Team(), launch.backwards ? n - 1 - i : i);
}

}  // namespace longspan::cuda
