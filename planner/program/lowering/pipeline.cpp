// Stages of a pipeline. Instead of the embedding and the loss they take residuals and their
// gradients from their neighbours and pass others on, block by block. Between its forward and its
// backward on a stage a microbatch's tensors are put away while others run.
#include <algorithm>

#include "base/error.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {

namespace {

std::vector<InTransit>::iterator find(std::vector<InTransit>& all, int32_t stage, Tensor what,
                                      int microbatch, const char* fault) {
  const auto it = std::find_if(all.begin(), all.end(), [&](const InTransit& t) {
    return t.stage == stage && t.what == what && t.microbatch == microbatch;
  });
  if (it != all.end()) return it;
  throw bad_input("stage {}: the {} of microbatch {} {}", stage,
                  what == Tensor::x ? "residual" : "gradient", microbatch, fault);
}

}  // namespace

// A residual goes to the stage after, its gradient to the one before.
void StepLowering::message(OpKind kind, const StageLayers& stage, Tensor what, int block,
                           Operand rows) {
  const bool forward = what == Tensor::x, arrives = kind == OpKind::receive;
  Op& op = builder_.message(shape(kind, what), block, rows);
  op.from_stage = stage.stage;
  if (arrives) op.from_stage += forward ? -1 : 1;
  op.peer = forward == arrives ? stage.before : stage.after;
}

void StepLowering::receive(const StageLayers& stage, Tensor what, int microbatch) {
  builder_.set_microbatch(microbatch);
  InTransit arrives{stage.stage, microbatch, what, std::vector<Parked>(blocks_)};
  for (int i = 0; i < blocks_; ++i) {
    // The backward takes gradients from the last block on.
    const int block = what == Tensor::x ? i : blocks_ - 1 - i;
    const BufferId rows = device(what, what == Tensor::x ? stage.first : stage.end - 1, block);
    message(OpKind::receive, stage, what, block, out(rows));
    arrives.blocks[block] = builder_.park(rows, block_between_uses());
  }
  arrived_.push_back(std::move(arrives));
}

void StepLowering::send(const StageLayers& stage, Tensor what, int microbatch) {
  InTransit& leaves = *find(leaving_, stage.stage, what, microbatch, "is sent before it is there");
  builder_.set_microbatch(microbatch);
  for (int i = 0; i < blocks_; ++i) {
    const int block = what == Tensor::x ? i : blocks_ - 1 - i;
    leaves.rows.resize(blocks_, -1);
    leaves.rows[block] = builder_.fetch(leaves.blocks[block]);
    message(OpKind::send, stage, what, block, in(leaves.rows[block]));
  }
}

void StepLowering::await_sent(const StageLayers& stage, Tensor what, int microbatch) {
  const auto left = find(leaving_, stage.stage, what, microbatch, "is awaited before it is sent");
  builder_.set_microbatch(microbatch);
  for (int block = 0; block < blocks_; ++block) {
    message(OpKind::sent, stage, what, block, in(left->rows[block]));
    builder_.release_fetched(left->blocks[block], left->rows[block]);
    builder_.drop(left->blocks[block]);
  }
  leaving_.erase(left);
}

std::vector<Parked> StepLowering::take(const StageLayers& stage, Tensor what, int microbatch) {
  const auto arrived = find(arrived_, stage.stage, what, microbatch, "has not been received");
  std::vector<Parked> blocks = std::move(arrived->blocks);
  arrived_.erase(arrived);
  return blocks;
}

void StepLowering::pass(const StageLayers& stage, Tensor what, int microbatch,
                        std::vector<Parked>& blocks) {
  const int32_t to = what == Tensor::x ? stage.after : stage.before;
  const bool stays = to == program_.place.mesh;
  const int32_t next = stage.stage + (what == Tensor::x ? 1 : -1);
  (stays ? arrived_ : leaving_)
      .push_back({stays ? next : stage.stage, microbatch, what, std::move(blocks)});
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
