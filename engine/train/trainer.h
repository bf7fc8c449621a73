// Training: a plan, a data source and hyperparameters in; updated parameters and measurements out.
//
// A plan of several ranks has a Trainer on each, and whatever is called on one is called on all, in
// the same order: steps, checkpoints. Their reports are the same on every rank.
//
// A Trainer owns the executor, and with it all memory of the run. It is used from one thread. It
// never prints: a caller that wants a line per step takes the StepReport.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/runtime/executor.h"
#include "engine/train/data.h"
#include "engine/train/optimizer.h"
#include "planner/plan/plan.h"

namespace longspan {

/// What a rank sent to others in a step, in bytes.
struct Traffic {
  int64_t predicted = 0;
  int64_t measured = 0;
};

struct StepReport {
  int64_t step = 0;          // counts from 1
  double loss = 0;           // mean over the step's tokens, before the update
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  Prediction measured;  // the step's figures in the form the plan predicted them: the time of the
                        // slowest rank; the high-water mark of each arena, of the rank with the
                        // largest
  std::vector<Traffic> traffic;  // of each rank
};

struct TrainerOptions {
  int compute_threads = 0;  // 0: all cores
  std::filesystem::path nvme_directory = ".";
  bool poison = false;           // tests: arenas start as NaN
  Communicator* comm = nullptr;  // to the plan's other ranks; must outlive the trainer
};

class Trainer {
 public:
  /// Refuses, before the first op: a plan that does not fit its hardware (no_fit), a dtype or
  /// backend this build cannot run (bad_input). Parameters start from config.seed.
  Trainer(const Plan& plan, const TrainingConfig& config, std::shared_ptr<const TokenSource> data,
          const TrainerOptions& options);
  ~Trainer();

  /// Initial weights from a Hugging Face model folder or file (safetensors, sharded or not).
  void load_weights(const std::filesystem::path& path);
  /// Writes parameters, optimizer state and the step count, whole: rank 0 collects the others'
  /// shards, and they need not see the file; atomic. resume(), where every rank reads it, continues
  /// bit for bit under the same plan and data, and under another mesh from the same state.
  void save_checkpoint(const std::filesystem::path& path) const;
  void resume(const std::filesystem::path& path);

  StepReport step();  // runs the next step
  int64_t steps_done() const;
  const Timeline& last_timeline() const;
  const Executor& executor() const;
  Executor& executor();
  const TrainingConfig& config() const;
  /// Bytes in use on the device, by this process and all others; nothing where the machine does not
  /// tell the device's memory from the host's.
  std::optional<int64_t> device_bytes_in_use() const;
  /// The device, its driver and its libraries; nothing where steps run on the processor.
  std::optional<std::string> device_text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
