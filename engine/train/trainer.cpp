#include "engine/train/trainer.h"

#include "engine/train/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "engine/comm/agreement.h"
#include "engine/comm/collectives.h"
#include "engine/train/machine_backend.h"
#include "engine/train/states.h"
#include "planner/pipeline/rank_program.h"
#include "planner/plan/pipeline_plan.h"

namespace longspan {
namespace {

// Refuses a step whose messages between stages have more numbers than a communicator tells apart.
void check_messages(const Program& program) {
  for (const Op& op : program.ops) {
    if (!is_message(op.kind) || message_number(program, op) <= kMostTags) continue;
    throw bad_input(
        "the plan's stages send more than {} messages in a step, {} for each microbatch and stage; "
        "use larger blocks or fewer microbatches",
        kMostTags, program.lengths.blocks());
  }
}

Program checked_program(const Plan& plan, Communicator* comm) {
  check_model(plan.model);
  check_strategy(plan.strategy);
  if (comm == nullptr) {
    check_backend(plan.hardware);
  } else {
    agree(*comm, [&] { check_backend(plan.hardware); });
  }
  const ParallelLayout& parallel = plan.strategy.parallel;
  const int64_t ranks = parallel.ranks(), rank = comm == nullptr ? 0 : comm->rank();
  if (const int64_t present = comm == nullptr ? 1 : comm->size(); present != ranks) {
    throw bad_input("the plan is for {}, and {} {} there", longspan::describe(parallel), present,
                    present == 1 ? "is" : "are");
  }
  if (!parallel.has_pipeline()) {
    StepRequest request = step_request(plan);
    request.rank = rank;
    return build_program(request);
  }
  Program program = program_of_rank(step_request(plan), schedule_of(plan), rank);
  check_messages(program);
  return program;
}

ExecutorOptions executor_options(const Plan& plan, const TrainerOptions& options) {
  ExecutorOptions result;
  result.capacity_bytes = capacities(plan.hardware);
  result.nvme_directory = options.nvme_directory;
  result.poison = options.poison;
  return result;
}

int64_t sum_of_sent_bytes(const Program& program) {
  int64_t sum = 0;
  for (const Op& op : program.ops) sum += sent_bytes(program, op);
  return sum;
}

// The figures of a step that ranks exchange.
struct RankFigures {
  double seconds = 0;
  std::array<int64_t, kTierCount> peak_bytes{};
  Traffic traffic;
  double busy_seconds = 0;
};

std::vector<RankFigures> exchange_figures(Communicator* comm, const RankFigures& own) {
  if (comm == nullptr) return {own};
  std::vector<RankFigures> all(comm->size());
  all_gather(*comm, whole_world(*comm), std::as_bytes(std::span(&own, 1)),
             reinterpret_cast<std::byte*>(all.data()));
  return all;
}

void check_trains(const Plan& plan, const char* what) {
  if (!plan.strategy.forward_only) return;
  throw bad_input("{}: the plan is of a forward alone, which has no optimizer states", what);
}

// The log-probabilities that a rank computes in a step of forwards.
class LogProbs {
 public:
  struct Run {
    int64_t sequence, first, count;  // the sequence's place in the step
  };

  LogProbs(const Plan& plan, bool keep)
      : tokens_(plan.sequence),
        losses_(sequences_of_step(plan)),
        labels_(losses_.size()),
        keep_(keep) {}

  void take(const Run& run, const float* values) {
    for (int64_t i = 0; i < run.count; ++i) {
      if (std::isnan(values[i])) continue;  // the token has no label
      losses_[run.sequence] -= static_cast<double>(values[i]);
      labels_[run.sequence] += 1;
    }
    if (!keep_) return;
    kept_.append(reinterpret_cast<const char*>(&run), sizeof run);
    kept_.append(reinterpret_cast<const char*>(values), run.count * sizeof(float));
  }
  /// The mean loss of each sequence, on all ranks.
  std::vector<double> losses(Communicator* comm) const {
    const auto summed = [&](double value) {
      return comm == nullptr ? value : all_reduce_sum(*comm, whole_world(*comm), value);
    };
    std::vector<double> means;
    for (size_t i = 0; i < losses_.size(); ++i) {
      const double loss = summed(losses_[i]);
      means.push_back(loss / std::max(1.0, summed(labels_[i])));
    }
    return means;
  }
  /// Those of all tokens, on rank 0.
  std::vector<float> values(Communicator* comm) const {
    if (!keep_) return {};
    std::vector<std::string> parts = {kept_};
    if (comm != nullptr) parts = gather(*comm, whole_world(*comm), kept_, 0);
    if (comm != nullptr && comm->rank() != 0) return {};
    std::vector<float> all(losses_.size() * tokens_);
    for (const std::string& part : parts) {
      for (size_t at = 0; at < part.size();) {
        Run run;
        std::memcpy(&run, part.data() + at, sizeof run);
        at += sizeof run;
        const size_t bytes = run.count * sizeof(float);
        std::memcpy(all.data() + run.sequence * tokens_ + run.first, part.data() + at, bytes);
        at += bytes;
      }
    }
    return all;
  }

