// Stages of a pipeline. Instead of the embedding and the loss they receive from and send to their
// neighbours residuals and their gradients, block by block. Between its forward and its backward on
// a stage a microbatch's tensors are put away while others run.
#include <algorithm>

#include "base/error.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::receive(Tensor what, int layer, std::vector<Parked>& blocks) {
  for (int i = 0; i < blocks_; ++i) {
    // The backward takes gradients from the last block on.
    const int block = what == Tensor::x ? i : blocks_ - 1 - i;
    const BufferId arrived = device(what, layer, block);
    builder_.communicate(shape(OpKind::receive, what), -1, block, {out(arrived)});
    blocks[block] = builder_.park(arrived, block_between_uses());
  }
}

void StepLowering::send(Tensor what, std::vector<Parked>& blocks) {
  for (int block = 0; block < blocks_; ++block) {
    const BufferId leaving = builder_.fetch(blocks[block]);
    builder_.communicate(shape(OpKind::send, what), -1, block, {in(leaving)});
    builder_.release_fetched(blocks[block], leaving);
    builder_.drop(blocks[block]);
  }
}

const StageLayers& StepLowering::stage_of(const Action& action) const {
  const auto stage = std::find_if(rank_.stages.begin(), rank_.stages.end(),
                                  [&](const StageLayers& s) { return s.stage == action.stage; });
  if (stage == rank_.stages.end()) {
    throw bad_input("{} in the schedule is of a stage that this rank does not have",
                    to_string(action));
  }
  return *stage;
}

void StepLowering::save_in_flight(const StageLayers& stage, int microbatch) {
  in_flight_.push_back(
      {stage.stage, microbatch, tokens_all_, std::move(gradient_), std::move(saved_)});
}

void StepLowering::restore_in_flight(const StageLayers& stage, int microbatch) {
  const auto it = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& other) {
    return other.stage == stage.stage && other.microbatch == microbatch;
  });
  if (it == in_flight_.end()) {
    throw bad_input("B of microbatch {} on stage {} comes before its F", microbatch, stage.stage);
  }
  tokens_all_ = it->tokens_all;
  gradient_ = std::move(it->gradient);
  saved_ = std::move(it->saved);
  in_flight_.erase(it);
}

}  // namespace longspan
