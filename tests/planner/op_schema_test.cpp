// Programs follow the table of ops for any strategy; the table allows no more than programs do; and
// an op that contradicts its row is detected.
#include "planner/program/op_schema.h"
#include "models/adapters.h"
#include "models/training.h"

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "models/adapters.h"
#include "planner/pipeline/rank_program.h"
#include "planner/program/op_table.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/product_format.h"
#include "tests/planner/random_plan.h"
#include "tests/planner/random_strategy.h"

namespace longspan::testing {
namespace {

// What a split backward does not combine with.
void suit_split_backward(StepRequest& request) {
  request.strategy.head_groups = 1;
  request.model.norm_placement = NormPlacement::input;
  whole(request.model);
}

// One of the three stages of a pipeline that otherwise follows `request`.
Program stage_program(StepRequest request, size_t stage, std::string_view schedule) {
  if (schedule == "zb-h1") suit_split_backward(request);
  pass_back(request);
  request.model.layers = 4;
  request.microbatches = 4;
  request.strategy.parallel.pipeline.stages = 3;
  ScheduleRequest wanted;
  wanted.ranks = 3;
  wanted.microbatches = 4;
  const Schedule made = make_schedule(schedule_family(schedule), wanted);
  const RankProgram own = rank_programs(request, made)[stage];
  return build_program(own.request, own.rank);
}

// A step of one rank of a machine, reduced to two layers.
StepRequest ranks_request(uint64_t seed) {
  const bool experts = seed % 5 == 0;
  StepRequest request = (experts ? random_plan_with_experts(seed) : random_plan(seed)).request;
  request.model.layers = 2;
  request.rank = static_cast<int64_t>(seed) % request.strategy.parallel.ranks();
  request.strategy.parallel.overlap = seed % 4 != 0;
  if (seed % 3 == 0) request.dtype = DType::float32;
  const ModelSpec& model = request.model;
  const ParallelLayout& parallel = request.strategy.parallel;
  const bool takes_adapters =
      model.gated() && !model.latent && parallel.tensor == 1 && parallel.expert == 1;
  if (seed % 4 < 2 && takes_adapters) {
    const char* projections = model.experts ? "q_proj,v_proj" : "all";
    request.model = with_adapters(model, {8, 16, parse_projections(projections)});
  }
  return request;
}

// A small step of one of two ranks that share every layer's heads and MLP.
StepRequest shared_request(uint64_t seed) {
  StepRequest request = random_request(seed);
  request.model.heads *= 2;
  request.model.kv_heads *= 2;
  request.model.qk_norm_of_token = false;
  if (request.model.adapters) whole(request.model);
  request.strategy.parallel.tensor = 2;
  request.strategy.head_groups = 1;
  request.strategy.block_tokens = request.sequence;
  return request;
}

// A small step of one of several ranks that have a layer's experts together.
StepRequest spread_request(uint64_t seed) {
  StepRequest request = seed % 3 == 0 ? shared_request(seed) : random_request(seed);
  ModelSpec& m = request.model;
  m = wholly_trained(m);
  m.activation = Activation::swiglu;
  m.norm_placement = NormPlacement::input;
  m.mlp_bias = false;
  Strategy& s = request.strategy;
  const int64_t width = casts_operands(s) ? 2 * format_row(s.products).multiple : 16;
  m.experts = Experts{.count = 8, .active = 3, .ffn = width};
  if (seed % 2 == 0) m.experts->shared_ffn = width;
  s.parallel.data = 2 + static_cast<int64_t>(seed % 2) * 2;
  s.parallel.expert = 2;
  s.parallel.zero = s.parameters == Tier::device ? static_cast<int64_t>(seed / 2 % 4) : 3;
  s.parallel.overlap = seed % 5 != 0;
  s.mlp_inner = {Saved::recompute};
  return request;
}

// A rank of a pipeline of four whose ranks share attention.
Program sharing_program(uint64_t seed, int64_t rank) {
  StepRequest request;
  ModelSpec& m = request.model;
  m = random_request(1).model;
  m.layers = 4;
  m.heads = m.kv_heads = 4;
  m.window = 0;
  m.attention_sinks = seed % 5 == 0;
  request.sequence = 128;
  request.microbatches = 2;
  request.dtype = seed % 2 == 0 ? DType::float32 : DType::bfloat16;
  Strategy& s = request.strategy;
  s.chunk_tokens = 8;
  s.block_tokens = 16;
  s.parallel.ulysses = seed / 2 % 2 == 0 ? 1 : 2;
  s.parallel.overlap = seed % 3 > 0;
  s.parallel.pipeline = {4, "slimpipe", 1, 8};
  ScheduleRequest wanted;
  wanted.ranks = 4;
  wanted.slices = 8;
  wanted.microbatches = 2;
  const Schedule made = make_schedule(schedule_family("slimpipe"), wanted);
  return program_of_rank(request, made, rank * s.parallel.ulysses);
}

// One of three stages, of which the second works on half of the tokens.
Program stage_of_runs(StepRequest request, size_t stage, std::string_view schedule) {
  request = in_runs(request);
  if (schedule != "1f1b") suit_split_backward(request);
  request.microbatches = 4;
  request.strategy.parallel.pipeline.stages = 3;
  ScheduleRequest wanted;
  wanted.ranks = 3;
  wanted.microbatches = 4;
  const RankProgram own =
      rank_programs(request, make_schedule(schedule_family(schedule), wanted))[stage];
  return build_program(own.request, own.rank);
}

// Small steps of one rank and of two, large ones of several ranks, and stages of pipelines of both.
void for_programs(const std::function<void(const Program&)>& look) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const StepRequest small = random_request(seed), large = ranks_request(seed);
    look(build_program(balanced(small)));
    look(build_program(balanced(large)));
    look(build_program(in_runs(small)));
    if (seed <= 60) {
      look(build_program(in_windows(small, seed)));
      look(build_program(in_documents(small, seed)));
      look(build_program(sliced_request(seed)));
      look(build_program(forward_request(seed)));
      look(build_program(with_latent_attention(small, seed)));
    }
    look(stage_of_runs(small, seed % 3, "1f1b"));
    look(stage_of_runs(small, seed % 3, "zb-h1"));
    look(build_program(shared_request(seed)));
    look(build_program(balanced(spread_request(seed))));
    look(stage_program(spread_request(seed), seed % 3, seed % 2 == 0 ? "1f1b" : "zb-h1"));
    look(stage_program(small, seed % 3, "1f1b"));
    look(stage_program(large, seed % 3, "1f1b"));
    look(stage_program(small, seed % 3, "zb-h1"));
    look(stage_program(large, seed % 3, "zb-h1"));
    look(stage_program(shared_request(seed), seed % 3, "zb-h1"));
    for (const std::string_view schedule : {"1f1b-vocab-1", "1f1b-vocab-2"}) {
      look(stage_program(small, seed % 3, schedule));
      look(stage_program(large, seed / 2 % 3, schedule));
    }
  }
  for (uint64_t seed = 0; seed < 12; ++seed) {
    for (int64_t rank = 0; rank < 4; ++rank) look(sharing_program(seed, rank));
  }
}

