#include "tests/search/question.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <ctime>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/quantities.h"
#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/search/sweep.h"

namespace longspan::testing {
namespace {

using Set = std::function<void(Question&, const std::string&)>;

constexpr std::pair<Objective, const char*> kObjectives[] = {
    {Objective::throughput, "throughput"},
    {Objective::memory, "memory"},
    {Objective::host_memory, "host-memory"}};

int64_t whole(const std::string& text, const std::string& what) {
  size_t end = 0;
  int64_t value = 0;
  try {
    value = std::stoll(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (text.empty() || end != text.size()) {
    throw bad_input("{}: expected a whole number, got \"{}\"", what, text);
  }
  return value;
}

Objective objective_of(const std::string& text) {
  for (const auto& [objective, name] : kObjectives) {
    if (text == name) return objective;
  }
  throw bad_input("--objective: expected throughput, memory or host-memory, got \"{}\"", text);
}

std::pair<const std::string, Set> degree(const char* flag,
                                         std::optional<int64_t> ParallelChoice::*field) {
  return {flag, [=](Question& q, const std::string& v) { q.parallel.*field = whole(v, flag); }};
}

std::pair<const std::string, Set> text(const char* flag, std::string Question::*field) {
  return {flag, [=](Question& q, const std::string& v) { q.*field = v; }};
}

std::pair<const std::string, Set> number(const char* flag, int64_t Question::*field) {
  return {flag, [=](Question& q, const std::string& v) { q.*field = whole(v, flag); }};
}

std::pair<const std::string, Set> tokens(const char* flag, int64_t Question::*field) {
  return {flag, [=](Question& q, const std::string& v) { q.*field = parse_tokens(v, flag); }};
}

const std::map<std::string, Set>& flags_with_values() {
  static const std::map<std::string, Set> flags = {
      text("--model", &Question::model),
      text("--hw", &Question::hardware),
      text("--device-memory", &Question::device_memory),
      text("--host-memory", &Question::host_memory),
      text("--nvme-capacity", &Question::nvme_capacity),
      text("--max-step-time", &Question::max_step_time),
      text("--margin", &Question::margin),
      text("--strategy", &Question::strategy),
      number("--gpus", &Question::gpus),
      number("--max-gpus", &Question::max_gpus),
      number("--micro-batches", &Question::microbatches),
      number("--global-batch", &Question::global_batch),
      tokens("--seq", &Question::sequence),
      tokens("--chunk", &Question::chunk),
      tokens("--granule", &Question::granularity),
      {"--min-gpus-for",
       [](Question& q, const std::string& v) {
         q.sequence = parse_tokens(v, "--min-gpus-for");
         q.fewest = true;
       }},
      {"--objective", [](Question& q, const std::string& v) { q.objective = objective_of(v); }},
      {"--schedule", [](Question& q, const std::string& v) { q.parallel.schedule = v; }},
      degree("--data", &ParallelChoice::data),
      degree("--tensor", &ParallelChoice::tensor),
      degree("--ring", &ParallelChoice::ring),
      degree("--ulysses", &ParallelChoice::ulysses),
      degree("--zero", &ParallelChoice::zero),
      degree("--pipeline", &ParallelChoice::pipeline),
      degree("--virtual", &ParallelChoice::virtual_stages),
      degree("--slices", &ParallelChoice::slices),
      degree("--in-flight", &ParallelChoice::in_flight)};
  return flags;
}

void load(const Question& q, QuestionOptions& options) {
  options.chunk_tokens = q.chunk;
  options.microbatches = q.microbatches;
  options.global_batch = q.global_batch;
  options.deterministic = q.deterministic;
  options.parallel = q.parallel;
  if (!q.margin.empty()) options.margin = parse_share(q.margin, "--margin");
  if (!q.max_step_time.empty()) {
    options.time.step_seconds = parse_duration(q.max_step_time, "--max-step-time");
  }
}

SearchOptions search_options(const Question& q) {
  SearchOptions options;
  load(q, options);
  options.objective = q.objective;
  return options;
}

void longest(const Question& q, const ModelSpec& model, const HardwareProfile& hw,
             bool whole_answer, Reply& reply) {
  MaxSequenceOptions options;
  load(q, options);
  options.granularity = q.granularity;
  if (whole_answer) options.steps = {600, 3600};  // as the command line does
  MaxSequence found = max_sequence(model, hw, q.strategy, options);
  reply.gap = found.gap;
  reply.granularity = found.granularity;
  reply.considered = found.considered;
  reply.simulated = found.evaluated;
  reply.within = std::move(found.within);
  if (found.sequence == 0) {
    reply.refusal = found.remedy;
    return;
  }
  reply.plan = std::move(found.plan);
}

void best_of_sweep(const Question& q, const ModelSpec& model, const HardwareProfile& hw,
                   Reply& reply) {
  SweepOptions options;
  options.strategy = q.strategy;
  options.search = search_options(q);
  const std::vector<int64_t> counts = device_counts(hw, q.max_gpus > 0 ? q.max_gpus : hw.devices());
  Sweep found = q.fewest ? fewest_devices(model, hw, q.sequence, counts, options)
                         : sweep(model, hw, {q.sequence}, doubling(counts), options);
  reply.considered = found.considered;
  reply.simulated = found.evaluated;
  reply.plan = std::move(found.best);
}

void best(const Question& q, const ModelSpec& model, const HardwareProfile& hw, bool whole_answer,
          Reply& reply) {
  if (q.fewest || q.max_gpus > 0) return best_of_sweep(q, model, hw, reply);
  if (q.strategy != "auto") {
    reply.plan = plan_preset(model, hw, q.strategy, q.sequence, search_options(q));
    return;
  }
  SearchOptions options = search_options(q);
  if (!whole_answer) omit_front(options);
  SearchResult found = search(model, hw, q.sequence, options);
  reply.gap = found.gap;
  reply.considered = found.considered;
  reply.simulated = found.evaluated;
  reply.front = std::move(found.pareto);
  reply.plan = std::move(found.best);
}

void override_figure(Figure& figure, const std::string& text, const char* flag) {
  if (text.empty()) return;
  figure.value = static_cast<double>(parse_bytes(text, flag));
  figure.source = kGivenByUser;
}

}  // namespace

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Question parse_question(const std::string& line, const std::string& origin) {
  std::istringstream words(line);
  std::string verb, flag;
  words >> verb;
  Question q;
  if (verb == "max-seq") {
    q.verb = Question::Verb::max_seq;
  } else if (verb != "plan") {
    throw bad_input("{}: expected plan or max-seq, got \"{}\"", origin, verb);
  }
  while (words >> flag) {
    if (flag == "--no-overlap") {
      q.parallel.overlap = false;
    } else if (flag == "--deterministic") {
      q.deterministic = true;
    } else {
      const auto known = flags_with_values().find(flag);
      std::string value;
      if (known == flags_with_values().end()) throw bad_input("{}: no flag {}", origin, flag);
      if (!(words >> value)) throw bad_input("{}: {} has no value", origin, flag);
      known->second(q, value);
    }
  }
  if (q.model.empty() || q.hardware.empty()) {
    throw bad_input("{}: expected --model and --hw in \"{}\"", origin, line);
  }
  if ((q.sequence > 0) != (q.verb == Question::Verb::plan)) {
    throw bad_input("{}: expected a length for plan, and none for max-seq, in \"{}\"", origin,
                    line);
  }
  return q;
}

std::string line_of(const Question& q) {
  const bool plan = q.verb == Question::Verb::plan;
  std::string line =
      fmt::format("{} --model {} --hw {}", plan ? "plan" : "max-seq", q.model, q.hardware);
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) line += fmt::format(" {} {}", flag, value);
  };
  const auto count = [&](const char* flag, const std::optional<int64_t>& value) {
    if (value) line += fmt::format(" {} {}", flag, *value);
  };
  const auto positive = [&](const char* flag, int64_t value, int64_t usual) {
    if (value != usual) line += fmt::format(" {} {}", flag, format_tokens(value));
  };
  positive(q.fewest ? "--min-gpus-for" : "--seq", q.sequence, 0);
  add("--device-memory", q.device_memory);
  add("--host-memory", q.host_memory);
  add("--nvme-capacity", q.nvme_capacity);
  add("--max-step-time", q.max_step_time);
  add("--margin", q.margin);
  if (q.gpus > 0) count("--gpus", q.gpus);
  if (q.max_gpus > 0) count("--max-gpus", q.max_gpus);
  if (!plan || q.strategy != "auto") add("--strategy", q.strategy);
  positive("--chunk", q.chunk, 0);
  positive("--granule", q.granularity, 256);
  if (q.microbatches != 1) count("--micro-batches", q.microbatches);
  if (q.global_batch > 0) count("--global-batch", q.global_batch);
  const ParallelChoice& p = q.parallel;
  count("--data", p.data);
  count("--tensor", p.tensor);
  count("--ring", p.ring);
  count("--ulysses", p.ulysses);
  count("--zero", p.zero);
  count("--pipeline", p.pipeline);
  if (p.schedule) add("--schedule", *p.schedule);
  count("--virtual", p.virtual_stages);
  count("--slices", p.slices);
  count("--in-flight", p.in_flight);
  if (!p.overlap.value_or(true)) line += " --no-overlap";
  if (q.deterministic) line += " --deterministic";
  for (const auto& [objective, name] : kObjectives) {
    if (objective == q.objective && objective != Objective::throughput) add("--objective", name);
  }
  return line;
}

HardwareProfile hardware_of(const Question& q) {
  HardwareProfile hw = load_hardware(q.hardware);
  if (q.gpus > 0) hw = with_devices(hw, q.gpus);
  override_figure(hw.device.memory_bytes, q.device_memory, "--device-memory");
  override_figure(hw.host.memory_bytes, q.host_memory, "--host-memory");
  override_figure(hw.nvme.capacity_bytes, q.nvme_capacity, "--nvme-capacity");
  validate(hw, line_of(q));
  return hw;
}

Reply ask(const Question& q, bool whole_answer) {
  const ModelSpec model = load_model(q.model);
  const HardwareProfile hw = hardware_of(q);
  Reply reply;
  const double begin = processor_seconds();
  try {
    if (q.verb == Question::Verb::max_seq) {
      longest(q, model, hw, whole_answer, reply);
    } else {
      best(q, model, hw, whole_answer, reply);
    }
  } catch (const Error& e) {
    reply.refusal = e.what();
    reply.failed = e.kind() == ErrorKind::failed;
    reply.bad_input = e.kind() == ErrorKind::bad_input;
  }
  reply.processor_seconds = processor_seconds() - begin;
  if (reply.plan) {
    reply.tokens = reply.plan->sequence;
    reply.devices = reply.plan->hardware.devices();
  }
  return reply;
}

}  // namespace longspan::testing
