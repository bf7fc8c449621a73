#include "cli/question_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/quantities.h"
#include "base/units.h"
#include "cli/document_lengths.h"
#include "planner/strategy/product_format.h"

namespace longspan::cli {
namespace {

// "host", or "host:0.6".
OptimizerPlace parse_placement(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string word = text.substr(0, colon);
  OptimizerPlace place;
  const auto tier = std::find(std::begin(kTierNames), std::end(kTierNames), word);
  bool is_read = tier != std::end(kTierNames);
  if (is_read) place.tier = static_cast<Tier>(tier - std::begin(kTierNames));
  if (colon != text.npos) {
    const char *begin = text.data() + colon + 1, *const end = text.data() + text.size();
    const auto [read, error] = std::from_chars(begin, end, place.fraction);
    is_read = is_read && place.tier != Tier::device && error == std::errc() && read == end &&
              place.fraction > 0 && place.fraction <= 1;
  }
  if (!is_read) {
    throw bad_input(
        "--optimizer: expected device, host or nvme, or host:F or nvme:F with a fraction F in "
        "(0, 1], got \"{}\"",
        text);
  }
  return place;
}

}  // namespace

void QuestionFlags::add_to(Verb& verb, const std::string& chunk_help) {
  constexpr int64_t kMostSequences = int64_t{1} << 24;
  parallel.add_to(verb);
  verb.add_option("--chunk", chunk, chunk_help);
  verb.add_option("--microbatches,--micro-batches", microbatches,
                  "Microbatches of an optimizer step on each data replica")
      .within(1, 4096)
      .shown_default("1");
  verb.add_option("--micro-batch", micro_batch,
                  "Sequences of a microbatch, which every op processes together; a chunk has as "
                  "many tokens of each")
      .within(1, kMostMicroBatch)
      .shown_default("1");
  verb.add_option("--global-batch", global_batch,
                  "Sequences of an optimizer step over all replicas, in place of --microbatches")
      .within(1, kMostSequences)
      .shown_default("");
  verb.add_option("--documents", documents,
                  "Sequences are packed with documents of these lengths: a file, or e.g. 4K or "
                  "512:100,32K:1");
  verb.add_option("--margin", margin, "Share of each memory to leave free, e.g. 5%");
  verb.add_option("--max-step-time", max_step_time,
                  "Upper limit on the step time, e.g. 90s, 10min, 1h");
  verb.add_option("--min-tokens-per-second", min_tokens_per_second,
                  "Lower limit on the throughput of all devices together");
  verb.add_flag("--extend-positions", extend_positions,
                "Lengthen a table of learned positions that is shorter than the sequence");
  add_deterministic_flag(verb, deterministic);
  verb.add_option("--moments", moments, "Format of AdamW's moments")
      .one_of({"float32", "bfloat16", "int8"});
  verb.add_option("--masters", masters,
                  "Format of the parameters that AdamW updates; bfloat16: those that kernels read, "
                  "without a float32 copy")
      .one_of({"float32", "bfloat16"});
  verb.add_option("--optimizer", optimizer,
                  "Where optimizer states are: device, host or nvme, or e.g. host:0.6 for those of "
                  "this fraction of the layers");
  verb.add_option("--products", products,
                  "Format of the products of layers' projections; dtype: that of activations")
      .one_of({std::begin(kProductFormatNames), std::end(kProductFormatNames)});
  verb.add_flag(
      "--early-update", early_update,
      "Update each layer as soon as its gradients are complete, clipped by the norm of the "
      "step before");
  add_forward_flag(verb, forward_only);
}

void QuestionFlags::load(QuestionOptions& options) const {
  if (global_batch > 0 && microbatches > 0) {
    throw bad_input("--global-batch: {} fixes the sequences of a step; leave --microbatches {} out",
                    global_batch, microbatches);
  }
  options.parallel = parallel.load();
  if (!chunk.empty()) options.chunk_tokens = parse_tokens(chunk, "--chunk");
  options.microbatches = microbatches > 0 ? microbatches : 1;
  if (global_batch % micro_batch != 0) {
    throw bad_input("--global-batch: {} sequences are no whole number of microbatches of {}",
                    global_batch, micro_batch);
  }
  options.global_batch = global_batch / micro_batch;
  if (!margin.empty()) {
    options.margin = parse_share(margin, "--margin");
    if (options.margin >= 1) {
      throw bad_input("--margin: expected a part from 0% to less than 100%, got \"{}\"", margin);
    }
  }
  if (!max_step_time.empty()) {
    options.time.step_seconds = parse_duration(max_step_time, "--max-step-time");
  }
  if (!min_tokens_per_second.empty()) {
    options.time.tokens_per_second = parse_rate(min_tokens_per_second, "--min-tokens-per-second");
  }
  options.deterministic = deterministic;
  options.moments = moments == "int8"       ? MomentFormat::int8
                    : moments == "bfloat16" ? MomentFormat::bfloat16
                                            : MomentFormat::float32;
  options.masters = masters == "bfloat16" ? MasterFormat::bfloat16 : MasterFormat::float32;
  if (!optimizer.empty()) options.optimizer = parse_placement(optimizer);
  options.products = *product_format_named(products);  // one_of() admits no other
  options.early_update = early_update;
  options.forward_only = forward_only;
  options.extend_positions = extend_positions;
}

ModelSpec QuestionFlags::packed(ModelSpec model) const {
  if (!documents.empty()) model.documents = parse_documents(documents, "--documents");
  model.micro_batch = micro_batch;
  validate(model, model.name);
  return model;
}

std::string extended_positions_text(const ModelSpec& model, const Plan& plan) {
  if (plan.model.max_positions == model.max_positions) return "";
  return fmt::format(
      "The table of learned positions is extended from {} to {}; published weights do not have the "
      "rest",
      model.max_positions, plan.model.max_positions);
}

std::string only_planned_text(const ModelSpec& model) {
  if (model.only_planned.empty()) return "";
  return model.only_planned + ": planned without that, and not run by the engine";
}

}  // namespace longspan::cli
