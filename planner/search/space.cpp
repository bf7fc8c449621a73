#include "planner/search/space.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "planner/program/ops_estimate.h"
#include "planner/search/pipeline_space.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr Tier kDevice = Tier::device, kHost = Tier::host, kNvme = Tier::nvme;

// Placements of parameters, gradients and optimizer, from all on the device to all off it.
struct Placement {
  Tier parameters, gradients, optimizer;
};
constexpr Placement kPlacements[] = {{kDevice, kDevice, kDevice}, {kDevice, kDevice, kHost},
                                     {kDevice, kHost, kHost},     {kHost, kHost, kHost},
                                     {kDevice, kDevice, kNvme},   {kDevice, kHost, kNvme},
                                     {kHost, kHost, kNvme}};

constexpr int64_t kTiles[] = {64, 256, 512, 1024, 2048, 4096, 8192};
constexpr int64_t kPrefetchDepth = 3;     // refined at the end
constexpr int64_t kMostPipedChunks = 16;  // stages reduce memory as well
constexpr int64_t kMostChunks = 1024;

// The numbers of chunks to try: powers of two, and 1.5 times those.
std::vector<int64_t> chunk_numbers(int64_t most) {
  std::vector<int64_t> all = {1};
  for (int64_t n = 2; n <= most; n *= 2) {
    all.push_back(n);
    if (n + n / 2 <= most) all.push_back(n + n / 2);
  }
  return all;
}

// The shortest padded length that `unit` divides, with chunks aligned if that costs at most a
// 256th; 0 if padding would cost more than a sixteenth.
int64_t padded(int64_t sequence, int64_t unit) {
  if (sequence % unit == 0) return sequence;
  for (int64_t aligned = 64; aligned > 1; aligned /= 2) {
    const int64_t length = round_up(sequence, unit * aligned);
    if (length - sequence <= sequence / 256) return length;
  }
  const int64_t length = round_up(sequence, unit);
  return length - sequence <= std::max<int64_t>(64, sequence / 16) ? length : 0;
}

int64_t rings_of(const ParallelLayout& p) { return p.ring > 1 ? 2 * p.ring : 1; }

// The numbers of chunks of a sequence, or of a mean slice in a pipeline. Slices of equal work need
// several, of which the first slices get more than the last.
std::vector<int64_t> chunk_counts(const ParallelLayout& p, int64_t sequence) {
  if (p.pipeline.slices > 1) {
    return p.pipeline.equal_work ? std::vector<int64_t>{2, 4, 8} : std::vector<int64_t>{1};
  }
  const int64_t most = std::max<int64_t>(1, sequence / rings_of(p) / kLeastChunkOfRank);
  return chunk_numbers(std::min(most, p.has_pipeline() ? kMostPipedChunks : kMostChunks));
}

std::vector<int64_t> zero_stages(const ParallelLayout& p, const SpaceOptions& options) {
  if (options.parallel.zero) return {*options.parallel.zero};
  if (p.replicas() == 1) return {0};
  const bool sliced = p.has_pipeline() && p.pipeline.slices > 1;
  const int64_t most = std::min(options.most_zero, sliced ? int64_t{2} : int64_t{3});
  std::vector<int64_t> stages(static_cast<size_t>(most) + 1);
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

bool may_stand(const Strategy& s) {
  const ParallelLayout& p = s.parallel;
  // The schedule's actions do not include waits for storage at the end of a step.
  if (p.has_pipeline() && s.optimizer == kNvme) return false;
  if (p.pipeline.slices > 1 && against_slices(s)) return false;
  if (s.optimizer_fraction < 1 && (s.parameters != kDevice || p.has_pipeline())) return false;
  return s.parameters == kDevice || p.shards() == 1 || p.zero == 3;
}

}  // namespace

