// A backend that forwards every call to another one. The base class of backends that tests use to
// inject failures and faults.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/runtime/backend.h"

namespace longspan::testing {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  std::string name() const override { return backend_->name(); }
  std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes) override {
    return backend_->allocate(tier, bytes);
  }
  void run(const Program& program, const Op& op, const OperandPointers& operands,
           const StepContext& context) override {
    backend_->run(program, op, operands, context);
  }
  void abandon(const std::string& reason) noexcept override { backend_->abandon(reason); }
  bool cancel() noexcept override { return backend_->cancel(); }
  int64_t sent_bytes() const override { return backend_->sent_bytes(); }
  DeviceQueues* queues() override { return backend_->queues(); }

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace longspan::testing
