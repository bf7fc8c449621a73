// The YAML form of a hardware profile; docs/hardware_profile.md is its reference.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "hwprofiles/catalog.h"
#include "hwprofiles/figures.h"
#include "hwprofiles/layers.h"

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

RateTable read_table(const YamlMap& yaml) {
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

using Sections = std::map<std::string, YamlMap>;  // by dotted path, to find the line of a fault

// The tables of `yaml`, which is at `path`: its own or, with `like`, those at the same path of a
// device of the catalog, with scaled rates. A less known device thus gets the shape of the curves
// of a similar, measured one.
RateTables read_tables(CatalogFiles& files, const YamlMap& yaml,
                       const std::vector<std::string>& path, Sections& sections) {
  const std::string dotted = fmt::format("{}", fmt::join(path, "."));
  sections.emplace(dotted, yaml);
  RateTables tables;
  if (yaml.has("like")) {
    const YamlMap lender = device_map(files, yaml.text("like"), path, yaml, "like");
    if (lender.has("like")) throw yaml.error("like", "expected a device with tables of its own");
    for (const std::string& family : lender.keys()) {
      RateTable table = read_table(lender.map(family));
      table.source = yaml.text("source");
      table.date = yaml.text("date");
      if (yaml.has("workers")) table.tiling.workers = yaml.whole("workers", 1);
      for (RatePoint& point : table.points) point.rate *= yaml.real("scale", 0);
      tables[family] = std::move(table);
      sections.emplace(fmt::format("{}.{}", dotted, family), yaml);
    }
    return tables;
  }
  for (const std::string& family : yaml.keys()) {
    const YamlMap table = yaml.map(family);
    tables[family] = read_table(table);
    sections.emplace(fmt::format("{}.{}", dotted, family), table);
  }
  return tables;
}

void read_attention_kernels(CatalogFiles& files, const Layers& layers, HardwareProfile& hw,
                            Sections& sections) {
  const YamlMap& layer = layer_with(layers, "attention_kernels");
  if (!layer.has("attention_kernels")) return;
  const YamlMap kernels = layer.map("attention_kernels");
  for (const std::string& kernel : kernels.keys()) {
    hw.attention_kernels[kernel] =
        read_tables(files, kernels.map(kernel), {"attention_kernels", kernel}, sections);
  }
  hw.attention_kernel = layer_with(layers, "attention_kernel").text("attention_kernel");
  const bool chosen = std::any_of(hw.rates.begin(), hw.rates.end(), [](const auto& entry) {
    return entry.first.starts_with("attention_");
  });
  if (!chosen && hw.attention_kernels.contains(hw.attention_kernel)) {
    hw = with_attention_kernel(hw, hw.attention_kernel);
  }
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

void write_table(YAML::Emitter& out, const std::string& name, const RateTable& table) {
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

void write_tables(YAML::Emitter& out, const std::string& key, const RateTables& tables) {
  out << YAML::Key << key << YAML::Value << YAML::BeginMap;
  for (const auto& [name, table] : tables) write_table(out, name, table);
  out << YAML::EndMap;
}

void write_overhead(YAML::Emitter& out, const std::map<std::string, Figure>& terms) {
  if (terms.empty()) return;
  out << YAML::Key << "overhead" << YAML::Value << YAML::BeginMap;
  for (const auto& [name, term] : terms) write_figure(out, name.c_str(), term);
  out << YAML::EndMap;
}

// The fields of a section that are not in the list of figures.
void write_plain_fields(YAML::Emitter& out, const HardwareProfile& hw, const std::string& section) {
  if (section == "device") {
    field(out, "name", hw.device.name);
    field(out, "backend", hw.device.backend);
    if (hw.device.compute_capability > 0) {
      field(out, "compute_capability", hw.device.compute_capability);
    }
    write_overhead(out, hw.device.overhead);
  } else if (section == "host") {
    field(out, "cores", hw.host.cores);
  } else if (section == "link") {
    field(out, "devices_sharing", hw.link.devices_sharing);
  }
}

}  // namespace

HardwareProfile read_hardware(const YamlMap& yaml) {
  CatalogFiles files;
  return read_layers(files, {yaml}, yaml.text("name"));
}

HardwareProfile read_layers(CatalogFiles& files, const Layers& layers, const std::string& name) {
  const auto count = [&](const char* key) {
    const YamlMap& layer = layer_with(layers, key);
    return layer.has(key) ? layer.whole(key, 1) : 1;
  };
  HardwareProfile hw;
  hw.name = name;
  hw.nodes = count("nodes");
  hw.devices_per_node = count("devices_per_node");

  Sections sections;
  for (const char* section : {"device", "host", "link", "nvme", "node_fabric", "cluster_fabric"}) {
    sections.emplace(section, layer_with(layers, section).map(section));
  }
  hw.device.name = sections.at("device").text("name");
  hw.device.backend = sections.at("device").text("backend");
  if (sections.at("device").has("compute_capability")) {
    hw.device.compute_capability = sections.at("device").whole("compute_capability", 10);
  }
  hw.host.cores = sections.at("host").whole("cores", 1);
  if (sections.at("device").has("overhead")) {
    const YamlMap terms = sections.at("device").map("overhead");
    for (const std::string& term : terms.keys()) {
      hw.device.overhead[term] = read_figure(terms.map(term));
    }
    sections.emplace("device.overhead", terms);
  }
  if (sections.at("link").has("devices_sharing")) {
    hw.link.devices_sharing = sections.at("link").whole("devices_sharing", 1);
  }
  const auto at = [&](const std::string& section, const std::string& key) -> const YamlMap& {
    return section.empty() ? layer_with(layers, key) : sections.at(section);
  };
  visit_figures(hw, [&](const FigureRule& rule, Figure& figure) {
    const YamlMap& section = at(rule.section, rule.key);
    if (rule.range == FigureRange::optional && !section.has(rule.key)) return;
    figure = read_figure(section.map(rule.key));
  });
  if (const YamlMap& layer = layer_with(layers, "rates"); layer.has("rates")) {
    hw.rates = read_tables(files, layer.map("rates"), {"rates"}, sections);
  }
  read_attention_kernels(files, layers, hw, sections);
  for (const YamlMap& layer : layers) layer.finish();
  for (const auto& [path, section] : sections) section.finish();
  if (const auto problem = find_problem(hw)) {
    throw at(problem->section, problem->key).error(problem->key, problem->what);
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
    if (is_missing(rule, figure)) return;
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
  write_tables(out, "rates", hw.rates);
  if (!hw.attention_kernels.empty()) {
    field(out, "attention_kernel", hw.attention_kernel);
    out << YAML::Key << "attention_kernels" << YAML::Value << YAML::BeginMap;
    for (const auto& [kernel, tables] : hw.attention_kernels) write_tables(out, kernel, tables);
    out << YAML::EndMap;
  }
  out << YAML::EndMap;
}

}  // namespace longspan
