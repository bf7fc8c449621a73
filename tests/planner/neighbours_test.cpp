// Neighbours differ by one knob, and the statements about each of them are true.
#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/neighbour_result.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/schedule/registry.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"
#include "tests/length.h"
#include "tests/planner/random_plan.h"
#include "tests/planner/small_machine.h"

namespace longspan {
namespace {

int64_t largest_chunk(const Strategy& s, int64_t sequence) {
  return sequence / (s.parallel.ring > 1 ? 2 * s.parallel.ring : 1);
}

// Knobs that two strategies differ by. A chunk that is as long as possible, and one block of
// everything, are the same knob setting on another mesh; blocks are counted in chunks.
int differences(const Strategy& a, const Strategy& b, int64_t sequence) {
  const ParallelLayout &p = a.parallel, &q = b.parallel;
  const auto largest = [&](const Strategy& s) {
    return s.chunk_tokens == largest_chunk(s, sequence);
  };
  const auto whole = [&](const Strategy& s) {
    return s.block_tokens == sequence / s.parallel.ring;
  };
  const auto per_block = [](const Strategy& s) { return s.block_tokens / s.chunk_tokens; };
  int count = std::tie(p.data, p.tensor, p.ring, p.ulysses) !=
              std::tie(q.data, q.tensor, q.ring, q.ulysses);
  count += p.zero != q.zero;
  count += p.expert != q.expert;
  count += p.overlap != q.overlap;
  count += a.chunk_tokens != b.chunk_tokens && !(p != q && largest(a) && largest(b));
  count += per_block(a) != per_block(b) && !(whole(a) && whole(b));
  count += a.head_groups != b.head_groups;
  count += a.kv != b.kv;
  count += a.between_uses != b.between_uses;
  count += a.prefetch_depth != b.prefetch_depth;
  count += a.offload_window != b.offload_window;
  count += a.backward_order != b.backward_order;
  count += a.deterministic != b.deterministic;
  count += a.early_update != b.early_update;
  count += a.layer_input != b.layer_input;
  count += a.qkv != b.qkv;
  count += a.attention_out != b.attention_out;
  count += a.mlp_input != b.mlp_input;
  count += a.mlp_inner != b.mlp_inner;
  count += a.projection_tile != b.projection_tile;
  count += a.mlp_tile != b.mlp_tile;
  count += a.loss_tile != b.loss_tile;
  count += a.parameters != b.parameters;
  count += a.gradients != b.gradients;
  count += a.optimizer != b.optimizer;
  return count;
}

Plan plan_of(const Strategy& strategy, int64_t sequence, const HardwareProfile& hw) {
  Plan plan;
  plan.model = testing::small_model();
  plan.hardware = hw;
  plan.sequence = sequence;
  plan.dtype = default_dtype(hw);
  plan.strategy = strategy;
  return plan;
}

// A plan of one schedule on 4 devices, two of which are stages, with random knobs.
Plan pipeline_plan(const ScheduleFamily& family, uint64_t seed, const HardwareProfile& hw) {
  std::mt19937_64 random(seed);
  const auto either = [&](auto a, auto b) { return random() % 2 == 0 ? a : b; };
  ParallelLayout mesh;
  *std::array{&mesh.data, &mesh.ulysses, &mesh.tensor}[random() % 3] = 2;
  mesh.zero = 1;
  mesh.pipeline.stages = 2;
  mesh.pipeline.schedule = family.name;
  mesh.pipeline.virtual_stages = std::max<int64_t>(1, family.least_virtual_stages);
  mesh.pipeline.slices = family.sliced ? 4 : 1;
  Plan plan = plan_of({}, 4096, hw);
  plan.model.layers = 8;
  plan.microbatches = 4;
  Strategy& s = plan.strategy;
  s.parallel = mesh;
  s.chunk_tokens = s.block_tokens = either(512, 1024);
  s.layer_input.where = either(Saved::keep, Saved::host);
  s.qkv.where = either(Saved::keep, Saved::host);
  s.mlp_inner.where = either(Saved::recompute, Saved::host);
  s.optimizer = either(Tier::device, Tier::host);
  return plan;
}

// As `simulate` evaluates a plan; none if it refuses it.
std::optional<PipelineStep> simulated(const Plan& plan) {
  try {
    validate(plan.strategy, plan.model, plan.sequence, "");
    return pipeline_step(plan);
  } catch (const Error&) {
    return {};
  }
}

bool fits(const std::array<int64_t, kTierCount>& bytes, const HardwareProfile& hw) {
  const auto limits = capacities(hw);
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (bytes[tier] > limits[tier]) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("neighbours differ by one knob, and are all different") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const testing::RandomPlan plan = testing::random_plan(seed);
    const StepRequest& r = plan.request;
    const std::vector<Neighbour> all = neighbours(r.strategy, r.sequence, true);
    CHECK(all.size() > 15);
    for (size_t i = 0; i < all.size(); ++i) {
      INFO(all[i].knob << ": " << all[i].from << " to " << all[i].to);
      CHECK(differences(r.strategy, all[i].strategy, r.sequence) == 1);
      CHECK(all[i].strategy.parallel.ranks() == r.strategy.parallel.ranks());
      CHECK(all[i].from != all[i].to);
      for (size_t j = 0; j < i; ++j) CHECK_FALSE(all[i].strategy == all[j].strategy);
    }
    const std::vector<Neighbour> again = neighbours(r.strategy, r.sequence, true);
    REQUIRE(again.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i) CHECK(again[i].strategy == all[i].strategy);
  }
}

TEST_CASE("what is turned back is the plan again") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const testing::RandomPlan plan = testing::random_plan(seed);
    const StepRequest& r = plan.request;
    for (const Neighbour& n : neighbours(r.strategy, r.sequence, true)) {
      // Policies, tiers and stages; sizes need not be powers of two.
      if (!n.knob.starts_with("saved.") && !n.knob.starts_with("states.")) continue;
      INFO(seed << " " << n.knob << " " << n.to);
      const std::vector<Neighbour> back = neighbours(n.strategy, r.sequence, true);
      CHECK(std::any_of(back.begin(), back.end(),
                        [&](const Neighbour& b) { return b.strategy == r.strategy; }));
    }
  }
}