bool is_named(const std::string& violation, std::string_view what) {
  return violation.find(what) != std::string::npos;
}

// The uses of the operands of a name that programs have shown.
struct Seen {
  Access access = 0;
  TensorSet tensors;
  bool absent = false;
  int most = 0;
};

class Usage {
 public:
  void look(const Op& op, const Program& program) {
    kinds_.insert(op.kind);
    streams_[op.kind].insert(op.stream);
    int i = 0;
    for (const OperandRow& row : schema_of(op.kind).operands) {
      Seen& seen = seen_[{op.kind, std::string(row.name)}];
      int present = 0;
      for (int nth = 0; nth < row.at_most; ++nth, ++i) {
        if (!op.has(i)) continue;
        ++present;
        const bool reads = (op.reads >> i & 1) != 0, writes = (op.writes >> i & 1) != 0;
        seen.access |= reads && writes ? kUpdate : writes ? kWrite : kRead;
        seen.tensors = seen.tensors | program.buffers[op.operands[i]].tensor;
      }
      seen.absent |= present == 0;
      seen.most = std::max(seen.most, present);
    }
  }
  bool uses(OpKind kind) const { return kinds_.count(kind) > 0; }
  bool runs_on(OpKind kind, Stream stream) const { return streams_.at(kind).count(stream) > 0; }
  const Seen& of(OpKind kind, std::string_view name) const {
    return seen_.at({kind, std::string(name)});
  }

