// The value of a plan as an answer to a question: by full simulation, as `longspan simulate`
// reports it for the plan's file, and by sampled simulation.
//
// Independent of planner/search: a plan outside the search's space counts here, as long as it is
// valid and has what the question fixes. One per question; not thread-safe.
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
  double excess = 0;   // beyond the capacities, relative, summed over tiers; 0: fits or at risk
  double seconds = 0;  // per sequence
  std::array<int64_t, kTierCount> bytes{};
  double value = 0;  // see value_name()
};

/// The quantity that the question asks for: "seconds" per sequence, "bytes", "tokens", or
/// "devices".
const char* value_name(const Question& question);

/// The ratio of the value to `best`, or its inverse where more is better: 1.01 is 1 % worse. Bytes
/// count from 1 MiB on.
double times_worse(const Question& question, double value, double best);

class Examiner {
 public:
  /// Throws bad_input for an unknown model or machine.
  explicit Examiner(const Question& question);
  ~Examiner();

  const Question& question() const { return question_; }
  const ModelSpec& model() const { return model_; }
  const HardwareProfile& hardware() const { return hardware_; }

  /// Whether the plan is valid, of this length or a little longer, and has what the question fixes.
  bool admits(const Answering& answer) const;

  /// Measures by full simulation. Empty if the schedule of a pipeline does not take the numbers.
  /// REQUIRES: admits().
  std::optional<Measured> exact(const Answering& answer);
  /// Memory alone, which is faster if time is not asked for; `seconds` is 0.
  std::optional<Measured> exact_memory(const Answering& answer);
  /// The sampled simulation's time, and live bytes without the losses by packing. REQUIRES:
  /// admits().
  std::optional<Measured> rough(const Answering& answer);
  /// The same for memory alone. REQUIRES: no pipeline.
  Measured rough_memory(const Answering& answer);

  /// Exact and rough measurements so far.
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
  std::map<int64_t, std::unique_ptr<Machine>> machines_;  // by devices
  int64_t examined_ = 0, looked_at_ = 0;
};

/// Ops of the program of a plan without a pipeline, roughly.
double ops_of(const ModelSpec& model, int64_t microbatches, const Answering& answer);

}  // namespace longspan::testing
