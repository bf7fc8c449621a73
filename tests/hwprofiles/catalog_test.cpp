#include "hwprofiles/catalog.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

std::string written(const HardwareProfile& hw) {
  YAML::Emitter out;
  write_hardware(out, hw);
  REQUIRE(out.good());
  return out.c_str();
}

HardwareProfile read(const std::string& text) {
  return read_hardware(YamlMap::parse(text, "hw.yaml"));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// Sets an environment variable and puts the old value back.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() {
    if (old_) {
      ::setenv(name_, old_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

struct TemporaryFolder {
  fs::path path;
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "longspan-hw-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

TEST_CASE("the catalog has these devices, sorted") {
  CHECK(hardware_names() ==
        std::vector<std::string>{"a100-40g", "a100-80g", "cpu-example", "h100-80g", "h200-141g"});
  for (const std::string& name : hardware_names()) CHECK(load_hardware(name).name == name);
}

TEST_CASE("figures of the catalog are in base units") {
  const HardwareProfile hw = load_hardware("a100-80g");
  CHECK(hw.device.backend == "cuda");
  CHECK(hw.device.memory_bytes.value == 80.0 * (1 << 30));
  CHECK(hw.device.peak_flops_bfloat16.value == 312e12);
  CHECK(hw.link.h2d_bandwidth.value == 25e9);
  CHECK(hw.host.memory_bytes.unit == "B");
  const RateTable attention = load_hardware("h200-141g").rates.at("attention_backward");
  REQUIRE(attention.points.size() == 5);
  CHECK(attention.points[3].shape == std::array<double, 3>{16384, 16384, 128});
  CHECK(attention.points[3].rate == 612e12);
}

TEST_CASE("counts before the name make nodes of devices") {
  const HardwareProfile one = load_hardware("h100-80g");
  CHECK(one.nodes == 1);
  CHECK(one.devices_per_node == 1);
  const HardwareProfile node = load_hardware("8xh100-80g");
  CHECK(node.nodes == 1);
  CHECK(node.devices_per_node == 8);
  CHECK(node.name == "8xh100-80g");
  const HardwareProfile cluster = load_hardware("2x8xa100-80g");
  CHECK(cluster.nodes == 2);
  CHECK(cluster.devices_per_node == 8);
  CHECK(cluster.devices() == 16);
  HardwareProfile rest = node;
  rest.name = one.name;
  rest.devices_per_node = 1;
  CHECK(rest == one);
}

TEST_CASE("bad references are refused with a hint") {
  CHECK_THROWS_WITH(load_hardware("h100-80gb"), Contains("did you mean \"h100-80g\""));
  CHECK_THROWS_WITH(load_hardware("8xh100"), Contains("\"h100-80g\""));
  CHECK_THROWS_WITH(load_hardware("loca"), Contains("did you mean \"local\""));
  CHECK_THROWS_WITH(load_hardware("tpu"), Contains("longspan hw list"));
  CHECK_THROWS_WITH(load_hardware(""), Contains("neither a catalog name nor a file"));
  CHECK_THROWS_WITH(load_hardware("8x"), Contains("neither a catalog name nor a file"));
  CHECK_THROWS_WITH(load_hardware("-8xh100-80g"), Contains("neither a catalog name"));
  CHECK_THROWS_WITH(load_hardware("0xh100-80g"), Contains("expected counts > 0"));
  CHECK_THROWS_WITH(load_hardware("99999999999999999999xh100-80g"),
                    Contains("expected counts > 0"));
  CHECK_THROWS_WITH(load_hardware("9999xh100-80g"),
                    Contains("devices_per_node: expected a whole number from 1 to 1024"));
  CHECK_THROWS_WITH(load_hardware("2x2x2xh100-80g"), Contains("at most two counts"));
}

TEST_CASE("a profile written as YAML reads back the same, to the last bit") {
  for (const std::string& name : hardware_names()) {
    INFO(name);
    const HardwareProfile hw = load_hardware(name);
    CHECK(read(written(hw)) == hw);
  }
  HardwareProfile odd = load_hardware("2x8xh100-80g");
  odd.name = "x: [\"y\"] # z";
  odd.device.memory_bandwidth.value = 0.1 + 0.2;
  odd.link.latency_seconds.value = 5e-324;
  odd.host.memory_bandwidth.value = 1e18 / 3;
  odd.link.duplex_factor.source = "measured: with 'quotes', \"both\", a: colon\nand a line";
  odd.rates["copy_h2d"] = {"B/s", "measured: here", "2024-02-29", {{{1.0 / 3 + 1, 1, 1}, 1e9 / 7}}};
  CHECK(read(written(odd)) == odd);
  odd.rates.clear();
  CHECK(read(written(odd)) == odd);
}

TEST_CASE("what is wrong in a file is told with its line") {
  const std::string good = written(load_hardware("cpu-example"));
  REQUIRE_NOTHROW(read(good));
  CHECK_THROWS_WITH(read(replaced(good, "name: cpu-example", "nam: x")),
                    StartsWith("hw.yaml:1:1: name: missing"));
  CHECK_THROWS_WITH(read(replaced(good, "backend: cpu", "backend: tpu")),
                    StartsWith("hw.yaml:6:3: device.backend: expected cpu or cuda, got \"tpu\""));
  CHECK_THROWS_WITH(read(replaced(good, "value: 2147483648", "value: -1")),
                    StartsWith("hw.yaml:7:3: device.memory_bytes: value: expected a finite number "
                               "> 0, got -1"));
  CHECK_THROWS_WITH(
      read(replaced(good, "value: 2147483648", "value: .nan")),
      StartsWith("hw.yaml:7:18: device.memory_bytes.value: expected a finite number"));
  CHECK_THROWS_WITH(
      read(replaced(good, "value: 2147483648", "value: 1e999")),
      StartsWith("hw.yaml:7:18: device.memory_bytes.value: expected a finite number"));
  CHECK_THROWS_WITH(read(replaced(good, "unit: B,", "unit: GiB,")),
                    Contains("device.memory_bytes: unit: expected B, got \"GiB\""));
  CHECK_THROWS_WITH(read(replaced(good, "value: 2147483648, ", "")),
                    Contains("device.memory_bytes.value: missing"));
  CHECK_THROWS_WITH(read(replaced(good, "unit: B, ", "")),
                    Contains("device.memory_bytes.unit: missing"));
  CHECK_THROWS_WITH(read(replaced(good, "date: 2026", "day: 2026")), Contains("date: missing"));
  CHECK_THROWS_WITH(read(replaced(good, "  reserved_bytes", "  reservd_bytes")),
                    Contains("device.reserved_bytes: missing"));
  CHECK_THROWS_WITH(read(good + "\nnotes: hello\n"), Contains("notes: unknown key"));
  CHECK_THROWS_WITH(read(replaced(good, "  cores: 2", "  cores: 2\n  core: 3")),
                    Contains("host.core: unknown key; did you mean \"cores\"?"));
  CHECK_THROWS_WITH(read(replaced(good, "  gemm_nt:", "  gem_nt:")),
                    Contains("rates.gem_nt: unknown kernel family; did you mean \"gemm_nt\""));
  CHECK_THROWS_WITH(read(replaced(good, "[1024, 1024, 1024,", "[1024, 1024,")),
                    Contains("row 0: expected 4 numbers in brackets, got 3 values"));
  CHECK_THROWS_WITH(read(replaced(good, "[1024, 1024, 1024,", "[1024, 1024, 0,")),
                    Contains("row 0: expected shape numbers >= 1, got 0"));
  CHECK_THROWS_WITH(read("name: x\n"), Contains("device: missing"));
}

TEST_CASE("a file is read by its path") {
  const TemporaryFolder folder;
  const HardwareProfile hw = load_hardware("8xh100-80g");
  write_file_atomically(folder.path / "8xmine.yaml", written(hw));
  CHECK(load_hardware((folder.path / "8xmine.yaml").string()) == hw);
  write_file_atomically(folder.path / "bad.yaml", "name: [\n");
  CHECK_THROWS_WITH(load_hardware((folder.path / "bad.yaml").string()),
                    Contains("bad.yaml:2:1: not valid YAML"));
}

TEST_CASE("local is this machine's profile") {
  const TemporaryFolder folder;
  const ScopedVariable own("LONGSPAN_LOCAL_PROFILE", "");
  const ScopedVariable config("XDG_CONFIG_HOME", folder.path.string());
  const ScopedVariable home("HOME", "/home/someone");
  CHECK(local_profile_path() == folder.path / "longspan" / "local.yaml");
  CHECK_THROWS_WITH(load_hardware("local"), Contains("local.yaml") && Contains("longspan profile"));
  {
    const ScopedVariable none("XDG_CONFIG_HOME", "");
    CHECK(local_profile_path() == "/home/someone/.config/longspan/local.yaml");
    const ScopedVariable homeless("HOME", "");
    CHECK_THROWS_WITH(local_profile_path(), Contains("LONGSPAN_LOCAL_PROFILE"));
  }
  const ScopedVariable named("LONGSPAN_LOCAL_PROFILE", (folder.path / "p.yaml").string());
  CHECK(local_profile_path() == folder.path / "p.yaml");
  const HardwareProfile hw = load_hardware("cpu-example");
  write_file_atomically(folder.path / "p.yaml", written(hw));
  CHECK(load_hardware("local") == hw);
}

}  // namespace
}  // namespace longspan
