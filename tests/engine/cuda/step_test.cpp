// The CUDA backend's steps, with its kernels run on the host: the numbers of the reference, in
// float and in bfloat16, and equal bits however its queues lag behind each other.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "base/bfloat16.h"
#include "engine/cuda/attention_calls.h"
#include "engine/cuda/backend.h"
#include "engine/train/state_formats.h"
#include "engine/train/states.h"
#include "models/training.h"
#include "planner/program/layer_kinds.h"
#include "tests/engine/cuda/host_runtime.h"
#include "tests/engine/plan_reference.h"

namespace longspan::testing {
namespace {

StepCase cuda_case(uint64_t seed, cuda::Device& device) {
  StepCase step = random_case(seed);
  step.make_backend = [&device](const Program& program, Communicator*) {
    return cuda::make_backend(program, device, 2);
  };
  return step;
}

}  // namespace

TEST_CASE("random legal plans give the numbers of the reference on the device", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 201; seed <= 230; ++seed) {
    StepCase step = cuda_case(seed, *device);
    step.random_order = seed;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    check_against_reference(step, 1e-5);
  }
}

TEST_CASE("runs of layers give the numbers of the reference on the device", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 301; seed <= 316; ++seed) {
    StepCase step = cuda_case(seed, *device);
    step.model.micro_batch = 1;
    const ModelSpec uniform = step.model;
    step.model = in_runs(uniform, static_cast<int64_t>(seed) % kLayerVariants);
    if (!divides_shares(step.model, step.strategy, step.sequence)) {
      step.model = in_runs(uniform, static_cast<int64_t>(seed) % 2);
    }
    step.random_order = seed;
    const bool half = seed % 4 < 2;
    if (half) step.dtype = DType::bfloat16;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    // Roundings of activations add up over layers; 2e-2 is for the two of the smallest model.
    const double layers = static_cast<double>(step.model.layers);
    check_against_reference(step, half ? 1e-2 * layers : 1e-5);
  }
}

TEST_CASE("experts give the numbers of the reference on the device", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 401; seed <= 424; ++seed) {
    StepCase step = random_case_with_experts(seed);
    step.make_backend = [&device](const Program& program, Communicator*) {
      return cuda::make_backend(program, *device, 2);
    };
    step.random_order = seed;
    // In bfloat16 a router of other roundings chooses other experts, unless their scores are equal.
    const bool half = seed % 4 == 0;
    if (half) step.dtype = DType::bfloat16;
    step.equal_scores = half;
    step.splits_backward = seed % 3 == 0 && !is_frozen(step.model) &&
                           step.strategy.head_groups == 1 &&
                           step.strategy.backward_order == BackwardOrder::q_outer;
    if (seed % 3 > 0) step.model = balanced(step.model);
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    check_against_reference(step, half ? 2e-2 : 1e-5);
  }
}

TEST_CASE("spans give the numbers of the reference on the device", "[cuda]") {
  const auto device = open_host_device();
  for (const int64_t span : {4, 16}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const Tier kv : {Tier::device, Tier::host}) {
        StepCase step;
        step.model = in_spans(small_llama(), span);
        step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
        step.strategy.kv = kv;
        step.sequence = 64;
        step.dtype = dtype;
        step.make_backend = [&device](const Program& program, Communicator*) {
          return cuda::make_backend(program, *device, 2);
        };
        INFO("spans of " << span << ", " << name_of(dtype));
        check_against_reference(step, dtype == DType::float32 ? 1e-5 : 2e-2);
      }
    }
  }
}

TEST_CASE("in bfloat16 the numbers of the reference to its precision", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 231; seed <= 250; ++seed) {
    StepCase step = cuda_case(seed, *device);
    step.dtype = DType::bfloat16;
    step.strategy.deterministic = seed % 2 == 0;
    step.random_order = seed;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    check_against_reference(step, 2e-2);
  }
}

