// longspan hw: what the hardware catalog holds, and what a profile says.
#include <fmt/format.h>

#include <memory>

#include "base/units.h"
#include "cli/documents.h"
#include "cli/hw_text.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "hwprofiles/catalog.h"

namespace longspan::cli {
namespace {

int list(bool json) {
  Json profiles = Json::array();
  Table table({{"hardware", false}, {"backend", false}, {"memory"}, {"peak"}, {"host memory"}});
  for (const std::string& name : hardware_names()) {
    const HardwareProfile hw = load_hardware(name);
    const double peak =
        std::max(hw.device.peak_flops_float32.value, hw.device.peak_flops_bfloat16.value);
    const auto memory = static_cast<int64_t>(hw.device.memory_bytes.value);
    const auto host = static_cast<int64_t>(hw.host.memory_bytes.value);
    profiles.push_back({{"name", name},
                        {"backend", hw.device.backend},
                        {"device_memory_bytes", memory},
                        {"peak_flops_per_second", peak},
                        {"host_memory_bytes", host}});
    table.add({name, hw.device.backend, format_bytes(memory), format_rate(peak, "FLOP/s"),
               format_bytes(host)});
  }
  if (json) {
    print_json({{"hardware", std::move(profiles)}});
  } else {
    table.print();
    fmt::print("Counts go in front: 8x{} is one node of 8, 2x8x{} two of them.\n",
               hardware_names().front(), hardware_names().front());
  }
  return 0;
}

int show(const std::string& reference, bool json) {
  const HardwareProfile hw = load_hardware(reference);
  if (json) {
    print_json(hardware_json(hw));
  } else {
    print_hardware(hw);
  }
  return 0;
}

}  // namespace

void add_hw(CLI::App& app, Invocation& invocation) {
  auto reference = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("hw", "The catalog of hardware");
  verb->require_subcommand(1);
  verb->footer("Example:\n  longspan hw show 8xh100-80g");
  CLI::App* listing = add_verb(*verb, invocation, "list",
                               "Names and sizes of the built-in profiles", "longspan hw list");
  listing->callback(
      [&invocation] { invocation.action = [&invocation] { return list(invocation.json); }; });
  CLI::App* showing =
      add_verb(*verb, invocation, "show", "One profile: every figure and its source",
               "longspan hw show 8xh100-80g");
  showing->add_option("hardware", *reference, "A catalog name, a YAML file, or local")->required();
  showing->callback([reference, &invocation] {
    invocation.action = [reference, &invocation] { return show(*reference, invocation.json); };
  });
}

}  // namespace longspan::cli
