#include "tests/engine/cuda/device_world.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <utility>

#include "base/bfloat16.h"
#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/comm/local.h"
#include "engine/cpu/backend.h"
#include "tests/engine/forwarding_backend.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

constexpr int kRanks = 4;  // without a pipeline

// A backend that fails at the `nth` op of the comm stream.
class FailingBackend final : public ForwardingBackend {
 public:
  FailingBackend(std::unique_ptr<Backend> backend, int nth)
      : ForwardingBackend(std::move(backend)), left_(nth) {}
  void run(const Program& program, const Op& op, const OperandPointers& operands,
           const StepContext& context) override {
    if (op.stream == Stream::comm && left_-- == 0) throw failed("out of luck");
    ForwardingBackend::run(program, op, operands, context);
  }

 private:
  std::atomic<int> left_;
};

// An array of numbers in device memory.
template <class T>
class OnDevice {
 public:
  OnDevice(cuda::Device& device, const std::vector<T>& values)
      : arena_(device.allocate(Tier::device, std::ssize(values) * sizeof(T))) {
    arena_->write(0, values.data(), arena_->bytes());
  }
  std::byte* bytes() const { return arena_->data(); }
  T* data() const { return reinterpret_cast<T*>(bytes()); }
  std::vector<T> read() const {
    std::vector<T> values(arena_->bytes() / sizeof(T));
    arena_->read(0, values.data(), arena_->bytes());
    return values;
  }

 private:
  std::unique_ptr<Arena> arena_;
};

NamedCase named(const ModelSpec& model, int64_t sequence, Strategy strategy,
                const std::string& knobs, const ParallelLayout& parallel) {
  NamedCase c;
  c.step.model = model;
  c.step.sequence = sequence;
  c.step.strategy = std::move(strategy);
  c.step.strategy.parallel = parallel;
  c.step.microbatches = 1 + parallel.zero % 2;
  c.step.threads = 1;
  c.name = fmt::format("{}, {}, {}", model.name, describe(parallel), knobs);
  return c;
}

}  // namespace

DeviceWorld::DeviceWorld(int ranks, bool lag, const Transport& transport)
    : make_ranks_(transport.make_ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    devices_.push_back(open_under_test(lag, transport.own_devices ? rank : 0));
  }
}

std::unique_ptr<Backend> DeviceWorld::backend(const Program& program, Communicator* comm) {
  const int rank = comm == nullptr ? 0 : comm->rank();
  return cuda::make_backend(program, device(rank), 1,
                            comm == nullptr ? nullptr : ranks(*comm, links_of(program)));
}

