// Dependencies point one way: a file does not include folders above its own.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "base/file.h"

namespace longspan {
namespace {

// From the bottom up; folders of one floor do not include each other.
const std::vector<std::vector<std::string>> kFloors = {
    {"base"},
    {"models", "hwprofiles"},
    {"planner/schedule"},
    {"planner/strategy"},
    {"planner/program"},
    {"planner/cost"},
    {"planner/simulate"},
    {"planner/pipeline"},
    {"planner/evaluate"},
    {"planner/plan"},
    {"planner/explain"},
    {"planner/search"},
    {"frameworks", "engine"},
    {"validation"},
    {"cli"},
};

// The folder of kFloors that a path is in, and its floor; empty: none.
std::pair<std::string, size_t> place_of(const std::string& path) {
  for (size_t floor = 0; floor < kFloors.size(); ++floor) {
    for (const std::string& folder : kFloors[floor]) {
      if (path.starts_with(folder + "/")) return {folder, floor};
    }
  }
  return {};
}

}  // namespace

TEST_CASE("no file includes what is above it") {
  const std::filesystem::path root = LONGSPAN_SOURCE_DIR;
  const std::regex include("#include \"([^\"]+)\"");
  int checked = 0;
  for (const char* top :
       {"base", "models", "hwprofiles", "planner", "frameworks", "validation", "engine", "cli"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
      const std::string path = std::filesystem::relative(entry.path(), root);
      const auto [own, floor] = place_of(path);
      INFO(path);
      REQUIRE(!own.empty());
      const std::string text = read_file(entry.path());
      for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
        const auto [folder, other] = place_of((*it)[1]);
        if (folder.empty() || folder == own) continue;
        INFO("includes " << (*it)[1]);
        CHECK(other < floor);
        ++checked;
      }
    }
  }
  CHECK(checked > 400);
}

}  // namespace longspan
