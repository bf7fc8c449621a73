#include "validation/validation.h"

#include <utility>

namespace longspan {

Validation validate_cases(std::vector<PublishedCase> cases,
                          const std::function<void(const PublishedCase&, double share)>& progress) {
  Validation v;
  v.cases = std::move(cases);
  CasePredictor predictor;
  for (const PublishedCase& c : v.cases) {
    if (progress) {
      progress(c, static_cast<double>(v.predictions.size()) / static_cast<double>(v.cases.size()));
    }
    const bool takes_part = c.left_out.empty();
    v.predictions.push_back(takes_part ? predictor.predict(c) : CasePrediction{});
    const bool fitted = takes_part && predictor.fitted_to(c);
    v.left_out.push_back(fitted ? predictor.predict_left_out(c) : v.predictions.back());
  }
  for (const PublishedCase& c : v.cases) {
    v.as_plans.push_back(c.left_out.empty() ? predictor.predict_as_plan(c) : CasePrediction{});
  }
  v.report = make_report(v.cases, v.predictions, v.left_out, v.as_plans);
  return v;
}

}  // namespace longspan
