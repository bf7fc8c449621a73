// Bounds hold: no program takes less time or memory, and no search discards its winner by one.
#include "planner/evaluate/bounds.h"

#include <catch2/catch.hpp>
#include <limits>
#include <optional>
#include <random>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/analysis.h"
#include "planner/pipeline/stage_programs.h"
#include "planner/program/layout.h"
#include "planner/search/frame_choice.h"
#include "planner/search/search.h"
#include "planner/simulate/simulate.h"
#include "planner/strategy/validity.h"
#include "tests/length.h"
#include "tests/planner/corner_strategies.h"
#include "tests/planner/random_plan.h"
#include "tests/planner/random_strategy.h"
#include "tests/planner/small_machine.h"

namespace longspan {
namespace {

// The bound sums a step's durations in another order than the simulator.
constexpr double kRounding = 1e-9;

void check_bound(const StepRequest& request, const HardwareProfile& hw) {
  const CostModel cost(hw, request.dtype);
  const Program program = build_program(request);
  const Layout layout = lay_out(program);
  const double seconds =
      simulate(program, layout, cost.durations(program), cost.interference(), false).step_seconds;
  const Bound bound = Bounds(request, cost).of(request.strategy);
  CHECK(bound.step_seconds <= seconds * (1 + kRounding));
  CHECK(bound.step_seconds >= 0.05 * seconds);  // and is not trivial
  CHECK(bound.peak_bytes == least_bytes(request));
  const Arenas arenas = arenas_of(request);
  CHECK(arenas.bytes == layout.arena_bytes);
  CHECK(arenas.ops == static_cast<int64_t>(program.ops.size()));
  for (const PeakMemory& memory : memory_at_peak(program, layout)) {
    CHECK(arenas.largest[static_cast<int>(memory.tier)] == memory.tensors.front().tensor);
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    INFO("tier " << tier);
    CHECK(bound.peak_bytes[tier] <= layout.live_bytes[tier]);
    CHECK(layout.live_bytes[tier] <= layout.arena_bytes[tier]);
  }
}

// Random frames of a small machine with random choices for all of their groups.
class RandomFrames {
 public:
  /// `mixed`: a quarter of the layers in the middle has half of the tokens and a larger MLP.
  /// `uneven`: only pipelines of slices of equal work. `cores`: only pipelines with a stage on
  /// every device, all of which share a processor of as many cores; 0: devices are no processors.
  /// `window`: of all layers, or of the first if they are mixed; 0: none.
  RandomFrames(int64_t devices, int64_t device_bytes, int64_t layers = 4, int64_t microbatches = 4,
               bool mixed = false, bool uneven = false, int64_t cores = 0, int64_t window = 0,
               bool forward_only = false)
      : hw_(testing::small_machine(1, devices, device_bytes, int64_t{1} << 28)),
        model_(load_model("tiny-llama")) {
    model_.layers = layers;
    model_.window = window;
    if (mixed) {
      const int64_t other = layers / 4, before = (layers - other) / 2, ffn = model_.ffn;
      model_.runs = {{before, true, ffn, 1, window},
                     {other, true, 2 * ffn, 0.5},
                     {layers - before - other, true, ffn, 1}};
    }
    model_.heads = model_.kv_heads = 8;
    options_.microbatches = microbatches;
    options_.forward_only = forward_only;
    if (forward_only) options_.parallel.pipeline = 1;
    if (cores > 0) {
      hw_.device.backend = "cpu";
      hw_.host.cores = cores;
      options_.parallel.pipeline = devices;
    }
    hw_.nvme.capacity_bytes.value = 1e9;
    hw_.nvme.read_bandwidth.value = hw_.nvme.write_bandwidth.value = 1e9;
    evaluator_.emplace(model_, hw_, capacities(hw_));
    on_all_tokens_ = model_;
    for (LayerRun& run : on_all_tokens_.runs) run.tokens = 1;
    of_all_tokens_.emplace(on_all_tokens_, hw_, capacities(hw_));
    frames_ = frames_of(model_, hw_, 4096, options_, {false, 20'000});
    std::erase_if(frames_, [&](const Candidate& c) {
      return !of_all_tokens_->possible(c) || (uneven && !c.strategy.parallel.pipeline.equal_work);
    });
  }

  Evaluator& evaluator() { return *evaluator_; }
  const SpaceOptions& options() const { return options_; }
  const Candidate& frame() { return frames_[random_() % frames_.size()]; }

  GroupValues values(const Candidate& frame) {
    GroupValues values = values_of(frame, options_, true);
    for (std::vector<Strategy>& group : values) {
      std::erase_if(group, [&](const Strategy& s) {
        Candidate c = frame;
        c.strategy = s;
        return !of_all_tokens_->possible(c);
      });
    }
    return values;
  }

  /// `chosen`: the value of each group. None if the knobs do not go together, or the tokens of the
  /// runs do not divide.
  std::optional<Candidate> candidate(const Candidate& frame, const GroupValues& values,
                                     std::array<size_t, kGroupCount>& chosen) {
    Candidate c = frame;
    for (size_t g = 0; g < values.size(); ++g) {
      chosen[g] = random_() % values[g].size();
      take(static_cast<KnobGroup>(g), values[g][chosen[g]], c.strategy);
    }
    if (!is_valid(c.strategy, model_, c.sequence) || !evaluator_->possible(c)) return {};
    return c;
  }

  DemandRows rows(const Candidate& frame, const Strategy& strategy) {
    Candidate c = frame;
    c.strategy = strategy;
    return rows_of(evaluator_->demand(c), 1, evaluator_->limits());
  }

 private:
  HardwareProfile hw_;
  ModelSpec model_, on_all_tokens_;  // as asked, and if runs have all tokens
  SpaceOptions options_;
  std::optional<Evaluator> evaluator_, of_all_tokens_;
  std::vector<Candidate> frames_;
  std::mt19937_64 random_{1};
};

}  // namespace

TEST_CASE("no plan on any mesh of ranks takes less than its bound") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = testing::random_plan(seed);
    check_bound(plan.request, plan.hw);
    if (seed % 5 == 0) {
      const testing::RandomPlan with_experts = testing::random_plan_with_experts(seed);
      check_bound(with_experts.request, with_experts.hw);
      check_bound(testing::balanced(with_experts.request), with_experts.hw);
    }
    if (seed > 50) continue;
    const testing::RandomPlan sliced = testing::sliced_plan(seed);
    check_bound(sliced.request, sliced.hw);
    const testing::RandomPlan forward = testing::forward_plan(seed);
    check_bound(forward.request, forward.hw);
  }
}

TEST_CASE("nor does one of an odd model, with parts of its layers saved elsewhere") {
  HardwareProfile hw = load_hardware("cpu-example");
  hw.nvme.read_bandwidth.value = hw.nvme.write_bandwidth.value = 1e9;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    check_bound(testing::random_request(seed), hw);
    check_bound(testing::in_documents(testing::random_request(seed), seed), hw);
    StepRequest alike = testing::random_request(seed);
    alike.model.window = 0;
    alike.model.span = testing::random_span(alike, seed);
    check_bound(alike, hw);
    check_bound(testing::balanced(testing::sliced_request(seed)), hw);
    check_bound(testing::forward_request(seed), hw);
    check_bound(testing::with_latent_attention(testing::random_request(seed), seed), hw);
    check_bound(testing::with_latent_attention(testing::sliced_request(seed), seed), hw);
    check_bound(testing::with_latent_attention(testing::forward_request(seed), seed), hw);
  }
}

