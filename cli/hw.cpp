// longspan hw: lists the hardware catalog and shows a profile.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/hw_text.h"
#include "cli/inputs.h"
#include "cli/table.h"
#include "cli/text.h"
#include "hwprofiles/catalog.h"
#include "hwprofiles/import_calculon.h"

namespace longspan::cli {
namespace {

std::string attention_kernels(const HardwareProfile& hw) {
  std::string list;
  for (const auto& [kernel, tables] : hw.attention_kernels) {
    list += (list.empty() ? "" : ", ") + kernel;
    if (kernel == hw.attention_kernel && hw.attention_kernels.size() > 1) list += " (default)";
  }
  return list;
}

Json list_devices(Table& table) {
  Json devices = Json::array();
  for (const HardwareProfile& hw : load_hardware(device_names())) {
    const std::string node = node_of(hw.name);
    const double peak =
        std::max(hw.device.peak_flops_float32.value, hw.device.peak_flops_bfloat16.value);
    const auto memory = static_cast<int64_t>(hw.device.memory_bytes.value);
    Json kernels = Json::array();
    for (const auto& [kernel, tables] : hw.attention_kernels) kernels.push_back(kernel);
    devices.push_back({{"name", hw.name},
                       {"backend", hw.device.backend},
                       {"device_memory_bytes", memory},
                       {"peak_flops_per_second", peak},
                       {"host_memory_bytes", static_cast<int64_t>(hw.host.memory_bytes.value)},
                       {"attention_kernel", hw.attention_kernel},
                       {"attention_kernels", std::move(kernels)},
                       {"node", node}});
    table.add({hw.name, hw.device.backend, format_bytes(memory), format_rate(peak, "FLOP/s"),
               attention_kernels(hw), node});
  }
  return devices;
}

Json list_nodes(Table& table) {
  Json nodes = Json::array();
  for (const HardwareProfile& hw : load_hardware(node_names())) {
    const auto host = static_cast<int64_t>(hw.host.memory_bytes.value);
    const double node = hw.node_fabric.bandwidth.value, cluster = hw.cluster_fabric.bandwidth.value;
    nodes.push_back({{"name", hw.name},
                     {"device", hw.device.name},
                     {"devices", hw.devices_per_node},
                     {"host_memory_bytes", host},
                     {"node_bytes_per_second", node},
                     {"cluster_bytes_per_second", cluster}});
    table.add({hw.name, fmt::format("{} x {}", hw.devices_per_node, hw.device.name),
               format_bytes(host), format_rate(node, "B/s"), format_rate(cluster, "B/s")});
  }
  return nodes;
}

int list(bool json) {
  Table devices({{"device", false},
                 {"backend", false},
                 {"memory"},
                 {"peak"},
                 {"attention", false, 1},
                 {"node", false}});
  Table nodes(
      {{"node", false}, {"devices", false}, {"host memory"}, {"in node"}, {"across nodes"}});
  Json device_list = list_devices(devices), node_list = list_nodes(nodes);
  if (json) {
    print_json({{"hardware", std::move(device_list)}, {"nodes", std::move(node_list)}});
    return 0;
  }
  devices.print();
  say("\n");
  nodes.print();
  say("Counts go in front: 8xh100-80g is one node of 8 devices, 2x8xh100-80g two of them,\n"
      "4xdgx-h100 four nodes with all their devices. Rates between devices are per device.\n");
  return 0;
}

int show(const std::string& reference, const std::string& attention, bool json) {
  HardwareProfile hw = load_hardware(reference);
  if (!attention.empty()) hw = with_attention_kernel(hw, attention);
  if (json) {
    print_json(hardware_json(hw));
  } else {
    print_hardware(hw);
  }
  return 0;
}

int import(const std::string& from, const std::string& to, bool json) {
  check_output(to, "-o");
  const std::string name = std::filesystem::path(from).stem().string();
  const HardwareProfile hw = import_calculon(read_file(from), from, name, today());
  save_hardware(to, hw);
  if (json) {
    print_json({{"file", to}, {"name", hw.name}, {"devices", hw.devices()}});
  } else {
    say("{}: {} devices; every figure is marked as an assumption, look them over with\n"
        "longspan hw show {}\n",
        to, hw.devices(), to);
  }
  return 0;
}

}  // namespace

void add_hw(Verb& program) {
  auto reference = std::make_shared<std::string>();
  auto attention = std::make_shared<std::string>();
  Verb group = program.add_group("hw", "The catalog of hardware", "longspan hw show 8xh100-80g");
  group.add_verb("list", "Names and sizes of the built-in devices and nodes", "longspan hw list")
      .runs(list);
  Verb showing = group.add_verb("show", "One profile: every figure and its source",
                                "longspan hw show 8xh100-80g");
  showing.add_option("hardware", *reference, "A catalog name, a YAML file, or local").required();
  showing.add_option("--attention", *attention, "Its attention kernel (flash2, cudnn, ...)");
  showing.runs([=](bool json) { return show(*reference, *attention, json); });
  auto from = std::make_shared<std::string>();
  auto to = std::make_shared<std::string>();
  Verb importing =
      group.add_verb("import", "Turn a hardware file of Calculon (systems/*.json) into a profile",
                     "longspan hw import a100_80g.json -o a100.yaml");
  importing.add_option("file", *from, "The JSON file").required();
  importing.add_option("-o,--output", *to, "Where the profile goes").required();
  importing.runs([=](bool json) { return import(*from, *to, json); });
}

}  // namespace longspan::cli
