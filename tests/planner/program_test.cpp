// A program is legal whatever the strategy: every buffer is written before it is read, nothing is
// touched outside its lifetime, buffers that live together do not overlap, and the edges suffice.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "models/catalog.h"
#include "models/tensor_slices.h"
#include "models/training.h"
#include "planner/program/attention_workspace.h"
#include "planner/program/layout.h"
#include "planner/program/op_table.h"
#include "planner/program/workspace.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/product_format.h"
#include "tests/planner/random_strategy.h"

namespace longspan::testing {
namespace {

constexpr int kOutput = operand_index(OpKind::attention_forward, "o");
constexpr int kOutputSum = operand_index(OpKind::attention_forward, "o_sum");

void check_lifetimes(const Program& program) {
  std::vector<bool> written(program.buffers.size());
  for (const Buffer& b : program.buffers) {
    // Parameters and optimizer state have a value when the step begins.
    written[&b - program.buffers.data()] = b.persistent;
    REQUIRE(b.first_op >= 0);
    REQUIRE(b.last_op >= b.first_op);
  }
  for (size_t position = 0; position < program.ops.size(); ++position) {
    const Op& op = program.ops[position];
    for (int i = 0; i < op.operand_count; ++i) {
      const BufferId id = op.operands[i];
      if (id < 0) continue;
      const Buffer& b = program.buffers[id];
      if (op.reads >> i & 1 && !written[id])
        FAIL(describe(program, op) << " reads before any write");
      if (static_cast<int32_t>(position) < b.first_op ||
          static_cast<int32_t>(position) > b.last_op) {
        FAIL(describe(program, op) << " touches a buffer outside its lifetime");
      }
      if (op.writes >> i & 1) written[id] = true;
    }
  }
}

// No two buffers of a tier that live at the same op share a byte, and all end inside the arena.
void check_placement(const Program& program, const Layout& layout) {
  std::array<std::set<std::pair<int64_t, int64_t>>, kTierCount> live;  // (offset, end)
  std::vector<std::vector<BufferId>> begins(program.ops.size()), ends(program.ops.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (program.bytes_of(static_cast<BufferId>(i)) == 0) continue;
    begins[program.buffers[i].first_op].push_back(static_cast<BufferId>(i));
    ends[program.buffers[i].last_op].push_back(static_cast<BufferId>(i));
  }
  const auto range = [&](BufferId id) {
    return std::pair{layout.offsets[id], layout.offsets[id] + program.bytes_of(id)};
  };
  for (size_t position = 0; position < program.ops.size(); ++position) {
    for (const BufferId id : begins[position]) {
      const int tier = static_cast<int>(program.buffers[id].tier);
      const auto [begin, end] = range(id);
      REQUIRE(begin % kArenaAlignment == 0);
      REQUIRE(end <= layout.arena_bytes[tier]);
      const auto next = live[tier].lower_bound({begin, 0});
      if (next != live[tier].end()) REQUIRE(end <= next->first);
      if (next != live[tier].begin()) REQUIRE(std::prev(next)->second <= begin);
      live[tier].insert({begin, end});
    }
    for (const BufferId id : ends[position]) {
      live[static_cast<int>(program.buffers[id].tier)].erase(range(id));
    }
  }
}

// Ops that are surely done when each op starts: earlier ones of its stream, and those waited for by
// it or by them. Every pair of ops that touch the same bytes, one of them writing, must be so
// ordered.
void check_edges(const Program& program, const Layout& layout) {
  std::vector<Waits> done_before(program.ops.size());  // per stream, highest ordinal known done
  std::vector<int32_t> ordinal(program.ops.size());
  std::vector<Waits> waits(program.ops.size());
  for (const auto& queue : layout.streams) {
    for (size_t i = 0; i < queue.size(); ++i) {
      ordinal[queue[i].op] = static_cast<int32_t>(i);
      waits[queue[i].op] = queue[i].waits;
    }
  }
  struct Access {
    int32_t op;
    bool writes;
    int64_t begin, end;
  };
  std::array<std::vector<Access>, kTierCount> history;
  for (size_t position = 0; position < program.ops.size(); ++position) {
    const Op& op = program.ops[position];
    const int own = static_cast<int>(op.stream);
    Waits known;
    known.fill(-1);
    const auto learn = [&](int stream, int32_t reached) {
      if (reached < 0) return;
      const Waits& theirs = done_before[layout.streams[stream][reached].op];
      for (int s = 0; s < kStreamCount; ++s) known[s] = std::max(known[s], theirs[s]);
      known[stream] = std::max(known[stream], reached);
    };
    learn(own, ordinal[position] - 1);
    for (int s = 0; s < kStreamCount; ++s) learn(s, waits[position][s]);
    done_before[position] = known;
    for (int i = 0; i < op.operand_count; ++i) {
      const BufferId id = op.operands[i];
      if (id < 0 || program.bytes_of(id) == 0) continue;
      const bool writes = op.writes >> i & 1;
      const int tier = static_cast<int>(program.buffers[id].tier);
      const int64_t begin = layout.offsets[id], end = begin + program.bytes_of(id);
      for (const Access& before : history[tier]) {
        if (before.op == static_cast<int32_t>(position)) continue;
        if (!(writes || before.writes) || before.end <= begin || end <= before.begin) continue;
        const Op& other = program.ops[before.op];
        if (known[static_cast<int>(other.stream)] < ordinal[before.op]) {
          FAIL(describe(program, op)
               << " may run before " << describe(program, other) << " is done");
        }
      }
      history[tier].push_back({static_cast<int32_t>(position), writes, begin, end});
    }
  }
}

}  // namespace

TEST_CASE("random strategies lower to legal programs", "[property]") {
  for (uint64_t seed = 1; seed <= 330; ++seed) {
    INFO("seed " << seed);
    StepRequest request = seed > 250   ? forward_request(seed)
                          : seed > 200 ? sliced_request(seed)
                                       : random_request(seed);
    if (seed % 5 == 0 && request.strategy.layer_input.where != Saved::recompute) {
      request = in_windows(request, seed);
    }
    if (seed % 5 == 1) request = in_documents(request, seed);
    if (seed % 7 == 0) request = with_latent_attention(request, seed);
    if (seed % 11 == 0 && request.strategy.layer_input.where != Saved::recompute) {
      request = in_spans(request, seed);
    }
    if (seed % 2 == 0) request = balanced(request);
    const Program program = build_program(request);
    const Layout layout = lay_out(program);
    check_lifetimes(program);
    check_placement(program, layout);
    if (program.ops.size() < 1500) check_edges(program, layout);
    for (int tier = 0; tier < kTierCount; ++tier) {
      CHECK(layout.live_bytes[tier] <= layout.arena_bytes[tier]);
    }
  }
}

TEST_CASE("random strategies lower to legal programs for every rank of a tensor group",
          "[property]") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    StepRequest request = random_request(seed);
    request.model = wholly_trained(request.model);
    const int64_t tensor = 2 << seed % 2, data = 1 + seed % 3;
    request.model.heads *= tensor;
    request.model.kv_heads *= tensor;
    request.model.qk_norm_of_token = false;
    Strategy& s = request.strategy;
    s.head_groups = 1;
    s.block_tokens = request.sequence;
    s.parallel = {.data = data, .zero = static_cast<int64_t>(seed % 4), .tensor = tensor};
    s.parallel.overlap = seed % 5 != 0;
    if (s.parallel.shards() > 1 && s.parallel.zero < 3) s.parameters = Tier::device;
    if (odd_width(s, request.model)) s.products = ProductFormat::dtype;
    const Program first = build_program(request);
    const Layout layout = lay_out(first);
    check_lifetimes(first);
    check_placement(first, layout);
    if (first.ops.size() < 1500) check_edges(first, layout);

