#include "cli/check_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/nearest.h"
#include "base/units.h"
#include "cli/on_framework.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "frameworks/knobs/spelling.h"

namespace longspan::cli {
namespace {

// What an answer shows without --wide.
constexpr size_t kPartsShown = 4, kChangesShown = 3, kExplanationsShown = 4, kStepPartsShown = 3;

std::string bytes_text(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

// The keys that the framework does not have, with the nearest that it has.
std::string unknown_text(const ConfigReading& reading) {
  std::vector<std::string> known;
  for (const FrameworkKey& key : reading.framework->keys) known.push_back(key.key);
  std::vector<std::string> texts;
  for (std::string key : reading.unknown) {
    std::replace_if(
        key.begin(), key.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    const std::vector<std::string> nearest = nearest_names(key, known);
    texts.push_back(nearest.empty() ? key : fmt::format("{} ({}?)", key, nearest.front()));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string runs_out_text(const ConfigCheck& check) {
  if (check.runs_out == "start") return "; runs out before the first step, with the states alone";
  if (check.runs_out == "update") return "; runs out in the first update";
  if (check.runs_out != "second step") return "";
  return "; runs out in the second step, when the optimizer's states are there";
}

void print_verdict(const ConfigCheck& check) {
  const double device = check.predicted.needs.device;
  const std::string range = fmt::format("{} and {}", bytes_text(device * check.memory_range.low),
                                        bytes_text(device * check.memory_range.high));
  const std::string verdict = bold(verdict_text(check.fit));
  const double of_node = check.configured.hw.host.memory_bytes.value;
  const double host = check.predicted.needs.host;
  const std::string on_each =
      fmt::format("{} of {} on each GPU", bytes_text(device), bytes_text(check.capacity_bytes));
  if (check.short_of == "device") {
    const std::string host_short =
        check.host_short_bytes > 0
            ? fmt::format("; the host is short by {}", bytes_text(check.host_short_bytes))
            : "";
    say("{}: {}, short by {} (between {}){}{}\n", verdict, on_each, bytes_text(check.short_bytes),
        range, runs_out_text(check), host_short);
  } else if (check.short_of == "host") {
    say("{}: the host is short by {} of {}; {} (between {})\n", verdict,
        bytes_text(check.short_bytes), bytes_text(host), on_each, range);
  } else if (!check.short_of.empty()) {
    say("{}: tensors are too large for {}\n", verdict, check.short_of);
  } else if (check.fit == Fit::at_risk && host * check.memory_range.high > of_node) {
    say("{}: {} of a node's {} in host memory; {} (between {})\n", verdict, bytes_text(host),
        bytes_text(of_node), on_each, range);
  } else {
    say("{}: {} (between {})\n", verdict, on_each, range);
  }
}

// The largest parts, and the sum of the others.
std::string parts_text(const ConfigCheck& check) {
  std::vector<MemoryPart> parts = check.parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const MemoryPart& a, const MemoryPart& b) { return a.bytes > b.bytes; });
  const double least = 0.02 * check.predicted.needs.device;
  double other = 0;
  size_t shown = 0;
  std::string text;
  for (const MemoryPart& part : parts) {
    if (part.bytes < least || (shown == kPartsShown && !is_wide())) {
      other += part.bytes;
      continue;
    }
    text += fmt::format("{}{} {}", shown++ == 0 ? "" : ", ", part.name, bytes_text(part.bytes));
  }
  if (other >= 0.01 * check.predicted.needs.device) text += ", other " + bytes_text(other);
  return text;
}

std::string change_effect(const ConfigCheck& check, const ProposedChange& change) {
  const double seconds = change.paid_seconds, bytes = change.saved_bytes;
  const std::string time =
      seconds >= 0 ? "costs " + format_seconds(seconds) : "gains " + format_seconds(-seconds);
  const std::string memory =
      bytes >= 0 ? "saves " + bytes_text(bytes) : "takes " + bytes_text(-bytes);
  const std::string batch =
      change.keeps_batch ? ""
                         : fmt::format(" for as many tokens, batch {:.0f} becomes {:.0f}",
                                       check.configured.run.step_sequences(), change.sequences);
  if (check.fit == Fit::fits) return fmt::format("{}{}, {}", time, batch, memory);
  return fmt::format("{}, {}{}: {}", memory, time, batch, verdict_text(change.fit));
}

// GiB with three digits.
std::string gib(double bytes) {
  const double value = bytes / (int64_t{1} << 30);
  return fmt::format("{:.{}f}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}
std::string gib_range(double bytes, const PredictionInterval& range) {
  return fmt::format("({} to {})", gib(bytes * range.low), gib(bytes * range.high));
}

void print_memory(const ConfigCheck& check) {
  const RunNeeds& needs = check.predicted.needs;
  const double allocated = needs.memory.tensors();
  say("  memory     {} GiB allocated {}, {} reserved {}, {} in nvidia-smi\n", gib(allocated),
      gib_range(allocated, check.memory_range), gib(needs.reserved),
      gib_range(needs.reserved, check.memory_range), gib(needs.device));
  const char* const when = needs.memory.of_critic ? "update of the critic: "
                           : needs.memory.moment == StepMoment::forward_pass ? "forward pass: "
                                                                             : "";
  say("  at peak    {}{}\n", when, parts_text(check));
  const double of_node = check.configured.hw.host.memory_bytes.value;
  if (check.uses_host || needs.host > 0.5 * of_node) {
    say("  host       {} of a node's {}\n", bytes_text(needs.host), bytes_text(of_node));
  }
}

// The parts of a step that take most.
std::string bound_text(const ConfigCheck& check) {
  std::vector<StepPart> parts = check.step_parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const StepPart& a, const StepPart& b) { return a.seconds > b.seconds; });
  std::string text;
  for (size_t i = 0; i < std::min(kStepPartsShown, parts.size()); ++i) {
    const double share = parts[i].seconds / check.predicted.time.step();
    if (i > 0 && share < 0.05) break;
    text += fmt::format("{}{} {:.0f} %", i == 0 ? "" : ", ", parts[i].name, 100 * share);
  }
  return text;
}

void print_explanations(const SpeedVerdict& speed) {
  const std::vector<SpeedExplanation>& all = speed.explanations;
  const auto fitted = static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [](const auto& e) { return e.fitted; }));
  // Those that are fitted come last, and always explain.
  const size_t most = is_wide() ? all.size() : kExplanationsShown - fitted;
  size_t shown = 0, predicted = 0;
  for (const SpeedExplanation& e : all) {
    if (!e.fitted && ++predicted > most) continue;
    const std::string setting = e.setting.empty() ? "" : fmt::format(" ({})", e.setting);
    const std::string effect =
        e.fitted ? "" : fmt::format(": {}", format_seconds(e.predicted_seconds));
    say("  {}     {}{}{}\n", shown++ == 0 ? "may be" : "      ", e.what, setting, effect);
  }
  if (all.empty()) say("  may be     nothing known: did this config run, on these GPUs?\n");
  if (!is_wide()) return;
  for (const RuledOutCause& cause : speed.ruled_out) {
    say("  not        {}: {}\n", cause.what, cause.why);
  }
}

void print_measured(const ConfigCheck& check) {
  const SpeedVerdict& speed = *check.speed;
  const double ratio = speed.seconds / check.predicted.time.step();
  const bool in_seconds = speed.measured.unit == SpeedUnit::seconds;
  const std::string position = speed.position == SpeedPosition::within   ? "normal"
                               : speed.position == SpeedPosition::slower ? "slower than the range"
                                                                         : "faster than the range";
  const std::string times =
      ratio >= 10 ? fmt::format("{:.0f}", ratio) : fmt::format("{:.2g}", ratio);
  say("  measured   {}{}: {}{}\n", speed_text(speed.measured),
      in_seconds ? "" : fmt::format(", {} a step", format_seconds(speed.seconds)), bold(position),
      times == "1" ? "" : fmt::format(", {} times the predicted time", times));
  say("  bound by   {}\n", bound_text(check));
  if (check.fit == Fit::does_not_fit) {
    say("  note       as it ran, the prediction of memory is wrong, or it was another config\n");
  }
  if (speed.position != SpeedPosition::within) print_explanations(speed);
}

// The models of a step besides the trained one: what each holds at the peak, and where it waits.
// The step of reinforcement learning is without its generation.
void print_models(const ConfigReading& reading, const ConfigCheck& check) {
  const TrainingRun& run = check.predicted.run;
  const auto held = [&](std::string_view model) {
    for (const RunMemory::Held& other : check.predicted.needs.memory.others) {
      if (other.model == model) return " " + bytes_text(other.bytes);
    }
    return std::string();
  };
  const bool rolls_out = reading.knobs.is("task", "rl");
  bool takes_turns = false;
  std::vector<std::string> models;
  for (const OtherModel& other : run.others) {
    const std::string_view where = other.place == ModelPlace::host      ? " (host)"
                                   : other.place == ModelPlace::process ? " (own process)"
                                   : other.place == ModelPlace::actor   ? " (base model)"
                                                                        : "";
    models.push_back(fmt::format("{}{}{}", name_of(other.role), held(name_of(other.role)), where));
    takes_turns = takes_turns || other.trained();
  }
  if (rolls_out) {
    const bool waits = takes_turns && run.place == ModelPlace::host;
    models.insert(models.begin(), fmt::format("actor{}{}", held("actor"), waits ? " (host)" : ""));
  }
  if (models.empty()) return;
  const std::string step = rolls_out ? fmt::format("; generation is not predicted, {} a step",
                                                   counted(run.updates, "update", "updates"))
                                     : "";
  say("  models     {}{}\n", fmt::join(models, ", "), step);
}

void print_step(const ConfigCheck& check) {
  const double seconds = check.predicted.time.step();
  say("  step       {} ({} to {}), {:.0f} tokens/s/GPU, MFU {} (full: {})\n",
      format_seconds(seconds), format_seconds(seconds * check.step_range.low),
      format_seconds(seconds * check.step_range.high), check.tokens_per_second_per_gpu,
      percent(check.mfu), percent(check.mfu_full));
  if (check.speed) print_measured(check);
}

std::string cut_text(const ConfigCheck& check) {
  if (check.cut_share == 0) return "";
  return fmt::format("; {} of samples are cut off at {}", percent(check.cut_share),
                     format_tokens(check.configured.run.sequence));
}

void print_padded(const ConfigCheck& check) {
  const PaddedRun& padded = *check.padded;
  const int64_t microbatch = *check.predicted.run.microbatch;
  const double padding = 1 - check.step_tokens / padded.computed_tokens;
  const char* const which = check.predicted.run.padded ? "longest" : "mean";
  const std::string of =
      microbatch == 1 ? "" : fmt::format(" ({} of {})", which, grouped(microbatch));
  say("  lengths    longest {}: {}; typical {}{}: {}, {}; mean {:.0f}{}{}\n",
      format_tokens(padded.lengths.longest), verdict_text(check.fit),
      format_tokens(padded.lengths.microbatch), of, verdict_text(padded.typical_fit),
      bytes_text(padded.typical_device_bytes), check.mean_length,
      padding > 0.0005 ? ", padding " + percent(padding) : "", cut_text(check));
}

void print_lengths(const ConfigCheck& check) {
  const int64_t sequence = check.configured.run.sequence;
  if (check.padded) {
    print_padded(check);
  } else if (check.packed && check.mean_length > 0) {
    const std::string longer =
        check.cut_share > 0 ? fmt::format("; {} are longer", percent(check.cut_share)) : "";
    say("  lengths    packed: {:.1f} samples of {:.0f} fill {}{}; a step takes {} if each sees "
        "only "
        "itself\n",
        static_cast<double>(sequence) / check.mean_length, check.mean_length,
        format_tokens(sequence), longer, format_seconds(check.separate_seconds));
  }
  const bool is_full = !check.packed && !check.padded && !check.assumed_length;
  const std::string full =
      is_full ? fmt::format("; the answer is for samples of {}, --lengths says others",
                            format_tokens(sequence))
              : "";
  if (check.longest_sequence > 0) {
    const std::string risk = check.longest_fitting == 0 ? ", at risk at any length"
                             : check.longest_fitting < check.longest_sequence
                                 ? fmt::format(", at risk above {}", check.longest_fitting)
                                 : "";
    say("  longest    {} tokens with this config{}{}\n", check.longest_sequence, risk, full);
  } else {
    say("  longest    no length fits{}\n", full);
  }
}

}  // namespace

void print_check(const ConfigReading& reading, const ConfigCheck& check) {
  const ConfiguredRun& c = check.configured;
  say("{}: {}, {} tokens, {} a step on {}: {}\n",
      bold(reading.framework->version.starts_with(reading.framework->name)
               ? reading.framework->version
               : fmt::format("{} ({})", reading.framework->name, reading.framework->version)),
      c.model.name, format_tokens(c.run.sequence),
      counted(static_cast<int64_t>(c.run.step_sequences()), "sequence", "sequences"),
      counted(c.run.gpus, "GPU", "GPUs"), run_text(c.run));
  print_verdict(check);
  print_memory(check);
  print_models(reading, check);
  print_step(check);
  print_lengths(check);
  const bool fits = check.fit == Fit::fits;
  const size_t most = is_wide() ? check.changes.size() : kChangesShown;
  for (size_t i = 0; i < std::min(most, check.changes.size()); ++i) {
    say("  {}     {}: {}\n", i == 0 ? (fits ? "faster" : "change") : "      ",
        change_text(reading, check.changes[i].keys), change_effect(check, check.changes[i]));
  }
  std::string defaults;
  for (const TakenDefault& taken : reading.defaults) {
    defaults += fmt::format("{}{} {}", defaults.empty() ? "" : ", ",
                            spelled_key(*reading.framework, taken.key), taken.value);
  }
  if (!defaults.empty()) say("  defaults   {}\n", defaults);
  if (check.assumed_length) {
    say("  length     {} tokens assumed, as the config does not limit a sample; give it with "
        "--seq\n",
        format_tokens(c.run.sequence));
  }
  if (!published_intervals().measured_stacks.contains(c.stack.name)) {
    say("  ranges     of memory are learned from other software's runs\n");
  }
  if (!reading.unknown.empty()) say("  not known  {}\n", unknown_text(reading));
  for (const std::string& note : reading.notes) say("  note       {}\n", note);
}

}  // namespace longspan::cli