TEST_CASE("parameters and moments in bfloat16 are updated as in float, rounded", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 601; seed <= 624; ++seed) {
    StepCase step = cuda_case(seed, *device);
    step.model = wholly_trained(step.model);
    step.dtype = DType::bfloat16;
    step.strategy.deterministic = true;
    step.random_order = seed;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    const StepOutcome wide = run_step(step);
    step.strategy.masters = MasterFormat::bfloat16;
    if (seed % 2 == 0) step.strategy.moments = MomentFormat::bfloat16;
    const StepOutcome narrow = run_step(step);
    CHECK(narrow.high_water_bytes == narrow.arena_bytes);
    CHECK(narrow.gradients == wide.gradients);
    CHECK(narrow.loss == wide.loss);
    CHECK(narrow.gradient_norm == wide.gradient_norm);
    for (size_t unit = 0; unit < wide.parameters.size(); ++unit) {
      INFO("unit " << unit);
      const std::vector<float>& own = narrow.parameters[unit];
      REQUIRE(own.size() == wide.parameters[unit].size());
      int64_t wrong = 0;
      for (size_t i = 0; i < own.size(); ++i) {
        const float expected = wide.parameters[unit][i];
        // Two roundings of 2^-8, of the weight, which the update moves by 1e-3, and of the result.
        if (std::abs(own[i] - expected) > 0x1p-7F * std::abs(expected) + 1e-5F) ++wrong;
        if (longspan::widen(longspan::narrow(own[i])) != own[i]) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("states in bfloat16 are as large as said, and continue bit for bit", "[cuda]") {
  const auto device = open_host_device();
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "longspan-masters.safetensors";
  std::vector<float> on_device;  // parameters after a step
  for (const auto& [tier, fraction] :
       {std::pair{Tier::device, 1.0}, {Tier::host, 0.5}, {Tier::host, 1.0}}) {
    StepCase step = cuda_case(1, *device);
    step.model = small_llama();
    step.sequence = 64;
    step.microbatches = 1;
    step.dtype = DType::bfloat16;
    step.strategy = {};
    step.strategy.chunk_tokens = step.strategy.block_tokens = 64;
    step.strategy.deterministic = true;
    step.strategy.optimizer = tier;
    step.strategy.optimizer_fraction = fraction;
    step.strategy.moments = MomentFormat::bfloat16;
    step.strategy.masters = MasterFormat::bfloat16;
    INFO(name_of(tier) << ", " << fraction);
    struct Run {
      std::unique_ptr<Backend> backend;
      std::unique_ptr<Executor> executor;
      double loss = 0;
    };
    const auto made = [&] {
      Run run;
      Program program = program_of(step, 0);
      run.backend = step.make_backend(program, nullptr);
      ExecutorOptions options;
      options.poison = true;
      run.executor = std::make_unique<Executor>(std::move(program), *run.backend, options);
      initialize_states(*run.executor, step.model, 1);
      return run;
    };
    const auto train = [&](Run& run, int64_t first, int64_t end) {
      for (int64_t number = first; number <= end; ++number) {
        StepContext context;
        context.step = number;
        context.learning_rate = 1e-2;
        context.clip_norm = 1;
        context.fill_tokens = [&](int64_t, int64_t from, int64_t count, int32_t* tokens) {
          const std::vector<int32_t> all = case_tokens(step, 0);
          std::copy_n(all.begin() + from, count, tokens);
        };
        run.executor->run(context);
      }
      run.executor->read(run.executor->program().loss, &run.loss);
    };
    const auto states = [](const Run& run) {
      const Program& p = run.executor->program();
      std::vector<std::vector<std::byte>> all;
      for (const auto* buffers : {&p.parameters, &p.kernel_parameters, &p.adam_m, &p.adam_v}) {
        for (const BufferId id : *buffers) {
          run.executor->read(id, all.emplace_back(p.bytes_of(id)).data());
        }
      }
      return all;
    };
    Run whole = made(), begun = made(), continued = made();
    const Program& p = whole.executor->program();
    const std::vector<ParameterUnit> units = parameter_units(step.model);
    for (size_t unit = 0; unit < units.size(); ++unit) {
      CHECK(p.bytes_of(p.parameters[unit]) == 2 * units[unit].elements);
      CHECK(p.bytes_of(p.adam_m[unit]) == 2 * units[unit].elements);
      const bool same = p.parameters[unit] == p.kernel_parameters[unit];
      CHECK(same == (p.buffers[p.adam_m[unit]].tier == Tier::device));
    }
    train(whole, 1, 1);
    const double first = whole.loss;
    std::vector<float> parameters;
    for (const BufferId id : p.parameters) {
      const std::vector<float> values = read_state(*whole.executor, id);
      parameters.insert(parameters.end(), values.begin(), values.end());
    }
    // The two updates differ in the last place of float, so few results are rounded otherwise.
    if (on_device.empty()) on_device = parameters;
    int64_t other = 0;
    for (size_t i = 0; i < parameters.size(); ++i) other += parameters[i] != on_device[i] ? 1 : 0;
    CHECK(other <= std::ssize(parameters) / 1000);
    train(whole, 2, 8);
    CHECK(whole.loss < 0.9 * first);  // it learns the one sample
    train(begun, 1, 3);
    save_checkpoint(*begun.executor, step.model, {3, 1}, nullptr, path);
    CHECK(load_checkpoint(*continued.executor, step.model, path).steps_done == 3);
    CHECK(states(continued) == states(begun));
    train(continued, 4, 8);
    CHECK(states(continued) == states(whole));
    CHECK(whole.executor->high_water_bytes() == whole.executor->arena_bytes());
  }
  std::filesystem::remove(path);
}

TEST_CASE("without a library's attention our own kernels' numbers are as close", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 271; seed <= 276; ++seed) {
    StepCase step = cuda_case(seed, *device);
    step.dtype = DType::bfloat16;
    step.random_order = seed;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    const std::vector<double> library = gradient_errors(step);
    device->queue(Stream::compute).has_fused_attention = false;
    const std::vector<double> own = gradient_errors(step);
    device->queue(Stream::compute).has_fused_attention = true;
    CHECK((own != library) == (step.model.head_dim % 8 == 0));  // where the library is used at all
    for (size_t unit = 0; unit < own.size(); ++unit) {
      INFO("unit " << unit);
      CHECK(own[unit] <= 1.25 * library[unit]);
    }
  }
}

// All other roundings of a step are the same for any chunk. If o itself were merged into, with 64
// merges rather than two, the gradients' errors would grow by 10 % to 45 %.
TEST_CASE("in bfloat16 the error does not grow with the chunks that keys stream in", "[cuda]") {
  const auto device = open_host_device();
  for (const ModelSpec& model : {small_gpt(), small_llama(), small_qwen()}) {
    StepCase step;
    step.model = model;
    step.model.layers = 1;
    step.random_order = 1;
    step.sequence = 512;
    step.dtype = DType::bfloat16;
    step.make_backend = [&device](const Program& program, Communicator*) {
      return cuda::make_backend(program, *device, 2);
    };
    const auto errors = [&](int64_t chunk) {
      step.strategy.block_tokens = step.sequence;
      step.strategy.chunk_tokens = chunk;
      step.strategy.kv = Tier::host;
      return gradient_errors(step);
    };
    const std::vector<double> few = errors(256), many = errors(8);
    for (size_t unit = 0; unit < few.size(); ++unit) {
      INFO(model.name << " unit " << unit);
      CHECK(many[unit] <= 1.05 * few[unit]);
    }
  }
}

TEST_CASE("a forward alone has the loss of its training step on the device", "[cuda]") {
  const auto device = open_host_device();
  for (uint64_t seed = 501; seed <= 512; ++seed) {
    StepCase step = cuda_case(seed, *device);
    if (seed % 2 == 0) step.dtype = DType::bfloat16;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    step.random_order = seed;
    const double trained = run_step(step).loss;
    step.strategy = for_forward(std::move(step.strategy));
    const StepOutcome alone = run_step(step);
    CHECK(alone.loss == trained);
    CHECK(alone.high_water_bytes == alone.arena_bytes);
    double sum = 0;
    for (const std::vector<float>& sequence : alone.log_probs) {
      for (const float value : sequence) sum -= static_cast<double>(value);
    }
    const auto tokens = static_cast<double>(step.microbatches * step.sequence);
    CHECK(sum / tokens == Approx(trained).epsilon(1e-6));
  }
}

TEST_CASE("a backend reports the plans of attention that it builds", "[cuda]") {
  const auto device = open_host_device();
  StepCase step;
  step.model = small_llama();
  step.sequence = 64;
  step.dtype = DType::bfloat16;
  step.strategy.block_tokens = step.strategy.chunk_tokens = 32;
  int64_t reported = 0, plans = 0;
  step.make_backend = [&](const Program& program, Communicator*) {
    plans = static_cast<int64_t>(cuda::library_calls(program, 0).size());
    return cuda::make_backend(program, *device, 2, nullptr, [&](int64_t done, int64_t all) {
      CHECK(done == ++reported);
      CHECK(all == plans);
    });
  };
  run_step(step);
  CHECK(plans > 0);
  CHECK(reported == plans);
}

TEST_CASE("every op is a range of its name for profilers", "[cuda]") {
  const auto device = open_host_device();
  StepCase step = cuda_case(270, *device);
  std::vector<std::string> submitted;  // by the backend: file I/O is the runtime's
  step.make_backend = [&](const Program& program, Communicator*) {
    for (const Op& op : program.ops) {
      if (op.stream != Stream::io) submitted.emplace_back(name_of(op.kind));
    }
    return cuda::make_backend(program, *device, 2);
  };
  step.random_order.reset();
  (void)take_ranges();
  run_step(step);
  std::vector<std::string> ranges = take_ranges();
  std::sort(ranges.begin(), ranges.end());
  std::sort(submitted.begin(), submitted.end());
  CHECK(ranges == submitted);
}

TEST_CASE("a plan of several ranks is not run on one device alone", "[cuda]") {
  const auto device = open_host_device();
  StepRequest request{small_gpt(), {}, 64};
  request.strategy.block_tokens = request.strategy.chunk_tokens = 64;
  request.strategy.parallel.data = 2;
  const Program program = build_program(request);
  CHECK_THROWS_WITH(cuda::make_backend(program, *device, 1),
                    Catch::Contains("the plan is for 2 ranks"));
}

TEST_CASE("queues that lag change no bit", "[cuda][property]") {
  const auto device = open_host_device(true);
  for (uint64_t seed = 251; seed <= 262; ++seed) {
    StepCase step = cuda_case(seed, *device);
    step.dtype = seed % 2 == 0 ? DType::bfloat16 : DType::float32;
    INFO("seed " << seed);
    step.random_order = seed;
    const StepOutcome ordered = run_step(step);
    step.random_order.reset();
    const StepOutcome lagging = run_step(step);
    CHECK(lagging.loss == ordered.loss);
    CHECK(lagging.gradient_norm == ordered.gradient_norm);
    CHECK(lagging.parameters == ordered.parameters);
  }
}

}  // namespace longspan::testing