    // All ranks run the same list: an exchange finds its peers at the same place.
    request.rank = s.parallel.ranks() - 1;
    const Program last = build_program(request);
    REQUIRE(last.ops.size() == first.ops.size());
    for (size_t i = 0; i < first.ops.size(); ++i) {
      REQUIRE(last.ops[i].kind == first.ops[i].kind);
      REQUIRE(last.ops[i].operands == first.ops[i].operands);
    }
  }
}

TEST_CASE("a tensor group's layers and residuals are shared, embedding and head are not") {
  StepRequest request = random_request(3);
  request.model.heads = request.model.kv_heads = 8;
  Strategy& s = request.strategy;
  s.block_tokens = s.chunk_tokens = request.sequence;
  const TensorBytes alone = build_program(request).bytes;
  s.parallel.tensor = 4;
  const Program program = build_program(request);
  const TensorBytes& shared = program.bytes;
  for (const Tensor t : {Tensor::x, Tensor::y, Tensor::dx, Tensor::tokens, Tensor::q, Tensor::k_all,
                         Tensor::o, Tensor::inner, Tensor::lse, Tensor::dq}) {
    INFO(name_of(t));
    CHECK(4 * shared[t] == alone[t]);
  }
  for (const Tensor t : {Tensor::h, Tensor::dh, Tensor::params_embedding, Tensor::grads_head}) {
    INFO(name_of(t));
    CHECK(shared[t] == alone[t]);
  }
  CHECK(4 * shared[Tensor::h_own] == alone[Tensor::h]);
  const std::vector<ParameterUnit> units = parameter_units(narrow_model(request.model, 4));
  CHECK(shared[Tensor::params_layer] == 4 * units[1].elements);
}

