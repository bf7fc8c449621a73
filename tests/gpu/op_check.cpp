#include "tests/gpu/op_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bfloat16.h"
#include "base/units.h"
#include "engine/cpu/backend.h"
#include "engine/runtime/dispatch.h"

namespace longspan::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kAlignment = 256;
constexpr int kOutput = operand_index(OpKind::attention_forward, "o");
constexpr int kOutputSum = operand_index(OpKind::attention_forward, "o_sum");
constexpr int kMaster = operand_index(OpKind::adamw, "params");
constexpr int kNarrowed = operand_index(OpKind::adamw, "narrowed");

bool is_double(Tensor t) {
  return t == Tensor::loss || t == Tensor::grad_norm || t == Tensor::expert_load;
}
bool is_integer(Tensor t) { return t == Tensor::tokens || t == Tensor::tokens_all; }

// Whether the contents of an operand are undefined after the op.
bool is_used_up(const Op& op, int operand) {
  const auto is_any = [&](int dq, int dk, int dv) {
    return operand == dq || operand == dk || operand == dv;
  };
  return (op.kind == OpKind::qkv_backward && is_any(operand_index(OpKind::qkv_backward, "dq"),
                                                    operand_index(OpKind::qkv_backward, "dk"),
                                                    operand_index(OpKind::qkv_backward, "dv"))) ||
         (op.kind == OpKind::qkv_backward_input &&
          is_any(operand_index(OpKind::qkv_backward_input, "dq"),
                 operand_index(OpKind::qkv_backward_input, "dk"),
                 operand_index(OpKind::qkv_backward_input, "dv"))) ||
         (op.kind == OpKind::mlp_backward &&
          operand == operand_index(OpKind::mlp_backward, "inner"));
}

// A buffer among the operands of an op.
struct Used {
  BufferId id = -1;
  bool reads = false, writes = false, compared = false;
  Bytes before;        // its contents on the CPU engine
  Bytes given, after;  // its contents on the backend under test before and after the op
  int64_t offset = 0;  // within the memory it is given in
};

std::vector<Used> buffers_of(const Program& p, const Op& op) {
  std::vector<Used> used;
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    auto at = std::find_if(used.begin(), used.end(), [&](const Used& u) { return u.id == id; });
    if (at == used.end()) {
      at = used.insert(used.end(), Used{});
      at->id = id;
      at->compared = !is_workspace(p.buffers[id].tensor);
    }
    at->reads |= (op.reads >> i & 1) != 0;
    at->writes |= (op.writes >> i & 1) != 0;
    at->compared &= !is_used_up(op, i);
  }
  return used;
}

// The step run by the CPU engine: the op list of the program under test over wider buffers.
class Reference {
 public:
  Reference(const StepCase& step, const Program& tested)
      : tested_(tested), program_(tested), memory_(tested.buffers.size()) {
    program_.dtype = DType::float32;
    program_.bytes = tensor_bytes(tested.model, tested.lengths, tested.strategy, DType::float32, 0);
    for (LayerKind& kind : program_.more_kinds) {
      kind.bytes = tensor_bytes(kind.model, kind.lengths, tested.strategy, DType::float32, 0);
    }
    backend_ = cpu::make_backend(program_, step.threads, nullptr);
    const std::vector<std::vector<float>> weights = case_weights(step);
    for (size_t unit = 0; unit < weights.size(); ++unit) {
      for (const BufferId id : {tested.parameters[unit], tested.kernel_parameters[unit]}) {
        Bytes& values = at(id);
        std::memcpy(values.data(), weights[unit].data(), values.size());
      }
      for (const BufferId id : {tested.adam_m[unit], tested.adam_v[unit]}) {
        if (id >= 0) std::fill(at(id).begin(), at(id).end(), std::byte{0});
      }
    }
  }

  /// NaN where nothing was written yet.
  Bytes& at(BufferId id) {
    Bytes& values = memory_[id];
    if (values.empty()) values.assign(program_.bytes_of(id), std::byte{0xFF});
    return values;
  }
  bool is_narrow(BufferId id) const {
    return tested_.dtype == DType::bfloat16 && 2 * tested_.bytes_of(id) == program_.bytes_of(id);
  }
  void round(BufferId id) {
    float* values = reinterpret_cast<float*>(at(id).data());
    for (size_t i = 0; i < at(id).size() / 4; ++i) values[i] = widen(narrow(values[i]));
  }
  void release(BufferId id) { memory_[id] = {}; }

  void run(const Op& op, const StepContext& context) {
    OperandPointers pointers{};
    for (int i = 0; i < op.operand_count; ++i) {
      if (op.operands[i] >= 0) pointers[i] = at(op.operands[i]).data();
    }
    if (op.kind == OpKind::io_read || op.kind == OpKind::io_write) {
      const CopyRange range = copy_range(program_, op);
      std::memcpy(pointers[kCopyDestination] + range.to_bytes,
                  pointers[kCopySource] + range.from_bytes, range.bytes);
    } else if (op.kind == OpKind::attention_forward && op.has(kOutputSum)) {
      attend_into_sum(op, pointers, context);
    } else {
      backend_->run(program_, op, pointers, context);
    }
    if (op.kind == OpKind::adamw && op.has(kNarrowed)) {
      at(op.operands[kNarrowed]) = at(op.operands[kMaster]);
    }
  }

