// The YAML form of a hardware profile; docs/hardware_profile.md is its reference.
#include <fmt/format.h>

#include <map>

#include "hwprofiles/catalog.h"
#include "hwprofiles/figures.h"

namespace longspan {
namespace {

// The shortest decimal that reads back to the same double.
std::string exact(double value) { return fmt::format("{}", value); }

Figure read_figure(const YamlMap& yaml) {
  Figure figure;
  figure.value = yaml.real("value");
  figure.unit = yaml.text("unit");
  figure.source = yaml.text("source");
  figure.date = yaml.text("date");
  yaml.finish();
  return figure;
}

Tiling read_tiling(const YamlMap& yaml) {
  Tiling tiling;
  for (const std::vector<double>& row : yaml.rows("shapes", 3)) {
    tiling.shapes.push_back({row[0], row[1], row[2]});
  }
  if (yaml.has("workers")) tiling.workers = yaml.whole("workers", 1);
  if (yaml.has("padded")) {
    tiling.padded = yaml.one_of<bool>("padded", {{"true", true}, {"false", false}});
  }
  if (yaml.has("waited")) tiling.waited = yaml.real("waited");
  if (yaml.has("ramp")) tiling.ramp = yaml.real("ramp");
  yaml.finish();
  return tiling;
}

RateTable read_rates(const YamlMap& yaml) {
  RateTable table;
  table.unit = yaml.text("unit");
  table.source = yaml.text("source");
  table.date = yaml.text("date");
  if (yaml.has("tiling")) table.tiling = read_tiling(yaml.map("tiling"));
  for (const std::vector<double>& row : yaml.rows("points", 4)) {
    table.points.push_back({{row[0], row[1], row[2]}, row[3]});
  }
  yaml.finish();
  return table;
}

template <class T>
void field(YAML::Emitter& out, const char* key, const T& value) {
  out << YAML::Key << key << YAML::Value << value;
}

void write_figure(YAML::Emitter& out, const char* key, const Figure& figure) {
  out << YAML::Key << key << YAML::Value << YAML::Flow << YAML::BeginMap;
  field(out, "value", exact(figure.value));
  field(out, "unit", figure.unit);
  field(out, "source", figure.source);
  field(out, "date", figure.date);
  out << YAML::EndMap;
}

void write_tiling(YAML::Emitter& out, const Tiling& tiling) {
  out << YAML::Key << "tiling" << YAML::Value << YAML::Flow << YAML::BeginMap;
  out << YAML::Key << "shapes" << YAML::Value << YAML::BeginSeq;
  for (const Tiling::Shape& shape : tiling.shapes) {
    out << YAML::BeginSeq << exact(shape.rows) << exact(shape.columns) << exact(shape.rate)
        << YAML::EndSeq;
  }
  out << YAML::EndSeq;
  if (tiling.workers > 0) field(out, "workers", tiling.workers);
  if (tiling.padded) field(out, "padded", true);
  if (tiling.waited != 1) field(out, "waited", exact(tiling.waited));
  if (tiling.ramp != 0) field(out, "ramp", exact(tiling.ramp));
  out << YAML::EndMap;
}

void write_rates(YAML::Emitter& out, const std::string& name, const RateTable& table) {
  out << YAML::Key << name << YAML::Value << YAML::BeginMap;
  field(out, "unit", table.unit);
  field(out, "source", table.source);
  field(out, "date", table.date);
  if (!table.tiling.shapes.empty()) write_tiling(out, table.tiling);
  out << YAML::Key << "points" << YAML::Value << YAML::BeginSeq;
  for (const RatePoint& point : table.points) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const double extent : point.shape) out << exact(extent);
    out << exact(point.rate) << YAML::EndSeq;
  }
  out << YAML::EndSeq << YAML::EndMap;
}

// The fields of a section that are not figures.
void write_plain_fields(YAML::Emitter& out, const HardwareProfile& hw, const std::string& section) {
  if (section == "device") {
    field(out, "name", hw.device.name);
    field(out, "backend", hw.device.backend);
  } else if (section == "host") {
    field(out, "cores", hw.host.cores);
  } else if (section == "link") {
    field(out, "devices_sharing", hw.link.devices_sharing);
  }
}

}  // namespace

HardwareProfile read_hardware(const YamlMap& yaml) {
  HardwareProfile hw;
  hw.name = yaml.text("name");
  hw.nodes = yaml.has("nodes") ? yaml.whole("nodes", 1) : 1;
  hw.devices_per_node = yaml.has("devices_per_node") ? yaml.whole("devices_per_node", 1) : 1;

  std::map<std::string, YamlMap> sections{{"", yaml}};
  for (const char* section : {"device", "host", "link", "nvme", "node_fabric", "cluster_fabric"}) {
    sections.emplace(section, yaml.map(section));
  }
  hw.device.name = sections.at("device").text("name");
  hw.device.backend = sections.at("device").text("backend");
  hw.host.cores = sections.at("host").whole("cores", 1);
  if (sections.at("link").has("devices_sharing")) {
    hw.link.devices_sharing = sections.at("link").whole("devices_sharing", 1);
  }
  visit_figures(hw, [&](const FigureRule& rule, Figure& figure) {
    figure = read_figure(sections.at(rule.section).map(rule.key));
  });
  if (yaml.has("rates")) {
    const YamlMap rates = yaml.map("rates");
    sections.emplace("rates", rates);
    for (const std::string& family : rates.keys()) {
      const YamlMap table = rates.map(family);
      hw.rates[family] = read_rates(table);
      sections.emplace("rates." + family, table);
    }
  }
  for (const auto& [name, section] : sections) section.finish();
  if (const auto problem = find_problem(hw)) {
    throw sections.at(problem->section).error(problem->key, problem->what);
  }
  return hw;
}

void write_hardware(YAML::Emitter& out, const HardwareProfile& hw) {
  out << YAML::BeginMap;
  field(out, "name", hw.name);
  field(out, "nodes", hw.nodes);
  field(out, "devices_per_node", hw.devices_per_node);
  std::string open;
  visit_figures(hw, [&](const FigureRule& rule, const Figure& figure) {
    if (rule.section != open) {
      if (!open.empty()) out << YAML::EndMap;
      open = rule.section;
      if (!open.empty()) {
        out << YAML::Key << open << YAML::Value << YAML::BeginMap;
        write_plain_fields(out, hw, open);
      }
    }
    write_figure(out, rule.key, figure);
  });
  out << YAML::Key << "rates" << YAML::Value << YAML::BeginMap;
  for (const auto& [name, table] : hw.rates) write_rates(out, name, table);
  out << YAML::EndMap << YAML::EndMap;
}

}  // namespace longspan