TEST_CASE("groups of heads lower to legal programs on any number of ranks", "[property]") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    StepRequest request = random_request(seed);
    Strategy& s = request.strategy;
    request.model.qk_norm_of_token = false;
    request.model.heads = 16;
    request.model.kv_heads = int64_t{1} << seed % 5;
    s.chunk_tokens = s.block_tokens = request.sequence;
    const int64_t ulysses = int64_t{1} << seed / 5 % 4;
    s.head_groups = std::min<int64_t>(16 / ulysses, int64_t{2} << seed % 3);
    // Parameters on the host are whole on every rank, or shards to gather.
    const int64_t zero = s.parameters == Tier::host ? 3 * (seed % 2) : seed % 4;
    s.parallel = {1 + static_cast<int64_t>(seed % 2), 1, ulysses, zero, seed % 3 > 0};
    if (odd_width(s, request.model)) s.products = ProductFormat::dtype;
    INFO("seed " << seed << ", " << describe(s.parallel) << ", " << s.head_groups << " groups of "
                 << request.model.kv_heads << " K,V heads");
    const Program program = build_program(request);
    const Layout layout = lay_out(program);
    check_lifetimes(program);
    check_placement(program, layout);
    if (program.ops.size() < 1500) check_edges(program, layout);
  }
}

TEST_CASE("the same request gives the same program and layout") {
  const StepRequest request = random_request(11);
  const Program a = build_program(request), b = build_program(request);
  REQUIRE(a.ops.size() == b.ops.size());
  for (size_t i = 0; i < a.ops.size(); ++i) {
    CHECK(a.ops[i].operands == b.ops[i].operands);
    CHECK(a.ops[i].kind == b.ops[i].kind);
  }
  CHECK(lay_out(a).offsets == lay_out(b).offsets);
}

TEST_CASE("the memory curve peaks at the sum of what lives") {
  const Program program = build_program(random_request(5));
  const auto curve = live_bytes_by_op(program);
  const Layout layout = lay_out(program);
  for (int tier = 0; tier < kTierCount; ++tier) {
    int64_t peak = 0;
    for (const auto& bytes : curve) peak = std::max(peak, bytes[tier]);
    CHECK(peak == layout.live_bytes[tier]);
  }
}

TEST_CASE("with everything chunked and offloaded, device memory does not grow with the sequence") {
  StepRequest request = random_request(1);
  request.model.positions = Positions::rope;
  request.model.norm = Norm::rmsnorm;
  request.microbatches = 1;
  Strategy& s = request.strategy;
  s = {};
  s.chunk_tokens = s.block_tokens = 64;
  s.kv = s.between_uses = Tier::host;
  s.layer_input.where = Saved::host;
  s.qkv.where = s.attention_out.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
  std::array<int64_t, kTierCount> before{};
  for (const int64_t chunks : {8, 16, 32, 64}) {
    request.sequence = chunks * s.chunk_tokens;
    const Layout layout = lay_out(build_program(request));
    if (chunks > 8) {
      CHECK(layout.live_bytes[0] == before[0]);         // device: the chunk, not the sequence
      CHECK(layout.live_bytes[1] > before[1] * 3 / 2);  // host: the sequence
    }
    before = layout.live_bytes;
  }
}

