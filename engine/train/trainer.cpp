#include "engine/train/trainer.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "engine/cpu/backend.h"
#include "engine/train/states.h"

namespace longspan {
namespace {

Program checked_program(const Plan& plan, const Communicator* comm) {
  if (plan.hardware.device.backend != "cpu") {
    throw bad_input("hardware {}: this build runs the cpu backend, the plan asks for {}",
                    plan.hardware.name, plan.hardware.device.backend);
  }
  StepRequest request = step_request(plan);
  if (comm != nullptr) request.rank = comm->rank();
  return build_program(request);
}

ExecutorOptions executor_options(const Plan& plan, const TrainerOptions& options) {
  ExecutorOptions result;
  result.capacity_bytes = capacities(plan.hardware);
  result.nvme_directory = options.nvme_directory;
  result.poison = options.poison;
  return result;
}

}  // namespace

struct Trainer::State {
  State(const Plan& plan, const TrainingConfig& config, std::shared_ptr<const TokenSource> source,
        const TrainerOptions& options, Program program)
      : plan(plan),
        config(config),
        data(std::move(source)),
        backend(cpu::make_backend(program, options.compute_threads, options.comm)),
        executor(std::move(program), *backend, executor_options(plan, options)) {}

  Plan plan;
  TrainingConfig config;
  std::shared_ptr<const TokenSource> data;
  std::unique_ptr<Backend> backend;
  Executor executor;
  Timeline timeline;
  int64_t steps_done = 0;
};

Trainer::Trainer(const Plan& plan, const TrainingConfig& config,
                 std::shared_ptr<const TokenSource> data, const TrainerOptions& options)
    : state_(std::make_unique<State>(plan, config, std::move(data), options,
                                     checked_program(plan, options.comm))) {
  initialize_states(state_->executor, plan.model, config.seed);
}

Trainer::~Trainer() = default;

void Trainer::load_weights(const std::filesystem::path& path) {
  longspan::load_weights(state_->executor, state_->plan.model, path);
}

void Trainer::save_checkpoint(const std::filesystem::path& path) const {
  longspan::save_checkpoint(state_->executor, state_->plan.model, state_->steps_done, path);
}

void Trainer::resume(const std::filesystem::path& path) {
  state_->steps_done = load_checkpoint(state_->executor, state_->plan.model, path);
}

StepReport Trainer::step() {
  State& s = *state_;
  const int64_t step = s.steps_done + 1;
  const Plan& plan = s.plan;

  StepContext context;
  context.step = step;
  context.learning_rate = learning_rate(s.config, step);
  context.beta1 = s.config.beta1;
  context.beta2 = s.config.beta2;
  context.epsilon = s.config.epsilon;
  context.weight_decay = s.config.weight_decay;
  context.clip_norm = s.config.clip_norm;
  // Every replica takes its own sequences, in the order one rank alone would take them.
  const int64_t replicas = plan.strategy.parallel.data;
  const int64_t replica = s.executor.program().place.data;
  context.fill_tokens = [&](int64_t micro_batch, int64_t first, int64_t count, int32_t* tokens) {
    const int64_t sample = (s.steps_done * plan.micro_batches + micro_batch) * replicas + replica;
    s.data->sample(sample, plan.sequence, first, count, tokens);
  };
  s.timeline = s.executor.run(context);
  ++s.steps_done;

  StepReport report;
  report.step = step;
  s.executor.read(s.executor.program().loss, &report.loss);
  s.executor.read(s.executor.program().grad_norm, &report.gradient_norm);
  report.gradient_norm = std::sqrt(report.gradient_norm);
  report.learning_rate = context.learning_rate;
  report.measured = prediction_of(plan, s.timeline.step_seconds, s.executor.high_water_bytes());
  return report;
}

int64_t Trainer::steps_done() const { return state_->steps_done; }
const Timeline& Trainer::last_timeline() const { return state_->timeline; }
const Executor& Trainer::executor() const { return state_->executor; }
Executor& Trainer::executor() { return state_->executor; }
const TrainingConfig& Trainer::config() const { return state_->config; }

}  // namespace longspan