 private:
  // In float32 the sum and the output are the same.
  void attend_into_sum(Op op, OperandPointers pointers, const StepContext& context) {
    const BufferId o = op.operands[kOutput], sum = op.operands[kOutputSum];
    op.operands[kOutput] = sum;
    pointers[kOutput] = pointers[kOutputSum];
    backend_->run(program_, op, pointers, context);
    if (o < 0) return;
    const Bytes& from = at(sum);
    std::memcpy(at(o).data() + program_.chunk_offset_bytes(o, op.index), from.data(), from.size());
  }

  const Program& tested_;
  Program program_;
  std::unique_ptr<Backend> backend_;
  std::vector<Bytes> memory_;
};

// The numbers of a buffer in any type.
std::vector<double> numbers(const Bytes& bytes, Tensor tensor, bool is_narrow) {
  const auto read = [&]<class T>(T, auto value) {
    std::vector<double> values(bytes.size() / sizeof(T));
    for (size_t i = 0; i < values.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
      values[i] = value(element);
    }
    return values;
  };
  if (is_integer(tensor)) return read(int32_t{}, [](int32_t x) { return x; });
  if (is_double(tensor)) return read(double{}, [](double x) { return x; });
  if (is_narrow) return read(bfloat16{}, [](bfloat16 x) { return widen(x); });
  return read(float{}, [](float x) { return x; });
}

