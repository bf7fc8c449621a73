#include "engine/cuda/mark.h"

#include "engine/cuda/cuda_error.h"
#include "engine/cuda/handle.h"

namespace longspan::cuda {

struct Mark::Event {
  Handle<cudaEvent_t, cudaEventDestroy> handle;
};

Mark::Mark() : event_(std::make_unique<Event>()) {
  check(cudaEventCreateWithFlags(event_->handle.out(), cudaEventDisableTiming), "event");
}
Mark::~Mark() = default;

void Mark::set(const Queue& queue) {
  check(cudaEventRecord(event_->handle.get(), static_cast<cudaStream_t>(queue.stream)), "event");
}

void Mark::make_wait(const Queue& queue) const {
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(queue.stream), event_->handle.get(), 0),
        "wait");
}

}  // namespace longspan::cuda
