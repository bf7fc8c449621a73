// cuDNN builds the attention of plans for devices of all architectures, without any of them: it
// accepts every shape, compiles its kernels, and needs no more workspace than plans reserve.
//
// devices/*.json describe devices as cuDNN does; the figures are from NVIDIA's data sheets, not
// read off devices.
#include <dlfcn.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/processors.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cuda/attention_calls.h"
#include "models/catalog.h"
#include "planner/program/program.h"
#include "planner/strategy/presets.h"
#include "tests/length.h"
#include "tests/planner/random_strategy.h"

namespace longspan::cuda {
namespace {

struct Described {
  std::string name;
  int64_t compute_capability;
  std::string json = {};
};

std::vector<Described> devices() {
  std::vector<Described> all = {
      {"a100", 80}, {"l40s", 89}, {"h200", 90}, {"b200", 100}, {"rtx5090", 120}};
  for (Described& device : all) {
    std::ifstream file(fmt::format("{}/{}.json", LONGSPAN_DEVICES, device.name));
    device.json = {std::istreambuf_iterator<char>(file), {}};
    REQUIRE_FALSE(device.json.empty());
  }
  return all;
}

std::string text_of(const LibraryCall& call) {
  const AttentionKey& k = call.key;
  return fmt::format("{} {}x{}, {}/{} heads of {}{}{}, rows of {}, room {}",
                     k.backward ? "backward" : "forward", k.queries, k.keys, k.heads, k.kv_heads,
                     k.head_dim, k.masks ? ", causal" : "",
                     k.deterministic ? ", deterministic" : "", k.o_row, call.room);
}

// Builds the calls of several devices on all processors. Returns what failed.
struct Task {
  Described device;
  LibraryCall call;
};
std::vector<std::string> failures_of(const std::vector<Task>& tasks) {
  // cuDNN finds the driver that is open already.
  REQUIRE(dlopen(LONGSPAN_STUB_DRIVER, RTLD_NOW | RTLD_GLOBAL) != nullptr);
  std::vector<std::string> failures;
  std::mutex mutex;
  ThreadPool pool(machine_processors());
  pool.run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
    const auto& [device, call] = tasks[static_cast<size_t>(i)];
    std::string failure;
    try {
      const int64_t bytes =
          workspace_on(call.key, device.compute_capability, device.json, INT64_MAX);
      if (bytes <= call.room) return;
      failure = fmt::format("needs {}", bytes);
    } catch (const Error& error) {
      failure = error.what();
    }
    const std::lock_guard lock(mutex);
    failures.push_back(fmt::format("{}: {}: {}", device.name, text_of(call), failure));
  });
  return failures;
}

void check_all(const std::vector<Task>& tasks) {
  const std::vector<std::string> failures = failures_of(tasks);
  UNSCOPED_INFO(tasks.size() << " plans");
  for (const std::string& failure : failures) UNSCOPED_INFO(failure);
  CHECK(failures.empty());
}

// The calls of a model's plan with one layer, all of which are alike.
std::vector<LibraryCall> calls_of(const std::string& model, const std::string& preset,
                                  int64_t sequence, int64_t chunk, bool deterministic,
                                  int64_t compute_capability) {
  StepRequest request;
  request.model = load_model(model);
  request.model.layers = 1;
  request.sequence = sequence;
  request.strategy = make_preset(preset, request.model, sequence, chunk);
  request.strategy.deterministic = deterministic;
  request.dtype = DType::bfloat16;
  return library_calls(build_program(request), compute_capability);
}

}  // namespace

TEST_CASE("plans of models are built for every architecture", "[cuda]") {
  struct Plan {
    const char *model, *preset;
    int64_t sequence, chunk;
    bool deterministic = false;
  };
  std::vector<Plan> plans = {{"llama-3.1-8b", "fpdt", 65536, 16384},
                             {"gpt-2.7b", "ulysses", 2048, 2048}};
  if (testing::whole_length()) {
    plans.insert(plans.end(), {{"llama-3.1-70b", "fpdt", 1 << 20, 131072},
                               {"qwen3-8b", "fpdt", 131072, 32768},
                               {"llama-3.1-8b", "fpdt", 65536, 16384, true},
                               {"qwen3-0.6b", "mst", 32768, 4096}});
  }
  std::vector<Task> tasks;
  for (const Described& device : devices()) {
    for (const Plan& p : plans) {
      for (const LibraryCall& call : calls_of(p.model, p.preset, p.sequence, p.chunk,
                                              p.deterministic, device.compute_capability)) {
        tasks.push_back({device, call});
      }
    }
  }
  check_all(tasks);
}

TEST_CASE("random plans are built for every architecture", "[cuda]") {
  const std::vector<Described> all = devices();
  std::vector<std::set<LibraryCall>> calls(all.size());
  const auto seeds = static_cast<uint64_t>(testing::cases(10, 200));
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    StepRequest request = testing::random_request(seed);
    request.dtype = DType::bfloat16;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!testing::in_turn(static_cast<int64_t>(seed + i), 5)) continue;
      request.compute_capability = all[i].compute_capability;
      const Program program = build_program(request);
      for (const LibraryCall& call : library_calls(program, all[i].compute_capability)) {
        calls[i].insert(call);
      }
    }
  }
  std::vector<Task> tasks;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const LibraryCall& call : calls[i]) tasks.push_back({all[i], call});
  }
  REQUIRE_FALSE(tasks.empty());
  check_all(tasks);
}

TEST_CASE("a plan that the room is too small for is refused with its shape", "[cuda]") {
  REQUIRE(dlopen(LONGSPAN_STUB_DRIVER, RTLD_NOW | RTLD_GLOBAL) != nullptr);
  const Described a100 = devices().front();
  const AttentionKey key{.backward = true,
                         .masks = true,
                         .deterministic = false,
                         .heads = 8,
                         .kv_heads = 2,
                         .head_dim = 128,
                         .queries = 1024,
                         .keys = 1024,
                         .o_row = 1024};
  CHECK_THROWS_WITH(workspace_on(key, 80, a100.json, 1000),
                    Catch::Contains("attention backward of 1024 queries and 1024 keys, 8 heads"));
}

}  // namespace longspan::cuda
