// Moments in other formats: an update by plain formulas, exact bytes, checkpoints that continue bit
// for bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "engine/comm/local.h"
#include "engine/cpu/blocks.h"
#include "engine/train/trainer.h"
#include "models/adapters.h"
#include "models/nf4.h"
#include "planner/program/moment_format.h"
#include "tests/engine/plan_reference.h"
#include "tests/engine/training_fixture.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {
namespace {

constexpr MomentFormat kFormats[] = {MomentFormat::float32, MomentFormat::bfloat16,
                                     MomentFormat::int8};

// The nearest level of a block's scale, by looking at all of them.
std::vector<float> plainly_rounded(MomentFormat format, bool second,
                                   const std::vector<float>& values) {
  std::vector<float> rounded = values;
  if (format == MomentFormat::bfloat16) {
    for (float& value : rounded) value = widen(narrow(value));
  }
  if (format != MomentFormat::int8) return rounded;
  const auto& levels = second ? second_moment_levels() : first_moment_levels();
  for (size_t first = 0; first < values.size(); first += 256) {
    const size_t end = std::min(values.size(), first + 256);
    float scale = 0;
    for (size_t i = first; i < end; ++i) scale = std::max(scale, std::abs(values[i]));
    for (size_t i = first; i < end && scale > 0; ++i) {
      float best = levels[0];
      for (const float level : levels) {
        const float x = values[i] / scale;
        if (std::abs(x - level) < std::abs(x - best)) best = level;
      }
      rounded[i] = best * scale;
    }
  }
  return rounded;
}

std::vector<float> read_all(MomentFormat format, bool second, const std::vector<std::byte>& bytes,
                            int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t first = 0; first < n; first += kMomentBlock) {
    read_moment(format, second, bytes.data(), n, first, std::min(kMomentBlock, n - first),
                values.data() + first);
  }
  return values;
}

void write_all(MomentFormat format, bool second, const std::vector<float>& values,
               std::vector<std::byte>& bytes) {
  const auto n = static_cast<int64_t>(values.size());
  for (int64_t first = 0; first < n; first += kMomentBlock) {
    write_moment(format, second, values.data() + first, n, first, std::min(kMomentBlock, n - first),
                 bytes.data());
  }
}

std::vector<std::vector<std::byte>> state_bytes_of(const Trainer& trainer) {
  const Program& p = trainer.executor().program();
  std::vector<std::vector<std::byte>> states;
  for (const auto* buffers : {&p.parameters, &p.adam_m, &p.adam_v}) {
    for (const BufferId id : *buffers) {
      if (id < 0) continue;
      auto& bytes = states.emplace_back(static_cast<size_t>(p.bytes_of(id)));
      trainer.executor().read(id, bytes.data());
    }
  }
  return states;
}

}  // namespace

TEST_CASE("levels ascend, end at one and are as dense as they should be", "[moments]") {
  for (const auto* levels : {&first_moment_levels(), &second_moment_levels()}) {
    CHECK(std::is_sorted(levels->begin(), levels->end()));
    CHECK(levels->back() == 1);
    CHECK(std::count(levels->begin(), levels->end(), 0.0F) == 1);
  }
  CHECK(first_moment_levels().front() == -1);
  CHECK(second_moment_levels().front() == 0);
  // The middles of halves and quarters of [0.1, 1) in the smallest decades, as bitsandbytes has
  // them.
  CHECK(second_moment_levels()[1] == Approx(0.325e-6));
  CHECK(second_moment_levels()[2] == Approx(0.775e-6));
  CHECK(second_moment_levels()[3] == Approx(0.2125e-5));
  CHECK(first_moment_levels()[128] == Approx(0.55e-6));
}