TEST_CASE("device memory falls with the groups of heads, where queries are what is large") {
  StepRequest request = random_request(1);
  ModelSpec& m = request.model;
  m.hidden = m.ffn = m.vocab = 16;
  m.positions = Positions::rope;
  m.norm = Norm::rmsnorm;
  m.heads = 32;
  m.head_dim = 16;
  request.microbatches = 1;
  request.sequence = 4096;
  for (const int64_t kv_heads : {32, 1}) {
    m.kv_heads = kv_heads;
    for (const auto& [ulysses, overlap] : {std::pair{1, true}, {2, true}, {4, true}, {4, false}}) {
      const ParallelLayout parallel{1, 1, ulysses, 0, overlap};
      // Exchanges during compute hold two groups at a time.
      const int64_t at_once = ulysses > 1 && overlap ? 2 : 1;
      int64_t all_heads = 0, before = 0;
      for (int64_t groups = 1; groups <= m.heads / ulysses; groups *= 2) {
        INFO(kv_heads << " K,V heads, " << groups << " groups, " << describe(parallel));
        request.strategy = make_preset("upipe", m, request.sequence, 0, parallel);
        request.strategy.head_groups = groups;
        const Layout layout = lay_out(build_program(request));
        const int64_t peak = layout.arena_bytes[0];
        if (groups == 1) all_heads = peak;
        if (groups > at_once) CHECK(peak < before);
        before = peak;
      }
      // The rest is attention's output for all heads.
      INFO(all_heads << " to " << before << ", " << describe(parallel));
      CHECK(5 * before < 3 * all_heads);
    }
  }
}

TEST_CASE("a kept tensor costs no copies and a recomputed one no memory") {
  StepRequest request = random_request(1);
  request.microbatches = 1;
  request.sequence = 64;
  request.strategy = {};
  request.strategy.chunk_tokens = request.strategy.block_tokens = 64;
  const auto count = [&](OpKind kind) {
    const Program p = build_program(request);
    return std::count_if(p.ops.begin(), p.ops.end(), [&](const Op& op) { return op.kind == kind; });
  };
  const int64_t layers = request.model.layers;
  CHECK(count(OpKind::copy_d2h) == 0);
  CHECK(count(OpKind::mlp_forward) == layers);
  CHECK(count(OpKind::qkv_forward) == layers);
  request.strategy.qkv.where = Saved::recompute;
  CHECK(count(OpKind::qkv_forward) == 2 * layers);
  request.strategy.layer_input.where = Saved::host;
  CHECK(count(OpKind::copy_d2h) == layers);
  request.strategy.qkv.where = Saved::keep;  // recomputing it reads the layer input once more
  request.strategy.layer_input.where = Saved::nvme;
  CHECK(count(OpKind::io_write) == layers);
  CHECK(count(OpKind::io_read) == layers);
}

