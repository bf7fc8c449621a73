#include "tests/e2e/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "base/units.h"

namespace longspan::e2e {

const std::string kHardware = LONGSPAN_SOURCE "/tests/e2e/fixtures/tiny-cpu.yaml";
const std::string kGolden = LONGSPAN_SOURCE "/tests/golden";

Command::Command(const std::vector<std::string>& arguments, int64_t file_limit_bytes,
                 const std::vector<std::string>& launcher) {
  std::vector<std::string> words = launcher;
  words.emplace_back(LONGSPAN_BINARY);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string out = folder_.path() / "out", err = folder_.path() / "err";

  process_ = ::fork();
  if (process_ != 0) {
    if (process_ < 0) throw std::runtime_error("fork failed");
    return;
  }
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  if (file_limit_bytes > 0) {
    ::signal(SIGXFSZ, SIG_IGN);  // so that write(2) fails instead
    const rlimit limit{static_cast<rlim_t>(file_limit_bytes),
                       static_cast<rlim_t>(file_limit_bytes)};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  // Lines are not wrapped, unless the test sets the width.
  ::setenv("COLUMNS", "1000", 0);
  ::execvp(pointers[0], pointers.data());
  ::_exit(127);
}

Command::~Command() {
  if (ended_) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void Command::send(int signal) const { ::kill(process_, signal); }

std::string Command::out_so_far() const {
  std::ifstream file(folder_.path() / "out");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Command::running() {
  if (!ended_) ended_ = ::waitpid(process_, &raw_status_, WNOHANG) == process_;
  return !ended_;
}

Result Command::wait() {
  if (!ended_) ::waitpid(process_, &raw_status_, 0);
  ended_ = true;
  Result result;
  result.status = WIFEXITED(raw_status_) ? WEXITSTATUS(raw_status_) : 128 + WTERMSIG(raw_status_);
  result.out = read_text(folder_.path() / "out");
  result.err = read_text(folder_.path() / "err");
  return result;
}

Result longspan(const std::vector<std::string>& arguments, int64_t file_limit_bytes) {
  return Command(arguments, file_limit_bytes).wait();
}

std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json longspan_json(std::vector<std::string> arguments, int status) {
  arguments.emplace_back("--json");
  const Result result = longspan(arguments);
  INFO(result.out << result.err);
  REQUIRE(result.status == status);
  return nlohmann::json::parse(result.out);
}

void check_refused(const Result& result, int status, const std::vector<std::string>& texts) {
  INFO("stdout: " << result.out);
  INFO("stderr: " << result.err);
  CHECK(result.status == status);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK_THAT(result.err, Catch::Matchers::StartsWith("longspan: "));
  for (const std::string& text : texts) CHECK_THAT(result.err, Catch::Matchers::Contains(text));
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string without_record(const std::string& plan) {
  const size_t first = plan.find("\npredicted:"), last = plan.find("\nmodel:");
  REQUIRE(first != std::string::npos);
  REQUIRE(last > first);
  return plan.substr(0, first) + plan.substr(last);
}

std::string make_plan(const testing::TemporaryFolder& folder, const std::string& sequence,
                      const std::string& strategy) {
  const std::string path = folder.path() / ("plan-" + strategy + "-" + sequence + ".yaml");
  std::vector<std::string> arguments = {"plan",    "--model", "tiny-llama", "--hw",
                                        kHardware, "--seq",   sequence,     "--strategy",
                                        strategy,  "-o",      path};
  if (strategy == "fpdt") {
    arguments.insert(arguments.end(),
                     {"--chunk", std::to_string(parse_tokens(sequence, "sequence") / 4)});
  }
  const Result result = longspan(arguments);
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  return path;
}

std::string write_model(const testing::TemporaryFolder& folder, int layers) {
  return folder.file("model-" + std::to_string(layers) + ".yaml",
                     replaced(read_text(LONGSPAN_SOURCE "/models/catalog/tiny-llama.yaml"),
                              "layers: 2", "layers: " + std::to_string(layers)));
}

std::string write_machine(const testing::TemporaryFolder& folder, int ranks) {
  return folder.file("machine-" + std::to_string(ranks) + ".yaml",
                     replaced(read_text(kHardware), "devices_per_node: 1",
                              "devices_per_node: " + std::to_string(ranks)));
}

std::string make_ranks_plan(const testing::TemporaryFolder& folder, int ranks,
                            const std::vector<std::string>& more, const std::string& sequence) {
  std::string name = "plan-" + std::to_string(ranks);
  for (const std::string& word : more) name += "-" + word;
  const std::string path = folder.path() / (name + ".yaml");
  const std::string machine = write_machine(folder, ranks);
  std::vector<std::string> words = {"plan",  "--model", "tiny-llama", "--hw", machine,
                                    "--seq", sequence,  "-o",         path};
  words.insert(words.end(), more.begin(), more.end());
  const Result result = longspan(words);
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  return path;
}

nlohmann::json train(const testing::TemporaryFolder& folder, const std::string& plan, int64_t ranks,
                     const std::vector<std::string>& more) {
  const std::string record = folder.path() / "run.json";
  std::vector<std::string> words = {"run", plan, "--lr", "1e-2", "-o", record};
  if (ranks > 1) words.insert(words.end(), {"--local-ranks", std::to_string(ranks)});
  const Result result = longspan(joined(words, more));
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  return nlohmann::json::parse(read_text(record));
}

std::vector<double> losses(const nlohmann::json& record) {
  std::vector<double> values;
  for (const nlohmann::json& step : record.at("steps")) values.push_back(step.at("loss"));
  return values;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace longspan::e2e