TEST_CASE("moments keep the nearest numbers, and their bits when written again", "[moments]") {
  std::mt19937_64 random(3);
  for (const MomentFormat format : kFormats) {
    for (const bool second : {false, true}) {
      for (const int64_t n : {1, 255, 256, 1000}) {
        std::vector<float> values(static_cast<size_t>(n));
        for (float& value : values) {
          const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
          value = static_cast<float>(std::pow(10, -6 * uniform));
          if (!second && random() % 2 == 0) value = -value;
        }
        std::vector<std::byte> bytes(static_cast<size_t>(moment_bytes(format, n)));
        write_all(format, second, values, bytes);
        const std::vector<float> read = read_all(format, second, bytes, n);
        CHECK(read == plainly_rounded(format, second, values));
        std::vector<std::byte> again(bytes.size());
        write_all(format, second, read, again);
        CHECK(again == bytes);
      }
    }
  }
}

TEST_CASE("an update with moments in a format is AdamW of the rounded ones", "[moments]") {
  constexpr int64_t n = 900;
  std::mt19937_64 random(5);
  const auto draw = [&](double from, double to) {
    return static_cast<float>(from + (to - from) * static_cast<double>(random() >> 11) * 0x1p-53);
  };
  cpu::AdamWStep step;
  step.learning_rate = 0.01;
  step.gradient_scale = 0.5;
  // Numbers 700 to 719 are padding.
  const std::vector<cpu::AdamWPart> parts = {
      {0, 300, true}, {300, 17, false}, {317, 383, true}, {720, 180, false}};
  for (const MomentFormat format : kFormats) {
    ThreadPool one(1), three(3);
    std::vector<float> p(n), m(n), v(n);
    for (float& value : p) value = draw(-1, 1);
    const auto bytes = static_cast<size_t>(moment_bytes(format, n));
    std::vector<std::byte> m_bytes(bytes), v_bytes(bytes);
    write_all(format, false, m, m_bytes);
    write_all(format, true, v, v_bytes);
    std::vector<float> p_three = p;
    std::vector<std::byte> m_three = m_bytes, v_three = v_bytes;
    for (step.step = 1; step.step <= 4; ++step.step) {
      std::vector<float> g(n), before = p;
      for (float& value : g) value = draw(-1, 1);
      cpu::adamw_in_format(one, step, 0.1, format, parts, g.data(), n, p.data(), m_bytes.data(),
                           v_bytes.data());
      cpu::adamw_in_format(three, step, 0.1, format, parts, g.data(), n, p_three.data(),
                           m_three.data(), v_three.data());
      for (const cpu::AdamWPart& part : parts) {
        for (int64_t i = part.first; i < part.first + part.count; ++i) {
          const double gradient = 0.5 * g[i];
          m[i] = static_cast<float>(0.9 * m[i] + 0.1 * gradient);
          v[i] = static_cast<float>(0.95 * v[i] + 0.05 * gradient * gradient);
          const auto t = static_cast<double>(step.step);
          const double mean = m[i] / (1 - std::pow(0.9, t)),
                       square = v[i] / (1 - std::pow(0.95, t));
          const double expected = (1 - 0.01 * (part.decays ? 0.1 : 0)) * before[i] -
                                  0.01 * mean / (std::sqrt(square) + 1e-8);
          CHECK(p[i] == Approx(expected).margin(1e-6));
        }
      }
      for (int64_t i = 700; i < 720; ++i) CHECK(p[i] == before[i]);
      // The next update begins with the rounded moments.
      m = plainly_rounded(format, false, m);
      v = plainly_rounded(format, true, v);
      const std::vector<float> held = read_all(format, false, m_bytes, n);
      for (int64_t i = 0; i < n; ++i) CHECK(held[i] == Approx(m[i]).epsilon(0.02).margin(1e-7));
      m = held;
      v = read_all(format, true, v_bytes, n);
    }
    CHECK(p_three == p);
    CHECK(m_three == m_bytes);
    CHECK(v_three == v_bytes);
  }
}

