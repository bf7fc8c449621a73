// Exported configs are read back as the same run. With LONGSPAN_EXPORTS=FOLDER the files are kept
// there, for tests/frameworks/packages.
#include "frameworks/write/export_plan.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "frameworks/read/read_config.h"
#include "frameworks/search/framework_search.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

constexpr size_t kPlans = 20;  // of a framework
constexpr int64_t kSequence = 32768;

void keep(const ExportedPlan& exported, const std::string& framework, size_t index) {
  const char* const folder = std::getenv("LONGSPAN_EXPORTS");
  if (folder == nullptr) return;
  const std::filesystem::path path =
      std::filesystem::path(folder) / framework / fmt::format("{:02}", index);
  std::filesystem::create_directories(path);
  for (const ConfigText& file : exported.config.files) std::ofstream(path / file.name) << file.text;
  std::ofstream(path / "README.md") << readme_of(*exported.nearest->framework, exported);
}

// The framework that the files are taken for.
std::string recognized(const ExportedPlan& exported) {
  const ConfigOpener none = [](const std::string&) { return std::nullopt; };
  return read_config(exported.config.files, "", none).framework->name;
}

std::string text_of(const ExportedPlan& exported) {
  std::string text;
  for (const ConfigText& file : exported.config.files) text += file.name + ":\n" + file.text + "\n";
  return text;
}

}  // namespace

TEST_CASE("settings of every framework's space are exported and read back", "[frameworks]") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  for (const std::string& name : written_framework_names()) {
    const std::vector<FrameworkPlan> all =
        all_on(question_of(load_framework(name), {}, model, hw), kSequence);
    CAPTURE(name, all.size());
    CHECK_FALSE(all.empty());
    const size_t step = std::max<size_t>(1, all.size() / kPlans);
    for (size_t i = 0; i < all.size() && i / step < kPlans; i += step) {
      const ExportedPlan exported = export_settings(all[i]);
      const std::string text = text_of(exported);
      CAPTURE(i, text, exported.refusal);
      CHECK(text.find('*') == std::string::npos);  // a pattern of values is not a model
      CHECK(recognized(exported) == name);
      CHECK(exported.nearest);
      if (!exported.nearest) continue;
      for (const UnsaidKnob& unsaid : exported.config.unsaid) {
        FAIL_CHECK(unsaid.knob << ": " << unsaid.wanted << " wanted, " << unsaid.instead);
      }
      CHECK(exported.nearest->configured.run == all[i].configured.run);
      CHECK(exported.nearest->predicted.needs.device == all[i].predicted.needs.device);
      CHECK(exported.nearest->predicted.time.step() == all[i].predicted.time.step());
      keep(exported, name, i / step);
    }
  }
}
