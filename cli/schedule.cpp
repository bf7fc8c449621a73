// longspan schedule: times and draws a pipeline schedule (of a family or a file) or compares all.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/measured_pipeline.h"
#include "cli/optimal_schedule.h"
#include "cli/schedule_flags.h"
#include "cli/solving.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "planner/schedule/check.h"
#include "planner/schedule/compare.h"
#include "planner/schedule/gathering.h"
#include "planner/schedule/io/picture.h"
#include "planner/schedule/io/pytorch_csv.h"

namespace longspan::cli {
namespace {

struct ScheduleFlags {
  std::string name;
  int stages = 0, microbatches = 0;
  ScheduleChoice choice;
  PipelineTask task;
  OptimalFlags optimal;
  int width = 0;  // columns of the picture; 0: the width of the text
  bool exchanges = false, gathering = false, no_waits = false;
  MeasuredFlags measured;
  std::string svg, csv, split, sequence;
  std::vector<ScheduleFlag> options;
  std::vector<std::string> given;  // names of the options that were given
};

std::string size_text(int64_t ranks, int64_t microbatches) {
  return fmt::format("{} and {}", counted(ranks, "rank", "ranks"),
                     counted(microbatches, "microbatch", "microbatches"));
}

std::string needs_of(const ScheduleFamily& family) {
  std::string needs;
  const auto add = [&](const std::string& need) { needs += (needs.empty() ? "" : ", ") + need; };
  if (family.most_virtual_stages == 0) {
    add(fmt::format("{} or more virtual stages", family.least_virtual_stages));
  } else if (family.most_virtual_stages > 1) {
    add(fmt::format("{} virtual stages", family.most_virtual_stages));
  }
  if (family.sliced) add("slices");
  if (family.grouped) add("group");
  if (family.takes_memory_limit) add("memory limit");
  if (!family.plannable) add("not in plans");
  return needs;
}

Json row_of(const ScheduleFamily& f) {
  return {
      {"name", f.name},
      {"summary", f.summary},
      {"source", f.source},
      {"least_virtual_stages", f.least_virtual_stages},
      {"most_virtual_stages", f.most_virtual_stages == 0 ? Json() : Json(f.most_virtual_stages)},
      {"sliced", f.sliced},
      {"grouped", f.grouped},
      {"arranged_under_memory_limit", f.takes_memory_limit},
      {"planned", f.plannable}};
}

int list(bool json) {
  if (json) {
    Json families = Json::array(), optimised = Json::array();
    for (const ScheduleFamily& f : schedule_families()) families.push_back(row_of(f));
    for (const ScheduleFamily& f : solved_families()) optimised.push_back(row_of(f));
    print_json({{"schedules", std::move(families)}, {"optimised", std::move(optimised)}});
    return 0;
  }
  Table table(
      {{"schedule", false}, {"takes", false, 1}, {"what it is", false}, {"source", false, 2}});
  for (const auto& families : {schedule_families(), solved_families()}) {
    for (const ScheduleFamily& f : families) {
      table.add({std::string(f.name), needs_of(f), std::string(f.summary), std::string(f.source)});
    }
  }
  table.print();
  say("F: forward. I, W: gradients of inputs and of weights. S: the output layer and the loss, "
      "cut\n"
      "over the ranks. p: the number of ranks.\n");
  return 0;
}

std::string choice_text(const ScheduleFamily& family, const ScheduleChoice& choice) {
  std::string text;
  if (family.most_virtual_stages == 0) text += fmt::format("virtual {} ", choice.virtual_stages);
  if (family.sliced) text += fmt::format("slices {} ", choice.slices);
  if (family.grouped && choice.group > 0) text += fmt::format("group {} ", choice.group);
  if (!text.empty()) text.pop_back();
  return text;
}

int compare(const ScheduleFlags& flags, bool json) {
  ProgressBar bar;
  const std::vector<Compared> all = compare_schedules(flags.task, [&](int64_t done, int64_t total) {
    bar.show("comparing", static_cast<double>(done) / static_cast<double>(total));
  });
  const bool any =
      std::any_of(all.begin(), all.end(), [](const Compared& c) { return c.refusal.empty(); });
  if (json) {
    Json rows = Json::array();
    for (const Compared& c : all) {
      Json row = {{"schedule", c.family->name}, {"source", c.family->source}};
      if (!c.refusal.empty()) {
        row["refused"] = c.refusal;
      } else {
        row["virtual_stages"] = c.choice.virtual_stages;
        row["slices"] = c.choice.slices;
        row["group"] = c.choice.group;
        row["cost"] = c.cost;
        row["bubble_rate"] = c.bubble_rate;
        row["peak_memory_microbatches"] = c.microbatches_held;
        row["messages"] = c.messages;
      }
      rows.push_back(std::move(row));
    }
    print_json({{"stages", flags.stages},
                {"microbatches", flags.microbatches},
                {"schedules", std::move(rows)}});
    return any ? 0 : 1;
  }
  say("{}\n", bold(fmt::format("Pipeline schedules of {}, the fastest first; memory in "
                               "microbatches of a rank",
                               size_text(flags.stages, flags.microbatches))));
  Table table({{"schedule", false},
               {"choice", false},
               {"cost"},
               {"bubble rate"},
               {"peak memory"},
               {"messages"}});
  for (const Compared& c : all) {
    if (!c.refusal.empty()) continue;
    table.add({std::string(c.family->name), choice_text(*c.family, c.choice),
               fmt::format("{:.6g}", c.cost), fmt::format("{:.4f}", c.bubble_rate),
               fmt::format("{:.4g}", c.microbatches_held), fmt::format("{:.4g}", c.messages)});
  }
  table.print();
  for (const Compared& c : all) {
    if (c.refusal.empty()) continue;
    const bool is_named = c.refusal.starts_with(c.family->name);
    say("  {}{}\n", is_named ? "" : std::string(c.family->name) + ": ", c.refusal);
  }
  return any ? 0 : 1;
}

// The tokens of each slice; empty if slices were not cut from tokens.
std::vector<int64_t> slice_tokens(const TimedSchedule& timed) {
  std::vector<int64_t> tokens;
  for (const SliceShare& share : timed.request.costs.shares) tokens.push_back(share.tokens);
  return tokens;
}

// Adds the solver's start, how it ended, and where layers were cut.
void add_solver(Json& answer, const OptimalAnswer& optimal) {
  const OptimalSchedule& r = optimal.result;
  answer["solver"] = {{"start", r.start},  {"start_cost", r.start_cost},
                      {"bound", r.bound},  {"gap", r.gap() ? Json(*r.gap()) : Json()},
                      {"nodes", r.nodes},  {"binaries", r.binaries},
                      {"end", end_text(r)}};
  if (!optimal.plan) return;
  answer["virtual_stages"] = optimal.plan->virtual_stages;
  answer["layers_end"] = optimal.plan->ends;
  answer["even_cost"] = optimal.plan->even_cost;
}

void print_solver(const OptimalAnswer& optimal) {
  const OptimalSchedule& r = optimal.result;
  say("  {:<16}from {} at {:.6g}; {}\n", "solver", r.start, r.start_cost, end_text(r));
  if (!optimal.plan) return;
  std::string layers;
  int64_t begin = 0;
  for (const int64_t end : optimal.plan->ends) {
    layers += fmt::format(" {}", end - begin);
    begin = end;
  }
  say("  {:<16}{} by stage, {} on a rank; in equal numbers {}\n", "layers", layers.substr(1),
      optimal.plan->virtual_stages,
      optimal.plan->even_cost > 0 ? fmt::format("{:.6g}", optimal.plan->even_cost)
                                  : std::string("nothing fits"));
}

// Times a schedule from a file, whose ranks, stages and microbatches are the file's.
TimedSchedule time_file(const ScheduleFlags& flags, const PipelineCsv& csv,
                        const ScheduleFamily& family) {
  const auto ranks = static_cast<int32_t>(csv.schedule.ranks.size());
  if (const auto fault = first_fault(csv.schedule, {})) {
    throw bad_input("{}: {}", flags.name, *fault);
  }
  std::vector<int32_t> stages_of(ranks, 0);
  for (const int32_t rank : csv.schedule.ranks_of_stages()) ++stages_of[rank];
  for (int32_t rank = 1; rank < ranks; ++rank) {
    if (stages_of[rank] == stages_of[0]) continue;
    throw bad_input("{}: rank {} has {} stages and rank 0 {}; expected as many on every rank",
                    flags.name, rank, stages_of[rank], stages_of[0]);
  }
  PipelineTask task = flags.task;
  task.ranks = ranks;
  task.microbatches = csv.schedule.microbatches;
  const ScheduleChoice choice{.virtual_stages = stages_of[0], .slices = csv.schedule.slices};
  return timed_answer(family, request_of(family, task, choice), csv.schedule);
}

// The schedule that --csv writes: a file's actions unchanged, unless flags add to them.
PipelineCsv written_csv(const ScheduleFlags& flags, const Schedule& schedule,
                        const std::optional<PipelineCsv>& read) {
  if (read && !flags.exchanges && !flags.gathering && !flags.no_waits) return *read;
  Schedule written = schedule;
  if (flags.gathering) written = with_gathering(written);
  if (flags.exchanges || flags.gathering) written = with_exchanges(written);
  if (flags.no_waits) written = without_waits(written);
  return pipeline_csv_of(written);
}

int show(const ScheduleFlags& flags, ScheduleAsked asked, bool json) {
  std::optional<OptimalAnswer> optimal;
  std::optional<PipelineCsv> read;
  TimedSchedule timed;
  const ScheduleFamily of_file{.name = flags.name, .summary = "", .source = "PyTorch's CSV"};
  if (asked == ScheduleAsked::file) {
    read = read_pipeline_csv(read_file(flags.name), flags.name);
    check_flags_of(read->schedule, of_file, flags.given);
    timed = time_file(flags, *read, of_file);
  } else if (const ScheduleFamily* family = solved_family(flags.name)) {
    optimal = make_optimal(*family, flags.task, flags.choice, flags.optimal);
    timed = optimal->timed;
  } else {
    timed = with_time_shown("making the schedule", [&] {
      return time_schedule(schedule_family(flags.name), flags.task, flags.choice);
    });
    check_flags_of(timed.schedule, *timed.family, flags.given);
  }
  const ScheduleTiming& timing = timed.timing;
  if (const auto fault =
          first_fault(timed.schedule, timed.request.costs, timed.request.memory_limit)) {
    throw failed("{} made a schedule that is not valid: {}", flags.name, *fault);
  }
  const std::string title =
      fmt::format("{} of {}: bubble rate {:.4f}", flags.name,
                  size_text(timed.request.ranks, timed.request.microbatches), timing.bubble_rate);
  if (!flags.svg.empty()) {
    const std::string axis =
        fmt::format("time (a microbatch's forward on a rank takes {:g})", flags.task.times.forward);
    write_file_atomically(flags.svg,
                          svg_picture(timed.schedule, timed.linked, timing, title, axis));
  }
  if (!flags.csv.empty()) {
    write_file_atomically(flags.csv, write_pipeline_csv(written_csv(flags, timed.schedule, read)));
  }
  if (json) {
    Json ranks = Json::array();
    for (size_t rank = 0; rank < timing.ranks.size(); ++rank) {
      const RankTiming& own = timing.ranks[rank];
      ranks.push_back(
          {{"start", own.start},
           {"end", own.end},
           {"busy", own.busy},
           {"peak_memory_microbatches", timed.microbatches_held(static_cast<int32_t>(rank))},
           {"actions", timed.schedule.ranks[rank].size()}});
    }
    Json answer = {{"schedule", flags.name},
                   {"stages", timed.request.ranks},
                   {"microbatches", timed.request.microbatches},
                   {"virtual_stages", timed.request.virtual_stages},
                   {"slices", timed.request.slices},
                   {"slice_tokens", slice_tokens(timed)},
                   {"bubble_rate", timing.bubble_rate},
                   {"cost", timing.cost},
                   {"makespan", timing.makespan},
                   {"peak_memory_microbatches", timed.most_microbatches_held()},
                   {"messages", timed.messages},
                   {"ranks", std::move(ranks)},
                   {"source", timed.family->source}};
    if (optimal) add_solver(answer, *optimal);
    print_json(answer);
    return 0;
  }
  say("{}\n", bold(title));
  fmt::print("{}", text_picture(timed.schedule, timed.linked, timing, flags.width));
  say("  {:<16}{:.6g}, the longest span of a rank ({:.6g} from the first start to the last "
      "end)\n",
      "cost", timing.cost, timing.makespan);
  std::string held;
  for (int32_t rank = 0; rank < timed.request.ranks; ++rank) {
    held += fmt::format(" {:.4g}", timed.microbatches_held(rank));
  }
  say("  {:<16}{} (microbatches, by rank)\n", "peak memory", held.substr(1));
  if (const std::vector<int64_t> tokens = slice_tokens(timed); !tokens.empty()) {
    say("  {:<16}{} tokens\n", "slices", fmt::join(tokens, " "));
  }
  say("  {:<16}{:.4g} of a microbatch's activations sent by a rank, mean\n", "messages",
      timed.messages);
  if (optimal) print_solver(*optimal);
  for (const std::string& path : {flags.svg, flags.csv}) {
    if (!path.empty()) say("Wrote {}\n", path);
  }
  return 0;
}

// Refuses flags about an output file that would have no effect, and one path for both files.
void check_files(const ScheduleFlags& flags) {
  if (flags.csv.empty() && (flags.exchanges || flags.gathering || flags.no_waits)) {
    throw bad_input("--exchanges, --gathering and --no-waits say how --csv FILE is written");
  }
  if (!flags.svg.empty() && flags.svg == flags.csv) {
    throw bad_input("--svg and --csv: expected two files, got {} twice", flags.svg);
  }
}

// Parses the text flags into the request.
void load(ScheduleFlags& flags) {
  flags.given = given_flags(flags.options);
  if (flags.width == 0) flags.width = static_cast<int>(std::min<size_t>(text_width(), 118));
  const bool limited =
      std::find(flags.given.begin(), flags.given.end(), "--memory-limit") != flags.given.end();
  if (limited && flags.task.memory_limit == 0) {
    throw bad_input("--memory-limit: no schedule holds nothing; leave it out for no limit");
  }
  flags.task.ranks = flags.stages;
  flags.task.microbatches = flags.microbatches;
  if (!flags.split.empty()) {
    if (flags.sequence.empty()) throw bad_input("--split needs --sequence, in tokens");
    flags.task.split = flags.split == "equal" ? SliceSplit::equal_tokens : SliceSplit::equal_work;
    flags.task.sequence_tokens = parse_tokens(flags.sequence, "--sequence");
  } else if (!flags.sequence.empty()) {
    throw bad_input("--sequence says what --split cuts; add --split equal or equal-flop");
  }
  flags.task.times.recompute = flags.task.times.forward;
}

void check_size(const ScheduleFlags& flags) {
  if (flags.stages >= 1 && flags.microbatches >= 1) return;
  throw bad_input("schedule needs --stages and --microbatches, both at least 1");
}

int run_show(ScheduleFlags flags, bool json) {
  load(flags);
  const ScheduleAsked asked = schedule_shown(flags.name);
  check_flags(asked, flags.name, flags.given);
  check_files(flags);
  check_output(flags.svg, "--svg");
  check_output(flags.csv, "--csv");
  if (asked == ScheduleAsked::file) {
    const ScheduleChoice& choice = flags.choice;
    if (flags.stages > 0 || flags.microbatches > 0 || choice.virtual_stages > 0 ||
        choice.slices > 0 || choice.group > 0) {
      throw bad_input(
          "{} says itself how many there are of everything; leave out --stages, --microbatches, "
          "--virtual, --slices and --group",
          flags.name);
    }
  } else {
    check_size(flags);
  }
  return show(flags, asked, json);
}

int run_compare(ScheduleFlags flags, bool json) {
  load(flags);
  check_size(flags);
  return compare(flags, json);
}

int run_measured(ScheduleFlags flags, bool json) {
  load(flags);
  check_output(flags.svg, "--svg");
  flags.measured.communication = flags.task.communication;
  flags.measured.width = flags.width;
  flags.measured.svg = flags.svg;
  return show_measured(flags.measured, json);
}

// Adds the flags that at least one of `asked` accepts.
class FlagAdder {
 public:
  FlagAdder(Verb& verb, std::vector<ScheduleFlag>& options,
            std::initializer_list<ScheduleAsked> asked)
      : verb_(verb), options_(options), asked_(asked) {}

