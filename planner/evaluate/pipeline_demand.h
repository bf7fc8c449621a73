// Bounds on the time and memory of pipelines, and of models whose layers differ. Internal to
// planner/evaluate.
//
// The bounds of a rank's layers (bounds.h) are those of a model with one kind of layer. To them are
// added what precedes and follows the work of a rank, and the microbatches in flight. With layers
// of several kinds, microbatches in flight are counted in layers, although kinds keep different
// amounts, so bytes may be up to 2 % too high. Tests compare with exact evaluations. Not
// thread-safe; the evaluator owns it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "planner/evaluate/bounds.h"
#include "planner/evaluate/candidate.h"
#include "planner/evaluate/demand.h"
#include "planner/evaluate/pipeline_order.h"
#include "planner/pipeline/slices.h"

namespace longspan {

class PipelineDemand {
 public:
  /// Both must outlive this object.
  PipelineDemand(const ModelSpec& model, const CostModel& cost, DType dtype,
                 int64_t compute_capability);

  /// REQUIRES: the schedule takes the candidate's numbers.
  Demand of(const Candidate& c, DemandOf rows);
  PipelineOrders& orders() { return orders_; }

 private:
  /// Seconds of a slice on all layers of a rank.
  struct SlicePass {
    double forward, backward;
  };
  /// EarlierWork of all slices of a sequence together.
  struct EarlierSum {
    StreamSeconds forward{}, backward{};
  };
  /// A request that is modified in place, and the numbers for which its model was made.
  struct KindSlice {
    StepRequest request;
    int64_t layers = 0, sequence = 0;
  };

  Bounds& bounds_of(size_t kind, int64_t layers, int64_t sequence, int64_t microbatches);
  const StepRequest& slice_of(const Candidate& c, size_t kind, int64_t layers, int64_t tokens = 0);
  const EarlierSum& attention_of(const StepRequest& slice, int64_t slices);
  Demand of_kind(const StepRequest& slice, size_t kind, double layers, int64_t microbatches,
                 bool ends);
  SlicePass first_slice(const Candidate& c, const SlicePass& alone, double forward,
                        double backward);
  void add_bytes(const Candidate& c, const PipelineOrder& order, Demand& sum);

  const ModelSpec& model_;
  const CostModel& cost_;
  DType dtype_;
  int64_t compute_capability_;
  std::vector<LayerRun> kinds_;
  PipelineOrders orders_;
  std::vector<KindSlice> slices_;  // by kind
  // By kind, layers, length and microbatches.
  std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, std::unique_ptr<Bounds>> bounds_;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool, Tier>, EarlierSum>
      attention_;
};

}  // namespace longspan
