// Schedules of pipelines without costs of a machine, for bounds and expectations. Internal to
// planner/evaluate.
//
// A schedule is simulated with the times of its model's products, once for many similar candidates.
// Not thread-safe; the evaluator owns it.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "planner/evaluate/candidate.h"
#include "planner/evaluate/held_at_moments.h"
#include "planner/pipeline/stage_programs.h"
#include "planner/schedule/costs.h"

namespace longspan {

struct PipelineOrder {
  bool possible = true;        ///< the schedule takes these numbers
  bool splits = false;         ///< gradients of weights are separate actions
  bool offloads = false;       ///< lists copy what forwards save to the host
  bool frees = false;          ///< or they repeat forwards that save nothing
  bool laid_out = false;       ///< memory is that of a layout of whole sequences, not a sum
  bool sliced_layout = false;  ///< memory is that of a layout of slices
  double cost = 0;             ///< of a step, in microbatches of a rank
  double held = 0;             ///< microbatches in flight on the rank that holds most
  HeldAtMoments at_moments;
  /// The fewest layers of each kind on the ranks of the first and the last stage, or on all ranks
  /// if all have a part of the vocabulary.
  LayersByKind layers;
  LayersByKind most_layers;  ///< of each kind on any rank
};

class PipelineOrders {
 public:
  /// `model` must outlive this object.
  PipelineOrders(const ModelSpec& model, DType dtype);

  /// Valid until this object ends, as are others.
  const PipelineOrder& of(const Candidate& c);
  /// The slices' parts of a microbatch; empty for whole sequences.
  const std::vector<SliceShare>& shares(const Candidate& c);
  /// The part of the products of a forward that attention does not take.
  double dense_share(int64_t sequence) const;

 private:
  PipelineOrder made(const Candidate& c, int64_t dense);

  const ModelSpec& model_;
  DType dtype_;
  size_t kinds_;
  std::map<std::tuple<int64_t, std::string_view, int64_t, int64_t, int64_t, int64_t, int64_t,
                      int64_t, int64_t, int64_t, int64_t>,
           PipelineOrder>
      orders_;
  std::map<std::tuple<int64_t, int64_t, int32_t, int64_t>, std::vector<SliceShare>> shares_;
};

}  // namespace longspan