void take(KnobGroup group, const Strategy& from, Strategy& to) {
  switch (group) {
    case KnobGroup::states:
      to.parallel.zero = from.parallel.zero;
      to.parameters = from.parameters;
      to.gradients = from.gradients;
      to.optimizer = from.optimizer;
      to.optimizer_fraction = from.optimizer_fraction;
      return;
    case KnobGroup::layer_input:
      to.layer_input = from.layer_input;
      return;
    case KnobGroup::qkv:
      to.qkv = from.qkv;
      return;
    case KnobGroup::attention_out:
      to.attention_out = from.attention_out;
      return;
    case KnobGroup::mlp_input:
      to.mlp_input = from.mlp_input;
      return;
    case KnobGroup::mlp:
      to.mlp_inner = from.mlp_inner;
      to.mlp_tile = from.mlp_tile;
      return;
    case KnobGroup::projection_tile:
      to.projection_tile = from.projection_tile;
      return;
    case KnobGroup::loss_tile:
      to.loss_tile = from.loss_tile;
      return;
    case KnobGroup::count:
      return;
  }
}

SavedPolicy* saved_policy(KnobGroup group, Strategy& s) {
  switch (group) {
    case KnobGroup::layer_input:
      return &s.layer_input;
    case KnobGroup::qkv:
      return &s.qkv;
    case KnobGroup::attention_out:
      return &s.attention_out;
    case KnobGroup::mlp_input:
      return &s.mlp_input;
    case KnobGroup::mlp:
      return &s.mlp_inner;
    default:
      return nullptr;
  }
}

GroupValues values_of(const Candidate& frame, const SpaceOptions& options, bool nvme) {
  const Strategy& base = frame.strategy;
  const ParallelLayout& p = base.parallel;
  GroupValues values;
  const auto of = [&](KnobGroup group) -> std::vector<Strategy>& {
    return values[static_cast<size_t>(group)];
  };
  for (std::vector<Strategy>& group : values) group.push_back(base);
  for (const int64_t zero : zero_stages(p, options)) {
    for (const Placement& placement : kPlacements) {
      if (placement.optimizer == kNvme && !nvme) continue;
      if (options.optimizer && options.optimizer->tier != placement.optimizer) continue;
      Strategy s = base;
      s.parallel.zero = zero;
      s.parameters = placement.parameters;
      s.gradients = placement.gradients;
      s.optimizer = placement.optimizer;
      s.optimizer_fraction = options.optimizer ? options.optimizer->fraction : 1;
      if (base.forward_only) s = for_forward(std::move(s));
      std::vector<Strategy>& states = of(KnobGroup::states);
      const bool known = std::find(states.begin(), states.end(), s) != states.end();
      if (may_stand(s) && !known) states.push_back(std::move(s));
    }
  }
  for (const KnobGroup group :
       {KnobGroup::layer_input, KnobGroup::qkv, KnobGroup::attention_out, KnobGroup::mlp_input}) {
    for (const Saved where : {Saved::recompute, Saved::host, Saved::nvme}) {
      if ((where == Saved::nvme && !nvme) || base.forward_only) continue;
      // A frame of slices that pass again has no other value, others cannot recompute it.
      if (group == KnobGroup::layer_input &&
          (where == Saved::recompute || base.layer_input.where == Saved::recompute)) {
        continue;
      }
      // At the middle layer, saved bytes are not proportional to the share of layers covered, so
      // shares up to a half and above are separate values.
      for (const double fraction : {0.5, 1.0}) {
        Strategy s = base;
        *saved_policy(group, s) = {where, fraction};
        of(group).push_back(std::move(s));
      }
    }
  }
  const int64_t slice_rows = base.block_tokens / p.ulysses;
  for (const Saved where : {Saved::keep, Saved::recompute, Saved::host, Saved::nvme}) {
    if (where == Saved::nvme && !nvme) continue;
    if (p.expert > 1 && where != Saved::recompute) continue;
    if (base.forward_only && where != base.mlp_inner.where) continue;
    Strategy s = base;
    s.mlp_inner.where = where;
    if (s != base) of(KnobGroup::mlp).push_back(s);
    for (const int64_t tile : kTiles) {
      if (tile >= slice_rows) continue;
      s.mlp_tile = tile;
      of(KnobGroup::mlp).push_back(s);
    }
  }
  for (const int64_t tile : kTiles) {
    Strategy s = base;
    if (tile < base.chunk_tokens / p.ulysses) {
      s.projection_tile = tile;
      of(KnobGroup::projection_tile).push_back(s);
    }
    s.projection_tile = 0;
    if (tile < slice_rows / p.tensor) {
      s.loss_tile = tile;
      of(KnobGroup::loss_tile).push_back(s);
    }
  }
  return values;
}