std::vector<NamedCase> exchanging_cases() {
  const ModelSpec gpt = model_with_heads(small_gpt(), 8, 8);
  const ModelSpec llama = model_with_heads(small_llama(), 8, 2);
  const ModelSpec qwen = model_with_heads(small_qwen(), 8, 8);
  std::vector<NamedCase> cases;
  const auto add = [&](const ModelSpec& model, const std::string& knobs,
                       const ParallelLayout& parallel) {
    cases.push_back(named(model, parallel.ring > 1 ? 16 * 2 * parallel.ring : 64,
                          strategies(16)[knobs], knobs, parallel));
  };
  add(gpt, "away, q-outer", {.ulysses = 2});
  add(llama, "away, kv-outer", {.ulysses = 4, .zero = 1});  // more ranks than K,V heads
  add(gpt, "kept", {.ulysses = 4, .zero = 3, .overlap = false});
  add(llama, "kept", {.ring = 2, .zero = 2});
  add(gpt, "kept", {.ring = 4});
  add(llama, "kept", {.ring = 2, .ulysses = 2, .zero = 3});
  add(gpt, "away, kv-outer", {.data = 2, .ulysses = 2, .zero = 2});
  add(llama, "kept", {.data = 4});
  for (const auto& [knobs, data, tensor, zero] : {std::tuple{"kept", 1, 2, 0},
                                                  {"tiled, stored", 1, 4, 0},
                                                  {"away, kv-outer", 2, 2, 3},
                                                  {"away, q-outer", 2, 2, 1},
                                                  {"kept", 2, 2, 0}}) {
    Strategy strategy = tensor_strategies(16, 64)[knobs];
    if (zero == 1) strategy.parameters = Tier::device;
    cases.push_back(named(cases.size() % 2 == 0 ? qwen : gpt, 64, strategy, knobs,
                          {.data = data, .zero = zero, .tensor = tensor}));
  }
  for (const auto& [knobs, data, ulysses, zero] :
       {std::tuple{"recomputed", 1, 4, 3}, {"parked", 2, 2, 2}}) {
    Strategy strategy = group_strategies(16)[knobs];
    strategy.head_groups = 2;
    cases.push_back(named(model_with_heads(small_llama(), 16, 4), 16, strategy, knobs,
                          {.data = data, .ulysses = ulysses, .zero = zero}));
  }
  // Experts on several ranks. In bfloat16 a router of other roundings chooses others of them,
  // unless their scores are equal.
  for (const auto& [model, parallel] :
       {std::pair{small_mixtral(), ParallelLayout{.ulysses = 2, .expert = 2}},
        {small_gpt_oss(), {.data = 2, .ulysses = 2, .zero = 3, .expert = 4}},
        {small_qwen_experts(), {.data = 4, .zero = 1, .expert = 2}},
        {small_glm(), {.data = 2, .tensor = 2, .expert = 2}}}) {
    ModelSpec spread = model_with_heads(model, 8, parallel.tensor > 1 ? 8 : 2);
    spread.experts->count = 8;
    if (parallel.zero < 3) spread = balanced(spread);
    Strategy strategy = strategies(16)["kept"];
    strategy.mlp_inner = {Saved::recompute};
    strategy.mlp_tile = 12;
    if (parallel.tensor > 1) strategy.block_tokens = 64;
    cases.push_back(named(spread, 64, strategy, "kept", parallel));
    cases.back().step.equal_scores = parallel.zero == 3;
  }
  return cases;
}

std::vector<NamedCase> pipeline_cases() {
  const ModelSpec gpt = model_with_heads(small_gpt(), 8, 8);
  const ModelSpec llama = model_with_heads(small_llama(), 8, 2);
  const ModelSpec qwen = model_with_heads(small_qwen(), 8, 2);  // its ends share a table
  std::vector<NamedCase> cases;
  const auto add = [&](ModelSpec model, const std::string& knobs, int64_t microbatches,
                       const ParallelLayout& parallel) {
    const Pipeline& pipeline = parallel.pipeline;
    const int64_t sequence = (pipeline.equal_work ? 64 : 32) * pipeline.slices;
    const std::map<std::string, Strategy> plans =
        parallel.tensor > 1 ? tensor_strategies(16, sequence) : strategies(16);
    model.layers = pipeline.stages * pipeline.virtual_stages;
    cases.push_back(named(model, sequence, plans.at(knobs), knobs, parallel));
    cases.back().step.microbatches = microbatches;
  };
  add(gpt, "away, q-outer", 3, {.ulysses = 2, .pipeline = {2, "1f1b"}});
  add(qwen, "kept", 4, {.data = 2, .zero = 1, .pipeline = {3, "1f1b"}});
  add(llama, "kept", 4, {.ulysses = 2, .pipeline = {2, "interleaved-1f1b", 2}});
  add(gpt, "away, kv-outer", 3,
      {.data = 2, .overlap = false, .pipeline = {3, "interleaved-1f1b", 2}});
  add(llama, "away, q-outer", 3, {.ulysses = 2, .pipeline = {3, "seq1f1b", 1, 2}});
  add(qwen, "kept", 2, {.data = 2, .zero = 2, .pipeline = {2, "seq1f1b", 1, 4}});
  add(llama, "kept", 2, {.ulysses = 2, .pipeline = {2, "seq1f1b", 1, 4, true}});
  add(llama, "kept", 1, {.pipeline = {4, "slimpipe", 1, 4}});
  add(gpt, "kept", 2, {.ulysses = 2, .pipeline = {2, "slimpipe", 1, 4}});
  add(qwen, "tiled, stored", 4, {.tensor = 2, .pipeline = {3, "1f1b"}});
  add(gpt, "kept", 4, {.pipeline = {3, "gpipe"}});
  add(llama, "kept", 3, {.ulysses = 2, .pipeline = {2, "1f1b-vocab-1"}});
  add(qwen, "away, q-outer", 4, {.data = 2, .zero = 1, .pipeline = {3, "1f1b-vocab-2"}});
  add(gpt, "kept", 4, {.pipeline = {2, "v-half-vocab-1", 2}});
  return cases;
}

