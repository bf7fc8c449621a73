// A plan's pipeline in a table, and as JSON.
#pragma once

#include "cli/documents.h"
#include "planner/pipeline/pipeline_step.h"

namespace longspan::cli {

/// Its stages' times and what every rank does and holds, on standard output.
void print_pipeline(const Plan& plan, const PipelineStep& step);
Json pipeline_json(const PipelineStep& step);

}  // namespace longspan::cli
