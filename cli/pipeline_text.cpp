#include "cli/pipeline_text.h"

#include <fmt/format.h>

#include "base/units.h"
#include "cli/plan_text.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"

namespace longspan::cli {

void print_pipeline(const Plan& plan, const PipelineStep& step) {
  say("{}\n", bold(plan.strategy.parallel.has_pipeline() ? "Pipeline" : "Stage by stage"));
  say("  a microbatch takes a rank {} forward and {} backward{}; idle {} of the schedule\n",
      format_seconds(step.forward_seconds), format_seconds(step.backward_seconds),
      step.message_seconds > 0 ? ", a message " + format_seconds(step.message_seconds) : "",
      percent(step.bubble_rate));
  Table table({{"rank"}, {"layers"}, {"busy"}, {"microbatches held"}, {"device"}, {"host"}});
  // The first, the last and some between stand for many ranks.
  const auto count = static_cast<int64_t>(step.ranks.size());
  constexpr int64_t kMost = 16;
  const int64_t apart = (count + kMost - 1) / kMost;
  for (int64_t rank = 0; rank < count; ++rank) {
    if (rank % apart != 0 && rank + 1 != count) continue;
    const PipelineRank& r = step.ranks[static_cast<size_t>(rank)];
    table.add({fmt::format("{}", rank), fmt::format("{}", r.layers), format_seconds(r.busy_seconds),
               fmt::format("{:.2f}", r.microbatches_held), bytes_or_dash(r.peak_bytes[0]),
               bytes_or_dash(r.peak_bytes[1])});
  }
  table.print();
}

Json pipeline_json(const PipelineStep& step) {
  Json ranks = Json::array();
  for (const PipelineRank& rank : step.ranks) {
    Json entry = {{"layers", rank.layers},
                  {"busy_seconds", rank.busy_seconds},
                  {"microbatches_held", rank.microbatches_held}};
    put_tiers(entry, rank.peak_bytes);
    ranks.push_back(std::move(entry));
  }
  return {{"forward_seconds", step.forward_seconds}, {"backward_seconds", step.backward_seconds},
          {"message_seconds", step.message_seconds}, {"rest_seconds", step.rest_seconds},
          {"bubble_rate", step.bubble_rate},         {"ranks", std::move(ranks)}};
}

}  // namespace longspan::cli