 private:
  int64_t tokens_;
  std::vector<double> losses_, labels_;  // sums, and of how many
  bool keep_;
  std::string kept_;
};

}  // namespace

struct Trainer::State {
  State(const Plan& plan, const TrainingConfig& config, std::shared_ptr<const TokenSource> source,
        const TrainerOptions& options, Program program)
      : plan(plan),
        config(config),
        data(std::move(source)),
        comm(options.comm),
        keep_log_probs(options.keep_log_probs),
        sent_bytes(sum_of_sent_bytes(program)),
        machine(plan.hardware, program, options.compute_threads, options.comm, options.preparing),
        executor(std::move(program), machine.backend(), executor_options(plan, options)) {}

  Plan plan;
  TrainingConfig config;
  std::shared_ptr<const TokenSource> data;
  Communicator* comm;  // null if there is one rank
  bool keep_log_probs;
  int64_t sent_bytes;  // predicted, per step
  MachineBackend machine;
  Executor executor;
  Timeline timeline;
  TrainingState progress;
  std::vector<int32_t> begins;  // of a microbatch's documents; of the host stream's thread
};

Trainer::Trainer(const Plan& plan, const TrainingConfig& config,
                 std::shared_ptr<const TokenSource> data, const TrainerOptions& options)
    : state_(std::make_unique<State>(plan, config, std::move(data), options,
                                     checked_program(plan, options.comm))) {
  const int64_t samples = checked_mul(config.steps, sequences_of_step(plan), "samples");
  check_documents(*state_->data, plan.model.documents, samples, plan.sequence);
  initialize_states(state_->executor, plan.model, config.seed);
}

Trainer::~Trainer() = default;

void Trainer::load_adapters(const std::filesystem::path& folder) {
  longspan::load_adapters(state_->executor, state_->plan.model, folder);
}

void Trainer::save_adapters(const std::filesystem::path& folder) const {
  longspan::save_adapters(state_->executor, state_->plan.model, state_->comm, folder);
}

void Trainer::load_weights(const std::filesystem::path& path) {
  longspan::load_weights(state_->executor, state_->plan.model, path);
}

void Trainer::save_checkpoint(const std::filesystem::path& path) const {
  check_trains(state_->plan, "a checkpoint");
  longspan::save_checkpoint(state_->executor, state_->plan.model, state_->progress, state_->comm,
                            path);
}

void Trainer::resume(const std::filesystem::path& path) {
  check_trains(state_->plan, "a checkpoint");
  state_->progress = load_checkpoint(state_->executor, state_->plan.model, path);
}

StepReport Trainer::step() {
  State& s = *state_;
  const int64_t step = s.progress.steps_done + 1;
  const Plan& plan = s.plan;

  StepContext context;
  context.step = step;
  context.learning_rate = learning_rate(s.config, step);
  context.beta1 = s.config.beta1;
  context.beta2 = s.config.beta2;
  context.epsilon = s.config.epsilon;
  context.weight_decay = s.config.weight_decay;
  context.clip_norm = s.config.clip_norm;
  context.norm_before = s.progress.gradient_norm;
  // Replicas interleave their sequences, so that a step has the same ones as with a single replica.
  const int64_t replicas = plan.strategy.parallel.data;
  const int64_t replica = s.executor.program().place.data;
  const int64_t samples = sequences_of_step(plan);
  const int64_t first_sample = s.progress.steps_done * samples;
  if (!plan.model.documents.empty()) {
    const DocumentSurvey survey = survey_documents(*s.data, first_sample, samples, plan.sequence);
    context.loss_scale = 1 / static_cast<double>(std::max<int64_t>(1, survey.labels));
    context.documents = [&](int64_t sequence) {
      const int64_t sample = first_sample + sequence * replicas + replica;
      s.begins.resize(static_cast<size_t>(plan.sequence) + 1);
      s.data->documents(sample, plan.sequence, s.begins.data());
      return std::span<const int32_t>(s.begins);
    };
  }
  context.fill_tokens = [&](int64_t sequence, int64_t first, int64_t count, int32_t* tokens) {
    const int64_t sample = first_sample + sequence * replicas + replica;
    s.data->sample(sample, plan.sequence, first, count, tokens);
  };
  LogProbs log_probs(plan, s.keep_log_probs);
  context.take_log_probs = [&](int64_t sequence, int64_t first, int64_t count,
                               const float* values) {
    log_probs.take({sequence * replicas + replica, first, count}, values);
  };
  const int64_t sent_before = s.machine.backend().sent_bytes();
  s.timeline = s.executor.run(context);
  const int64_t sent = s.machine.backend().sent_bytes() - sent_before;
  ++s.progress.steps_done;

  StepReport report;
  report.step = step;
  s.executor.read(s.executor.program().loss, &report.loss);
  if (plan.strategy.forward_only) {
    report.sequence_losses = log_probs.losses(s.comm);
    report.log_probs = log_probs.values(s.comm);
  } else {
    s.executor.read(s.executor.program().grad_norm, &report.gradient_norm);
    report.gradient_norm = std::sqrt(report.gradient_norm);
  }
  // Other updates check the norm themselves, before they change a parameter.
  if (plan.strategy.early_update && !std::isfinite(report.gradient_norm)) {
    throw failed("step {}: the gradient norm is not finite", step);
  }
  s.progress.gradient_norm = report.gradient_norm;
  report.learning_rate = context.learning_rate;
  RankFigures worst;
  for (const RankFigures& rank :
       exchange_figures(s.comm, {s.timeline.step_seconds,
                                 s.executor.high_water_bytes(),
                                 {s.sent_bytes, sent},
                                 seconds_in_passes(s.executor.program(), s.timeline)})) {
    worst.seconds = std::max(worst.seconds, rank.seconds);
    for (int tier = 0; tier < kTierCount; ++tier) {
      worst.peak_bytes[tier] = std::max(worst.peak_bytes[tier], rank.peak_bytes[tier]);
    }
    report.traffic.push_back(rank.traffic);
    report.busy_seconds.push_back(rank.busy_seconds);
  }
  report.measured = prediction_of(plan, worst.seconds, worst.peak_bytes);
  return report;
}

int64_t Trainer::steps_done() const { return state_->progress.steps_done; }
const Timeline& Trainer::last_timeline() const { return state_->timeline; }
const Executor& Trainer::executor() const { return state_->executor; }
Executor& Trainer::executor() { return state_->executor; }
std::optional<int64_t> Trainer::device_bytes_in_use() const {
  const cuda::Device* device = state_->machine.device();
  if (device == nullptr) return std::nullopt;
  return device->memory().used_bytes;
}
std::optional<std::string> Trainer::device_text() const {
  const cuda::Device* device = state_->machine.device();
  if (device == nullptr) return std::nullopt;
  return device->name() + ", " + device->facts().software;
}
std::optional<std::string> Trainer::device_warning() const {
  const cuda::Device* device = state_->machine.device();
  if (device == nullptr) return std::nullopt;
  if (!state_->plan.model.documents.empty()) {
    return "attention of packed documents runs the project's own kernels, slower than the plan "
           "predicts by orders of magnitude";
  }
  const Lengths lengths = lengths_of(state_->plan.strategy, state_->plan.tokens());
  if (state_->plan.model.micro_batch > 1 && lengths.chunks() > 1) {
    return "attention of several sequences in chunks runs the project's own kernels, slower than "
           "the plan predicts by orders of magnitude; a chunk of the whole microbatch does not";
  }
  if (device->facts().has_fused_attention) return std::nullopt;
  return "cuDNN is not found, so attention runs the project's own kernels, slower than the plan "
         "predicts by orders of magnitude; install cuDNN 9, or set LD_LIBRARY_PATH";
}
const TrainingConfig& Trainer::config() const { return state_->config; }

}  // namespace longspan
