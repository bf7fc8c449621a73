#include "engine/runtime/dispatch.h"

#include <cassert>
#include <span>

#include "engine/runtime/labels.h"
#include "engine/runtime/layer_offsets.h"

namespace longspan {
namespace {

constexpr int64_t kUnitEnd = std::numeric_limits<int64_t>::max();

// The model with the heads of one attention call: one head group of this rank's share.
ModelSpec share_of(const ModelSpec& model, int64_t shares) {
  ModelSpec share = model;
  share.heads /= shares;
  share.kv_heads = kv_heads_per_rank(model, shares);
  return share;
}

// The elements of a layer that this rank counts.
std::vector<UnitRange> counted_in_layer(const Program& program, const ModelSpec& model) {
  if (program.place.tensor == 0) return {{0, kUnitEnd}};
  std::vector<UnitRange> layer;
  int64_t next = 0;
  for (const UnitRange& skipped : replicated_in_layer(model, program.lengths.tensor)) {
    if (next < skipped.begin) layer.push_back({next, skipped.begin});
    next = skipped.end;
  }
  layer.push_back({next, kUnitEnd});
  return layer;
}

// The offset in its unit of this rank's shard of `elements`; 0 if the unit is not sharded.
int64_t first_of_shard(const Program& p, UnitKind kind, int64_t elements) {
  const ParallelLayout& parallel = p.strategy.parallel;
  if (parallel.shards(kind) == 1) return 0;
  return replica_group(parallel, p.place, kind).index * elements;
}

// Whether the gradient norm, which is summed over all ranks, has this rank's gradients of a unit
// from another that has them, too. (Without experts on several ranks the sum is over a tensor group
// at most, unless all units are in shards.)
bool counts_elsewhere(const Program& p, UnitKind kind) {
  const ParallelLayout& parallel = p.strategy.parallel;
  return parallel.expert > 1 && parallel.shards(kind) == 1 &&
         replica_group(parallel, p.place, kind).index != 0;
}

}  // namespace

CopyRange copy_range(const Program& program, const Op& op) {
  assert(is_copy(op.kind));
  const BufferId from = op.operands[kCopySource], to = op.operands[kCopyDestination];
  const int64_t bytes = std::min(program.bytes_of(from), program.bytes_of(to));
  const auto offset = [&](BufferId larger) -> int64_t {
    if (program.bytes_of(larger) == bytes) return 0;
    if (is_state(program.buffers[larger].tensor)) return program.shard_offset_bytes(larger);
    return program.buffers[larger == from ? to : from].index * bytes;
  };
  return {offset(from), offset(to), bytes};
}

LayerShape::LayerShape(const ModelSpec& model, const Lengths& lengths)
    : model_(narrow_model(model, lengths.tensor)),
      share_(share_of(model_, lengths.head_shares())),
      kv_groups_(kv_groups(model_, lengths)),
      head_groups_(lengths.head_groups),
      ranks_(lengths.ulysses),
      expert_degree_(lengths.expert) {
  if (model_.attention_sinks) sinks_ = layer_offsets(model_).sinks;
}

HeadGroup LayerShape::group_of(int64_t group) const {
  const int64_t kv_group = group * kv_groups_ / head_groups_;
  return {{ranks_, group * share_.heads, share_.heads},
          {std::min(ranks_, model_.kv_heads), kv_group * share_.kv_heads, share_.kv_heads}};
}

StepShape::StepShape(const Program& program)
    : share_(program.vocabulary.share),
      units_(parameter_units(narrow_model(program.model, program.lengths.tensor))) {
  for (int kind = 0; kind < program.kinds(); ++kind) {
    ModelSpec alike = program.model_of(kind);
    alike.runs.clear();
    kinds_.emplace_back(alike, program.lengths_of(kind));
    counted_.push_back(counted_in_layer(program, alike));
  }
  if (program.place.tensor == 0) counted_at_ends_ = {{0, kUnitEnd}};
  if (program.lengths.expert == 1 || !program.model.experts) return;
  // A rank's units of experts have some of them.
  ModelSpec some = narrow_model(program.model, program.lengths.tensor);
  some.experts->count /= program.lengths.expert;
  const std::vector<ParameterUnit> units = parameter_units(some);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].kind == UnitKind::experts) units_[unit] = units[unit];
  }
}