namespace {

int most_ranks(const std::vector<NamedCase>& cases) {
  int64_t most = 1;
  for (const NamedCase& c : cases) most = std::max(most, c.step.strategy.parallel.ranks());
  return static_cast<int>(most);
}

}  // namespace

void check_numbers(const Transport& transport, DType dtype, const std::vector<NamedCase>& cases) {
  DeviceWorld world(most_ranks(cases), false, transport);
  uint64_t seed = 300;
  for (NamedCase c : cases) {
    c.step.dtype = dtype;
    c.step.equal_scores |= dtype != DType::float32;
    c.step.strategy.deterministic = !repeats_bits(dtype);
    c.step.random_order = ++seed;
    c.step.make_backend = [&](const Program& p, Communicator* comm) {
      if (comm == nullptr && dtype == DType::float32) return cpu::make_backend(p, 2, nullptr);
      return world.backend(p, comm);
    };
    INFO(c.name);
    check_against_one_rank(c.step, dtype == DType::float32 ? 1e-5 : 2e-2);
  }
}

void check_lagging_queues(const Transport& transport, const std::vector<NamedCase>& cases) {
  DeviceWorld world(most_ranks(cases), true, transport);
  uint64_t seed = 330;
  for (NamedCase c : cases) {
    c.step.make_backend = [&](const Program& p, Communicator* comm) {
      return world.backend(p, comm);
    };
    c.step.random_order = ++seed;
    if (seed % 2 == 0) c.step.dtype = DType::bfloat16;
    c.step.strategy.deterministic = !repeats_bits(c.step.dtype);
    INFO(c.name);
    const WorldOutcome ordered = run_world(c.step);
    c.step.random_order.reset();
    const WorldOutcome lagging = run_world(c.step);
    // Rows go where the routing sends them.
    if (c.step.strategy.parallel.expert == 1) CHECK(lagging.sent == lagging.predicted_sent);
    for (size_t rank = 0; rank < ordered.ranks.size(); ++rank) {
      CHECK(lagging.ranks[rank].loss == ordered.ranks[rank].loss);
      CHECK(lagging.ranks[rank].gradient_norm == ordered.ranks[rank].gradient_norm);
      CHECK(lagging.ranks[rank].parameters == ordered.ranks[rank].parameters);
    }
  }
}

