// Evaluates plans as answers to a question: by full simulation, as `longspan simulate` reports it
// for the plan's file, and by sampled simulation.
//
// Independent of planner/search: it accepts plans outside the search space that are valid and have
// the values that the question fixes. One per question; not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "planner/cost/cost_model.h"
#include "planner/evaluate/fit.h"
#include "planner/evaluate/sampled_simulation.h"
#include "tests/search/question.h"

namespace longspan::testing {

/// One answer to a question.
struct Answering {
  int64_t tokens = 0;  // of its sequence
  Strategy strategy;
};

struct Measured {
  Fit fit = Fit::does_not_fit;
  double excess = 0;   // relative excess over the capacities, summed over tiers; 0: fits or at risk
  double seconds = 0;  // per sequence
  std::array<int64_t, kTierCount> bytes{};
  double value = 0;  // see value_name()
};

/// The quantity that the question asks for: "seconds" per sequence, "bytes", "tokens", or
/// "devices".
const char* value_name(const Question& question);

/// Returns the ratio of the value to `best`, or its inverse if more is better: 1.01 is 1 % worse.
/// Bytes below 1 MiB count as 1 MiB.
double times_worse(const Question& question, double value, double best);

class Examiner {
 public:
  /// Throws bad_input for an unknown model or machine.
  explicit Examiner(const Question& question);
  ~Examiner();

  const Question& question() const { return question_; }
  const ModelSpec& model() const { return model_; }
  const HardwareProfile& hardware() const { return hardware_; }

  /// Returns whether the plan is valid, has this length or a little more, and has the values that
  /// the question fixes.
  bool admits(const Answering& answer) const;

  /// Measures by full simulation. Empty if the pipeline's schedule does not support the numbers of
  /// stages and microbatches. REQUIRES: admits().
  std::optional<Measured> exact(const Answering& answer);
  /// Measures only memory, which is faster; `seconds` is 0.
  std::optional<Measured> exact_memory(const Answering& answer);
  /// Measures time by sampled simulation, and live bytes, without the overhead of packing.
  /// REQUIRES: admits().
  std::optional<Measured> rough(const Answering& answer);
  /// The same for memory only. REQUIRES: no pipeline.
  Measured rough_memory(const Answering& answer);

  /// The numbers of full and sampled simulations so far.
  int64_t examined() const { return examined_; }
  int64_t looked_at() const { return looked_at_; }

 private:
  struct Machine;
  Machine& machine_of(const Answering& answer);
  StepRequest request_of(const Answering& answer) const;
  Measured measured(const Answering& answer, const HardwareProfile& hw, const Evaluation& e) const;

  Question question_;
  ModelSpec model_;
  HardwareProfile hardware_;
  std::map<int64_t, std::unique_ptr<Machine>> machines_;  // by number of devices
  int64_t examined_ = 0, looked_at_ = 0;
};

/// Returns the approximate number of ops of a plan without a pipeline.
double ops_of(const ModelSpec& model, int64_t microbatches, const Answering& answer);
/// Programs of more ops take longer than about a second to lay out.
inline constexpr double kMostOps = 1.5e6;

}  // namespace longspan::testing
