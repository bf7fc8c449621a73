// Runs the real program, as a user or a script would.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/base/temporary_folder.h"
#include "tests/replaced.h"

namespace longspan::e2e {

struct Result {
  int status = -1;  // exit status; 128 + n if signal n ended it
  std::string out;
  std::string err;
};

/// A started program. Its output goes to files in a folder of its own. `file_limit_bytes` > 0 makes
/// every write beyond that size in a file fail, as on a full disk.
class Command {
 public:
  /// `launcher`: words in front of the program's own, for mpirun.
  explicit Command(const std::vector<std::string>& arguments, int64_t file_limit_bytes = 0,
                   const std::vector<std::string>& launcher = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  void send(int signal) const;
  pid_t process() const { return process_; }
  /// The standard output written so far.
  std::string out_so_far() const;
  bool running();
  Result wait();

 private:
  testing::TemporaryFolder folder_;
  pid_t process_ = -1;
  int raw_status_ = 0;
  bool ended_ = false;
};

Result longspan(const std::vector<std::string>& arguments, int64_t file_limit_bytes = 0);

/// A command's words with more behind them.
std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& more);

/// Runs with --json and parses what it prints. Fails the test unless the status is `status`.
nlohmann::json longspan_json(std::vector<std::string> arguments, int status = 0);

/// Checks that the program refused: the exit status, no standard output, and one line on standard
/// error that begins with "longspan: " and contains each of `texts`.
void check_refused(const Result& result, int status, const std::vector<std::string>& texts);

std::string read_text(const std::filesystem::path& path);
using testing::replaced;
/// Returns `text` without the predicted block of a plan.
std::string without_record(const std::string& plan);

/// tests/e2e/fixtures/tiny-cpu.yaml: 64 MiB of device memory, 1 GiB on the host, 1 GiB in files.
extern const std::string kHardware;
/// tests/golden, the folder of small models with weights.
extern const std::string kGolden;

/// A hardware file of Calculon: a node of eight devices.
inline const std::string kCalculon = R"({
    "matrix": {"float16": {"tflops": 312, "gflops_efficiency": [[128, 0.95], [0, 0.1]]}},
    "vector": {"float16": {"tflops": 78, "gflops_efficiency": [[0, 0.1]]}},
    "mem1": {"GiB": 80, "GBps": 2048, "MB_efficiency": [[100, 0.9]]},
    "mem2": {"GiB": 512, "GBps": 32, "MB_efficiency": [[100, 0.95]]},
    "networks": [{"bandwidth": 300, "efficiency": 0.65, "size": 8, "latency": 0.00001}]})";

/// Writes a plan of tiny-llama for `sequence` tokens, by a preset with a chunk of a quarter.
std::string make_plan(const testing::TemporaryFolder& folder, const std::string& sequence = "256",
                      const std::string& strategy = "fpdt");

/// Writes tiny-llama with another number of layers. Returns the file.
std::string write_model(const testing::TemporaryFolder& folder, int layers);
/// Writes a machine of `ranks` devices like kHardware. Returns the file.
std::string write_machine(const testing::TemporaryFolder& folder, int ranks);

/// Writes a plan of tiny-llama on a machine of `ranks` devices like kHardware, with `more`
/// arguments for `longspan plan`.
std::string make_ranks_plan(const testing::TemporaryFolder& folder, int ranks,
                            const std::vector<std::string>& more,
                            const std::string& sequence = "256");

/// Runs a plan with `longspan run`, by threads if it has several ranks, with `more` arguments.
/// Returns its record. Fails the test unless it succeeds without a word on standard error.
nlohmann::json train(const testing::TemporaryFolder& folder, const std::string& plan, int64_t ranks,
                     const std::vector<std::string>& more = {});
/// The losses of a record's steps.
std::vector<double> losses(const nlohmann::json& record);

/// Names of the entries of a folder, sorted.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace longspan::e2e