void check_exchanges(const Transport& transport, bool in_rank_order) {
  const double tolerance = in_rank_order ? 0 : kRanks * 0x1p-23;
  constexpr int64_t kCount = 4 * 37;
  DeviceWorld devices(kRanks, true, transport);
  std::array<bool, kRanks> right{};
  run_local_ranks(kRanks, [&](Communicator& comm) {
    const int rank = comm.rank();
    const auto ranks = devices.ranks(comm, ParallelLayout{.data = kRanks});
    const auto finish = [&] { devices.device(rank).queues().finish(); };
    devices.device(rank).queues().begin({});
    const Group world = whole_world(comm);
    std::mt19937 random(rank + 1);
    std::vector<float> own(kCount);
    for (float& x : own) x = std::uniform_real_distribution<float>(0.5F, 2)(random);
    std::vector<std::byte> workspace(1 << 16);
    bool good = true;
    const auto near = [&](double x, double expected) {
      good &= std::abs(x - expected) <= tolerance * std::abs(expected);
    };

    cuda::Device& device = devices.device(rank);
    std::vector<float> expected = own;
    all_reduce(comm, world, expected.data(), kCount, workspace);
    const OnDevice<float> all(device, own);
    ranks->all_reduce(world, all.data(), kCount, {});
    finish();
    const std::vector<float> sums = all.read();
    for (int64_t i = 0; i < kCount; ++i) near(sums[i], expected[i]);

    // The shard is either elsewhere or in place, within the full buffer.
    constexpr int64_t kShare = kCount / kRanks;
    const OnDevice<float> parts(device, own), shard(device, std::vector<float>(kShare));
    for (const bool in_place : {false, true}) {
      float* sum = in_place ? parts.data() + rank * kShare : shard.data();
      ranks->reduce_scatter(world, DType::float32, parts.bytes(), kCount,
                            reinterpret_cast<std::byte*>(sum), {});
      finish();
      const std::vector<float> got = in_place ? parts.read() : shard.read();
      for (int64_t i = 0; i < kShare; ++i) {
        near(got[(in_place ? rank * kShare : 0) + i], expected[rank * kShare + i]);
      }
    }

    const OnDevice<float> gathered(device, std::vector<float>(kCount));
    ranks->all_gather(world, {shard.bytes(), 4 * kShare}, gathered.bytes());
    finish();
    const std::vector<float> whole = gathered.read();
    for (int64_t i = 0; i < kCount; ++i) near(whole[i], expected[i]);

    const double total = all_reduce_sum(comm, world, own[0]);
    const OnDevice<double> scalar(device, {own[0]});
    ranks->all_reduce(world, scalar.data(), 1);
    finish();
    good &= std::abs(scalar.read()[0] - total) <= (in_rank_order ? 0 : 1e-15 * total);
    std::vector<double> doubles(600);  // more than are exchanged at once
    for (size_t i = 0; i < doubles.size(); ++i)
      doubles[i] = own[i % own.size()] + static_cast<double>(i);
    const OnDevice<double> several(device, doubles);
    all_reduce_sums(comm, world, doubles);
    ranks->all_reduce(world, several.data(), std::ssize(doubles));
    finish();
    const std::vector<double> got_doubles = several.read();
    for (size_t i = 0; i < doubles.size(); ++i) {
      good &= std::abs(got_doubles[i] - doubles[i]) <=
              (in_rank_order ? 0 : 1e-15 * std::abs(doubles[i]));
    }

    // Two messages each way with both neighbours, of different sizes.
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    const OnDevice<float> out(device, own), into(device, std::vector<float>(8));
    const auto bytes = [](float* data) { return reinterpret_cast<std::byte*>(data); };
    const std::vector<Send> sends{{next, bytes(out.data()), 4},
                                  {before, bytes(out.data() + 1), 8},
                                  {next, bytes(out.data() + 3), 12}};
    const std::vector<Receive> receives{{next, bytes(into.data() + 4), 8},
                                        {before, bytes(into.data()), 4},
                                        {before, bytes(into.data() + 1), 12}};
    ranks->exchange(sends, receives);
    finish();
    const std::vector<float> in = into.read();
    std::mt19937 other(before + 1);
    std::vector<float> theirs(6);
    for (float& x : theirs) x = std::uniform_real_distribution<float>(0.5F, 2)(other);
    good &= in[0] == theirs[0] && in[1] == theirs[3] && in[2] == theirs[4] && in[3] == theirs[5];
    other.seed(next + 1);
    for (float& x : theirs) x = std::uniform_real_distribution<float>(0.5F, 2)(other);
    good &= in[4] == theirs[1] && in[5] == theirs[2];
    right[rank] = good;
  });
  for (const bool good : right) CHECK(good);
}

