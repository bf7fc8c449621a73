#include "hwprofiles/catalog.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/nearest.h"
#include "hwprofiles/layers.h"
#include "tests/base/temporary_folder.h"
#include "tests/replaced.h"

namespace longspan {
namespace {

using testing::replaced;

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::TemporaryFolder;

std::string written(const HardwareProfile& hw) {
  YAML::Emitter out;
  write_hardware(out, hw);
  REQUIRE(out.good());
  return out.c_str();
}

HardwareProfile read(const std::string& text) {
  return read_hardware(YamlMap::parse(text, "hw.yaml"));
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

TEST_CASE("counts before a device make nodes of devices") {
  const HardwareProfile one = load_hardware("h100-80g");
  CHECK(one.nodes == 1);
  CHECK(one.devices_per_node == 1);
  CHECK(one.name == "h100-80g");
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

TEST_CASE("one count before a node makes nodes, two nodes of devices") {
  HardwareProfile node = load_hardware("dgx-h100");
  CHECK(node.name == "dgx-h100");
  CHECK(node.nodes == 1);
  CHECK(node.devices_per_node == 8);
  const HardwareProfile four = load_hardware("4xdgx-h100");
  CHECK(four.name == "4xdgx-h100");
  CHECK(four.nodes == 4);
  CHECK(four.devices_per_node == 8);
  const HardwareProfile half = load_hardware("4x2xdgx-h100");
  CHECK(half.nodes == 4);
  CHECK(half.devices_per_node == 2);
  // 8xh100-80g is the same node by another name.
  node.name = "8xh100-80g";
  CHECK(node == load_hardware("8xh100-80g"));
}

TEST_CASE("a node has no more devices than it has") {
  CHECK_THROWS_WITH(load_hardware("12xh100-80g"),
                    Contains("at most 8 devices, as many as a node dgx-h100 has, got 12") &&
                        Contains("nodes x devices x name"));
  CHECK_THROWS_WITH(load_hardware("2x9xdgx-h100"), Contains("at most 8 devices"));
  CHECK_THROWS_WITH(load_hardware("5xgb200"), Contains("at most 4 devices"));
  CHECK(load_hardware("4x72xgb200-nvl72").devices() == 288);
  // Devices of the cpu backend are shares of a machine, any number of them.
  CHECK(load_hardware("16xcpu-example").device.memory_bytes.value ==
        load_hardware("cpu-example").device.memory_bytes.value / 16);
}

TEST_CASE("devices of whole nodes are these nodes") {
  const HardwareProfile hw = load_hardware("64xh100-80g");
  CHECK(hw.name == "8x8xh100-80g");
  CHECK(hw == load_hardware("8x8xh100-80g"));
}

TEST_CASE("a name is known as people write it") {
  for (const auto& [written, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"H100", "h100-80g"},
                                                                  {"8xh100", "8xh100-80g"},
                                                                  {"8XH100_80GB", "8xh100-80g"},
                                                                  {"rtx4090", "rtx-4090"},
                                                                  {"4090", "rtx-4090"},
                                                                  {"4xRTX 4090", "4xrtx-4090"},
                                                                  {"2x8xA100", "2x8xa100-80g"},
                                                                  {"DGX_H100", "dgx-h100"},
                                                                  {"8xa800", "8xa800-80g"},
                                                                  {"4xh800", "4xh800-80g"},
                                                                  {"8xh20", "8xh20-96g"},
                                                                  {"64xv100", "64xv100-32g"},
                                                                  {"2x3090", "2xrtx-3090"},
                                                                  {"1xa6000", "1xrtx-a6000"},
                                                                  {"A40", "a40"},
                                                                  {"4xL40", "4xl40"},
                                                                  {"DGX Spark", "dgx-spark"},
                                                                  {"spark", "gb10"},
                                                                  {"16xh200", "2x8xh200-141g"}}) {
    INFO(written);
    CHECK(load_hardware(written) == load_hardware(name));
    CHECK(load_hardware(written).name == load_hardware(name).name);
  }
}

TEST_CASE("cards of all kinds have the devices and nodes that their names say") {
  CHECK(load_hardware("64xv100-32g").name == "8x8xv100-32g");
  CHECK(load_hardware("2x3090").link == load_hardware("8xrtx-4090").link);
  CHECK(load_hardware("2xdgx-spark").devices() == 2);
  CHECK(load_hardware("dgx-spark").device == load_hardware("gb10").device);
  CHECK(load_hardware("dgx-station").device == load_hardware("gb300").device);
  CHECK(load_hardware("workstation").devices() == 4);
  CHECK(load_hardware("workstation").device == load_hardware("4090").device);
  CHECK(load_hardware("4xh800").node_fabric == load_hardware("h800-8gpu").node_fabric);
}

TEST_CASE("no two names of the catalog can be taken for each other") {
  std::vector<std::string> known = device_names();
  for (const std::string& node : node_names()) known.push_back(node);
  CatalogFiles files;
  for (const std::string& device : device_names()) {
    const Layers layers = device_layers(files, device).value();
    if (layers.front().has("aliases")) {
      for (const std::string& alias : layers.front().texts("aliases")) known.push_back(alias);
    }
  }
  for (size_t i = 0; i < known.size(); ++i) {
    for (size_t j = i + 1; j < known.size(); ++j) {
      INFO(known[i] << " and " << known[j]);
      CHECK_FALSE(is_same_name(known[i], known[j]));
    }
  }
}

TEST_CASE("counts stand before a file, too") {
  const TemporaryFolder dir;
  const std::string path = (dir.path() / "my.yaml").string();
  save_hardware(path, load_hardware("8xh100-80g"));
  const HardwareProfile two = load_hardware("2x" + path);
  CHECK(two.nodes == 2);
  CHECK(two.devices_per_node == 8);
  CHECK(load_hardware("2x4x" + path).devices() == 8);
}

TEST_CASE("a node that is sold with different devices is had by naming one") {
  CHECK(load_hardware("8xl40s").link == load_hardware("8xrtx-4090").link);
  CHECK_THROWS_WITH(load_hardware("pcie4-server"),
                    Contains("different devices") && Contains("l40s") && Contains("rtx-4090"));
}

TEST_CASE("bad references are refused with a hint") {
  CHECK_THROWS_WITH(load_hardware("h100-81g"), Contains("did you mean \"h100-80g\""));
  CHECK_THROWS_WITH(load_hardware("8xh100-8"), Contains("\"h100-80g\""));
  CHECK_THROWS_WITH(load_hardware("loca"), Contains("did you mean \"local\""));
  CHECK_THROWS_WITH(load_hardware("tpu"), Contains("longspan hw list"));
  CHECK_THROWS_WITH(load_hardware(""), Contains("neither a catalog name nor a file"));
  CHECK_THROWS_WITH(load_hardware("8x"), Contains("neither a catalog name nor a file"));
  CHECK_THROWS_WITH(load_hardware("-8xh100-80g"), Contains("neither a catalog name"));
  CHECK_THROWS_WITH(load_hardware("0xh100-80g"), Contains("expected counts > 0"));
  CHECK_THROWS_WITH(load_hardware("99999999999999999999xh100-80g"),
                    Contains("expected counts > 0"));
  CHECK_THROWS_WITH(load_hardware("9999xh100-80g"), Contains("expected at most 8 devices"));
  CHECK_THROWS_WITH(load_hardware("99999xdgx-h100"),
                    Contains("nodes: expected a whole number from 1 to 65536"));
  CHECK_THROWS_WITH(load_hardware("dgx-h10"), Contains("did you mean \"dgx-h100\""));
  CHECK_THROWS_WITH(load_hardware("2x2x2xh100-80g"), Contains("at most two counts"));
}

TEST_CASE("a profile written as YAML reads back the same, to the last bit") {
  for (const HardwareProfile& hw : load_hardware(device_names())) {
    INFO(hw.name);
    CHECK(read(written(hw)) == hw);
    for (const auto& [kernel, tables] : hw.attention_kernels) {
      const HardwareProfile chosen = with_attention_kernel(hw, kernel);
      CHECK(read(written(chosen)) == chosen);
    }
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
  odd.attention_kernels.clear();
  odd.attention_kernel.clear();
  CHECK(read(written(odd)) == odd);
}

TEST_CASE("what is wrong in a file is told with its line") {
  const std::string good = written(load_hardware("cpu-example"));
  REQUIRE_NOTHROW(read(good));
  CHECK_THROWS_WITH(read(replaced(good, "name: cpu-example", "nam: x")),
                    StartsWith("hw.yaml:1:1: name: missing"));
  CHECK_THROWS_WITH(
      read(replaced(good, "backend: cpu", "backend: tpu")),
      StartsWith("hw.yaml:6:3: device.backend: expected cpu, cuda or none, got \"tpu\""));
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
  const std::string named =
      replaced(good, "  reserved_bytes",
               "  overhead:\n    context: {value: 0, unit: B, source: \"assumption: none\", date: "
               "2026-11-22}\n  reserved_bytes");
  CHECK(read(named).device.overhead.at("context").source == "assumption: none");
  CHECK(read(written(read(named))) == read(named));
  CHECK_THROWS_WITH(read(replaced(named, "context: {value: 0", "context: {value: 1e99")),
                    Contains("device.overhead.context: value: expected"));
  CHECK_THROWS_WITH(read(replaced(named, "context: {value: 0", "context: {valu: 0")),
                    Contains("device.overhead.context.value: missing"));
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
  write_file_atomically(folder.path() / "8xmine.yaml", written(hw));
  CHECK(load_hardware((folder.path() / "8xmine.yaml").string()) == hw);
  write_file_atomically(folder.path() / "bad.yaml", "name: [\n");
  CHECK_THROWS_WITH(load_hardware((folder.path() / "bad.yaml").string()),
                    Contains("bad.yaml:2:1: not valid YAML"));
}

// A user's file that states its differences from the catalog.
TEST_CASE("a file may name what it takes from the catalog") {
  const TemporaryFolder folder;
  const auto load = [&](const std::string& text) {
    write_file_atomically(folder.path() / "mine.yaml", text);
    return load_hardware((folder.path() / "mine.yaml").string());
  };
  const HardwareProfile dgx = load_hardware("dgx-h100");
  HardwareProfile mine = load("name: mine\nlike: dgx-h100\n");
  CHECK(mine.name == "mine");
  mine.name = dgx.name;
  CHECK(mine == dgx);

  mine = load("name: mine\nlike: dgx-h100\ndevice: h200-141g\ndevices_per_node: 4\n");
  CHECK(mine.device == load_hardware("h200-141g").device);
  CHECK(mine.rates == load_hardware("h200-141g").rates);
  CHECK(mine.host == dgx.host);
  CHECK(mine.devices_per_node == 4);

  // Figures in the file override those of the device it names.
  mine = load(
      "name: mine\nlike: dgx-h100\nattention_kernel: flash2\ncompute_under_io: {value: 0.5, unit: "
      "\"1\", source: \"measured: here\", date: 2026-01-01}\n");
  CHECK(mine.compute_under_io.value == 0.5);
  CHECK(mine.rates.at("attention_forward") ==
        dgx.attention_kernels.at("flash2").at("attention_forward"));
  CHECK(mine.device == dgx.device);

  CHECK_THROWS_WITH(
      load("name: mine\nlike: dgx-h10\n"),
      Contains("mine.yaml:2:1: like: the catalog has no \"dgx-h10\"") && Contains("dgx-h100"));
  CHECK_THROWS_WITH(
      load("name: mine\nlike: dgx-h100\ndevice: h100-8g\n"),
      Contains("mine.yaml:3:1: device: the catalog has no \"h100-8g\"") && Contains("h100-80g"));
  CHECK_THROWS_WITH(load("like: dgx-h100\n"), Contains("mine.yaml:1:1: name: missing"));
  CHECK_THROWS_WITH(load("name: mine\nlike: dgx-h100\nhots: 1\n"),
                    Contains("mine.yaml:3:1: hots: unknown key"));
  CHECK_THROWS_WITH(load("name: mine\ndevice: h100-80g\n"), Contains("host: missing"));
}

TEST_CASE("tables may be another device's, scaled") {
  // Rates are the last but one of the sections that are written.
  const std::string good = written(load_hardware("h100-80g"));
  const size_t from = good.find("rates:"), to = good.find("attention_kernel:");
  REQUIRE(from < to);
  std::string text = good;
  text.replace(from, to - from,
               "rates: {like: a100-80g-pcie, scale: 2, source: \"assumption: twice\", date: "
               "2026-01-01}\n");
  const HardwareProfile hw = read(text), lender = load_hardware("a100-80g-pcie");
  for (const char* family : {"gemm_nt", "gemm_nn", "gemm_tn"}) {
    RateTable twice = lender.rates.at(family);
    for (RatePoint& point : twice.points) point.rate *= 2;
    twice.source = "assumption: twice";
    twice.date = "2026-01-01";
    CHECK(hw.rates.at(family) == twice);
  }
  // Attention was not among the lender's rates, so the file's own kernel rates are used.
  CHECK(hw.rates.at("attention_forward") ==
        hw.attention_kernels.at("cudnn").at("attention_forward"));

  CHECK_THROWS_WITH(read(replaced(text, "scale: 2", "scale: 0")),
                    Contains("rates.scale: expected a finite number > 0"));
  CHECK_THROWS_WITH(read(replaced(text, "scale: 2", "scales: 2")),
                    Contains("rates.scale: missing"));
  CHECK_THROWS_WITH(read(replaced(text, "assumption: twice", "twice")),
                    Contains("rates.gemm_nn: source: expected"));
  CHECK_THROWS_WITH(read(replaced(text, "scale: 2", "scale: 1e300")),
                    Contains("expected a rate > 0, got inf"));
  CHECK_THROWS_WITH(read(replaced(text, "like: a100-80g-pcie", "like: a100-80g-pci")),
                    Contains("rates.like: the catalog has no \"a100-80g-pci\""));
  // The SXM board has borrowed its own curves.
  CHECK_THROWS_WITH(read(replaced(text, "like: a100-80g-pcie", "like: a100-80g")),
                    Contains("rates.like: expected a device with tables of its own"));
}

TEST_CASE("local is this machine's profile") {
  const TemporaryFolder folder;
  const ScopedVariable own("LONGSPAN_LOCAL_PROFILE", "");
  const ScopedVariable config("XDG_CONFIG_HOME", folder.path().string());
  const ScopedVariable home("HOME", "/home/user");
  CHECK(local_profile_path() == folder.path() / "longspan" / "local.yaml");
  CHECK_THROWS_WITH(load_hardware("local"), Contains("local.yaml") && Contains("longspan profile"));
  {
    const ScopedVariable none("XDG_CONFIG_HOME", "");
    CHECK(local_profile_path() == "/home/user/.config/longspan/local.yaml");
    const ScopedVariable homeless("HOME", "");
    CHECK_THROWS_WITH(local_profile_path(), Contains("LONGSPAN_LOCAL_PROFILE"));
  }
  const ScopedVariable named("LONGSPAN_LOCAL_PROFILE", (folder.path() / "p.yaml").string());
  CHECK(local_profile_path() == folder.path() / "p.yaml");
  const HardwareProfile hw = load_hardware("cpu-example");
  write_file_atomically(folder.path() / "p.yaml", written(hw));
  CHECK(load_hardware("local") == hw);
}

}  // namespace
}  // namespace longspan
