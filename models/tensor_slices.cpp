#include "models/tensor_slices.h"

#include <algorithm>

namespace longspan {
namespace {

enum class Cut { none, rows, columns };

// A piece of a whole layer unit with one kind of cut. q, k and v are separate pieces even if they
// are one tensor.
struct Piece {
  Cut cut;
  int64_t rows, columns;
  int64_t expert = -1;  // that it is of
};

// Router and shared experts.
void add_router_pieces(const ModelSpec& m, std::vector<Piece>& pieces) {
  const Experts& e = *m.experts;
  const int64_t d = m.hidden;
  pieces.push_back({Cut::none, e.count, d});
  if (e.router_bias) pieces.push_back({Cut::none, 1, e.count});
  if (e.selection_bias) pieces.push_back({Cut::none, 1, e.count});
  if (e.shared_ffn == 0) return;
  for (int i = 0; i < (m.gated() ? 2 : 1); ++i) pieces.push_back({Cut::rows, e.shared_ffn, d});
  pieces.push_back({Cut::columns, d, e.shared_ffn});
  if (e.shared_gate) pieces.push_back({Cut::none, 1, d});
}

// The unit of a layer's experts: every expert is cut like an MLP.
std::vector<Piece> experts_pieces(const ModelSpec& m) {
  const Experts& e = *m.experts;
  const int64_t parts = m.gated() ? 2 : 1;
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < parts * e.count; ++i) {
    pieces.push_back({Cut::rows, e.ffn, m.hidden, i / parts});
  }
  for (int64_t i = 0; m.mlp_bias && i < parts * e.count; ++i) {
    pieces.push_back({Cut::rows, e.ffn, 1, i / parts});
  }
  for (int64_t i = 0; i < e.count; ++i) pieces.push_back({Cut::columns, m.hidden, e.ffn, i});
  for (int64_t i = 0; m.mlp_bias && i < e.count; ++i) {
    pieces.push_back({Cut::none, 1, m.hidden, i});
  }
  return pieces;
}

// Every rank has whole what makes the narrow vectors of a token.
void add_latent_pieces(const ModelSpec& m, std::vector<Piece>& pieces) {
  const LatentAttention& l = *m.latent;
  const auto narrow = [&](int64_t rank, int64_t more) {
    pieces.push_back({Cut::none, rank + more, m.hidden});
    pieces.push_back({Cut::none, 1, rank});
  };
  if (l.query_rank > 0) narrow(l.query_rank, 0);
  pieces.push_back({Cut::rows, m.attention_width(), l.query_rank > 0 ? l.query_rank : m.hidden});
  narrow(l.key_rank, l.rotated_dim);
  pieces.push_back({Cut::rows, m.heads * (m.head_dim - l.rotated_dim + l.value_dim), l.key_rank});
}

// The pieces in the order documented at parameter_units().
std::vector<Piece> layer_pieces(const ModelSpec& m) {
  const int64_t d = m.hidden, a = m.attention_width(), g = m.kv_width();
  const int64_t attended = m.attended_width();
  const Piece norm{Cut::none, m.norm == Norm::layernorm ? 2 : 1, d};
  const Piece bias{Cut::none, 1, d};
  std::vector<Piece> pieces;
  if (m.attention) {
    pieces.push_back(norm);
    if (m.latent) {
      add_latent_pieces(m, pieces);
    } else {
      for (const int64_t rows : {a, g, g}) pieces.push_back({Cut::rows, rows, d});
    }
    if (m.qkv_bias) {
      for (const int64_t rows : {a, g, g}) pieces.push_back({Cut::rows, rows, 1});
    }
    if (m.qk_norm) pieces.push_back({Cut::none, 1, m.qk_norm_of_token ? a + g : 2 * m.head_dim});
    pieces.push_back({Cut::columns, d, attended});
    if (m.attention_out_bias) pieces.push_back(bias);
    if (m.attention_sinks) pieces.push_back({Cut::rows, m.heads, 1});
    if (m.norm_placement == NormPlacement::both) pieces.push_back(norm);
  }
  pieces.push_back(norm);
  if (m.experts) {
    add_router_pieces(m, pieces);
  } else {
    if (m.gated()) pieces.push_back({Cut::rows, m.ffn, d});
    pieces.push_back({Cut::rows, m.ffn, d});
    if (m.mlp_bias) pieces.push_back({Cut::rows, m.ffn, 1});
    pieces.push_back({Cut::columns, d, m.ffn});
    if (m.mlp_bias) pieces.push_back(bias);
  }
  if (m.norm_placement == NormPlacement::both) pieces.push_back(norm);
  return pieces;
}

// Appends runs contiguously in the narrow unit, and joins runs that are contiguous in both units.
class Runs {
 public:
  void add(int64_t whole, int64_t count, bool replicated) {
    if (!runs_.empty()) {
      SliceRun& last = runs_.back();
      if (last.whole + last.count == whole && last.replicated == replicated) {
        last.count += count;
        next_ += count;
        return;
      }
    }
    runs_.push_back({next_, whole, count, replicated});
    next_ += count;
  }
  std::vector<SliceRun> take() { return std::move(runs_); }

