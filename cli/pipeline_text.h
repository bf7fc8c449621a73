// A plan's pipeline in a table, and as JSON.
#pragma once

#include "cli/documents.h"
#include "planner/pipeline/pipeline_step.h"

namespace longspan::cli {

/// Prints the times of its stages, and the work and memory of every rank, on standard output.
void print_pipeline(const Plan& plan, const PipelineStep& step);
Json pipeline_json(const PipelineStep& step);

}  // namespace longspan::cli
