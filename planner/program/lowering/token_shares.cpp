// Runs of layers that work on a share of the tokens.
//
// Before such a run its rows are taken from each block, which waits; after it they are put back, so
// that the other rows have bypassed the run. The gradient goes the same way back: after the run's
// backward its rows replace those that were taken. Both happen within a block on its rank, so no
// other rank takes part.
#include <algorithm>
#include <utility>

#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::find_shares() {
  shares_of_layers_.assign(static_cast<size_t>(layers_), {1});
  if (!selects_tokens()) return;
  for (const StageLayers& stage : rank_.stages) {
    TokenShares shares = stage.enters;
    for (int layer = stage.first; layer < stage.end; ++layer) {
      shares = shares_in(shares, program_.share_of(program_.kind_of_layer(layer)));
      shares_of_layers_[layer] = shares;
    }
  }
}

std::vector<Parked>& StepLowering::level_of(Tensor what, size_t level) {
  if (level < waiting_.size()) return waiting_[level];
  return what == Tensor::x ? residual_ : gradient_;
}

void StepLowering::change_shares(const TokenShares& to, Tensor what, int layer) {
  if (!selects_tokens()) return;
  const auto stay = std::mismatch(shares_.begin(), shares_.end(), to.begin(), to.end()).first;
  const auto kept = static_cast<size_t>(stay - shares_.begin());
  while (shares_.size() > kept) restore_tokens(what, layer);
  for (size_t level = kept; level < to.size(); ++level) select_tokens(what, layer, to[level]);
}

void StepLowering::select_tokens(Tensor what, int layer, double share) {
  std::vector<Parked>& current = level_of(what, waiting_.size());
  const int kind = program_.kind_of_share(share);
  OpShape op = shape(OpKind::select_rows);
  op.layer_kind = kind;
  std::vector<Parked> waits(blocks_);  // only of this slice; those of others stay
  for (int i = first_block(); i < end_block(); ++i) {
    const int block = what == Tensor::x ? i : first_block() + end_block() - 1 - i;
    const BufferId all = builder_.fetch(current[block]);
    const BufferId rows = builder_.create(what, Tier::device, layer, block, false, 1, kind);
    builder_.compute(op, layer, block, {in(all), out(rows)});
    builder_.release_fetched(current[block], all);
    waits[block] = std::exchange(current[block], builder_.park(rows, block_between_uses()));
  }
  waiting_.push_back(std::move(waits));
  shares_.push_back(share);
}

void StepLowering::restore_tokens(Tensor what, int layer) {
  std::vector<Parked>& current = level_of(what, waiting_.size());
  OpShape op = shape(OpKind::restore_rows);
  op.layer_kind = program_.kind_of_share(shares_.back());
  for (int i = first_block(); i < end_block(); ++i) {
    const int block = what == Tensor::x ? i : first_block() + end_block() - 1 - i;
    const Parked& waited = waiting_.back()[block];
    const BufferId rows = builder_.fetch(current[block]), all = builder_.fetch(waited);
    builder_.compute(op, layer, block, {in(rows), inout(all)});
    builder_.release_fetched(current[block], rows);
    builder_.drop(current[block]);
    if (waited.host >= 0) builder_.release(waited.host);  // replaced
    current[block] = builder_.park(all, block_between_uses());
  }
  waiting_.pop_back();
  shares_.pop_back();
}

}  // namespace longspan