  template <class Value, class Restrict>
  void option(const std::string& name, Value& value, const std::string& text,
              const Restrict& restrict) {
    if (!takes_flag(name, asked_)) return;
    restrict(options_.emplace_back(name, verb_.add_option(name, value, text)).second);
  }
  template <class Value>
  void option(const std::string& name, Value& value, const std::string& text) {
    option(name, value, text, [](Option&) {});
  }
  void flag(const std::string& name, bool& value, const std::string& text) {
    if (takes_flag(name, asked_)) options_.emplace_back(name, verb_.add_flag(name, value, text));
  }

 private:
  Verb& verb_;
  std::vector<ScheduleFlag>& options_;
  std::initializer_list<ScheduleAsked> asked_;
};

// A whole number from 0 to `most`; `otherwise` is shown as the default.
auto up_to(int64_t most, const char* otherwise = nullptr) {
  return [=](Option& option) {
    option.within(0, most);
    if (otherwise != nullptr) option.shown_default(otherwise);
  };
}
void not_negative(Option& option) { option.not_negative(); }

void add_flags(Verb& verb, ScheduleFlags& flags, std::initializer_list<ScheduleAsked> asked) {
  FlagAdder add(verb, flags.options, asked);
  add.option("--iteration", flags.measured.iteration, "Of the trace",
             [](Option& option) { option.shown_default("the one that took the median time"); });
  add.option("--against", flags.measured.against,
             "Simulate this schedule with the trace's median times, to compare");
  add.option("--stages", flags.stages, "Ranks of the pipeline", up_to(4096));
  add.option("--microbatches", flags.microbatches, "Microbatches of a step", up_to(1 << 20));
  add.option("--virtual", flags.choice.virtual_stages, "Stages of each rank",
             up_to(1024, "as few as the schedule takes"));
  add.option("--slices", flags.choice.slices, "Slices of a sequence",
             up_to(4096, "as many as ranks, where there are any"));
  add.option(
      "--split", flags.split,
      "Cut a sequence into slices of equal tokens (equal) or equal work (equal-flop)",
      [](Option& option) {
        option.one_of({"equal", "equal-flop"}).shown_default("slices that take equally long");
      });
  add.option("--sequence", flags.sequence, "Tokens of a sequence, where it is split");
  add.option("--group", flags.choice.group, "Microbatches that go through a stage together",
             up_to(1 << 20, "the schedule's own choice"));
  StageTimes& times = flags.task.times;
  add.option("--forward", times.forward, "Time of a microbatch's forward on a rank", not_negative);
  add.option("--backward-input", times.input, "Time of its gradients of inputs", not_negative);
  add.option("--backward-weight", times.weight, "Time of its gradients of weights", not_negative);
  add.option("--vocabulary-forward", times.vocabulary_forward,
             "Time of a rank's share of the output layer, where it is cut over ranks",
             not_negative);
  add.option("--vocabulary-backward", times.vocabulary_backward,
             "Time of its gradients, where it is cut over ranks", not_negative);
  add.option("--offload", times.offload,
             "Time of copying a microbatch's activations of a rank to the host", not_negative);
  add.option("--reload", times.reload, "Time of copying them back", not_negative);
  add.option("--comm", flags.task.communication, "Time of a message between ranks", not_negative);
  add.option("--hidden", flags.task.hidden,
             "Part of the shorter action that is hidden where two run as one, 0 to 1",
             not_negative);
  add.option("--attention", flags.task.attention,
             "Part of a forward that is attention, where it is separate from the rest, 0 to 1",
             not_negative);
  add.option("--weight-memory", flags.task.kept_for_weights,
             "Part of activations that stays for gradients of weights, 0 to 1", not_negative);
  add.option("--memory-limit", flags.task.memory_limit,
             "Most microbatches whose activations a rank may hold",
             [](Option& option) { option.not_negative().shown_default("none"); });
  OptimalFlags& optimal = flags.optimal;
  add.option("--time-limit", optimal.seconds, "optpipe, adaptis: most seconds of the solver",
             not_negative);
  add.option("--node-limit", optimal.nodes, "optpipe, adaptis: most nodes of its search",
             up_to(1 << 30));
  add.option("--layers", optimal.layers,
             "adaptis: layers, all alike, whose times add up to a rank's",
             up_to(4096, "four for each rank"));
  add.option("--embedding", optimal.embedding, "adaptis: time of an embedding, in layers",
             not_negative);
  add.option("--head", optimal.head, "adaptis: time of a head, in layers", not_negative);
  add.option("--width", flags.width, "Columns of the picture", [](Option& option) {
    option.within(20, 10000).shown_default("as wide as the text, at most 118");
  });
  add.option("--svg", flags.svg, "Write the picture as SVG");
  add.option("--csv", flags.csv, "Write the schedule as PyTorch's CSV");
  add.flag("--exchanges", flags.exchanges, "In the CSV, write exchanges out");
  add.flag("--gathering", flags.gathering,
           "In the CSV, write exchanges out and when parameters are gathered");
  add.flag("--no-waits", flags.no_waits,
           "In the CSV, no waits for what is sent or summed, for PyTorch before 2.15");
}

}  // namespace

void add_schedule(Verb& program) {
  Verb group = program.add_group("schedule", "Pipeline schedules: one of them, or all compared",
                                 "longspan schedule show zb-h1 --stages 4 --microbatches 8");
  Verb all = group.add_verb("list", "All schedules by name", "longspan schedule list");
  all.runs([](bool json) { return list(json); });

  auto shown = std::make_shared<ScheduleFlags>();
  Verb show = group.add_verb("show", "One schedule, timed and drawn",
                             "longspan schedule show zb-h1 --stages 4 --microbatches 8 "
                             "--svg zb.svg");
  show.add_option("name", shown->name, "A schedule, or its file in PyTorch's CSV").required();
  add_flags(
      show, *shown,
      {ScheduleAsked::file, ScheduleAsked::family, ScheduleAsked::optpipe, ScheduleAsked::adaptis});
  show.runs([shown](bool json) { return run_show(*shown, json); });

  auto compared = std::make_shared<ScheduleFlags>();
  Verb compare = group.add_verb("compare", "All schedules of a size, the fastest first",
                                "longspan schedule compare --stages 4 --microbatches 8");
  add_flags(compare, *compared, {ScheduleAsked::compare});
  compare.runs([compared](bool json) { return run_compare(*compared, json); });

  auto measured = std::make_shared<ScheduleFlags>();
  Verb trace = group.add_verb("measured", "A schedule that was measured, from its trace",
                              "longspan schedule measured trace --against interleaved-1f1b");
  trace
      .add_option("folder", measured->measured.folder,
                  "A trace as AMD's Primus writes it: config.json, pp_rank_0.json ...")
      .required();
  add_flags(trace, *measured, {ScheduleAsked::measured});
  trace.runs([measured](bool json) { return run_measured(*measured, json); });
}

}  // namespace longspan::cli
