#include "engine/cuda/event.h"

#include "engine/cuda/cuda_error.h"
#include "engine/cuda/handle.h"

namespace longspan::cuda {

struct Event::State {
  Handle<cudaEvent_t, cudaEventDestroy> handle;
};

Event::Event() : state_(std::make_unique<State>()) {
  check(cudaEventCreateWithFlags(state_->handle.out(), cudaEventDisableTiming), "event");
}
Event::~Event() = default;

void Event::record(const Queue& queue) {
  check(cudaEventRecord(state_->handle.get(), static_cast<cudaStream_t>(queue.stream)), "event");
}

void Event::wait_on(const Queue& queue) const {
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(queue.stream), state_->handle.get(), 0),
        "wait");
}

}  // namespace longspan::cuda
