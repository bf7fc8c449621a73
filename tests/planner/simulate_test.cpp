#include "planner/simulate/simulate.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "planner/simulate/chains.h"
#include "tests/planner/random_strategy.h"

namespace longspan::testing {
namespace {

Interference no_interference() {
  Interference rates;
  for (auto& row : rates) row.fill(1);
  return rates;
}

std::vector<double> unit_durations(const Program& program) {
  std::vector<double> durations;
  for (size_t i = 0; i < program.shapes.size(); ++i) {
    durations.push_back(1e-3 * static_cast<double>(1 + i % 5));
  }
  return durations;
}

// The simplest simulator: in list order, an op starts when its stream and its dependencies are
// done. Exact where ops do not slow each other down.
double longest_path(const Program& program, const Layout& layout,
                    const std::vector<double>& durations) {
  std::vector<Waits> waits(program.ops.size());
  for (const auto& queue : layout.streams) {
    for (const Queued& queued : queue) waits[queued.op] = queued.waits;
  }
  std::array<std::vector<double>, kStreamCount> ends;
  double last = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    auto& own = ends[static_cast<int>(program.ops[i].stream)];
    double start = own.empty() ? 0 : own.back();
    for (int s = 0; s < kStreamCount; ++s) {
      if (waits[i][s] >= 0) start = std::max(start, ends[s][waits[i][s]]);
    }
    own.push_back(start + durations[program.ops[i].shape]);
    last = std::max(last, own.back());
  }
  return last;
}

}  // namespace

TEST_CASE("without interference the simulation is the longest path", "[property]") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    const Program program = build_program(random_request(seed));
    const Layout layout = lay_out(program);
    const std::vector<double> durations = unit_durations(program);
    const Timeline timeline = simulate(program, layout, durations, no_interference());
    CHECK(timeline.step_seconds == Approx(longest_path(program, layout, durations)).epsilon(1e-9));
    double busiest = 0, serial = 0;
    for (const double busy : timeline.busy_seconds) {
      busiest = std::max(busiest, busy);
      serial += busy;
    }
    CHECK(timeline.step_seconds >= busiest * (1 - 1e-9));
    CHECK(timeline.step_seconds <= serial * (1 + 1e-9));
  }
}

TEST_CASE("interference only ever slows down, and spans of a stream do not overlap", "[property]") {
  Interference slow = no_interference();
  for (size_t busy = 0; busy < slow.size(); ++busy) {
    if ((busy & (busy - 1)) != 0) slow[busy].fill(0.6);  // two or more streams
  }
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Program program = build_program(random_request(seed));
    const Layout layout = lay_out(program);
    const std::vector<double> durations = unit_durations(program);
    const Timeline free = simulate(program, layout, durations, no_interference());
    const Timeline slowed = simulate(program, layout, durations, slow);
    CHECK(slowed.step_seconds >= free.step_seconds * (1 - 1e-9));
    for (const auto& queue : layout.streams) {
      for (size_t i = 1; i < queue.size(); ++i) {
        CHECK(slowed.spans[queue[i].op].start >= slowed.spans[queue[i - 1].op].end - 1e-12);
      }
    }
  }
}

TEST_CASE("chains take as long as their ops, and begin when the first of them does", "[property]") {
  constexpr double kRounding = 1e-9;  // sums of durations, in another order
  Interference interference = no_interference();
  for (unsigned busy = 0; busy < interference.size(); ++busy) {
    interference[busy].fill(1 / (1 + 0.1 * std::popcount(busy)));
  }
  size_t ops = 0, chains_in_all = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    const Program program = build_program(random_request(seed));
    const Layout layout = lay_out(program);
    const std::vector<double> durations = unit_durations(program);
    const Chains chains = chains_of(layout.streams, [&](int32_t before, int32_t after) {
      return program.ops[before].layer != program.ops[after].layer;
    });
    const Timeline whole = simulate(program, layout, durations, interference);
    const Timeline timeline =
        simulate(chains.queues, durations_of(chains, durations), interference);
    const double close = kRounding * whole.step_seconds;
    CHECK(std::abs(timeline.step_seconds - whole.step_seconds) <= close);
    REQUIRE(timeline.spans.size() == chains.first_ops.size());
    for (size_t i = 0; i < chains.first_ops.size(); ++i) {
      REQUIRE(std::abs(timeline.spans[i].start - whole.spans[chains.first_ops[i]].start) <= close);
    }
    for (int s = 0; s < kStreamCount; ++s) {
      CHECK(std::abs(timeline.busy_seconds[s] - whole.busy_seconds[s]) <= close);
    }
    ops += program.ops.size();
    chains_in_all += chains.first_ops.size();
  }
  CHECK(chains_in_all < ops);
}

TEST_CASE("copies that fit under compute cost nothing") {
  StepRequest request = random_request(1);
  request.microbatches = 1;
  request.sequence = 64;
  request.strategy = {};
  request.strategy.chunk_tokens = request.strategy.block_tokens = 64;
  request.strategy.layer_input.where = Saved::host;
  const Program program = build_program(request);
  const Layout layout = lay_out(program);
  std::vector<double> durations(program.shapes.size());
  for (size_t i = 0; i < durations.size(); ++i) {
    durations[i] = is_copy(program.shapes[i].kind) ? 1e-6 : 1e-3;
  }
  const Timeline timeline = simulate(program, layout, durations, no_interference());
  const double compute = timeline.busy_seconds[static_cast<int>(Stream::compute)];
  CHECK(timeline.step_seconds == Approx(compute).epsilon(0.01));
}

TEST_CASE("a rank of a pipeline is busy in its passes, except while a message has not arrived") {
  Program program;
  program.actions = {{ActionKind::forward},
                     {ActionKind::recv_backward},
                     {ActionKind::backward},
                     {ActionKind::optimizer}};
  Timeline timeline;
  const auto add = [&](OpKind kind, Stream stream, int action, double start, double end) {
    Op op;
    op.kind = kind;
    op.stream = stream;
    op.action = action;
    program.ops.push_back(op);
    timeline.spans.push_back({start, end});
  };
  add(OpKind::mlp_forward, Stream::compute, 0, 0, 1);
  add(OpKind::mlp_forward, Stream::compute, 0, 1.5, 2);  // half a second for a copy
  add(OpKind::receive, Stream::comm, 1, 2, 6);
  add(OpKind::zero, Stream::compute, 2, 3, 4);          // begins before the message is there
  add(OpKind::mlp_backward, Stream::compute, 2, 7, 8);  // 2 of 3 seconds wait for the message
  add(OpKind::adamw, Stream::compute, 3, 8, 9);
  CHECK(seconds_in_passes(program, timeline) == Approx(2 + 3));
}

}  // namespace longspan::testing
