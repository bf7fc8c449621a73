#include "cli/hw_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "hwprofiles/figures.h"

namespace longspan::cli {
namespace {

std::string value_text(const Figure& figure) {
  if (figure.unit == "B") return format_bytes(static_cast<int64_t>(figure.value));
  if (figure.unit == "s") return format_seconds(figure.value);
  if (figure.unit == "B/s" || figure.unit == "FLOP/s") {
    return format_rate(figure.value, figure.unit);
  }
  return fmt::format("{:.3g}", figure.value);
}

Json figure_json(const Figure& figure) {
  return {{"value", figure.value},
          {"unit", figure.unit},
          {"source", figure.source},
          {"date", figure.date}};
}

}  // namespace

void print_hardware(const HardwareProfile& hw) {
  say("{}\n", bold(fmt::format("{}: {} node{} of {} x {} (backend {}), {} host cores", hw.name,
                               hw.nodes, hw.nodes == 1 ? "" : "s", hw.devices_per_node,
                               hw.device.name, hw.device.backend, hw.host.cores)));
  Table figures({{"figure", false}, {"value"}, {"source", false}, {"date", false, 1}});
  visit_figures(hw, [&](const FigureRule& rule, const Figure& figure) {
    if (is_missing(rule, figure)) return;
    const std::string dot = *rule.section == '\0' ? "" : ".";
    figures.add({rule.section + dot + rule.key, value_text(figure), figure.source, figure.date});
  });
  for (const auto& [name, term] : hw.device.overhead) {
    figures.add({"device.overhead." + name, value_text(term), term.source, term.date});
  }
  figures.print();
  if (hw.rates.empty()) return;
  const std::string kernel =
      hw.attention_kernel.empty() ? "" : " (attention: " + hw.attention_kernel + ")";
  say("{}\n", bold("Rates" + kernel));
  Table rates({{"kernel", false}, {"points"}, {"slowest"}, {"fastest"}, {"source", false}});
  for (const auto& [name, table] : hw.rates) {
    const auto [low, high] =
        std::minmax_element(table.points.begin(), table.points.end(),
                            [](const RatePoint& a, const RatePoint& b) { return a.rate < b.rate; });
    if (low == table.points.end()) continue;
    rates.add({name, fmt::format("{}", table.points.size()), format_rate(low->rate, table.unit),
               format_rate(high->rate, table.unit), table.source});
  }
  rates.print();
}

Json hardware_json(const HardwareProfile& hw) {
  Json figures = Json::object();
  visit_figures(hw, [&](const FigureRule& rule, const Figure& figure) {
    if (is_missing(rule, figure)) return;
    Json& section = *rule.section == '\0' ? figures : figures[rule.section];
    section[rule.key] = figure_json(figure);
  });
  for (const auto& [name, term] : hw.device.overhead) {
    figures["device"]["overhead"][name] = figure_json(term);
  }
  Json rates = Json::object();
  for (const auto& [name, table] : hw.rates) {
    Json points = Json::array();
    for (const RatePoint& point : table.points) {
      points.push_back({{"shape", point.shape}, {"rate", point.rate}});
    }
    rates[name] = {{"unit", table.unit},
                   {"source", table.source},
                   {"date", table.date},
                   {"points", std::move(points)}};
  }
  return {{"name", hw.name},
          {"nodes", hw.nodes},
          {"devices_per_node", hw.devices_per_node},
          {"device", hw.device.name},
          {"backend", hw.device.backend},
          {"host_cores", hw.host.cores},
          {"attention_kernel", hw.attention_kernel},
          {"figures", std::move(figures)},
          {"rates", std::move(rates)}};
}

}  // namespace longspan::cli
