// Rounds, repeats and parts of the sampler, with samples that only report a duration.
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
        return seconds + 1e-3;
      };
    };
    sampler.add("add", {1, 1, 1}, 1, sample(0.02));
    sampler.begin_optional();
    sampler.add("rope", {1, 1, 1}, 1, sample(0.02));
    sampler.add("loss", {1, 1, 1}, 1, sample(0));
    sampler.begin_optional();
    sampler.add("zero", {1, 1, 1}, 1, sample(0));
    // Three rounds must be enough even if time is left for years.
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

TEST_CASE("a difference that is lost in noise is measured again, and else left out") {
  Sampler sampler;
  int calls = 0;
  const auto difference = [&](std::string family, std::function<WholeAndPart()> run) {
    sampler.add_difference(std::move(family), {32, 512, 1}, 1e3, std::move(run));
  };
  difference("activation_forward", [&] {
    // As if another process took the processor during the part.
    return ++calls <= 2 ? WholeAndPart{20e-3, 21e-3} : WholeAndPart{20e-3, 10e-3};
  });
  difference("loss", [] { return WholeAndPart{20e-3, 20e-3}; });
  difference("rope", [] { return WholeAndPart{20e-3, 19e-3}; });  // a twentieth: noise of both
  difference("norm_forward", [] { return WholeAndPart{20e-3, 15e-3}; });
  sampler.add("add", {4, 4, 1}, 1, [] { return 0.0; });
  sampler.add("zero", {1, 1, 1}, 1, [] {  // two rounds use up the time
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return 0.3;
  });
  sampler.measure(0.5, kNothing, kSilent);
  const auto tables = sampler.tables();
  CHECK(tables.size() == 3);
  CHECK(tables.at("activation_forward").points.at(0).rate == Approx(1e3 / 10e-3));
  CHECK(tables.at("norm_forward").points.at(0).rate == Approx(1e3 / 5e-3));
  CHECK(sampler.left_out() ==
        std::vector<std::string>{"loss of 32 x 512", "rope of 32 x 512", "add of 4 x 4"});
}

TEST_CASE("runs that have become slow are not repeated to the end") {
  Sampler sampler;
  int runs = 0;
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  sampler.add("add", {1, 1, 1}, 1, [&] {
    if (++runs > 1) sleep();  // fast once: a thousand runs are planned for the next round
    return 1e-6;
  });
  sampler.add_difference("rope", {1, 1, 1}, 1, [&] {
    if (++runs > 2) sleep();
    return WholeAndPart{1e-6, 0.5e-6};
  });
  sampler.measure(1e-9, kNothing, kSilent);
  CHECK(runs < 40);
  CHECK(sampler.tables().at("add").points.at(0).rate == Approx(1e6));
  CHECK(sampler.tables().at("rope").points.at(0).rate == Approx(2e6));
}

TEST_CASE("where the time is short, the small shapes of all families are taken first") {
  Sampler sampler;
  std::vector<std::pair<std::string, double>> ran;
  for (const char* family : {"add", "rope"}) {
    for (const double work : {8.0, 1.0, 4.0, 2.0, 6.0, 7.0}) {
      sampler.add(family, {work, 1, 1}, work, [&ran, family, work] {
        ran.emplace_back(family, work);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        return 20e-3;
      });
    }
  }
  sampler.keep_to_time();
  sampler.measure(16e-3, kNothing, kSilent);  // four points of each take as much
  for (const auto& [family, work] : ran) CHECK(work <= 6);
  const auto tables = sampler.tables();
  for (const char* family : {"add", "rope"}) {
    std::vector<double> works;
    for (const RatePoint& point : tables.at(family).points) works.push_back(point.shape[0]);
    CHECK(works == std::vector<double>{1, 2, 4, 6});
  }
  CHECK(sampler.left_out().empty());
}