Bytes narrowed(const Bytes& wide) {
  std::vector<bfloat16> values(wide.size() / 4);
  for (size_t i = 0; i < values.size(); ++i) {
    float value;
    std::memcpy(&value, wide.data() + 4 * i, 4);
    values[i] = narrow(value);
  }
  Bytes bytes(2 * values.size());
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Checker {
 public:
  explicit Checker(const StepCase& step)
      : step_(step),
        program_(build_program(
            {step.model, step.strategy, step.sequence, step.microbatches, step.dtype, 0})),
        reference_(step, program_),
        backend_(step.make_backend(program_, nullptr)) {
    int64_t largest = 0;
    for (const Op& op : program_.ops) {
      int64_t bytes = 0;
      for (const Used& used : buffers_of(program_, op)) bytes += room(used.id);
      largest = std::max(largest, bytes);
    }
    memory_[0] = backend_->allocate(Tier::device, largest);
    memory_[1] = backend_->allocate(Tier::host, largest);
    context_.step = 1;
    context_.learning_rate = 1e-3;
    context_.weight_decay = 0.1;
    context_.clip_norm = 1;
    context_.fill_tokens = [&step](int64_t sequence, int64_t first, int64_t count,
                                   int32_t* tokens) {
      const std::vector<int32_t> all = case_tokens(step, sequence);
      std::copy_n(all.begin() + first, count, tokens);
    };
  }

  OpReport run() {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      check(program_.ops[i]);
      for (const Used& used : buffers_of(program_, program_.ops[i])) {
        const Buffer& buffer = program_.buffers[used.id];
        if (!buffer.persistent && buffer.last_op == static_cast<int32_t>(i)) {
          reference_.release(used.id);
        }
      }
    }
    return std::move(report_);
  }

 private:
  int64_t room(BufferId id) const {
    return round_up(program_.bytes_of(id), kAlignment) + kAlignment;
  }

  void check(const Op& op) {
    std::vector<Used> used = buffers_of(program_, op);
    for (Used& u : used) {
      if (u.reads && reference_.is_narrow(u.id)) reference_.round(u.id);
      u.before = reference_.at(u.id);
    }
    reference_.run(op, context_);
    if (op.stream == Stream::io) return;  // the runtime's own
    for (Used& u : used) u.given = given(u);
    if (is_lost_) return;
    try {
      run_under_test(op, used);
    } catch (const std::exception& error) {
      report_.faults.push_back(fmt::format("{}: threw: {}", describe(program_, op), error.what()));
      empty_queues();
      return;
    }
    for (const Used& u : used) compare(op, u);
    ++report_.ops;
  }

  // After an op that threw. Later ops are checked unless the device does not work any more.
  void empty_queues() {
    try {
      if (DeviceQueues* queues = backend_->queues()) queues->finish();
      for (auto& memory : memory_) memory->poison();
    } catch (const std::exception& error) {
      is_lost_ = true;
      report_.faults.push_back(fmt::format("no later op is checked: {}", error.what()));
    }
  }

  // The CPU engine's input, rounded; NaN where it wrote without reading.
  Bytes given(const Used& u) {
    const Tensor tensor = program_.buffers[u.id].tensor;
    if (is_workspace(tensor)) return Bytes(program_.bytes_of(u.id), std::byte{0xFF});
    const bool is_narrow = reference_.is_narrow(u.id);
    Bytes bytes = is_narrow ? narrowed(u.before) : u.before;
    if (u.reads || !u.writes) return bytes;
    const Bytes& after = reference_.at(u.id);
    const size_t width = is_double(tensor) ? 8 : 4, to_width = is_narrow ? 2 : width;
    for (size_t i = 0; i < after.size() / width; ++i) {
      if (std::memcmp(&after[i * width], &u.before[i * width], width) != 0) {
        std::fill_n(bytes.begin() + i * to_width, to_width, std::byte{0xFF});
      }
    }
    return bytes;
  }

  void run_under_test(const Op& op, std::vector<Used>& used) {
    std::array<int64_t, 2> end{};
    for (auto& memory : memory_) memory->poison();
    OperandPointers pointers{};
    for (Used& u : used) {
      const int tier = tier_of(u);
      if (tier >= 2) continue;
      u.offset = end[tier];
      end[tier] += room(u.id);
      memory_[tier]->write(u.offset, u.given.data(), static_cast<int64_t>(u.given.size()));
      for (int i = 0; i < op.operand_count; ++i) {
        if (op.operands[i] == u.id) pointers[i] = memory_[tier]->data() + u.offset;
      }
    }
    DeviceQueues* queues = backend_->queues();
    const bool queued = queues != nullptr && queues->has(op.stream);
    if (queues != nullptr) {
      std::array<int32_t, kStreamCount> ops{};
      ops[static_cast<int>(op.stream)] = 1;
      queues->begin(ops);
    }
    if (queued) queues->started(op.stream, 0);
    backend_->run(program_, op, pointers, context_);
    if (queued) queues->submitted(op.stream, 0);
    if (queues != nullptr) queues->finish();
    for (Used& u : used) {
      const int tier = tier_of(u);
      if (tier >= 2) continue;
      u.after.resize(room(u.id));  // with the guard behind it
      memory_[tier]->read(u.offset, u.after.data(), room(u.id));
      const auto behind = u.after.begin() + program_.bytes_of(u.id);
      if (std::any_of(behind, u.after.end(), [](std::byte b) { return b != std::byte{0xFF}; })) {
        fault(op, u, "wrote behind the end of it");
      }
      u.after.resize(program_.bytes_of(u.id));
    }
  }

  void compare(const Op& op, const Used& u) {
    if (tier_of(u) >= 2 || !u.compared) return;
    if (!u.writes) {
      if (u.after != u.given) fault(op, u, "was changed, and is only read");
      return;
    }
    const Tensor tensor = program_.buffers[u.id].tensor;
    const bool is_narrow = reference_.is_narrow(u.id);
    const std::vector<double> begun = numbers(u.before, tensor, false),
                              want = numbers(reference_.at(u.id), tensor, false),
                              given = numbers(u.given, tensor, is_narrow),
                              got = numbers(u.after, tensor, is_narrow);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    double difference = 0, norm = 0;
    int64_t unwritten = 0, stray = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      // An op that only writes must leave unwritten what the CPU engine does.
      if (std::isnan(want[i]) || (!u.reads && same(want[i], begun[i]))) {
        stray += !same(got[i], given[i]);
        continue;
      }
      // The log-sum-exp of a query that a window lets see no key of the op.
      if (std::isinf(want[i]) && same(got[i], want[i])) continue;
      unwritten += std::isnan(got[i]);
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    if (unwritten > 0) fault(op, u, fmt::format("left {} of {} unwritten", unwritten, want.size()));
    if (stray > 0) fault(op, u, fmt::format("wrote {} that are not its own", stray));
    const double error = difference == 0 ? 0 : std::sqrt(difference / norm);
    double& worst = report_.worst[std::string(name_of(op.kind))];
    if (!(error <= worst)) worst = error;
    const double allowed = op_tolerance(program_.dtype, op.kind);
    if (!(error <= allowed)) {
      fault(op, u, fmt::format("is off by {:.2e}, allowed are {:.1e}", error, allowed));
    }
  }

  int tier_of(const Used& u) const { return static_cast<int>(program_.buffers[u.id].tier); }
  void fault(const Op& op, const Used& u, const std::string& what) {
    report_.faults.push_back(fmt::format("{}: {} {}", describe(program_, op),
                                         name_of(program_.buffers[u.id].tensor), what));
  }

  const StepCase& step_;
  Program program_;
  Reference reference_;
  std::unique_ptr<Backend> backend_;
  std::array<std::unique_ptr<Arena>, 2> memory_;  // device, host
  StepContext context_;
  OpReport report_;
  bool is_lost_ = false;  // the device works no more
};

}  // namespace

OpReport check_ops(const StepCase& step) { return Checker(step).run(); }

double op_tolerance(DType dtype, OpKind kind) {
  if (dtype == DType::float32) return 1e-5;
  const bool of_mlp = kind == OpKind::mlp_backward || kind == OpKind::mlp_backward_input;
  const int roundings = of_mlp ? 8 : kind == OpKind::mlp_forward ? 6 : 5;
  return 1.25 * 1.7e-3 * std::sqrt(roundings);
}

}  // namespace longspan::testing