std::vector<RankLayout> layouts_of(const ModelSpec& model, const HardwareProfile& hw,
                                   const SpaceOptions& options) {
  const ParallelChoice& choice = options.parallel;
  check_choice(choice);
  std::vector<RankLayout> layouts;
  const auto add = [&](const ParallelLayout& parallel) {
    int64_t microbatches = options.microbatches;
    if (options.global_batch > 0) {
      if (options.global_batch % parallel.data != 0) return false;
      microbatches = options.global_batch / parallel.data;
    }
    layouts.push_back({parallel, microbatches});
    return true;
  };
  if (choice.admits_flat() && model.uniform()) {
    std::vector<ParallelLayout> flat;
    if (!may_pipe(hw, choice)) {
      flat = meshes(model, hw, choice);  // throws the reason if there is none
    } else {
      try {
        flat = meshes(model, hw, choice);
      } catch (const Error&) {
      }
    }
    for (const ParallelLayout& parallel : flat) add(parallel);
  }
  const bool pipes = !model.uniform() || may_pipe(hw, choice);
  if (pipes) {
    for (const ParallelLayout& mesh : stage_meshes(model, hw, choice)) {
      ParallelLayout sliced = mesh;
      if (!choice.zero) sliced.zero = 0;
      int64_t microbatches = options.microbatches;
      if (options.global_batch > 0) microbatches = options.global_batch / mesh.data;
      for (const int64_t slices : slice_counts(mesh, std::max<int64_t>(1, microbatches), choice)) {
        sliced.pipeline.slices = slices;
        for (const Pipeline& pipeline : schedules_of(sliced.pipeline, model, choice)) {
          ParallelLayout parallel = sliced;
          parallel.pipeline = pipeline;
          add(parallel);
        }
      }
    }
  } else if (layouts.empty() && !choice.admits_flat()) {
    throw bad_input("--pipeline: {} has {} device{}; a pipeline needs two or more", hw.name,
                    hw.devices(), hw.devices() == 1 ? "" : "s");
  }
  if (layouts.empty() && options.global_batch > 0) {
    throw bad_input(
        "--global-batch: {} cannot be divided among any number of data replicas that {} and the "
        "other "
        "flags leave; leave it or --data out",
        counted(options.global_batch, "microbatch", "microbatches"),
        counted(hw.devices(), "device", "devices"));
  }
  if (layouts.empty())
    throw none_suits(PipelineQuestion{model, hw, options.parallel, options.microbatches, 0});
  return layouts;
}

int64_t unit_of(const FrameShape& shape) {
  const ParallelLayout& p = shape.layout.parallel;
  if (shape.chunk_tokens > 0) {
    return shape.chunk_tokens * p.pipeline.slices * rings_of(p);
  }
  return shape.chunks * rings_of(p) * p.pipeline.slices * p.ulysses * p.tensor;
}

int64_t shortest_of(const FrameShape& shape) {
  const bool cut =
      shape.chunk_tokens == 0 && shape.chunks * shape.layout.parallel.pipeline.slices > 1;
  return unit_of(shape) * (cut ? kLeastChunkOfRank : 1);
}

namespace {

// Blocks that are slices of one stage, each of one chunk unless the question fixes their number.
// Keys and values of all layers may be on any tier.
void add_sliced(FrameShape shape, const SpaceOptions& options, std::vector<FrameShape>& shapes) {
  shape.slices = options.parallel.slices.value_or(0);
  if (shape.slices > 1 && shape.chunk_tokens == 0) {
    shape.block_parts = shape.chunks == 1 ? 0 : shape.slices;
    shape.chunks *= shape.slices;
  } else if (shape.chunk_tokens == 0 && shape.chunks == 1) {
    return;
  }
  for (const Tier kv : {kDevice, kHost, kNvme}) {
    if (kv == kNvme && !options.has_files) continue;
    for (const Tier between_uses : {kDevice, kHost}) {
      shape.kv = kv;
      shape.between_uses = between_uses;
      shapes.push_back(shape);
    }
  }
}

// The tiers of keys and values of slices that pass several stages.
std::vector<Tier> kv_tiers_of_slices(const ParallelLayout& p, const SpaceOptions& options) {
  if (family_of(p.pipeline).exchanges_attention) return {kDevice};
  return options.has_files ? std::vector{kDevice, kHost, kNvme} : std::vector{kDevice, kHost};
}

}  // namespace