TEST_CASE("every verdict is true: the bytes too large, the seconds slower") {
  const int64_t sequence = 8192;
  std::set<LimitingFactor> met;
  int lifted = 0;
  for (const int64_t devices : {1, 4}) {
    for (const int64_t device_bytes : {24 * testing::kMiB, 48 * testing::kMiB}) {
      if (devices == 4 && device_bytes == 48 * testing::kMiB && !testing::whole_length()) continue;
      const HardwareProfile hw =
          testing::small_machine(1, devices, device_bytes, devices * 64 * testing::kMiB);
      Plan plan;
      try {
        plan = search(testing::small_model(), hw, sequence, {}).best;
      } catch (const Error&) {
        continue;
      }
      const NeighbourJudge judge(plan);
      const CostModel cost(hw, plan.dtype);
      const std::vector<NeighbourResult> results = judge.results();
      REQUIRE(results.size() > 15);
      for (const NeighbourResult& v : results) {
        INFO(devices << " devices, " << v.neighbour.knob << " " << v.neighbour.to << ": "
                     << name_of(v.limiting_factor) << " " << v.reason);
        met.insert(v.limiting_factor);
        Plan changed = plan;
        changed.strategy = v.neighbour.strategy;
        if (v.limiting_factor == LimitingFactor::heads ||
            v.limiting_factor == LimitingFactor::divisibility ||
            v.limiting_factor == LimitingFactor::rules) {
          CHECK_FALSE(v.reason.empty());
          CHECK_THROWS_AS(validate(changed.strategy, changed.model, sequence, ""), Error);
          continue;
        }
        const Evaluation exact = evaluate(step_request(changed), cost);
        CHECK(v.peak_bytes == exact.peak_bytes);
        CHECK(v.fits() == fits(exact.peak_bytes, hw));
        if (v.fits()) {
          const auto replicas = [](const Plan& p) {
            return static_cast<double>(p.strategy.parallel.data);
          };
          const double slower =
              exact.step_seconds / replicas(changed) * replicas(plan) - judge.seconds();
          if (v.seconds_slower != 0) {
            CHECK(v.seconds_slower == Approx(slower).margin(1e-9 * judge.seconds()));
          } else {
            CHECK(std::abs(slower) <= 0.005 * judge.seconds());
          }
          CHECK((v.seconds_slower > 0) == (v.limiting_factor != LimitingFactor::none));
          continue;
        }
        // That many bytes more are enough, and one less is not.
        for (const int64_t less : {0, 1}) {
          HardwareProfile larger = hw;
          for (const auto& [figure, tier, shared] :
               {std::tuple{&larger.device.memory_bytes, 0, int64_t{1}},
                {&larger.host.memory_bytes, 1, devices}}) {
            const int64_t missing = v.short_bytes[tier];
            if (missing > 0) figure->value += static_cast<double>((missing - less) * shared);
          }
          CHECK(fits(exact.peak_bytes, larger) == (less == 0));
        }
        // The second knob that a remedy names does help.
        const std::string remedy = judge.remedy(v);
        CHECK_FALSE(remedy.empty());
        for (const Neighbour& n : neighbours(v.neighbour.strategy, sequence, false)) {
          if (!remedy.starts_with("set " + n.knob + " to " + n.to + " (")) continue;
          StepRequest request = step_request(plan);
          request.strategy = n.strategy;
          CHECK(fits(exact_peak_bytes(request), hw));
          ++lifted;
        }
      }
    }
  }
  CHECK(met.contains(LimitingFactor::none));
  CHECK(met.contains(LimitingFactor::device_memory));
  CHECK(met.contains(LimitingFactor::rules));
  CHECK(lifted > 0);
}

