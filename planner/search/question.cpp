#include "planner/search/question.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "planner/cost/cost_model.h"
#include "planner/program/layer_kinds.h"
#include "planner/search/meshes.h"
#include "planner/strategy/validity.h"

namespace longspan {

int64_t most_positions(const ModelSpec& model, const QuestionOptions& options) {
  if (model.positions != Positions::learned || options.extend_positions) return INT64_MAX;
  return model.max_positions * model.micro_batch;
}

int64_t tokens_of_batch(const ModelSpec& model, int64_t sequence) {
  const int64_t most = kLongestSequence / model.micro_batch;
  if (sequence <= most) return sequence * model.micro_batch;
  throw bad_input("--micro-batch: {} sequences of {} tokens are more than {} tokens",
                  model.micro_batch, sequence, kLongestSequence);
}

std::string batch_text(const ModelSpec& model, int64_t tokens) {
  const std::string each = count_tokens(model.of_sequence(tokens));
  return model.micro_batch == 1 ? each : fmt::format("{} sequences of {}", model.micro_batch, each);
}

void check_positions(const ModelSpec& model, int64_t tokens, const QuestionOptions& options) {
  if (tokens <= most_positions(model, options)) return;
  throw bad_input(
      "--seq: {} has learned positions for {} tokens (max_positions), got {}; --extend-positions "
      "lengthens the table",
      model.name, model.max_positions, model.of_sequence(tokens));
}

SpaceOptions space_of(const ModelSpec& model, const HardwareProfile& hw,
                      const QuestionOptions& options) {
  check_degrees(model, options.parallel);
  SpaceOptions space;
  space.parallel = options.parallel;
  space.chunk_tokens = options.chunk_tokens;
  space.microbatches = options.microbatches;
  space.global_batch = options.global_batch;
  space.deterministic = options.deterministic;
  space.moments = options.moments;
  space.masters = options.masters;
  space.optimizer = options.optimizer;
  space.early_update = options.early_update;
  space.forward_only = options.forward_only;
  space.has_files = capacities(hw)[kNvmeTier] > 0;
  if (options.masters != MasterFormat::float32 && default_dtype(hw) == DType::float32) {
    throw bad_input(
        "--masters: {} computes in float32, where kernels read what is updated in float32; leave "
        "it out",
        hw.device.name);
  }
  if (options.optimizer && options.optimizer->tier == Tier::nvme && !space.has_files) {
    throw bad_input("--optimizer: {} has no storage; expected device or host", hw.name);
  }
  if (options.optimizer && options.optimizer->fraction < 1) {
    if (!space.parallel.admits_flat()) {
      throw bad_input(
          "--optimizer: stages of a pipeline have all optimizer states on one tier; leave the "
          "fraction or the pipeline out");
    }
    space.parallel.pipeline = 1;
  }
  if (options.early_update) {
    if (!space.parallel.admits_flat()) {
      throw bad_input(
          "--early-update: the stages of a pipeline update after their last backward; leave it or "
          "the pipeline out");
    }
    space.parallel.pipeline = 1;
  }
  if (options.forward_only) {
    for (const auto& [given, flag] : {std::pair{options.deterministic, "--deterministic"},
                                      {options.early_update, "--early-update"},
                                      {options.moments != MomentFormat::float32, "--moments"},
                                      {options.masters != MasterFormat::float32, "--masters"},
                                      {options.optimizer.has_value(), "--optimizer"}}) {
      if (given) throw bad_input("--forward-only: there is no backward; leave {} out", flag);
    }
    if (!space.parallel.admits_flat()) {
      throw bad_input("--forward-only: a forward alone has one stage; leave the pipeline out");
    }
    space.parallel.pipeline = 1;
  }
  space.most_tokens = most_positions(model, options);
  space.of_shares = tokens_of_shares(model);
  space.most_zero = most_zero(model);
  return space;
}

TierBytes limits_of(const HardwareProfile& hw, const QuestionOptions& options) {
  if (!(options.margin >= 0 && options.margin < 1)) {
    throw bad_input("--margin: expected a part from 0 % to less than 100 %, got {} %",
                    100 * options.margin);
  }
  TierBytes limits = capacities(hw);
  for (int64_t& tier : limits) {
    tier = static_cast<int64_t>(std::floor(static_cast<double>(tier) * (1 - options.margin)));
  }
  return limits;
}

std::string margin_text(const QuestionOptions& options) {
  if (options.margin <= 0) return "";
  return fmt::format(" (of every capacity {:.4g} % are left free)", 100 * options.margin);
}

void check_time(const ModelSpec& model, const Score& score, int64_t tokens,
                const QuestionOptions& options, TimeOf of) {
  const char* who = of == TimeOf::compute_alone ? "compute alone" : "the fastest found";
  if (score.step_seconds > options.time.step_seconds) {
    throw no_fit("no plan for {} has a step of at most {}: {} takes {}", batch_text(model, tokens),
                 format_seconds(options.time.step_seconds), who,
                 format_seconds(score.step_seconds));
  }
  const double rate = static_cast<double>(tokens) / score.seconds;
  if (rate < options.time.tokens_per_second) {
    throw no_fit("no plan for {} trains {:.6g} tokens/s: {} trains {:.6g}",
                 batch_text(model, tokens), options.time.tokens_per_second, who, rate);
  }
}

}  // namespace longspan
