// A question to the planner as typed on the command line, and its answer from the library.
//
// A question has the form of a command line, `plan --model llama-3.1-8b --hw h100-80g --seq 128K`:
// in the corpus, in the lists of counterexamples, and in printed findings, which can be pasted into
// a shell. ask() calls the same functions as the verb. Plain values and pure functions. The
// answer's time is that of the whole process, so ask one question at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"
#include "planner/search/search.h"

namespace longspan::testing {

/// The processor time of this process.
double processor_seconds();

struct Question {
  enum class Verb { plan, max_seq };
  Verb verb = Verb::plan;
  std::string model, hardware;
  std::string device_memory, host_memory, nvme_capacity;  // as typed; empty: as the profile says
  std::string max_step_time, margin;                      // as typed; empty: none
  int64_t gpus = 0;                                       // --gpus; 0: all
  int64_t max_gpus = 0;                                   // --max-gpus; 0: not given
  int64_t sequence = 0;                                   // --seq, or --min-gpus-for if `fewest`
  bool fewest = false;                                    // --min-gpus-for was given
  std::string strategy = "auto";
  Objective objective = Objective::throughput;
  int64_t chunk = 0;  // 0: not fixed
  int64_t granularity = 256;
  int64_t microbatches = 1;
  int64_t global_batch = 0;  // replaces microbatches
  bool deterministic = false;
  ParallelChoice parallel;
};

/// Throws bad_input, prefixed by `origin`, for an unknown verb, flag or value. A flag whose value
/// is the default may be left out.
Question parse_question(const std::string& line, const std::string& origin);

/// The line that parse_question() reads back to the same question, without the program's name.
std::string line_of(const Question& question);

/// The part of the machine that the question may use, its overrides applied. Throws bad_input.
HardwareProfile hardware_of(const Question& question);

struct Reply {
  std::optional<Plan> plan;    // the best; for max_seq that of the longest sequence
  std::string refusal;         // why there is no plan
  bool failed = false;         // the refusal is neither no_fit nor bad_input
  bool bad_input = false;      // ... or it is bad_input
  int64_t tokens = 0;          // of the plan's sequence
  int64_t granularity = 0;     // MaxSequence::granularity
  std::vector<Within> within;  // for steps of ten minutes and of an hour; of a whole answer
  int64_t devices = 0;         // of the plan
  std::vector<Plan> front;     // SearchResult::pareto; of a whole answer
  std::optional<double> gap;   // the proven gap, if the search states one
  int64_t considered = 0, simulated = 0;
  double processor_seconds = 0;
};

/// Never throws for questions that the planner refuses; throws bad_input for an unknown model or
/// machine. The whole answer has the front of plan and the time limits' columns of max-seq. They
/// take much of the time, and the best is the same without them.
Reply ask(const Question& question, bool whole_answer = true);

}  // namespace longspan::testing