TEST_CASE("an update of parameters in bfloat16 is AdamW, rounded once", "[moments]") {
  constexpr int64_t n = 900;
  std::mt19937_64 random(6);
  const auto draw = [&](double from, double to) {
    return static_cast<float>(from + (to - from) * static_cast<double>(random() >> 11) * 0x1p-53);
  };
  cpu::AdamWStep step;
  step.learning_rate = 0.01;
  const std::vector<cpu::AdamWPart> parts = {{0, 300, true}, {300, 600, false}};
  for (const MomentFormat format : kFormats) {
    ThreadPool one(1), three(3);
    std::vector<bfloat16> p(n);
    for (bfloat16& value : p) value = narrow(draw(-1, 1));
    std::vector<std::byte> m(static_cast<size_t>(moment_bytes(format, n))), v = m;
    std::vector<float> wide(n);
    std::vector<std::byte> m_wide = m, v_wide = v, m_three = m, v_three = v;
    std::vector<bfloat16> p_three = p;
    for (step.step = 1; step.step <= 4; ++step.step) {
      std::vector<float> g(n);
      for (float& value : g) value = draw(-1, 1);
      // The same update of float parameters, which begin with the rounded ones.
      for (int64_t i = 0; i < n; ++i) wide[i] = widen(p[i]);
      cpu::adamw_in_format(one, step, 0.1, format, parts, g.data(), n, wide.data(), m_wide.data(),
                           v_wide.data());
      cpu::adamw_in_format(one, step, 0.1, format, parts, g.data(), n, p.data(), m.data(),
                           v.data());
      cpu::adamw_in_format(three, step, 0.1, format, parts, g.data(), n, p_three.data(),
                           m_three.data(), v_three.data());
      for (int64_t i = 0; i < n; ++i) {
        CHECK(p[i].bits == narrow(wide[i]).bits);
        CHECK(p[i].bits == p_three[i].bits);
      }
      CHECK(m == m_wide);
      CHECK(v == v_wide);
    }
  }
}

TEST_CASE("plans take moments in any format, with exactly their bytes", "[moments]") {
  std::map<MomentFormat, int64_t> held;
  for (const MomentFormat format : kFormats) {
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      for (auto [name, strategy] : strategies(16)) {
        if (name == "away, kv-outer" && tier == Tier::device) continue;  // gradients on the host
        StepCase step;
        step.model = small_llama();
        step.strategy = strategy;
        step.strategy.optimizer = tier;
        step.strategy.moments = format;
        step.sequence = 64;
        INFO(name << ", " << name_of(tier) << ", " << name_of(format));
        check_against_reference(step, 1e-5);
        if (name == "kept" && tier == Tier::nvme) held[format] = run_step(step).arena_bytes[2];
      }
    }
  }
  CHECK(held[MomentFormat::bfloat16] < 0.52 * static_cast<double>(held[MomentFormat::float32]));
  CHECK(held[MomentFormat::int8] < 0.28 * static_cast<double>(held[MomentFormat::float32]));
  for (const int64_t zero : {1, 2, 3}) {
    StepCase step;
    step.model = small_llama();
    step.strategy = strategies(16)["kept"];
    step.strategy.parallel = {2, 1, 1, zero};
    step.strategy.moments = zero == 2 ? MomentFormat::bfloat16 : MomentFormat::int8;
    step.sequence = 64;
    step.threads = 1;
    check_against_one_rank(step);
  }
}

TEST_CASE("training with narrow moments learns, and continues bit for bit", "[moments]") {
  TrainingConfig config;
  config.steps = 12;
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "longspan-moments.safetensors";
  std::map<MomentFormat, double> losses;
  for (const MomentFormat format : kFormats) {
    for (Strategy strategy : {whole_sequence(128), chunked_and_offloaded(32)}) {
      INFO(name_of(format));
      strategy.moments = format;
      const Plan plan = plan_for(byte_llama(), strategy, 128);
      Trainer whole(plan, config, example_text(128), {}),
          begun(plan, config, example_text(128), {});
      for (int step = 0; step < 12; ++step) losses[format] = whole.step().loss;
      for (int step = 0; step < 5; ++step) begun.step();
      begun.save_checkpoint(path);
      Trainer continued(plan, config, example_text(128), {});
      continued.resume(path);
      CHECK(state_bytes_of(continued) == state_bytes_of(begun));
      for (int step = 5; step < 12; ++step) continued.step();
      CHECK(state_bytes_of(continued) == state_bytes_of(whole));
    }
  }
  std::filesystem::remove(path);
  for (const MomentFormat format : kFormats) {
    CHECK(losses[format] == Approx(losses[MomentFormat::float32]).epsilon(0.01));
  }
}

