// Reads and writes plan files. docs/plan_format.md describes the format.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/plan/plan.h"
#include "planner/schedule/io/pytorch_csv.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/knobs.h"

namespace longspan {
namespace {

constexpr int64_t kMostMicrobatches = int64_t{1} << 20;
constexpr std::pair<Tier, const char*> kPeakKeys[] = {
    {Tier::device, "device_bytes"}, {Tier::host, "host_bytes"}, {Tier::nvme, "nvme_bytes"}};

// The shortest decimal that reads back to the same double.
std::string exact(double value) { return fmt::format("{}", value); }

template <class T>
void field(YAML::Emitter& out, const char* key, const T& value) {
  out << YAML::Key << key << YAML::Value << value;
}

// The key of a value; `old` in older files. If a file has both, finish() refuses the old one.
std::string key_in(const YamlMap& yaml, std::string_view key, std::string_view old) {
  const std::string now(key), before(old);
  return before.empty() || yaml.has(now) || !yaml.has(before) ? now : before;
}

// Reads one of the words that a knob takes.
int64_t read_word(const YamlMap& yaml, const std::string& key, const KnobRow& row) {
  const std::string word = yaml.text(key);
  for (int64_t value = row.least; value <= row.most; ++value) {
    if (row.takes(value) && word == text_of(row, value)) return value;
  }
  throw yaml.error(key, fmt::format("expected {}, got \"{}\"", taken_by(row), word));
}

// A knob with a fraction of the layers is written `host`, or `{where: host, fraction: 0.5}`.
void read_knob(const YamlMap& yaml, const KnobRow& row, Strategy& s) {
  const std::string key = key_in(yaml, row.name(), row.old_key);
  if (row.optional && !yaml.has(key)) return;
  if (row.at.kind == KnobKind::number) {
    row.at.set(s, yaml.whole(key, row.least, std::min(row.most, kLongestSequence)));
  } else if (row.at.kind == KnobKind::flag) {
    row.at.set(s, yaml.one_of<int64_t>(key, {{"true", 1}, {"false", 0}}));
  } else if (row.at.fraction != nullptr && yaml.has_map(key)) {
    const YamlMap policy = yaml.map(key);
    row.at.set(s, read_word(policy, "where", row));
    row.at.fraction->set(s, policy.real("fraction", 0));
    policy.finish();
  } else {
    row.at.set(s, read_word(yaml, key, row));
  }
}

void write_knob(YAML::Emitter& out, const KnobRow& row, const Strategy& s) {
  const int64_t value = row.at.get(s);
  if (row.only_if_set && value == row.at.get(Strategy{})) return;
  out << YAML::Key << std::string(row.name()) << YAML::Value;
  if (row.at.fraction == nullptr || row.at.fraction->get(s) == 1) {
    out << text_of(row, value);
    return;
  }
  out << YAML::Flow << YAML::BeginMap;
  field(out, "where", text_of(row, value));
  field(out, "fraction", exact(row.at.fraction->get(s)));
  out << YAML::EndMap;
}

void check_version(const YamlMap& yaml, const std::string& origin) {
  if (!yaml.has("longspan_plan")) {
    throw bad_input("{}: not a plan: it has no longspan_plan: {} line", origin, kPlanVersion);
  }
  const int64_t version = yaml.whole("longspan_plan", 1);
  if (version > kPlanVersion) {
    throw yaml.error("longspan_plan",
                     fmt::format("the plan is of version {}, and this longspan reads up to version "
                                 "{}; use a newer longspan or make the plan again",
                                 version, kPlanVersion));
  }
}

Pipeline read_pipeline(const YamlMap& yaml) {
  Pipeline pipeline;
  pipeline.stages = yaml.whole("stages", 1, kMostRanks);
  // One stage has slices and no schedule.
  if (pipeline.stages > 1 || yaml.has("schedule")) {
    const std::string schedule = yaml.text("schedule");
    try {
      pipeline.schedule = schedule == kOwnLists ? kOwnLists : schedule_family(schedule).name;
    } catch (const Error& e) {
      throw yaml.error("schedule", e.what());
    }
  }
  if (yaml.has("virtual_stages")) {
    pipeline.virtual_stages = yaml.whole("virtual_stages", 1, kMostRanks);
  }
  if (yaml.has("slices")) pipeline.slices = yaml.whole("slices", 1, kMostRanks);
  if (yaml.has("split")) {
    pipeline.equal_work = yaml.one_of<bool>("split", {{"tokens", false}, {"work", true}});
  }
  if (yaml.has("in_flight")) pipeline.in_flight = yaml.whole("in_flight", 0, kMostRanks);
  yaml.finish();
  return pipeline;
}

void write_pipeline(YAML::Emitter& out, const Pipeline& pipeline) {
  out << YAML::Flow << YAML::BeginMap;
  field(out, "stages", pipeline.stages);
  if (pipeline.stages > 1) {
    field(out, "schedule", std::string(pipeline.schedule));
    field(out, "virtual_stages", pipeline.virtual_stages);
  }
  field(out, "slices", pipeline.slices);
  if (pipeline.stages > 1) field(out, "split", pipeline.equal_work ? "work" : "tokens");
  if (pipeline.in_flight > 0) field(out, "in_flight", pipeline.in_flight);
  out << YAML::EndMap;
}

// A pipeline's own lists are a block of text in the format of schedules' CSV files, a line for each
// rank.
std::vector<std::vector<Action>> read_lists(const YamlMap& yaml, const std::string& origin) {
  return read_pipeline_csv(yaml.text("lists"), origin + ": lists", kListActions).schedule.ranks;
}

void write_lists(YAML::Emitter& out, const Pipeline& pipeline) {
  PipelineCsv csv;
  csv.schedule.slices = static_cast<int32_t>(pipeline.slices);
  csv.schedule.ranks = pipeline.lists;
  for (const std::vector<Action>& list : pipeline.lists) csv.idle.emplace_back(list.size() + 1, 0);
  out << YAML::Key << "lists" << YAML::Value << YAML::Literal << write_pipeline_csv(csv);
}

// The knobs of ParallelLayout are in a separate mapping, next to the strategy's.
bool is_parallel(const KnobRow& row) { return row.group() == "parallel"; }

// Omitted degrees are 1. The product is written as well, for readers, and must agree.
ParallelLayout read_parallel(const YamlMap& yaml) {
  Strategy s;
  for (const KnobRow& row : knob_rows()) {
    if (is_parallel(row)) read_knob(yaml, row, s);
  }
  ParallelLayout& parallel = s.parallel;
  if (yaml.has("pipeline")) parallel.pipeline = read_pipeline(yaml.map("pipeline"));
  if (const int64_t ranks = yaml.whole("ranks", 1); ranks != parallel.ranks()) {
    throw yaml.error(
        "ranks", fmt::format("{} is not the product of the degrees, {}", ranks, parallel.ranks()));
  }
  if (const int64_t stages = yaml.whole("stages", 1); stages != parallel.pipeline.stages) {
    throw yaml.error("stages", fmt::format("expected {}, as the pipeline has, got {}",
                                           parallel.pipeline.stages, stages));
  }
  yaml.finish();
  return parallel;
}

void write_parallel(YAML::Emitter& out, const Strategy& s) {
  const ParallelLayout& parallel = s.parallel;
  out << YAML::Flow << YAML::BeginMap;
  field(out, "ranks", parallel.ranks());
  field(out, "stages", parallel.pipeline.stages);
  for (const KnobRow& row : knob_rows()) {
    if (is_parallel(row)) write_knob(out, row, s);
  }
  if (parallel.pipeline != Pipeline{}) {
    out << YAML::Key << "pipeline" << YAML::Value;
    write_pipeline(out, parallel.pipeline);
  }
  out << YAML::EndMap;
}

Prediction read_prediction(const YamlMap& yaml) {
  Prediction prediction;
  prediction.step_seconds = yaml.real("step_seconds", 0);
  prediction.tokens_per_second = yaml.real("tokens_per_second", 0);
  prediction.mfu = yaml.real("mfu", 0);
  for (const auto& [tier, key] : kPeakKeys) {
    prediction.peak_bytes[static_cast<int>(tier)] = yaml.whole(key, 0);
  }
  yaml.finish();
  return prediction;
}

// What `of_plan` returns. Its errors, which know no file, get the origin.
template <class OfPlan>
auto with_origin(const std::string& origin, const OfPlan& of_plan) {
  try {
    return of_plan();
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", origin, e.what()));
  }
}

// The recorded memory must equal that of the layout. Both are exact, so a difference means that
// only one of them was edited.
void check_record(const YamlMap& yaml, const Plan& plan, const std::string& origin) {
  // A pipeline's memory depends on its schedule, which may depend on times.
  const auto actual = with_origin(origin, [&]() -> std::array<int64_t, kTierCount> {
    const StepRequest request = step_request(plan);
    if (!is_priced_by_kinds(request)) return exact_peak_bytes(request);
    return evaluate(request, CostModel(plan.hardware, plan.dtype)).peak_bytes;
  });
  for (const auto& [tier, key] : kPeakKeys) {
    const int64_t recorded = plan.predicted.peak_bytes[static_cast<int>(tier)];
    const int64_t laid_out = actual[static_cast<int>(tier)];
    if (recorded == laid_out) continue;
    throw yaml.error(key, fmt::format("the record says {} bytes, but the plan's knobs lay out to {}"
                                      " bytes; undo the edit, or remove the predicted block",
                                      recorded, laid_out));
  }
}

void check_dtype(const YamlMap& yaml, const Plan& plan) {
  const DeviceProfile& device = plan.hardware.device;
  const Figure& peak =
      plan.dtype == DType::float32 ? device.peak_flops_float32 : device.peak_flops_bfloat16;
  if (!(peak.value > 0)) {
    throw yaml.error("dtype",
                     fmt::format("{} has no {} (its peak is 0)", device.name, name_of(plan.dtype)));
  }
  if (plan.dtype == DType::float32 && plan.strategy.masters != MasterFormat::float32) {
    throw yaml.error("dtype",
                     "kernels in float32 read what is updated in float32; expected "
                     "bfloat16 with masters in bfloat16");
  }
}

}  // namespace

Strategy read_strategy(const YamlMap& yaml) {
  Strategy s;
  s.preset = yaml.text("preset");
  std::map<std::string_view, YamlMap> groups = {{"", yaml}};
  for (const KnobRow& row : knob_rows()) {
    if (is_parallel(row)) continue;
    auto group = groups.find(row.group());
    if (group == groups.end()) {
      group = groups.emplace(row.group(), yaml.map(std::string(row.group()))).first;
    }
    read_knob(group->second, row, s);
  }
  for (const auto& [name, group] : groups) group.finish();
  return s;
}

// A group of knobs is a mapping, on one line unless one of its policies is a mapping.
void write_strategy(YAML::Emitter& out, const Strategy& s) {
  out << YAML::BeginMap;
  field(out, "preset", s.preset);
  std::string_view open;
  for (const KnobRow& row : knob_rows()) {
    if (is_parallel(row)) continue;
    if (row.group() != open) {
      if (!open.empty()) out << YAML::EndMap;
      open = row.group();
      out << YAML::Key << std::string(open) << YAML::Value;
      if (row.at.kind != KnobKind::policy) out << YAML::Flow;
      out << YAML::BeginMap;
    }
    write_knob(out, row, s);
  }
  if (!open.empty()) out << YAML::EndMap;
  out << YAML::EndMap;
}

std::string write_plan(const Plan& plan) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  field(out, "longspan_plan", kPlanVersion);
  field(out, "created_by", plan.created_by);
  field(out, "sequence", plan.sequence);
  if (plan.model.micro_batch > 1) field(out, "micro_batch", plan.model.micro_batch);
  field(out, "microbatches", plan.microbatches);
  field(out, "dtype", std::string(name_of(plan.dtype)));
  out << YAML::Key << "parallel" << YAML::Value;
  write_parallel(out, plan.strategy);
  const Pipeline& pipeline = plan.strategy.parallel.pipeline;
  if (!pipeline.lists.empty()) write_lists(out, pipeline);
  out << YAML::Key << "strategy" << YAML::Value;
  write_strategy(out, plan.strategy);
  out << YAML::Key << "predicted" << YAML::Value << YAML::BeginMap;
  field(out, "step_seconds", exact(plan.predicted.step_seconds));
  field(out, "tokens_per_second", exact(plan.predicted.tokens_per_second));
  field(out, "mfu", exact(plan.predicted.mfu));
  for (const auto& [tier, key] : kPeakKeys) {
    field(out, key, plan.predicted.peak_bytes[static_cast<int>(tier)]);
  }
  out << YAML::EndMap;
  out << YAML::Key << "model" << YAML::Value;
  write_model(out, plan.model);
  out << YAML::Key << "hardware" << YAML::Value;
  write_hardware(out, plan.hardware);
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

uint32_t checksum_of(const Plan& plan) {
  Plan trained = plan;
  trained.created_by.clear();
  trained.hardware = {};
  trained.predicted = {};
  const std::string text = write_plan(trained);
  return crc32(text.data(), text.size());
}

Plan parse_plan(const std::string& text, const std::string& origin) {
  const YamlMap yaml = YamlMap::parse(text, origin);
  check_version(yaml, origin);
  Plan plan;
  plan.created_by = yaml.text("created_by");
  plan.sequence = yaml.whole("sequence", 1, kLongestSequence);
  plan.microbatches =
      yaml.whole(key_in(yaml, "microbatches", "micro_batches"), 1, kMostMicrobatches);
  plan.dtype =
      yaml.one_of<DType>("dtype", {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}});
  plan.strategy = read_strategy(yaml.map("strategy"));
  plan.strategy.parallel = read_parallel(yaml.map("parallel"));
  if (yaml.has("lists")) plan.strategy.parallel.pipeline.lists = read_lists(yaml, origin);
  plan.model = read_model(yaml.map("model"));
  if (yaml.has("micro_batch")) {
    plan.model.micro_batch = yaml.whole("micro_batch", 1, kMostMicroBatch);
    validate(plan.model, origin + ": model");
  }
  refuse_unplanned(plan.model);
  plan.model.documents = plan.model.documents.in(plan.sequence);
  plan.hardware = read_hardware(yaml.map("hardware"));
  const bool has_record = yaml.has("predicted");
  if (has_record) plan.predicted = read_prediction(yaml.map("predicted"));
  yaml.finish();

  check_dtype(yaml, plan);
  validate(plan.strategy, plan.model, plan.tokens(), origin + ": strategy");
  if (plan.strategy.parallel.expert > 1 && !plan.model.experts) {
    throw bad_input(
        "{}: strategy: parallel.expert: {} has no experts to distribute; set expert to 1", origin,
        plan.model.name);
  }
  check_ranks(plan, origin);
  if (plan.model.positions == Positions::learned && plan.model.max_positions < plan.sequence) {
    throw yaml.error("sequence",
                     fmt::format("{} tokens, but the model's position table has {} rows; raise "
                                 "model.max_positions or shorten the sequence",
                                 plan.sequence, plan.model.max_positions));
  }
  if (has_record) {
    check_record(yaml.map("predicted"), plan, origin);
  } else {
    plan.predicted = with_origin(origin, [&] { return predict(plan); });
  }
  return plan;
}

Plan read_plan(const std::filesystem::path& path) {
  return parse_plan(read_file(path, kMostYamlBytes), path.string());
}

}  // namespace longspan
