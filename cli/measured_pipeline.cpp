#include "cli/measured_pipeline.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "planner/schedule/io/picture.h"
#include "planner/schedule/io/primus_trace.h"

namespace longspan::cli {
namespace {

double chunks_held(const RankTiming& rank, int32_t virtual_stages) {
  return static_cast<double>(rank.peak_memory) / virtual_stages;
}

Json measured_json(const MeasuredPipeline& pipeline, const MeasuredStep& step) {
  Json ranks = Json::array();
  for (const RankTiming& own : step.timing.ranks) {
    ranks.push_back({{"start_ms", own.start},
                     {"end_ms", own.end},
                     {"busy_ms", own.busy},
                     {"idle_of_total", 1 - own.busy / step.total},
                     {"memory_bytes", own.peak_memory}});
  }
  return {{"stages", pipeline.ranks},
          {"virtual_stages", pipeline.virtual_stages},
          {"microbatches", pipeline.microbatches},
          {"iteration", step.iteration},
          {"iterations", pipeline.steps.size()},
          {"total_ms", step.total},
          {"cost_ms", step.timing.cost},
          {"bubble_rate", step.timing.bubble_rate},
          {"ranks", std::move(ranks)}};
}

Json simulated_json(const Resimulated& made, const MeasuredStep& step, const std::string& name) {
  Json held = Json::array();
  for (const RankTiming& own : made.timing.ranks) {
    held.push_back(chunks_held(own, made.request.virtual_stages));
  }
  return {{"schedule", name},
          {"cost_ms", made.timing.cost},
          {"bubble_rate", made.timing.bubble_rate},
          {"cost_error", made.timing.cost / step.timing.cost - 1},
          {"microbatches_held", std::move(held)}};
}

void print(const MeasuredPipeline& pipeline, const MeasuredStep& step, const std::string& title,
           int width) {
  say("{}\n", bold(title));
  fmt::print("{}", text_picture(step.schedule, step.linked, step.timing, width));
  say("  {:<16}{:.6g} ms, the longest span of a rank, of {:.6g} ms; {} iterations there\n", "cost",
      step.timing.cost, step.total, pipeline.steps.size());
  std::string memory, idle;
  for (const RankTiming& own : step.timing.ranks) {
    memory += fmt::format(" {:.1f}", static_cast<double>(own.peak_memory) / 1e9);
    idle += fmt::format(" {:.3f}", 1 - own.busy / step.total);
  }
  say("  {:<16}{} GB by rank\n", "memory", memory.substr(1));
  say("  {:<16}{} of the whole step by rank\n", "idle", idle.substr(1));
}

void print(const Resimulated& made, const MeasuredStep& step, const std::string& name, int width) {
  say("{}\n", bold(fmt::format("{} simulated from its median times: bubble rate {:.4f}", name,
                               made.timing.bubble_rate)));
  fmt::print("{}", text_picture(made.schedule, made.linked, made.timing, width));
  say("  {:<16}{:.6g} ms, {:+.1f} % of what was measured\n", "cost", made.timing.cost,
      100 * (made.timing.cost / step.timing.cost - 1));
  std::string held;
  for (const RankTiming& own : made.timing.ranks) {
    held += fmt::format(" {:.4g}", chunks_held(own, made.request.virtual_stages));
  }
  say("  {:<16}{} (microbatches, by rank)\n", "peak memory", held.substr(1));
}

}  // namespace

int show_measured(const MeasuredFlags& flags, bool json) {
  if (flags.folder.empty()) {
    throw bad_input("schedule measured takes the folder of a trace, with its config.json");
  }
  check_output(flags.svg, "--svg");
  const MeasuredPipeline pipeline = read_primus_trace(flags.folder);
  const MeasuredStep& step = pipeline.step(flags.iteration);
  std::optional<Resimulated> made;
  if (!flags.against.empty()) {
    made = resimulate(pipeline, step, schedule_family(flags.against), flags.communication);
  }
  const std::string title = fmt::format(
      "iteration {} of {} and {}, measured: bubble rate {:.4f}", step.iteration,
      counted(pipeline.ranks, "rank", "ranks"),
      counted(pipeline.microbatches, "microbatch", "microbatches"), step.timing.bubble_rate);
  if (!flags.svg.empty()) {
    write_file_atomically(flags.svg,
                          svg_picture(step.schedule, step.linked, step.timing, title, "time (ms)"));
  }
  if (json) {
    Json document = measured_json(pipeline, step);
    if (made) document["simulated"] = simulated_json(*made, step, flags.against);
    print_json(document);
    return 0;
  }
  print(pipeline, step, title, flags.width);
  if (made) print(*made, step, flags.against, flags.width);
  if (!flags.svg.empty()) say("Wrote {}\n", flags.svg);
  return 0;
}

}  // namespace longspan::cli
