#include "tests/planner/random_strategy.h"

#include <map>
#include <random>

#include "base/units.h"
#include "models/adapters.h"
#include "models/training.h"
#include "planner/strategy/product_format.h"

namespace longspan::testing {

namespace {

// Features of later models, by numbers of their own: those of the seed stay what they are.
void add_features(uint64_t seed, StepRequest& request) {
  std::mt19937_64 random(seed + 77);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  ModelSpec& m = request.model;
  if (m.gated()) {
    const Activation gated[] = {Activation::swiglu, Activation::geglu, Activation::clamped_swiglu};
    m.activation = gated[pick(3)];
  }
  if (m.norm == Norm::rmsnorm) m.norm_offset = pick(3) == 0;
  m.norm_placement = static_cast<NormPlacement>(pick(3));
  if (pick(3) == 0) m.embedding_scale = 3;
  if (m.qk_norm && request.strategy.head_groups == 1) m.qk_norm_of_token = pick(2) == 0;
}

}  // namespace

namespace {

// Products below 16 bits, with widths and numbers of tokens that they divide.
void cast_products(uint64_t seed, StepRequest& request) {
  Strategy& s = request.strategy;
  ModelSpec& m = request.model;
  s.products = static_cast<ProductFormat>(1 + seed % 4);
  const int64_t multiple = format_row(s.products).multiple;
  // Also of each of two ranks that share a layer.
  for (int64_t* width : {&m.hidden, &m.head_dim}) *width = round_up(*width, multiple);
  m.ffn = round_up(m.ffn, 2 * multiple);
  if (m.rotary_share < 1) m.rotary_share = 2.0 / static_cast<double>(m.head_dim);
  if (m.experts) {
    for (int64_t* width : {&m.experts->ffn, &m.experts->shared_ffn}) {
      *width = round_up(*width, 2 * multiple);
    }
  }
  const int64_t factor = multiple / 4;
  for (int64_t* tokens : {&request.sequence, &s.chunk_tokens, &s.block_tokens, &m.window}) {
    *tokens *= factor;
  }
}

}  // namespace

StepRequest random_request(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  StepRequest request;
  ModelSpec& m = request.model;
  m.name = "random";
  m.layers = 1 + pick(4);
  m.kv_heads = 1 + pick(3);
  m.heads = m.kv_heads * (1 + pick(4));
  m.head_dim = 2 * (1 + pick(8));
  m.hidden = 8 * (1 + pick(8));
  m.ffn = 8 * (1 + pick(12));
  m.vocab = 50 + pick(300);
  m.max_positions = 1 << 16;
  m.tied_embeddings = pick(2) == 1;
  m.qkv_bias = pick(2) == 1;
  if (pick(2) == 1) {
    m.norm = Norm::layernorm;
    m.activation = Activation::gelu;
    m.positions = Positions::learned;
    m.mlp_bias = m.attention_out_bias = true;
  } else {
    m.qk_norm = pick(2) == 1;
  }
  const int64_t chunk = 8 * (1 + pick(16)), per_block = 1 + pick(3), blocks = 1 + pick(6);
  request.sequence = chunk * per_block * blocks;
  request.microbatches = 1 + pick(3);
  Strategy& s = request.strategy;
  s.preset = "random";
  s.chunk_tokens = chunk;
  s.block_tokens = pick(3) == 0 ? request.sequence : chunk * per_block;
  s.kv = static_cast<Tier>(pick(2));
  s.between_uses = static_cast<Tier>(pick(2));
  s.prefetch_depth = pick(4);
  s.offload_window = pick(4);
  s.backward_order = static_cast<BackwardOrder>(pick(2));
  for (SavedPolicy* policy :
       {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    do {
      policy->where = static_cast<Saved>(pick(4));
    } while (policy == &s.layer_input && policy->where == Saved::recompute);
    if (pick(4) == 0) policy->fraction = 0.5;
  }
  s.projection_tile = pick(2) * (1 + pick(chunk));
  s.mlp_tile = pick(2) * (1 + pick(request.sequence));
  s.loss_tile = pick(2) * (1 + pick(request.sequence));
  const Tier placements[][3] = {
      {Tier::device, Tier::device, Tier::device}, {Tier::device, Tier::device, Tier::host},
      {Tier::device, Tier::host, Tier::host},     {Tier::host, Tier::device, Tier::host},
      {Tier::host, Tier::host, Tier::host},       {Tier::device, Tier::host, Tier::nvme},
      {Tier::host, Tier::host, Tier::nvme}};
  const auto& placement = placements[pick(7)];
  s.parameters = placement[0];
  s.gradients = placement[1];
  s.optimizer = placement[2];
  if (pick(3) == 0) {
    // Groups of heads attend to the whole sequence at once.
    s.chunk_tokens = s.block_tokens = request.sequence;
    do {
      s.head_groups = 1 + pick(m.heads);
    } while (!heads_divide_into(m, 1, s.head_groups));
  }
  s.early_update = pick(4) == 0;
  // Windows within a chunk, across some, and beyond all.
  if (pick(3) == 0) m.window = 1 + pick(pick(2) == 0 ? 3 * chunk : 2 * request.sequence);
  m.attention_sinks = pick(4) == 0;
  if (m.positions == Positions::rope) {
    if (pick(4) == 0) m.rotary_share = 2.0 / static_cast<double>(m.head_dim);
    if (pick(4) == 0) m.attention_scale = 0.3;
  }
  add_features(seed, request);
  s.moments = static_cast<MomentFormat>(seed % 7 < 4 ? 0 : seed % 7 - 4);
  s.masters = static_cast<MasterFormat>(seed % 5 == 3);
  if (s.parameters == Tier::device) {
    s.optimizer_fraction = seed % 4 == 3 ? 0.9 : seed % 2 == 1 ? 0.4 : 1;
  }
  if (seed % 3 == 0 && m.gated()) {
    Experts e;
    e.count = 2 + pick(9);
    e.active = 1 + pick(e.count);
    e.ffn = 4 * (1 + pick(12));
    e.shared_ffn = pick(3) * 8;
    m.experts = e;
    m.norm_placement = NormPlacement::input;
  }
  if (seed % 5 == 4) {
    // All layers alike, so that a request stays of one kind.
    Frozen frozen{seed % 2 == 0, seed % 7 < 3};
    if (seed % 3 != 1) frozen.layers = {{0, m.layers}};
    if (!frozen.layers.empty() && frozen.embedding) frozen.head = false;
    m = freeze(m, frozen);
  }
  if (seed % 5 == 2 && m.gated()) {
    Adapters adapters{1 + pick(16), 8};
    for (size_t i = 0; i < (m.experts ? 4 : kProjections); ++i) adapters.on[i] = pick(2) == 0;
    adapters.on[m.experts ? 3 : 6] = true;
    m = with_adapters(m, adapters);
    m.nf4 = seed % 2 == 0;
  }
  if (seed % 7 == 2) cast_products(seed, request);
  if (seed % 7 == 6) {
    m.micro_batch = 2 + pick(3);
    for (int64_t* tokens : {&request.sequence, &s.chunk_tokens, &s.block_tokens}) {
      *tokens *= m.micro_batch;
    }
  }
  return request;
}

void whole(ModelSpec& model) {
  model.backward = LayerBackward::weights;
  model.adapters.reset();
  model.nf4 = false;
}

void pass_back(StepRequest& request) {
  LayerBackward& backward = request.model.backward;
  if (backward == LayerBackward::none) backward = LayerBackward::inputs;
}

StepRequest sliced_request(uint64_t seed) {
  for (uint64_t turn = 0;; ++turn) {
    StepRequest request = random_request(seed + 1000 * turn);
    Strategy& s = request.strategy;
    const int64_t blocks = request.sequence / s.block_tokens;
    if (blocks == 1 || s.backward_order == BackwardOrder::kv_outer) continue;
    pass_back(request);
    s.parallel.pipeline.slices =
        blocks % 2 == 0 && blocks > 2 && seed % 3 == 0 ? blocks / 2 : blocks;
    if (seed % 4 != 0) s.layer_input = {Saved::recompute, 1};
    if (seed % 5 == 0) s.kv = Tier::nvme;
    return request;
  }
}

StepRequest with_latent_attention(StepRequest request, uint64_t seed) {
  std::mt19937_64 random(seed + 99);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  ModelSpec& m = request.model;
  m = wholly_trained(m);
  m.norm = Norm::rmsnorm;
  m.activation = Activation::swiglu;
  m.positions = Positions::rope;
  m.norm_placement = NormPlacement::input;
  m.rotary_share = 1;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.qk_norm = m.qk_norm_of_token = false;
  m.kv_heads = m.heads;
  const int64_t rotated = 2 * (1 + pick(4));
  m.head_dim = rotated + 2 * (1 + pick(6));
  m.latent =
      LatentAttention{pick(2) * 8 * (1 + pick(4)), 8 * (1 + pick(4)), rotated, 2 * (1 + pick(8))};
  Strategy& s = request.strategy;
  if (casts_operands(s)) {
    const int64_t width = format_row(s.products).multiple;
    m.head_dim = 2 * width;
    m.latent = LatentAttention{m.latent->query_rank > 0 ? width : 0, width, width, width};
  }
  while (!heads_divide_into(m, s.parallel.ulysses, s.head_groups)) --s.head_groups;
  return request;
}

StepRequest forward_request(uint64_t seed) {
  StepRequest request = seed % 3 == 0 ? sliced_request(seed) : random_request(seed);
  request.strategy = for_forward(std::move(request.strategy));
  return request;
}

StepRequest in_windows(StepRequest request, uint64_t seed) {
  std::mt19937_64 random(seed);
  ModelSpec& m = request.model;
  const int64_t window = 1 + static_cast<int64_t>(random() % (2 * request.strategy.chunk_tokens));
  const bool rotates = m.positions == Positions::rope;
  m.layers = 6;
  m.local_rope_theta = rotates ? 3000 : 0;
  whole(m);
  const LayerRun all{1, true, m.ffn, 1, m.window};
  LayerRun windowed{2, true, m.ffn, 1, window};
  if (rotates) windowed.positions = LayerPositions::local;
  m.runs = {windowed, all, windowed, all};
  return request;
}

StepRequest in_documents(StepRequest request, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<int64_t, int64_t> counts;
  for (uint64_t i = random() % 3 + 1; i > 0; --i) {
    const auto most = static_cast<uint64_t>(random() % 2 == 0 ? 2 * request.strategy.chunk_tokens
                                                              : 2 * request.sequence);
    counts[static_cast<int64_t>(random() % most) + 1] += static_cast<int64_t>(random() % 9) + 1;
  }
  request.model.documents = Documents(counts);
  if (request.model.positions == Positions::learned) request.model.positions = Positions::none;
  return request;
}

int64_t random_span(const StepRequest& request, uint64_t seed) {
  int64_t span = request.model.of_sequence(request.strategy.chunk_tokens);
  for (uint64_t i = 0; i < seed % 4 && span % 2 == 0; ++i) span /= 2;
  return span;
}

StepRequest in_spans(StepRequest request, uint64_t seed) {
  ModelSpec& m = request.model;
  m.layers = 5;
  whole(m);
  LayerRun apart{2, true, m.ffn, 1, 0, m.experts.has_value()}, all = apart;
  all.layers = 1;
  apart.span = random_span(request, seed);
  m.runs = {apart, all, apart};
  return request;
}

StepRequest balanced(StepRequest request) {
  std::optional<Experts>& experts = request.model.experts;
  if (experts && experts->scores != Experts::Scores::sigmoid) experts->auxiliary_loss = 0.01;
  return request;
}

StepRequest in_runs(StepRequest request) {
  ModelSpec& m = request.model;
  Strategy& s = request.strategy;
  for (int64_t* tokens : {&request.sequence, &s.chunk_tokens, &s.block_tokens}) *tokens *= 2;
  m.layers = 6;
  m.micro_batch = 1;
  whole(m);
  const bool experts = m.experts.has_value();
  const int64_t narrow = casts_operands(s) ? format_row(s.products).multiple : 8;
  m.runs = {{1, true, m.ffn, 1},
            {1, false, narrow, 0.5, 0, experts},
            {3, true, m.ffn, 0.5, 0, experts},
            {1, true, m.ffn, 1}};
  return request;
}

}  // namespace longspan::testing