TEST_CASE("a pipeline's neighbours are judged as the plan with the change is simulated") {
  const HardwareProfile large =
      testing::small_machine(1, 4, 4096 * testing::kMiB, 4 * 4096 * testing::kMiB);
  std::set<std::string_view> schedules;
  int fit = 0, too_large = 0, invalid = 0, recommended = 0;
  int64_t turn = 0;
  for (const ScheduleFamily& family : schedule_families()) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      if (!family.plannable || !testing::in_turn(turn++, 4)) continue;
      Plan plan = pipeline_plan(family, seed, large);
      const std::optional<PipelineStep> own = simulated(plan);
      if (!own) continue;
      // The plan nearly fills the device; with the first seed it does not fit.
      HardwareProfile& hw = plan.hardware;
      hw.device.memory_bytes.value =
          (seed == 1 ? 0.95 : 1.05) * static_cast<double>(own->whole.peak_bytes[0]);
      schedules.insert(family.name);
      const NeighbourJudge judge(plan);
      CHECK(judge.seconds() == own->whole.step_seconds);
      const std::vector<NeighbourResult> results = judge.results();
      for (const NeighbourResult& v : results) {
        INFO(family.name << ", seed " << seed << ", " << v.neighbour.knob << " " << v.neighbour.to
                         << ": " << name_of(v.limiting_factor) << " " << v.reason);
        Plan changed = plan;
        changed.strategy = v.neighbour.strategy;
        const std::optional<PipelineStep> step = simulated(changed);
        CHECK(v.invalid() == !step);
        invalid += v.invalid();
        if (!step) continue;
        CHECK(v.fidelity == Fidelity::laid_out);
        CHECK(v.peak_bytes == step->whole.peak_bytes);
        CHECK(v.fits() == fits(step->whole.peak_bytes, hw));
        too_large += v.too_large();
        if (!v.fits()) continue;
        ++fit;
        const double slower = step->whole.step_seconds *
                                  static_cast<double>(plan.strategy.parallel.data) /
                                  static_cast<double>(changed.strategy.parallel.data) -
                              own->whole.step_seconds;
        const bool is_same = std::abs(slower) <= 0.005 * own->whole.step_seconds;
        CHECK(v.seconds_slower == Approx(is_same ? 0 : slower));
      }
      // A suggestion compares with the plan's own bytes, and names a change that fits.
      for (const std::string& line : judge.suggestions(results)) {
        INFO(family.name << ", seed " << seed << ": " << line);
        if (line.starts_with("device memory: ")) {
          CHECK_THAT(line, Catch::Contains(" instead of " + format_bytes(own->whole.peak_bytes[0]) +
                                           ", "));
        }
        for (const NeighbourResult& v : results) {
          const Neighbour& n = v.neighbour;
          if (line.find("set " + n.knob + " to " + n.to + " instead of " + n.from) == line.npos) {
            continue;
          }
          CHECK(v.fits());
          ++recommended;
        }
      }
    }
  }
  CHECK(schedules.size() > 10);
  CHECK(fit > 50);
  CHECK(too_large > 50);
  CHECK(invalid > 20);
  CHECK(recommended > 5);
}

