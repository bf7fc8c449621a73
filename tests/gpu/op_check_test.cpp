// The check of single ops can fail: faults of a backend, made on purpose.
#include "tests/gpu/op_check.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/error.h"
#include "engine/cuda/backend.h"
#include "tests/engine/forwarding_backend.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

enum class Harm {
  none,
  leaves_out,     // does not run the op
  runs_twice,     // adds to a gradient twice
  rounds,         // loses the lower half of a float's bits
  writes_inputs,  // writes to operands that the op only reads
  writes_behind,  // writes one element beyond the end of an output
  throws,         // instead of running the op
};

// The backend under test with a fault in ops of one kind. Host memory only.
class HarmfulBackend final : public ForwardingBackend {
 public:
  HarmfulBackend(std::unique_ptr<Backend> backend, OpKind kind, Harm harm)
      : ForwardingBackend(std::move(backend)), kind_(kind), harm_(harm) {}

  void run(const Program& program, const Op& op, const OperandPointers& operands,
           const StepContext& context) override {
    if (op.kind != kind_) return ForwardingBackend::run(program, op, operands, context);
    if (harm_ == Harm::leaves_out) return;
    if (harm_ == Harm::throws) throw failed("the library has no plan");
    ForwardingBackend::run(program, op, operands, context);
    if (harm_ == Harm::runs_twice) ForwardingBackend::run(program, op, operands, context);
    if (harm_ < Harm::rounds) return;
    if (queues()->has(op.stream)) wait(op);
    for (int i = 0; i < op.operand_count; ++i) {
      if (op.operands[i] < 0) continue;
      const bool writes = (op.writes >> i & 1) != 0;
      const int64_t bytes = program.bytes_of(op.operands[i]);
      if (harm_ == Harm::writes_inputs && !writes) *operands[i] ^= std::byte{1};
      if (harm_ == Harm::writes_behind && writes) operands[i][bytes] = std::byte{0};
      if (harm_ == Harm::rounds && writes) {
        for (int64_t at = 0; at < bytes; at += 4) {
          operands[i][at] = operands[i][at + 1] = std::byte{0};
        }
      }
    }
  }

 private:
  // Waits until the queue has done its work.
  void wait(const Op& op) {
    queues()->submitted(op.stream, 0);
    queues()->synchronize(op.stream, 0);
  }

  OpKind kind_;
  Harm harm_;
};

OpReport report_of(cuda::Device& device, OpKind kind, Harm harm) {
  StepCase step;
  step.model = small_llama();
  step.sequence = 32;
  step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
  step.make_backend = [&](const Program& program, Communicator*) {
    return std::make_unique<HarmfulBackend>(cuda::make_backend(program, device, 2), kind, harm);
  };
  return check_ops(step);
}

bool mentions(const std::vector<std::string>& faults, const std::string& text) {
  return std::any_of(faults.begin(), faults.end(),
                     [&](const std::string& fault) { return fault.find(text) != fault.npos; });
}

}  // namespace

TEST_CASE("a backend that does nothing wrong passes the check of ops", "[ops]") {
  const auto device = open_under_test();
  const OpReport report = report_of(*device, OpKind::qkv_forward, Harm::none);
  CHECK(report.faults.empty());
  CHECK(report.ops > 50);
  CHECK(report.worst.at("attention_backward") > 0);
}

TEST_CASE("outputs that are left unwritten are found", "[ops]") {
  const auto device = open_under_test();
  for (const OpKind kind : {OpKind::embed_forward, OpKind::qkv_forward, OpKind::attention_forward,
                            OpKind::out_forward, OpKind::out_backward, OpKind::zero}) {
    INFO(name_of(kind));
    CHECK(mentions(report_of(*device, kind, Harm::leaves_out).faults, "unwritten"));
  }
}

TEST_CASE("an op that throws is named, and the others are checked", "[ops]") {
  const auto device = open_under_test();
  const OpReport report = report_of(*device, OpKind::attention_backward, Harm::throws);
  CHECK(mentions(report.faults, "attention_backward"));
  CHECK(mentions(report.faults, "threw: the library has no plan"));
  CHECK_FALSE(mentions(report.faults, "no later op is checked"));
  CHECK(report.worst.contains("adamw"));
  CHECK_FALSE(report.worst.contains("attention_backward"));
}

TEST_CASE("sums that miss a part or have it twice are found", "[ops]") {
  const auto device = open_under_test();
  for (const OpKind kind : {OpKind::embed_backward, OpKind::loss, OpKind::mlp_backward,
                            OpKind::sum_of_squares, OpKind::qkv_backward, OpKind::adamw}) {
    for (const Harm harm : {Harm::leaves_out, Harm::runs_twice}) {
      INFO(name_of(kind));
      CHECK(mentions(report_of(*device, kind, harm).faults, "is off by"));
    }
  }
}

TEST_CASE("lost precision and stray writes are found", "[ops]") {
  const auto device = open_under_test();
  for (const OpKind kind : {OpKind::qkv_forward, OpKind::mlp_forward, OpKind::attention_backward}) {
    INFO(name_of(kind));
    CHECK(mentions(report_of(*device, kind, Harm::rounds).faults, "is off by"));
    CHECK(mentions(report_of(*device, kind, Harm::writes_inputs).faults, "only read"));
    CHECK(mentions(report_of(*device, kind, Harm::writes_behind).faults, "behind the end"));
  }
}

}  // namespace longspan::testing
