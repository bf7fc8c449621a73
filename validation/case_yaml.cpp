// The file of published cases: docs/validation.md describes it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/file.h"
#include "base/nearest.h"
#include "base/units.h"
#include "base/yaml.h"
#include "frameworks/model/stack.h"
#include "models/catalog.h"
#include "planner/schedule/registry.h"
#include "validation/case.h"
#include "validation/configured_case.h"

namespace longspan {
namespace {

constexpr int64_t kMostGpus = int64_t{1} << 20;
constexpr int64_t kMostSequences = int64_t{1} << 30;  // of a batch
constexpr int64_t kMostTokens = int64_t{1} << 40;     // of a sequence

int64_t whole_or(const YamlMap& yaml, const std::string& key, int64_t missing, int64_t min,
                 int64_t max = INT64_MAX) {
  return yaml.has(key) ? yaml.whole(key, min, max) : missing;
}

bool flag_or(const YamlMap& yaml, const std::string& key, bool missing) {
  return yaml.has(key) ? yaml.flag(key) : missing;
}

std::string text_or_empty(const YamlMap& yaml, const std::string& key) {
  return yaml.has(key) ? yaml.text(key) : std::string();
}

std::optional<double> positive(const YamlMap& yaml, const std::string& key, double unit = 1) {
  if (!yaml.has(key)) return std::nullopt;
  return yaml.real(key, 0) * unit;
}

std::optional<int64_t> bytes(const YamlMap& yaml, const std::string& key) {
  if (!yaml.has(key)) return std::nullopt;
  try {
    return parse_bytes(yaml.text(key), "size");
  } catch (const Error& e) {
    throw yaml.error(key, e.what());
  }
}

std::string known_word(const YamlMap& yaml, const std::string& key,
                       const std::vector<std::string>& known) {
  std::string word = yaml.text(key);
  if (std::find(known.begin(), known.end(), word) != known.end()) return word;
  throw yaml.error(key, fmt::format("expected one of {}, got \"{}\"{}", fmt::join(known, ", "),
                                    word, nearest_hint(word, known)));
}

// One value for each stage, or one for all of them.
std::vector<double> per_stage(const YamlMap& yaml, const std::string& key, int64_t stages) {
  if (!yaml.has(key)) return {};
  std::vector<double> values = yaml.reals(key);
  const auto count = static_cast<int64_t>(values.size());
  if (count != 1 && count != stages) {
    throw yaml.error(key, fmt::format("expected one value, or one for each of {} pipeline stages, "
                                      "got {}",
                                      stages, count));
  }
  return values;
}

std::vector<double> shares(const YamlMap& yaml, const std::string& key, int64_t stages) {
  std::vector<double> values = per_stage(yaml, key, stages);
  for (const double value : values) {
    if (!(value >= 0 && value <= 1)) {
      throw yaml.error(key, fmt::format("expected shares from 0 to 1, got {}", value));
    }
  }
  return values;
}

std::vector<int64_t> layer_counts(const YamlMap& yaml, const std::string& key, int64_t stages) {
  std::vector<int64_t> result;
  for (const double value : per_stage(yaml, key, stages)) {
    if (!(value >= 0 && value <= 16384) || value != std::floor(value)) {
      throw yaml.error(key, fmt::format("expected numbers of layers, got {}", value));
    }
    result.push_back(static_cast<int64_t>(value));
  }
  return result;
}

FlopConvention read_convention(const YamlMap& yaml) {
  FlopConvention c;
  c.dense = yaml.one_of<DenseFlops>("dense", {{"products", DenseFlops::products},
                                              {"parameters", DenseFlops::parameters},
                                              {"non-embedding", DenseFlops::non_embedding}});
  c.attention = yaml.one_of<AttentionFlops>(
      "attention", {{"causal", AttentionFlops::causal}, {"full", AttentionFlops::full}});
  c.recomputed = yaml.one_of<RecomputedFlops>("recomputed", {{"none", RecomputedFlops::none},
                                                             {"layers", RecomputedFlops::layers},
                                                             {"all", RecomputedFlops::all}});
  c.peak_flops = positive(yaml, "peak_tflops", 1e12).value_or(0);
  yaml.finish();
  return c;
}

CaseSpeedup read_speedup(const YamlMap& yaml) {
  CaseSpeedup speedup;
  speedup.over = yaml.text("over");
  const std::vector<double> times = yaml.reals("times");
  const bool ordered =
      !times.empty() && times.size() <= 2 && 0 < times.front() && times.front() <= times.back();
  if (!ordered) throw yaml.error("times", "expected one number, or the least and the most");
  speedup.low = times.front();
  speedup.high = times.back();
  yaml.finish();
  return speedup;
}

// Measurements of a sequence of `sequence` tokens.
CaseMeasured read_measured(const YamlMap& yaml, int64_t sequence) {
  CaseMeasured m;
  m.step_seconds = positive(yaml, "step_time_s");
  m.tokens_per_second = positive(yaml, "tokens_per_s");
  m.tokens_per_second_per_gpu = positive(yaml, "tokens_per_s_per_gpu");
  m.model_flops_per_gpu = positive(yaml, "model_tflops_per_gpu", 1e12);
  m.mfu = positive(yaml, "mfu");
  if (m.mfu && *m.mfu > 2) {
    throw yaml.error("mfu", fmt::format("expected a share such as 0.55, got {}", *m.mfu));
  }
  if (yaml.has("speedup")) m.speedup = read_speedup(yaml.map("speedup"));
  m.peak_allocated_bytes = bytes(yaml, "peak_allocated");
  m.peak_reserved_bytes = bytes(yaml, "peak_reserved");
  m.peak_device_bytes = bytes(yaml, "peak_device");
  m.longest = flag_or(yaml, "longest", false);
  if (yaml.has("longest_below")) {
    if (!m.longest) throw yaml.error("longest_below", "expected with longest: true only");
    m.longest_below = yaml.whole("longest_below", sequence + 1, kMostTokens);
  }
  m.out_of_memory = flag_or(yaml, "out_of_memory", false);
  m.trained = flag_or(yaml, "trained", false);
  yaml.finish();
  return m;
}

CasePeer read_peer(const YamlMap& yaml) {
  CasePeer peer;
  peer.name = yaml.text("name");
  peer.step_seconds = positive(yaml, "step_time_s");
  peer.peak_bytes = bytes(yaml, "peak_memory");
  yaml.finish();
  if (!peer.step_seconds && !peer.peak_bytes) {
    throw yaml.error("step_time_s", "missing, and so is peak_memory: a peer predicts either");
  }
  return peer;
}

RunOffload read_offload(const YamlMap& yaml, int64_t stages) {
  RunOffload offload;
  offload.checkpoints = shares(yaml, "checkpoints", stages);
  offload.parameters = shares(yaml, "parameters", stages);
  offload.gradients = shares(yaml, "gradients", stages);
  offload.optimizer = shares(yaml, "optimizer", stages);
  offload.activations = shares(yaml, "activations", stages);
  yaml.finish();
  return offload;
}

void read_degrees(const YamlMap& yaml, PublishedCase& c) {
  const auto degree = [&yaml](const char* key) { return whole_or(yaml, key, 1, 1, kMostGpus); };
  RunDegrees& d = c.degrees;
  d.tensor = degree("tensor");
  d.pipeline = degree("pipeline");
  d.ulysses = degree("ulysses");
  d.ring = degree("ring");
  d.all_gather = degree("all_gather");
  d.expert = degree("expert");
  d.expert_tensor = whole_or(yaml, "expert_tensor", 0, 1, kMostGpus);
  // In floating point: five typing errors together may be beyond int64.
  double others = 1;
  for (const int64_t factor : {d.tensor, d.pipeline, d.ulysses, d.ring, d.all_gather}) {
    others *= static_cast<double>(factor);
  }
  // The other degrees determine the number of replicas, so the file may omit it.
  const auto left = static_cast<int64_t>(static_cast<double>(c.gpus) / others);
  d.data = whole_or(yaml, "data", std::max<int64_t>(1, left), 1, kMostGpus);
  const int64_t of_experts = d.expert * d.of_expert();
  const double stage = others / static_cast<double>(d.pipeline) * static_cast<double>(d.data);
  if (c.left_out.empty() && std::fmod(stage, static_cast<double>(of_experts)) != 0) {
    throw yaml.error("expert",
                     fmt::format("{} GPUs of a stage cannot be divided by {} (expert {} x "
                                 "expert_tensor {})",
                                 stage, of_experts, d.expert, d.of_expert()));
  }
  const double taken = others * static_cast<double>(d.data);
  if (c.left_out.empty() && taken != static_cast<double>(c.gpus)) {
    throw yaml.error("gpus", fmt::format("the degrees take {} GPUs (data {} x tensor {} x pipeline "
                                         "{} x ulysses {} x ring {} x all_gather {}), got {}",
                                         taken, d.data, d.tensor, d.pipeline, d.ulysses, d.ring,
                                         d.all_gather, c.gpus));
  }
}

void check_batch(const YamlMap& yaml, const PublishedCase& c) {
  const int64_t at_once = c.microbatch.value_or(1) * c.degrees.data;
  if (!c.left_out.empty() || c.global_batch % at_once == 0) return;
  throw yaml.error("global_batch",
                   fmt::format("expected a multiple of {} (micro_batch {} x data {}), got {}",
                               at_once, c.microbatch.value_or(1), c.degrees.data, c.global_batch));
}

void check_measured(const YamlMap& yaml, const PublishedCase& c) {
  const CaseMeasured& m = c.measured;
  const bool timed = m.step_seconds || m.tokens_per_second || m.tokens_per_second_per_gpu ||
                     m.model_flops_per_gpu || m.mfu || m.speedup || m.trained;
  const bool memory = m.peak_allocated_bytes || m.peak_reserved_bytes || m.peak_device_bytes;
  if (!timed && !memory && !m.longest && !m.out_of_memory) {
    throw yaml.error("measured", "expected at least one figure, longest, trained or out_of_memory");
  }
  if (m.out_of_memory && (timed || m.longest)) {
    throw yaml.error("measured", "a run that ended out of memory has no time and no length");
  }
  if ((m.model_flops_per_gpu || m.mfu) && !yaml.has("flops")) {
    throw yaml.error("flops", "missing: say what the source's FLOPs count (docs/validation.md)");
  }
  if (m.mfu && c.convention.peak_flops == 0) {
    throw yaml.error("flops", "peak_tflops: missing: say which peak the mfu is a share of");
  }
}

void read_schedule(const YamlMap& yaml, PublishedCase& c) {
  if (!yaml.has("schedule")) {
    for (const char* key : {"slices", "in_flight"}) {
      if (yaml.has(key)) throw yaml.error(key, "expected with a schedule only");
    }
    return;
  }
  std::vector<std::string> names;
  for (const ScheduleFamily& family : schedule_families()) names.emplace_back(family.name);
  c.schedule = known_word(yaml, "schedule", names);
  const ScheduleFamily& family = schedule_family(c.schedule);
  if (c.degrees.pipeline == 1) throw yaml.error("schedule", "expected with pipeline stages");
  if (!takes_virtual_stages(family, c.virtual_stages)) {
    const int64_t most = family.most_virtual_stages;
    throw yaml.error(
        "virtual_stages",
        fmt::format("{} takes {} or more and {}, got {}", c.schedule, family.least_virtual_stages,
                    most > 0 ? fmt::format("at most {}", most) : "any number", c.virtual_stages));
  }
  c.slices = whole_or(yaml, "slices", 1, 1, family.sliced ? 65536 : 1);
  if (yaml.has("in_flight")) {
    if (!family.takes_memory_limit)
      throw yaml.error("in_flight", c.schedule + " does not ask for memory");
    c.in_flight = yaml.real("in_flight", 0);
  }
}

void read_run(const YamlMap& yaml, PublishedCase& c) {
  c.sequence = yaml.whole("sequence", 1, kMostTokens);
  if (yaml.has("micro_batch")) c.microbatch = yaml.whole("micro_batch", 1, kMostSequences);
  c.global_batch = yaml.whole("global_batch", 1, kMostSequences);
  read_degrees(yaml, c);
  const int64_t stages = c.degrees.pipeline;
  c.sequence_parallel = flag_or(yaml, "sequence_parallel", false);
  c.virtual_stages = whole_or(yaml, "virtual_stages", 1, 1, 1024);
  read_schedule(yaml, c);
  const bool every = !c.schedule.empty() && yaml.has("stage_layers") &&
                     static_cast<int64_t>(yaml.reals("stage_layers").size()) != stages;
  c.stage_layers = layer_counts(yaml, "stage_layers", every ? stages * c.virtual_stages : stages);
  c.zero = whole_or(yaml, "zero", 0, 0, 3);
  if (yaml.has("recompute")) {
    c.recompute = yaml.one_of<Recompute>("recompute", {{"none", Recompute::none},
                                                       {"selective", Recompute::selective},
                                                       {"full", Recompute::full}});
  }
  c.recompute_layers = layer_counts(yaml, "recompute_layers", stages);
  if (!c.recompute_layers.empty() && c.recompute != Recompute::full) {
    throw yaml.error("recompute_layers", "expected with recompute: full only");
  }
  if (yaml.has("offload")) c.offload = read_offload(yaml.map("offload"), stages);
  if (!c.offload.activations.empty() && c.schedule.empty()) {
    throw yaml.error("offload", "activations: expected with a schedule only");
  }
  c.flash_attention = flag_or(yaml, "flash_attention", true);
  if (yaml.has("attention")) c.attention = known_word(yaml, "attention", attention_kernel_names());
  if (!c.attention.empty() && !c.flash_attention) {
    throw yaml.error("attention", "a kernel of attention stores no scores");
  }
  c.overlap = flag_or(yaml, "overlap", true);
  if (yaml.has("expert_capacity")) c.expert_capacity = yaml.real("expert_capacity", 0);
  if (yaml.has("expert_imbalance")) c.expert_imbalance = yaml.real("expert_imbalance", 0);
  c.chunk_tokens = whole_or(yaml, "chunk", 0, 0, kMostTokens);
  if (yaml.has("optimizer_state_bytes")) {
    c.optimizer_state_bytes = yaml.real("optimizer_state_bytes", 0);
  }
  c.tiled_mlp = flag_or(yaml, "tiled_mlp", false);
  c.tiled_loss = flag_or(yaml, "tiled_loss", false);
}

// The files of a folder, by name.
std::vector<ConfigText> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<ConfigText> files;
  for (const std::filesystem::path& path : paths) {
    files.push_back({path.filename().string(), read_file(path, kMostYamlBytes)});
  }
  return files;
}

// A run told by the files of its software: a folder next to the file of cases.
void read_files(const YamlMap& yaml, PublishedCase& c) {
  const std::filesystem::path folder =
      std::filesystem::path(c.file).parent_path() / yaml.text("files");
  if (!std::filesystem::is_directory(folder)) {
    throw yaml.error("files", fmt::format("expected a folder, got {}", folder.string()));
  }
  const std::vector<ConfigText> files = files_of(folder);
  const int64_t sequence = whole_or(yaml, "sequence", 0, 1, kMostTokens);
  configure_case(c, files, sequence);
  c.measured = read_measured(yaml.map("measured"), sequence);
}

PublishedCase read_case(const YamlMap& yaml, const PublishedCase& of_file,
                        const std::map<std::string, ModelSpec>& models) {
  PublishedCase c = of_file;
  c.line = yaml.line();
  c.name = yaml.text("name");
  c.hardware = yaml.text("hardware");
  c.left_out = text_or_empty(yaml, "left_out");
  c.assumed = text_or_empty(yaml, "assumed");
  c.note = text_or_empty(yaml, "note");
  if (yaml.has("files")) {
    read_files(yaml, c);
    yaml.finish();
    check_measured(yaml, c);
    return c;
  }
  c.model = yaml.text("model");
  if (const auto it = models.find(c.model); it != models.end()) c.shape = it->second;
  c.layers = whole_or(yaml, "layers", 0, 1, 16384);
  c.gpus = yaml.whole("gpus", 1, kMostGpus);
  c.gpus_per_node = whole_or(yaml, "gpus_per_node", 8, 1, 1024);
  if (c.gpus > c.gpus_per_node && c.gpus % c.gpus_per_node != 0) {
    throw yaml.error("gpus", fmt::format("expected whole nodes of {}, got {}; set gpus_per_node",
                                         c.gpus_per_node, c.gpus));
  }
  c.stack = known_word(yaml, "stack", case_stacks());
  c.precision = known_word(yaml, "precision", case_precisions());
  read_run(yaml, c);
  if (yaml.has("flops")) c.convention = read_convention(yaml.map("flops"));
  c.measured = read_measured(yaml.map("measured"), c.sequence);
  if (yaml.has("peer")) c.peer = read_peer(yaml.map("peer"));
  yaml.finish();
  check_batch(yaml, c);
  check_measured(yaml, c);
  return c;
}

// The case that a speed-up refers to must exist, use as many GPUs, and be predicted; an assumption
// of that case is one of the speed-up.
void check_speedup(const YamlMap& yaml, const PublishedCase& c,
                   const std::vector<PublishedCase>& cases) {
  if (!c.measured.speedup || !c.left_out.empty()) return;
  const std::string& over = c.measured.speedup->over;
  std::vector<std::string> names;
  for (const PublishedCase& other : cases) {
    if (other.gpus != c.gpus || !other.left_out.empty() || other.name == c.name) continue;
    if (other.name == over && !other.assumed.empty() && c.assumed.empty()) {
      throw yaml.error("measured",
                       fmt::format("speedup: \"{}\" assumes something, and so does what is "
                                   "over it: say `assumed` here too",
                                   over));
    }
    if (other.name == over) return;
    names.push_back(other.name);
  }
  throw yaml.error(
      "measured", fmt::format("speedup: expected one over another case on {} GPUs that takes part, "
                              "got \"{}\"{}",
                              c.gpus, over, nearest_hint(over, names)));
}

std::map<std::string, ModelSpec> read_models(const YamlMap& file) {
  std::map<std::string, ModelSpec> models;
  if (!file.has("models")) return models;
  for (const YamlMap& own : file.maps("models")) {
    const YamlMap yaml = file.has("model_defaults") ? own.over(file.map("model_defaults")) : own;
    ModelSpec model = read_model(yaml);
    if (!models.emplace(model.name, model).second) {
      throw own.error("name", fmt::format("the model \"{}\" is given twice", model.name));
    }
  }
  return models;
}

}  // namespace

