#include "tests/search/corpus.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/yaml.h"
#include "planner/plan/plan.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/knobs.h"

namespace longspan::testing {
namespace {

constexpr size_t kColumns = 100;
constexpr const char* kHeading =
    "# Questions to the planner's search and the best answers known; tests/search/corpus.h has "
    "the\n"
    "# format. search_bench holds the search to it and verifies its plans, search_bench --improve\n"
    "# SECONDS --write looks for better ones.\n";

std::string emitted(const Strategy& s) {
  YAML::Emitter out;
  write_strategy(out, s);
  return out.c_str();
}

// Plans without chunk and block cannot be read, so the default has none.
Strategy plainest() {
  Strategy s;
  s.preset = "auto";
  s.chunk_tokens = s.block_tokens = 1;
  return s;
}

const std::string& plainest_text() {
  static const std::string text = emitted(plainest());
  return text;
}

std::string flow(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::string text;
  for (const auto& entry : node) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : ", ", entry.first.Scalar(), flow(entry.second));
  }
  return "{" + text + "}";
}

// The entries of `node` that are not in `defaults`, as a flow mapping without its braces.
std::string difference(const YAML::Node& node, const YAML::Node& defaults) {
  std::string text;
  for (const auto& entry : node) {
    const std::string key = entry.first.Scalar();
    if (key == "preset") continue;
    const YAML::Node usual = defaults[key];
    std::string value = flow(entry.second);
    if (value == flow(usual)) continue;
    if (entry.second.IsMap() && usual.IsMap()) {
      value = "{" + difference(entry.second, usual) + "}";
    }
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  }
  return text;
}

std::string knobs_text(const Strategy& s) {
  return "{" + difference(YAML::Load(emitted(s)), YAML::Load(plainest_text())) + "}";
}

std::string mesh_text(const ParallelLayout& p) {
  std::string text;
  const auto add = [&](const char* key, const auto& value, bool usual) {
    if (!usual) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, value);
  };
  add("data", p.data, p.data == 1);
  add("tensor", p.tensor, p.tensor == 1);
  add("ring", p.ring, p.ring == 1);
  add("ulysses", p.ulysses, p.ulysses == 1);
  add("zero", p.zero, p.zero == 0);
  add("overlap", p.overlap, p.overlap);
  if (p.has_pipeline()) {
    const Pipeline& pipe = p.pipeline;
    std::string of = fmt::format("stages: {}, schedule: {}", pipe.stages, pipe.schedule);
    if (pipe.virtual_stages > 1) of += fmt::format(", virtual_stages: {}", pipe.virtual_stages);
    if (pipe.slices > 1) of += fmt::format(", slices: {}", pipe.slices);
    if (pipe.equal_work) of += ", split: work";
    if (pipe.in_flight > 0) of += fmt::format(", in_flight: {}", pipe.in_flight);
    add("pipeline", "{" + of + "}", false);
  }
  return "{" + text + "}";
}

// Breaks a line of a flow mapping behind commas.
std::string wrapped(std::string line, size_t indent) {
  std::string text;
  while (line.size() > kColumns) {
    const size_t comma = line.rfind(", ", kColumns - 1);
    if (comma == std::string::npos || comma < indent) break;
    text += line.substr(0, comma + 1) + "\n";
    line = std::string(indent, ' ') + line.substr(comma + 2);
  }
  return text + line + "\n";
}

std::string known_text(const char* key, const Known& known, const Question& question) {
  std::string text =
      fmt::format("    {}:\n      best: {}\n      from: {}\n", key, known.best, known.from);
  if (known.answer.tokens != question.sequence) {
    text += fmt::format("      tokens: {}\n", known.answer.tokens);
  }
  const std::string mesh = mesh_text(known.answer.strategy.parallel);
  if (mesh != "{}") text += wrapped(fmt::format("      grid: {}", mesh), 8);
  return text + wrapped(fmt::format("      knobs: {}", knobs_text(known.answer.strategy)), 8);
}

ParallelLayout read_mesh(const YamlMap& yaml) {
  ParallelLayout p;
  for (const auto& [key, degree] : {std::pair{"data", &p.data},
                                    {"tensor", &p.tensor},
                                    {"ring", &p.ring},
                                    {"ulysses", &p.ulysses}}) {
    if (yaml.has(key)) *degree = yaml.whole(key, 1, kMostRanks);
  }
  if (yaml.has("zero")) p.zero = yaml.whole("zero", 0, 3);
  if (yaml.has("overlap")) p.overlap = yaml.flag("overlap");
  if (yaml.has("pipeline")) {
    const YamlMap pipe = yaml.map("pipeline");
    p.pipeline.stages = pipe.whole("stages", 2, kMostRanks);
    p.pipeline.schedule = schedule_family(pipe.text("schedule")).name;
    if (pipe.has("virtual_stages")) p.pipeline.virtual_stages = pipe.whole("virtual_stages", 1);
    if (pipe.has("slices")) p.pipeline.slices = pipe.whole("slices", 1);
    if (pipe.has("split")) p.pipeline.equal_work = pipe.text("split") == "work";
    if (pipe.has("in_flight")) p.pipeline.in_flight = pipe.whole("in_flight", 0);
    pipe.finish();
  }
  yaml.finish();
  return p;
}