 private:
  std::set<OpKind> kinds_;
  std::map<OpKind, std::set<Stream>> streams_;
  std::map<std::pair<OpKind, std::string>, Seen> seen_;
};

const OperandRow& row_of(OpKind kind, int operand) {
  int i = 0;
  for (const OperandRow& row : schema_of(kind).operands) {
    if (operand < (i += row.at_most)) return row;
  }
  throw std::out_of_range("no such operand");
}

}  // namespace

TEST_CASE("every op of a program follows its row, and every row is used as it says") {
  Usage usage;
  for_programs([&](const Program& program) {
    for (const Op& op : program.ops) {
      const std::string violation = schema_violation(program, op);
      if (!violation.empty()) FAIL(program.strategy.preset << ": " << violation);
      usage.look(op, program);
    }
  });
  for (int k = 0; k < kOpKindCount; ++k) {
    const auto kind = static_cast<OpKind>(k);
    INFO(name_of(kind));
    REQUIRE(usage.uses(kind));
    for (int s = 0; s < kStreamCount; ++s) {
      const auto stream = static_cast<Stream>(s);
      CHECK(usage.runs_on(kind, stream) == schema_of(kind).streams.contains(stream));
    }
    for (const OperandRow& row : schema_of(kind).operands) {
      if (row.name.empty()) break;
      const Seen& seen = usage.of(kind, row.name);
      INFO(row.name);
      CHECK(seen.access == row.access);
      CHECK(seen.absent == (row.presence == Presence::optional));
      CHECK(seen.most == row.at_most);
      if (is_copy(kind)) continue;  // of any tensor
      for (int t = 0; t < kTensorCount; ++t) {
        const auto tensor = static_cast<Tensor>(t);
        INFO(name_of(tensor) << " (" << t << ")");
        CHECK(seen.tensors.contains(tensor) == row.tensors.contains(tensor));
      }
    }
  }
}

TEST_CASE("an op that contradicts its row is found, and what is wrong is named") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Program program = seed < 7
                          ? build_program(random_request(seed))
                          : stage_program(ranks_request(seed), 0, seed < 10 ? "1f1b" : "zb-h1");
    std::set<OpKind> met;
    for (size_t n = 0; n < program.ops.size(); ++n) {
      const Op op = program.ops[n];
      if (!met.insert(op.kind).second) continue;
      INFO(describe(program, op));
      const OpRow& row = schema_of(op.kind);
      REQUIRE(schema_violation(program, op).empty());

      for (int s = 0; s < kStreamCount; ++s) {
        Op elsewhere = op;
        elsewhere.stream = static_cast<Stream>(s);
        if (row.streams.contains(elsewhere.stream)) continue;
        CHECK(is_named(schema_violation(program, elsewhere), "stream"));
      }
      Op longer = op;
      while (longer.operand_count < kMaxOperands) {
        longer.operands[longer.operand_count++] = op.operands[0];
      }
      if (op.operand_count < kMaxOperands) CHECK(!schema_violation(program, longer).empty());

      for (int i = 0; i < op.operand_count; ++i) {
        if (!op.has(i)) continue;
        const OperandRow& operand = row_of(op.kind, i);
        INFO(operand.name);
        for (const Access access : {kRead, kWrite, kUpdate}) {
          Op other = op;
          const auto bit = static_cast<uint16_t>(1 << i);
          other.reads = access == kWrite ? op.reads & ~bit : op.reads | bit;
          other.writes = access == kRead ? op.writes & ~bit : op.writes | bit;
          const std::string violation = schema_violation(program, other);
          // A copy's tiers follow from which operand it writes.
          CHECK(violation.empty() == ((operand.access & access) != 0));
          if (!violation.empty()) CHECK(is_named(violation, operand.name));
        }
        Op without = op;
        without.operands[i] = -1;
        const bool needed = operand.presence == Presence::required &&
                            (i == 0 || &row_of(op.kind, i - 1) != &operand);
        CHECK(schema_violation(program, without).empty() == !needed);

        const Buffer buffer = program.buffers[op.operands[i]];
        for (int t = 0; t < kTensorCount; ++t) {
          Buffer& wrong = program.buffers[op.operands[i]];
          wrong.tensor = static_cast<Tensor>(t);
          if (operand.tensors.contains(wrong.tensor)) continue;
          const std::string violation = schema_violation(program, op);
          CHECK(is_named(violation, "cannot be a"));
        }
        program.buffers[op.operands[i]] = buffer;
        for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
          program.buffers[op.operands[i]].tier = tier;
          CHECK(schema_violation(program, op).empty() == (tier == buffer.tier));
        }
        program.buffers[op.operands[i]] = buffer;
      }
    }
    CHECK(met.size() > 10);
  }
}