TEST_CASE("a pipeline that takes long to lay out is recommended nothing by samples alone") {
  const HardwareProfile hw =
      testing::small_machine(1, 2, 256 * testing::kMiB, 2 * 256 * testing::kMiB);
  Plan plan = plan_of({}, 140 * 64, hw);
  plan.microbatches = 5;
  Strategy& s = plan.strategy;
  s.parallel.pipeline.stages = 2;
  s.chunk_tokens = s.block_tokens = 64;
  s.kv = Tier::host;
  s.layer_input.where = s.qkv.where = Saved::host;
  s.mlp_inner.where = Saved::recompute;
  const Evaluation own = pipeline_step(plan).whole;
  const NeighbourJudge judge(plan, own);
  const std::vector<NeighbourResult> results = judge.results();
  int sampled = 0, named = 0;
  for (const NeighbourResult& v : results) {
    if (v.fidelity != Fidelity::sampled) continue;
    ++sampled;
    INFO(v.neighbour.knob << " " << v.neighbour.to << ": " << v.reason);
    CHECK_THAT(v.reason, Catch::Contains("about "));
    if (v.too_large()) CHECK_THAT(judge.remedy(v), Catch::StartsWith("about "));
  }
  for (const std::string& line : judge.suggestions(results)) {
    for (const NeighbourResult& v : results) {
      const Neighbour& n = v.neighbour;
      if (line.find("set " + n.knob + " to " + n.to + " instead of " + n.from) == line.npos) {
        continue;
      }
      INFO(line);
      Plan changed = plan;
      changed.strategy = n.strategy;
      const Evaluation exact = pipeline_step(changed).whole;
      CHECK(v.fidelity == Fidelity::laid_out);
      CHECK(v.peak_bytes == exact.peak_bytes);
      CHECK(fits(exact.peak_bytes, hw));
      ++named;
    }
  }
  CHECK(sampled > 10);
  CHECK(named > 0);
}

TEST_CASE("a program too large to evaluate is neither possible nor impossible") {
  const HardwareProfile hw =
      testing::small_machine(1, 1, 1024 * testing::kMiB, 1024 * testing::kMiB);
  Plan plan = plan_of({}, 180 * 128, hw);
  plan.strategy.chunk_tokens = plan.strategy.block_tokens = 128;
  plan.model.layers = 2;
  const NeighbourJudge judge(plan);
  const std::vector<NeighbourResult> results = judge.results();
  int open = 0;
  for (const NeighbourResult& v : results) {
    if (!v.open()) continue;
    ++open;
    CHECK(name_of(v.limiting_factor) == "program size");
    CHECK_THAT(v.reason, Catch::Contains(" chunks make ") && Catch::EndsWith("to evaluate"));
    CHECK(judge.remedy(v) == "a larger chunk");
    CHECK_FALSE((v.invalid() || v.fits() || v.too_large()));
  }
  CHECK(open > 0);
  CHECK_THAT(summary_of(results),
             Catch::EndsWith(", " + std::to_string(open) + " too large to evaluate"));
}

