// Evaluates the step of a plan with a pipeline. Pure functions; safe from any thread.
#pragma once

#include <string>

#include "planner/pipeline/pipeline_step.h"
#include "planner/plan/plan.h"

namespace longspan {

/// The exact step of a plan with a pipeline. Throws as evaluate_pipeline().
PipelineStep pipeline_step(const Plan& plan);

/// The schedule of its pipeline. Throws as evaluate_pipeline().
Schedule schedule_of(const Plan& plan);

/// Why the engine does not run the plan's products, or the lists of its pipeline, as a sentence;
/// empty if it does.
std::string why_not_run(const Plan& plan);

/// The prediction of that step. Plan::predicted may come from an older cost model.
Prediction prediction_of(const Plan& plan, const PipelineStep& step);

}  // namespace longspan
