// Pipelines whose ranks are slow or fail: they end in any case. Slow ranks change no number, and of
// ranks that fail the first is named.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/schedule/registry.h"
#include "tests/engine/world_runner.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

// Ends the process with a message unless it is destroyed in time: a test of ranks that wait for
// each other fails instead of hanging.
class Watchdog {
 public:
  explicit Watchdog(const std::string& watched)
      : thread_([this, watched](const std::stop_token& stop) {
          constexpr std::chrono::seconds kBound{120};
          std::unique_lock lock(mutex_);
          wake_.wait_for(lock, stop, kBound, [] { return false; });
          if (stop.stop_requested()) return;
          std::fprintf(stderr, "does not end: %s\n", watched.c_str());
          std::_Exit(1);
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // the first to be destroyed
};

// splitmix64. Delays are drawn on many threads, so they are a function of what they delay.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Counts the ops that each rank has begun.
using Begun = std::vector<std::atomic<uint64_t>>;

// Sleeps before one op in eight, for up to 0.4 ms.
void delay(uint64_t seed, int rank, uint64_t op) {
  const uint64_t bits = mixed(mixed(mixed(seed) + rank) + op);
  if (bits % 8 != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds((bits >> 8) % 400));
}

ModelSpec tiny_model(int64_t layers, bool tied) {
  ModelSpec m = small_llama();
  m.name = "tiny";
  m.layers = layers;
  m.hidden = 8;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 4;
  m.ffn = 8;
  m.vocab = 59;  // rows for a share on each of six ranks
  m.tied_embeddings = tied;
  return m;
}

// A pipeline that the engine runs, of random shape, in a random mesh; if asked one whose ranks
// share attention.
StepCase random_pipeline(uint64_t seed, bool sharing = false) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const auto families = schedule_families();
  while (true) {
    const ScheduleFamily& family = families[pick(static_cast<int64_t>(families.size()))];
    if (!family.plannable || family.takes_memory_limit) continue;
    if (sharing && !family.exchanges_attention) continue;
    ScheduleRequest wanted;
    wanted.ranks = static_cast<int32_t>(2 + pick(5));
    wanted.virtual_stages = static_cast<int32_t>(1 + pick(3));
    wanted.microbatches = static_cast<int32_t>(1 + pick(8));
    wanted.slices = static_cast<int32_t>(family.sliced ? 1 + pick(4) : 1);
    if (family.exchanges_attention) wanted.slices = wanted.ranks * (1 + wanted.slices % 2);
    if (!takes_virtual_stages(family, wanted.virtual_stages)) continue;
    StepCase step;
    step.model = tiny_model(wanted.ranks * wanted.virtual_stages + pick(2), pick(2) == 0);
    step.microbatches = wanted.microbatches;
    step.sequence = 8 * wanted.slices;
    step.threads = 1;
    step.seed = seed;
    Strategy& s = step.strategy;
    s.chunk_tokens = pick(2) == 0 ? 4 : 8;
    s.block_tokens = 8;
    step.copy_units = static_cast<double>(1 + pick(3));
    if (pick(2) == 0) s.qkv.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
    if (pick(2) == 0) s.layer_input.where = Saved::host;
    if (sharing && pick(2) == 0) s.attention_out.where = Saved::recompute;
    if (pick(3) == 0) {
      s.parallel.ulysses = 2;
      s.parallel.zero = pick(3);
      s.parallel.overlap = pick(2) == 0;
    }
    const bool equal_work = family.uneven_slices && wanted.slices > 1 && pick(2) == 0;
    if (equal_work) step.sequence *= 4;  // several blocks for a slice
    s.parallel.pipeline = {wanted.ranks, family.name, wanted.virtual_stages, wanted.slices,
                           equal_work};
    if (pick(3) == 0) step.random_order = seed;
    try {
      const Schedule schedule = make_schedule(family, wanted);
      if (can_be_laid_out({step.model, s, step.sequence, step.microbatches}, schedule)) return step;
    } catch (const Error&) {  // no schedule of these numbers
    }
  }
}

std::string seeded_text_of(const StepCase& step) {
  return fmt::format("seed {}: {}, {} microbatches, {} layers{}", step.seed,
                     describe(step.strategy.parallel), step.microbatches, step.model.layers,
                     step.random_order ? ", in random order" : "");
}

}  // namespace

TEST_CASE("ranks of a pipeline never wait in a circle, however slow each is") {
  const bool sharing = GENERATE(false, true);
  const auto count = static_cast<uint64_t>(sharing ? cases(20, 300) : cases(100, 1000));
  for (uint64_t seed = 1; seed <= count; ++seed) {
    StepCase step = random_pipeline(seed, sharing);
    const std::string text = seeded_text_of(step);
    INFO(text);
    const Watchdog watchdog(text);
    StepCase alone = step;
    alone.strategy.parallel = {};
    alone.strategy.block_tokens = alone.strategy.chunk_tokens;
    alone.random_order = {};
    const StepOutcome expected = run_step(alone);
    Begun begun(step.strategy.parallel.ranks());
    step.before_op = [&](int rank, const Op&) { delay(seed, rank, begun[rank]++); };
    const WorldOutcome world = run_world(step);
    CHECK(world.sent == world.predicted_sent);
    for (const StepOutcome& rank : world.ranks) {
      CHECK(rank.loss == Approx(expected.loss).epsilon(1e-5));
      CHECK(rank.gradient_norm == Approx(expected.gradient_norm).epsilon(1e-5));
    }
  }
}

TEST_CASE("a rank of a pipeline that fails in a step ends all, and its error is the one thrown") {
  const auto count = static_cast<uint64_t>(cases(100, 1000));
  for (uint64_t seed = 1; seed <= count; ++seed) {
    StepCase step = random_pipeline(seed);
    step.random_order = seed % 2 == 0 ? std::optional(seed) : std::nullopt;
    std::mt19937_64 random(seed);
    const int64_t ranks = step.strategy.parallel.ranks();
    const int failing = static_cast<int>(random() % ranks);
    const uint64_t at = random() % program_of(step, failing).ops.size();
    const std::string text =
        fmt::format("{}: rank {} fails at op {}", seeded_text_of(step), failing, at);
    INFO(text);
    const Watchdog watchdog(text);
    Begun begun(ranks);
    step.before_op = [&](int rank, const Op&) {
      const uint64_t op = begun[rank]++;
      if (rank == failing && op == at) throw no_fit("op {} breaks", op);
      delay(seed, rank, op);
    };
    try {
      run_world(step);
      FAIL("the failure is lost");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::no_fit);
      CHECK(error.what() == fmt::format("rank {}: op {} breaks", failing, at));
    }
  }
}

}  // namespace longspan::testing
