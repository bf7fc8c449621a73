// Random legal requests for property tests of the planner.
#pragma once

#include <cstdint>

#include "planner/program/program.h"

namespace longspan::testing {

/// Returns a small random model, legal strategy and suitable length. Deterministic for a seed.
StepRequest random_request(uint64_t seed);

/// Lets all layers be trained, without adapters.
void whole(ModelSpec& model);

/// Lets a backward pass all layers, also frozen ones at the start, as slices and stages need.
void pass_back(StepRequest& request);

/// The same, with several slices on one stage, most of which pass forward again.
StepRequest sliced_request(uint64_t seed);

/// The step with latent attention of random widths.
StepRequest with_latent_attention(StepRequest request, uint64_t seed);

/// The forward alone of one of these.
StepRequest forward_request(uint64_t seed);

/// The step with layers that attend to a window, and that rotate differently, two for each of the
/// others.
StepRequest in_windows(StepRequest request, uint64_t seed);
/// The request with sequences of documents, shorter than a chunk or longer.
StepRequest in_documents(StepRequest request, uint64_t seed);

/// A span that a chunk of the step is a multiple of.
int64_t random_span(const StepRequest& request, uint64_t seed);
/// The step with layers that attend within spans, parts of a chunk, around one that does not.
StepRequest in_spans(StepRequest request, uint64_t seed);

/// The step with an auxiliary loss, if the model has experts.
StepRequest balanced(StepRequest request);

/// The step on twice the tokens with layers that differ, of which some work on a half of them.
StepRequest in_runs(StepRequest request);

}  // namespace longspan::testing