// The knobs; missing ones have their defaults.
Strategy read_knobs(const YamlMap& yaml) {
  YAML::Node usual = YAML::Load(plainest_text());
  if (yaml.has("saved")) {
    for (const std::string& key : yaml.map("saved").keys()) usual["saved"].remove(key);
  }
  for (const KnobRow& row : knob_rows()) {  // of a knob under its older key, the usual is no other
    if (!row.old_key.empty() && yaml.has(std::string(row.old_key))) {
      usual.remove(std::string(row.name()));
    }
  }
  return read_strategy(yaml.over(YamlMap(usual, "defaults", "")));
}

Known read_known(const YamlMap& yaml, const Question& question) {
  Known known;
  known.best = yaml.real("best");
  known.from = yaml.text("from");
  known.answer.tokens = yaml.has("tokens") ? yaml.whole("tokens", 1) : question.sequence;
  known.answer.strategy = read_knobs(yaml.map("knobs"));
  known.answer.strategy.deterministic = question.deterministic;
  if (yaml.has("grid")) known.answer.strategy.parallel = read_mesh(yaml.map("grid"));
  yaml.finish();
  return known;
}

}  // namespace

const Known* Row::held_to(Fit fit) const {
  const Known* safe = fits ? &*fits : nullptr;
  const Known* risky = at_risk ? &*at_risk : nullptr;
  // The longest sequence is a question of capacities, whatever is left of them.
  const bool takes_risk = fit != Fit::fits || question.verb == Question::Verb::max_seq;
  if (safe == nullptr || risky == nullptr) return safe != nullptr ? safe : risky;
  return takes_risk && times_worse(question, safe->best, risky->best) > 1 ? risky : safe;
}

bool Row::offer(const Answering& answer, const Measured& measured, const std::string& from) {
  constexpr double kRounding = 1e-6;
  if (measured.fit == Fit::does_not_fit) return false;
  const auto better = [&](const std::optional<Known>& than) {
    return !than || times_worse(question, than->best, measured.value) > 1 + kRounding;
  };
  const bool safe = measured.fit == Fit::fits;
  if (!better(fits) || (!safe && !better(at_risk))) return false;
  (safe ? fits : at_risk) = Known{measured.value, from, answer};
  // A plan at risk is kept only if it is better.
  if (fits && at_risk && times_worse(question, fits->best, at_risk->best) <= 1 + kRounding) {
    at_risk.reset();
  }
  return true;
}

std::vector<Row> read_corpus(const std::filesystem::path& path) {
  const YamlMap file = YamlMap::parse(read_file(path), path.string());
  std::vector<Row> rows;
  std::set<std::string> ids;
  for (const YamlMap& yaml : file.maps("questions")) {
    Row row;
    row.id = yaml.text("id");
    if (!ids.insert(row.id).second) throw yaml.error("id", row.id + " is there twice");
    try {
      row.question = parse_question(yaml.text("ask"), row.id);
    } catch (const Error& e) {
      throw yaml.error("ask", e.what());
    }
    if (yaml.has("note")) row.note = yaml.text("note");
    if (yaml.has("fits")) row.fits = read_known(yaml.map("fits"), row.question);
    if (yaml.has("at_risk")) row.at_risk = read_known(yaml.map("at_risk"), row.question);
    yaml.finish();
    rows.push_back(std::move(row));
  }
  file.finish();
  return rows;
}

void write_corpus(const std::filesystem::path& path, const std::vector<Row>& rows) {
  std::string text = fmt::format("{}questions:\n", kHeading);
  for (const Row& row : rows) {
    text += fmt::format("  - id: {}\n    ask: {}\n", row.id, line_of(row.question));
    if (!row.note.empty()) text += fmt::format("    note: {}\n", row.note);
    if (row.fits) text += known_text("fits", *row.fits, row.question);
    if (row.at_risk) text += known_text("at_risk", *row.at_risk, row.question);
  }
  write_file_atomically(path, text);
}

}  // namespace longspan::testing