TEST_CASE("bounds are close where little can be hidden") {
  // One device, everything on it: the time is compute alone, and the live bytes at the peak are
  // known.
  const HardwareProfile hw = load_hardware("h100-80g");
  const CostModel cost(hw, DType::bfloat16);
  StepRequest request{load_model("llama-3.1-8b"), {}, 65536, 1, DType::bfloat16};
  request.strategy = testing::all_resident({{}, 65536, 65536});
  const Evaluation exact = evaluate(request, cost);
  const Bound bound = Bounds(request, cost).of(request.strategy);
  CHECK(bound.step_seconds >= 0.98 * exact.step_seconds);
  CHECK(static_cast<double>(bound.peak_bytes[0]) >=
        0.95 * static_cast<double>(exact.peak_bytes[0]));
}

TEST_CASE("what groups of knobs add to a frame's demand adds up to no more than all of it") {
  int compared = 0, piped = 0;
  for (const int64_t devices : {1, 4}) {
    RandomFrames random(devices, int64_t{1} << 26);
    for (int round = 0; round < 150; ++round) {
      const Candidate& frame = random.frame();
      const GroupValues values = random.values(frame);
      const DemandRows base = random.rows(frame, frame.strategy);
      for (int i = 0; i < 4; ++i) {
        std::array<size_t, kGroupCount> chosen;
        const std::optional<Candidate> c = random.candidate(frame, values, chosen);
        if (!c) continue;
        CAPTURE(devices, round, i, chosen, describe(c->strategy.parallel));
        DemandRows sum = base;
        for (size_t g = 0; g < values.size(); ++g) {
          const DemandRows own = random.rows(frame, values[g][chosen[g]]);
          for (int row = 0; row < kRows; ++row) sum[row] += own[row] - base[row];
        }
        const DemandRows all = random.rows(frame, c->strategy);
        for (int row = 0; row < kRows; ++row) {
          CAPTURE(row);
          const bool expected = row >= kBoundRows && row < kTimeRows;
          if (row >= kTimeRows) CHECK(sum[row] == Approx(all[row]).epsilon(kRounding));
          if (row < kTimeRows && !expected) CHECK(sum[row] <= all[row] * (1 + kRounding));
        }
        ++compared;
        piped += c->strategy.parallel.has_pipeline();
      }
    }
  }
  CHECK(compared > 1000);
  CHECK(piped > 100);
}

