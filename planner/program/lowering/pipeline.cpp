// Stages of a pipeline. Instead of the embedding and the loss they take residuals and their
// gradients from their neighbours and pass others on, block by block. Between its forward and its
// backward on a stage a microbatch's tensors are put away while others run.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::begin(const Action& action) {
  if (of_vocabulary(action.kind) && !cuts_vocabulary()) {
    throw bad_input("{} in the schedule needs a vocabulary that is cut", to_string(action));
  }
  stage_ = of_vocabulary(action.kind) ? nullptr : &stage_of(action);
  microbatch_ = action.microbatch;
  slice_ = action.slice;
  defers_weights_ = action.kind == ActionKind::backward_input;
  builder_.set_microbatch(microbatch_);
  const size_t first = shared_end_;
  const auto& all = rank_.shared;
  while (shared_end_ < all.size() && all[shared_end_].own == action) ++shared_end_;
  shared_ = std::span(all).subspan(first, shared_end_ - first);
}

std::vector<InTransit>::iterator StepLowering::find(std::vector<InTransit>& all, Tensor what,
                                                    const char* fault) {
  const auto it = std::find_if(all.begin(), all.end(), [&](const InTransit& t) {
    return t.stage == stage_->stage && t.what == what && t.microbatch == microbatch_ &&
           t.slice == slice_;
  });
  if (it != all.end()) return it;
  throw bad_input("stage {}: the {} of microbatch {} {}", stage_->stage,
                  what == Tensor::x ? "residual" : "gradient", microbatch_, fault);
}

// A residual goes to the stage after, its gradient to the one before.
void StepLowering::message(OpKind kind, Tensor what, int block, size_t level, Operand rows) {
  const bool forward = what == Tensor::x, arrives = kind == OpKind::receive;
  Op& op = builder_.message(shape(kind, what), block, rows);
  op.from_stage = stage_->stage;
  op.level = static_cast<uint8_t>(level);
  if (arrives) op.from_stage += forward ? -1 : 1;
  op.peer = forward == arrives ? stage_->before : stage_->after;
}

// The backward takes gradients from the last block on.
void StepLowering::receive(Tensor what) {
  const bool forward = what == Tensor::x;
  const TokenShares& shares = shares_at(forward);
  InTransit arrives{stage_->stage, microbatch_, slice_, what, {}};
  arrives.blocks.assign(shares.size(), std::vector<Parked>(blocks_));
  for (int i = first_block(); i < end_block(); ++i) {
    const int block = forward ? i : first_block() + end_block() - 1 - i;
    for (size_t level = 0; level < shares.size(); ++level) {
      const BufferId rows =
          builder_.create(what, Tier::device, forward ? stage_->first : stage_->end - 1, block,
                          false, 1, program_.kind_of_share(shares[level]));
      message(OpKind::receive, what, block, level, out(rows));
      arrives.blocks[level][block] = builder_.park(rows, block_between_uses());
    }
  }
  arrived_.push_back(std::move(arrives));
}

void StepLowering::send(Tensor what) {
  InTransit& leaves = *find(leaving_, what, "is sent before it is there");
  leaves.rows.assign(leaves.blocks.size(), std::vector<BufferId>(blocks_, -1));
  for (int i = first_block(); i < end_block(); ++i) {
    const int block = what == Tensor::x ? i : first_block() + end_block() - 1 - i;
    for (size_t level = 0; level < leaves.blocks.size(); ++level) {
      const BufferId rows = builder_.fetch(leaves.blocks[level][block]);
      leaves.rows[level][block] = rows;
      message(OpKind::send, what, block, level, in(rows));
    }
  }
}

void StepLowering::await_sent(Tensor what) {
  const auto left = find(leaving_, what, "is awaited before it is sent");
  for (int block = first_block(); block < end_block(); ++block) {
    for (size_t level = 0; level < left->blocks.size(); ++level) {
      const Parked& parked = left->blocks[level][block];
      message(OpKind::sent, what, block, level, in(left->rows[level][block]));
      builder_.release_fetched(parked, left->rows[level][block]);
      builder_.drop(parked);
    }
  }
  leaving_.erase(left);
}

// Levels also have blocks of other slices.
void StepLowering::take(Tensor what) {
  const auto arrived = find(arrived_, what, "has not been received");
  waiting_.assign(arrived->blocks.size() - 1, std::vector<Parked>(blocks_));
  for (size_t level = 0; level < arrived->blocks.size(); ++level) {
    std::vector<Parked>& blocks = level_of(what, level);
    for (int block = first_block(); block < end_block(); ++block) {
      blocks[block] = arrived->blocks[level][block];
    }
  }
  arrived_.erase(arrived);
}

void StepLowering::pass(Tensor what) {
  const int32_t to = what == Tensor::x ? stage_->after : stage_->before;
  const bool stays = to == program_.place.mesh;
  const int32_t next = stage_->stage + (what == Tensor::x ? 1 : -1);
  InTransit passed{stays ? next : stage_->stage, microbatch_, slice_, what, {}};
  passed.blocks.assign(shares_.size(), std::vector<Parked>(blocks_));
  for (size_t level = 0; level < shares_.size(); ++level) {
    std::vector<Parked>& blocks = level_of(what, level);
    for (int block = first_block(); block < end_block(); ++block) {
      passed.blocks[level][block] = std::exchange(blocks[block], {});
    }
  }
  waiting_.clear();
  (stays ? arrived_ : leaving_).push_back(std::move(passed));
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

void StepLowering::save_in_flight() {
  in_flight_.push_back({stage_->stage, microbatch_, tokens_all_, log_probs_all_, expert_load_,
                        std::move(gradient_), std::move(saved_), std::move(for_weights_)});
}

void StepLowering::restore_in_flight() {
  const auto it = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& other) {
    return other.stage == stage_->stage && other.microbatch == microbatch_;
  });
  if (it == in_flight_.end()) {
    throw bad_input("stage {}: microbatch {} has not begun", stage_->stage, microbatch_);
  }
  tokens_all_ = it->tokens_all;
  log_probs_all_ = it->log_probs_all;
  expert_load_ = it->expert_load;
  gradient_ = std::move(it->gradient);
  saved_ = std::move(it->saved);
  for_weights_ = std::move(it->for_weights);
  in_flight_.erase(it);
}

}  // namespace longspan
