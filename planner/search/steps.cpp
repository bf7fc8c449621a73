#include "planner/search/steps.h"

#include <array>
#include <cmath>

#include "planner/strategy/validity.h"

namespace longspan {
namespace {

template <class Member, class Values>
void set_each(const Candidate& c, Member member, const Values& values, std::vector<Strategy>& all) {
  for (const auto value : values) all.emplace_back(c.strategy).*member = value;
}

int64_t rows_of_rank(const Candidate& c) {
  const ParallelLayout& p = c.strategy.parallel;
  return c.strategy.block_tokens / (p.ulysses * p.tensor);
}

// Tiles to try: all rows, a usual size, and 1/4, 1/2, 2 and 4 times the current one.
std::vector<int64_t> tiles_about(int64_t own, int64_t rows) {
  constexpr int64_t kLeast = 64, kUsual = 1024;
  std::vector<int64_t> tiles = {0, kUsual};
  const int64_t from = own > 0 ? own : rows;
  for (const int64_t tile : {from / 4, from / 2, from * 2, from * 4}) {
    if (tile >= kLeast && tile < rows) tiles.push_back(tile);
  }
  return tiles;
}

}  // namespace

// In the order in which a descent sets them: what matters most comes first, as the effort may end
// before the last.
const std::vector<Steps::Knob>& Steps::all_knobs() {
  static const std::vector<Knob> all = {&Steps::saved<&Strategy::layer_input>,
                                        &Steps::saved<&Strategy::qkv>,
                                        &Steps::saved<&Strategy::attention_out>,
                                        &Steps::saved<&Strategy::mlp_input>,
                                        &Steps::saved<&Strategy::mlp_inner>,
                                        &Steps::states,
                                        &Steps::offload_window,
                                        &Steps::prefetch_depth,
                                        &Steps::projection_tile,
                                        &Steps::mlp_tile,
                                        &Steps::loss_tile,
                                        &Steps::block,
                                        &Steps::kv,
                                        &Steps::between_uses,
                                        &Steps::backward_order,
                                        &Steps::overlap};
  return all;
}

int Steps::knobs() { return static_cast<int>(all_knobs().size()); }

std::vector<Candidate> Steps::of(int knob, const Candidate& c) const {
  Strategies all;
  (this->*all_knobs()[static_cast<size_t>(knob)])(c, all);
  std::vector<Candidate> steps;
  for (Strategy& s : all) {
    if (s == c.strategy || !is_valid(s, model_, c.sequence)) continue;
    steps.push_back(c);
    steps.back().strategy = std::move(s);
  }
  return steps;
}

// Another policy for the same layers; or the same policy for more or fewer layers.
template <SavedPolicy Strategy::*policy>
void Steps::saved(const Candidate& c, Strategies& all) const {
  const SavedPolicy own = c.strategy.*policy;
  for (const Saved where : {Saved::keep, Saved::recompute, Saved::host, Saved::nvme}) {
    if ((where == Saved::nvme && !nvme_) || where == own.where) continue;
    all.emplace_back(c.strategy).*policy = {where, where == Saved::keep ? 1.0 : own.fraction};
  }
  if (own.where == Saved::keep) return;
  const int64_t layers = model_.layers / c.strategy.parallel.pipeline.stages;
  const auto covered =
      static_cast<int64_t>(std::llround(own.fraction * static_cast<double>(layers)));
  for (const int64_t change : {int64_t{1}, layers / 8, layers / 4}) {
    for (const int64_t other : {covered - change, covered + change}) {
      if (change == 0 || other <= 0 || other > layers) continue;
      (all.emplace_back(c.strategy).*policy).fraction =
          static_cast<double>(other) / static_cast<double>(layers);
    }
  }
}

void Steps::projection_tile(const Candidate& c, Strategies& all) const {
  const Strategy& s = c.strategy;
  set_each(c, &Strategy::projection_tile,
           tiles_about(s.projection_tile, s.chunk_tokens / s.parallel.ulysses), all);
}

void Steps::mlp_tile(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::mlp_tile, tiles_about(c.strategy.mlp_tile, rows_of_rank(c)), all);
}

void Steps::loss_tile(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::loss_tile, tiles_about(c.strategy.loss_tile, rows_of_rank(c)), all);
}

void Steps::prefetch_depth(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::prefetch_depth, std::array<int64_t, 6>{0, 1, 2, 3, 4, 8}, all);
}

void Steps::offload_window(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::offload_window, std::array<int64_t, 4>{0, 1, 2, 4}, all);
}

void Steps::block(const Candidate& c, Strategies& all) const {
  const ParallelLayout& p = c.strategy.parallel;
  if (p.tensor > 1 || p.pipeline.slices > 1) return;
  const int64_t share = c.sequence / p.ring;
  std::vector<int64_t> blocks = {share};
  for (int64_t block = c.strategy.chunk_tokens; block < share; block *= 2) blocks.push_back(block);
  set_each(c, &Strategy::block_tokens, blocks, all);
}

void Steps::kv(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::kv, std::array{Tier::device, Tier::host}, all);
  if (nvme_ && c.strategy.parallel.pipeline.slices > 1) {
    all.emplace_back(c.strategy).kv = Tier::nvme;
  }
}

void Steps::between_uses(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::between_uses, std::array{Tier::device, Tier::host}, all);
}

void Steps::backward_order(const Candidate& c, Strategies& all) const {
  set_each(c, &Strategy::backward_order,
           std::array{BackwardOrder::q_outer, BackwardOrder::kv_outer}, all);
}

// Exchanges that compute waits for take less memory.
void Steps::overlap(const Candidate& c, Strategies& all) const {
  ParallelLayout waiting = c.strategy.parallel;
  if (options_.parallel.overlap || waiting.stage_ranks() == 1) return;
  waiting.overlap = !waiting.overlap;
  all.emplace_back(c.strategy).parallel = waiting;
}

// Another placement, or optimizer states of more or fewer layers on the device.
void Steps::states(const Candidate& c, Strategies& all) const {
  const GroupValues values = values_of(c, options_, nvme_);
  all = values[static_cast<size_t>(KnobGroup::states)];
  const Strategy& s = c.strategy;
  if (options_.optimizer || s.optimizer == Tier::device) return;
  const int64_t layers = model_.layers, away = layers - updated_on_device(s, layers);
  for (const int64_t change : {int64_t{1}, layers / 8, layers / 4}) {
    for (const int64_t other : {away - change, away + change}) {
      if (change == 0 || other <= 0 || other > layers) continue;
      all.emplace_back(s).optimizer_fraction =
          static_cast<double>(other) / static_cast<double>(layers);
    }
  }
}

}  // namespace longspan