TEST_CASE("no plan, with a pipeline or without, takes less memory or time than its bound") {
  const int64_t rounds = testing::cases(80, 6000);
  int piped = 0, cut = 0, by_work = 0;
  struct Case {
    int64_t devices, layers, microbatches;
    bool mixed = false, uneven = false;
    int64_t cores = 0, window = 0;
    bool forward_only = false;
  };
  for (const auto& [devices, layers, microbatches, mixed, uneven, cores, window, forward_only] :
       {Case{1, 4, 4}, Case{4, 4, 4}, Case{4, 7, 2}, Case{4, 8, 12}, Case{1, 8, 2, true},
        Case{4, 8, 3, true}, Case{4, 4, 3, false, true}, Case{4, 8, 1, false, true}, Case{4, 8, 1},
        Case{4, 8, 2, false, false, 2}, Case{4, 7, 3, false, false, 1},
        Case{4, 8, 4, false, false, 3}, Case{1, 4, 2, false, false, 0, 300},
        Case{4, 4, 2, false, false, 0, 1500}, Case{4, 8, 1, false, true, 0, 600},
        Case{4, 8, 3, true, false, 0, 700}, Case{1, 4, 4, false, false, 0, 0, true},
        Case{4, 4, 2, false, false, 0, 900, true}, Case{4, 8, 3, true, false, 0, 0, true}}) {
    RandomFrames random(devices, int64_t{1} << 40, layers, microbatches, mixed, uneven, cores,
                        window, forward_only);
    for (int64_t round = 0; round < rounds; ++round) {
      const Candidate& frame = random.frame();
      const GroupValues values = random.values(frame);
      std::array<size_t, kGroupCount> chosen;
      const std::optional<Candidate> c = random.candidate(frame, values, chosen);
      if (!c) continue;
      const ParallelLayout& parallel = c->strategy.parallel;
      CAPTURE(devices, layers, microbatches, mixed, uneven, cores, window, forward_only, round,
              chosen, describe(parallel));
      const Demand demand = random.evaluator().demand(*c);
      const TierBytes bound = demand.peak_bytes();
      const TierBytes bytes = random.evaluator().arenas(*c);
      const double most = mixed ? 1.02 : 1;  // see pipeline_demand.h
      for (int tier = 0; tier < kTierCount; ++tier) {
        CAPTURE(tier);
        CHECK(static_cast<double>(bound[tier]) <= most * static_cast<double>(bytes[tier]));
      }
      const Score exact = random.evaluator().exact(*c);
      if (exact.overflow > 0) continue;
      const double seconds = exact.step_seconds;
      CHECK(demand.step_seconds() <= seconds * (1 + kRounding));
      piped += parallel.has_pipeline();
      cut += cuts_vocabulary(parallel.pipeline);
      by_work += parallel.pipeline.equal_work;
    }
  }
  CHECK(piped > 200);
  CHECK(cut > 20);
  CHECK(by_work > 20);
}