void check_messages(const Transport& transport) {
  constexpr int64_t kCount = 1 << 12, kMessages = 3;
  DeviceWorld world(2, true, transport);
  std::array<bool, 2> right{};
  run_local_ranks(2, [&](Communicator& comm) {
    const int rank = comm.rank(), peer = 1 - rank;
    // The channels of two stages: residuals go to the second, gradients to the first.
    const int64_t out = rank == 0 ? 0 : 3, in = 3 - out;
    RankLinks links = RankLinks::in_mesh(ParallelLayout{}, 0);
    links.place.mesh = rank;
    links.place.meshes = 2;
    links.channel_messages = 2 * kMessages;
    for (const int64_t number : {0, 3}) {
      MessageChannel& channel = links.channels.emplace_back();
      channel = {number, number == 0 ? 0 : 1, number == 0 ? 1 : 0, {}};
      for (int64_t i = 0; i < 2 * kMessages; ++i) {
        channel.messages.push_back(number * links.channel_messages + i);
      }
    }
    cuda::Device& device = world.device(rank);
    const auto ranks = world.ranks(comm, links);
    device.queues().begin({});
    bool good = true;
    const OnDevice<float> spoilt(device, std::vector<float>(kCount, -1));
    for (int64_t round = 0; round < 2; ++round) {
      std::vector<OnDevice<float>> sent, received;
      const auto tag = [&](int64_t channel, int64_t i) {
        return static_cast<MessageTag>(channel * links.channel_messages + round * kMessages + i);
      };
      const auto value = [&](int64_t from, int64_t i) {
        return static_cast<float>(100 * from + 10 * round + i);
      };
      for (int64_t i = 0; i < kMessages; ++i) {
        sent.emplace_back(device, std::vector<float>(kCount, value(rank, i)));
        received.emplace_back(device, std::vector<float>(kCount));
      }
      constexpr int64_t kBytes = 4 * kCount;
      for (int64_t i = 0; i < kMessages; ++i) {
        ranks->start_send({peer, sent[i].bytes(), kBytes}, tag(out, i));
      }
      for (int64_t i = 0; i < kMessages; ++i) {
        ranks->receive({peer, received[i].bytes(), kBytes}, tag(in, i));
      }
      for (const int64_t i : {2, 0, 1}) {
        ranks->finish_send(peer, tag(out, i));
        ranks->copy_rows(spoilt.bytes(), kBytes, 1, kBytes, sent[i].bytes(), kBytes);
      }
      device.queues().finish();
      for (int64_t i = 0; i < kMessages; ++i) {
        good &= received[i].read() == std::vector<float>(kCount, value(peer, i));
      }
      good &= ranks->sent_bytes() == (round + 1) * kMessages * kBytes;
    }
    right[rank] = good;
  });
  CHECK(right[0]);
  CHECK(right[1]);
}

namespace {

void check_failure_in(const Transport& transport, NamedCase c) {
  DeviceWorld world(static_cast<int>(c.step.strategy.parallel.ranks()), true, transport);
  for (const int nth : {0, 5, 20}) {
    c.step.make_backend = [&](const Program& p, Communicator* comm) -> std::unique_ptr<Backend> {
      std::unique_ptr<Backend> backend = world.backend(p, comm);
      if (comm->rank() != 2) return backend;
      return std::make_unique<FailingBackend>(std::move(backend), nth);
    };
    CHECK_THROWS_WITH(run_world(c.step),
                      Catch::StartsWith("rank 2: ") && Catch::EndsWith(": out of luck"));
  }
}

}  // namespace

void check_failure(const Transport& transport) {
  check_failure_in(transport,
                   named(model_with_heads(small_gpt(), 8, 8), 64, strategies(16)["away, kv-outer"],
                         "away, kv-outer", {.ulysses = 4, .zero = 3}));
}

void check_failure_in_pipeline(const Transport& transport) {
  for (const NamedCase& c : pipeline_cases()) {
    INFO(c.name);
    if (c.step.strategy.parallel.ulysses > 1) check_failure_in(transport, c);
  }
}

}  // namespace longspan::testing