std::string place_of(const PublishedCase& reference) {
  return fmt::format("{}:{}", reference.file, reference.line);
}

const std::vector<std::string>& case_stacks() {
  // The stacks that have a file of terms, and others.
  static const std::vector<std::string> stacks = [] {
    std::vector<std::string> names{"fsdp", "longspan"};
    const std::vector<std::string> files = stack_names();
    names.insert(names.end(), files.begin(), files.end());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }();
  return stacks;
}

const std::vector<std::string>& case_precisions() {
  static const std::vector<std::string> precisions = {"fp32", "fp16",  "bf16",
                                                      "fp8",  "mxfp8", "nvfp4"};
  return precisions;
}

std::vector<PublishedCase> parse_cases(const std::string& text, const std::string& origin) {
  const YamlMap file = YamlMap::parse(text, origin);
  PublishedCase of_file;
  of_file.file = origin;
  of_file.table = file.text("table");
  of_file.source = file.text("source");
  const std::map<std::string, ModelSpec> models = read_models(file);
  const bool with_defaults = file.has("defaults");
  std::vector<PublishedCase> cases;
  std::set<std::string> names;
  for (const YamlMap& own : file.maps("cases")) {
    const YamlMap yaml = with_defaults ? own.over(file.map("defaults")) : own;
    cases.push_back(read_case(yaml, of_file, models));
    if (!names.insert(cases.back().name).second) {
      throw own.error("name", fmt::format("the case \"{}\" is given twice", cases.back().name));
    }
  }
  if (cases.empty()) throw file.error("cases", "expected at least one case");
  const std::vector<YamlMap> owns = file.maps("cases");
  for (size_t i = 0; i < cases.size(); ++i) check_speedup(owns[i], cases[i], cases);
  file.finish();
  return cases;
}

std::vector<PublishedCase> read_cases(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path))
    return parse_cases(read_file(path, kMostYamlBytes), path.string());
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw bad_input("{}: expected files of cases (*.yaml), found none; see docs/validation.md",
                    path.string());
  }
  std::sort(files.begin(), files.end());
  std::vector<PublishedCase> all;
  std::map<std::string, std::string> file_of;
  for (const std::filesystem::path& file : files) {
    std::vector<PublishedCase> cases = parse_cases(read_file(file, kMostYamlBytes), file.string());
    const auto [it, is_new] = file_of.emplace(cases.front().table, file.string());
    if (!is_new) {
      throw bad_input("{}: the table \"{}\" is in {} already; give it another name", file.string(),
                      cases.front().table, it->second);
    }
    std::move(cases.begin(), cases.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace longspan