TEST_CASE("operands are found by name where they stand") {
  static_assert(operand_index(OpKind::norm_forward, "params") == 0);
  static_assert(operand_index(OpKind::norm_forward, "h") == 2);
  static_assert(operand_index(OpKind::all_to_all, "destination") == kExchanged);
  static_assert(operand_index(OpKind::all_to_all, "workspace") == 2 * kExchanged);
  for (int k = 0; k < kOpKindCount; ++k) {
    const auto kind = static_cast<OpKind>(k);
    INFO(name_of(kind));
    int operands = 0;
    std::set<std::string_view> names;
    bool ended = false;
    for (const OperandRow& row : schema_of(kind).operands) {
      CHECK((row.name.empty() || !ended));  // no gaps
      ended |= row.name.empty();
      if (ended) continue;
      CHECK(names.insert(row.name).second);
      operands += row.at_most;
    }
    CHECK(operands >= 1);
    CHECK(operands <= kMaxOperands);
  }
}

TEST_CASE("kinds of ops and of tensors are what their names say") {
  const std::set<std::string_view> exchanges = {
      "all_to_all", "ring_shift", "all_gather", "reduce_scatter", "all_reduce", "sum_replicated",
      "send",       "sent",       "receive",    "dispatch",       "collect"};
  const auto begins = [](std::string_view name, std::string_view with) {
    return name.substr(0, with.size()) == with;
  };
  for (int k = 0; k < kOpKindCount; ++k) {
    const auto kind = static_cast<OpKind>(k);
    const std::string_view name = name_of(kind);
    INFO(name);
    CHECK(is_exchange(kind) == (exchanges.count(name) == 1));
    CHECK(is_copy(kind) == (begins(name, "copy_") || begins(name, "io_")));
    CHECK(is_attention(kind) == begins(name, "attention_"));
    CHECK(is_product(kind) == (begins(name, "qkv_") || begins(name, "out_") ||
                               begins(name, "mlp_") || name == "loss" || begins(name, "experts_") ||
                               begins(name, "shared_") || name == "route" ||
                               name == "combine_backward" || name == "vocabulary_forward" ||
                               name == "vocabulary_backward"));
  }
  for (int t = 0; t < kTensorCount; ++t) {
    const auto tensor = static_cast<Tensor>(t);
    const std::string_view name = name_of(tensor);
    INFO(name << " (" << t << ")");
    CHECK(is_parameters(tensor) == begins(name, "params "));
    CHECK(is_gradients(tensor) == begins(name, "grads "));
    CHECK(is_state(tensor) == (begins(name, "params ") || begins(name, "grads ") ||
                               begins(name, "master ") || begins(name, "adam_") ||
                               begins(name, "nf4 ")));
    CHECK(is_nf4(tensor) == begins(name, "nf4 "));
    CHECK(is_workspace(tensor) == (name.find("workspace") != std::string_view::npos));
    if (is_shard(tensor)) CHECK((is_parameters(tensor) || is_gradients(tensor)));
  }
  CHECK(unit_tensor(Tensor::grads_embedding_shard, UnitKind::head) == Tensor::grads_head_shard);
  CHECK(unit_tensor(Tensor::adam_v_embedding, UnitKind::layer) == Tensor::adam_v_layer);
}

}  // namespace longspan::testing