std::vector<UnitRange> StepShape::counted(const Program& p, const Op& op) const {
  assert(op.kind == OpKind::sum_of_squares);
  const int64_t held = p.bytes_of(op.operands[operand_index(OpKind::sum_of_squares, "grads")]) / 4;
  const UnitKind kind = units_[op.index].kind;
  const int64_t begin = first_of_shard(p, kind, held);
  std::vector<UnitRange> ranges;
  if (counts_elsewhere(p, kind)) return ranges;
  // A tensor group replicates nothing of experts, and has no adapters.
  static const std::vector<UnitRange> all{{0, kUnitEnd}};
  for (const UnitRange& counted : kind == UnitKind::layer ? counted_[layer_kind(p, op)]
                                  : kind == UnitKind::experts || kind == UnitKind::adapters
                                      ? all
                                      : counted_at_ends_) {
    const int64_t first = std::max(counted.begin, begin) - begin;
    const int64_t last = std::min(counted.end, begin + held) - begin;
    if (first < last) ranges.push_back({first, last});
  }
  return ranges;
}

std::vector<StepShape::Update> StepShape::updates(const Program& p, const Op& op) const {
  assert(op.kind == OpKind::adamw);
  const int64_t shard = p.bytes_of(op.operands[operand_index(OpKind::adamw, "grads")]) / 4;
  const int64_t begin = first_of_shard(p, units_[op.index].kind, shard);
  std::vector<Update> updates;
  for (const ParameterTensor& tensor : units_[op.index].tensors) {
    const int64_t first = std::max(tensor.offset, begin) - begin;
    const int64_t last = std::min(tensor.offset + tensor.elements, begin + shard) - begin;
    if (first < last) updates.push_back({first, last - first, tensor.decays});
  }
  return updates;
}

void fill_tokens(const Program& p, const Op& op, int32_t* tokens, const StepContext& context) {
  const int64_t rows = p.lengths.own_block();
  const std::vector<TokenRun> runs = token_runs(p);
  for (int64_t own = 0; own < p.model.micro_batch; ++own) {
    const int64_t sequence = op.microbatch * p.model.micro_batch + own;
    std::span<const int32_t> begins;
    if (context.documents) begins = context.documents(sequence);
    for (const TokenRun& run : runs) {
      if (run.sequence != own) continue;
      int32_t* const inputs = tokens + run.row / rows * 2 * rows + run.row % rows;
      int32_t* const labels = inputs + rows;
      context.fill_tokens(sequence, run.first, run.count, inputs);
      context.fill_tokens(sequence, run.first + 1, run.count, labels);
      for (int64_t i = 0; i < run.count && !begins.empty(); ++i) {
        if (begins[run.first + i] != begins[run.first + i + 1]) labels[i] = kNoLabel;
      }
    }
  }
}

void report_log_probs(const Program& p, const Op& op, const float* values,
                      const StepContext& context) {
  if (!context.take_log_probs) return;
  for (const TokenRun& run : token_runs(p)) {
    context.take_log_probs(op.microbatch * p.model.micro_batch + run.sequence, run.first, run.count,
                           values + run.row);
  }
}

BalanceTerms balance_terms(const Program& p, const Experts& experts) {
  const ParallelLayout& parallel = p.strategy.parallel;
  const auto microbatches = static_cast<double>(p.microbatches * parallel.data);
  const auto ranks = static_cast<double>(sequence_group(parallel, p.place).size);
  return {experts.count, experts.active, experts.auxiliary_loss / microbatches, 1 / ranks};
}

void fill_documents(const Program& p, const Op& op, int32_t* begins, const StepContext& context) {
  const int64_t chunk = p.lengths.chunk, count = p.model.of_sequence(chunk);
  for (int64_t own = 0; own < p.model.micro_batch; ++own) {
    const std::span<const int32_t> all =
        context.documents(op.microbatch * p.model.micro_batch + own);
    for (int64_t i = 0; i < p.lengths.chunks(); ++i) {
      const int64_t first = global_chunk(p.strategy.parallel, p.place.ring, i) * count;
      std::copy_n(all.begin() + first, count, begins + i * chunk + own * count);
    }
  }
}

}  // namespace longspan