TEST_CASE("where keys come in several ops, a narrow output is summed in float until the last") {
  ModelSpec model = load_model("tiny-llama");
  model.layers = 2;
  Strategy streams = make_preset("fpdt", model, 4096, 512);
  const Strategy resident = make_preset("baseline", model, 4096);
  const Strategy ring = make_preset("ring", model, 4096, 0, {1, 4, 1});
  for (const Strategy& s : {streams, resident, ring}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const int64_t rank : {0, 3}) {
        if (rank >= s.parallel.ranks()) continue;
        INFO(s.preset << " " << name_of(dtype) << " rank " << rank);
        const Program p = build_program({model, s, 4096, 1, dtype, rank});
        // The ops of one query chunk begin at op `first`.
        std::map<std::pair<int, int>, std::vector<const Op*>> of_chunk;
        int64_t several = 0;
        const auto check = [&](const std::vector<const Op*>& ops) {
          several += ops.size() > 1 ? 1 : 0;
          const bool sums = ops.size() > 1 && dtype == DType::bfloat16;
          for (const Op* op : ops) {
            const bool last = op == ops.back();
            CHECK(p.shapes[op->shape].into_sum == sums);
            CHECK(op->has(kOutput) == (!sums || last));
            CHECK(op->has(kOutputSum) == sums);
            if (!sums) continue;
            const BufferId sum = op->operands[kOutputSum];
            CHECK(sum == ops[0]->operands[kOutputSum]);
            CHECK(p.bytes_of(sum) == 4 * p.lengths.chunk * model.attention_width());
            CHECK(&p.ops[p.buffers[sum].first_op] == ops[0]);
            // Only copies that were issued ahead may follow the last of them, no compute.
            const Op* end = &p.ops[p.buffers[sum].last_op];
            CHECK(end >= ops.back());
            CHECK(std::none_of(ops.back() + 1, end + 1,
                               [](const Op& o) { return o.stream == Stream::compute; }));
          }
        };
        for (const Op& op : p.ops) {
          if (op.kind != OpKind::attention_forward) continue;
          std::vector<const Op*>& ops = of_chunk[{op.layer, op.index}];
          if (p.shapes[op.shape].first && !ops.empty()) {
            check(ops);
            ops.clear();
          }
          ops.push_back(&op);
        }
        for (const auto& [key, ops] : of_chunk) check(ops);
        CHECK((several > 0) == (s.preset != "baseline"));
      }
    }
  }
}

TEST_CASE("a plan runs on GPUs where attention takes no more than it reserves") {
  constexpr int64_t kUnknown = 0, kA100 = 80, kH100 = 90, kB200 = 100, kGeForce = 120;
  for (const bool grouped : {false, true}) {
    for (const int64_t device : {kA100, kH100, kB200, kGeForce}) {
      CHECK_NOTHROW(check_attention_memory(grouped, device, device));
      CHECK_NOTHROW(check_attention_memory(grouped, kUnknown, device));
      CHECK_NOTHROW(check_attention_memory(grouped, kA100, device));
    }
    CHECK_NOTHROW(check_attention_memory(grouped, kH100, kB200));
    for (const int64_t device : {kA100, kGeForce}) {
      CHECK_THROWS_WITH(
          check_attention_memory(grouped, kH100, device),
          Catch::Contains("compute capability 90") && Catch::Contains("plan for this GPU"));
    }
  }
}

TEST_CASE("plans of models with latent attention have the catalog's parameters") {
  for (const char* name : {"deepseek-v3", "deepseek-v2", "deepseek-v2-lite", "kimi-k2"}) {
    const ModelSpec model = load_model(name);
    const std::array<int64_t, 3> ends = unit_elements(model);
    int64_t sum = ends[0] + ends[2];
    for (const LayerRun& run : layer_runs(model)) {
      const ModelSpec alike = model_of_run(model, run);
      const bool biased = alike.experts && alike.experts->selection_bias;
      const int64_t not_trained = biased ? alike.experts->count : 0;  // and not counted
      sum += run.layers * (unit_elements(alike)[1] + experts_elements(alike) - not_trained);
      // The ranks of a tensor group have equal parts, and some alike.
      const ModelSpec narrow = narrow_model(alike, 8);
      const int64_t replicated = replicated_elements(narrow)[1];
      CHECK(8 * (unit_elements(narrow)[1] - replicated) + replicated == unit_elements(alike)[1]);
    }
    INFO(name);
    CHECK(sum == parameter_count(model));
  }
}

TEST_CASE("units are as large as the parameters they hold") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    StepRequest request = random_request(seed);
    if (seed % 2 == 0) request = with_latent_attention(request, seed);
    request.model.nf4 = false;
    const Program program = build_program(request);
    const std::vector<ParameterUnit> units = parameter_units(request.model);
    REQUIRE(units.size() == program.parameters.size());
    for (size_t unit = 0; unit < units.size(); ++unit) {
      CHECK(program.bytes_of(program.parameters[unit]) == 4 * units[unit].elements);
    }
  }
}

}  // namespace longspan::testing
