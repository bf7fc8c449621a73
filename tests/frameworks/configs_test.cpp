// Configs written the way people write them: the framework, the knobs and the keys that are not
// known, each as tests/frameworks/configs says; and configs that are refused.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/yaml.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

namespace fs = std::filesystem;

const fs::path kFolder = LONGSPAN_SOURCE "/tests/frameworks/configs";

ConfigReading read_folder(const fs::path& folder, const std::vector<std::string>& files) {
  std::vector<ConfigText> texts;
  for (const std::string& file : files) texts.push_back({file, read_file(folder / file)});
  return read_config(texts, "", [&](const std::string& path) -> std::optional<std::string> {
    const fs::path near = folder / fs::path(path).filename();
    if (!fs::is_regular_file(near)) return std::nullopt;
    return read_file(near);
  });
}

// Whether the config is refused before a prediction, and with which words.
std::string refusal_of(const fs::path& folder, const std::vector<std::string>& files,
                       int64_t sequence) {
  try {
    const ConfigReading reading = read_folder(folder, files);
    std::optional<ModelSpec> model = model_of(reading.knobs, *reading.framework);
    if (!model) model = load_model("llama-3.1-8b");
    check_config(reading, *model, load_hardware("8xh100-80g"), {.sequence = sequence});
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("configs as people write them are understood", "[frameworks]") {
  int64_t configs = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (name == "bad") continue;
    CAPTURE(name);
    const fs::path path = entry.path() / "expected.yaml";
    const YamlMap expected = YamlMap::parse(read_file(path), path.string());
    const ConfigReading reading = read_folder(entry.path(), expected.texts("files"));
    CHECK(reading.framework->name == expected.text("framework"));
    const YamlMap knobs = expected.map("knobs");
    for (const std::string& knob : knobs.keys()) {
      CAPTURE(knob);
      REQUIRE(find_run_knob(knob) != nullptr);
      const std::string word = knobs.text(knob);
      CHECK(reading.knobs.effective(knob) == (word == "unset" ? "" : word));
    }
    const std::vector<std::string> unknown = expected.texts("unknown");
    CHECK(std::set(reading.unknown.begin(), reading.unknown.end()) ==
          std::set(unknown.begin(), unknown.end()));
    const bool has_length = expected.has("arguments");
    const std::string refusal =
        refusal_of(entry.path(), expected.texts("files"), has_length ? 8192 : 0);
    // A model that is not in the catalog needs its config.json.
    if (refusal.find("neither a catalog name") == std::string::npos) CHECK(refusal == "");
    ++configs;
  }
  CHECK(configs >= 45);
}

TEST_CASE("configs that contradict themselves are refused in one line", "[frameworks]") {
  const fs::path path = kFolder / "bad" / "expected.yaml";
  const YamlMap all = YamlMap::parse("bad:\n" + read_file(path), path.string());
  for (const YamlMap& bad : all.maps("bad")) {
    const std::vector<std::string> files = bad.texts("files");
    CAPTURE(files);
    const bool has_length = bad.has("arguments");
    const std::string refusal = refusal_of(kFolder / "bad", files, has_length ? 8192 : 0);
    CHECK_FALSE(refusal.empty());
    CHECK(refusal.find('\n') == std::string::npos);
    for (const std::string& word : bad.texts("says")) {
      CHECK_THAT(refusal, Catch::Matchers::Contains(word, Catch::CaseSensitive::No));
    }
  }
}