std::vector<FrameShape> shapes_of(const ModelSpec& model, const RankLayout& layout,
                                  int64_t sequence, const SpaceOptions& options, bool min_memory) {
  const ParallelLayout& p = layout.parallel;
  std::vector<FrameShape> shapes;
  const std::vector<int64_t> counts =
      options.chunk_tokens > 0 ? std::vector<int64_t>{0} : chunk_counts(p, sequence);
  for (const int64_t chunks : counts) {
    FrameShape shape{layout};
    shape.chunks = chunks;
    shape.chunk_tokens = options.chunk_tokens;
    const bool whole = options.chunk_tokens > 0 ? options.chunk_tokens >= sequence : chunks == 1;
    const bool sliced = p.pipeline.slices > 1;
    std::vector<int64_t> parts = {0};
    if (p.tensor > 1 && !sliced) {
      parts = {1};
    } else if (!min_memory && !sliced && !(whole && p.ring == 1)) {
      parts = p.has_pipeline() ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0, 4, 2, 1};
    }
    const bool streams = !whole && p.ring == 1 && !sliced;
    const bool may_slice = p.ring == 1 && p.tensor == 1 && !p.has_pipeline();
    if (may_slice && options.parallel.admits_slices()) add_sliced(shape, options, shapes);
    if (!p.has_pipeline() && !options.parallel.admits_whole_sequences()) continue;
    const std::vector<Tier> tiers = streams ? std::vector{kDevice, kHost} : std::vector{kDevice};
    const std::vector<Tier> kv_tiers = sliced ? kv_tiers_of_slices(p, options) : tiers;
    for (const int64_t block_parts : parts) {
      shape.block_parts = block_parts;
      for (const Tier kv : kv_tiers) {
        for (const Tier between_uses : tiers) {
          for (const BackwardOrder order : {BackwardOrder::q_outer, BackwardOrder::kv_outer}) {
            if (order == BackwardOrder::kv_outer && (!streams || options.forward_only)) continue;
            shape.kv = kv;
            shape.between_uses = between_uses;
            shape.order = order;
            shapes.push_back(shape);
          }
        }
      }
    }
    if (!whole || p.ring > 1 || p.tensor > 1 || p.has_pipeline()) continue;
    for (int64_t groups = 2; groups <= model.heads / p.ulysses; ++groups) {
      if (!heads_divide_into(model, p.ulysses, groups)) continue;
      shape.head_groups = groups;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

std::optional<Candidate> frame_of(const FrameShape& shape, int64_t sequence,
                                  const SpaceOptions& options) {
  const ParallelLayout& p = shape.layout.parallel;
  const int64_t rings = rings_of(p), unit = unit_of(shape), dealt = p.ulysses * p.tensor;
  Candidate c;
  Strategy& s = c.strategy;
  if (shape.chunk_tokens > 0) {
    c.sequence = round_up(sequence, unit);
    if (c.sequence - sequence >= shape.chunk_tokens) return std::nullopt;
    if (c.sequence % dealt != 0 || shape.chunk_tokens % dealt != 0) return std::nullopt;
    s.chunk_tokens = shape.chunk_tokens;
  } else {
    c.sequence = padded(sequence, unit * options.of_shares);
    if (c.sequence == 0) return std::nullopt;
    s.chunk_tokens = c.sequence / (shape.chunks * rings * p.pipeline.slices);
    const int64_t parts = shape.chunks * p.pipeline.slices;
    if (parts > 1 && c.sequence / (rings * parts) / dealt < kLeastChunkOfRank) return std::nullopt;
  }
  if (c.sequence > options.most_tokens) return std::nullopt;
  const int64_t share = c.sequence / p.ring;
  s.block_tokens = shape.block_parts == 0 ? s.chunk_tokens : share / shape.block_parts;
  if (shape.block_parts > 0 && p.tensor == 1 &&
      (share % shape.block_parts != 0 || s.block_tokens % s.chunk_tokens != 0 ||
       s.block_tokens <= s.chunk_tokens)) {
    return std::nullopt;  // not blocks of several chunks
  }
  const Pipeline& pipeline = p.pipeline;
  if (pipeline.equal_work && c.sequence / s.block_tokens == pipeline.slices) return std::nullopt;
  c.microbatches = shape.layout.microbatches;
  s.preset = "auto";
  s.parallel = p;
  s.head_groups = shape.head_groups;
  s.kv = shape.kv;
  s.between_uses = shape.between_uses;
  s.backward_order = shape.order;
  if (p.expert > 1) s.mlp_inner = {Saved::recompute};
  if (shape.slices != 1) {
    const int64_t blocks = share / s.block_tokens, slices = shape.slices;
    s.parallel.pipeline.slices = slices == 0 ? blocks : slices;
    if (blocks == 1 || blocks % s.parallel.pipeline.slices != 0) return std::nullopt;
    s.layer_input.where = Saved::recompute;
  }
  s.prefetch_depth = kPrefetchDepth;
  fix_knobs(options, s);
  return c;
}

void fix_knobs(const SpaceOptions& options, Strategy& s) {
  s.deterministic = options.deterministic;
  s.moments = options.moments;
  s.masters = options.masters;
  if (options.optimizer) {
    s.optimizer = options.optimizer->tier;
    s.optimizer_fraction = options.optimizer->fraction;
  }
  s.products = options.products;
  s.early_update = options.early_update;
  if (options.forward_only) s = for_forward(std::move(s));
}

FrameShape shape_of(const Candidate& c, const SpaceOptions& options) {
  const Strategy& s = c.strategy;
  const ParallelLayout& p = s.parallel;
  FrameShape shape{{p, c.microbatches}};
  const int64_t slices = p.has_pipeline() ? p.pipeline.slices : 1;
  shape.chunk_tokens = options.chunk_tokens;
  shape.chunks = c.sequence / (s.chunk_tokens * rings_of(p) * slices);
  shape.block_parts = s.block_tokens == s.chunk_tokens ? 0 : c.sequence / p.ring / s.block_tokens;
  shape.head_groups = s.head_groups;
  if (!p.has_pipeline()) {
    const int64_t blocks = c.sequence / p.ring / s.block_tokens, own = p.pipeline.slices;
    shape.layout.parallel.pipeline.slices = 1;
    shape.slices = own > 1 && own == blocks ? 0 : own;
  }
  shape.kv = s.kv;
  shape.between_uses = s.between_uses;
  shape.order = s.backward_order;
  return shape;
}

std::vector<Candidate> frames_of(const ModelSpec& model, const HardwareProfile& hw,
                                 int64_t sequence, const SpaceOptions& options,
                                 const FrameFilter& filter) {
  return frames_of(model, layouts_of(model, hw, options), sequence, options, filter);
}

std::vector<Candidate> frames_of(const ModelSpec& model, const std::vector<RankLayout>& layouts,
                                 int64_t sequence, const SpaceOptions& options,
                                 const FrameFilter& filter) {
  std::vector<Candidate> frames;
  StepRequest request;
  request.model = model;
  for (const RankLayout& layout : layouts) {
    for (const FrameShape& shape : shapes_of(model, layout, sequence, options, filter.min_memory)) {
      std::optional<Candidate> frame = frame_of(shape, sequence, options);
      if (!frame || !is_valid(frame->strategy, model, frame->sequence)) continue;
      // A slice of one chunk is taken whatever its ops.
      if (shape.chunks != 1) {
        request.strategy = frame->strategy;
        request.sequence = frame->sequence;
        request.microbatches = frame->microbatches;
        if (ops_estimate(request) > filter.most_ops) continue;
      }
      frames.push_back(std::move(*frame));
    }
  }
  return frames;
}

}  // namespace longspan
