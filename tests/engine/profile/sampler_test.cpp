// Rounds, repeats and parts of the sampler, with samples that only say how long they took.
#include "engine/profile/sampler.h"

#include <catch2/catch.hpp>
#include <thread>

using namespace longspan;

namespace {

const auto kNothing = [] {};
const auto kSilent = [](const std::string&, double) {};

}  // namespace

TEST_CASE("short samples are repeated within a round, and counted run by run") {
  Sampler sampler;
  std::vector<int> repeats;
  sampler.add("gemm_nt", {1, 2, 3}, 1e3, [&](int times) {
    repeats.push_back(times);
    return 1e-5 * times;
  });
  int singles = 0;
  sampler.add("add", {4, 5, 1}, 10, [&] {
    ++singles;
    return 20e-3;
  });
  sampler.measure(1e-9, kNothing, kSilent);
  CHECK(repeats == std::vector<int>{1, 100});  // a millisecond's worth, after the first round
  CHECK(singles == 2);
  const auto tables = sampler.tables();
  CHECK(tables.at("gemm_nt").unit == "FLOP/s");
  REQUIRE(tables.at("gemm_nt").points.size() == 1);
  CHECK(tables.at("gemm_nt").points[0].shape == std::array<double, 3>{1, 2, 3});
  CHECK(tables.at("gemm_nt").points[0].rate == Approx(1e8));
  CHECK(tables.at("add").points.at(0).rate == Approx(500));
}

TEST_CASE("parts whose turn comes late are left out whole, the first never") {
  const auto families = [](double budget) {
    Sampler sampler;
    const auto sample = [](double seconds) {
      return [seconds] {
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        return seconds;
      };
    };
    sampler.add("add", {1, 1, 1}, 1, sample(0.02));
    sampler.begin_optional();
    sampler.add("rope", {1, 1, 1}, 1, sample(0.02));
    sampler.add("loss", {1, 1, 1}, 1, sample(0));
    sampler.begin_optional();
    sampler.add("zero", {1, 1, 1}, 1, sample(0));
    // Where there is time for years, three rounds must do.
    int rounds = 0;
    try {
      sampler.measure(
          budget,
          [&] {
            if (++rounds > 3) throw rounds;
          },
          kSilent);
    } catch (int) {
    }
    std::vector<std::string> names;
    for (const auto& [family, table] : sampler.tables()) names.push_back(family);
    return names;
  };
  CHECK(families(0.03) == std::vector<std::string>{"add"});
  CHECK(families(1e8) == std::vector<std::string>{"add", "loss", "rope", "zero"});
}

TEST_CASE("a warm-up runs the first sample of each family, once") {
  Sampler sampler;
  std::vector<std::string> ran;
  for (const char* family : {"add", "rope", "add"}) {
    sampler.add(family, {1, 1, 1}, 1, [&ran, family] {
      ran.push_back(family);
      return 1.0;
    });
  }
  sampler.warm_up();
  CHECK(ran == std::vector<std::string>{"add", "rope"});
  CHECK(sampler.tables().empty());
}