TEST_CASE("what breaks a rule is named, and every memory that is short") {
  const HardwareProfile hw = testing::small_machine(1, 2, 8 * testing::kMiB, 2 * testing::kMiB);
  Plan plan = plan_of({}, 4096, hw);
  Strategy& s = plan.strategy;
  s.parallel.pipeline = {.stages = 2, .schedule = "slimpipe", .slices = 4};
  s.chunk_tokens = s.block_tokens = 1024;
  bool rule = false, both = false;
  for (const NeighbourResult& v : NeighbourJudge(plan).results()) {
    INFO(v.neighbour.knob << " " << v.neighbour.to << ": " << v.reason);
    if (v.neighbour.knob == "kv" && v.neighbour.to == "host") {
      CHECK(v.reason == "kv: expected device where ranks share the attention of slices");
      rule = true;
    }
    if (v.short_bytes[0] > 0 && v.short_bytes[1] > 0) {
      CHECK(v.reason == "short by " + format_bytes(v.short_bytes[0]) + " of device memory and " +
                            format_bytes(v.short_bytes[1]) + " of host memory");
      both = true;
    }
  }
  CHECK(rule);
  CHECK(both);
}

TEST_CASE("heads that cannot be distributed are counted") {
  Strategy s = make_preset("ulysses", testing::small_model(), 8192, 0, {2, 1, 8, 3});
  const NeighbourJudge judge(
      plan_of(s, 8192, testing::small_machine(1, 16, 1024 * testing::kMiB, 16384 * testing::kMiB)));
  bool found = false;
  for (const NeighbourResult& v : judge.results()) {
    if (v.limiting_factor != LimitingFactor::heads || v.neighbour.strategy.parallel.ulysses != 16)
      continue;
    CHECK(v.reason == "8 heads over 16 ranks");
    CHECK_THAT(judge.remedy(v), Catch::Contains("1, 2, 4, 8"));
    found = true;
  }
  CHECK(found);
}

TEST_CASE("a slow link is what is in the way of offloading, a slow network of exchanges") {
  const int64_t sequence = 4096;
  HardwareProfile hw = testing::small_machine(1, 2, 4096 * testing::kMiB, 8192 * testing::kMiB);
  hw.link.h2d_bandwidth.value = hw.link.d2h_bandwidth.value = 1e7;
  hw.rates.erase("copy_h2d");
  hw.rates.erase("copy_d2h");
  hw.node_fabric.bandwidth.value = 1e7;
  Strategy s = make_preset("baseline", testing::small_model(), sequence, 0, {2, 1, 1, 0});
  const Plan plan = plan_of(s, sequence, hw);
  bool offload = false, exchange = false;
  for (const NeighbourResult& v : NeighbourJudge(plan).results()) {
    if (v.neighbour.knob == "saved.mlp_inner" && v.neighbour.to == "host") {
      CHECK(v.limiting_factor == LimitingFactor::pcie_time);
      offload = true;
    }
    if (v.neighbour.strategy.parallel.ring == 2) {
      CHECK(v.limiting_factor == LimitingFactor::network_time);
      exchange = true;
    }
    if (v.neighbour.knob == "saved.attention_out" && v.neighbour.to == "recompute") {
      CHECK(v.limiting_factor == LimitingFactor::compute_time);
    }
  }
  CHECK(offload);
  CHECK(exchange);
}

TEST_CASE("a plan that a neighbour beats is called so, and the search's is not") {
  const HardwareProfile hw =
      testing::small_machine(1, 1, 1024 * testing::kMiB, 4096 * testing::kMiB);
  const Plan slow = plan_of(make_preset("checkpoint", testing::small_model(), 4096), 4096, hw);
  const std::vector<NeighbourResult> results = NeighbourJudge(slow).results();
  CHECK_THAT(summary_of(results), Catch::Contains("not the best"));
  const std::vector<size_t> informative = most_informative(results, 8);
  REQUIRE(informative.size() == 8);
  CHECK(results[informative[0]].faster());
  const Plan best = search(testing::small_model(), hw, 4096, {}).best;
  CHECK_THAT(summary_of(NeighbourJudge(best).results()), Catch::Contains("No neighbour is faster"));
}

}  // namespace longspan
