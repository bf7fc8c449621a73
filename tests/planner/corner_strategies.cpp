#include "tests/planner/corner_strategies.h"

#include <algorithm>
#include <utility>

#include "planner/strategy/presets.h"

namespace longspan::testing {
namespace {

// A ring works on layers that are on the device.
bool may_stream(const Shape& shape) { return shape.chunk < shape.share && shape.mesh.ring == 1; }

// A tensor group distributes the tokens of its only block.
bool has_blocks(const Shape& shape) { return shape.chunk < shape.share && shape.mesh.tensor == 1; }

// Parameters off the device are whole on every rank, or gathered from shards.
bool parameters_may_leave(const ParallelLayout& p) { return p.shards() == 1 || p.zero == 3; }

bool decides_memory(const std::string& knob) {
  for (const char* name :
       {"states", "layer_input", "qkv", "block", "kv", "between_uses", "backward_order"}) {
    if (knob == name) return true;
  }
  return false;
}

std::vector<int64_t> zero_stages(const ParallelLayout& mesh, std::optional<int64_t> fixed) {
  if (fixed) return {*fixed};
  if (mesh.ranks() == 1) return {0};
  return {0, 1, 2, 3};
}

std::vector<StatePlacement> state_placements(bool with_nvme) {
  constexpr Tier device = Tier::device, host = Tier::host, nvme = Tier::nvme;
  std::vector<StatePlacement> all = {
      {device, device, device}, {device, device, host}, {device, host, host}, {host, host, host}};
  if (with_nvme) all.insert(all.end(), {{device, host, nvme}, {host, host, nvme}});
  return all;
}

}  // namespace

Strategy all_resident(const Shape& shape) {
  Strategy s;
  s.preset = "auto";
  s.parallel = shape.mesh;
  s.chunk_tokens = shape.chunk;
  s.block_tokens = shape.share;
  return s;
}

Strategy all_offloaded(const Shape& shape, std::optional<int64_t> zero) {
  Strategy s = all_resident(shape);
  s.block_tokens = has_blocks(shape) ? shape.chunk : shape.share;
  s.layer_input.where = Saved::host;
  s.qkv.where = s.attention_out.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
  if (may_stream(shape)) s.kv = s.between_uses = Tier::host;
  const int64_t tile = std::min<int64_t>(256, shape.chunk / shape.mesh.ulysses);
  s.projection_tile = s.mlp_tile = s.loss_tile = tile;
  s.parallel.zero = zero.value_or(shape.mesh.ranks() > 1 ? 3 : 0);
  s.gradients = s.optimizer = Tier::host;
  s.parameters = parameters_may_leave(s.parallel) ? Tier::host : Tier::device;
  return s;
}

std::vector<Knob> knobs(const ModelSpec& model, const Shape& shape, bool with_nvme,
                        std::optional<int64_t> zero) {
  std::vector<Knob> all;
  const int64_t share = shape.share, chunk = shape.chunk;
  const auto tiers = [&](const char* name, Tier Strategy::*field) {
    all.push_back({name,
                   {[=](Strategy& s) { s.*field = Tier::device; },
                    [=](Strategy& s) { s.*field = Tier::host; }}});
  };
  const auto saved = [&](const char* name, SavedPolicy Strategy::*field,
                         std::vector<Saved> options) {
    if (with_nvme) options.push_back(Saved::nvme);
    Knob knob{name, {}};
    for (const Saved where : options) {
      knob.values.push_back([=](Strategy& s) { (s.*field).where = where; });
    }
    all.push_back(std::move(knob));
  };
  const auto tile = [&](const char* name, int64_t Strategy::*field, int64_t rows) {
    Knob knob{name, {[=](Strategy& s) { s.*field = 0; }}};
    for (const int64_t t : {64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
      if (t < rows) knob.values.push_back([=](Strategy& s) { s.*field = t; });
    }
    all.push_back(std::move(knob));
  };

  Knob states{"states", {}};
  for (const int64_t stage : zero_stages(shape.mesh, zero)) {
    for (const StatePlacement& p : state_placements(with_nvme)) {
      ParallelLayout sharded = shape.mesh;
      sharded.zero = stage;
      if (p.parameters != Tier::device && !parameters_may_leave(sharded)) continue;
      states.values.push_back([p, stage](Strategy& s) {
        s.parallel.zero = stage;
        s.parameters = p.parameters;
        s.gradients = p.gradients;
        s.optimizer = p.optimizer;
      });
    }
  }
  all.push_back(std::move(states));
  saved("layer_input", &Strategy::layer_input, {Saved::keep, Saved::host});
  saved("mlp_inner", &Strategy::mlp_inner, {Saved::keep, Saved::recompute, Saved::host});
  saved("attention_out", &Strategy::attention_out, {Saved::keep, Saved::recompute, Saved::host});
  saved("qkv", &Strategy::qkv, {Saved::keep, Saved::recompute, Saved::host});
  saved("mlp_input", &Strategy::mlp_input, {Saved::keep, Saved::recompute, Saved::host});
  if (has_blocks(shape)) {
    all.push_back({"block",
                   {[=](Strategy& s) { s.block_tokens = chunk; },
                    [=](Strategy& s) { s.block_tokens = share; }}});
  }
  if (may_stream(shape)) {
    tiers("kv", &Strategy::kv);
    tiers("between_uses", &Strategy::between_uses);
    all.push_back({"backward_order",
                   {[](Strategy& s) { s.backward_order = BackwardOrder::q_outer; },
                    [](Strategy& s) { s.backward_order = BackwardOrder::kv_outer; }}});
  }
  const int64_t ulysses = shape.mesh.ulysses;
  if (chunk == share && shape.mesh.ring == 1 && shape.mesh.tensor == 1) {
    Knob knob{"head_groups", {}};
    for (int64_t groups = 1; groups <= model.heads / ulysses; ++groups) {
      if (!heads_divide_into(model, ulysses, groups)) continue;
      knob.values.push_back([=](Strategy& s) { s.head_groups = groups; });
    }
    all.push_back(std::move(knob));
  }
  tile("loss_tile", &Strategy::loss_tile, share / ulysses);
  tile("mlp_tile", &Strategy::mlp_tile, share / ulysses);
  tile("projection_tile", &Strategy::projection_tile, chunk / ulysses);
  for (const auto& [name, field] : {std::pair{"offload_window", &Strategy::offload_window},
                                    std::pair{"prefetch_depth", &Strategy::prefetch_depth}}) {
    Knob knob{name, {}};
    for (const int64_t depth : {1, 0}) {
      knob.values.push_back([field = field, depth](Strategy& s) { s.*field = depth; });
    }
    all.push_back(std::move(knob));
  }
  return all;
}

std::vector<Strategy> min_memory_strategies(const ModelSpec& model, const Shape& shape,
                                            bool with_nvme, std::optional<int64_t> zero) {
  std::vector<Strategy> all = {all_offloaded(shape, zero)};
  for (const Knob& knob : knobs(model, shape, with_nvme, zero)) {
    if (!decides_memory(knob.name)) continue;
    std::vector<Strategy> more;
    for (const Strategy& s : all) {
      for (const auto& set : knob.values) {
        Strategy changed = s;
        set(changed);
        if (changed.parallel.zero != s.parallel.zero) continue;
        if (changed.qkv.where == Saved::keep || changed.qkv.where == Saved::nvme) continue;
        more.push_back(std::move(changed));
      }
    }
    all = std::move(more);
  }
  return all;
}

}  // namespace longspan::testing