TEST_CASE("no candidate of a frame is faster than the frame's bound, or fits where none may") {
  int fitting = 0, refused = 0, piped = 0;
  for (const int64_t devices : {1, 4}) {
    for (const int64_t device_bytes : {int64_t{1} << 22, int64_t{1} << 24, int64_t{1} << 26}) {
      RandomFrames random(devices, device_bytes);
      for (int round = 0; round < 40; ++round) {
        const Candidate& frame = random.frame();
        const GroupValues values = random.values(frame);
        const Mixture bound = FrameChoice(random.evaluator(), frame, random.options())
                                  .bound(Goal::fastest, std::numeric_limits<double>::infinity());
        REQUIRE(bound.optimal);
        refused += bound.overflow > 0;
        for (int i = 0; i < 4; ++i) {
          std::array<size_t, kGroupCount> chosen;
          const std::optional<Candidate> c = random.candidate(frame, values, chosen);
          if (!c) continue;
          const Score score = random.evaluator().exact(*c);
          if (score.overflow > 0) continue;
          CAPTURE(devices, device_bytes, round, i, chosen, describe(c->strategy.parallel));
          CHECK(bound.overflow == 0);
          CHECK(bound.objective <= score.seconds * (1 + kRounding));
          ++fitting;
          piped += c->strategy.parallel.has_pipeline();
        }
      }
    }
  }
  CHECK(fitting > 200);
  CHECK(refused > 10);
  CHECK(piped > 20);
}

TEST_CASE("bounds never discard the winner") {
  // All of a small space, simulated one by one: none is better than the search's answer.
  const ModelSpec model = load_model("tiny-llama");
  HardwareProfile hw = load_hardware("cpu-example");
  hw.nvme.capacity_bytes.value = 0;
  for (const double device_bytes : {12e6, 24e6, 1e9}) {
    INFO("device bytes " << device_bytes);
    hw.device.memory_bytes.value = device_bytes;
    const auto limits = capacities(hw);
    const int64_t sequence = 4096;
    SearchOptions options;
    options.chunk_tokens = 1024;
    const SearchResult found = search(model, hw, sequence, options);
    CHECK(found.evaluated < found.considered);

    const CostModel cost(hw, DType::float32);
    const testing::Shape shape{{}, sequence, 1024};
    std::vector<Strategy> all = {testing::all_offloaded(shape)};
    for (const testing::Knob& knob : testing::knobs(model, shape, false)) {
      const bool structural = knob.name == "states" || knob.name == "layer_input" ||
                              knob.name == "mlp_inner" || knob.name == "attention_out" ||
                              knob.name == "block" || knob.name == "kv";
      if (!structural) continue;
      std::vector<Strategy> more;
      for (const Strategy& s : all) {
        for (const auto& set : knob.values) set(more.emplace_back(s));
      }
      all = std::move(more);
    }
    REQUIRE(all.size() == 4 * 2 * 3 * 3 * 2 * 2);
    double fastest = 1e300;
    for (const Strategy& s : all) {
      const StepRequest request{fit_to_length(model, sequence), s, sequence, 1, DType::float32};
      const Evaluation e = evaluate(request, cost);
      bool fits = true;
      for (int tier = 0; tier < kTierCount; ++tier) fits &= e.peak_bytes[tier] <= limits[tier];
      if (fits) fastest = std::min(fastest, e.step_seconds);
    }
    REQUIRE(fastest < 1e300);
    CHECK(found.best.predicted.step_seconds <= fastest * 1.001);
  }
}

}  // namespace longspan
