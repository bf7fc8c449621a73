#include "planner/program/layer_kinds.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace longspan {
namespace {

// The lengths of a share of the tokens: the same numbers of chunks and blocks, with fewer tokens
// each. None if it is no whole number of the tokens that a rank holds in a row.
std::optional<Lengths> lengths_of_share(const Lengths& all, double share) {
  const int64_t chunk = tokens_of_share(share, all.own_chunk());
  if (chunk < 0 || tokens_of_share(share, all.own_run()) < 0) return std::nullopt;
  Lengths lengths = all;
  lengths.chunk = chunk * all.ulysses;
  lengths.block = lengths.chunk * (all.block / all.chunk);
  lengths.local_sequence = lengths.chunk * all.chunks();
  return lengths;
}

constexpr int64_t kLongestPattern = 1 << 20;

// The fewest tokens of which a share is a whole number; more than kLongestPattern if those are.
int64_t tokens_of_pattern(double share) {
  int64_t tokens = 1;
  while (tokens <= kLongestPattern && tokens_of_share(share, tokens) < 0) ++tokens;
  return tokens;
}

Error indivisible(const std::string& model, double share, const Lengths& all) {
  return bad_input(
      "{}: layers on {} of the tokens need multiples of {} tokens wherever tokens are divided, and "
      "a rank has {} of a chunk; use other chunk_tokens, or a rounder share",
      model, share, tokens_of_pattern(share),
      tokens_of_share(share, all.own_chunk()) < 0 ? all.own_chunk() : all.own_run());
}

// Whether the layers of a kind are those of a uniform model.
bool are_layers_of(const ModelSpec& kind, const ModelSpec& alike) {
  ModelSpec uniform = kind;
  uniform.layers = alike.layers;
  uniform.runs.clear();
  return uniform == alike;
}

int add_kind(Program& p, const ModelSpec& alike, double share) {
  for (int kind = 0; kind < p.kinds(); ++kind) {
    if (p.share_of(kind) != share || !are_layers_of(p.model_of(kind), alike)) continue;
    if (kind > 0) p.more_kinds[static_cast<size_t>(kind - 1)].model.layers += alike.layers;
    return kind;
  }
  const std::optional<Lengths> lengths = lengths_of_share(p.lengths, share);
  if (!lengths) throw indivisible(p.model.name, share, p.lengths);
  LayerKind& kind = p.more_kinds.emplace_back(LayerKind{alike, share, *lengths, {}});
  kind.bytes = tensor_bytes(alike, kind.lengths, p.strategy, p.dtype, p.compute_capability);
  return p.kinds() - 1;
}

bool has_share(const Program& p, double share) {
  int kind = 0;
  while (kind < p.kinds() && p.share_of(kind) != share) ++kind;
  return kind < p.kinds();
}

// Whether the tokens of each share are among those of the one before.
bool are_nested(const TokenShares& shares, int64_t tokens) {
  for (size_t i = 1; i < shares.size(); ++i) {
    const RowChoice rows{tokens, tokens_of_share(shares[i - 1], tokens),
                         tokens_of_share(shares[i], tokens)};
    if (!rows.is_nested()) return false;
  }
  return true;
}

void check_nested(const std::string& model, const TokenShares& shares, int64_t tokens) {
  if (are_nested(shares, tokens)) return;
  throw bad_input(
      "{}: {} of the tokens are not among the {} of the run around it; use a share that is a half, "
      "a third, ... of that",
      model, shares.back(), shares[shares.size() - 2]);
}

// The lengths of the parts of a sequence; a pipeline's blocks and chunks are at most a slice.
Lengths parts_of(Strategy strategy, int64_t sequence) {
  const int64_t slice = sequence / strategy.parallel.pipeline.slices;
  strategy.block_tokens = std::min(strategy.block_tokens, slice);
  strategy.chunk_tokens = std::min(strategy.chunk_tokens, slice);
  return lengths_of(strategy, sequence);
}

}  // namespace

void add_layer_kinds(Program& p) {
  if (p.model.uniform()) return;
  for (const LayerRun& run : p.model.runs) {
    const int kind = add_kind(p, model_of_run(p.model, run), run.tokens);
    p.layer_kinds.insert(p.layer_kinds.end(), static_cast<size_t>(run.layers), kind);
  }
}

void add_passing_kinds(Program& p, const StageLayers& stage) {
  if (p.model.uniform()) return;
  ModelSpec none = p.model;
  none.layers = 0;
  none.runs.clear();
  for (const TokenShares* shares : {&stage.enters, &stage.leaves}) {
    for (const double share : *shares) {
      if (share < 1 && !has_share(p, share)) add_kind(p, none, share);
    }
    check_nested(p.model.name, *shares, p.lengths.own_chunk());
  }
  TokenShares shares = stage.enters;
  for (int layer = stage.first; layer < stage.end; ++layer) {
    shares = shares_in(shares, p.share_of(p.kind_of_layer(layer)));
    check_nested(p.model.name, shares, p.lengths.own_chunk());
  }
}

bool divides_shares(const ModelSpec& model, const Strategy& strategy, int64_t sequence) {
  if (model.works_on_all_tokens()) return true;
  const Lengths all = parts_of(strategy, sequence);
  TokenShares shares{1};
  return std::all_of(model.runs.begin(), model.runs.end(), [&](const LayerRun& run) {
    shares = shares_in(shares, run.tokens);
    return (run.tokens == 1 || lengths_of_share(all, run.tokens)) &&
           are_nested(shares, all.own_chunk());
  });
}

void check_shares(const ModelSpec& model, const Strategy& strategy, int64_t sequence) {
  const Lengths all = parts_of(strategy, sequence);
  TokenShares shares{1};
  for (const LayerRun& run : model.runs) {
    if (run.tokens < 1 && !lengths_of_share(all, run.tokens)) {
      throw indivisible(model.name, run.tokens, all);
    }
    shares = shares_in(shares, run.tokens);
    check_nested(model.name, shares, all.own_chunk());
  }
}

int64_t tokens_of_shares(const ModelSpec& model) {
  int64_t all = model.micro_batch;
  for (const LayerRun& run : model.runs) {
    all = std::lcm(all, tokens_of_pattern(run.tokens));
    if (all <= kLongestPattern) continue;
    throw bad_input(
        "{}: layers on {} of the tokens have a whole number of them only in multiples of more than "
        "{} tokens; use a rounder share",
        model.name, run.tokens, kLongestPattern);
  }
  TokenShares shares{1};
  for (const LayerRun& run : model.runs) {
    shares = shares_in(shares, run.tokens);
    check_nested(model.name, shares, all);
  }
  return all;
}

}  // namespace longspan
