#include "planner/program/saved_bytes.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "planner/program/layout.h"

namespace longspan {
namespace {

int tier_of(Saved where) { return where == Saved::host ? 1 : where == Saved::nvme ? 2 : 0; }

int64_t covered(const SavedPolicy& policy, const ModelSpec& model, int64_t layers) {
  const double share = std::ceil(policy.fraction * static_cast<double>(model.layers));
  return std::min(layers, static_cast<int64_t>(share));
}

// Calls add(policy, tensor, units of a layer) for all that is saved but keys and values.
template <class Add>
void for_each_saved(const Strategy& s, const Lengths& lengths, int64_t slices, const Add& add) {
  const int64_t all = s.parallel.pipeline.slices;
  // A slice that passes again has more than keys and values only before its backward.
  const int64_t whole = passes_again(s) ? 1 : slices;
  const int64_t blocks = lengths.blocks() / all * whole;
  const int64_t chunks = lengths.chunks() / all * whole;
  add(input_policy(s), Tensor::x, blocks);
  add(s.attention_out, Tensor::o, blocks);
  add(s.attention_out, Tensor::lse, blocks);
  add(s.mlp_input, Tensor::y, blocks);
  add(s.mlp_inner, Tensor::inner, blocks);
  add(s.qkv, Tensor::q, chunks * lengths.head_groups);
}

}  // namespace

std::array<int64_t, kTierCount> saved_bytes(const ModelSpec& model, const Strategy& s,
                                            const Lengths& lengths, const TensorBytes& bytes,
                                            int64_t kv_units, int64_t layers, int64_t slices) {
  std::array<int64_t, kTierCount> sum{};
  if (model.backward == LayerBackward::none) return sum;
  const auto unit = [&](Tensor t) { return round_up(bytes[t], kArenaAlignment); };
  const auto add = [&](const SavedPolicy& policy, Tensor tensor, int64_t units) {
    const int64_t away = covered(policy, model, layers), of_layer = units * unit(tensor);
    sum[0] += (layers - away) * of_layer;
    if (policy.where != Saved::recompute) sum[tier_of(policy.where)] += away * of_layer;
  };
  for_each_saved(s, lengths, slices, add);
  const int64_t all = s.parallel.pipeline.slices;
  const int64_t chunks = lengths.chunks() / all * (passes_again(s) ? 1 : slices);
  if (all > 1) {
    // Resident ones are a buffer for each slice.
    const int64_t chunks_of_slice = lengths.chunks() / all;
    const auto of_slice = [&](Tensor t) {
      return streams_keys(s, lengths) ? chunks_of_slice * unit(t)
                                      : round_up(chunks_of_slice * bytes[t], kArenaAlignment);
    };
    sum[static_cast<int>(s.kv)] += layers * slices * (of_slice(Tensor::k) + of_slice(Tensor::v));
  } else if (!streams_keys(s, lengths)) {
    add(s.qkv, Tensor::k_all, kv_units);
    add(s.qkv, Tensor::v_all, kv_units);
  } else {
    // Streamed keys and values stay where they are.
    const bool again = s.qkv.where == Saved::recompute;
    const int64_t kept = again ? layers - covered(s.qkv, model, layers) : layers;
    sum[static_cast<int>(s.kv)] += kept * chunks * (unit(Tensor::k) + unit(Tensor::v));
  }
  return sum;
}

std::array<int64_t, kTierCount> saved_bytes(const StepRequest& request) {
  const Lengths lengths = lengths_of(request.strategy, request.sequence);
  const TensorBytes bytes = tensor_bytes(request.model, lengths, request.strategy, request.dtype,
                                         request.compute_capability);
  return saved_bytes(request.model, request.strategy, lengths, bytes,
                     kv_groups(request.model, lengths), request.model.layers,
                     request.strategy.parallel.pipeline.slices);
}

std::vector<SavedUnits> movable_units(const StepRequest& request, bool sliced) {
  const Strategy& s = request.strategy;
  const ModelSpec& model = request.model;
  const Lengths lengths = lengths_of(s, request.sequence);
  const TensorBytes bytes =
      tensor_bytes(model, lengths, s, request.dtype, request.compute_capability);
  std::vector<SavedUnits> all;
  const auto add = [&](const SavedPolicy& policy, Tensor tensor, int64_t units) {
    const int64_t stay = policy.where == Saved::keep
                             ? model.layers
                             : model.layers - covered(policy, model, model.layers);
    if (stay * units * bytes[tensor] == 0) return;
    all.push_back({tensor, stay * units, stay * units * round_up(bytes[tensor], kArenaAlignment)});
  };
  for_each_saved(s, lengths, 1, add);
  if (sliced) return all;
  if (!streams_keys(s, lengths)) {
    add(s.qkv, Tensor::k_all, kv_groups(model, lengths));
    add(s.qkv, Tensor::v_all, kv_groups(model, lengths));
  } else if (s.kv == Tier::device) {
    add(s.qkv, Tensor::k, lengths.chunks());
    add(s.qkv, Tensor::v, lengths.chunks());
  }
  return all;
}

int64_t bytes_for_weights(const ModelSpec& model, const Lengths& lengths,
                          const TensorBytes& bytes) {
  const auto unit = [&](Tensor t) { return round_up(bytes[t], kArenaAlignment); };
  const int64_t h = unit(lengths.tensor > 1 ? Tensor::h_own : Tensor::h);
  // Experts on several ranks have their gradients already.
  const bool has_mlp = !model.experts || lengths.expert == 1;
  int64_t of_block = has_mlp ? h + unit(Tensor::dx) + unit(Tensor::inner) + unit(Tensor::act) : 0;
  if (!model.attention) return lengths.blocks() * of_block;
  of_block += h + unit(Tensor::dx) + unit(Tensor::o);
  return lengths.blocks() * of_block + lengths.chunks() * unit(Tensor::dqkv);
}

int64_t loss_bytes(const ModelSpec& model, const Strategy& s, const TensorBytes& bytes,
                   int64_t workspace) {
  const bool gathers = s.parallel.shards() > 1 && s.parallel.zero == 3;
  const auto of_output = [&](Tensor embedding, Tensor head) {
    const int64_t own = round_up(bytes[head], kArenaAlignment);
    return model.tied_embeddings ? own + round_up(bytes[embedding], kArenaAlignment) : own;
  };
  int64_t sum = workspace;
  if (!s.forward_only) sum += of_output(Tensor::grads_embedding, Tensor::grads_head);
  if (s.parameters != Tier::device || gathers) {
    sum += of_output(Tensor::params_embedding, Tensor::params_head);
  }
  return sum;
}

}  // namespace longspan
