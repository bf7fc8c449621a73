// Trains a model by a plan, a data source and hyperparameters, and measures each step.
//
// A plan for several ranks needs a Trainer on each. All ranks call the same methods in the same
// order (steps, checkpoints) and get the same reports.
//
// A Trainer owns the executor, and with it all memory of the run. Used from one thread. It never
// prints; the StepReport has the figures of each step.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/executor.h"
#include "engine/train/data.h"
#include "engine/train/optimizer.h"
#include "planner/plan/plan.h"

namespace longspan {

/// Bytes that a rank sent to others in a step.
struct Traffic {
  int64_t predicted = 0;
  int64_t measured = 0;
};

struct StepReport {
  int64_t step = 0;          // counts from 1
  double loss = 0;           // mean over the step's tokens, before the update
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  // A forward alone has the mean loss of each sequence of the step, in the order of the data; and
  // on rank 0, if TrainerOptions ask for them, the log-probabilities of their labels, [sequences,
  // S].
  std::vector<double> sequence_losses;
  std::vector<float> log_probs;
  Prediction measured;  // measured counterparts of the plan's prediction: the time of the slowest
                        // rank; for each tier, the largest high-water mark of any rank
  std::vector<Traffic> traffic;      // of each rank
  std::vector<double> busy_seconds;  // of each rank: seconds_in_passes()
};

struct TrainerOptions {
  int compute_threads = 0;  // 0: all cores
  std::filesystem::path nvme_directory = ".";
  bool keep_log_probs = false;   // StepReport::log_probs
  bool poison = false;           // fills the arenas with NaN first (tests)
  Communicator* comm = nullptr;  // to the plan's other ranks; must outlive the trainer
  Progress preparing = {};       // of what a GPU's libraries build; from any thread, one at a time
};

class Trainer {
 public:
  /// Initializes the parameters from config.seed. Throws no_fit for a plan that does not fit its
  /// hardware, bad_input for a dtype or backend that this build cannot run, or for documents in the
  /// data that the plan does not expect.
  Trainer(const Plan& plan, const TrainingConfig& config, std::shared_ptr<const TokenSource> data,
          const TrainerOptions& options);
  ~Trainer();

  /// Loads initial weights from a Hugging Face model folder or file (safetensors, sharded or not).
  /// check_weights() says much earlier whether they are of the plan's model.
  void load_weights(const std::filesystem::path& path);
  /// Loads and writes adapters in peft's format (adapter_files.h).
  void load_adapters(const std::filesystem::path& folder);
  void save_adapters(const std::filesystem::path& folder) const;
  /// Writes the whole parameters, optimizer states and the step count, atomically. Rank 0 collects
  /// the shards and writes; only rank 0 needs access to the file. For resume() every rank reads the
  /// file: it continues bit for bit under the same plan and data, and from the same state under
  /// another mesh.
  void save_checkpoint(const std::filesystem::path& path) const;
  void resume(const std::filesystem::path& path);

  StepReport step();  // runs the next step
  int64_t steps_done() const;
  const Timeline& last_timeline() const;
  const Executor& executor() const;
  Executor& executor();
  const TrainingConfig& config() const;
  /// Bytes in use on the device, by this process and all others; nullopt on the cpu backend, which
  /// has no device memory of its own.
  std::optional<int64_t> device_bytes_in_use() const;
  /// The device, its driver and its libraries; nullopt on the cpu backend.
  std::optional<std::string> device_text() const;
  /// The text of a warning if the device does not have what the plan counts on; nullopt if it does.
  std::optional<std::string> device_warning() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
