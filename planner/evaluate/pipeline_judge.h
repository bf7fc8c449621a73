// How good a pipeline is: by a guess from bounds, by the fast path, and the exact way.
//
// What judge.h is to strategies without a pipeline this is to those with one. A guess takes the
// time of a stage from the bounds of a model of its layers, the bubble and what is in flight from
// the schedule with equal stages, which is simulated once for each of its numbers. A model whose
// layers differ has no single program even on one stage, so it is judged here, too.
// Internal to planner/search. One per question; not thread-safe.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/evaluate/judge.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/pipeline/slices.h"
#include "planner/schedule/costs.h"

namespace longspan {

class PipelineJudge {
 public:
  /// `hw` must outlive this object.
  PipelineJudge(const ModelSpec& model, const HardwareProfile& hw, int64_t micro_batches);
  PipelineJudge(const PipelineJudge&) = delete;
  PipelineJudge& operator=(const PipelineJudge&) = delete;
  ~PipelineJudge();

  /// Score::overflow of what there is not: knobs that do not go together, a schedule that does not
  /// take these numbers. What validate() checks of lengths is the caller's.
  static constexpr double kImpossible = 1e9;

  /// Ranks what has not been simulated. It fits with `room` times as much memory.
  Score guess(const Strategy& strategy, int64_t sequence, double room = 1);
  Score score(const Strategy& strategy, int64_t sequence);
  /// Where that does not fit, the loss in packing is remembered, as Judge::exact() does, and times
  /// may be left out.
  Score exact(const Strategy& strategy, int64_t sequence);

  /// What exact() says of memory, sooner; nothing is remembered. More than there is where the
  /// schedule does not take the stages.
  TierBytes exact_bytes(const Strategy& strategy, int64_t sequence) const;

  /// Without its prediction.
  Plan plan(const Strategy& strategy, int64_t sequence) const;
  const TierBytes& limits() const { return budget_.limits(); }
  const Budget& budget() const { return budget_; }
  /// Of layers, a program each to evaluate.
  size_t kinds() const { return kinds_.size(); }
  int64_t considered() const { return considered_; }
  int64_t evaluations() const { return evaluations_; }

 private:
  /// A schedule of stages that are alike, in microbatches of a rank.
  struct Order {
    bool possible = true;  // it takes these numbers
    bool splits = false;   // gradients of weights come later
    double cost = 0, held = 0;
  };
  struct StageBounds;
  /// From bounds: what each slice takes, that the loss takes of it, and a step besides.
  struct Guessed {
    double each = 0, loss = 0, rest = 0;
    std::array<double, kTierCount> bytes{};
    void add(const Guessed& other, double times) {
      each += times * other.each;
      loss += times * other.loss;
      rest += times * other.rest;
      for (int tier = 0; tier < kTierCount; ++tier) bytes[tier] += times * other.bytes[tier];
    }
  };
  /// A request that is changed in place, with the numbers that its model was made for.
  struct KindSlice {
    StepRequest request;
    int64_t layers = 0, sequence = 0;
  };

  Score exactly(const Strategy& strategy, int64_t sequence);
  /// By the fast path, memory by arithmetic.
  Evaluation summed(const StepRequest& request);
  /// Of layers of a stage, by the fast path, not again for another schedule. Until the next call.
  const Evaluation& of_stage(const StepRequest& request);
  StepRequest request_of(const Strategy& strategy, int64_t sequence) const;
  /// As slice_request(), in place: guesses are many, and a model is large. Until the next call.
  const StepRequest& slice_of(const Strategy& strategy, size_t kind, int64_t layers,
                              int64_t sequence);
  Guessed guessed(StageBounds& bounds, const Strategy& strategy);
  /// Of a forward, the part that is no attention, in parts: one order is for lengths that are
  /// alike.
  static constexpr int64_t kDenseParts = 16;
  int64_t dense_parts(int64_t sequence) const;
  static StageTimes times_of(int64_t dense_parts);
  const Order& order_of(const Pipeline& pipeline, int64_t sequence);
  StageBounds& bounds_of(size_t kind, int64_t layers, int64_t sequence, int64_t slices);
  /// Seconds a layer attends to earlier slices, forward and backward.
  const std::array<double, 2>& attention_of(const StepRequest& slice, int64_t slices);

  const HardwareProfile& hw_;
  ModelSpec model_;
  std::vector<LayerRun> kinds_;
  std::vector<KindSlice> slices_;  // by kind
  int64_t micro_batches_;
  DType dtype_;
  CostModel cost_;
  FastPath fast_;
  Budget budget_;
  int64_t considered_ = 0, evaluations_ = 0;
  std::map<std::tuple<int64_t, std::string_view, int64_t, int64_t, bool, int64_t, int64_t, int64_t>,
           Order>
      orders_;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool>, std::array<double, 2>> attention_;
  std::vector<std::unique_ptr<StageBounds>> bounds_;
  std::deque<std::pair<StepRequest, Evaluation>> stages_;  // known last
};

}  // namespace longspan
