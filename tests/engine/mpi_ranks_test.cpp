// The numbers of ranks_test from ranks that are processes: `mpiexec -n 4 mpi_ranks_test`. Each
// rank's step must end with the bits, the memory and the messages of the same rank as a thread, and
// the threads with the numbers of one rank.
//
// First all plans run, then all ranks check: a failed check leaves no rank waiting, as there are no
// messages among the checks. At the end the ranks agree on the outcome and rank 0 prints.
//
// `mpiexec -n 4 mpi_ranks_test FAILS`: instead, rank 1 of a pipeline throws when it has run that
// percentage of its ops, while messages of megabytes are under way. The job must end and report
// why.
#define CATCH_CONFIG_RUNNER
#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/comm/mpi.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {
namespace {

constexpr int kRanks = 4;

struct Plan {
  std::string name;
  StepCase step;
};

// Plans with every kind of parallelism that four ranks can have, and with each pair of kinds; over
// these, every ZeRO stage, with and without overlap, and strategies that keep, stream and
// recompute. Pipelines of every family that runs.
std::vector<Plan> make_plans() {
  const ModelSpec gpt = model_with_heads(small_gpt(), 8, 8);
  const ModelSpec llama = model_with_heads(small_llama(), 8, 2);
  std::vector<Plan> plans;
  const auto add = [&](const ModelSpec& model, const std::string& name, const Strategy& strategy,
                       const ParallelLayout& parallel, int64_t sequence) {
    StepCase step;
    step.model = model;
    step.strategy = strategy;
    step.strategy.parallel = parallel;
    step.sequence = sequence;
    step.microbatches = 1 + static_cast<int64_t>(plans.size()) % 2;
    step.threads = 1;
    plans.push_back({fmt::format("{}, {}, overlap {}, {}", model.name, describe(parallel),
                                 parallel.overlap ? "on" : "off", name),
                     step});
  };

  const auto whole = strategies(16);
  const auto on_sequence = [&](const ModelSpec& model, const std::string& name,
                               const ParallelLayout& parallel) {
    add(model, name, whole.at(name), parallel, 64);
  };
  on_sequence(gpt, "kept", {.ulysses = 4, .zero = 0});
  on_sequence(llama, "away, kv-outer", {.ulysses = 4, .zero = 3, .overlap = false});
  on_sequence(llama, "away, q-outer", {.data = 4, .zero = 2});
  on_sequence(gpt, "away, kv-outer", {.data = 4, .zero = 1, .overlap = false});
  on_sequence(gpt, "away, q-outer", {.data = 2, .ulysses = 2, .zero = 1, .overlap = false});
  on_sequence(llama, "away, kv-outer", {.data = 2, .ulysses = 2, .zero = 3});

  // A ring works on layers whose parameters are on the device; the saved tensors of the others may
  // leave it.
  Strategy stored = whole.at("kept");
  stored.layer_input.where = stored.attention_out.where = Saved::host;
  stored.mlp_input.where = stored.mlp_inner.where = Saved::recompute;
  const auto on_ring = [&](const ModelSpec& model, bool keep, const ParallelLayout& parallel) {
    add(model, keep ? "kept" : "stored", keep ? whole.at("kept") : stored, parallel,
        16 * 2 * parallel.ring);
  };
  on_ring(llama, true, {.ring = 4, .zero = 1});
  on_ring(gpt, false, {.ring = 4, .zero = 3, .overlap = false});
  on_ring(llama, false, {.ring = 2, .ulysses = 2, .zero = 2});
  on_ring(gpt, true, {.ring = 2, .ulysses = 2, .zero = 3, .overlap = false});
  on_ring(gpt, true, {.data = 2, .ring = 2, .zero = 0, .overlap = false});
  on_ring(llama, false, {.data = 2, .ring = 2, .zero = 1});

  const ModelSpec llama_four = model_with_heads(small_llama(), 8, 4);
  const auto tensor = tensor_strategies(16, 64);
  const auto on_tensor = [&](const ModelSpec& model, const std::string& name,
                             const ParallelLayout& parallel) {
    add(model, name, tensor.at(name), parallel, 64);
  };
  on_tensor(gpt, "away, q-outer", {.tensor = 4});
  on_tensor(llama_four, "tiled, stored", {.overlap = false, .tensor = 4});
  on_tensor(llama_four, "tiled, stored", {.data = 2, .zero = 3, .tensor = 2});
  on_tensor(gpt, "kept", {.data = 2, .zero = 2, .overlap = false, .tensor = 2});

  const auto groups = group_strategies(16);
  const auto on_groups = [&](ModelSpec model, int64_t count, const std::string& name,
                             const ParallelLayout& parallel) {
    model.layers = 2;
    model.head_dim = 8;
    Strategy strategy = groups.at(name);
    strategy.head_groups = count;
    add(model, fmt::format("{} head groups, {}", count, name), strategy, parallel, 16);
  };
  on_groups(model_with_heads(small_llama(), 16, 4), 2, "recomputed", {.ulysses = 4, .zero = 3});
  on_groups(model_with_heads(small_gpt(), 16, 16), 4, "parked",
            {.ulysses = 4, .zero = 1, .overlap = false});
  on_groups(model_with_heads(small_llama(), 8, 2), 2, "kept", {.data = 2, .ulysses = 2, .zero = 2});

  // Pipelines of whole sequences: each stage has what remains of the four ranks.
  const auto on_stages = [&](ModelSpec model, const std::string& name, const Pipeline& pipeline,
                             ParallelLayout mesh, int64_t microbatches) {
    model.layers = pipeline.stages * pipeline.virtual_stages + microbatches % 2;
    mesh.pipeline = pipeline;
    add(model, name, mesh.tensor > 1 ? tensor.at(name) : whole.at(name), mesh, 64);
    plans.back().step.microbatches = microbatches;
  };
  const ModelSpec qwen = model_with_heads(small_qwen(), 8, 2);  // its ends share a table
  on_stages(gpt, "kept", {4, "gpipe"}, {}, 4);
  on_stages(llama, "away, kv-outer", {4, "1f1b"}, {}, 6);
  on_stages(qwen, "away, q-outer", {4, "bfs", 2}, {.overlap = false}, 4);
  on_stages(qwen, "kept", {4, "interleaved-1f1b", 2}, {}, 8);
  on_stages(llama, "kept", {2, "1f1b"}, {.ulysses = 2}, 3);
  on_stages(gpt, "away, kv-outer", {2, "chronos", 2}, {.ulysses = 2, .zero = 1}, 4);
  on_stages(qwen, "tiled, stored", {2, "1f1b"}, {.tensor = 2}, 4);
  on_stages(gpt, "away, q-outer", {2, "bfs", 2}, {.overlap = false, .tensor = 2}, 4);
  on_stages(qwen, "away, q-outer", {2, "interleaved-1f1b", 2}, {.data = 2, .zero = 1}, 4);
  on_stages(llama, "away, kv-outer", {2, "1f1b"}, {.data = 2, .zero = 2, .overlap = false}, 5);
  on_stages(gpt, "kept", {2, "gpipe"}, {.data = 2}, 2);

  // With a vocabulary that is cut over the stages.
  on_stages(llama, "kept", {4, "1f1b-vocab-1"}, {}, 6);
  on_stages(qwen, "away, q-outer", {2, "1f1b-vocab-2"}, {.ulysses = 2, .zero = 1}, 3);
  on_stages(gpt, "kept", {2, "v-half-vocab-2", 2}, {.data = 2, .zero = 2}, 4);

  // With gradients of weights that come later.
  on_stages(llama, "kept", {4, "zb-h1"}, {}, 6);
  on_stages(gpt, "away, q-outer", {4, "zb-v", 2}, {}, 4);
  on_stages(qwen, "kept", {2, "v-half", 2}, {.ulysses = 2, .zero = 1}, 4);
  on_stages(llama, "tiled, stored", {2, "gis", 2}, {.tensor = 2}, 4);
  on_stages(gpt, "away, kv-outer", {2, "zb-h2"}, {.data = 2, .zero = 2, .overlap = false}, 5);

  // Pipelines of slices.
  Strategy sliced = whole.at("kept");
  sliced.qkv.where = sliced.attention_out.where = sliced.mlp_input.where = Saved::recompute;
  sliced.layer_input.where = Saved::host;
  const auto on_slices = [&](ModelSpec model, bool keep, const Pipeline& pipeline,
                             ParallelLayout mesh, int64_t microbatches) {
    model.layers = pipeline.stages * pipeline.virtual_stages + microbatches % 2;
    mesh.pipeline = pipeline;
    Strategy strategy = keep ? whole.at("kept") : sliced;
    if (mesh.tensor > 1) strategy.block_tokens = 64;
    if (pipeline.equal_work) strategy.chunk_tokens = strategy.block_tokens = 4;
    add(model, keep ? "kept" : "stored", strategy, mesh, 64);
    plans.back().step.microbatches = microbatches;
  };
  on_slices(llama, true, {4, "seq1f1b", 1, 4}, {}, 4);
  on_slices(gpt, false, {4, "terapipe", 1, 4}, {}, 1);
  on_slices(qwen, false, {4, "seq1f1b-i", 2, 4}, {}, 4);
  on_slices(qwen, false, {2, "seq1f1b", 1, 4}, {.ulysses = 2, .zero = 2}, 3);
  on_slices(llama, false, {2, "seq1f1b", 1, 2, true}, {.ulysses = 2, .zero = 1}, 3);
  on_slices(llama_four, true, {2, "seq1f1b-i", 2, 2}, {.overlap = false, .tensor = 2}, 2);
  on_slices(qwen, true, {4, "slimpipe", 1, 8}, {}, 2);
  on_slices(llama, false, {2, "slimpipe", 2, 4}, {.ulysses = 2}, 3);
  on_slices(gpt, true, {2, "terapipe", 1, 2}, {.data = 2, .zero = 1}, 2);
  // Keys and values of slices on the host, and in a file of every rank.
  on_slices(llama, true, {2, "seq1f1b", 1, 4}, {.ulysses = 2}, 3);
  plans.back().step.strategy.kv = Tier::host;
  on_slices(qwen, false, {4, "seq1f1b-i", 2, 4}, {}, 4);
  plans.back().step.strategy.kv = Tier::nvme;
  return plans;
}

// The results of this process.
struct RankOutcome {
  StepOutcome step;
  int64_t sent = 0;
};

struct Job {
  int rank = 0;
  std::vector<Plan> plans;
  std::vector<RankOutcome> outcomes;  // of each plan
} job;

void run_plans(Communicator& comm) {
  job.rank = comm.rank();
  job.plans = make_plans();
  for (const Plan& plan : job.plans) {
    const int64_t before = comm.bytes_sent();
    RankOutcome& outcome = job.outcomes.emplace_back();
    outcome.step = run_step(plan.step, &comm);
    outcome.sent = comm.bytes_sent() - before;
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

}  // namespace

TEST_CASE("a rank that is a process ends with the bits of one that is a thread") {
  for (size_t i = 0; i < job.plans.size(); ++i) {
    const auto& [name, step] = job.plans[i];
    INFO(name);
    const StepOutcome& process = job.outcomes[i].step;
    const WorldOutcome world = run_world(step);
    const StepOutcome& thread = world.ranks.at(job.rank);
    CHECK(job.outcomes[i].sent == world.sent[job.rank]);
    CHECK(process.arena_bytes == thread.arena_bytes);
    CHECK(process.high_water_bytes == thread.high_water_bytes);
    INFO(fmt::format("loss {}, expected {}", process.loss, thread.loss));
    CHECK(same_bits(process.loss, thread.loss));
    INFO(fmt::format("gradient norm {}, expected {}", process.gradient_norm, thread.gradient_norm));
    CHECK(same_bits(process.gradient_norm, thread.gradient_norm));
    REQUIRE(process.gradients.size() == thread.gradients.size());
    REQUIRE(process.parameters.size() == thread.parameters.size());
    for (size_t unit = 0; unit < thread.gradients.size(); ++unit) {
      INFO("unit " << unit);
      CHECK(same_bits(process.gradients[unit], thread.gradients[unit]));
      CHECK(same_bits(process.parameters[unit], thread.parameters[unit]));
    }
  }
}

TEST_CASE("these plans give the numbers of one rank") {
  if (job.rank != 0) return;  // once is enough: it tests threads
  for (const auto& [name, step] : job.plans) {
    INFO(name);
    check_against_one_rank(step);
  }
}

namespace {

// Runs the test cases and returns whether they passed, with what Catch says in `report`.
bool run_checks(std::string& report) {
  std::ostringstream text;
  std::streambuf* const terminal = std::cout.rdbuf(text.rdbuf());
  Catch::Session session;
  session.configData().processName = "mpi_ranks_test";
  session.configData().useColour = Catch::UseColour::No;  // the report is not for a terminal
  const int failures = session.run();
  std::cout.rdbuf(terminal);
  report = text.str();
  return failures == 0;
}

void fail_in_step(Communicator& comm, uint64_t percent) {
  StepCase step;
  step.model = model_with_heads(small_gpt(), 2, 2);
  step.model.layers = 4;
  step.model.hidden = 256;
  step.model.head_dim = 4;
  step.model.max_positions = 4096;
  step.strategy = strategies(1024).at("kept");
  step.strategy.parallel.ulysses = 2;
  step.strategy.parallel.pipeline = {2, "interleaved-1f1b", 2};
  step.strategy.block_tokens = step.sequence = 4096;
  step.microbatches = 4;
  step.threads = 1;
  const uint64_t fails = program_of(step, comm.rank()).ops.size() * percent / 100;
  std::atomic<uint64_t> begun{0};
  step.before_op = [&](int rank, const Op&) {
    if (begun++ == fails && rank == 1) throw failed("breaks at {} %", percent);
  };
  try {
    run_step(step, &comm);
  } catch (const Error&) {
    // The launcher kills the remaining ranks once one has ended, and rank 1 is to report.
    if (comm.rank() != 1) std::this_thread::sleep_for(std::chrono::seconds(10));
    throw;
  }
}

int run(const char* fails) {
  MpiOptions options;
  options.on_lost = [](const std::string& message) {
    std::fprintf(stderr, "lost: %s\n", message.c_str());
    abort_mpi(static_cast<int>(ErrorKind::failed));
  };
  int rank = -1;
  try {
    MpiWorld world(options);
    Communicator& comm = world.communicator();
    rank = comm.rank();
    if (comm.size() != kRanks) {
      throw bad_input("{} ranks, expected {}: mpiexec -n {} mpi_ranks_test", comm.size(), kRanks,
                      kRanks);
    }
    if (fails != nullptr) {
      fail_in_step(comm, std::strtoull(fails, nullptr, 10));
      return 0;
    }
    run_plans(comm);
    std::string report;
    const bool passed = run_checks(report);
    const Group all = whole_world(comm);
    const bool all_passed = all_reduce_sum(comm, all, passed ? 0 : 1) == 0;
    if (passed && rank != 0) report.clear();
    const std::vector<std::string> reports = gather(comm, all, report, 0);
    // Printed before the world ends: the launcher kills the remaining ranks once one has failed.
    for (size_t i = 0; i < reports.size(); ++i) {
      if (!reports[i].empty()) fmt::print("rank {}:\n{}", i, reports[i]);
    }
    std::fflush(stdout);
    return all_passed ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "on rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace
}  // namespace longspan::testing

int main(int argc, char** argv) { return longspan::testing::run(argc > 1 ? argv[1] : nullptr); }