TEST_CASE("frozen layers in 4 bits give the numbers of their nearest levels", "[nf4]") {
  for (const char* projections : {"all", "q_proj,v_proj"}) {
    for (const ModelSpec& of : {small_llama(), small_gemma()}) {
      for (auto [name, strategy] : strategies(16)) {
        for (const bool on_host : {false, true}) {
          StepCase step;
          step.model = with_adapters(of, {3, 6, parse_projections(projections)});
          step.model.nf4 = true;
          step.strategy = strategy;
          if (on_host) {
            step.strategy.parameters = step.strategy.gradients = step.strategy.optimizer =
                Tier::host;
          }
          step.sequence = 64;
          step.microbatches = 2;
          INFO(step.model.name << ", " << projections << ", " << name << (on_host ? ", host" : ""));
          check_against_reference(step, 1e-5);
        }
      }
    }
  }
  StepCase experts;
  experts.model = with_adapters(small_mixtral(), {3, 6, parse_projections("q_proj,o_proj")});
  experts.model.nf4 = true;
  experts.strategy = strategies(16)["kept"];
  experts.sequence = 64;
  check_against_reference(experts, 1e-5);
}

TEST_CASE("weights in 4 bits take what they should, on any mesh, and stay", "[nf4]") {
  for (const ParallelLayout& mesh : {ParallelLayout{1, 1, 2, 0}, ParallelLayout{2, 1, 1, 1},
                                     ParallelLayout{2, 1, 1, 2}, ParallelLayout{1, 2, 1, 0}}) {
    StepCase step;
    step.model = with_adapters(model_with_heads(small_llama(), 8, 4),
                               {3, 6, parse_projections("q_proj,down_proj")});
    step.model.nf4 = true;
    step.strategy = strategies(16)["kept"];
    step.strategy.parallel = mesh;
    step.sequence = 64;
    step.threads = 1;
    INFO(describe(mesh));
    StepCase alone = step;
    alone.strategy.parallel = {};
    alone.microbatches *= mesh.data;
    const StepOutcome expected = run_step(alone);
    const WorldOutcome world = run_world(step);
    for (const StepOutcome& rank : world.ranks) {
      CHECK(rank.loss == Approx(expected.loss).epsilon(1e-5));
      CHECK(rank.gradient_norm == Approx(expected.gradient_norm).epsilon(1e-5));
      CHECK(rank.high_water_bytes == rank.arena_bytes);
    }
  }
  ModelSpec model = with_adapters(byte_llama(), {4, 8, parse_projections("all")});
  model.nf4 = true;
  TrainingConfig config;
  config.steps = 20;
  const Plan plan = plan_for(model, whole_sequence(128), 128);
  Trainer trainer(plan, config, example_text(128), {});
  const auto before = state_bytes_of(trainer);
  for (int step = 0; step < 20; ++step) trainer.step();
  const auto after = state_bytes_of(trainer);
  const std::vector<ParameterUnit> units = parameter_units(model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    CHECK((after[unit] == before[unit]) == !units[unit].trained);
  }
  // A layer has 0.5 byte and a 64th of a float for each number of its matrices.
  const Nf4Layout layout(units[1], 4);
  CHECK(static_cast<int64_t>(after[1].size()) ==
        layout.in_matrices / 2 + layout.in_matrices / 16 + 4 * layout.plain);
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "longspan-nf4.safetensors";
  trainer.save_checkpoint(path);
  Trainer continued(plan, config, example_text(128), {});
  continued.resume(path);
  CHECK(state_bytes_of(continued) == after);
  std::filesystem::remove(path);
}

}  // namespace longspan::testing
