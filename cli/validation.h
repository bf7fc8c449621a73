// Predictions and published measurements compared, in words and as JSON.
#pragma once

#include "cli/documents.h"
#include "planner/reference/validation.h"

namespace longspan::cli {

/// Tables of errors, who fits, and who has no prediction, on standard output; before that, if
/// asked, every case.
void print_validation(const Validation& validation, bool with_cases);
Json validation_json(const Validation& validation, bool with_cases);

}  // namespace longspan::cli
