// Output at 80, 100 and 160 columns: equal to the files in golden/, and never wider than the limit.
//
// LONGSPAN_WRITE_GOLDEN=1 rewrites the files.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using testing::TemporaryFolder;

constexpr int kWidths[] = {80, 100, 160};
const std::string kFolder = LONGSPAN_SOURCE "/tests/e2e/golden/";

struct Shown {
  std::string name;  // of the golden file
  std::vector<std::string> words;
};

size_t widest(const std::string& text) {
  std::istringstream lines(text);
  size_t most = 0;
  for (std::string line; std::getline(lines, line);) {
    size_t width = 0;
    for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    most = std::max(most, width);
  }
  return most;
}

std::string shown_at(int width, const std::vector<std::string>& words) {
  ::setenv("COLUMNS", std::to_string(width).c_str(), 1);
  const Result result = longspan(words);
  ::unsetenv("COLUMNS");
  INFO(result.err);
  CHECK(result.status == 0);
  return result.out;
}

void check(const Shown& shown) {
  for (const int width : kWidths) {
    const std::string path = fmt::format("{}{}.{}.txt", kFolder, shown.name, width);
    CAPTURE(path);
    const std::string text = shown_at(width, shown.words);
    CHECK(widest(text) <= static_cast<size_t>(width));
    if (std::getenv("LONGSPAN_WRITE_GOLDEN") != nullptr) {
      write_file_atomically(path, text);
    } else {
      CHECK(text == read_text(path));
    }
  }
}

const std::vector<std::string> kQuestion = {"--model", "tiny-llama", "--hw", "cpu-example"};

std::vector<std::string> asked(std::vector<std::string> words) {
  words.insert(words.begin() + 1, kQuestion.begin(), kQuestion.end());
  return words;
}

TEST_CASE("help fits the width") {
  for (const char* verb : {"max-seq", "plan", "explain", "simulate", "run", "compare", "profile",
                           "models", "hw", "validate", "schedule", "assign"}) {
    check({fmt::format("help-{}", verb), {verb, "--help"}});
  }
}

TEST_CASE("catalogs fit the width") {
  check({"models-list", {"models", "list"}});
  check({"models-show", {"models", "show", "llama-3.1-8b"}});
  check({"hw-list", {"hw", "list"}});
  check({"hw-show", {"hw", "show", "rtx-4090"}});
}

TEST_CASE("answers fit the width") {
  check({"max-seq", asked({"max-seq"})});
  check({"max-seq-ranks",
         {"max-seq", "--model", "llama-3.1-8b", "--hw", "8xh100-80g", "--strategy", "fpdt"}});
  check({"plan", asked({"plan", "--seq", "4K", "--gap", "30%"})});
  check({"plan-lengths", asked({"plan", "--seq", "4K,8K", "--gap", "30%"})});
  check({"plan-ranks",
         {"plan", "--model", "llama-3.1-8b", "--hw", "8xh100-80g", "--seq", "128K", "--strategy",
          "fpdt"}});
}

TEST_CASE("what is said of a plan fits the width") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml";
  longspan_json(asked({"plan", "--seq", "4K", "--gap", "30%", "-o", plan}));
  check({"explain", {"explain", plan}});
  check({"simulate", {"simulate", plan}});
}

TEST_CASE("schedules fit the width") {
  check({"schedule-list", {"schedule", "list"}});
  check({"schedule", {"schedule", "zb-h1", "--stages", "4", "--microbatches", "8"}});
  check({"schedule-compare", {"schedule", "compare", "--stages", "4", "--microbatches", "8"}});
}

TEST_CASE("assignments fit the width") {
  check({"assign",
         {"assign", "64K,16K*4,2K*40", "--ranks", "8", "--groups", "1,2:0.01,4:0.02,8:0.03",
          "--quadratic", "1e-5", "--memory-limit", "16384", "--time-limit", "1000"}});
}

TEST_CASE("imports fit the width") {
  const TemporaryFolder folder;
  const std::string from = folder.file("theirs.json", kCalculon);
  check({"hw-import", {"hw", "import", from, "-o", "/dev/null"}});
}

TEST_CASE("validations fit the width") {
  const std::string published = LONGSPAN_SOURCE "/tests/published/";
  check({"validate", {"validate", published + "alst.yaml"}});
  check({"validate-cases", {"validate", published + "easycontext.yaml", "--cases"}});
}

// Times differ from run to run: no golden files.
TEST_CASE("what is measured fits the width") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() / "plan.yaml", record = folder.path() / "run.json";
  longspan_json(asked({"plan", "--seq", "1K", "--gap", "30%", "-o", plan}));
  for (const int width : kWidths) {
    CAPTURE(width);
    const auto fits = [&](const std::vector<std::string>& words) {
      const std::string text = shown_at(width, words);
      CAPTURE(text);
      CHECK(widest(text) <= static_cast<size_t>(width));
    };
    fits({"run", plan, "--steps", "2", "-o", record});
    fits({"compare", plan, record, "--tolerance", "1e12"});
    fits({"plan", "--model", "tiny-llama", "--hw", "cpu-example", "--seq", "1K", "--verbose",
          "--gap", "30%"});
    fits({"profile", "--backend", "cpu", "--seconds", "1", "--device-memory", "64MiB",
          "--host-memory", "256MiB", "--threads", "1", "--nvme-dir", folder.path(), "-o",
          folder.path() / "machine.yaml"});
  }
}

TEST_CASE("--wide shows all columns and does not wrap") {
  const std::string text = shown_at(80, {"hw", "show", "rtx-4090", "--wide"});
  CHECK(widest(text) > 160);
  CHECK(text == shown_at(1000, {"hw", "show", "rtx-4090"}));
}

}  // namespace
}  // namespace longspan::e2e