 private:
  std::vector<SliceRun> runs_;
  int64_t next_ = 0;
};

}  // namespace

bool divides_widths(const ModelSpec& model, int64_t degree) {
  const auto fits = [&](const LayerRun& run) { return run.experts || run.ffn % degree == 0; };
  const std::vector<LayerRun> runs = layer_runs(model);
  const bool experts_fit = !model.experts || (model.experts->ffn % degree == 0 &&
                                              model.experts->shared_ffn % degree == 0);
  return model.heads % degree == 0 && model.kv_heads % degree == 0 && experts_fit &&
         std::all_of(runs.begin(), runs.end(), fits);
}

ModelSpec narrow_model(const ModelSpec& model, int64_t degree) {
  ModelSpec narrow = model;
  narrow.heads /= degree;
  narrow.kv_heads /= degree;
  narrow.ffn /= degree;
  for (LayerRun& run : narrow.runs) run.ffn /= degree;
  if (narrow.experts) {
    narrow.experts->ffn /= degree;
    narrow.experts->shared_ffn /= degree;
  }
  return narrow;
}

std::vector<SliceRun> slice_runs(const ModelSpec& model, const ParameterUnit& unit, int64_t degree,
                                 int64_t index, const ExpertRange& experts) {
  const bool of_experts = unit.kind == ParameterUnit::Kind::experts;
  const bool is_whole = degree == 1 && (!of_experts || experts.degree == 1);
  if (is_whole || (unit.kind != ParameterUnit::Kind::layer && !of_experts)) {
    return {{0, 0, unit.elements, true}};
  }
  Runs runs;
  int64_t whole = 0;
  const ModelSpec alike = model_of_run(model, run_of_layer(model, unit.layer));
  for (const Piece& piece : of_experts ? experts_pieces(alike) : layer_pieces(alike)) {
    const int64_t elements = piece.rows * piece.columns;
    if (piece.expert >= 0 &&
        piece.expert * experts.degree / alike.experts->count != experts.index) {
      whole += elements;
      continue;
    }
    switch (piece.cut) {
      case Cut::none:
        runs.add(whole, elements, true);
        break;
      case Cut::rows:
        runs.add(whole + index * (elements / degree), elements / degree, false);
        break;
      case Cut::columns: {
        const int64_t share = piece.columns / degree;
        for (int64_t row = 0; row < piece.rows; ++row) {
          runs.add(whole + row * piece.columns + index * share, share, false);
        }
        break;
      }
    }
    whole += elements;
  }
  return runs.take();
}

std::vector<UnitRange> replicated_in_layer(const ModelSpec& model, int64_t degree) {
  std::vector<UnitRange> ranges;
  int64_t next = 0;
  for (const Piece& piece : layer_pieces(model)) {
    const int64_t elements = piece.rows * piece.columns / (piece.cut == Cut::none ? 1 : degree);
    if (piece.cut == Cut::none) {
      if (!ranges.empty() && ranges.back().end == next) {
        ranges.back().end += elements;
      } else {
        ranges.push_back({next, next + elements});
      }
    }
    next += elements;
  }
  return ranges;
}

}  // namespace longspan
